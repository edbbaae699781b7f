"""Measure what correcting a few names does to the rest of a document.

Command: python benchmarks/bench_corrections.py --corpora ../shared/data/labelled \
    --summary benchmarks/results/corrections_cpu_202611.json

In each document of the dev parts of LitBank and GUM the first 1, 3 and 10 wrong names in reading order are
corrected as in the gold annotation: a missing one is added, one of a wrong type or with wrong boundaries is
replaced, and one that is none is dropped. F1 is that of all entities that do not overlap a corrected one, old or
new, summed over the documents that have a wrong name. Compared are doing nothing; plain replacement, which makes
the same words the same entity, or none, wherever they occur in the document; and certain labels in the document
memory, after which stage two reads other occurrences again. `both` replaces after the memory.
"""

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from english_types import TYPES
from environment import environment

from concord.models.checkpoint import load_tagger
from concord.models.data.sentence import Sentence
from concord.models.labels import Span, decode_spans
from concord.models.outputs import Prediction
from concord.models.saved_tagger import tagger_digest
from concord.models.tagger import Tagger
from concord.workflows.corpora.corpora import read_gold_for
from research.entities_en.silver import TYPES as SILVER_TYPES

PARTS = (("litbank_prop", "dev"), ("gum_ne_open", "dev"))
CORRECTED = (1, 3, 10)

Spans = list[Span]


@dataclass(frozen=True, slots=True)
class Edit:
    """A corrected name: what the tagger had there, and what the gold annotation has; words of the document."""

    old: tuple[Span, ...]
    new: tuple[Span, ...]

    @property
    def words(self) -> set[int]:
        """The words of all of them."""
        return {word for span in (*self.old, *self.new) for word in range(span.start, span.end)}


@dataclass(slots=True)
class Counts:
    """Entities that agree, and how many there are."""

    right: int = 0
    predicted: int = 0
    gold: int = 0

    def add(self, predicted: Spans, gold: Spans, without: set[int]) -> None:
        """Count the entities that touch none of some words."""
        own, wanted = (
            {span for span in spans if without.isdisjoint(range(span.start, span.end))} for spans in (predicted, gold)
        )
        self.right += len(own & wanted)
        self.predicted += len(own)
        self.gold += len(wanted)

    @property
    def f1(self) -> float:
        """F1 in percent."""
        return 200 * self.right / max(1, self.predicted + self.gold)


def spans_of(labelled: Iterable[tuple[Span, ...]], document: Sequence[Sentence]) -> Spans:
    """Number the words of entities through a document."""
    found: Spans = []
    first = 0
    for spans, sentence in zip(labelled, document, strict=True):
        found += [Span(first + span.start, first + span.end, span.label) for span in spans]
        first += len(sentence.words)
    return found


def predicted_spans(predictions: Sequence[Prediction], document: Sequence[Sentence]) -> Spans:
    """Return the entities of a prediction."""
    kept = (tuple(span for span in one.spans if span.label not in SILVER_TYPES) for one in predictions)
    return spans_of(kept, document)


def wrong_names(predicted: Spans, gold: Spans) -> list[Edit]:
    """Return the corrections that a document needs, in reading order; those that overlap are one."""
    wrong = sorted(
        {
            *((span, False) for span in set(predicted) - set(gold)),
            *((span, True) for span in set(gold) - set(predicted)),
        }
    )
    edits: list[Edit] = []
    end = -1
    for span, is_gold in wrong:
        if span.start >= end:
            edits.append(Edit((), ()))
        last = edits[-1]
        edits[-1] = Edit(last.old, (*last.new, span)) if is_gold else Edit((*last.old, span), last.new)
        end = max(end, span.end) if span.start < end else span.end
    return edits


def certain_labels(edits: Iterable[Edit]) -> dict[int, str]:
    """Return the labels of corrected words in BIO2."""
    labels: dict[int, str] = {}
    for edit in edits:
        labels |= dict.fromkeys(edit.words, "O")
        for span in edit.new:
            labels |= {
                word: f"{'I' if word > span.start else 'B'}-{span.label}" for word in range(span.start, span.end)
            }
    return labels


def replace_equal(spans: Spans, edits: Iterable[Edit], words: Sequence[str]) -> Spans:
    """Give the words of each correction its label wherever they occur again."""
    for edit in edits:
        for place in occurrences([span for span in edit.old if not edit.new], words):
            spans = [span for span in spans if (span.start, span.end) != place]
        for new in edit.new:
            for start, end in occurrences([new], words):
                spans = [span for span in spans if span.end <= start or end <= span.start]
                spans.append(Span(start, end, new.label))
    return spans


def occurrences(names: Iterable[Span], words: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield where the words of names occur."""
    for name in names:
        wanted = words[name.start : name.end]
        for start in range(len(words) - len(wanted) + 1):
            if words[start : start + len(wanted)] == wanted:
                yield start, start + len(wanted)


def measure(tagger: Tagger, documents: Sequence[Sequence[Sentence]]) -> dict[str, object]:
    """Return F1 of the rest of the documents by number of corrected names and what is done."""
    counts = {number: {arm: Counts() for arm in ("nothing", "replacement", "memory", "both")} for number in CORRECTED}
    made = dict.fromkeys(CORRECTED, 0)
    moved = dict.fromkeys(CORRECTED, 0)
    used = 0
    for document in documents:
        words = [word for sentence in document for word in sentence.words]
        gold = spans_of((decode_spans(sentence.labels or (), "BIO") for sentence in document), document)
        plain = predicted_spans(tagger.predict_documents([document])[0], document)
        edits = wrong_names(plain, gold)
        used += bool(edits)
        for number in CORRECTED if edits else ():
            own = edits[:number]
            without = {word for edit in own for word in edit.words}
            certain = certain_labels(own)
            again = predicted_spans(tagger.predict_documents([document], certain=[certain])[0], document)
            arms = {
                "nothing": plain,
                "replacement": replace_equal(plain, own, words),
                "memory": again,
                "both": replace_equal(again, own, words),
            }
            for arm, spans in arms.items():
                counts[number][arm].add(spans, gold, without)
            made[number] += len(own)
            moved[number] += len(
                {span for span in {*again} ^ {*plain} if without.isdisjoint(range(span.start, span.end))}
            )
    return {
        "documents": len(documents),
        "documents_with_a_wrong_name": used,
        **{
            f"first_{number}_corrected": {
                "corrections": made[number],
                "entities_left": counts[number]["nothing"].gold,
                "f1_of_the_rest": {arm: round(found.f1, 2) for arm, found in counts[number].items()},
                "entities_moved_by_memory": moved[number],
            }
            for number in CORRECTED
        },
    }


def main() -> None:
    """Measure each part and write one JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpora", type=Path, required=True)
    parser.add_argument("--summary", type=Path, required=True)
    parser.add_argument("--model", default="entities_en")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    folder = Path("models/pretrained") / arguments.model
    tagger = load_tagger(folder)
    report: dict[str, object] = {
        **environment("bench_corrections.py"),
        "threads": arguments.threads,
        "model": arguments.model,
        "digest": tagger_digest(folder),
    }
    for corpus, split in PARTS:
        data = [str(next((arguments.corpora / corpus).glob(f"{split}.*")))]
        report[f"{corpus} {split}"] = measure(tagger, read_gold_for(tagger, data, labels=TYPES))
        print(json.dumps(report[f"{corpus} {split}"]), flush=True)
    arguments.summary.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
