"""The annotated collection read back, one document at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from concord.pipeline.errors import IntegrityError
from concord.pipeline.storage.paths import Place, readable

# Rows decoded at once; a document's rows stay together however many batches they span.
_BATCH_ROWS = 16_384


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


def read_documents(part: Place) -> Iterator[TokenDocument]:
    """Read a part of the table of tokens; a document without a token does not come up.

    Memory holds one document and one batch of rows; of a part in S3, all its bytes.

    Raises:
        IntegrityError: when the file is missing or broken.
    """
    doc_id: str | None = None
    pieces: list[pa.RecordBatch] = []
    for batch in rows(part, ("doc_id", "sent_id", *_COLUMNS)):
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


def rows(part: Place, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """Read some columns of a part, a batch at a time; pages are checked against bit rot.

    Raises:
        IntegrityError: when the file is missing or broken.
    """
    try:
        with pq.ParquetFile(readable(part), page_checksum_verification=True) as file:
            yield from file.iter_batches(batch_size=_BATCH_ROWS, columns=list(columns))
    except (OSError, pa.ArrowInvalid) as error:
        raise IntegrityError(f"{part}: cannot be read: {error}") from error


def read_part(part: Place, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a part, or some columns of it, at once; pages are checked against bit rot.

    Raises:
        IntegrityError: when the file is missing or broken.
    """
    try:
        with pq.ParquetFile(readable(part), page_checksum_verification=True) as file:
            return file.read(columns=None if columns is None else list(columns))
    except (OSError, pa.ArrowException) as error:
        raise IntegrityError(f"{part}: cannot be read: {error}; check the folder with 'concord verify'") from error


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
