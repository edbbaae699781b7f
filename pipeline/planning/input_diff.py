"""What is new, changed, renamed, tried again or removed in an input, compared with what the output folder holds.

A record needs no annotation when its id exists with the same text in a current shard. Its rows then stay where they
are, byte for byte; where its file, name or meta differ, they are copied with the new ones. A record whose id does not
exist is looked up by its text among the documents that are gone, so a renamed file costs no annotation.

The position of a record within its file is not compared: a line that moved is unchanged.
"""

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal, NamedTuple

from concord.pipeline.output.dead_letters import ExistingDeadLetter
from concord.pipeline.plan import RenamedDocument, ShardRef
from concord.pipeline.planning.existing_output import ExistingDocument, ExistingOutput, fingerprint
from concord.pipeline.planning.inputs import InputFile
from concord.pipeline.readers.fields import DUPLICATE_ID
from concord.pipeline.readers.records import ScannedRecord

Reason = Literal["new", "retried", "changed", "corrected", "again"]


class InputRecord(NamedTuple):
    """A record of a file that is new or has changed.

    Attributes:
        number: of the record in its file, from 0.
        doc_id: always there for a record that can be read.
        text: its fingerprint; None for a record that cannot be read.
    """

    file: InputFile
    number: int
    scanned: ScannedRecord
    doc_id: str | None
    text: bytes | None = None
    meta: str | None = None
    encoding: str | None = None

    def has_content_of(self, document: ExistingDocument) -> bool:
        """Tell whether it has the text of an existing document, read in the same encoding."""
        return (self.text, self.encoding) == (document.text, document.encoding)


@dataclass(frozen=True, kw_only=True, slots=True)
class Retries:
    """Which dead letters are tried again; a record's place is its file and position.

    Attributes:
        places: of those tried again, but for files that have changed.
        skipped: places of those that stay as they are.
        reserved: ids of these.
        denied: places of records tried again whose id belongs to a document.
        changed: files that hold dead letters to try again and have changed.
        attempts: how often each has then been tried again, by file and position; by file and id in changed files,
            where positions mean nothing.
    """

    places: frozenset[tuple[str, int]] = frozenset()
    skipped: frozenset[tuple[str, int]] = frozenset()
    reserved: frozenset[str] = frozenset()
    denied: frozenset[tuple[str, int]] = frozenset()
    changed: frozenset[str] = frozenset()
    attempts: Mapping[tuple[str, int | str | None], int]


_NO_RETRIES = Retries(attempts={})


@dataclass(frozen=True, slots=True)
class RecordToAnnotate:
    """A record that is annotated in the next generation.

    Attributes:
        reason: ``again`` for an unchanged document that another tagger, parser or configuration made; else as the
            fields of Changes.
        is_duplicate: whether its id belongs to another record.
        attempts: how often it has been tried again, this time included.
        parse: the shard that holds its parse, if one does.
    """

    record: InputRecord
    reason: Reason
    is_duplicate: bool = False
    attempts: int = 0
    parse: ShardRef | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class InputDiff:
    """What is to be done about an input.

    Attributes:
        to_annotate: in the order of the input.
        reused: ids of existing documents whose rows are reused.
        renamed: the reused ones whose name, file or meta changes, by the shard that holds them.
        removed: ids of existing documents that the input no longer has.
        files: those whose dead letters are reused.
        retried: file and position of the dead letters in them that are tried again.
    """

    to_annotate: Sequence[RecordToAnnotate]
    reused: Collection[str]
    renamed: Mapping[ShardRef, Sequence[RenamedDocument]]
    removed: Collection[str]
    files: Collection[str]
    retried: frozenset[tuple[str, int]]


def diff_input(
    existing: ExistingOutput,
    records: Iterable[InputRecord],
    *,
    reused_files: Collection[str],
    retries: Retries = _NO_RETRIES,
) -> InputDiff:
    """Compare the records of an input with the existing documents, in linear time.

    Args:
        records: of all other files, in the order of the input; each is looked at once.
        reused_files: files that are not read: all their documents and dead letters stay. Of two records with one id
            theirs keeps it.
    """
    reused = {doc_id for doc_id, document in existing.documents.items() if document.source_uri in reused_files}
    seen = reused | retries.reserved
    renamed: defaultdict[ShardRef, list[RenamedDocument]] = defaultdict(list)
    rest: list[RecordToAnnotate] = []
    for record in records:
        place = (record.file.path, record.scanned.position)
        if place in retries.skipped:
            continue
        doc_id = record.doc_id or ""
        is_duplicate, document = False, None
        if record.text is not None:
            is_duplicate = place in retries.denied or doc_id in seen
            if not is_duplicate:
                seen.add(doc_id)
                document = existing.documents.get(doc_id)
        is_current = document is not None and record.has_content_of(document) and document.shard in existing.current
        if document is not None and is_current and existing.is_corrected_as(doc_id, doc_id):
            reused.add(doc_id)
            if (document.source_uri, document.meta) != (record.file.path, fingerprint(record.meta)):
                renamed[document.shard].append(_renamed(doc_id, record))
        else:
            mark = (record.file.path, record.doc_id) if record.file.path in retries.changed else place
            attempts = retries.attempts.get(mark, 0)
            reason, parse = _reason(record, document, existing, attempts=attempts)
            rest.append(RecordToAnnotate(record, reason, is_duplicate, attempts, parse))
    missing = {doc_id: document for doc_id, document in existing.documents.items() if doc_id not in seen}
    to_annotate = []
    for item, was in zip(rest, _find_by_text(rest, existing, missing), strict=True):
        if was is None:
            to_annotate.append(item)
        else:
            reused.add(was)
            renamed[missing[was].shard].append(_renamed(was, item.record))
    return InputDiff(
        to_annotate=to_annotate,
        reused=reused,
        renamed=renamed,
        removed=missing.keys() - reused,
        files={*reused_files, *(uri for uri, _ in retries.places)},
        retried=retries.places,
    )


def choose_retries(
    existing: ExistingOutput, chosen: Collection[ExistingDeadLetter], *, unchanged: Collection[str]
) -> Retries:
    """Return what follows from trying some dead letters again and leaving all others as they are.

    In a file that is not ``unchanged``, every record without an existing document is tried again, because it is unknown
    which dead letter belongs to which record.
    """
    changed = frozenset(letter.source_uri for letter in chosen) - set(unchanged)
    in_unchanged = [letter for letter in chosen if letter.source_uri not in changed]
    places = frozenset(map(_place, in_unchanged))
    skipped = [
        letter
        for letter in chain.from_iterable(existing.dead_letters.values())
        if letter.source_uri not in changed and _place(letter) not in places
    ]
    # An existing document keeps its id, even where its file comes later.
    ids = {doc_id for doc_id, document in existing.documents.items() if document.source_uri in unchanged}
    marked = ((letter, letter.doc_id if letter.source_uri in changed else letter.position) for letter in chosen)
    return Retries(
        places=places,
        skipped=frozenset(map(_place, skipped)),
        reserved=frozenset(
            letter.doc_id for letter in skipped if letter.doc_id is not None and letter.error != DUPLICATE_ID
        ),
        denied=frozenset(_place(letter) for letter in in_unchanged if letter.doc_id in ids),
        changed=changed,
        attempts={(letter.source_uri, mark): letter.attempts + 1 for letter, mark in marked if mark is not None},
    )


def _reason(
    record: InputRecord, document: ExistingDocument | None, existing: ExistingOutput, *, attempts: int
) -> tuple[Reason, ShardRef | None]:
    """Return why a record is annotated, given the existing document of its id, and the shard that holds its parse."""
    if document is None:
        return "retried" if attempts else "new", None
    if document.text != record.text:
        return "changed", None
    is_current = document.shard in existing.current and record.has_content_of(document)
    return "corrected" if is_current else "again", document.shard if document.shard in existing.parsed else None


def _find_by_text(
    items: Iterable[RecordToAnnotate], existing: ExistingOutput, missing: Mapping[str, ExistingDocument]
) -> Iterator[str | None]:
    """Yield for each record the id of a missing document with its text, each id once; None if there is none."""
    by_text: defaultdict[tuple[bytes | None, str | None], deque[str]] = defaultdict(deque)
    for doc_id, document in missing.items():
        if document.shard in existing.current:
            by_text[document.text, document.encoding].append(doc_id)
    for item in items:
        ids, doc_id = by_text.get((item.record.text, item.record.encoding)), item.record.doc_id or ""
        may_be_renamed = ids and not item.is_duplicate and item.record.doc_id not in existing.documents
        yield ids.popleft() if ids and may_be_renamed and existing.is_corrected_as(ids[0], doc_id) else None


def _renamed(was: str, record: InputRecord) -> RenamedDocument:
    return RenamedDocument(
        was=was,
        doc_id=record.doc_id or "",
        source_uri=record.file.path,
        source_position=record.scanned.position,
        meta=record.meta,
    )


def _place(letter: ExistingDeadLetter) -> tuple[str, int]:
    return letter.source_uri, letter.position
