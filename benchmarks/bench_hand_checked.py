"""Score taggers on 300 sentences of speeches, the factbook and novels whose names a reader has labelled by hand.

Command: python benchmarks/bench_hand_checked.py --texts ../shared/data/text \
    --summary benchmarks/results/hand_checked_cpu_202611.json

The labels follow docs/guideline.md, and stand in hand_checked_en.json as offsets without the texts: of each of 75
documents, four sentences within at most 2,000 words, which are what the tagger reads, with its parser. A name is right
with the same characters and type. Names at a confidence of 0.8 or more count apart. A wrong name overlaps a labelled
one with other boundaries, another type or both, or is none at all; `against_the_guideline` says by rule how many of the
wrong ones the rules for training labels would have changed.
"""

import argparse
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from corpora import read_texts
from environment import environment

import concord
from concord.doc import Doc
from concord.models.data.sentence import Sentence
from concord.models.labels import Span, encode_spans
from research.entities_en.guideline import RULES, Lexicon, mend

GOLD = Path(__file__).with_name("hand_checked_en.json")
CONFIDENT = 0.8
TYPES = ("PER", "LOC", "ORG")
PLAIN = {"parser.trees": False, "parser.tags": False}


class Checked(NamedTuple):
    """A sentence with the names that it has and those that a tagger found, as start, end and type."""

    source: str
    gold: set[tuple[int, int, str]]
    found: dict[tuple[int, int, str], float | None]
    """With their confidence."""
    against: Counter[str]


def read_windows(folder: Path, gold: Path = GOLD) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what the tagger reads of each labelled document, with its labels.

    Raises:
        ValueError: when a text is not the one that was labelled.
    """
    documents = json.loads(gold.read_text(encoding="utf-8"))["documents"]
    texts = {
        (source, name): text
        for source in {document["source"] for document in documents}
        for name, text in read_texts(next(folder.glob(f"{source}.jsonl*")))
    }
    for document in documents:
        text = texts[document["source"], document["id"]]
        for sentence in document["sentences"]:
            words = text[sentence["start"] : sentence["end"]]
            if hashlib.sha256(words.encode()).hexdigest() != sentence["sha256"]:
                raise ValueError(f"{document['id']}: expected the text that was labelled, got another one")
        start, end = document["window"]
        yield text[start:end], document


def check(doc: Doc, document: dict[str, Any]) -> Iterator[Checked]:
    """Yield the labelled sentences of a document."""
    start = document["window"][0]
    for sentence in document["sentences"]:
        entities = [
            entity
            for entity in doc.entities
            if entity.start_char < sentence["end"] - start and sentence["start"] - start < entity.end_char
        ]
        found = {(start + one.start_char, start + one.end_char, one.label): one.confidence for one in entities}
        gold = {(first, end, label) for first, end, label in sentence["entities"]}
        wrong = {(first - start, end - start, label) for first, end, label in set(found) - gold if label in TYPES}
        yield Checked(document["source"], gold, found, against_guideline(doc, wrong))


def of_names(one: Checked) -> Checked:
    """Return a sentence without what was found of other types."""
    return one._replace(found={name: confidence for name, confidence in one.found.items() if name[2] in TYPES})


def against_guideline(doc: Doc, wrong: set[tuple[int, int, str]]) -> Counter[str]:
    """Count the names that a rule of the guideline would have changed, by rule."""
    against: Counter[str] = Counter()
    for sentence in doc.sentences:
        words = sentence.tokens
        spans = []
        for start, end, label in sorted(wrong):
            inside = [n for n, word in enumerate(words) if start <= word.start_char and word.end_char <= end]
            if inside:
                spans.append(Span(inside[0], inside[-1] + 1, label))
        labels = encode_spans(spans, len(words), "BIO")
        predicted = Sentence(words=tuple(word.text for word in words), labels=labels)
        for rule in RULES:
            against += mend([predicted], Lexicon.of([]), [rule]).changed
    return against


def kind_of_mistake(name: tuple[int, int, str], gold: Iterable[tuple[int, int, str]]) -> str:
    """Return what is wrong with a name that was found."""
    touched = [one for one in gold if one[0] < name[1] and name[0] < one[1]]
    if not touched:
        return "no name"
    if any(one[:2] == name[:2] for one in touched):
        return "type"
    return "boundaries" if any(one[2] == name[2] for one in touched) else "boundaries and type"


def scores(sentences: Sequence[Checked], label: str | None = None) -> dict[str, float]:
    """Return precision, recall and F1 in percent, of one type or all."""
    gold, found = (
        [{name for name in names if label in (None, name[2])} for names in side]
        for side in ([one.gold for one in sentences], [one.found for one in sentences])
    )
    n_gold, n_found = sum(map(len, gold)), sum(map(len, found))
    right = sum(len(a & b) for a, b in zip(gold, found, strict=True))
    values = {"precision": right / max(1, n_found), "recall": right / max(1, n_gold)}
    values["f1"] = 2 * right / max(1, n_gold + n_found)
    return {"gold": n_gold, "found": n_found, **{name: round(100 * value, 2) for name, value in values.items()}}


def summarise(sentences: Sequence[Checked]) -> dict[str, Any]:
    """Return the figures of one tagger."""
    kinds: Counter[str] = Counter()
    confident = wrong = 0
    for one in sentences:
        kinds.update(kind_of_mistake(name, one.gold) for name in set(one.found) - one.gold)
        touched = {name for name in one.gold for other in one.found if name[0] < other[1] and other[0] < name[1]}
        kinds["missed"] += len(one.gold - touched)
        sure = {name for name, confidence in one.found.items() if confidence is not None and confidence >= CONFIDENT}
        confident, wrong = confident + len(sure), wrong + len(sure - one.gold)
    sources = sorted({one.source for one in sentences})
    return {
        "all": scores(sentences),
        "by_type": {label: scores(sentences, label) for label in TYPES},
        "by_source": {source: scores([one for one in sentences if one.source == source]) for source in sources},
        "confident": {"names": confident, "wrong": wrong, "share_wrong": round(wrong / max(1, confident), 4)},
        "mistakes": dict(sorted(kinds.items())),
        "against_the_guideline": dict(sum((one.against for one in sentences), Counter[str]())),
    }


def main() -> None:
    """Score every tagger and write one JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--summary", type=Path, required=True)
    parser.add_argument("--models", nargs="+", default=["entities_multi"], help="names or folders of bundles")
    parser.add_argument("--mistakes", action="store_true", help="print the wrong and missed names as well")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    windows = list(read_windows(arguments.texts))
    report: dict[str, object] = environment("bench_hand_checked.py")
    for model in arguments.models:
        nlp = concord.load(model, settings=PLAIN)
        docs = nlp.pipe([text for text, _ in windows], batch_size=8)
        pairs = list(zip(docs, windows, strict=True))
        sentences = [of_names(one) for doc, (_, document) in pairs for one in check(doc, document)]
        report[Path(model).name] = {"digest": nlp.model.digest, **summarise(sentences)}
        for doc, (_, document) in pairs if arguments.mistakes else ():
            for one in map(of_names, check(doc, document)):
                for start, end, label in sorted(one.gold ^ set(one.found)):
                    first = document["window"][0]
                    which = "missed" if (start, end, label) in one.gold else "wrong"
                    print(document["id"], which, label, repr(doc.text[start - first : end - first]), sep="\t")
    arguments.summary.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
