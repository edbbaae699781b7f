"""What is new, changed, renamed, tried again or removed in an input, compared with what the output folder holds.

A record needs no annotation when its id exists with the same text, or the same bytes that its text is extracted from,
in a current shard. Its rows then stay where they are, byte for byte; where its file, name or meta differ, they are
copied with the new ones. A record whose id does not exist is looked up in the same way among the documents that are
gone, so a renamed file costs no annotation.

The position of a record within its file is not compared: a line that moved is unchanged.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Literal, NamedTuple, Self

from concord.pipeline.output.collection import read_dead_letters
from concord.pipeline.output.manifest import CommitRecord, shard_ref
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.parquet_parts import iter_batches
from concord.pipeline.plan import RenamedDocument, ShardRef, Source
from concord.pipeline.planning.inputs import InputFile
from concord.pipeline.readers.base import DUPLICATE_ID
from concord.pipeline.readers.records import ScannedRecord

FINGERPRINT_BYTES = 16
"""The first bytes of a SHA-256. The chance that two of 1e9 texts agree in these bytes is 1e-21."""

_DOCUMENT_COLUMNS = ("doc_id", "text_sha256", "source_uri", "meta", "encoding", "source_sha256", "n_chars")


class Content(NamedTuple):
    """What documents are compared by.

    Attributes:
        digest: the first bytes of the SHA-256 of a text, or of what it is extracted from.
        format: from which a text is extracted; None for a text that is not, empty for one that would be extracted
            otherwise now.
    """

    digest: bytes
    format: str | None = None

    @classmethod
    def of(cls, sha256: str, format: str | None = None) -> Self:
        """Return what a SHA-256 in hex is compared by."""
        return cls(bytes.fromhex(sha256)[:FINGERPRINT_BYTES], format)

    def is_changed_to(self, other: Self | None) -> bool:
        """Tell whether another text, or another file, was found in place of this one."""
        return other is None or self.digest != other.digest or self.format not in ("", other.format)


class ExistingDocument(NamedTuple):
    """The part of a document's row that shows whether it has changed; meta as a fingerprint."""

    shard: ShardRef
    content: Content
    source_uri: str
    meta: bytes
    encoding: str | None = None

    @property
    def is_extracted(self) -> bool:
        """Whether its text was extracted, and is thus stored."""
        return self.content.format is not None


class ExistingDeadLetter(NamedTuple):
    """A dead letter of a committed shard.

    Attributes:
        stays: whether it is left as it is where its record is as it was. One that lacks only a free id is looked at
            whenever its file is read.
        attempts: those that it has if its record fails again.
    """

    shard: ShardRef
    doc_id: str | None
    source_uri: str
    position: int
    stays: bool
    lacks_id: bool = False
    attempts: int = 0

    @property
    def place(self) -> tuple[str, int]:
        """Its file and position."""
        return self.source_uri, self.position


@dataclass(frozen=True, kw_only=True, slots=True)
class ExistingOutput:
    """The committed shards that a new plan builds on.

    Attributes:
        shards: all of them.
        current: those whose rows this run would write just the same; documents of the others are tagged again.
        parsed: those whose parses this run would compute just the same.
        documents: by id. Where two shards hold one id, the row of the later generation.
        superseded: ids of a shard whose row in a later shard counts instead.
        dead_letters: of all shards.
        characters: how much text a shard holds, in code points.
        files: the input files as they were annotated, by path.
        other_texts: shards that store raw texts while this run would not, or the other way round.
        corrected: the digest of the corrections in a document's rows, by id, where it has any.
        wanted: that of the corrections which its rows should have.
    """

    shards: frozenset[ShardRef]
    current: frozenset[ShardRef]
    parsed: frozenset[ShardRef]
    documents: Mapping[str, ExistingDocument]
    superseded: Mapping[ShardRef, Sequence[str]]
    dead_letters: Sequence[ExistingDeadLetter]
    characters: Mapping[ShardRef, int]
    files: Mapping[str, Source]
    other_texts: Collection[ShardRef] = ()
    corrected: Mapping[str, str] = field(default_factory=dict)
    wanted: Mapping[str, str] = field(default_factory=dict)

    def is_corrected_as(self, old_id: str, doc_id: str) -> bool:
        """Return whether the rows of an existing document have the corrections that a document of the input needs."""
        return self.corrected.get(old_id) == self.wanted.get(doc_id)

    def unchanged_files(self, digests: Mapping[str, str]) -> set[str]:
        """Return the files whose content is as it was annotated, given the SHA-256 in hex of the input's, by path."""
        return {uri for uri, file in self.files.items() if digests.get(uri) == file.sha256}

    def complete_files(self, digests: Mapping[str, str]) -> set[str]:
        """Return the unchanged files each record of which is a document or a dead letter, and only one of them."""
        records = Counter(document.source_uri for document in self.documents.values())
        records.update(dead_letter.source_uri for dead_letter in self.dead_letters)
        return {uri for uri in self.unchanged_files(digests) if self.files[uri].records == records[uri]}

    def reusable_files(self, digests: Mapping[str, str]) -> set[str]:
        """Return the unchanged files all of whose records stay in current shards, so that none need be read.

        A file with a record that was denied its id is not among them when the file that has the id is gone or changed:
        the id may now be free.
        """
        unchanged = self.unchanged_files(digests)
        outdated = {document.source_uri for document in self.documents.values() if document.shard not in self.current}
        if self.corrected != self.wanted:
            corrected = (doc_id for doc_id in self.documents if not self.is_corrected_as(doc_id, doc_id))
            outdated.update(self.documents[doc_id].source_uri for doc_id in corrected)
        outdated.update(dead_letter.source_uri for dead_letter in self.dead_letters if not dead_letter.stays)
        failed = {letter.doc_id: letter.source_uri for letter in self.dead_letters if not letter.lacks_id}
        for dead_letter in self.dead_letters:
            document = self.documents.get(dead_letter.doc_id or "")
            owner = failed.get(dead_letter.doc_id) if document is None else document.source_uri
            if dead_letter.lacks_id and owner not in unchanged:
                outdated.add(dead_letter.source_uri)
        return self.complete_files(digests) - outdated


def scan_existing(
    folder: OutputFolder,
    reports: Sequence[CommitRecord],
    *,
    current: Collection[ShardRef],
    parsed: Collection[ShardRef],
    files: Mapping[str, Source],
    other_texts: Collection[ShardRef],
    corrected: Mapping[ShardRef, Mapping[str, str]],
    wanted: Mapping[str, str],
    formats: Mapping[ShardRef, Mapping[str, str]],
    retry: str | None = None,
) -> ExistingOutput:
    """Read which documents and dead letters committed shards hold; of two that hold a document, the later counts.

    Args:
        retry: as in ``PlanningConfig``.
        corrected: by shard, the digests of the corrections in its documents' rows.
        formats: by shard, those of files whose texts are extracted, as in ``Content``.
        current, parsed, files, other_texts, wanted: see ``ExistingOutput``.
    """
    documents: dict[str, ExistingDocument] = {}
    superseded: defaultdict[ShardRef, list[str]] = defaultdict(list)
    characters: Counter[ShardRef] = Counter()
    dead_letters: list[ExistingDeadLetter] = []
    for report in reports:
        shard = shard_ref(report)
        uris: dict[str, str] = {}
        encodings: dict[str | None, str | None] = {}
        for batch in iter_batches(folder.part(report, "documents"), _DOCUMENT_COLUMNS):
            columns = (batch.column(name).to_pylist() for name in _DOCUMENT_COLUMNS)
            for doc_id, digest, uri, meta, encoding, source, length in zip(*columns, strict=True):
                if doc_id in documents:
                    superseded[documents[doc_id].shard].append(doc_id)
                content = Content.of(source, formats[shard].get(uri, "")) if source else Content.of(digest)
                # Documents of one file share the strings of its path and encoding.
                source_uri, encoding = uris.setdefault(uri, uri), encodings.setdefault(encoding, encoding)
                documents[doc_id] = ExistingDocument(shard, content, source_uri, fingerprint(meta), encoding)
                characters[shard] += length
        for letter in read_dead_letters(folder, [report]):
            uri, lacks_id = uris.setdefault(letter.source_uri, letter.source_uri), letter.error == DUPLICATE_ID
            is_chosen = not lacks_id and retry in ("all", letter.stage)
            stays, attempts = shard in current and not is_chosen, is_chosen * (letter.attempts + 1)
            dead_letters.append(
                ExistingDeadLetter(shard, letter.doc_id, uri, letter.position, stays, lacks_id, attempts)
            )
    return ExistingOutput(
        shards=frozenset(map(shard_ref, reports)),
        current=frozenset(current),
        parsed=frozenset(parsed),
        documents=documents,
        superseded=superseded,
        dead_letters=dead_letters,
        characters=characters,
        files=files,
        # Extracted texts are stored in any case.
        other_texts={document.shard for document in documents.values() if not document.is_extracted}.intersection(
            other_texts
        ),
        corrected={
            doc_id: corrected[document.shard][doc_id]
            for doc_id, document in documents.items()
            if doc_id in corrected[document.shard]
        },
        wanted=wanted,
    )


def fingerprint(text: str | None) -> bytes:
    """Return the bytes by which texts and metas are compared; empty for None."""
    return b"" if text is None else sha256(text.encode()).digest()[:FINGERPRINT_BYTES]


Reason = Literal["new", "retried", "changed", "corrected", "again"]


class InputRecord(NamedTuple):
    """A record of a file that is new or has changed.

    Attributes:
        number: of the record in its file, from 0.
        doc_id: always there for a record that can be read.
        content: None for a record that cannot be read.
        meta, meta_nulls, encoding, encoding_confidence: None where the text is extracted, when it is annotated.
    """

    file: InputFile
    number: int
    scanned: ScannedRecord
    doc_id: str | None
    content: Content | None = None
    meta: str | None = None
    meta_nulls: str | None = None
    encoding: str | None = None
    encoding_confidence: float | None = None

    @property
    def place(self) -> tuple[str, int]:
        """Its file and position."""
        return self.file.path, self.scanned.position

    def has_current_content(self, document: ExistingDocument, existing: ExistingOutput) -> bool:
        """Tell whether an existing document is current and has the same text."""
        return document.shard in existing.current and self.content == document.content


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
        kept: file and position of the dead letters that stay as they are.
    """

    to_annotate: Sequence[RecordToAnnotate]
    reused: Collection[str]
    renamed: Mapping[ShardRef, Sequence[RenamedDocument]]
    removed: Collection[str]
    kept: Collection[tuple[str, int]]


def diff_input(
    existing: ExistingOutput,
    records: Iterable[InputRecord],
    *,
    reused_files: Collection[str],
    complete_files: Collection[str] = (),
) -> InputDiff:
    """Compare the records of an input with the existing documents, in linear time.

    Args:
        records: of all other files, in the order of the input; each is looked at once.
        reused_files: files that are not read: all their documents and dead letters stay. Of two records with one id
            theirs keeps it.
        complete_files: files in which the dead letters that stay are left out of the input.
    """
    reused = {doc_id for doc_id, document in existing.documents.items() if document.source_uri in reused_files}
    staying = {
        letter.place: letter
        for letter in existing.dead_letters
        if letter.stays and (letter.source_uri in complete_files or letter.source_uri in reused_files)
    }
    kept = {place for place, letter in staying.items() if not letter.lacks_id or letter.source_uri in reused_files}
    owners = (letter.doc_id for letter in staying.values() if letter.doc_id is not None and not letter.lacks_id)
    seen = reused | (set(owners) - existing.documents.keys())
    attempts = _attempts([letter for letter in existing.dead_letters if letter.place not in kept], complete_files)
    renamed: defaultdict[ShardRef, list[RenamedDocument]] = defaultdict(list)
    to_annotate: list[RecordToAnnotate] = []
    for record in records:
        if record.place in kept:
            continue
        document, doc_id = None, record.doc_id or ""
        is_duplicate = record.content is not None and record.doc_id in seen
        if is_duplicate and record.place in staying:
            kept.add(record.place)
            continue
        if record.doc_id is not None and record.content is not None and not is_duplicate:
            seen.add(doc_id)
            document = existing.documents.get(doc_id)
        is_current = document is not None and record.has_current_content(document, existing)
        if document is None or not (is_current and existing.is_corrected_as(doc_id, doc_id)):
            to_annotate.append(_to_annotate(record, document, existing, attempts, is_duplicate=is_duplicate))
            continue
        reused.add(doc_id)
        is_described = document.is_extracted or (document.meta, document.encoding) == (
            fingerprint(record.meta),
            record.encoding,
        )
        if document.source_uri != record.file.path or not is_described:
            renamed[document.shard].append(_renamed(doc_id, record))
    missing = {doc_id: document for doc_id, document in existing.documents.items() if doc_id not in seen}
    old_ids = _find_by_text(to_annotate, existing, missing)
    for number, old_id in old_ids.items():
        reused.add(old_id)
        renamed[missing[old_id].shard].append(_renamed(old_id, to_annotate[number].record))
    return InputDiff(
        to_annotate=[item for number, item in enumerate(to_annotate) if number not in old_ids],
        reused=reused,
        renamed=renamed,
        removed=missing.keys() - reused,
        kept=kept,
    )


_Attempts = Mapping[tuple[str, int | str | None], deque[int]]
"""By file and position, or id, the attempts of the dead letters of such records if they fail again."""


def _attempts(dead_letters: Iterable[ExistingDeadLetter], complete_files: Collection[str]) -> _Attempts:
    """Look up dead letters by their places in files that are as they were, and in others by their ids."""
    attempts: defaultdict[tuple[str, int | str | None], deque[int]] = defaultdict(deque)
    for letter in dead_letters:
        key = letter.position if letter.source_uri in complete_files else letter.doc_id
        attempts[letter.source_uri, key].append(letter.attempts)
    return attempts


def _to_annotate(
    record: InputRecord,
    document: ExistingDocument | None,
    existing: ExistingOutput,
    attempts: _Attempts,
    *,
    is_duplicate: bool,
) -> RecordToAnnotate:
    """Return why a record is annotated, given the existing document of its id, and the shard that holds its parse."""
    if document is None:
        before = attempts.get(record.place) or attempts.get((record.file.path, record.doc_id))
        return RecordToAnnotate(record, "retried" if before else "new", is_duplicate, before.popleft() if before else 0)
    if document.content.is_changed_to(record.content):
        return RecordToAnnotate(record, "changed")
    reason: Reason = "corrected" if record.has_current_content(document, existing) else "again"
    return RecordToAnnotate(record, reason, parse=document.shard if document.shard in existing.parsed else None)


def _find_by_text(
    items: Sequence[RecordToAnnotate], existing: ExistingOutput, missing: Mapping[str, ExistingDocument]
) -> dict[int, str]:
    """Return the ids of missing documents that records have the text of, by the number of the record, each id once."""
    # By their corrections as well: of copies of one text, each has its own.
    by_text: defaultdict[object, deque[str]] = defaultdict(deque)
    for doc_id, document in missing.items():
        if document.shard in existing.current:
            by_text[document.content, existing.corrected.get(doc_id)].append(doc_id)
    old_ids = {}
    for number, item in enumerate(items):
        record = item.record
        ids = by_text.get((record.content, existing.wanted.get(record.doc_id or "")))
        if ids and not item.is_duplicate and record.doc_id not in existing.documents:
            old_ids[number] = ids.popleft()
    return old_ids


def _renamed(old_id: str, record: InputRecord) -> RenamedDocument:
    return RenamedDocument(
        was=old_id,
        doc_id=record.doc_id or "",
        source_uri=record.file.path,
        source_position=record.scanned.position,
        is_extracted=record.content is not None and record.content.format is not None,
        meta=record.meta,
        meta_nulls=record.meta_nulls,
        encoding=record.encoding,
        encoding_confidence=record.encoding_confidence,
    )
