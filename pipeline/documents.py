"""The records that pass from stage to stage. Offsets are code points of the raw text, half-open."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from concord.models.outputs import Prediction


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A stretch of one input file that holds whole records.

    Attributes:
        uri: absolute path of the file, or its URL.
        format: text, jsonl or parquet.
        start, end: half-open. jsonl: bytes of the decompressed stream, cut at line ends; text: 0 and the
            file's size in bytes; parquet: row numbers.
        records: how many records the planner counted in the stretch.
        duplicates: positions (see Document.source_position) whose id stood earlier in the collection.
        retries: position of each record that was a dead letter, and how often it has been tried again, now included.
        name: the file's path below the input folder, with slashes: what names a record that has no id.
    """

    uri: str
    format: str
    start: int
    end: int
    records: int
    duplicates: tuple[int, ...] = ()
    retries: tuple[tuple[int, int], ...] = ()
    name: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Move:
    """A document whose text stands already, under another name, at another place, or with another meta.

    Attributes:
        was: the id under which it stands.
        doc_id, source_uri, source_position, meta: what its row says from now on; see Document.
    """

    was: str
    doc_id: str
    source_uri: str
    source_position: int
    meta: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Carry:
    """A committed shard whose rows are taken over as they are.

    Attributes:
        shard, generation: which commit record.
        records: how many of its documents and dead letters are taken over.
        without: ids of the documents that are left behind.
        without_letters: files whose dead letters are left behind.
        retried: file and position of further dead letters that are left behind, because they are tried again.
        moves: documents that change their name or place on the way.
    """

    shard: int
    generation: int
    records: int
    without: tuple[str, ...] = ()
    without_letters: tuple[str, ...] = ()
    retried: tuple[tuple[str, int], ...] = ()
    moves: tuple[Move, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether nothing is left behind or changed."""
        return not (self.without or self.without_letters or self.retried or self.moves)


@dataclass(frozen=True, kw_only=True, slots=True)
class ParsePlace:
    """A committed shard that holds the parses of documents which are to be tagged again."""

    shard: int
    generation: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """The unit of work and of commitment: rows to take over and pieces to annotate, in the order of the input.

    Attributes:
        parses: where parses of its documents stand already.
    """

    index: int
    pieces: tuple[Piece, ...] = ()
    carries: tuple[Carry, ...] = ()
    parses: tuple[ParsePlace, ...] = ()

    @property
    def name(self) -> str:
        """The shard's name in part files and commit records, as in ``00007``."""
        return f"{self.index:05d}"

    @property
    def records(self) -> int:
        """How many records the planner counted."""
        return sum(piece.records for piece in self.pieces) + sum(carry.records for carry in self.carries)


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """One document as it was read.

    Attributes:
        source_position: where the record starts: byte of the decompressed stream (jsonl), row (parquet), 0 (text).
        meta: the record's other fields as one JSON object, or None.
    """

    doc_id: str
    text: str
    source_uri: str
    source_position: int
    meta: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class DeadLetter:
    """A record that could not be annotated, and why.

    Attributes:
        position: as Document.source_position.
        stage: read, parse, tag or write.
        error: a short stable reason such as ``invalid_utf8``, for counting.
        message: where, what was expected, what came, what to do.
        attempts: how often a retry has been tried.
    """

    doc_id: str | None
    source_uri: str
    position: int
    stage: str
    error: str
    message: str
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class ParsedWord:
    """One syntactic word; fields as in CoNLL-U, head 0 is the root, heads are 1-based in the sentence."""

    start_char: int
    end_char: int
    text: str
    word: str
    lemma: str | None
    upos: str | None
    xpos: str | None
    feats: str | None
    head: int
    deprel: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ParsedSentence:
    """One sentence; ``continues`` marks a further piece of an over-long sentence."""

    words: tuple[ParsedWord, ...]
    continues: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ParsedDocument:
    """A document with its sentences, each with at least one word."""

    document: Document
    sentences: tuple[ParsedSentence, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class AnnotatedDocument:
    """A parsed document with one prediction a sentence, in the same order and of the same length.

    Attributes:
        in_fp32: where the run computes in bf16 and compares this document: what fp32 says of it.
    """

    parsed: ParsedDocument
    predictions: tuple[Prediction, ...]
    in_fp32: tuple[Prediction, ...] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PartFile:
    """A committed file: path below the output folder, rows, bytes and sha256 in hex."""

    path: str
    rows: int
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardReport:
    """What became of a shard: the content of its commit record.

    Attributes:
        read: records counted by the planner, not by the reader.
        annotated, unchanged: documents annotated by this commit, and taken over from earlier ones.
        stats: counts and sums for the report, name -> number; equal for equal plans (no times in here).
    """

    shard: int
    generation: int
    read: int
    annotated: int
    unchanged: int
    dead_letters: int
    files: Mapping[str, PartFile] = field(default_factory=dict)
    stats: Mapping[str, float] = field(default_factory=dict)
