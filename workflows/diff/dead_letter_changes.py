"""Dead letters of two annotated collections matched by record: which are the same, gained or lost."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from concord.pipeline.output.collection import Collection
from concord.workflows.diff.document_pairs import DocumentPairs
from concord.workflows.diff.row_matching import Rows, match_rows, rows_equal
from concord.workflows.diff.shard_rows import concatenate, read_shards

_COLUMNS = ("doc_id", "source_uri", "position", "stage", "error", "message")


@dataclass(frozen=True, kw_only=True, slots=True)
class DeadLetterChanges:
    """Dead letters of A and B.

    Attributes:
        first, second: how many there are.
        same: how many have the same reason in both.
        reasons: (stage, error) -> numbers in A and in B.
        gained, lost: dead letters that only B or only A has, or has for a different reason, as rows of the table of
            errors; ``before`` or ``after`` says what the record is on the other side: ``annotated``, another reason,
            or ``absent``.
    """

    first: int
    second: int
    same: int
    reasons: Mapping[tuple[str, str], tuple[int, int]]
    gained: list[dict[str, Any]]
    lost: list[dict[str, Any]]


def compare_dead_letters(first: Collection, second: Collection, pairs: DocumentPairs) -> DeadLetterChanges:
    """Match dead letters by document, or by file and position if the record has no id."""
    left, right = _read(first), _read(second)
    matches = match_rows(left, right, keys=["record"])
    equal = rows_equal(left, right, matches.first, matches.second, column="reason")
    counts, second_counts = (
        Counter(zip(table["stage"].to_pylist(), table["error"].to_pylist(), strict=True)) for table in (left, right)
    )
    lost = _rows(left, np.concatenate([matches.first[~equal], matches.only_first]))
    gained = _rows(right, np.concatenate([matches.second[~equal], matches.only_second]))
    reasons_after = right["reason"].take(pa.array(matches.second[~equal])).to_pylist()
    reasons_before = left["reason"].take(pa.array(matches.first[~equal])).to_pylist()
    return DeadLetterChanges(
        first=left.num_rows,
        second=right.num_rows,
        same=int(equal.sum()),
        reasons={key: (counts[key], second_counts[key]) for key in sorted(counts | second_counts)},
        gained=_with_counterpart(gained, reasons_before, pairs.first, name="before"),
        lost=_with_counterpart(lost, reasons_after, pairs.second, name="after"),
    )


def _read(collection: Collection) -> pa.Table:
    """Read all dead letters, with ``record``, by which they are matched, and ``reason``."""
    table = concatenate(read_shards(collection, "errors", _COLUMNS))
    address = pc.binary_join_element_wise(table["source_uri"], table["position"].cast(pa.string()), "\0")
    reason = pc.binary_join_element_wise(table["stage"], table["error"], ": ")
    return table.append_column("record", pc.coalesce(table["doc_id"], address)).append_column("reason", reason)


def _rows(table: pa.Table, rows: Rows) -> list[dict[str, Any]]:
    selected: list[dict[str, Any]] = table.select(_COLUMNS).take(pa.array(rows)).to_pylist()
    return selected


def _with_counterpart(
    rows: list[dict[str, Any]], reasons: Sequence[str], documents: pa.Table, *, name: str
) -> list[dict[str, Any]]:
    """Add what each record is on the other side; the first records are dead letters there, for these reasons."""
    ids = pa.array([row["doc_id"] for row in rows], pa.string())
    annotated = pc.is_in(ids, documents["doc_id"].combine_chunks(), skip_nulls=True).to_pylist()
    counterparts = [*reasons, *("annotated" if found else "absent" for found in annotated[len(reasons) :])]
    return [row | {name: counterpart} for row, counterpart in zip(rows, counterparts, strict=True)]
