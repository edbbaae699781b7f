"""Conversion of the label schemes of entity corpora to BIO2.

IOB1 (Ramshaw and Marcus, 1995; the original CoNLL-2003 files) starts an entity with ``I-`` and uses ``B-`` only to
separate it from an entity of the same type just before it. BIO2, also called IOB2, starts every entity with ``B-``.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Literal

from concord.models.labels import OUTSIDE, convert_labels, is_legal_transition, split_label

EntityScheme = Literal["BIO2", "IOB1", "BIOES"]
OnLabelFault = Callable[[int, str, str | None], None]
"""Takes the position of a label, a message, and the repaired label if that is certain."""


def detect_scheme(sentences: Iterable[Sequence[str]]) -> EntityScheme:
    """Detect the scheme of a corpus from its label sequences.

    ``E-`` and ``S-`` occur only in BIOES. Otherwise it is IOB1 if entities start with ``I-``, and with ``B-``
    only after another of their type; a corpus with both is BIO2 with faults.
    """
    begins_inside = begins_properly = False
    for labels in sentences:
        for previous, label in pairwise((OUTSIDE, *labels)):
            prefix, _, kind = label.partition("-")
            if prefix in {"E", "S"}:
                return "BIOES"
            follows_its_type = previous.partition("-")[2] == kind
            begins_inside = begins_inside or (prefix == "I" and not follows_its_type)
            begins_properly = begins_properly or (prefix == "B" and not follows_its_type)
    return "IOB1" if begins_inside and not begins_properly else "BIO2"


def to_bio2(labels: Sequence[str], scheme: EntityScheme, on_fault: OnLabelFault) -> tuple[str, ...]:
    """Convert the labels of one sentence to BIO2 and report those that are invalid.

    An entity that wrongly starts with ``I-`` is repaired to start with ``B-``, as conlleval reads it. Any other invalid
    label becomes ``O``.
    """
    valid = [_validate(label, position, scheme, on_fault) for position, label in enumerate(labels)]
    if scheme == "BIOES":
        return _from_bioes(valid, on_fault)
    converted: list[str] = []
    for position, label in enumerate(valid):
        previous = converted[-1] if converted else None
        if is_legal_transition(previous, label, "BIO"):
            converted.append(label)
            continue
        converted.append(f"B-{label[2:]}")
        if scheme == "BIO2":
            before = previous or "the start of the sentence"
            message = (
                f"{label!r} cannot follow {before}; in BIO2 every entity starts with B-; use label_scheme=IOB1, or "
                "convert the corpus with concord prepare"
            )
            on_fault(position, message, converted[-1])
    return tuple(converted)


def _validate(label: str, position: int, scheme: EntityScheme, on_fault: OnLabelFault) -> str:
    try:
        prefix, _ = split_label(label)
    except ValueError as error:
        on_fault(position, str(error), None)
        return OUTSIDE
    if scheme != "BIOES" and prefix in {"E", "S"}:
        on_fault(position, f"expected {scheme} labels (O, B-, I-), got {label!r}", None)
        return OUTSIDE
    return label


def _from_bioes(labels: Sequence[str], on_fault: OnLabelFault) -> tuple[str, ...]:
    for position, (left, right) in enumerate(pairwise((None, *labels, None))):
        if not is_legal_transition(left, right, "BIOES"):
            before = repr(left) if left is not None else "the start of the sentence"
            after = repr(right) if right is not None else "the end of the sentence"
            on_fault(min(position, len(labels) - 1), f"{after} cannot follow {before} in BIOES", None)
    return convert_labels(labels, source="BIOES", target="BIO")
