"""What an output folder holds already: which documents, of which text, in which committed shards."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple

from concord.pipeline.output.dead_letters import ExistingDeadLetter
from concord.pipeline.output.manifest import ShardReport, shard_ref
from concord.pipeline.output.parquet_parts import iter_batches
from concord.pipeline.plan import ShardRef
from concord.pipeline.readers.fields import DUPLICATE_ID
from concord.pipeline.storage.output_paths import OutputPath

MARK_BYTES = 16
"""Of a SHA-256: two of 1e9 texts agree in so many by chance with a probability of 1e-21."""


class ExistingDocument(NamedTuple):
    """A document's row, as far as it tells whether the document has changed.

    Attributes:
        text, meta: their marks, as ``fingerprint`` gives them.
    """

    place: ShardRef
    text: bytes
    source_uri: str
    meta: bytes


class ExistingFile(NamedTuple):
    """An input file that has been annotated; ``sha256`` in hex, ``records`` as the planner counted them."""

    sha256: str
    records: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ExistingOutput:
    """The committed shards that a new plan builds on.

    Attributes:
        reports: what each has committed.
        current: those whose rows a run of today would give as well; the others' documents are to be tagged again.
        parsed: those whose parses a run of today would give as well.
        documents: by id; of an id that stands twice, the row of the latest generation.
        outlived: ids whose row in a shard is not the latest.
        letters: the dead letters that a shard holds.
        duplicates: ids that a file's records were refused, because another record had them.
        refused: the file of a record that has its id and is a dead letter all the same, by id.
        characters: how much text a shard holds, in code points.
        files: the input files as they were when what stands was made of them, by path.
    """

    reports: Mapping[ShardRef, ShardReport]
    current: frozenset[ShardRef]
    parsed: frozenset[ShardRef]
    documents: Mapping[str, ExistingDocument]
    outlived: Mapping[ShardRef, Sequence[str]]
    letters: Mapping[ShardRef, Sequence[ExistingDeadLetter]]
    duplicates: Mapping[str, Collection[str]]
    refused: Mapping[str, str]
    characters: Mapping[ShardRef, int]
    files: Mapping[str, ExistingFile]


def scan_existing(
    output: OutputPath,
    reports: Sequence[ShardReport],
    *,
    current: Collection[ShardRef],
    parsed: Collection[ShardRef],
    files: Mapping[str, ExistingFile],
) -> ExistingOutput:
    """Read which documents and dead letters some committed shards hold.

    Args:
        reports: later ones go before earlier ones where both hold a document.

    Raises:
        IntegrityError: when a part cannot be read.
    """
    documents: dict[str, ExistingDocument] = {}
    outlived: defaultdict[ShardRef, list[str]] = defaultdict(list)
    letters: dict[ShardRef, list[ExistingDeadLetter]] = {}
    duplicates: defaultdict[str, set[str]] = defaultdict(set)
    refused: dict[str, str] = {}
    characters: Counter[ShardRef] = Counter()
    for report in reports:
        place = shard_ref(report)
        for doc_id, document, size in _documents(output, report, place):
            if doc_id in documents:
                outlived[documents[doc_id].place].append(doc_id)
            documents[doc_id] = document
            characters[place] += size
        if "errors" in report.files:
            letters[place] = list(_letters(output, report))
            for letter in letters[place]:
                if letter.doc_id is not None and letter.error == DUPLICATE_ID:
                    duplicates[letter.source_uri].add(letter.doc_id)
                elif letter.doc_id is not None:
                    refused[letter.doc_id] = letter.source_uri
    return ExistingOutput(
        reports={shard_ref(report): report for report in reports},
        current=frozenset(current),
        parsed=frozenset(parsed),
        documents=documents,
        outlived=outlived,
        letters=letters,
        duplicates=duplicates,
        refused=refused,
        characters=characters,
        files=files,
    )


def fingerprint(text: str | None) -> bytes:
    """Give the mark by which texts and metas are compared; empty for None."""
    return b"" if text is None else sha256(text.encode()).digest()[:MARK_BYTES]


def _documents(output: OutputPath, report: ShardReport, place: ShardRef) -> Iterator[tuple[str, ExistingDocument, int]]:
    """Give id, row and code points of each document of a shard."""
    columns = ("doc_id", "text_sha256", "source_uri", "meta", "n_chars")
    uris: dict[str, str] = {}
    for batch in iter_batches(output / report.files["documents"].path, columns):
        for doc_id, digest, uri, meta, size in zip(*(batch.column(name).to_pylist() for name in columns), strict=True):
            mark = bytes.fromhex(digest)[:MARK_BYTES]
            yield doc_id, ExistingDocument(place, mark, uris.setdefault(uri, uri), fingerprint(meta)), size


def _letters(output: OutputPath, report: ShardReport) -> Iterator[ExistingDeadLetter]:
    for batch in iter_batches(output / report.files["errors"].path, ExistingDeadLetter._fields):
        yield from map(ExistingDeadLetter, *(batch.column(name).to_pylist() for name in ExistingDeadLetter._fields))
