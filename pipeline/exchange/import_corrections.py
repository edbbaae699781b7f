"""Import of corrections from the files of other tools, the inverse of the export to them."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from concord.pipeline.corrections.correction import (
    Correction,
    Mark,
    Seen,
    append_to_log,
    check_name,
    check_type,
    current_corrections,
    log_path,
    read_log,
)
from concord.pipeline.corrections.fitting import Offsets, WordOffsets, corrected_marks, fit_corrections, paired_marks
from concord.pipeline.documents import DeadLetter
from concord.pipeline.errors import InputError
from concord.pipeline.exchange.brat import read_brat, type_name
from concord.pipeline.exchange.conllu import read_conllu, token_forms
from concord.pipeline.exchange.items import AnnotatedPassage, AnnotatedSpan, normalize_line_ends
from concord.pipeline.exchange.label_studio import read_label_studio
from concord.pipeline.output.collection import (
    CollectedDocument,
    entity_marks,
    open_collection,
    read_collection,
    sentence_offsets,
)
from concord.pipeline.output.shard_stats import entity_types
from concord.pipeline.storage.output_paths import OutputPath
from concord.pipeline.worker.source_texts import SourceTexts

MOST_DROPS = 0.2
"""The share of a document's entities that an import drops without being asked to."""


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
        not_annotated: those of them that nobody has annotated, which change nothing.
        corrections: in the order of the collection.
        held_back: corrections of documents that would lose too many entities; they are refused.
        refused: what could not be imported.
    """

    passages: int = 0
    not_annotated: int = 0
    corrections: list[Correction] = field(default_factory=list)
    held_back: list[Correction] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)

    @property
    def actions(self) -> Counter[str]:
        """The number of corrections by action."""
        return Counter(correction.action for correction in self.corrections)


def import_corrections(
    path: Path, output: OutputPath, *, who: str, dry_run: bool = False, accept_drops: bool = False
) -> ImportReport:
    """Append to the log of a collection what an annotator changed in an export of it.

    What a file lacks or does not say is left as it is.

    Args:
        path: a file of Label Studio or CoNLL-U, or a folder of brat; it may hold some documents only.
        accept_drops: also import documents that lose more than the share ``MOST_DROPS`` of their entities.

    Raises:
        InputError: when the file cannot be read, no part of it has the expected form, or a line of the log has not.
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
    report = ImportReport()
    passages = _read_by_document(path, report)
    texts = SourceTexts.of(collection.plan)
    types = {type_name(label): label for label in entity_types(collection.manifest.shards)}
    for document in read_collection(collection, wanted=passages.__contains__):
        doc_id = document.row.doc_id
        edited, text = passages.pop(doc_id), texts.find(document.row)
        if isinstance(text, DeadLetter):
            report.refused.append(_refused(edited[0], text.message))
            continue
        seen = Seen(doc_id=doc_id, tagger=document.row.tagger, generation=collection.manifest.generation)
        log_so_far = current.get(doc_id, ())
        edits = [
            Correction.of(old, new, text=text, seen=seen, who=who, digest=document.row.text_sha256)
            for passage in edited
            for old, new in _edits(passage, document, text, log=log_so_far, types=types, refused=report.refused)
        ]
        drops, entities = sum(edit.action == "drop" for edit in edits), len(document.entities)
        if drops > MOST_DROPS * entities and not accept_drops:
            reason = f"{drops:,} of its {entities:,} entities would be dropped; --accept-drops imports that"
            report.refused.append(_refused(edited[0], reason))
            report.held_back += edits
        else:
            report.corrections += edits
    report.refused += [_refused(edited[0], "the collection has no document of this id") for edited in passages.values()]
    if not dry_run:
        append_to_log(log, report.corrections)
    return report


def _read_by_document(path: Path, report: ImportReport) -> dict[str, list[AnnotatedPassage]]:
    """Return the passages of a file by the id of their document; the others are refused in the report."""
    passages: defaultdict[str, list[AnnotatedPassage]] = defaultdict(list)
    for passage in read_passages(path):
        if passage.text is not None or passage.forms:
            passages[passage.doc_id].append(passage)
        elif passage.spans:
            report.refused += [_refused(passage, span.fault, span.where) for span in passage.spans]
            continue
        else:
            report.not_annotated += 1
        report.passages += 1
    if report.refused and not report.passages:
        raise InputError(f"{report.refused[0].where}: {report.refused[0].reason}")
    return dict(passages)


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


def _edits(
    passage: AnnotatedPassage,
    document: CollectedDocument,
    text: str,
    *,
    log: Sequence[Correction],
    types: Mapping[str, str],
    refused: list[Refused],
) -> Iterator[tuple[Mark | None, Mark | None]]:
    """Yield the old and new marks that make the entities of a document those of a passage, unless the log has them.

    Args:
        types: the entity types of the collection by their names in brat.
        refused: takes what is refused.
    """
    hidden = _hidden(passage, document, text)
    if hidden is None:
        refused.append(_refused(passage, "its text is not that of the document; export the collection again"))
        return
    sentences, before = list(sentence_offsets(document)), entity_marks(document, text)
    words, by_start = WordOffsets(sentences), {mark.start: mark for mark in before}
    after: list[Mark] = []
    unclear: list[Offsets] = []
    for span in sorted(passage.spans, key=lambda span: (span.start, -span.end)):
        try:
            mark = _mark(span, passage, text, by_start, types)
            if fault := words.fault(mark):
                raise ValueError(fault)
            if after and mark.overlaps(after[-1]) and mark != after[-1]:
                raise ValueError(f"{mark.text!r} overlaps {after[-1].text!r}, and labels hold only one of the two")
            if _overlaps(mark, hidden):
                raise ValueError(f"the file lacks words of {mark.text!r}")
        except ValueError as error:
            refused.append(_refused(passage, str(error), span.where))
            end = max(passage.start + span.end, unclear[-1][1] if unclear else 0)
            unclear.append((passage.start + span.start, end))
        else:
            after.append(mark)
    view = corrected_marks(before, fit_corrections(log, text, sentences).corrections)
    # A file does not say whom an entity names.
    done = {mark.model_copy(update={"canonical": None}) for mark in view}
    places = [(mark.start, mark.end) for mark in view]
    for old, new in paired_marks(before, list(dict.fromkeys(after))):
        is_hidden = old is not None and _overlaps(old, hidden)
        is_unclear = old is not None and _overlaps(old, unclear)
        is_gone = old is not None and not _overlaps(old, places)
        if new in done or (new is None and (is_gone or is_hidden or is_unclear)):
            continue
        if is_hidden:
            refused.append(_refused(passage, f"the file lacks words of {old and old.text!r}"))
        else:
            yield old, new


def _refused(passage: AnnotatedPassage, reason: str, where: str = "") -> Refused:
    return Refused(where=where or passage.where, doc_id=passage.doc_id, reason=reason)


def _hidden(passage: AnnotatedPassage, document: CollectedDocument, text: str) -> list[Offsets] | None:
    """Return what a passage lacks of a document, in order; None if its text is another one."""
    if passage.text is None:
        forms = token_forms(document)
        is_same = passage.forms.items() <= forms.items()
        return sorted(forms.keys() - passage.forms.keys()) if is_same else None
    end = passage.start + len(passage.text)
    is_same = passage.start >= 0 and normalize_line_ends(text[passage.start : end]) == passage.text
    return [(0, passage.start), (end, len(text))] if is_same else None


def _overlaps(mark: Mark, stretches: Sequence[Offsets]) -> bool:
    """Return whether a mark shares a code point with one of some stretches, whose starts and ends are in order."""
    last = bisect_left(stretches, (mark.end, 0)) - 1
    return last >= 0 and stretches[last][1] > mark.start


def _mark(
    span: AnnotatedSpan, passage: AnnotatedPassage, text: str, before: Mapping[int, Mark], types: Mapping[str, str]
) -> Mark:
    """Return a span as a mark in the raw text, without white space at its ends; ValueError where it cannot be one."""
    if span.fault:
        raise ValueError(span.fault)
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
        return Mark(start=start, end=start + len(surface), type=check_type(label), text=surface)
    except ValueError as error:
        raise ValueError(f"{surface!r}: type {label!r}: {error}") from None
