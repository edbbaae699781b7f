"""The page of results: tables with mean and spread, the papers' figures beside them, and the claims answered.

Everything is taken from the records of runs; what was not run is said to be so.
"""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from concord.models.evaluation.significance import Difference, f1, paired_bootstrap
from concord.workflows.grid.config import ClaimConfig, GridConfig, RowConfig, TableConfig

NOT_RUN = "not run"
PAIR_RESAMPLES = 2000
FEWEST_SEEDS = 3
Record = Mapping[str, Any]


def render_page(grid: GridConfig, records: Sequence[Record]) -> str:
    """Give the page as Markdown."""
    parts = [
        "# Results",
        "Made by `make grid` from [the records of the runs](../tests/benchmarks/results/grid), one JSON a run, by "
        "[conf/grid.yaml](../conf/grid.yaml); not written by hand. Strict span F1 in percent (accuracy for token "
        "labels), mean ± standard deviation over the seeds. The best epoch and the threshold are chosen on dev; test "
        "is scored once a run and chooses nothing. Within a table all systems have the same data, representation and "
        "number of epochs; training takes one thread, dev scores after each epoch counted in. *Names that agree* is "
        "the share of a recurring name's mentions in a test document that carry its most frequent label. ▼ marks a "
        "figure below that of a CRF over words, affixes and shapes: such a system is undertrained or broken and "
        "supports no claim. A row of one seed has no spread: where it differs from another by less than three seeds "
        "of one system do, the difference says nothing.",
        "The papers' own figures stand in columns of their own and cannot be compared with ours by the point: their "
        "corpora are other ones, they trained for a hundred epochs or more, and their word vectors (GloVe, ELMo) "
        "cannot be had here.",
    ]
    for table in grid.tables.values():
        parts += [f"## {table.title}", *([table.note] if table.note else []), _table(table, grid, records)]
    if grid.claims:
        parts += ["## The papers' claims, on this data", _claims_note(), _claims(grid, records)]
    if grid.missing:
        rows = [[corpus, reason] for corpus, reason in grid.missing.items()]
        parts += ["## Corpora of the papers that are not here", _markdown(["corpus", "why"], rows)]
    return "\n\n".join(parts) + "\n"


def runs_of_row(grid: GridConfig, table: TableConfig, row: RowConfig, records: Iterable[Record]) -> list[Record]:
    """Give the records of one row of a table, by seed."""
    corpus, profile = row.corpus or table.corpus, row.profile or table.profile
    wanted = {f"{corpus}.{profile}.{row.own_key}.{seed}" for seed in table.seeds}
    return sorted((record for record in records if record["run"] in wanted), key=lambda record: int(record["seed"]))


def _table(table: TableConfig, grid: GridConfig, records: Sequence[Record]) -> str:
    papers = list(table.papers)
    header = ["system", "parameters", "seeds", "dev", "dev draft", "test", "test draft", "names that agree (drafts)",
              "CPU minutes", *papers]  # fmt: skip
    rows = [
        [*_cells(grid, table, row, records), *(table.papers[paper].get(row.own_key, "–") for paper in papers)]
        for row in table.rows
    ]
    return _markdown(header, rows)


def _cells(grid: GridConfig, table: TableConfig, row: RowConfig, records: Sequence[Record]) -> list[str]:
    name = row.name or row.own_key
    if row.not_applicable is not None:
        return [name, "", "", f"n/a: {row.not_applicable}", *[""] * 5]
    found = runs_of_row(grid, table, row, records)
    if not found:
        return [name, "", "0", NOT_RUN, *[""] * 5]
    floor = grid.corpora[row.corpus or table.corpus].floor or (None, None)

    def score(split: str, stage: str, least: float | None = None) -> str:
        if any(split not in record for record in found):
            return ""
        values = [headline(record, split, stage) for record in found]
        below = least is not None and statistics.mean(values) < least
        return mean_and_spread(values) + (" ▼" if below else "")

    two_stages = found[0]["best"]["threshold"] is not None
    agreeing = _agreement(found, "consistency")
    if agreeing and two_stages:
        agreeing += f" ({_agreement(found, 'draft_consistency')})"
    minutes = [seconds / 60 for record in found if (seconds := record["cpu_seconds"]) is not None]
    return [
        name,
        f"{found[0]['parameters'] / 1e6:.2f} M",
        str(len(found)),
        score("dev", "final", floor[0]),
        score("dev", "draft") if two_stages else "",
        score("test", "final", floor[1]),
        score("test", "draft") if two_stages else "",
        agreeing,
        f"{statistics.mean(minutes):.1f}" if minutes else "",
    ]


def _agreement(found: Sequence[Record], measure: str) -> str:
    """Give the mean share of agreeing mentions on test; nothing where a run has none."""
    shares = [share for record in found if (share := record.get("test", {}).get(measure, {}).get("share")) is not None]
    return f"{statistics.mean(shares):.1f} %" if shares and len(shares) == len(found) else ""


def headline(record: Record, split: str, stage: str) -> float:
    """Give the F1, or for token labels the accuracy, of a run's final labels or of its drafts."""
    return float(f1(np.array(record["units"][split][stage]["all"]).sum(axis=0)))


def mean_and_spread(values: Sequence[float]) -> str:
    """Give mean and standard deviation; the value alone where there is one."""
    mean = statistics.mean(values)
    return f"{mean:.1f} ± {statistics.stdev(values):.1f}" if len(values) > 1 else f"{mean:.1f}"


def _claims_note() -> str:
    return (
        "Each difference is in points of F1 on the test set (where a corpus has none, on dev, on which epoch and "
        f"threshold were chosen too), with the interval in which 95 % of {PAIR_RESAMPLES:,} resamples of documents and "
        f"seeds lie. *Yes* and *no* need an interval on one side of 0 and {FEWEST_SEEDS} seeds on both sides."
    )


def _claims(grid: GridConfig, records: Sequence[Record]) -> str:
    return _markdown(
        ["claim", "measured on", "figure", "answer"], [_claim_row(claim, grid, records) for claim in grid.claims]
    )


def _claim_row(claim: ClaimConfig, grid: GridConfig, records: Sequence[Record]) -> list[str]:
    table = grid.tables[claim.table]
    place = table.title
    if claim.untestable is not None:
        return [claim.text, place, "", f"not testable: {claim.untestable}"]
    rows = {row.own_key: row for row in table.rows}
    better = runs_of_row(grid, table, rows[claim.better or ""], records)
    if claim.measure == "uncertainty":
        return [claim.text, place, *_uncertainty_ratio(better)]
    worse = better if claim.measure == "draft" else runs_of_row(grid, table, rows[claim.worse or ""], records)
    if not better or not worse:
        return [claim.text, place, "", NOT_RUN]
    below = [name for name, found in ((claim.better, better), (claim.worse, worse)) if found is not None and
             _below_floor(grid, table, rows[name or claim.better or ""], found)]  # fmt: skip
    found = compare(better, worse, measure=claim.measure)
    seeds = f"seeds {len(better)} and {len(worse)}" if worse is not better else f"seeds {len(better)}"
    figure = f"{found.mean:+.1f} ({found.low:+.1f} to {found.high:+.1f}), {seeds}"
    if below:
        return [claim.text, place, figure, f"not testable: {', '.join(filter(None, below))} below the floor"]
    if min(len(better), len(worse)) < FEWEST_SEEDS:
        return [claim.text, place, figure, f"open: fewer than {FEWEST_SEEDS} seeds"]
    return [claim.text, place, figure, {"better": "yes", "worse": "no", "undecided": "undecided"}[found.verdict]]


def _below_floor(grid: GridConfig, table: TableConfig, row: RowConfig, found: Sequence[Record]) -> bool:
    floor = grid.corpora[row.corpus or table.corpus].floor
    return floor is not None and statistics.mean(headline(record, "dev", "final") for record in found) < floor[0]


def compare(better: Sequence[Record], worse: Sequence[Record], *, measure: str) -> Difference:
    """Compare the runs of two systems; ``draft`` compares final labels with the same runs' drafts."""
    split = "test" if all("test" in record["units"] for record in (*better, *worse)) else "dev"

    def counts(found: Sequence[Record], stage: str, name: str) -> np.ndarray:
        return np.array([record["units"][split][stage][name] for record in found])

    if measure == "draft":
        return paired_bootstrap(
            counts(better, "final", "all"), counts(better, "draft", "all"), resamples=PAIR_RESAMPLES
        )
    if measure == "recurring_less_once":
        first, second = (
            np.concatenate([counts(found, "final", "recurring"), counts(found, "final", "once")], axis=-1)
            for found in (better, worse)
        )
        contrast: Callable[[np.ndarray], np.ndarray] = lambda sums: f1(sums[..., :3]) - f1(sums[..., 3:])  # noqa: E731
        return paired_bootstrap(first, second, resamples=PAIR_RESAMPLES, score=contrast)
    return paired_bootstrap(counts(better, "final", measure), counts(worse, "final", measure), resamples=PAIR_RESAMPLES)


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
