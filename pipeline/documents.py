"""The records that pass from stage to stage. Offsets count code points of the raw text, half-open."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self, TypeVar

from concord.models.data.outputs import Prediction
from concord.models.data.sentence import Passage

STAGES = ("read", "parse", "tag", "write")
"""The stages of a record, in order, as named in dead letters, timings, statistics and metrics."""


SentenceT = TypeVar("SentenceT")


class Part(NamedTuple):
    """A page, chapter or other part of a document whose text was extracted from a file.

    Attributes:
        kind: ``page``, ``chapter`` and so on.
        label: what the file calls it, as a page number or the title of a chapter.
        start: the offset at which it begins; it ends where the next one of its kind begins.
    """

    kind: str
    label: str
    start: int

    def __str__(self) -> str:
        return f"p. {self.label}" if self.kind == PAGE else self.label


class Lost(NamedTuple):
    """A page, chapter or the like of a document that could not be read although others could.

    Attributes:
        number: in the file, from 1; 0 for the document as a whole, where it has no word.
        error: a short stable reason, as of a dead letter.
        message: what was expected, what was found, what to do.
    """

    number: int
    error: str
    message: str


NO_TEXT = "no_text"
"""The reason of a document, or dead letter, without a word."""
PAGE = "page"
"""The kind of a part that is a page."""


def part_finder(rows: Iterable[Mapping[str, Any]] | None) -> Callable[[int], Part | None]:
    """Return a function that returns the part which holds an offset: a page, or a chapter in a document without pages.

    Args:
        rows: the parts of a document as its row holds them.
    """
    parts = [Part(**row) for row in rows or ()]
    parts = [part for part in parts if part.kind == PAGE] or parts

    def find(offset: int) -> Part | None:
        index = bisect_right(parts, offset, key=lambda part: part.start) - 1
        return parts[index] if index >= 0 else None

    return find


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """A document as it was read.

    Attributes:
        source_position: where the record starts: byte of the decompressed stream (jsonl, csv, tsv, mbox) or of the
            file (warc), row (parquet, arrow), 0 where the file is one document.
        meta: the record's other fields as one JSON object, or None.
        meta_nulls: the names of the fields that could not be stored and are null in ``meta``, as a JSON list, or None.
        encoding: in which the file was read; None where its format leaves no choice.
        encoding_confidence: 0..1, how sure a guessed encoding is; None where it was not guessed.
        replaced: how many characters U+FFFD of the record stand for bytes that are not of its encoding.
        parts: its pages, chapters and the like, in order, maybe none, where the text was extracted from the file; such
            a text is always stored. None where the file's own text is annotated.
        source_sha256: SHA-256 in hex of the bytes that the text was extracted from; None with ``parts``.
        lost: what of it could not be read.
    """

    doc_id: str
    text: str
    source_uri: str
    source_position: int
    meta: str | None = None
    meta_nulls: str | None = None
    encoding: str | None = None
    encoding_confidence: float | None = None
    replaced: int = 0
    parts: tuple[Part, ...] | None = None
    source_sha256: str | None = None
    lost: tuple[Lost, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class DeadLetter:
    """A record that could not be annotated, and why.

    Attributes:
        position: as Document.source_position.
        stage: one of STAGES.
        error: a short stable reason such as ``invalid_utf8``, for counting.
        message: where, what was expected, what was found, what to do.
        attempts: how often it has been retried.
    """

    doc_id: str | None
    source_uri: str
    position: int
    stage: str
    error: str
    message: str
    attempts: int = 0

    @classmethod
    def for_document(
        cls, record: "Document | ParsedDocument | AnnotatedDocument", *, stage: str, error: str, message: str
    ) -> Self:
        """Build the dead letter of a document that was read; the message is prefixed with its id."""
        parsed = record.parsed if isinstance(record, AnnotatedDocument) else record
        document = parsed.document if isinstance(parsed, ParsedDocument) else parsed
        return cls(
            doc_id=document.doc_id,
            source_uri=document.source_uri,
            position=document.source_position,
            stage=stage,
            error=error,
            message=f"document {document.doc_id!r}: {message}",
        )


class ParsedWord(NamedTuple):
    """A syntactic word, with the fields of CoNLL-U. Heads are 1-based in the sentence; the root has head 0.

    Without trees heads and relations are None, and without tags the lemma, parts of speech and features as well.
    """

    start_char: int
    end_char: int
    text: str
    word: str
    lemma: str | None
    upos: str | None
    xpos: str | None
    feats: str | None
    head: int | None
    deprel: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ParsedSentence:
    """A sentence; ``continues`` marks a later piece of a sentence that was too long to parse at once."""

    words: tuple[ParsedWord, ...]
    continues: bool = False


def join_pieces(sentences: Iterable[SentenceT], continues: Callable[[SentenceT], bool]) -> list[list[SentenceT]]:
    """Group each sentence with the pieces that continue it."""
    groups: list[list[SentenceT]] = []
    for sentence in sentences:
        if continues(sentence) and groups:
            groups[-1].append(sentence)
        else:
            groups.append([sentence])
    return groups


@dataclass(frozen=True, kw_only=True, slots=True)
class ParsedDocument:
    """A document with its sentences, each with at least one word."""

    document: Document
    sentences: tuple[ParsedSentence, ...]
    passages: tuple[Passage, ...] = field(default=(), compare=False, repr=False)
    """What the encoder has read to parse it, with the features that a tagger over the same encoder needs."""

    @property
    def words(self) -> int:
        """How many words it has."""
        return sum(len(sentence.words) for sentence in self.sentences)


@dataclass(frozen=True, kw_only=True, slots=True)
class AnnotatedDocument:
    """A parsed document with one prediction per sentence, in the same order and of the same length.

    Attributes:
        in_fp32: the predictions of fp32, where the run computes in bf16 and compares this document.
        canonical: whom or what entities name, by start and end, where a person said so.
    """

    parsed: ParsedDocument
    predictions: tuple[Prediction, ...]
    in_fp32: tuple[Prediction, ...] | None = None
    canonical: Mapping[tuple[int, int], str] = field(default_factory=dict)
