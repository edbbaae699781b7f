"""Documents and dead letters of two annotated collections, A and B, matched by id, text or record."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from concord.pipeline.documents import DeadLetter
from concord.pipeline.output.collection import Collection
from concord.pipeline.output.schema import ERRORS, calibration_of
from concord.workflows.diff.rows import Rows, concatenate, match_rows, read_shards, rows_equal


class ShardPair(NamedTuple):
    """Ids of the documents of the same text in a shard of A and one of B, side by side; shards by index."""

    first_shard: int
    second_shard: int
    first: pa.Array
    second: pa.Array


class ListedDocuments(NamedTuple):
    """Ids of documents that are not the same in A and B; renamed ones as pairs."""

    renamed: Sequence[tuple[str, str]]
    changed: Sequence[str]
    only_first: Sequence[str]
    only_second: Sequence[str]


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
                first=_ids(self.first, rows[chosen]),
                second=_ids(self.second, second_rows[chosen]),
            )

    def list_first(self, count: int) -> ListedDocuments:
        """Return the ids of the first documents of each kind that are not the same in both."""

        def first_ids(documents: pa.Table, rows: Rows) -> list[str]:
            listed: list[str] = _ids(documents, rows[:count]).to_pylist()
            return listed

        before, after = first_ids(self.first, self.renamed[0]), first_ids(self.second, self.renamed[1])
        return ListedDocuments(
            renamed=list(zip(before, after, strict=True)),
            changed=first_ids(self.first, self.changed[0]),
            only_first=first_ids(self.first, self.only_first),
            only_second=first_ids(self.second, self.only_second),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangedDeadLetter(DeadLetter):
    """A dead letter of one side; on the other, its record is ``annotated``, ``absent`` or has another reason."""

    counterpart: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DeadLetterChanges:
    """Dead letters of A and B.

    Attributes:
        first, second: how many there are.
        same: how many have the same reason in both.
        reasons: (stage, error) -> numbers in A and in B.
        gained, lost: dead letters that only B or only A has, or has for a different reason.
    """

    first: int
    second: int
    same: int
    reasons: Mapping[tuple[str, str], tuple[int, int]]
    gained: Sequence[ChangedDeadLetter]
    lost: Sequence[ChangedDeadLetter]


def pair_documents(first: Collection, second: Collection) -> DocumentPairs:
    """Match documents by id and the rest by text; of equal texts the first matches the first.

    Memory is linear in the number of documents, about a hundred bytes each.
    """
    left, first_calibration = _read_documents(first)
    right, second_calibration = _read_documents(second)
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


def compare_dead_letters(first: Collection, second: Collection, pairs: DocumentPairs) -> DeadLetterChanges:
    """Match dead letters by document, or by file and position if the record has no id."""
    left, right = _read_dead_letters(first), _read_dead_letters(second)
    matches = match_rows(left, right, keys=["record"])
    equal = rows_equal(left, right, matches.first, matches.second, column="reason")
    counts, second_counts = (
        Counter(zip(table["stage"].to_pylist(), table["error"].to_pylist(), strict=True)) for table in (left, right)
    )
    before, after = matches.first[~equal], matches.second[~equal]
    return DeadLetterChanges(
        first=left.num_rows,
        second=right.num_rows,
        same=int(equal.sum()),
        reasons={key: (counts[key], second_counts[key]) for key in sorted(counts | second_counts)},
        gained=_changed(right, after, matches.only_second, left["reason"].take(pa.array(before)), pairs.first),
        lost=_changed(left, before, matches.only_first, right["reason"].take(pa.array(after)), pairs.second),
    )


def _ids(documents: pa.Table, rows: Rows) -> pa.Array:
    """Return the ids of the documents in these rows."""
    return documents["doc_id"].take(pa.array(rows)).combine_chunks()


def _read_documents(collection: Collection) -> tuple[pa.Table, tuple[str, ...]]:
    parts = read_shards(collection, "documents", ("doc_id", "text_sha256"))
    shards = np.repeat(np.arange(len(parts), dtype=np.int32), [part.num_rows for part in parts])
    calibrations = dict.fromkeys(calibration_of(part.schema) for part in parts)
    return concatenate(parts).append_column("shard", pa.array(shards)), tuple(filter(None, calibrations))


def _read_dead_letters(collection: Collection) -> pa.Table:
    """Read all dead letters, with ``record``, by which they are matched, and ``reason``."""
    table = concatenate(read_shards(collection, "errors", ERRORS.names))
    address = pc.binary_join_element_wise(table["source_uri"], table["position"].cast(pa.string()), "\0")
    reason = pc.binary_join_element_wise(table["stage"], table["error"], ": ")
    return table.append_column("record", pc.coalesce(table["doc_id"], address)).append_column("reason", reason)


def _changed(
    table: pa.Table, rows: Rows, unmatched: Rows, reasons: pa.Array, documents: pa.Table
) -> list[ChangedDeadLetter]:
    """Return dead letters that the other side has for other reasons, and then those whose record it has not so."""
    selected = table.drop_columns(["record", "reason"]).take(pa.array(np.concatenate([rows, unmatched])))
    annotated = pc.is_in(selected["doc_id"], documents["doc_id"].combine_chunks(), skip_nulls=True).to_pylist()
    counterparts = reasons.to_pylist()
    counterparts += ("annotated" if is_annotated else "absent" for is_annotated in annotated[len(rows) :])
    letters = zip(selected.to_pylist(), counterparts, strict=True)
    return [ChangedDeadLetter(**values, counterpart=counterpart) for values, counterpart in letters]
