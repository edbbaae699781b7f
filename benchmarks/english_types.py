"""The types of the English corpora, which have persons, places and organisations alone."""

from collections.abc import Sequence

from concord.models.schemes import label_scheme
from concord.workflows.corpora.corpora import rename

OTHERS = ("CARDINAL", "DATE", "MONEY", "NORP", "ORDINAL", "PERCENT", "TIME")
TYPES: dict[str, str | None] = {"GPE": "LOC", "FAC": "LOC", "VEH": None, "MISC": None, **dict.fromkeys(OTHERS)}
"""What the types of corpora and taggers are scored as; None for those that the corpora lack."""


def scored(labels: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Return the labels of sentences, in BIO2, with the types that are scored."""
    return [rename(sentence, TYPES, scheme=label_scheme("BIO")) for sentence in labels]
