"""What is left to train, and how long it takes by the records of similar runs."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from research.grid.config import GridConfig, Run, runs_of
from research.grid.records import Record
from research.grid.settings import changes, settings_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Remaining:
    """The runs of one table that have to be trained."""

    table: str
    runs: int
    """All runs of the table."""
    missing: Sequence[Run]
    earlier: Sequence[Run]
    """Runs whose record is of an earlier configuration."""
    seconds: float
    """Processor time of both; runs that share nothing with a record count as 0."""


def remaining(grid: GridConfig, tables: Iterable[str], records: Mapping[str, Record]) -> list[Remaining]:
    """Return what is left of each table; a run of several tables counts for the first."""
    seen: set[str] = set()
    found = []
    for table in tables:
        runs = [run for run in runs_of(grid, [table]) if run.name not in seen]
        seen.update(run.name for run in runs)
        missing = [run for run in runs if run.name not in records]
        earlier = [run for run in runs if run.name in records and changes(records[run.name], run, grid)]
        seconds = sum(estimate_seconds(run, grid, records) for run in (*missing, *earlier))
        found.append(Remaining(table=table, runs=len(runs), missing=missing, earlier=earlier, seconds=seconds))
    return found


def estimate_seconds(run: Run, grid: GridConfig, records: Mapping[str, Record]) -> float:
    """Return the processor time of a run: that of an epoch of similar runs, times its epochs.

    Similar are the same system on the same corpus and representation, with any seed; or else other systems of the same
    tagger there; or else the same tagger with this representation anywhere.
    """
    same = [
        record for record in records.values() if (record["tagger"], record["profile"]) == (run.row.tagger, run.profile)
    ]
    there = [record for record in same if record["corpus"] == run.corpus]
    own = [record for record in there if record["run"].rpartition(".")[0] == run.name.rpartition(".")[0]]
    nearest = own or there or same
    if not nearest:
        return 0.0
    # A training that was interrupted has no processor time, but a wall time of all its epochs.
    epoch = statistics.mean((record["cpu_seconds"] or record["train_seconds"]) / record["epochs"] for record in nearest)
    return float(epoch * settings_of(run, grid)["fit"]["epochs"])
