"""What is new, changed, renamed, tried again or removed in an input, compared with what the output folder holds.

A record needs no annotation when its id exists with the same text, or the same bytes that its text is extracted from,
in a current shard. Its rows then stay where they are, byte for byte; where its file, name or meta differ, they are
copied with the new ones. A record whose id does not exist is looked up in the same way among the documents that are
gone, so a renamed file costs no annotation.

The position of a record within its file is not compared: a line that moved is unchanged.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import islice
from typing import Literal, NamedTuple, Self

from concord.pipeline.config import AnnotateConfig, ReaderConfig
from concord.pipeline.documents import Document
from concord.pipeline.identity import find_differences
from concord.pipeline.job import ResolvedJob
from concord.pipeline.output.collection import read_dead_letters
from concord.pipeline.output.manifest import CommitRecord
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.parquet_parts import iter_batches
from concord.pipeline.plan import Plan, RenamedDocument, ShardRef, Source
from concord.pipeline.planning.inputs import InputFile
from concord.pipeline.readers.base import DUPLICATE_ID
from concord.pipeline.readers.read_file import (
    content_sha256,
    format_of,
    is_extracted,
    libraries_of,
    read_records,
    scan_file,
)
from concord.pipeline.readers.records import ScannedRecord

FINGERPRINT_BYTES = 16
"""The first bytes of a SHA-256. The chance that two of 1e9 texts agree in these bytes is 1e-21."""

_DOCUMENT_COLUMNS = ("doc_id", "text_sha256", "source_uri", "meta", "encoding", "source_sha256", "n_chars")


def fingerprint(text: str | None) -> bytes:
    """Return the bytes by which texts are compared; empty for None."""
    return b"" if text is None else sha256(text.encode()).digest()[:FINGERPRINT_BYTES]


def describe(meta: str | None, encoding: str | None) -> bytes:
    """Return what is compared of a document whose text is the same."""
    return fingerprint(f"{encoding} {meta}")


def source_fingerprint(digest: str, format: str) -> bytes:
    """Return what an extracted text is compared by, given the SHA-256 in hex of what it is extracted from."""
    return fingerprint(f"{format} {digest}")


@dataclass(kw_only=True, slots=True, eq=False)
class ExistingShard:
    """A committed shard, compared with what this run would write.

    Attributes:
        plan: the plan that it was last a part of.
        is_current: whether it would write the rows just the same; documents of other shards are tagged again.
        has_parses: whether it would compute the parses just the same.
        other_texts: whether raw texts are stored that it would not store, or the other way round.
        ids: of its documents, also of those whose row in a later shard counts instead.
        characters: how much text it holds, in code points.
    """

    report: CommitRecord
    plan: Plan
    is_current: bool = True
    has_parses: bool = True
    other_texts: bool = False
    ids: list[str] = field(default_factory=list)
    characters: int = 0

    @property
    def ref(self) -> ShardRef:
        """The reference by which plans name it."""
        return ShardRef(shard=self.report.shard, generation=self.report.generation)


class ExistingDocument(NamedTuple):
    """The part of a document's row that shows whether it has changed.

    Attributes:
        content: the fingerprint of its text, or of the bytes that this is extracted from.
        described: that of its meta and encoding.
        is_current: whether the rows would be the same if its content is.
        corrections: the digest of the corrections in its rows, if it has any.
    """

    shard: ExistingShard
    content: bytes
    source_uri: str
    described: bytes
    is_extracted: bool = False
    is_current: bool = True
    corrections: str | None = None


class ExistingDeadLetter(NamedTuple):
    """A dead letter of a committed shard.

    Attributes:
        stays: whether it is left as it is where its record is as it was. One that lacks only a free id is looked at
            whenever its file is read.
        attempts: those that it has if its record fails again.
    """

    shard: ExistingShard
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
        documents: by id. Where two shards hold one id, the row of the later generation.
        files: the input files that would have the same records, as they were annotated, by path.
        complete: those of which every record is among the documents and dead letters, and not in a part that was lost.
        corrections: by id, the digest of the corrections that the rows of documents should have.
        reasons: why rows are not current, in plain words.
    """

    shards: Sequence[ExistingShard] = ()
    documents: Mapping[str, ExistingDocument] = field(default_factory=dict)
    dead_letters: Sequence[ExistingDeadLetter] = ()
    files: Mapping[str, Source] = field(default_factory=dict)
    complete: Set[str] = frozenset()
    corrections: Mapping[str, str] = field(default_factory=dict)
    reasons: Sequence[str] = ()

    def unchanged_files(self, digests: Mapping[str, str]) -> set[str]:
        """Return the files that are as they were, given the SHA-256 in hex of the files of the input by path."""
        return {uri for uri, file in self.files.items() if digests.get(uri) == file.sha256}

    def reusable_files(self, unchanged: Set[str]) -> Set[str]:
        """Return the unchanged files all of whose records stay in current shards, so that none need be read.

        A file with a record that was denied its id is not among them when the file that has the id is gone or changed:
        the id may now be free.
        """
        outdated = {
            document.source_uri
            for doc_id, document in self.documents.items()
            if not document.is_current or document.corrections != self.corrections.get(doc_id)
        }
        outdated.update(dead_letter.source_uri for dead_letter in self.dead_letters if not dead_letter.stays)
        failed = {letter.doc_id: letter.source_uri for letter in self.dead_letters if not letter.lacks_id}
        for dead_letter in self.dead_letters:
            document = self.documents.get(dead_letter.doc_id or "")
            owner = failed.get(dead_letter.doc_id) if document is None else document.source_uri
            if dead_letter.lacks_id and owner not in unchanged:
                outdated.add(dead_letter.source_uri)
        return (unchanged & self.complete) - outdated


def read_existing(
    job: ResolvedJob, base: Plan | None, unfinished: Plan | None, *, corrections: Mapping[str, str]
) -> ExistingOutput:
    """Read what a finished generation, and a later one that was interrupted, have committed, for another plan.

    Of two shards that hold a document, the later counts.

    Args:
        corrections: see ``ExistingOutput``.
    """
    folder, config = job.folder, job.config
    committed: dict[ShardRef, ExistingShard] = {}
    reasons: list[str] = []
    plans = [plan for plan in (base, unfinished) if plan is not None]
    for plan in plans:
        finished = folder.finished_shards(plan)
        for rows in (rows for shard in plan.shards if shard.index in finished for rows in shard.carries):
            committed.pop(ShardRef(shard=rows.shard, generation=rows.generation), None)
        differences = find_differences(plan.row_settings, job.row_settings)
        reasons += differences
        has_parses = not any(line.startswith(("parser:", "parser.")) for line in differences)
        for report in finished.values():
            shard = ExistingShard(report=report, plan=plan, is_current=not differences, has_parses=has_parses)
            committed[shard.ref] = shard
    documents: dict[str, ExistingDocument] = {}
    dead_letters: list[ExistingDeadLetter] = []
    # Of a shard that was rewritten by a run whose plan is lost, only the later state counts.
    newest = {shard.report.shard: shard for shard in committed.values() if shard.is_current}
    for plan in plans:
        sources, outdated = {source.uri: source for source in plan.sources}, _outdated_formats(plan, config)
        if outdated:
            reasons.append("texts are extracted with other settings of the reader, or by other releases of libraries")
        for shard in (shard for shard in committed.values() if shard.plan is plan):
            shard.is_current = newest.get(shard.report.shard) is shard
            documents.update(_read_documents(folder, shard, sources, outdated))
            # Extracted texts are stored in any case.
            shard.other_texts = plan.config.output.keep_text != config.output.keep_text and not all(
                documents[doc_id].is_extracted for doc_id in shard.ids
            )
            for letter in read_dead_letters(folder, [shard.report]):
                lacks_id = letter.error == DUPLICATE_ID
                is_chosen = not lacks_id and config.planning.retry in ("all", letter.stage)
                stays, attempts = shard.is_current and not is_chosen, is_chosen * (letter.attempts + 1)
                place = letter.source_uri, letter.position
                dead_letters.append(ExistingDeadLetter(shard, letter.doc_id, *place, stays, lacks_id, attempts))
    records = Counter(document.source_uri for document in documents.values())
    records.update(dead_letter.source_uri for dead_letter in dead_letters)
    files = _known_files(base, unfinished, config)
    complete = {uri for uri, source in files.items() if source.records == records[uri]}
    if unfinished is not None:
        # It may hold a record that is a dead letter of the finished generation as well.
        files = {uri: files[uri] for uri in complete}
    return ExistingOutput(
        shards=list(committed.values()),
        documents=documents,
        dead_letters=dead_letters,
        files=files,
        complete=complete,
        corrections=corrections,
        reasons=list(dict.fromkeys(reasons)),
    )


def _outdated_formats(plan: Plan, config: AnnotateConfig) -> set[str]:
    """Return the formats of a plan's files from which a run with this configuration would extract other texts.

    Whether attachments are read changes no text of a message.
    """
    now = libraries_of(plan.libraries)
    then, here = (
        {**settings.reader.deciding_values(), "attachments": None, "format": None} for settings in (plan.config, config)
    )
    formats = filter(is_extracted, {source.format for source in plan.sources})
    return {format for format in formats if then != here or plan.libraries.get(format) != now.get(format)}


def _read_documents(
    folder: OutputFolder, shard: ExistingShard, sources: Mapping[str, Source], outdated: Collection[str]
) -> Iterator[tuple[str, ExistingDocument]]:
    """Yield the documents of a shard by their ids, and note these and its characters.

    Args:
        sources: the files of its plan, by path.
        outdated: the formats from which this run would extract other texts.
    """
    for batch in iter_batches(folder.part(shard.report, "documents"), _DOCUMENT_COLUMNS):
        columns = (batch.column(name).to_pylist() for name in _DOCUMENT_COLUMNS)
        for doc_id, digest, path, meta, encoding, extracted_from, length in zip(*columns, strict=True):
            # Documents share the string of their file's path.
            uri, format = (sources[path].uri, sources[path].format) if path in sources else (path, "")
            content = bytes.fromhex(digest)[:FINGERPRINT_BYTES]
            if extracted_from is not None:
                content = source_fingerprint(extracted_from, format)
            shard.ids.append(doc_id)
            shard.characters += length
            yield (
                doc_id,
                ExistingDocument(
                    shard,
                    content,
                    uri,
                    describe(meta, encoding),
                    is_extracted=extracted_from is not None,
                    is_current=shard.is_current and not (extracted_from and format in outdated),
                    corrections=shard.plan.corrected.get(doc_id),
                ),
            )


def _known_files(base: Plan | None, unfinished: Plan | None, config: AnnotateConfig) -> dict[str, Source]:
    """Return the input files of which a finished generation holds every record, and a later one found no other content.

    How many records a limit leaves to a file depends on all files before it, and with other settings of the reader, or
    by another reader or release of a library, the same file may have other records or texts.
    """
    plans = [plan for plan in (base, unfinished) if plan is not None]
    reader = config.reader.deciding_values()
    is_read_alike = all(plan.config.reader.deciding_values() == reader for plan in plans)
    if base is None or base.config.limit is not None or config.limit is not None or not is_read_alike:
        return {}
    later = {source.uri: source.sha256 for source in plans[-1].sources}
    libraries = libraries_of(base.libraries)
    return {
        source.uri: source
        for source in base.sources
        if later.get(source.uri) == source.sha256
        and (config.reader.format != "auto" or format_of(source.uri) in (None, source.format))
        and base.libraries.get(source.format) == libraries.get(source.format)
    }


Reason = Literal["new", "retried", "changed", "corrected", "again"]


class InputRecord(NamedTuple):
    """A record of the input, and whether and why it is annotated.

    Attributes:
        number: of the record in its file, from 0.
        doc_id: always there for a record that can be read.
        content: as in ``ExistingDocument``; None for a record that cannot be read.
        document: with its text, until it is known whether it is annotated; None where texts are extracted.
        reason: ``again`` for an unchanged document that another tagger, parser or configuration made; else as the
            fields of Changes.
        is_duplicate: whether its id belongs to another record.
        attempts: how often it has been tried again, this time included.
        parse: the shard that holds its parse, if one does.
    """

    file: InputFile
    number: int
    scanned: ScannedRecord
    doc_id: str | None
    content: bytes | None = None
    document: Document | None = None
    reason: Reason = "new"
    is_duplicate: bool = False
    attempts: int = 0
    parse: ShardRef | None = None

    @property
    def place(self) -> tuple[str, int]:
        """Its file and position."""
        return self.file.path, self.scanned.position

    @property
    def shown(self) -> str:
        """Its id, or its place if it cannot be read."""
        return self.scanned.doc_id or f"{self.file.name}:{self.scanned.position}"

    def has_row_of(self, document: ExistingDocument) -> bool:
        """Tell whether what an existing row says besides the text is true of this record."""
        if document.is_extracted or self.document is None:
            return document.source_uri == self.file.path
        described = describe(self.document.meta, self.document.encoding)
        return (document.source_uri, document.described) == (self.file.path, described)

    def renamed_from(self, old_id: str, document: ExistingDocument) -> RenamedDocument:
        """Return that an existing document, of the same text, is now this one."""
        uri, position = self.place
        now = self.document or Document(doc_id=self.doc_id or "", text="", source_uri=uri, source_position=position)
        return RenamedDocument(was=old_id, now=replace(now, text=""), is_extracted=document.is_extracted)

    def without_text(self) -> Self:
        """Return the record without the text of its document, which would take memory."""
        return self if self.document is None else self._replace(document=replace(self.document, text=""))


class InputScan:
    """Goes through the records of files.

    Attributes:
        found: how many records a file has, and whether the last of them stands for the rest of it, by its path.
    """

    def __init__(self, config: ReaderConfig) -> None:
        self.found: dict[str, tuple[int, bool]] = {}
        self._config = config

    def read(
        self, files: Iterable[InputFile], *, limit: int | None, digests: Mapping[str, str] | None = None
    ) -> Iterator[InputRecord]:
        """Read the records of files, up to a limit.

        Args:
            digests: SHA-256 in hex of the files, by path; without, texts are not read, since none is compared.
        """
        for file in files:
            if limit == 0:
                return
            records = self._scan(file, limit) if digests is None else self._read(file, limit, digests[file.path])
            count, is_lost = 0, False
            for record in records:
                count, is_lost = count + 1, record.scanned.loses_file
                yield record
            self.found[file.path] = count, is_lost
            limit = None if limit is None else limit - count

    def _scan(self, file: InputFile, limit: int | None) -> Iterator[InputRecord]:
        scanned = scan_file(file.path, format=file.format, name=file.name, config=self._config, fault=file.fault)
        for number, record in enumerate(islice(scanned, limit)):
            yield InputRecord(file, number, record, record.doc_id, None if record.doc_id is None else b"")

    def _read(self, file: InputFile, limit: int | None, file_digest: str) -> Iterator[InputRecord]:
        if is_extracted(file.format):
            for found in self._scan(file, limit):
                if found.doc_id is not None:
                    # None for what cannot be unpacked.
                    digest = found.scanned.source_sha256 or content_sha256(file.path, file_digest, self._config)
                    content = source_fingerprint(digest, file.format) if digest else None
                    found = found._replace(content=content)
                yield found
            return
        records = read_records(
            file.path, format=file.format, name=file.name, config=self._config, limit=limit, fault=file.fault
        )
        for number, (record, outcome) in enumerate(records):
            if isinstance(outcome, Document):
                yield InputRecord(file, number, record, outcome.doc_id, fingerprint(outcome.text), outcome)
            else:
                yield InputRecord(file, number, record, outcome.doc_id)


@dataclass(frozen=True, kw_only=True, slots=True)
class InputDiff:
    """What is to be done about an input.

    Attributes:
        to_annotate: in the order of the input; may be passed once.
        reused: ids of existing documents whose rows are reused.
        renamed: the reused ones whose name, file or meta changes, by the shard that holds them.
        removed: ids of existing documents that the input no longer has.
        kept: file and position of the dead letters that stay as they are.
    """

    to_annotate: Iterable[InputRecord]
    reused: Collection[str] = ()
    renamed: Mapping[ExistingShard, Sequence[RenamedDocument]] = field(default_factory=dict)
    removed: Collection[str] = ()
    kept: Collection[tuple[str, int]] = ()


def annotate_all(records: Iterable[InputRecord]) -> Iterator[InputRecord]:
    """Yield every record of an input of which nothing is annotated."""
    taken: set[bytes] = set()
    for record in records:
        # Fingerprints take less memory than ids; that of a record without an id is empty.
        key = fingerprint(record.doc_id)
        yield record._replace(is_duplicate=True) if key in taken else record
        if key:
            taken.add(key)


def diff_input(
    existing: ExistingOutput,
    records: Iterable[InputRecord],
    *,
    reused_files: Collection[str],
    unchanged_files: Collection[str] = (),
) -> InputDiff:
    """Compare the records of an input with the existing documents, in linear time.

    Args:
        records: of all other files, in the order of the input; each is looked at once.
        reused_files: files that are not read: all their documents and dead letters stay. Of two records with one id
            theirs keeps it.
        unchanged_files: files in which the dead letters that stay are left out of the input.
    """
    reused = {doc_id for doc_id, document in existing.documents.items() if document.source_uri in reused_files}
    staying = {
        letter.place: letter
        for letter in existing.dead_letters
        if letter.stays and (letter.source_uri in unchanged_files or letter.source_uri in reused_files)
    }
    kept = {place for place, letter in staying.items() if not letter.lacks_id or letter.source_uri in reused_files}
    owners = (letter.doc_id for letter in staying.values() if letter.doc_id is not None and not letter.lacks_id)
    seen = reused | (set(owners) - existing.documents.keys())
    attempts: defaultdict[tuple[str, int | str | None], deque[int]] = defaultdict(deque)
    for letter in existing.dead_letters:
        if letter.place not in kept:
            # In a file that has changed, places mean nothing.
            key = letter.position if letter.source_uri in unchanged_files else letter.doc_id
            attempts[letter.source_uri, key].append(letter.attempts)
    renamed: defaultdict[ExistingShard, list[RenamedDocument]] = defaultdict(list)
    to_annotate: list[InputRecord] = []
    for record in records:
        if record.place in kept:
            continue
        doc_id, document = record.doc_id or "", None
        is_duplicate = record.content is not None and doc_id in seen
        if is_duplicate and record.place in staying:
            kept.add(record.place)
            continue
        if record.content is not None and not is_duplicate:
            seen.add(doc_id)
            document = existing.documents.get(doc_id)
        if document is None:
            before = attempts.get(record.place) or attempts.get((record.file.path, record.doc_id))
            item = record._replace(is_duplicate=is_duplicate)
            item = item._replace(reason="retried", attempts=before.popleft()) if before else item
        elif (reason := _reason(record, document, existing.corrections.get(doc_id))) is not None:
            has_parse = reason != "changed" and document.shard.has_parses
            item = record._replace(reason=reason, parse=document.shard.ref if has_parse else None)
        else:
            reused.add(doc_id)
            if not record.has_row_of(document):
                renamed[document.shard].append(record.renamed_from(doc_id, document))
            continue
        to_annotate.append(item.without_text())
    missing = {doc_id: document for doc_id, document in existing.documents.items() if doc_id not in seen}
    old_ids = _find_by_text(to_annotate, existing, missing)
    for number, old_id in old_ids.items():
        reused.add(old_id)
        document = missing[old_id]
        renamed[document.shard].append(to_annotate[number].renamed_from(old_id, document))
    return InputDiff(
        to_annotate=[record for number, record in enumerate(to_annotate) if number not in old_ids],
        reused=reused,
        renamed=renamed,
        removed=missing.keys() - reused,
        kept=kept,
    )


def _reason(record: InputRecord, document: ExistingDocument, corrections: str | None) -> Reason | None:
    """Return why the record of an existing document is annotated again; None if its rows are reused."""
    if record.content != document.content:
        return "changed"
    if not document.is_current:
        return "again"
    return None if corrections == document.corrections else "corrected"


def _find_by_text(
    records: Sequence[InputRecord], existing: ExistingOutput, missing: Mapping[str, ExistingDocument]
) -> dict[int, str]:
    """Return the ids of missing documents that records have the text of, by the number of the record, each id once."""
    # By their corrections as well: of copies of one text, each has its own.
    by_text: defaultdict[tuple[bytes | None, str | None], deque[str]] = defaultdict(deque)
    for doc_id, document in missing.items():
        if document.is_current:
            by_text[document.content, document.corrections].append(doc_id)
    old_ids = {}
    for number, record in enumerate(records):
        ids = by_text.get((record.content, existing.corrections.get(record.doc_id or "")))
        if ids and not record.is_duplicate and record.doc_id not in existing.documents:
            old_ids[number] = ids.popleft()
    return old_ids
