"""The types of the English corpora, which have persons, places and organisations alone."""

from collections.abc import Sequence
from dataclasses import replace

from concord.models.data.outputs import Prediction
from concord.models.data.sentence import Sentence
from concord.models.labels import decode_spans, encode_spans, label_scheme
from concord.workflows.corpora import Documents, label_types, rename
from research.entities_en.guideline import LABELS
from research.entities_en.silver import TYPES as OTHERS

TYPES: dict[str, str | None] = {**LABELS, **dict.fromkeys(OTHERS)}
"""What the types of corpora and taggers are scored as; None for those that the corpora lack."""


def scored(labels: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Return the labels of sentences, in BIO2, with the types that are scored."""
    return [rename(sentence, TYPES, scheme=label_scheme("BIO")) for sentence in labels]


def missing_types(documents: Documents) -> set[str]:
    """Return the types that gold documents say nothing of: none of them where they hold silver labels as well."""
    return set() if label_types(documents, label_scheme("BIO")).intersection(OTHERS) else set(OTHERS)


def accepted(sentence: Sentence, prediction: Prediction) -> Sentence:
    """Return a gold sentence with what a tagger found of the types that the corpora lack, where no gold name is."""
    gold = decode_spans(sentence.labels or (), "BIO")
    named = {word for span in gold for word in range(span.start, span.end)}
    others = (span for span in prediction.spans if span.label in OTHERS)
    free = [span for span in others if named.isdisjoint(range(span.start, span.end))]
    return replace(sentence, labels=encode_spans([*gold, *free], len(sentence.words), "BIO"))
