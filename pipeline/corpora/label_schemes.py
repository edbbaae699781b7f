"""The label schemes that corpora of entities come in, and the way from each to BIO2.

IOB1 (Ramshaw and Marcus, 1995; the original CoNLL-2003 files) begins a name with ``I-`` and uses ``B-`` only to part
it from a name of the same type just before it. BIO2, also called IOB2, begins every name with ``B-``.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Literal

from concord.models.labels import OUTSIDE, convert_labels, is_legal_transition, split_label

EntityScheme = Literal["BIO2", "IOB1", "BIOES"]
OnLabelFault = Callable[[int, str, str | None], None]
"""Takes the position of a label, what is wrong, and what was made of it, if anything sure."""


def recognise_scheme(sentences: Iterable[Sequence[str]]) -> EntityScheme:
    """Tell the scheme of a corpus by its label sequences.

    ``E-`` and ``S-`` occur in BIOES alone. What is left is IOB1 if names begin with ``I-`` and none begins with ``B-``
    but behind another of its type; a corpus that has both beginnings is BIO2 with faults.
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
    """Write the labels of one sentence in BIO2 and report what cannot stand where it does.

    A name that begins with ``I-`` where it must not is repaired: it begins with ``B-`` as conlleval reads it. Anything
    else that is wrong becomes ``O``.
    """
    known = [_known(label, position, scheme, on_fault) for position, label in enumerate(labels)]
    if scheme == "BIOES":
        return _from_bioes(known, on_fault)
    written: list[str] = []
    for position, label in enumerate(known):
        previous = written[-1] if written else None
        if is_legal_transition(previous, label, "BIO"):
            written.append(label)
            continue
        written.append(f"B-{label[2:]}")
        if scheme == "BIO2":
            before = previous or "the sentence's start"
            message = (
                f"{label!r} cannot follow {before}; BIO2 begins every name with B- (label_scheme=IOB1 does not; "
                "concord prepare writes BIO2)"
            )
            on_fault(position, message, written[-1])
    return tuple(written)


def _known(label: str, position: int, scheme: EntityScheme, on_fault: OnLabelFault) -> str:
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
            before = repr(left) if left is not None else "the sentence's start"
            after = repr(right) if right is not None else "the sentence's end"
            on_fault(min(position, len(labels) - 1), f"{after} cannot follow {before} in BIOES", None)
    return convert_labels(labels, source="BIOES", target="BIO")
