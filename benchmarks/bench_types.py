"""Score taggers of persons, places, organisations, dates, times, money, percentages, nationalities and numbers.

Command: python benchmarks/bench_types.py --texts ../shared/data/text --corpora ../shared/data/labelled \
    --teacher spacy:en_core_web_sm --models FOLDER --summary benchmarks/results/types_cpu_202611.json

- `hand_checked`: 200 sentences of speeches and the factbook, labelled by hand; hand_checked_types_en.json says how, and
  holds the labels as offsets without the texts. They are drawn for their numbers, so the figures are of such
  sentences, not of running text; of TIME, ORDINAL and PER they hold too few to score. `in_speeches` and `in_factbook`
  are parts.
- `re3d`: the words of its dev part, where times count as dates; DATE, NORP and MONEY alone.
- `teacher`: what the teacher finds counts as gold, in the passages of up to 2,000 words that the hand-checked sentences
  are of, which no text for training may hold.

A span is right with the same characters (in re3d the same words) and type. The teacher is scored beside the models. The
types of spaCy's pipelines count as those that Concord has; others that no part labels are left out.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from bench_hand_checked import PLAIN, Checked, check, read_windows, scores
from environment import environment

import concord
from concord.models.bundles.checkpoint import load_tagger
from concord.models.data.sentence import Sentence
from concord.models.labels import decode_spans
from concord.models.taggers.base import Tagger
from concord.workflows.corpora import read_corpora
from concord.workflows.registry import find_tagger
from research.entities_en.silver import GOLD_TYPES
from research.entities_en.silver import TYPES as SILVER_TYPES

GOLD = Path(__file__).with_name("hand_checked_types_en.json")
TYPES = (*GOLD_TYPES, *SILVER_TYPES)
RENAMED = {"PERSON": "PER", "GPE": "LOC", "FAC": "LOC"}
RE3D = {"TIME": "DATE"}
RE3D_TYPES = ("DATE", "NORP", "MONEY")
Spans = set[tuple[int, int, str]]


def renamed(found: Checked) -> Checked:
    """Return a sentence whose types that were found are those of Concord."""
    spans = {(start, end, RENAMED.get(kind, kind)): value for (start, end, kind), value in found.found.items()}
    return found._replace(found={span: value for span, value in spans.items() if span[2] in TYPES})


def spans_of(labels: Sequence[str], names: dict[str, str]) -> Spans:
    """Return the spans of BIO2 labels, in words, with some types renamed."""
    return {(span.start, span.end, names.get(span.label, span.label)) for span in decode_spans(labels, "BIO")}


def check_re3d(tagger: Tagger, documents: Sequence[Sequence[Sentence]]) -> Iterator[Checked]:
    """Yield the sentences of re3d, whose words the tagger reads."""
    plain = [[Sentence(words=sentence.words) for sentence in document] for document in documents]
    for document, predictions in zip(documents, tagger.predict_documents(plain), strict=True):
        for sentence, predicted in zip(document, predictions, strict=True):
            found = spans_of(predicted.labels, RE3D)
            yield Checked("re3d", spans_of(sentence.labels or (), RE3D), dict.fromkeys(found), Counter())


def by_type(sentences: Sequence[Checked], types: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return the scores of all types and of each."""
    kept = [
        one._replace(
            gold={span for span in one.gold if span[2] in types},
            found={span: value for span, value in one.found.items() if span[2] in types},
        )
        for one in sentences
    ]
    return {"all": scores(kept), **{kind: scores(kept, kind) for kind in types}}


def main() -> None:
    """Score every tagger and write one JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--corpora", type=Path, required=True, help="folder with re3d")
    parser.add_argument("--summary", type=Path, required=True)
    parser.add_argument("--models", nargs="+", default=[], help="as --model of concord annotate")
    parser.add_argument("--teacher", required=True, help="the same")
    parser.add_argument("--mistakes", action="store_true", help="print wrong and missed spans of the sentences as well")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    windows = list(read_windows(arguments.texts, GOLD))
    re3d = read_corpora([str(path) for path in (arguments.corpora / "re3d").glob("dev.*")], labels={})
    report: dict[str, Any] = environment("bench_types.py")
    taught: list[Spans] = []
    for model in (arguments.teacher, *arguments.models):
        nlp = concord.load(model, settings=PLAIN)
        docs = list(nlp.pipe([text for text, _ in windows], batch_size=8))
        pairs = [
            (doc, renamed(one))
            for doc, (_, document) in zip(docs, windows, strict=True)
            for one in check(doc, document)
        ]
        sentences = [one for _, one in pairs]
        found = [{(e.start_char, e.end_char, RENAMED.get(e.label, e.label)) for e in doc.entities} for doc in docs]
        taught = taught or found
        agreement = [
            Checked("", gold, dict.fromkeys(spans), Counter()) for gold, spans in zip(taught, found, strict=True)
        ]
        speeches = [one for one in sentences if one.source == "us_presidents"]
        factbook = [one for one in sentences if one.source == "factbook"]
        report[model if ":" in model else Path(model).name] = {
            "digest": nlp.model.digest,
            "hand_checked": by_type(sentences, TYPES),
            "in_speeches": by_type(speeches, TYPES),
            "in_factbook": by_type(factbook, TYPES),
            "re3d": by_type(list(check_re3d(load_tagger(find_tagger(model).folder), re3d)), RE3D_TYPES),
            "teacher": by_type(agreement, TYPES),
        }
        if arguments.mistakes:
            print_mistakes(windows, docs, pairs)
    arguments.summary.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))


def print_mistakes(windows: Sequence[Any], docs: Sequence[Any], pairs: Sequence[tuple[Any, Checked]]) -> None:
    """Print what was found wrongly and what was missed."""
    starts = {id(doc): document["window"][0] for doc, (_, document) in zip(docs, windows, strict=True)}
    for doc, one in pairs:
        for start, end, kind in sorted(one.gold ^ set(one.found)):
            which = "missed" if (start, end, kind) in one.gold else "wrong"
            first = starts[id(doc)]
            print(one.source, which, kind, repr(doc.text[start - first : end - first]), sep="\t")


if __name__ == "__main__":
    main()
