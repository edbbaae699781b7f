"""The page of results: tables with mean and spread, the papers' figures beside them, and answers to their claims.

Everything comes from the records of runs; the page says what was not run.
"""

import statistics
from collections.abc import Iterable, Sequence

import numpy as np

from concord.models.evaluation.significance import Difference, f1, paired_bootstrap
from concord.workflows.grid.config import ClaimConfig, GridConfig, RowConfig, TableConfig
from concord.workflows.grid.records import Record

NOT_RUN = "not run"
PAIR_RESAMPLES = 2000
FEWEST_SEEDS = 3
INTRODUCTION = (
    "Made by `make grid` from [the records of the runs](../tests/benchmarks/results/grid.jsonl), one line a run, by "
    "[conf/grid.yaml](../conf/grid.yaml); not written by hand. Strict span F1 in percent (accuracy for token "
    "labels), mean ± standard deviation over the seeds. The best epoch and the threshold are chosen on dev; test "
    "is scored once a run and chooses nothing. Within a table all systems have the same data, representation and "
    "number of epochs; training takes one thread, dev scores after each epoch counted in. *Names that agree* is "
    "the share of a recurring name's mentions in a test document that carry its most frequent label. ▼ marks a "
    "figure below that of a CRF over words, affixes and shapes: such a system is undertrained or broken and "
    "supports no claim. A row of one seed has no spread: where it differs from another by less than three seeds "
    "of one system do, the difference says nothing."
)
PAPERS_NOTE = (
    "The papers' own figures stand in columns of their own and cannot be compared with ours by the point: their "
    "corpora are other ones, they trained for a hundred epochs or more, and their word vectors (GloVe, ELMo) "
    "cannot be had here."
)
CLAIMS_NOTE = (
    "Each difference is in points of F1 on the test set (where a corpus has none, on dev, on which epoch and "
    f"threshold were chosen too), with the interval in which 95 % of {PAIR_RESAMPLES:,} resamples of documents and "
    f"seeds lie. *Yes* and *no* need an interval on one side of 0 and {FEWEST_SEEDS} seeds on both sides."
)
COLUMNS = (
    *("system", "parameters", "seeds", "dev", "dev draft", "test", "test draft", "names that agree (drafts)"),
    "CPU minutes",
)
ANSWERS = {"better": "yes", "worse": "no", "undecided": "undecided"}


def render_page(grid: GridConfig, records: Sequence[Record]) -> str:
    """Return the page as Markdown."""
    parts = ["# Results", INTRODUCTION, PAPERS_NOTE]
    for table in grid.tables.values():
        parts += [f"## {table.title}", *([table.note] if table.note else []), _table(table, grid, records)]
    if grid.claims:
        rows = [_claim_row(claim, grid, records) for claim in grid.claims]
        claims = _markdown(["claim", "measured on", "figure", "answer"], rows)
        parts += ["## The papers' claims, on this data", CLAIMS_NOTE, claims]
    if grid.missing:
        missing = _markdown(["corpus", "why"], list(grid.missing.items()))
        parts += ["## Corpora of the papers that are not here", missing]
    return "\n\n".join(parts) + "\n"


def compare(better: Sequence[Record], worse: Sequence[Record], *, measure: str) -> Difference:
    """Compare the runs of two systems on test, or on dev where a run has no test set.

    Args:
        measure: as in ClaimConfig; ``draft`` compares the final labels of `better` with its drafts.
    """
    split = "test" if all("test" in record["units"] for record in (*better, *worse)) else "dev"

    def counts(found: Sequence[Record], name: str, stage: str = "final") -> np.ndarray:
        return np.array([record["units"][split][stage][name] for record in found])

    if measure == "draft":
        return paired_bootstrap(counts(better, "all"), counts(better, "all", "draft"), resamples=PAIR_RESAMPLES)
    if measure == "recurring_less_once":
        first, second = (
            np.concatenate([counts(found, "recurring"), counts(found, "once")], axis=-1) for found in (better, worse)
        )
        return paired_bootstrap(first, second, resamples=PAIR_RESAMPLES, score=_f1_difference)
    return paired_bootstrap(counts(better, measure), counts(worse, measure), resamples=PAIR_RESAMPLES)


def _f1_difference(sums: np.ndarray) -> np.ndarray:
    difference: np.ndarray = f1(sums[..., :3]) - f1(sums[..., 3:])
    return difference


def _table(table: TableConfig, grid: GridConfig, records: Sequence[Record]) -> str:
    rows = [
        [*_cells(grid, table, row, records), *(figures.get(row.own_key, "–") for figures in table.papers.values())]
        for row in table.rows
    ]
    return _markdown([*COLUMNS, *table.papers], rows)


def _cells(grid: GridConfig, table: TableConfig, row: RowConfig, records: Sequence[Record]) -> list[str]:
    name = row.name or row.own_key
    if row.not_applicable is not None:
        return [name, "", "", f"n/a: {row.not_applicable}", *[""] * 5]
    found = _records_of(table, row, records)
    if not found:
        return [name, "", "0", NOT_RUN, *[""] * 5]
    dev_floor, test_floor = grid.corpora[row.corpus or table.corpus].floor or (None, None)
    two_stages = found[0]["best"]["threshold"] is not None
    agreeing = _agreement(found, "consistency")
    if agreeing and two_stages:
        agreeing += f" ({_agreement(found, 'draft_consistency')})"
    minutes = [seconds / 60 for record in found if (seconds := record["cpu_seconds"]) is not None]
    return [
        name,
        f"{found[0]['parameters'] / 1e6:.2f} M",
        str(len(found)),
        _score(found, "dev", "final", floor=dev_floor),
        _score(found, "dev", "draft") if two_stages else "",
        _score(found, "test", "final", floor=test_floor),
        _score(found, "test", "draft") if two_stages else "",
        agreeing,
        f"{statistics.mean(minutes):.1f}" if minutes else "",
    ]


def _records_of(table: TableConfig, row: RowConfig, records: Iterable[Record]) -> list[Record]:
    """Return the records of one row of a table, by seed."""
    wanted = {table.run(row, seed).name for seed in table.seeds}
    return sorted((record for record in records if record["run"] in wanted), key=lambda record: int(record["seed"]))


def _score(found: Sequence[Record], split: str, stage: str, floor: float | None = None) -> str:
    """Return mean and standard deviation over the seeds, marked where the mean is below the floor."""
    if any(split not in record for record in found):
        return ""
    values = [_f1(record, split, stage) for record in found]
    mean = statistics.mean(values)
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{mean:.1f}{spread}{' ▼' if floor is not None and mean < floor else ''}"


def _f1(record: Record, split: str, stage: str) -> float:
    """Return the F1, for token labels the accuracy, of a run's final labels or of its drafts."""
    return float(f1(np.array(record["units"][split][stage]["all"]).sum(axis=0)))


def _agreement(found: Sequence[Record], measure: str) -> str:
    """Return the mean share of agreeing mentions on test; nothing where a run has none."""
    shares = [share for record in found if (share := record.get("test", {}).get(measure, {}).get("share")) is not None]
    return f"{statistics.mean(shares):.1f} %" if shares and len(shares) == len(found) else ""


def _claim_row(claim: ClaimConfig, grid: GridConfig, records: Sequence[Record]) -> list[str]:
    table = grid.tables[claim.table]
    place = table.title
    if claim.untestable is not None:
        return [claim.text, place, "", f"not testable: {claim.untestable}"]
    rows = {row.own_key: row for row in table.rows}
    found = {key: _records_of(table, rows[key], records) for key in (claim.better, claim.worse) if key is not None}
    better = found[claim.better or ""]
    if claim.measure == "uncertainty":
        return [claim.text, place, *_uncertainty_ratio(better)]
    worse = better if claim.measure == "draft" else found[claim.worse or ""]
    if not better or not worse:
        return [claim.text, place, "", NOT_RUN]
    difference = compare(better, worse, measure=claim.measure)
    seeds = f"seeds {len(better)} and {len(worse)}" if worse is not better else f"seeds {len(better)}"
    figure = f"{difference.mean:+.1f} ({difference.low:+.1f} to {difference.high:+.1f}), {seeds}"
    below = [key for key, runs in found.items() if _is_below_floor(grid, table, rows[key], runs)]
    if below:
        return [claim.text, place, figure, f"not testable: {', '.join(below)} below the floor"]
    if min(len(better), len(worse)) < FEWEST_SEEDS:
        return [claim.text, place, figure, f"open: fewer than {FEWEST_SEEDS} seeds"]
    return [claim.text, place, figure, ANSWERS[difference.verdict]]


def _is_below_floor(grid: GridConfig, table: TableConfig, row: RowConfig, found: Sequence[Record]) -> bool:
    floor = grid.corpora[row.corpus or table.corpus].floor
    return floor is not None and statistics.mean(_f1(record, "dev", "final") for record in found) < floor[0]


def _uncertainty_ratio(found: Sequence[Record]) -> tuple[str, str]:
    split = "test" if found and all("test" in record for record in found) else "dev"
    ratios = [ratio for record in found if (ratio := record[split].get("uncertainty", {}).get("ratio")) is not None]
    if not ratios:
        return "", NOT_RUN
    figure = f"{statistics.mean(ratios):.1f} times ({min(ratios):.1f} to {max(ratios):.1f}), seeds {len(ratios)}"
    if len(ratios) < FEWEST_SEEDS:
        return figure, f"open: fewer than {FEWEST_SEEDS} seeds"
    return figure, "yes" if min(ratios) >= 10 else "no" if max(ratios) < 10 else "undecided"


def _markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
