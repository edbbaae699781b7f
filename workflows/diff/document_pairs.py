"""Documents of two annotated collections, A and B, matched by id and by text."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from concord.pipeline.output.collection import Collection
from concord.pipeline.output.schema import calibration_of
from concord.workflows.diff.row_matching import Rows, match_rows, rows_equal
from concord.workflows.diff.shard_rows import concatenate, read_shards


class ShardPair(NamedTuple):
    """Ids of the documents of the same text in a shard of A and one of B, side by side; shards by index."""

    first_shard: int
    second_shard: int
    first: pa.Array
    second: pa.Array


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentPairs:
    """The documents of A and B.

    Attributes:
        first, second: all documents with ``doc_id``, ``text_sha256`` and ``shard``, the index of their shard.
        same: rows of both sides with the same text, including those whose id differs.
        renamed: rows of those whose id differs.
        changed: rows of both sides with the same id and different texts.
        only_first, only_second: rows of documents that the other side does not have.
        first_calibration, second_calibration: the distinct calibrations that the tables name, in shard order.
    """

    first: pa.Table
    second: pa.Table
    same: tuple[Rows, Rows]
    renamed: tuple[Rows, Rows]
    changed: tuple[Rows, Rows]
    only_first: Rows
    only_second: Rows
    first_calibration: tuple[str, ...]
    second_calibration: tuple[str, ...]

    def by_shards(self) -> Iterator[ShardPair]:
        """Yield the documents of the same text by the shards that hold them, in the order of A's shards."""
        rows, second_rows = self.same
        shards = np.stack([self.first["shard"].to_numpy()[rows], self.second["shard"].to_numpy()[second_rows]])
        order = np.lexsort((rows, shards[1], shards[0]))
        for (first, second), places in groupby(order.tolist(), key=lambda place: tuple(shards[:, place].tolist())):
            chosen = np.fromiter(places, dtype=np.int64)
            yield ShardPair(
                first_shard=first,
                second_shard=second,
                first=ids(self.first, rows[chosen]),
                second=ids(self.second, second_rows[chosen]),
            )


def ids(documents: pa.Table, rows: Rows) -> pa.Array:
    """Return the ids of the documents in these rows."""
    return documents["doc_id"].take(pa.array(rows)).combine_chunks()


def pair_documents(first: Collection, second: Collection) -> DocumentPairs:
    """Match documents by id and the rest by text; of equal texts the first matches the first.

    Memory is linear in the number of documents, about a hundred bytes each.
    """
    left, first_calibration = _read(first)
    right, second_calibration = _read(second)
    by_id = match_rows(left, right, keys=["doc_id"])
    same_text = rows_equal(left, right, by_id.first, by_id.second, column="text_sha256")
    by_text = match_rows(
        left.take(pa.array(by_id.only_first)), right.take(pa.array(by_id.only_second)), keys=["text_sha256"]
    )
    renamed = by_id.only_first[by_text.first], by_id.only_second[by_text.second]
    return DocumentPairs(
        first=left,
        second=right,
        same=(
            np.concatenate([by_id.first[same_text], renamed[0]]),
            np.concatenate([by_id.second[same_text], renamed[1]]),
        ),
        renamed=renamed,
        changed=(by_id.first[~same_text], by_id.second[~same_text]),
        only_first=by_id.only_first[by_text.only_first],
        only_second=by_id.only_second[by_text.only_second],
        first_calibration=first_calibration,
        second_calibration=second_calibration,
    )


def _read(collection: Collection) -> tuple[pa.Table, tuple[str, ...]]:
    parts = read_shards(collection, "documents", ("doc_id", "text_sha256"))
    shards = np.repeat(np.arange(len(parts), dtype=np.int32), [part.num_rows for part in parts])
    calibrations = dict.fromkeys(calibration_of(part.schema) for part in parts)
    return concatenate(parts).append_column("shard", pa.array(shards)), tuple(filter(None, calibrations))
