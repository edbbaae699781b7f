"""Where a tagger is right: by the length of names and sentences, recurrence, position and uncertainty.

Every function takes gold and predicted labels, one sequence per sentence, all sentences in reading order. Labels are
BIO2, or, where a function takes a scheme, token labels with ``TOKENS``; each word is then a name by itself.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from concord.models.data.outputs import Prediction
from concord.models.data.sentence import Sentence
from concord.models.evaluation.metrics import Labels, Scores, gold_sequences, grouped_scores, name_of
from concord.models.labels import BIO, OUTSIDE, TOKENS, LabelScheme, Span, convert_labels, split_label

MENTION_LENGTHS = ("1", "2", "3", "4+")
_LENGTH_BOUNDS = (0, 10, 20, 30, 40, 50)
SENTENCE_LENGTHS = (*(f"{low + 1}-{high}" for low, high in pairwise(_LENGTH_BOUNDS)), f"{_LENGTH_BOUNDS[-1] + 1}+")
POSITIONS = ("O", "S", "B", "I", "E")


def measure(
    documents: Sequence[Sequence[Sentence]], predicted: Sequence[Sequence[Prediction]], *, scheme: LabelScheme
) -> dict[str, object]:
    """Return all that the grid's records have beside the scores of ``concord evaluate``."""
    flat = [labelled for document in predicted for labelled in document]
    gold, (final, draft) = gold_sequences(documents), label_sequences(flat)
    found: dict[str, object] = {
        "by_sentence_length": scores_by_sentence_length(gold, final, scheme=scheme),
        "uncertainty": uncertainty_by_outcome(gold, draft, [labelled.uncertainty for labelled in flat]),
    }
    if scheme.has_entities:
        found |= {
            "by_mention_length": scores_by_mention_length(gold, final),
            "by_position": scores_by_position(gold, final),
            "recurring_names": recurring_scores(documents, final),
            "draft_recurring_names": recurring_scores(documents, draft),
            "co_occurrence": co_occurrence_scores(documents, final),
            "draft_co_occurrence": co_occurrence_scores(documents, draft),
        }
    return found


def label_sequences(predicted: Iterable[Prediction]) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """Return the final and the draft labels of sentences."""
    pairs = [(prediction.labels, prediction.draft_labels) for prediction in predicted]
    return [final for final, _ in pairs], [draft for _, draft in pairs]


def scores_by_mention_length(gold: Labels, predicted: Labels) -> dict[str, Scores]:
    """Score by the number of words in a mention: one, two, three, more (Li et al., 2020, table 4)."""
    longest = len(MENTION_LENGTHS)
    scores = grouped_scores(gold, predicted, lambda _, span: MENTION_LENGTHS[min(span.end - span.start, longest) - 1])
    return _in_order(scores, MENTION_LENGTHS)


def scores_by_sentence_length(gold: Labels, predicted: Labels, *, scheme: LabelScheme = BIO) -> dict[str, Scores]:
    """Score by the number of words in the sentence, in the bins ``SENTENCE_LENGTHS``."""
    scores = grouped_scores(gold, predicted, lambda number, _: sentence_length(len(gold[number])), scheme=scheme)
    return _in_order(scores, SENTENCE_LENGTHS)


def sentence_length(words: int) -> str:
    """Return the bin of a sentence with this many words, one or more."""
    return SENTENCE_LENGTHS[sum(words > bound for bound in _LENGTH_BOUNDS[1:])]


def recurring_scores(
    documents: Sequence[Sequence[Sentence]], predicted: Labels, *, scheme: LabelScheme = BIO
) -> Scores:
    """Score the mentions of ``recurring_names``; the recall is the share of them that are right."""
    recurring = [
        names for document in documents for names in [recurring_names(document, scheme=scheme)] * len(document)
    ]
    sentences = [sentence for document in documents for sentence in document]

    def group(number: int, span: Span) -> str:
        return "recurring" if name_of(sentences[number], span) in recurring[number] else "single"

    return grouped_scores(gold_sequences(documents), predicted, group, scheme=scheme).get("recurring", Scores())


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenScores:
    """How many words are labelled right."""

    words: int
    correct: int
    REPORTED: ClassVar = ("accuracy", "words", "correct")

    @property
    def accuracy(self) -> float:
        """Percent of the words whose label is right; 0 if there are none."""
        return 100.0 * self.correct / self.words if self.words else 0.0


def co_occurrence_scores(documents: Sequence[Sequence[Sentence]], predicted: Labels) -> TokenScores:
    """Score the co-occurrence words of entities, word by word (Co-Acc, "the accuracy of co-occurrence tokens").

    These are the words of gold mentions that occur again, in any case, in their document; Ye et al. (2021), table VI,
    report it without a further definition. A word is right when its BIOES label is.
    """
    remaining, words, correct = iter(predicted), 0, 0
    for document in documents:
        counts = Counter(word.lower() for sentence in document for word in sentence.words)
        for sentence in document:
            sides = (sentence.labels or (), next(remaining))
            wanted, found = (convert_labels(side, source="BIO", target="BIOES") for side in sides)
            for word, gold, label in zip(sentence.words, wanted, found, strict=True):
                if gold != OUTSIDE and counts[word.lower()] > 1:
                    words, correct = words + 1, correct + (gold == label)
    return TokenScores(words=words, correct=correct)


def recurring_names(document: Iterable[Sentence], *, scheme: LabelScheme = BIO) -> set[tuple[str, ...]]:
    """Return the ``name_key`` of every name with two or more gold mentions in a document, of whatever types."""
    counts = Counter(
        name_of(sentence, span) for sentence in document for span in scheme.scored_spans(sentence.labels or ())
    )
    return {name for name, count in counts.items() if count > 1}


def scores_by_position(gold: Labels, predicted: Labels) -> dict[str, Scores]:
    """Score single words by their position in a mention, the prefix of their BIOES label (Li et al., 2020, table 5).

    A word is right when both prefix and type are.
    """
    wanted, found = ([convert_labels(own, source="BIO", target="BIOES") for own in side] for side in (gold, predicted))
    scores = grouped_scores(wanted, found, lambda _, span: split_label(span.label)[0], scheme=TOKENS)
    return _in_order(scores, POSITIONS)


@dataclass(frozen=True, kw_only=True, slots=True)
class UncertaintyByOutcome:
    """Uncertainties of words in nats, split by whether the label was right."""

    right: tuple[float, ...]
    wrong: tuple[float, ...]
    REPORTED: ClassVar = ("right_words", "wrong_words", "mean_right", "mean_wrong", "ratio")

    @property
    def right_words(self) -> int:
        """How many labels are right."""
        return len(self.right)

    @property
    def wrong_words(self) -> int:
        """How many labels are wrong."""
        return len(self.wrong)

    @property
    def mean_right(self) -> float | None:
        """Nats; None if no word is right."""
        return sum(self.right) / len(self.right) if self.right else None

    @property
    def mean_wrong(self) -> float | None:
        """Nats; None if no word is wrong."""
        return sum(self.wrong) / len(self.wrong) if self.wrong else None

    @property
    def ratio(self) -> float | None:
        """How many times as uncertain wrong labels are as right ones (Ye et al., 2021: 29); None if undefined."""
        if not self.mean_right or self.mean_wrong is None:
            return None
        return self.mean_wrong / self.mean_right


def uncertainty_by_outcome(
    gold: Labels, predicted: Labels, uncertainty: Sequence[Sequence[float | None]]
) -> UncertaintyByOutcome:
    """Split the uncertainties of words by whether the label, BIO2 or a token label, is right.

    The labels are those of the stage whose uncertainty it is, in nats, one per word; words without one are left out.
    """
    outcomes: dict[bool, list[float]] = {True: [], False: []}
    for columns in zip(gold, predicted, uncertainty, strict=True):
        for wanted, found, nats in zip(*columns, strict=True):
            if nats is not None:
                outcomes[wanted == found].append(nats)
    return UncertaintyByOutcome(right=tuple(outcomes[True]), wrong=tuple(outcomes[False]))


def _in_order(scores: Mapping[str, Scores], groups: Sequence[str]) -> dict[str, Scores]:
    return {group: scores.get(group, Scores()) for group in groups}
