"""Rows of two annotated collections: tables read shard by shard, rows matched by key, and look-ups by offset."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from concord.pipeline.output.collection import Collection
from concord.pipeline.output.schema import SCHEMAS
from concord.pipeline.output.tables import without_candidates

Rows = NDArray[np.int64]
"""Row numbers of a table."""
CONTEXT = 70
"""Code points of text shown on each side of an entity."""
OFFSETS = ("start_char", "end_char")
KEYS = ("document", *OFFSETS)
"""What sentences, words and entities are matched by."""
WORD_COLUMNS = ("word", "lemma", "upos", "xpos", "feats", "head", "deprel", "draft_ner", "ner")
_COLUMNS = {
    "sentences": ("doc_id", *OFFSETS),
    "tokens": ("doc_id", "sent_id", "token_id", *OFFSETS, "text", *WORD_COLUMNS, "ner_prob", "refined"),
    "entities": ("doc_id", "sent_id", *OFFSETS, "text", "label", "confidence", "refined", "source"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Matches:
    """Matching rows of two tables.

    Attributes:
        first, second: the rows that match, side by side, in the first table's order.
        only_first, only_second: the rows without a match, ascending.
    """

    first: Rows
    second: Rows
    only_first: Rows
    only_second: Rows


def match_rows(first: pa.Table, second: pa.Table, *, keys: Sequence[str]) -> Matches:
    """Match rows whose keys are equal; the k-th row of a key matches the k-th row of that key.

    Args:
        keys: columns without nulls, of the same type in both tables.
    """
    if all(first[key].equals(second[key]) for key in keys):
        rows = np.arange(first.num_rows, dtype=np.int64)
        return Matches(first=rows, second=rows, only_first=rows[:0], only_second=rows[:0])
    joined = _numbered(first, keys, name="first").join(
        _numbered(second, keys, name="second"), keys=[*keys, "occurrence"], join_type="full outer"
    )
    in_first, in_second = pc.is_valid(joined["first"]), pc.is_valid(joined["second"])
    both = joined.filter(pc.and_(in_first, in_second)).select(["first", "second"]).sort_by("first")
    return Matches(
        first=_rows(both["first"]),
        second=_rows(both["second"]),
        only_first=np.sort(_rows(joined.filter(pc.invert(in_second))["first"])),
        only_second=np.sort(_rows(joined.filter(pc.invert(in_first))["second"])),
    )


def rows_equal(first: pa.Table, second: pa.Table, rows: Rows, second_rows: Rows, *, column: str) -> NDArray[np.bool_]:
    """Return for each pair of rows whether the column has the same value in both."""
    equal = pc.equal(first[column].take(pa.array(rows)), second[column].take(pa.array(second_rows)))
    return np.asarray(equal.to_numpy(), dtype=bool)


class ShardReader:
    """Reads the tables of a collection's shards, and keeps the last shard: A and B are mostly cut alike."""

    def __init__(self, collection: Collection) -> None:
        self._collection = collection
        self._last: tuple[int, dict[str, pa.Table]] | None = None

    def read(self, shard: int) -> dict[str, pa.Table]:
        """Read the columns that are compared, by the name of their table."""
        if self._last is None or self._last[0] != shard:
            self._last = None  # frees its memory before the next shard is read
            report = self._collection.manifest.shards[shard]
            tables = {name: self._collection.read_rows(report, name, columns) for name, columns in _COLUMNS.items()}
            tables["entities"] = without_candidates(tables["entities"])
            self._last = shard, tables
        return self._last[1]


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardRows:
    """Rows of some documents on one side, ordered by the column ``document``, the document's number.

    Attributes:
        starts, ends: of the words, as ``text_positions`` returns them.
    """

    sentences: pa.Table
    tokens: pa.Table
    entities: pa.Table
    starts: Rows
    ends: Rows

    @classmethod
    def select(cls, tables: Mapping[str, pa.Table], ids: pa.Array) -> "ShardRows":
        """Select the rows of the documents with these ids, and number the documents by them."""
        selected = {name: _select(table, ids) for name, table in tables.items()}
        tokens = selected["tokens"]
        return cls(**selected, starts=text_positions(tokens, "start_char"), ends=text_positions(tokens, "end_char"))

    def words_of(self, starts: Rows, ends: Rows) -> tuple[Rows, Rows]:
        """Return for each stretch the first word that overlaps it, and the one after the last."""
        first = np.searchsorted(self.ends, starts, side="right")
        return first, np.maximum(np.searchsorted(self.starts, ends, side="left"), first + 1)

    def head_starts(self) -> pa.Array:
        """Return the offset of each word's head; -1 for a root, -2 in a run without trees."""
        heads = _rows(pc.fill_null(self.tokens["head"], -1))
        numbers, starts = (_rows(self.tokens[name]) for name in ("token_id", "start_char"))
        rows = np.arange(self.tokens.num_rows)
        of_head = starts[np.where(heads > 0, rows - numbers + heads, rows)]
        return pa.array(np.where(heads > 0, of_head, np.where(heads == 0, -1, -2)))

    def context(self, start: int, end: int, *, document: int) -> tuple[int, str]:
        """Return whole words around a stretch, any white space as spaces, after the offset of the first."""
        base = document << 32
        near = np.searchsorted(self.starts, base + max(0, start - CONTEXT), side="left")
        far = np.searchsorted(self.ends, base + end + CONTEXT, side="right")
        inner = self.words_of(np.array([base + start]), np.array([base + end]))
        first, stop = min(near, inner[0][0]), max(far, inner[1][0])
        words = self.tokens.slice(first, stop - first).select([*OFFSETS, "text"]).to_pylist()
        text, offset = "", words[0]["start_char"]
        for word in words:
            # The words of a multi-word token share their offsets; the text is written once.
            if word["start_char"] >= offset + len(text):
                text = text.ljust(word["start_char"] - offset) + word["text"]
        return offset, text


def read_shards(collection: Collection, table: str, columns: Sequence[str]) -> list[pa.Table]:
    """Read columns of a table, one part for each shard; a collection without shards has one empty part."""
    parts = [collection.read_rows(report, table, columns) for report in collection.manifest.shards]
    return parts or [SCHEMAS[table].empty_table().select(list(columns))]


def concatenate(parts: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of all parts of a table in one."""
    # Parts of several generations bear different signatures, which concat_tables would take for other schemas.
    return pa.concat_tables(part.replace_schema_metadata() for part in parts)


def text_positions(table: pa.Table, column: str) -> Rows:
    """Return document and offset combined in one number, which ascends through a table."""
    return (_rows(table["document"]) << 32) + _rows(table[column])


def _numbered(table: pa.Table, keys: Sequence[str], *, name: str) -> pa.Table:
    """Return the keys with each row's number in column ``name``, and how many rows of its key precede it."""
    numbered = table.select(list(keys)).append_column(name, pa.array(np.arange(table.num_rows, dtype=np.int64)))
    ordered = numbered.sort_by([(column, "ascending") for column in (*keys, name)])
    position = np.arange(table.num_rows, dtype=np.int64)
    is_first = np.ones(table.num_rows, dtype=bool)
    if table.num_rows:
        differs = [pc.not_equal(ordered[key].slice(1), ordered[key].slice(0, table.num_rows - 1)) for key in keys]
        is_first[1:] = np.logical_or.reduce([np.asarray(column.to_numpy(), dtype=bool) for column in differs])
    occurrence = position - np.maximum.accumulate(np.where(is_first, position, 0))
    return ordered.append_column("occurrence", pa.array(occurrence))


def _rows(column: pa.ChunkedArray) -> Rows:
    return np.asarray(column.to_numpy(), dtype=np.int64)


def _select(table: pa.Table, ids: pa.Array) -> pa.Table:
    numbers = pc.index_in(table["doc_id"], ids)
    selected = table.drop_columns("doc_id").append_column("document", numbers).filter(pc.is_valid(numbers))
    return selected.take(pc.sort_indices(selected, [("document", "ascending")])).combine_chunks()
