"""What the parts of a shard must hold, whatever made them; checked by ``verify``."""

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from concord.pipeline.output.manifest import ShardReport
from concord.pipeline.output.schema import SCHEMA_VERSION, SCHEMAS, schema_version
from concord.pipeline.storage.output_paths import OutputPath, arrow_source

Fault = tuple[OutputPath, str]

_Numbers = NDArray[np.int64]
_Texts = NDArray[np.object_]


def content_faults(report: ShardReport, paths: Mapping[str, OutputPath], *, seen: set[str]) -> Iterator[Fault]:
    """Read a shard's parts and give what is wrong with them.

    Args:
        paths: the parts' places by table name.
        seen: ids of the documents of earlier shards; those of this one are added.
    """
    tables: dict[str, pa.Table] = {}
    for name, path in paths.items():
        try:
            tables[name] = pq.ParquetFile(arrow_source(path), page_checksum_verification=True).read()
        except (pa.ArrowException, OSError) as error:
            yield path, f"cannot be read: {error}"
            return
        fault = _shape_fault(tables[name], name, rows=report.files[name].rows)
        if fault:
            yield path, fault
            return
    yield from _document_faults(report, tables, paths, seen=seen)
    for name, check in _CHECKS.items():
        yield from ((paths[name], problem) for problem in check(tables))


def _shape_fault(table: pa.Table, name: str, *, rows: int) -> str | None:
    if schema_version(table.schema) != SCHEMA_VERSION:
        return f"expected schema version {SCHEMA_VERSION}, got {schema_version(table.schema)}"
    if not table.schema.equals(SCHEMAS[name]):
        return f"its columns are not those of {name}"
    if table.num_rows != rows:
        return f"expected {rows} rows, got {table.num_rows}"
    return None


def _document_faults(
    report: ShardReport, tables: Mapping[str, pa.Table], paths: Mapping[str, OutputPath], *, seen: set[str]
) -> Iterator[Fault]:
    ids = tables["documents"]["doc_id"].to_pylist()
    if len(ids) != report.annotated + report.unchanged:
        held = f"{report.annotated} annotated and {report.unchanged} unchanged documents"
        yield paths["documents"], f"expected {held}, got {len(ids)}"
    letters = tables["errors"].num_rows if "errors" in tables else 0
    if letters != report.dead_letters:
        yield paths["documents"], f"expected {report.dead_letters} dead letters, got {letters}"
    for doc_id in ids:
        if doc_id in seen:
            yield paths["documents"], f"document {doc_id!r} stands twice"
        seen.add(doc_id)


def _sentence_problems(tables: Mapping[str, pa.Table]) -> Iterator[str]:
    documents, sentences, tokens = tables["documents"], tables["sentences"], tables["tokens"]
    counts = _numbers(documents, "n_sentences")
    if not _same(sentences["doc_id"], np.repeat(_texts(documents, "doc_id"), counts)):
        yield "its documents are not those of documents, in order"
    if not np.array_equal(_numbers(sentences, "sent_id"), _running(counts, first=0)):
        yield "sent_id does not count from 0 in each document"
    lengths = _numbers(sentences, "n_tokens")
    if lengths.sum() != tokens.num_rows or (lengths < 1).any():
        yield "n_tokens does not add up to the rows of tokens"
        return
    last = np.cumsum(lengths) - 1
    if not np.array_equal(_numbers(sentences, "start_char"), _numbers(tokens, "start_char")[last - lengths + 1]):
        yield "start_char is not that of the first word"
    if not np.array_equal(_numbers(sentences, "end_char"), _numbers(tokens, "end_char")[last]):
        yield "end_char is not that of the last word"


def _token_problems(tables: Mapping[str, pa.Table]) -> Iterator[str]:
    documents, sentences, tokens = tables["documents"], tables["sentences"], tables["tokens"]
    counts, lengths = _numbers(documents, "n_tokens"), _numbers(sentences, "n_tokens")
    if not _same(tokens["doc_id"], np.repeat(_texts(documents, "doc_id"), counts)):
        yield "its documents are not those of documents, in order"
        return
    if not np.array_equal(_numbers(tokens, "sent_id"), np.repeat(_numbers(sentences, "sent_id"), lengths)):
        yield "its sentences are not those of sentences, in order"
        return
    if not np.array_equal(_numbers(tokens, "token_id"), _running(lengths, first=1)):
        yield "token_id does not count from 1 in each sentence"
    heads = _numbers(tokens, "head")
    if (heads < 0).any() or (heads > np.repeat(lengths, lengths)).any():
        yield "a head is not in its sentence"
    starts, ends = _numbers(tokens, "start_char"), _numbers(tokens, "end_char")
    if (starts < 0).any() or (ends <= starts).any() or (ends > np.repeat(_numbers(documents, "n_chars"), counts)).any():
        yield "offsets leave the document"
    shared = (starts[1:] == starts[:-1]) & (ends[1:] == ends[:-1])
    first_words = np.cumsum(counts) - counts
    begins_document = np.zeros(len(starts), dtype=bool)
    begins_document[first_words[first_words < len(starts)]] = True
    if ((starts[1:] < ends[:-1]) & ~shared & ~begins_document[1:]).any():
        yield "words overlap or are out of order"
    if not np.array_equal(_lengths(tokens["text"]), ends - starts):
        yield "text is not as long as its offsets say"


def _entity_problems(tables: Mapping[str, pa.Table]) -> Iterator[str]:
    documents, entities = tables["documents"], tables["entities"]
    counts = _numbers(documents, "n_entities")
    if not _same(entities["doc_id"], np.repeat(_texts(documents, "doc_id"), counts)):
        yield "its documents are not those of documents, in order"
    if not np.array_equal(_numbers(entities, "entity_id"), _running(counts, first=0)):
        yield "entity_id does not count from 0 in each document"
    lengths = _numbers(entities, "end_char") - _numbers(entities, "start_char")
    if not np.array_equal(_lengths(entities["text"]), lengths):
        yield "text is not as long as its offsets say"


_CHECKS: dict[str, Callable[[Mapping[str, pa.Table]], Iterator[str]]] = {
    "sentences": _sentence_problems,
    "tokens": _token_problems,
    "entities": _entity_problems,
}


def _numbers(table: pa.Table, name: str) -> _Numbers:
    return np.asarray(table[name].to_numpy(), dtype=np.int64)


def _texts(table: pa.Table, name: str) -> _Texts:
    return np.asarray(table[name].to_pylist(), dtype=object)


def _lengths(texts: pa.ChunkedArray) -> _Numbers:
    return np.asarray(pc.utf8_length(texts).to_numpy(), dtype=np.int64)


def _same(column: pa.ChunkedArray, expected: _Texts) -> bool:
    return bool(column.to_pylist() == expected.tolist())


def _running(counts: _Numbers, *, first: int) -> _Numbers:
    """Give first, first+1, ... anew for each count: counts 2, 3 and first 0 give 0 1 0 1 2."""
    ends = np.cumsum(counts)
    return np.asarray(np.arange(counts.sum()) - np.repeat(ends - counts, counts) + first, dtype=np.int64)
