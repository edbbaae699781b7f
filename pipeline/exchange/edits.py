"""What an annotator changed: the passages of a file compared with the entities of the collection."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from concord.pipeline.corrections.correction import Correction, Mark, Seen
from concord.pipeline.corrections.fitting import corrected_marks, fit_corrections, paired_marks
from concord.pipeline.exchange.brat import type_name
from concord.pipeline.exchange.export_item import normalize_line_ends
from concord.pipeline.exchange.passage import AnnotatedPassage, AnnotatedSpan
from concord.pipeline.output.document_rows import CollectedDocument, entity_marks, sentence_offsets


@dataclass(frozen=True, kw_only=True, slots=True)
class Refused:
    """A part of a file that cannot be imported, and why."""

    where: str
    doc_id: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """A document of the collection, as edits are compared with it.

    Attributes:
        log: its corrections so far that count, in the order of the log.
        types: the entity types of the collection.
    """

    document: CollectedDocument
    text: str
    generation: int
    log: Sequence[Correction]
    types: Sequence[str]


def find_edits(passage: AnnotatedPassage, target: Target, *, who: str) -> Iterator[Correction | Refused]:
    """Yield the corrections by which the collection's entities become those of a passage.

    What the log already says is left out, so that a file can be imported twice.
    """
    text = target.text
    end = len(text) if passage.text is None else passage.start + len(passage.text)
    if passage.text is not None and normalize_line_ends(text[passage.start : end]) != passage.text:
        yield _refused(passage, "its text is not that of the document; export the collection again")
        return
    existing = entity_marks(target.document, text)
    before = [mark for mark in existing if mark.start < end and passage.start < mark.end]
    types = {type_name(label): label for label in target.types}
    after: list[Mark] = []
    for span in sorted(passage.spans, key=lambda span: (span.start, -span.end)):
        mark = _mark(span, passage, text, {mark.start: mark for mark in before}, types)
        if isinstance(mark, Mark) and after and mark.overlaps(after[-1]):
            mark = f"{mark.text!r} overlaps {after[-1].text!r}, and labels hold only one of the two"
        if isinstance(mark, Mark):
            after.append(mark)
        else:
            yield _refused(passage, mark)
    row = target.document.row
    seen = Seen(doc_id=row.doc_id, tagger=row.tagger, generation=target.generation)
    sentences = list(sentence_offsets(target.document))
    view = corrected_marks(existing, fit_corrections(target.log, text, sentences).corrections)
    for old, new in paired_marks(before, after):
        if _is_done(old, new, view):
            continue
        edit = Correction.of(old, new, text=text, seen=seen, who=who)
        misfits = fit_corrections([edit], text, sentences).misfits
        if misfits:
            yield _refused(passage, misfits[0].reason)
        else:
            yield edit


def _refused(passage: AnnotatedPassage, reason: str) -> Refused:
    return Refused(where=passage.where, doc_id=passage.doc_id, reason=reason)


def _mark(
    span: AnnotatedSpan, passage: AnnotatedPassage, text: str, before: Mapping[int, Mark], types: Mapping[str, str]
) -> Mark | str:
    """Return a span as a mark in the raw text, without white space at its ends, or why it is none."""
    start, end = passage.start + span.start, passage.start + span.end
    surface = text[start:end]
    if not 0 <= start < end <= len(text) or not surface.strip():
        return f"expected offsets of words in its {len(text):,} code points, got {span.start} to {span.end}"
    start += len(surface) - len(surface.lstrip())
    surface = surface.strip()
    known = before.get(start)
    # brat replaces characters in the names of types.
    label = known.type if known is not None and type_name(known.type) == span.type else types.get(span.type, span.type)
    try:
        return Mark(start=start, end=start + len(surface), type=label, text=surface)
    except ValueError as error:
        return f"{surface!r}: type {label!r}: {error}"


def _is_done(old: Mark | None, new: Mark | None, view: Sequence[Mark]) -> bool:
    """Return whether the entities are already as a correction wants them."""
    return new in view if new is not None else not any(old is not None and old.overlaps(mark) for mark in view)
