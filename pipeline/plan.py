"""Plans: which shards a run works on, and what each of them copies or annotates."""

from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Annotated, Any, Final, Literal, Self

import orjson
from pydantic import Field, ValidationError

from concord.models.config import Affects, Config, first_fault
from concord.pipeline.config import AnnotateConfig
from concord.pipeline.corrections.correction import Correction
from concord.pipeline.documents import Document
from concord.pipeline.errors import PlanError
from concord.pipeline.identity import ComponentIdentity, row_settings


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A stretch of one input file that holds whole records.

    Attributes:
        uri: absolute path of the file, or its URL.
        format: as ReaderConfig.format, but auto.
        start, end: half-open. jsonl, csv, tsv, mbox: bytes of the decompressed stream, cut at line ends; warc: bytes of
            the file; files of one document: 0 and the file's size in bytes; parquet, arrow, eml and others: numbers of
            rows or records.
        records: how many records the planner counted in the stretch.
        size: about how many bytes of input these have.
        duplicates: positions (see Document.source_position) of records whose id another record has.
        retries: position of each record that was a dead letter, and how often it has been tried again, this time
            included.
        name: the file's path below the input folder, with slashes. It names a record that has no id.
        fault: error and message of the dead letter that the last record is, where the planner could not open the file,
            or not find what follows.
    """

    uri: str
    format: str
    start: int
    end: int
    records: int
    size: int = 0
    duplicates: tuple[int, ...] = ()
    retries: tuple[tuple[int, int], ...] = ()
    name: str = ""
    fault: tuple[str, str] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RenamedDocument:
    """A document whose text exists already, under another name, at another place, with other meta or encoding.

    Attributes:
        was: the id of the existing document.
        now: what its row says from now on, without the text.
        is_extracted: whether its text was extracted; of ``now``, only id, file and position are known then.
    """

    was: str
    now: Document
    is_extracted: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class RowsToCopy:
    """A committed shard whose rows are reused.

    Attributes:
        shard, generation: of its commit record.
        records: how many of its documents and dead letters are reused.
        without: ids of the documents that are dropped.
        without_dead_letters: file and position of the dead letters that are dropped.
        renames: documents that are renamed on the way.
    """

    shard: int
    generation: int
    records: int
    without: tuple[str, ...] = ()
    without_dead_letters: tuple[tuple[str, int], ...] = ()
    renames: tuple[RenamedDocument, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether all rows are reused as they are."""
        return not (self.without or self.without_dead_letters or self.renames)


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardRef:
    """A committed shard: its number and the generation that wrote it."""

    shard: int
    generation: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """The unit of work and of commitment: pieces to annotate and rows to copy, in the order of the input.

    Attributes:
        carries: committed shards whose rows it copies.
        parses: committed shards that hold parses of its documents.
        corrections: of the documents that it annotates, in the order of the log.
    """

    index: int
    pieces: tuple[Piece, ...] = ()
    carries: tuple[RowsToCopy, ...] = ()
    parses: tuple[ShardRef, ...] = ()
    corrections: tuple[Correction, ...] = ()

    @property
    def name(self) -> str:
        """The shard's name in part files and commit records, as in ``00007``."""
        return f"{self.index:05d}"

    @property
    def records(self) -> int:
        """How many records the planner counted."""
        return sum(piece.records for piece in self.pieces) + sum(rows.records for rows in self.carries)

    @property
    def num_bytes(self) -> int:
        """About how many bytes of input it annotates."""
        return sum(piece.size for piece in self.pieces)


class Changes(Config):
    """How an input differs from the existing output, in documents."""

    new: int = 0
    """Records of which the collection has neither a document nor a dead letter."""
    retried: int = 0
    """Dead letters that are tried again: by planning.retry, with their changed file, or with all documents."""
    changed: int = 0
    """Existing documents whose text has changed."""
    corrected: int = 0
    """Existing documents with the same text whose corrections have changed."""
    moved: int = 0
    """Existing documents with the same text under another name, in another file, with other meta or encoding."""
    removed: int = 0
    """Existing documents that are no longer in the input."""
    again: int = 0
    """Unchanged documents that another tagger, parser or configuration made, and that are annotated again."""
    parsed: int = 0
    """Those of them whose stored parses are reused."""
    unchanged: int = 0
    """Documents whose rows are reused, moved ones included."""
    compacted: int = 0
    """Small shards that are merged."""
    texts: int = 0
    """Documents whose rows are reused and whose raw text is stored from now on, or no longer."""

    @property
    def description(self) -> str:
        """The changes in words, such as ``2 new, 1 removed``."""
        counts = {
            "new": self.new,
            f"dead letter{'s' * (self.retried != 1)} retried": self.retried,
            "changed": self.changed,
            "with other corrections": self.corrected,
            "moved or renamed": self.moved,
            "removed": self.removed,
            "to be tagged again": self.again,
            f"text{'s' * (self.texts != 1)} stored or dropped (output.keep_text)": self.texts,
            "small shards merged": self.compacted,  # never one alone
        }
        return ", ".join(f"{count:,} {name}" for name, count in counts.items() if count) or "no changes"


PLAN_VERSION: Final = 4


class Source(Config):
    """One input file as the planner found it."""

    uri: str
    """Absolute path, or URL."""
    format: str
    """As ReaderConfig.format, but auto."""
    sha256: str
    """SHA-256 of the bytes on disk, in hex; empty where they cannot be read."""
    records: int
    """How many records the plan takes from it."""
    is_lost: Annotated[bool, Affects("nothing")] = False
    """Whether its last record stands for the rest of the file, or all of it, which cannot be read."""


class Plan(Config):
    """A frozen run: equal plans give equal bytes on one build and CPU type."""

    plan_version: Literal[4] = PLAN_VERSION
    schema_version: int
    generation: int = 0
    config: AnnotateConfig
    """Resolved: all paths absolute."""
    parser: ComponentIdentity
    tagger: ComponentIdentity
    tagger_folder: Annotated[str, Affects("nothing")]
    """The folder of the tagger's bundle; the digest covers the bundle itself."""
    threads: int
    """Threads of a worker; the same for every executor."""
    sources: tuple[Source, ...]
    libraries: dict[str, str] = Field(default_factory=dict)
    """The releases of the libraries that extract texts, by the formats of the sources; others have none."""
    shards: tuple[Shard, ...]
    """What this generation works on."""
    reused: tuple[RowsToCopy, ...] = ()
    """Committed shards of earlier generations that stay untouched."""
    corrected: dict[str, str] = Field(default_factory=dict)
    """The digest of the corrections of each document that has any, by id; they are in its rows, if it has some."""
    changes: Annotated[Changes, Affects("nothing")] = Changes()
    """How the input differs from the existing output."""
    reasons: Annotated[tuple[str, ...], Affects("nothing")] = ()
    """Why unchanged documents are annotated again, if they are."""
    read: Annotated[int, Affects("nothing")]
    """Records of the whole input, as the planner counted them."""
    ignored: Annotated[int, Affects("nothing")] = 0
    """Files in the input's folders whose names have no known suffix."""
    etags: Annotated[dict[str, str], Affects("nothing")] = Field(default_factory=dict)
    """Etag or time of each input file behind a URL when it was planned; the digest covers the content."""

    def to_json(self) -> bytes:
        """Return the canonical JSON text: sorted keys, no white space, equal for equal plans."""
        return orjson.dumps(self.model_dump(mode="json"), option=orjson.OPT_SORT_KEYS)

    @classmethod
    def from_json(cls, content: bytes | str) -> Self:
        """Read a plan that ``to_json`` wrote.

        Raises:
            PlanError: when the text is not a plan of this version.
        """
        try:
            return cls.model_validate_json(content)
        except ValidationError as error:
            raise PlanError(
                f"expected a plan of version {PLAN_VERSION}, got one that does not fit ({first_fault(error)}): it was "
                "cut short, or written by another version; annotate the input again, into a new output folder"
            ) from None

    def for_workers(self) -> Self:
        """Return the part that workers need, whose size does not depend on the number of shards."""
        # The texts of rows that are copied may have to be read, and are read from these files alone.
        sources = self.sources if self.config.output.keep_text and self.generation > 0 else ()
        return self.model_copy(update={"sources": sources, "shards": (), "reused": (), "corrected": {}})

    @cached_property
    def digest(self) -> str:
        """SHA-256 in hex of everything that decides the output."""
        return sha256(orjson.dumps(self.deciding_values(), option=orjson.OPT_SORT_KEYS)).hexdigest()

    @property
    def row_settings(self) -> dict[str, Any]:
        """Everything that decides the rows of its documents."""
        return row_settings(self.config, self.parser, self.tagger, self.schema_version)

    @property
    def lost_files(self) -> tuple[str, ...]:
        """The paths of files that cannot be read, or not to their end."""
        return tuple(source.uri for source in self.sources if source.is_lost)
