"""Which documents and dead letters of two annotated collections belong together."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from concord.pipeline.output.collection import Collection
from concord.pipeline.output.schema import SCHEMAS, calibration_of
from concord.workflows.diff.row_matching import Rows, match_rows

_LETTER_COLUMNS = ("doc_id", "source_uri", "position", "stage", "error", "message")


class ShardPair(NamedTuple):
    """Documents of the same text that a shard of A and one of B hold, side by side; shards by their place."""

    first_shard: int
    second_shard: int
    first: pa.Array
    second: pa.Array


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentPairs:
    """The documents of two collections, A and B.

    Attributes:
        first, second: all documents with ``doc_id``, ``text_sha256`` and ``shard``, the place of its shard.
        same: rows of both sides with the same text, those under another id among them.
        renamed: rows of those under another id.
        changed: rows of both sides with the same id and another text.
        only_first, only_second: rows of documents that the other does not have.
        first_calibration, second_calibration: what the tables say of it, in the order of the shards.
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
        """Give the documents of the same text by the shards that hold them, A's shards in their order."""
        rows, others = self.same
        shards = np.stack([self.first["shard"].to_numpy()[rows], self.second["shard"].to_numpy()[others]])
        order = np.lexsort((rows, shards[1], shards[0]))
        for (first, second), places in groupby(order.tolist(), key=lambda place: tuple(shards[:, place].tolist())):
            chosen = np.fromiter(places, dtype=np.int64)
            yield ShardPair(
                first_shard=first,
                second_shard=second,
                first=ids(self.first, rows[chosen]),
                second=ids(self.second, others[chosen]),
            )


def ids(documents: pa.Table, rows: Rows) -> pa.Array:
    """Give the ids of documents by their rows."""
    return documents["doc_id"].take(pa.array(rows)).combine_chunks()


def pair_documents(first: Collection, second: Collection) -> DocumentPairs:
    """Match documents by id, and those that are left by text, of equal texts the first with the first.

    Memory is linear in the number of documents, a hundred bytes each.

    Raises:
        IntegrityError: when a part cannot be read.
    """
    documents, first_calibration = _documents(first)
    others, second_calibration = _documents(second)
    by_id = match_rows(documents, others, keys=["doc_id"])
    alike = _alike(documents, others, by_id.first, by_id.second, column="text_sha256")
    by_text = match_rows(
        documents.take(pa.array(by_id.only_first)), others.take(pa.array(by_id.only_second)), keys=["text_sha256"]
    )
    renamed = by_id.only_first[by_text.first], by_id.only_second[by_text.second]
    return DocumentPairs(
        first=documents,
        second=others,
        same=(
            np.concatenate([by_id.first[alike], renamed[0]]),
            np.concatenate([by_id.second[alike], renamed[1]]),
        ),
        renamed=renamed,
        changed=(by_id.first[~alike], by_id.second[~alike]),
        only_first=by_id.only_first[by_text.only_first],
        only_second=by_id.only_second[by_text.only_second],
        first_calibration=first_calibration,
        second_calibration=second_calibration,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class LetterChanges:
    """Dead letters of A and B.

    Attributes:
        first, second: how many there are.
        same: how many are dead letters of one reason in both.
        reasons: (stage, error) -> how many A and B have.
        gained, lost: those that only B and only A has, or has for another reason, as rows of the table of errors; with
            ``before`` or ``after``: what the same record is on the other side, ``annotated``, another reason, or
            ``absent``.
    """

    first: int
    second: int
    same: int
    reasons: Mapping[tuple[str, str], tuple[int, int]]
    gained: list[dict[str, Any]]
    lost: list[dict[str, Any]]


def pair_letters(first: Collection, second: Collection, pairs: DocumentPairs) -> LetterChanges:
    """Match dead letters by document, or by file and position where a record has no id.

    Raises:
        IntegrityError: when a part cannot be read.
    """
    letters, others = _letters(first), _letters(second)
    matches = match_rows(letters, others, keys=["record"])
    alike = _alike(letters, others, matches.first, matches.second, column="reason")
    counts, other_counts = (Counter(zip(*_columns(it, "stage", "error"), strict=True)) for it in (letters, others))
    lost = _rows(letters, np.concatenate([matches.first[~alike], matches.only_first]))
    gained = _rows(others, np.concatenate([matches.second[~alike], matches.only_second]))
    other_reasons = others["reason"].take(pa.array(matches.second[~alike])).to_pylist()
    reasons = letters["reason"].take(pa.array(matches.first[~alike])).to_pylist()
    return LetterChanges(
        first=letters.num_rows,
        second=others.num_rows,
        same=int(alike.sum()),
        reasons={key: (counts[key], other_counts[key]) for key in sorted(counts | other_counts)},
        gained=_with_fate(gained, reasons, pairs.first, name="before"),
        lost=_with_fate(lost, other_reasons, pairs.second, name="after"),
    )


def _documents(collection: Collection) -> tuple[pa.Table, tuple[str, ...]]:
    parts = list(_parts(collection, "documents", ("doc_id", "text_sha256")))
    shards = np.repeat(np.arange(len(parts), dtype=np.int32), [part.num_rows for part in parts])
    calibrations = dict.fromkeys(calibration_of(part.schema) for part in parts[1:])
    # Shards are counted from 0; the part before them is the empty one.
    return _joined(parts).append_column("shard", pa.array(shards - 1)), tuple(filter(None, calibrations))


def _letters(collection: Collection) -> pa.Table:
    """Give all dead letters, with ``record``, by which they are matched, and ``reason``."""
    letters = _joined(list(_parts(collection, "errors", _LETTER_COLUMNS)))
    place = pc.binary_join_element_wise(letters["source_uri"], letters["position"].cast(pa.string()), "\0")
    reason = pc.binary_join_element_wise(letters["stage"], letters["error"], ": ")
    return letters.append_column("record", pc.coalesce(letters["doc_id"], place)).append_column("reason", reason)


def _parts(collection: Collection, table: str, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Read a table of every shard, after an empty one, so that there is always one."""
    yield SCHEMAS[table].empty_table().select(list(columns))
    for place in range(len(collection.manifest.shards)):
        yield collection.read(table, columns, shard=place)


def _joined(tables: Sequence[pa.Table]) -> pa.Table:
    # Files of several generations bear several signatures, which concat_tables would take for other schemas.
    return pa.concat_tables(table.replace_schema_metadata() for table in tables)


def _alike(first: pa.Table, second: pa.Table, rows: Rows, others: Rows, *, column: str) -> Any:
    """Say of pairs of rows whether a column is equal. Bool, as many as rows."""
    equal = pc.equal(first[column].take(pa.array(rows)), second[column].take(pa.array(others)))
    return np.asarray(equal.to_numpy(), dtype=bool)


def _columns(table: pa.Table, *names: str) -> list[list[str]]:
    return [table[name].to_pylist() for name in names]


def _rows(letters: pa.Table, rows: Rows) -> list[dict[str, Any]]:
    chosen: list[dict[str, Any]] = letters.select(_LETTER_COLUMNS).take(pa.array(rows)).to_pylist()
    return chosen


def _with_fate(
    letters: list[dict[str, Any]], reasons: list[str], documents: pa.Table, *, name: str
) -> list[dict[str, Any]]:
    """Say what the records are on the other side: the first ones dead letters of another reason."""
    named = pa.array([letter["doc_id"] for letter in letters], pa.string())
    annotated = pc.is_in(named, documents["doc_id"].combine_chunks(), skip_nulls=True).to_pylist()
    fates = [*reasons, *("annotated" if found else "absent" for found in annotated[len(reasons) :])]
    return [letter | {name: fate} for letter, fate in zip(letters, fates, strict=True)]
