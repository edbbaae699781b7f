"""The annotated collection read back, one document at a time."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, islice
from typing import Any, Generic, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from concord.pipeline.errors import IntegrityError
from concord.pipeline.output.collection import Collection
from concord.pipeline.output.manifest import ShardReport
from concord.pipeline.output.parquet_parts import iter_batches
from concord.pipeline.storage.output_paths import OutputPath


@dataclass(frozen=True, slots=True)
class AnnotatedToken:
    """One row of the table of tokens; fields as there, ``draft`` and ``label`` in BIO2, ``uncertainty`` in nats."""

    start_char: int
    end_char: int
    text: str
    upos: str | None
    head: int
    deprel: str
    draft: str
    label: str
    uncertainty: float
    refined: bool


@dataclass(frozen=True, slots=True)
class TokenSentence:
    """A sentence's tokens; ``sent_id`` is 0-based within the document."""

    doc_id: str
    sent_id: int
    tokens: tuple[AnnotatedToken, ...]


@dataclass(frozen=True, slots=True)
class TokenDocument:
    """A document's sentences, in order."""

    doc_id: str
    sentences: tuple[TokenSentence, ...]


_COLUMNS = (
    "start_char",
    "end_char",
    "text",
    "upos",
    "head",
    "deprel",
    "draft_ner",
    "ner",
    "uncertainty",
    "refined",
)


def read_documents(part: OutputPath) -> Iterator[TokenDocument]:
    """Read a part of the table of tokens; a document without a token does not come up.

    Memory holds one document and one batch of rows; of a part in S3, all its bytes.

    Raises:
        IntegrityError: when the file is missing or broken.
    """
    doc_id: str | None = None
    pieces: list[pa.RecordBatch] = []
    for batch in iter_batches(part, ("doc_id", "sent_id", *_COLUMNS)):
        for next_id, piece in _runs(batch):
            if doc_id is not None and next_id != doc_id:
                yield _document(doc_id, pieces)
                pieces = []
            doc_id = next_id
            pieces.append(piece)
    if doc_id is not None:
        yield _document(doc_id, pieces)


def written(tokens: Sequence[AnnotatedToken]) -> str:
    """Put words together as the raw text has them, with one blank for any white space between two."""
    return "".join(chain.from_iterable(spaced(tokens)))


def spaced(tokens: Sequence[AnnotatedToken]) -> Iterator[tuple[str, str]]:
    """Give for each word the blank before it, or nothing, and its text.

    The words of a multi-word token may share one stretch of the raw text; the further ones come out empty.
    """
    begin = end = -1
    for token in tokens:
        shares_token = (token.start_char, token.end_char) == (begin, end)
        gap = " " if 0 <= end < token.start_char else ""
        yield ("", "") if shares_token else (gap, token.text)
        begin, end = token.start_char, token.end_char


def _runs(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Cut a batch where doc_id changes."""
    encoded = pc.run_end_encode(batch.column("doc_id"))
    start = 0
    for doc_id, end in zip(encoded.values.to_pylist(), encoded.run_ends.to_pylist(), strict=True):
        yield doc_id, batch.slice(start, end - start)
        start = end


def _document(doc_id: str, pieces: list[pa.RecordBatch]) -> TokenDocument:
    table = pa.Table.from_batches(pieces)
    columns: list[list[Any]] = [table.column(name).to_pylist() for name in _COLUMNS]
    numbered = zip(table.column("sent_id").to_pylist(), zip(*columns, strict=True), strict=True)
    return TokenDocument(
        doc_id,
        tuple(
            TokenSentence(doc_id, sent_id, tuple(AnnotatedToken(*row) for _, row in group))
            for sent_id, group in groupby(numbered, key=lambda pair: pair[0])
        ),
    )


class DocumentRow(NamedTuple):
    """A row of the table of documents; fields as there."""

    doc_id: str
    source_uri: str
    source_position: int
    text_sha256: str
    n_chars: int
    n_sentences: int
    n_tokens: int
    n_entities: int
    tagger: str
    meta: str | None


class SentenceRow(NamedTuple):
    """A row of the table of sentences; fields as there."""

    sent_id: int
    start_char: int
    end_char: int
    n_tokens: int
    continues: bool


class TokenRow(NamedTuple):
    """A row of the table of tokens; fields as there."""

    token_id: int
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
    draft_ner: str
    ner: str
    ner_prob: float
    uncertainty: float
    refined: bool


class EntityRow(NamedTuple):
    """A row of the table of entities; fields as there."""

    entity_id: int
    sent_id: int
    start_char: int
    end_char: int
    start_token: int
    end_token: int
    text: str
    label: str
    confidence: float
    uncertainty: float
    refined: bool


@dataclass(frozen=True, slots=True)
class CollectedSentence:
    """A sentence, or a piece of an over-long one, with its words."""

    row: SentenceRow
    tokens: tuple[TokenRow, ...]


@dataclass(frozen=True, slots=True)
class CollectedDocument:
    """A document with all that was found in it, in order."""

    row: DocumentRow
    sentences: tuple[CollectedSentence, ...]
    entities: tuple[EntityRow, ...]


def read_collection(
    collection: Collection, *, wanted: Callable[[str], bool] = lambda doc_id: True
) -> Iterator[CollectedDocument]:
    """Read a collection's documents, in the manifest's order.

    Memory holds one document and one batch of rows of each table.

    Args:
        wanted: says by its id whether a document is to be read.

    Raises:
        IntegrityError: when a part is missing, broken, or too short.
    """
    for report in collection.manifest.shards:
        yield from _read_shard(collection.output, report, wanted)


def _read_shard(output: OutputPath, report: ShardReport, wanted: Callable[[str], bool]) -> Iterator[CollectedDocument]:
    places = {name: output / part.path for name, part in report.files.items()}
    sentences = _RowStream(places["sentences"], SentenceRow)
    tokens = _RowStream(places["tokens"], TokenRow)
    entities = _RowStream(places["entities"], EntityRow)
    for row in _all_rows(places["documents"], DocumentRow):
        if not wanted(row.doc_id):
            sentences.skip(row.n_sentences)
            tokens.skip(row.n_tokens)
            entities.skip(row.n_entities)
            continue
        yield CollectedDocument(
            row=row,
            sentences=tuple(
                CollectedSentence(sentence, tuple(tokens.take(sentence.n_tokens)))
                for sentence in sentences.take(row.n_sentences)
            ),
            entities=tuple(entities.take(row.n_entities)),
        )


RowT = TypeVar("RowT", bound=NamedTuple)


def _all_rows(part: OutputPath, kind: type[RowT]) -> Iterator[RowT]:
    for batch in iter_batches(part, kind._fields):
        yield from map(kind._make, _by_row(batch))


class _RowStream(Generic[RowT]):
    """The rows of a part, taken from the first on."""

    def __init__(self, part: OutputPath, kind: type[RowT]) -> None:
        self._part = part
        self._kind = kind
        self._batches = iter_batches(part, kind._fields)
        self._left = 0
        self._batch: pa.RecordBatch | None = None
        self._decoded: Iterator[tuple[Any, ...]] | None = None

    def take(self, count: int) -> Iterator[RowT]:
        """Give the next rows; they must be used up before anything else is asked for."""
        while count:
            self._advance()
            now = min(count, self._left)
            if self._decoded is None:
                self._decoded = _by_row(self._batch)
            yield from map(self._kind._make, islice(self._decoded, now))
            count, self._left = count - now, self._left - now

    def skip(self, count: int) -> None:
        """Pass over the next rows; batches that are passed over as a whole are not decoded."""
        while count:
            self._advance()
            now = min(count, self._left)
            if self._decoded is not None:
                next(islice(self._decoded, now, now), None)
            elif self._batch is not None:
                self._batch = self._batch.slice(now)
            count, self._left = count - now, self._left - now

    def _advance(self) -> None:
        while not self._left:
            self._batch = next(self._batches, None)
            if self._batch is None:
                raise IntegrityError(
                    f"{self._part}: ends before the last row that the table of documents counts; check the folder "
                    "with 'concord verify'"
                )
            self._left, self._decoded = self._batch.num_rows, None


def _by_row(batch: pa.RecordBatch | None) -> Iterator[tuple[Any, ...]]:
    columns = [] if batch is None else batch.columns
    return zip(*(column.to_pylist() for column in columns), strict=True)
