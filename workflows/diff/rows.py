"""Rows of two annotated collections: matched by a join, and the words at an offset."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from concord.pipeline.output.collection import Collection
from concord.pipeline.output.document_rows import spaced_text
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


class Matches(NamedTuple):
    """Rows of two tables that match, side by side in the first table's order, and those without a match, ascending."""

    first: Rows
    second: Rows
    only_first: Rows
    only_second: Rows


def match_rows(first: pa.Table, second: pa.Table, *, keys: Sequence[str]) -> Matches:
    """Match rows whose keys are equal; the k-th row of a key matches the k-th row of that key.

    Args:
        keys: columns without nulls, of the same type in both tables.
    """
    rows = np.arange(first.num_rows)
    if all(first[key].equals(second[key]) for key in keys):
        return Matches(rows, rows, rows[:0], rows[:0])
    joined = _numbered(first, keys, name="first").join(
        _numbered(second, keys, name="second"), keys=[*keys, "occurrence"], join_type="inner"
    )
    partners = np.full(first.num_rows, -1)
    partners[joined["first"].to_numpy()] = joined["second"].to_numpy()
    matched = rows[partners >= 0]
    only_second = np.delete(np.arange(second.num_rows), partners[matched])
    return Matches(matched, partners[matched], rows[partners < 0], only_second)


def join_rows(first: pa.Table, second: pa.Table, *, keys: Sequence[str]) -> tuple[pa.Table, ...]:
    """Return the rows of ``match_rows``: matching ones of both tables, and those without a match."""
    rows = match_rows(first, second, keys=keys)
    return tuple(table.take(pa.array(part)) for table, part in zip((first, second) * 2, rows, strict=True))


def _numbered(table: pa.Table, keys: Sequence[str], *, name: str) -> pa.Table:
    """Return the keys with each row's number in column ``name``, and how many rows of its key precede it."""
    numbers = pa.array(np.arange(table.num_rows))
    # One thread keeps the rows of a key in their order.
    groups = table.select(keys).append_column(name, numbers).group_by(keys, use_threads=False)
    rows = groups.aggregate([(name, "list")])
    lists = rows[f"{name}_list"].combine_chunks()
    key_of_row = pc.list_parent_indices(lists)
    occurrence = pc.subtract(numbers, lists.offsets.take(key_of_row))
    return (
        rows.select(keys).take(key_of_row).append_column(name, lists.flatten()).append_column("occurrence", occurrence)
    )


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
        selected = {}
        for name, table in tables.items():
            numbers = pc.index_in(table["doc_id"], ids)
            rows = table.drop_columns("doc_id").append_column("document", numbers).filter(pc.is_valid(numbers))
            selected[name] = rows.take(pc.sort_indices(rows, [("document", "ascending")])).combine_chunks()
        starts, ends = (text_positions(selected["tokens"], column) for column in OFFSETS)
        return cls(**selected, starts=starts, ends=ends)

    def words_of(self, starts: Rows, ends: Rows) -> tuple[Rows, Rows]:
        """Return for each stretch the first word that overlaps it, and the one after the last."""
        first = np.searchsorted(self.ends, starts, side="right")
        return first, np.maximum(np.searchsorted(self.starts, ends, side="left"), first + 1)

    def head_starts(self) -> pa.Array:
        """Return the offset of each word's head; -1 for a root, -2 in a document without trees."""
        heads = pc.fill_null(self.tokens["head"], -1).to_numpy()
        rows = np.arange(len(heads))
        of_head = np.where(heads > 0, rows - self.tokens["token_id"].to_numpy() + heads, rows)
        starts = self.tokens["start_char"].to_numpy()[of_head]
        return pa.array(np.where(heads > 0, starts, np.where(heads == 0, -1, -2)))

    def context(self, start: int, end: int, *, document: int) -> tuple[int, str]:
        """Return whole words around a stretch, any white space as spaces, after the offset of the first."""
        base = document << 32
        near = np.searchsorted(self.starts, base + max(0, start - CONTEXT), side="left")
        far = np.searchsorted(self.ends, base + end + CONTEXT, side="right")
        inner = self.words_of(np.array([base + start]), np.array([base + end]))
        first, stop = min(near, inner[0][0]), max(far, inner[1][0])
        rows = self.tokens.slice(first, stop - first)
        words = list(zip(rows["start_char"].to_pylist(), rows["text"].to_pylist(), strict=True))
        offset = words[0][0]
        return offset, spaced_text(words, start=offset)


def read_shard(collection: Collection, shard: int) -> Mapping[str, pa.Table]:
    """Read the columns that are compared, by the name of their table; candidates are left out."""
    report = collection.manifest.shards[shard]
    tables = {name: collection.read_rows(report, name, columns) for name, columns in _COLUMNS.items()}
    return tables | {"entities": without_candidates(tables["entities"])}


def text_positions(table: pa.Table, column: str) -> Rows:
    """Return document and offset combined in one number, which ascends through a table."""
    document, offset = (np.asarray(table[name].to_numpy(), dtype=np.int64) for name in ("document", column))
    return (document << 32) + offset
