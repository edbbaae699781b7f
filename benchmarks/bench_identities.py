"""Measure how well names that mean the same are told by rules: in a document by identity, across documents by title.

Command: python benchmarks/bench_identities.py --corpora ../shared/data/labelled \
    --summary benchmarks/results/identities_cpu_202611.json

The spans and types of the names are those of the corpus; end to end those that a bundled tagger finds in the dev part,
persons, places and organisations alone, where a pair is right if both are names of the corpus that mean the same. Pairs
are pairs of names, over all documents; B3 is the mean over the names (Bagga and Baldwin, 1998). Across documents only
names with a title count. Scores are percentages.
"""

import argparse
import csv
import json
import time
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from english_types import TYPES
from environment import environment

from concord.models.bundles.checkpoint import load_tagger
from concord.models.taggers.base import Tagger
from concord.pipeline.names.identities import Mention, identify, name_key
from concord.pipeline.output.tables import tabulate_names
from concord.workflows.corpora import read_gold_for

REPEATS = 5
MENTIONS = 1_000_000
MODEL = "entities_multi"
FOUND_TYPES = ("PER", "LOC", "ORG")


class Name(NamedTuple):
    """A name of the corpus: where it stands, and who it is in its document and, if known, elsewhere."""

    mention: Mention
    identity: str
    title: str


def read_lines(path: Path) -> list[str]:
    """Return the lines of a compressed file."""
    with pa.input_stream(str(path)) as stream:
        return bytes(stream.read()).decode().splitlines()


def read_texts(path: Path) -> dict[str, tuple[str, list[tuple[int, int]]]]:
    """Return the text and the offsets of the words of each document."""
    words: defaultdict[str, list[tuple[str, bool]]] = defaultdict(list)
    doc_id = ""
    for line in read_lines(path):
        if line.startswith("# newdoc id = "):
            doc_id = line.removeprefix("# newdoc id = ")
        elif (columns := line.split("\t"))[0].isdigit():
            words[doc_id].append((columns[1], "SpaceAfter=No" in columns[9]))
    texts = {}
    for doc_id, forms in words.items():
        text, offsets = "", []
        for form, joined in forms:
            offsets.append((len(text), len(text) + len(form)))
            text += form if joined else f"{form} "
        texts[doc_id] = (text, offsets)
    return texts


def read_names(corpora: Path, part: str) -> Iterator[tuple[str, list[Name]]]:
    """Yield the text of each document with its names, in order."""
    texts = read_texts(next((corpora / "gum_ne_open").glob(f"{part}.*")))
    rows = csv.DictReader(
        read_lines(next((corpora / "gum_identity").glob(f"{part}.*"))), delimiter="\t", quoting=csv.QUOTE_NONE
    )
    documents: defaultdict[str, list[Name]] = defaultdict(list)
    for row in rows:
        text, offsets = texts[row["doc"]]
        start, end = offsets[int(row["start"])][0], offsets[int(row["end"]) - 1][1]
        mention = Mention(text[start:end], row["type"], start, end)
        documents[row["doc"]].append(Name(mention, row["identity"], row["wikipedia"]))
    for doc_id, names in documents.items():
        yield texts[doc_id][0], names


def score(gold: Sequence[Hashable], found: Sequence[Hashable]) -> dict[str, dict[str, float]]:
    """Compare groups of the same names; a group is the names with an equal value."""
    shared, of_gold, of_found = Counter(zip(gold, found, strict=True)), Counter(gold), Counter(found)
    right, named, wanted = (pairs(sizes) for sizes in (shared, of_found, of_gold))
    precise = sum(size * size / of_found[group] for (_, group), size in shared.items())
    recalled = sum(size * size / of_gold[group] for (group, _), size in shared.items())
    return {
        "pairs": rates(right / named, right / wanted),
        "b3": rates(precise / len(gold), recalled / len(gold)),
    }


def rates(precision: float, recall: float) -> dict[str, float]:
    """Return precision, recall and F1 in percent."""
    values = {"precision": precision, "recall": recall, "f1": 2 * precision * recall / (precision + recall)}
    return {name: round(100 * value, 1) for name, value in values.items()}


def measure(corpora: Path, part: str) -> dict[str, object]:
    """Compare equal strings and the rules on one part of the corpus."""
    documents = list(read_names(corpora, part))
    seconds = []
    for _ in range(REPEATS):
        begun = time.process_time()
        identities = [identify([name.mention for name in names], text) for text, names in documents]
        seconds.append(time.process_time() - begun)
    gold = [(number, name.identity) for number, (_, names) in enumerate(documents) for name in names]
    flat = [name for _, names in documents for name in names]
    rules = [(number, one.number) for number, found in enumerate(identities) for one in found]
    strings = [(number, name.mention.text) for (number, _), name in zip(gold, flat, strict=True)]
    labelled = [(*string, name.mention.label) for string, name in zip(strings, flat, strict=True)]
    linked = [
        (name.title, name.mention.text, (name.mention.label, name_key(one.canonical, name.mention.label)))
        for name, one in zip(flat, (one for found in identities for one in found), strict=True)
        if name.title
    ]
    titles, texts, canonical = zip(*linked, strict=True)
    return {
        "documents": len(documents),
        "names": len(flat),
        "names_a_second": round(len(flat) / min(seconds)),
        "in_documents": {
            "equal_strings": score(gold, strings),
            "equal_strings_and_types": score(gold, labelled),
            "rules": score(gold, rules),
        },
        "across_documents": {"equal_strings": score(titles, texts), "rules": score(titles, canonical)},
    }


def measure_end_to_end(corpora: Path, tagger: Tagger) -> dict[str, object]:
    """Compare equal strings and the rules on names that a tagger finds in the dev part."""
    part = next((corpora / "gum_ne_open").glob("dev.*"))
    gold = {
        (text, name.mention.start, name.mention.end): name.identity
        for text, names in read_names(corpora, "dev")
        for name in names
        if name.mention.label in FOUND_TYPES
    }
    pairs_of_gold = pairs(Counter((text, identity) for (text, _, _), identity in gold.items()))
    found: dict[str, list[tuple[Hashable, Hashable]]] = {"equal_strings": [], "rules": []}
    documents = read_gold_for(tagger, [str(part)], labels=TYPES)
    for (text, offsets), document in zip(read_texts(part).values(), documents, strict=True):
        mentions, first = [], 0
        for sentence, prediction in zip(document, tagger.predict_documents([document])[0], strict=True):
            for span in prediction.spans:
                start, end = offsets[first + span.start][0], offsets[first + span.end - 1][1]
                if span.label in FOUND_TYPES:
                    mentions.append(Mention(text[start:end], span.label, start, end))
            first += len(sentence.words)
        for number, (mention, one) in enumerate(zip(mentions, identify(mentions, text), strict=True)):
            meant = (text, gold.get((text, mention.start, mention.end), number))
            found["equal_strings"].append(((text, mention.text), meant))
            found["rules"].append(((text, one.number), meant))
    return {
        "names": len(gold),
        "found": len(found["rules"]),
        **{
            how: rates(
                pairs(Counter(both)) / pairs(Counter(group for group, _ in both)), pairs(Counter(both)) / pairs_of_gold
            )
            for how, both in found.items()
        },
    }


def pairs(sizes: Mapping[Any, int]) -> int:
    """Return the number of pairs within groups."""
    return sum(size * (size - 1) // 2 for size in sizes.values())


def measure_table(corpora: Path) -> dict[str, float]:
    """Time the table of names of a million mentions: the train part many times, half of the times with own names."""
    rows: list[tuple[str, str, str, str]] = []
    once = [
        (f"{number:03d}", name.mention, one.canonical)
        for number, (text, names) in enumerate(read_names(corpora, "train"))
        for name, one in zip(names, identify([name.mention for name in names], text), strict=True)
    ]
    for copy in range(1 + MENTIONS // len(once)):
        own = f" of{copy}" if copy % 2 else ""
        rows += [(f"{copy}-{doc}", mention.text, mention.label, canonical + own) for doc, mention, canonical in once]
    columns = zip(*rows[:MENTIONS], strict=True)
    entities = pa.table(dict(zip(("doc_id", "name", "label", "canonical"), map(list, columns), strict=True)))
    begun = time.process_time()
    table = tabulate_names([entities])
    return {"mentions": MENTIONS, "names": table.num_rows, "cpu_seconds": round(time.process_time() - begun, 2)}


def main() -> None:
    """Measure both parts and write one JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpora", type=Path, required=True)
    parser.add_argument("--summary", type=Path, required=True)
    arguments = parser.parse_args()
    report = environment("bench_identities.py") | {part: measure(arguments.corpora, part) for part in ("train", "dev")}
    tagger = load_tagger(Path("models/pretrained") / MODEL)
    report["end_to_end"] = {"model": MODEL, **measure_end_to_end(arguments.corpora, tagger)}
    report["table_of_names"] = measure_table(arguments.corpora)
    arguments.summary.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
