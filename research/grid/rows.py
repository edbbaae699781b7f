"""The records of a row of a table: those of today's configuration, or else earlier ones with what has changed since."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from concord.models.evaluation.significance import f1
from research.grid.config import GridConfig, RowConfig, TableConfig
from research.grid.records import Record
from research.grid.settings import changes


@dataclass(frozen=True, kw_only=True, slots=True)
class RowRecords:
    """The records of one row, by seed."""

    row: RowConfig
    records: tuple[Record, ...]
    floor: tuple[float, float | None] | None
    changes: Mapping[int, list[str]] = field(default_factory=dict)
    """Seed -> what has changed in the configuration since its record; empty for current records."""

    def counts(self, split: str, measure: str, stage: str = "final") -> np.ndarray:
        """Return gold, predicted and correct counts, shape ``(seeds, units, 3)``."""
        return np.array([record["units"][split][stage][measure] for record in self.records])

    def scores(self, split: str, stage: str = "final") -> list[float]:
        """Return the F1, for token labels the accuracy, of each seed in percent."""
        return [float(score) for score in f1(self.counts(split, "all", stage).sum(axis=1))]

    def has(self, split: str) -> bool:
        """Return whether every record has scores on a split."""
        return bool(self.records) and all(split in record["units"] for record in self.records)

    def values(self, *keys: str) -> list[Any]:
        """Return a value of the records, by the keys that lead to it; nothing of records without it."""
        found = []
        for record in self.records:
            value: Any = record
            for key in keys:
                value = value.get(key) if isinstance(value, Mapping) else None
            if value is not None:
                found.append(value)
        return found

    @property
    def is_below_floor(self) -> bool:
        """Whether the score on dev is below that of a simple system."""
        return self.floor is not None and statistics.mean(self.scores("dev")) < self.floor[0]


def row_records(table: TableConfig, row: RowConfig, records: Mapping[str, Record], grid: GridConfig) -> RowRecords:
    """Find the records of a row.

    Records of an earlier configuration are left out as soon as one seed was trained by today's. If none was, only those
    of the configuration with the most seeds count, so that no mean is over two configurations. A row that is scored on
    another corpus than it was trained on has no floor: the row of the same training without the change tells whether
    that training succeeded.
    """
    runs = [table.run(row, seed) for seed in table.seeds] if row.not_applicable is None else []
    found = {
        run.seed: (records[run.name], changes(records[run.name], run, grid)) for run in runs if run.name in records
    }
    groups: dict[tuple[Any, ...], list[int]] = {}
    for seed, (record, listed) in found.items():
        # What has changed does not say which revision of the code it was.
        revision = record.get("settings", {}).get("revision")
        groups.setdefault((revision, *listed) if listed else (), []).append(seed)
    chosen = groups.get(()) or max(groups.values(), key=len, default=[])
    found = {seed: found[seed] for seed in chosen}
    return RowRecords(
        row=row,
        records=tuple(record for record, _ in found.values()),
        floor=grid.corpora[row.corpus or table.corpus].floor if row.scored_on is None else None,
        changes={seed: listed for seed, (_, listed) in found.items() if listed},
    )
