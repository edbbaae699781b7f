"""Conversion of the label schemes of entity corpora to BIO2.

IOB1 (Ramshaw and Marcus, 1995; the original CoNLL-2003 files) starts an entity with ``I-`` and uses ``B-`` only to
separate it from an entity of the same type just before it. BIO2, also called IOB2, starts every entity with ``B-``.
BIOES has other names for the same labels: BILOU (spaCy, AllenNLP) ends entities with ``L-`` and writes those of one
word with ``U-``; BMES and BMEWO have ``M-`` inside, and ``S-`` or ``W-`` for one word.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Literal

from concord.models.labels import BIOES_PREFIXES, OUTSIDE, convert_labels, is_legal_transition, split_label

EntityScheme = Literal["BIO2", "IOB1", "BIOES"]
OnLabelFault = Callable[[int, str, str | None], None]
"""Takes the position of a label, a message, and the repaired label if that is certain."""
_OF_BIOES = {"E", "S", *BIOES_PREFIXES}


def detect_scheme(sentences: Iterable[Sequence[str]]) -> EntityScheme:
    """Detect the scheme of a corpus from its label sequences.

    ``E-``, ``S-`` and what other names of BIOES have in their place occur only there. Otherwise it is IOB1 if entities
    start with ``I-``, and with ``B-`` only after another of their type; a corpus with both is BIO2 with faults.
    """
    begins_inside = begins_properly = False
    for labels in sentences:
        for previous, label in pairwise((OUTSIDE, *labels)):
            prefix, _, kind = label.partition("-")
            if prefix in _OF_BIOES and kind:
                return "BIOES"
            follows_its_type = previous.partition("-")[2] == kind
            begins_inside = begins_inside or (prefix == "I" and not follows_its_type)
            begins_properly = begins_properly or (prefix == "B" and not follows_its_type)
    return "IOB1" if begins_inside and not begins_properly else "BIO2"


def to_bio2(labels: Sequence[str], scheme: EntityScheme, on_fault: OnLabelFault) -> tuple[str, ...]:
    """Convert the labels of one sentence to BIO2 and report those that are invalid.

    An entity that wrongly starts with ``I-`` is repaired to start with ``B-``, as conlleval reads it. Any other invalid
    label becomes ``O``. ``BIOES`` stands for all of its names.
    """
    valid = [_validate(label, position, scheme, on_fault) for position, label in enumerate(labels)]
    if scheme == "BIOES":
        return _from_bioes(valid, labels, on_fault)
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
    prefix, dash, kind = label.partition("-")
    if scheme != "BIOES" and prefix in _OF_BIOES and kind:
        message = (
            f"expected {scheme} labels (O, B-, I-), got {label!r}; use label_scheme=BIOES, which also stands for BILOU "
            "and BMES, or convert the corpus with concord prepare"
        )
        on_fault(position, message, None)
        return OUTSIDE
    renamed = f"{BIOES_PREFIXES.get(prefix, prefix)}{dash}{kind}"
    try:
        split_label(renamed)
    except ValueError as error:
        on_fault(position, str(error), None)
        return OUTSIDE
    return renamed


def _from_bioes(labels: Sequence[str], written: Sequence[str], on_fault: OnLabelFault) -> tuple[str, ...]:
    for position, (left, right) in enumerate(pairwise((None, *labels, None))):
        if not is_legal_transition(left, right, "BIOES"):
            before = repr(written[position - 1]) if left is not None else "the start of the sentence"
            after = repr(written[position]) if right is not None else "the end of the sentence"
            on_fault(min(position, len(labels) - 1), f"{after} cannot follow {before} in BIOES", None)
    return convert_labels(labels, source="BIOES", target="BIO")
