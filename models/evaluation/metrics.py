"""Scores: strict span F1 of entities, accuracy of token labels, how far probabilities can be relied on; and how
consistently the occurrences of a name in a document are labelled.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeVar

import numpy as np

from concord.models.data.sentence import Sentence
from concord.models.labels import BIO, OUTSIDE, LabelScheme, Span, decode_spans

Labels = Sequence[Sequence[str]]
"""One sequence of labels per sentence. Functions of two raise ValueError if sentences or words differ in number."""

Group = TypeVar("Group", bound=Hashable)
Grouping = Callable[[int, Span], str]
"""Maps the index of a sentence and a span of it to the name of the span's group."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """Precision, recall and F1 in percent, with their counts, of spans or of words."""

    gold: int = 0
    predicted: int = 0
    correct: int = 0
    REPORTED: ClassVar = ("precision", "recall", "f1", "gold", "predicted", "correct")
    """The attributes that reports show."""

    def __add__(self, other: "Scores") -> "Scores":
        """Sum the counts, so that the scores of all groups together are the micro average."""
        return Scores(
            gold=self.gold + other.gold,
            predicted=self.predicted + other.predicted,
            correct=self.correct + other.correct,
        )

    @property
    def precision(self) -> float:
        """Percent of the predicted spans that are right; 0 if there are none."""
        return 100.0 * self.correct / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        """Percent of the gold spans that were found; 0 if there are none."""
        return 100.0 * self.correct / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall, in percent."""
        total = self.gold + self.predicted
        return 200.0 * self.correct / total if total else 0.0


def span_scores(gold: Labels, predicted: Labels, *, scheme: LabelScheme = BIO) -> dict[str, Scores]:
    """Score label sequences by exact spans and types: over ``all`` types together, and each type.

    With ``TOKENS`` a span is a word, and the recall is the accuracy.
    """
    by_type = grouped_scores(gold, predicted, lambda _, span: span.label, scheme=scheme)
    total = {"all": sum(by_type.values(), Scores())}
    return total | by_type | total


def gold_sequences(documents: Iterable[Iterable[Sentence]]) -> list[tuple[str, ...]]:
    """Return the gold labels of every sentence; a sentence without any has none."""
    return [sentence.labels or () for document in documents for sentence in document]


def grouped_scores(gold: Labels, predicted: Labels, group: Grouping, *, scheme: LabelScheme = BIO) -> dict[str, Scores]:
    """Score label sequences by exact spans and types, each group of spans separately; groups are in sorted order.

    A span has one group, whether it is gold or predicted, so the groups add up to the whole.
    """
    gold_counts, predicted_counts, right = Counter[str](), Counter[str](), Counter[str]()
    for number, (wanted_spans, found_spans) in enumerate(paired_spans(gold, predicted, scheme=scheme)):
        gold_counts.update(group(number, span) for span in wanted_spans)
        predicted_counts.update(group(number, span) for span in found_spans)
        right.update(group(number, span) for span in wanted_spans & found_spans)
    return {
        name: Scores(gold=gold_counts[name], predicted=predicted_counts[name], correct=right[name])
        for name in sorted(gold_counts.keys() | predicted_counts.keys())
    }


def paired_spans(gold: Labels, predicted: Labels, *, scheme: LabelScheme) -> Iterator[tuple[set[Span], set[Span]]]:
    """Yield the gold and the predicted spans of each sentence."""
    for number, (wanted, found) in enumerate(zip(gold, predicted, strict=True)):
        if len(wanted) != len(found):
            raise ValueError(f"sentence {number}: expected {len(wanted)} labels, got {len(found)}")
        yield set(scheme.scored_spans(wanted)), set(scheme.scored_spans(found))


def group_counts_by_document(
    gold: Sequence[Labels],
    predicted: Sequence[Labels],
    groups: Callable[[int, int, Span], Iterable[Group]],
    *,
    scheme: LabelScheme = BIO,
) -> dict[Group, np.ndarray]:
    """Count gold, predicted and correct spans of each document for every group: shape ``(documents, 3)``, int64.

    Args:
        gold, predicted: the labels of each document's sentences; ValueError if they differ in number.
        groups: maps the index of a document, the index of a sentence in it and a span of that to the span's groups.
    """
    counts: defaultdict[Group, np.ndarray] = defaultdict(lambda: np.zeros((len(gold), 3), dtype=np.int64))
    for document, sides in enumerate(zip(gold, predicted, strict=True)):
        for sentence, (wanted, found) in enumerate(paired_spans(*sides, scheme=scheme)):
            for span in wanted | found:
                for group in groups(document, sentence, span):
                    counts[group][document] += (span in wanted, span in found, span in wanted & found)
    return dict(counts)


def known_names(sentences: Iterable[Sentence], *, scheme: LabelScheme = BIO) -> frozenset[tuple[str, ...]]:
    """Return the ``name_key`` of every name in training sentences with gold labels."""
    return frozenset(
        name_of(sentence, span) for sentence in sentences for span in scheme.scored_spans(sentence.labels or ())
    )


def name_of(sentence: Sentence, span: Span) -> tuple[str, ...]:
    """Return the ``name_key`` of the words in a span."""
    return name_key(sentence.words[span.start : span.end])


def name_key(words: Sequence[str]) -> tuple[str, ...]:
    """Return the words in lower case, by which names are identified."""
    return tuple(word.lower() for word in words)


BINS = 15
COVERAGES = (0.95, 0.9)
Binning = Literal["mass", "width"]


def expected_calibration_error(probabilities: np.ndarray, right: np.ndarray, *, binning: Binning = "mass") -> float:
    """Return the mean gap between confidence and accuracy of bins, weighted by size, 0..1 (Naeini et al., 2015).

    There are 15 bins, of equal mass or equal width. Both arrays have shape ``(N,)``; ``right`` is bool.
    """
    order = np.argsort(probabilities, kind="stable")
    if binning == "mass":
        groups = np.array_split(order, BINS)
    else:
        edges = np.searchsorted(probabilities[order], np.linspace(0, 1, BINS + 1)[1:-1], side="right")
        groups = np.split(order, edges)
    gaps = (
        len(group) * abs(float(probabilities[group].mean()) - float(right[group].mean()))
        for group in groups
        if len(group)
    )
    return sum(gaps) / max(1, len(right))


def brier_score(probabilities: np.ndarray, right: np.ndarray) -> float:
    """Return the mean squared gap between probability and outcome, 0..1; 0 without predictions."""
    return float(np.square(probabilities - right).mean()) if len(right) else 0.0


def coverage(confidences: np.ndarray, counts: np.ndarray) -> dict[str, float]:
    """Score all documents and the most certain ones, in percent: the F1 of the sums of their counts.

    The area under the risk-coverage curve is the mean of 1 - score over all numbers of kept documents, 0..1.

    Args:
        confidences: of each document, shape ``(D,)``; only their order matters, and ties keep theirs.
        counts: gold, predicted and correct of each document, shape ``(D, 3)``; for words, with as many in gold as
            predicted, the F1 is the accuracy.
    """
    sums = counts[np.argsort(-confidences, kind="stable")].cumsum(axis=0)
    mentioned = sums[:, 0] + sums[:, 1]
    # Documents without gold and predicted entities have no error.
    scores = np.where(mentioned > 0, 200.0 * sums[:, 2] / np.maximum(mentioned, 1), 100.0)
    kept = {share: float(scores[int(np.ceil(share * len(scores))) - 1]) for share in COVERAGES}
    return {
        "score": float(scores[-1]),
        **{f"at_{round(100 * share)}_percent": score for share, score in kept.items()},
        "risk_coverage_area": float((1 - scores / 100.0).mean()),
    }


LabelledSentence = tuple[Sequence[str], Sequence[str]]
"""Words and BIO2 labels, one label per word."""


def count_unlabelled(labels_of_names: Mapping[str, Counter[str]], *, values: Container[str]) -> tuple[int, int]:
    """Count the occurrences of a document's recurring names of two words and more, and those that have no label.

    Shorter names are left out: "May" and "Reading" are not always names.

    Args:
        labels_of_names: as ``name_labels`` returns it; every name in it is an entity somewhere in the document.
        values: types of what is no name, such as dates: "a year" is not one everywhere.
    """
    recurring = [
        labels
        for name, labels in labels_of_names.items()
        if " " in name and labels.total() > 1 and any(label != OUTSIDE and label not in values for label in labels)
    ]
    return sum(labels.total() for labels in recurring), sum(labels[OUTSIDE] for labels in recurring)


def name_labels(document: Iterable[LabelledSentence]) -> dict[str, Counter[str]]:
    """Count the labels of the occurrences of every name in a document.

    A name is the lower-cased word sequence of an entity. Its occurrences are

    - the entities of exactly these words; their label is the entity's type;
    - other occurrences of the word sequence within a sentence, in any case; their label is ``O``.

    There are two exceptions. Words inside a longer entity belong to that name: the Lincoln of "Lincoln Freight" is not
    an occurrence of "lincoln". And words in lower case count only if some entity of the name is written in lower case,
    since "rose" is seldom the Rose of the sentence before.

    Args:
        document: its sentences. An entity may continue in the next one, whose labels then begin with ``I-``.

    Returns:
        Name, its words joined by spaces -> number of occurrences by label, in the order of first occurrence.
    """
    sentences = [(list(words), list(labels)) for words, labels in document]
    words = [word for sentence, _ in sentences for word in sentence]
    spans = decode_spans([label for _, labels in sentences for label in labels], "BIO")
    owners = {place: span for span in spans for place in range(span.start, span.end)}
    found = [
        (start, " ".join(name), OUTSIDE)
        for start, name in _occurrences([sentence for sentence, _ in sentences], _lower_case_names(words, spans))
        if start not in owners or owners[start].end < start + len(name)
    ]
    found += [(span.start, " ".join(name_key(words[span.start : span.end])), span.label) for span in spans]
    labels_of_names: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for _, name, label in sorted(found):
        labels_of_names[name][label] += 1
    return dict(labels_of_names)


def _lower_case_names(words: Sequence[str], spans: Iterable[Span]) -> dict[tuple[str, ...], bool]:
    """Map every name to whether one of its entities is written in lower case."""
    names: dict[tuple[str, ...], bool] = {}
    for span in spans:
        written = words[span.start : span.end]
        names[name_key(written)] = names.get(name_key(written), False) or _is_lower_case(written)
    return names


def _is_lower_case(words: Sequence[str]) -> bool:
    # False for scripts without case: islower() needs at least one cased letter.
    return " ".join(words).islower()


def _occurrences(
    sentences: Iterable[Sequence[str]], names: Mapping[tuple[str, ...], bool]
) -> Iterable[tuple[int, tuple[str, ...]]]:
    """Yield every occurrence of the words of a name, with the index of its first word in the document."""
    by_first: defaultdict[str, list[tuple[str, ...]]] = defaultdict(list)
    for name in names:
        by_first[name[0]].append(name)
    offset = 0
    for sentence in sentences:
        keys = name_key(sentence)
        # Most sentences hold no name.
        for position, first in enumerate(() if by_first.keys().isdisjoint(keys) else keys):
            for name in by_first.get(first, ()):
                end = position + len(name)
                if keys[position:end] == name and (names[name] or not _is_lower_case(sentence[position:end])):
                    yield offset + position, name
        offset += len(sentence)
