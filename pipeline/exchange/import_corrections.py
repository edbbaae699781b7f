"""Import of corrections from the files of other tools, the inverse of the export to them."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from concord.pipeline.corrections.correction import Correction, Mark, Seen, check_name, current_corrections
from concord.pipeline.corrections.fitting import corrected_marks, fit_corrections, paired_marks
from concord.pipeline.corrections.log import append_to_log, log_path, read_log
from concord.pipeline.documents import DeadLetter
from concord.pipeline.errors import InputError
from concord.pipeline.exchange.brat import read_brat, type_name
from concord.pipeline.exchange.conllu import read_conllu
from concord.pipeline.exchange.items import AnnotatedPassage, AnnotatedSpan, normalize_line_ends
from concord.pipeline.exchange.label_studio import read_label_studio
from concord.pipeline.exchange.source_texts import SourceTexts
from concord.pipeline.output.collection import open_collection
from concord.pipeline.output.document_rows import CollectedDocument, entity_marks, read_collection, sentence_offsets
from concord.pipeline.output.shard_stats import entity_types
from concord.pipeline.storage.output_paths import OutputPath


@dataclass(frozen=True, kw_only=True, slots=True)
class Refused:
    """A part of a file that cannot be imported, and why."""

    where: str
    doc_id: str
    reason: str


@dataclass(kw_only=True, slots=True)
class ImportReport:
    """What was imported.

    Attributes:
        passages: documents, or sentences of a review queue, in the file.
        corrections: in the order of the collection.
        refused: what could not be imported.
    """

    passages: int = 0
    corrections: list[Correction] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)

    @property
    def actions(self) -> Counter[str]:
        """The number of corrections by action."""
        return Counter(correction.action for correction in self.corrections)


def import_corrections(path: Path, output: OutputPath, *, who: str, dry_run: bool = False) -> ImportReport:
    """Append to the log of a collection what an annotator changed in an export of it.

    Args:
        path: a file of Label Studio or CoNLL-U, or a folder of brat; it may hold some documents only.
        who: the annotator.
        dry_run: append nothing.

    Raises:
        InputError: when the file cannot be read, or a line of it or of the log has another form.
        PlanError: when the folder holds no finished run.
        ConfigError: for a collection in an object store.
        StoreError: when there is no space; then nothing is imported.
    """
    log = log_path(output)
    try:
        check_name(who)
    except ValueError as error:
        raise InputError(f"--as: {error}, got {who!r}") from None
    collection = open_collection(output)
    current = current_corrections(read_log(log))
    passages: defaultdict[str, list[AnnotatedPassage]] = defaultdict(list)
    report = ImportReport()
    for passage in read_passages(path):
        passages[passage.doc_id].append(passage)
        report.passages += 1
    texts = SourceTexts.of(collection.plan)
    types = entity_types(collection.manifest.shards)
    for document in read_collection(collection, wanted=passages.__contains__):
        doc_id = document.row.doc_id
        edited, text = passages.pop(doc_id), texts.find(document.row)
        if isinstance(text, DeadLetter):
            report.refused.append(_refused(edited[0], text.message))
            continue
        seen = Seen(doc_id=doc_id, tagger=document.row.tagger, generation=collection.manifest.generation)
        for passage in edited:
            edits = find_edits(passage, document, text, seen=seen, log=current.get(doc_id, ()), types=types, who=who)
            for edit in edits:
                if isinstance(edit, Refused):
                    report.refused.append(edit)
                else:
                    report.corrections.append(edit)
    report.refused += [_refused(edited[0], "the collection has no document of this id") for edited in passages.values()]
    if not dry_run:
        append_to_log(log, report.corrections)
    return report


def read_passages(path: Path) -> Iterator[AnnotatedPassage]:
    """Read a file by its name: a folder is brat's, ``.json`` Label Studio's and ``.conllu`` CoNLL-U, also compressed.

    Raises:
        InputError: when it has another name or form, or cannot be read.
    """
    if path.is_dir():
        return read_brat(path)
    name = path.name.lower().removesuffix(".gz").removesuffix(".zst")
    if name.endswith(".json"):
        return read_label_studio(path)
    if name.endswith(".conllu"):
        return read_conllu(path)
    raise InputError(
        f"{path}: expected a folder of brat, a .json file of Label Studio or a .conllu file, each from 'concord export'"
    )


def find_edits(
    passage: AnnotatedPassage,
    document: CollectedDocument,
    text: str,
    *,
    seen: Seen,
    log: Sequence[Correction],
    types: Sequence[str],
    who: str,
) -> Iterator[Correction | Refused]:
    """Yield the corrections by which the entities of a document become those of a passage.

    What the log already says is left out, so that a file can be imported twice.

    Args:
        log: the corrections of the document so far that count, in the order of the log.
        types: the entity types of the collection.
    """
    end = len(text) if passage.text is None else passage.start + len(passage.text)
    if passage.text is not None and normalize_line_ends(text[passage.start : end]) != passage.text:
        yield _refused(passage, "its text is not that of the document; export the collection again")
        return
    existing = entity_marks(document, text)
    before = [mark for mark in existing if mark.start < end and passage.start < mark.end]
    types_by_name = {type_name(label): label for label in types}
    after: list[Mark] = []
    for span in sorted(passage.spans, key=lambda span: (span.start, -span.end)):
        try:
            mark = _mark(span, passage, text, {mark.start: mark for mark in before}, types_by_name)
            if after and mark.overlaps(after[-1]):
                raise ValueError(f"{mark.text!r} overlaps {after[-1].text!r}, and labels hold only one of the two")
        except ValueError as error:
            yield _refused(passage, str(error))
        else:
            after.append(mark)
    sentences = list(sentence_offsets(document))
    view = corrected_marks(existing, fit_corrections(log, text, sentences).corrections)
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
) -> Mark:
    """Return a span as a mark in the raw text, without white space at its ends; ValueError where it cannot be one."""
    start, end = passage.start + span.start, passage.start + span.end
    surface = text[start:end]
    if not 0 <= start < end <= len(text) or not surface.strip():
        raise ValueError(f"expected offsets of words in its {len(text):,} code points, got {span.start} to {span.end}")
    start += len(surface) - len(surface.lstrip())
    surface = surface.strip()
    existing = before.get(start)
    # brat replaces characters in the names of types.
    is_same = existing is not None and type_name(existing.type) == span.type
    label = existing.type if existing and is_same else types.get(span.type, span.type)
    try:
        return Mark(start=start, end=start + len(surface), type=label, text=surface)
    except ValueError as error:
        raise ValueError(f"{surface!r}: type {label!r}: {error}") from None


def _is_done(old: Mark | None, new: Mark | None, view: Sequence[Mark]) -> bool:
    """Return whether the entities are already as a correction wants them."""
    return new in view if new is not None else not any(old is not None and old.overlaps(mark) for mark in view)
