"""What an output folder already holds: its documents, dead letters, and the committed shards that hold them."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import chain
from typing import Any, NamedTuple

from concord.pipeline.documents import Part
from concord.pipeline.output.dead_letters import ExistingDeadLetter
from concord.pipeline.output.manifest import ShardReport, shard_ref
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.parquet_parts import iter_batches
from concord.pipeline.plan import ShardRef, Source
from concord.pipeline.readers.fields import DUPLICATE_ID

FINGERPRINT_BYTES = 16
"""The first bytes of a SHA-256. The chance that two of 1e9 texts agree in these bytes is 1e-21."""

_DOCUMENT_COLUMNS = ("doc_id", "text_sha256", "source_uri", "meta", "encoding", "parts", "n_chars")


class ExistingDocument(NamedTuple):
    """The part of a document's row that shows whether it has changed; text, meta and parts as fingerprints."""

    shard: ShardRef
    text: bytes
    source_uri: str
    meta: bytes
    encoding: str | None = None
    parts: bytes | None = None

    @property
    def content(self) -> tuple[bytes, bool]:
        """The text, and whether it was extracted and is thus stored."""
        return self.text, self.parts is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class ExistingOutput:
    """The committed shards that a new plan builds on.

    Attributes:
        shards: all of them.
        current: those whose rows this run would write just the same; documents of the others are tagged again.
        parsed: those whose parses this run would compute just the same.
        documents: by id. Where two shards hold one id, the row of the later generation.
        superseded: ids of a shard whose row in a later shard counts instead.
        dead_letters: by the shard that holds them.
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
    dead_letters: Mapping[ShardRef, Sequence[ExistingDeadLetter]]
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
        records.update(dead_letter.source_uri for dead_letter in chain.from_iterable(self.dead_letters.values()))
        return {uri for uri in self.unchanged_files(digests) if self.files[uri].records == records[uri]}

    def reusable_files(self, digests: Mapping[str, str]) -> set[str]:
        """Return the unchanged files all of whose records are held by current shards, so that none need be read.

        A file with a record that was denied its id is not among them when the file that has the id is gone or changed:
        the id may now be free.
        """
        unchanged = self.unchanged_files(digests)
        outdated = {document.source_uri for document in self.documents.values() if document.shard not in self.current}
        if self.corrected != self.wanted:
            corrected = (doc_id for doc_id in self.documents if not self.is_corrected_as(doc_id, doc_id))
            outdated.update(self.documents[doc_id].source_uri for doc_id in corrected)
        failed: dict[str | None, str] = {}
        denied: list[ExistingDeadLetter] = []
        for shard, dead_letters in self.dead_letters.items():
            for dead_letter in dead_letters:
                if shard not in self.current:
                    outdated.add(dead_letter.source_uri)
                if dead_letter.error == DUPLICATE_ID:
                    denied.append(dead_letter)
                else:
                    failed[dead_letter.doc_id] = dead_letter.source_uri
        for dead_letter in denied:
            document = self.documents.get(dead_letter.doc_id or "")
            if (failed.get(dead_letter.doc_id) if document is None else document.source_uri) not in unchanged:
                outdated.add(dead_letter.source_uri)
        return self.complete_files(digests) - outdated


def scan_existing(
    folder: OutputFolder,
    reports: Sequence[ShardReport],
    *,
    current: Collection[ShardRef],
    parsed: Collection[ShardRef],
    files: Mapping[str, Source],
    other_texts: Collection[ShardRef],
    corrected: Mapping[ShardRef, Mapping[str, str]],
    wanted: Mapping[str, str],
) -> ExistingOutput:
    """Read which documents and dead letters committed shards hold; of two that hold a document, the later counts.

    Args:
        corrected: by shard, the digests of the corrections in its documents' rows.
        current, parsed, files, other_texts, wanted: see ``ExistingOutput``.
    """
    documents: dict[str, ExistingDocument] = {}
    superseded: defaultdict[ShardRef, list[str]] = defaultdict(list)
    characters: Counter[ShardRef] = Counter()
    dead_letters: dict[ShardRef, list[ExistingDeadLetter]] = {}
    for report in reports:
        shard = shard_ref(report)
        uris: dict[str, str] = {}
        encodings: dict[str | None, str | None] = {}
        for batch in iter_batches(folder.part(report, "documents"), _DOCUMENT_COLUMNS):
            columns = (batch.column(name).to_pylist() for name in _DOCUMENT_COLUMNS)
            for doc_id, digest, uri, meta, encoding, parts, length in zip(*columns, strict=True):
                if doc_id in documents:
                    superseded[documents[doc_id].shard].append(doc_id)
                text = bytes.fromhex(digest)[:FINGERPRINT_BYTES]
                # Documents of one file share the strings of its path and encoding.
                source_uri, encoding = uris.setdefault(uri, uri), encodings.setdefault(encoding, encoding)
                documents[doc_id] = ExistingDocument(
                    shard, text, source_uri, fingerprint(meta), encoding, parts_fingerprint(parts)
                )
                characters[shard] += length
        if "errors" in report.files:
            batches = iter_batches(folder.part(report, "errors"), ExistingDeadLetter._fields)
            dead_letters[shard] = [ExistingDeadLetter(**row) for batch in batches for row in batch.to_pylist()]
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
        other_texts={document.shard for document in documents.values() if document.parts is None}.intersection(
            other_texts
        ),
        corrected={
            doc_id: corrected[document.shard][doc_id]
            for doc_id, document in documents.items()
            if doc_id in corrected[document.shard]
        },
        wanted=wanted,
    )


def parts_fingerprint(parts: Sequence[Part | Mapping[str, Any]] | None) -> bytes | None:
    """Return the bytes by which the parts of documents are compared, given as such or as rows; None for None."""
    if parts is None:
        return None
    return fingerprint(repr([tuple(part.values() if isinstance(part, Mapping) else part) for part in parts]))


def fingerprint(text: str | None) -> bytes:
    """Return the bytes by which texts and metas are compared; empty for None."""
    return b"" if text is None else sha256(text.encode()).digest()[:FINGERPRINT_BYTES]
