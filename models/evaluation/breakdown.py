"""Where a tagger is right: by the length of names and sentences, by what training knew, by repetition and uncertainty.

Every function takes gold and predicted labels, one sequence a sentence, all sentences in reading order. They are in
BIO2, or, where a function has a ``read``, token labels with ``read=word_spans``: each word then is a name by itself.
Functions ``..._by_document`` take documents with gold labels, and the predicted ones of each document's sentences.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np

from concord.models.data.sentence import Sentence
from concord.models.evaluation.consistency import consistency, name_key, name_labels
from concord.models.evaluation.metrics import Reading, Scores, entity_spans, grouped_scores
from concord.models.labels import Span, convert_labels, split_label

Labels = Sequence[Sequence[str]]
Names = Mapping[tuple[str, ...], frozenset[str]]
"""Names, each by its ``name_key``, to the entity types it occurs with."""
Group = TypeVar("Group", bound=Hashable)

MENTION_LENGTHS = ("1", "2", "3", "4+")
_LENGTH_BOUNDS = (0, 10, 20, 30, 40, 50)
SENTENCE_LENGTHS = (*(f"{low + 1}-{high}" for low, high in pairwise(_LENGTH_BOUNDS)), f"{_LENGTH_BOUNDS[-1] + 1}+")
POSITIONS = ("O", "S", "B", "I", "E")
SAME_TYPE, OTHER_TYPE, UNSEEN = "seen_same_type", "seen_other_type", "unseen"


def scores_by_mention_length(gold: Labels, predicted: Labels) -> dict[str, Scores]:
    """Score by the words of a mention: one, two, three, more (Li et al., 2020, table 4)."""

    def group(_: int, span: Span) -> str:
        return MENTION_LENGTHS[min(span.end - span.start, len(MENTION_LENGTHS)) - 1]

    return _in_order(grouped_scores(gold, predicted, group), MENTION_LENGTHS)


def scores_by_sentence_length(gold: Labels, predicted: Labels, *, read: Reading = entity_spans) -> dict[str, Scores]:
    """Score by the words of the sentence, in the bins ``SENTENCE_LENGTHS``."""

    def group(number: int, _: Span) -> str:
        return sentence_length(len(gold[number]))

    return _in_order(grouped_scores(gold, predicted, group, read=read), SENTENCE_LENGTHS)


def sentence_length(words: int) -> str:
    """Give the bin of a sentence of so many words, one or more."""
    return SENTENCE_LENGTHS[sum(words > bound for bound in _LENGTH_BOUNDS[1:])]


def scores_by_novelty(
    sentences: Sequence[Sentence], predicted: Labels, known: Names, *, read: Reading = entity_spans
) -> dict[str, Scores]:
    """Score by whether training held the name with this type, with other types only, or not at all.

    Args:
        sentences: with gold labels.
        known: from ``known_names``.
    """

    def group(number: int, span: Span) -> str:
        kinds = known.get(_key(sentences[number], span), frozenset())
        return SAME_TYPE if span.label in kinds else OTHER_TYPE if kinds else UNSEEN

    return _in_order(grouped_scores(_gold(sentences), predicted, group, read=read), (SAME_TYPE, OTHER_TYPE, UNSEEN))


def known_names(sentences: Iterable[Sentence], *, read: Reading = entity_spans) -> Names:
    """Collect the names of training sentences with gold labels."""
    kinds: defaultdict[tuple[str, ...], set[str]] = defaultdict(set)
    for sentence in sentences:
        for span in read(sentence.labels or ()):
            kinds[_key(sentence, span)].add(span.label)
    return {name: frozenset(found) for name, found in kinds.items()}


def recurring_scores(
    documents: Sequence[Sequence[Sentence]], predicted: Labels, *, read: Reading = entity_spans
) -> Scores:
    """Score the mentions of recurring names; the recall is the share of them that are right.

    A name recurs when its words, lower-cased, are a gold mention twice or more in the document, of whatever types.
    This is our reading of the accuracy on co-occurring names (Co-Acc; Ye et al., 2021, table VI), for which no
    definition was at hand. Unlike ``consistency`` it asks whether the labels are right, not whether they agree.

    Args:
        documents: sentences with gold labels.
    """
    recurring: list[set[tuple[str, ...]]] = []
    for document in documents:
        counts = Counter(_key(sentence, span) for sentence in document for span in read(sentence.labels or ()))
        recurring += [{name for name, count in counts.items() if count > 1}] * len(document)
    sentences = [sentence for document in documents for sentence in document]

    def group(number: int, span: Span) -> str:
        return "recurring" if _key(sentences[number], span) in recurring[number] else "single"

    return grouped_scores(_gold(sentences), predicted, group, read=read).get("recurring", Scores())


def scores_by_position(gold: Labels, predicted: Labels) -> dict[str, Scores]:
    """Score single words by their place in a mention, the prefix of their BIOES label (Li et al., 2020, table 5).

    A word is right when prefix and type are.
    """
    wanted, found, right = Counter[str](), Counter[str](), Counter[str]()
    for gold_labels, predicted_labels in zip(gold, predicted, strict=True):
        pairs = zip(_bioes(gold_labels), _bioes(predicted_labels), strict=True)
        for wanted_label, found_label in pairs:
            wanted[split_label(wanted_label)[0]] += 1
            found[split_label(found_label)[0]] += 1
            right[split_label(wanted_label)[0]] += wanted_label == found_label
    return {
        position: Scores(gold=wanted[position], predicted=found[position], correct=right[position])
        for position in POSITIONS
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class UncertaintyByOutcome:
    """Uncertainties of words in nats, parted by whether the label was right."""

    right: tuple[float, ...]
    wrong: tuple[float, ...]

    @property
    def mean_right(self) -> float | None:
        """Nats; None where no word is right."""
        return sum(self.right) / len(self.right) if self.right else None

    @property
    def mean_wrong(self) -> float | None:
        """Nats; None where no word is wrong."""
        return sum(self.wrong) / len(self.wrong) if self.wrong else None

    @property
    def ratio(self) -> float | None:
        """How many times as uncertain wrong labels are as right ones (Ye et al., 2021: 29); None where undefined."""
        if not self.mean_right or self.mean_wrong is None:
            return None
        return self.mean_wrong / self.mean_right


def uncertainty_by_outcome(
    gold: Labels, predicted: Labels, uncertainty: Sequence[Sequence[float]]
) -> UncertaintyByOutcome:
    """Part words by whether their label was right, in BIO2 or a token label.

    Args:
        predicted: labels of the stage that the uncertainty is of.
        uncertainty: nats, one a word.
    """
    outcomes: dict[bool, list[float]] = {True: [], False: []}
    for columns in zip(gold, predicted, uncertainty, strict=True):
        for wanted, found, nats in zip(*columns, strict=True):
            outcomes[wanted == found].append(nats)
    return UncertaintyByOutcome(right=tuple(outcomes[True]), wrong=tuple(outcomes[False]))


def _gold(sentences: Sequence[Sentence]) -> list[tuple[str, ...]]:
    return [sentence.labels or () for sentence in sentences]


def _key(sentence: Sentence, span: Span) -> tuple[str, ...]:
    return name_key(sentence.words[span.start : span.end])


def _bioes(labels: Sequence[str]) -> tuple[str, ...]:
    return convert_labels(labels, source="BIO", target="BIOES")


def _in_order(scores: Mapping[str, Scores], groups: Sequence[str]) -> dict[str, Scores]:
    return {group: scores.get(group, Scores()) for group in groups}


def counts_by_document(
    documents: Sequence[Sequence[Sentence]], predicted: Sequence[Sequence[Sequence[str]]]
) -> dict[str, list[list[int]]]:
    """Count gold, predicted and correct names of each document, for tests over pairs of systems.

    A name of a document is its lower-cased word sequence; it recurs if gold has it twice or more in the document.

    Returns:
        Measure (``all``, ``multi_word`` for names of two words or more, ``recurring``, ``once``) to one triple a
        document.
    """
    counts: dict[str, list[list[int]]] = {"all": [], "multi_word": [], "recurring": [], "once": []}
    for document, labels in zip(documents, predicted, strict=True):
        gold = _named_spans(document, [sentence.labels or () for sentence in document])
        found = _named_spans(document, labels)
        names = [name for name, _ in gold]
        again = {name for name in names if names.count(name) > 1}
        chosen = {
            "all": (gold, found),
            "multi_word": tuple([item for item in items if len(item[0]) > 1] for items in (gold, found)),
            "recurring": tuple([item for item in items if item[0] in again] for items in (gold, found)),
            "once": tuple([item for item in items if item[0] not in again] for items in (gold, found)),
        }
        for measure, (wanted, given) in chosen.items():
            counts[measure].append([len(wanted), len(given), len(set(wanted) & set(given))])
    return counts


def label_counts_by_document(
    documents: Sequence[Sequence[Sentence]], predicted: Sequence[Sequence[Sequence[str]]]
) -> dict[str, list[list[int]]]:
    """Count words twice and right labels of each document, so that the F1 of the counts is the accuracy."""
    triples = []
    for document, labels in zip(documents, predicted, strict=True):
        pairs = [
            (wanted, given)
            for sentence, own in zip(document, labels, strict=True)
            for wanted, given in zip(sentence.labels or (), own, strict=True)
        ]
        triples.append([len(pairs), len(pairs), sum(wanted == given for wanted, given in pairs)])
    return {"all": triples}


def group_counts_by_document(
    gold: Sequence[Labels],
    predicted: Sequence[Labels],
    groups: Callable[[int, int, Span], Iterable[Group]],
    *,
    read: Reading = entity_spans,
) -> dict[Group, np.ndarray]:
    """Count gold, predicted and correct spans of each document for every group; a span may be in several.

    Args:
        gold, predicted: labels of each document's sentences.
        groups: names those of a span, given the numbers of its document and of its sentence within it.

    Returns:
        Group to counts, shape ``(documents, 3)``, int64.
    """
    counts: defaultdict[Group, np.ndarray] = defaultdict(lambda: np.zeros((len(gold), 3), dtype=np.int64))
    for number, (wanted_document, found_document) in enumerate(zip(gold, predicted, strict=True)):
        for place, (wanted_labels, found_labels) in enumerate(zip(wanted_document, found_document, strict=True)):
            wanted, found = set(read(wanted_labels)), set(read(found_labels))
            for span in wanted | found:
                for group in groups(number, place, span):
                    counts[group][number] += (span in wanted, span in found, span in wanted & found)
    return dict(counts)


def consistency_counts_by_document(documents: Sequence[Sequence[Sentence]], predicted: Sequence[Labels]) -> np.ndarray:
    """Count the occurrences of recurring gold names twice, and those that agree (``evaluation.consistency``).

    Returns:
        Shape ``(documents, 3)``, int64; the F1 of the counts is the share of occurrences that agree, in percent.
    """
    rows = []
    for document, labels in zip(documents, predicted, strict=True):
        labelled = [(sentence.words, own) for sentence, own in zip(document, labels, strict=True)]
        found = consistency(name_labels(labelled, naming=_gold(document)))
        rows.append((found.occurrences, found.occurrences, found.agreeing))
    return np.array(rows, dtype=np.int64).reshape(-1, 3)


def _named_spans(
    document: Sequence[Sentence], labels: Sequence[Sequence[str]]
) -> list[tuple[tuple[str, ...], tuple[int, Span]]]:
    return [
        (name_key(sentence.words[span.start : span.end]), (number, span))
        for number, (sentence, own) in enumerate(zip(document, labels, strict=True))
        for span in entity_spans(own)
    ]
