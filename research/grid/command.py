"""The commands of the grid: every tagger on every corpus with several seeds, one record a run, one page of results.

``run`` trains what has no record yet, or one of an earlier configuration, and ``status`` says what that is. It may be
stopped, killed and started again at any moment, and an interrupted training is resumed after its last epoch. Several
processes may share the folders, since each locks the run it works on.
``pack`` moves new records into the packed file. ``render`` writes the page of results with its picture, and that of all
claims, from the records alone; a cell without runs says so.
"""

import shutil
import sys
import time
import traceback
from pathlib import Path

import click
import torch

from concord.pipeline.storage.locks import exclusive
from concord.workflows.console import counted, info, report_errors, table
from research.grid.config import CONF, read_grid, runs_of
from research.grid.estimates import Remaining, remaining
from research.grid.records import PACKED, pack_records, read_records, write_record
from research.grid.settings import current_in, is_current
from research.grid.train_run import train_run

WORK = Path("out/grid")
PATH = click.Path(path_type=Path)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True})
def main() -> None:
    """Train the grid of results, pack its records, write its pages."""


results_option = click.option("--results", type=PATH, default=PACKED, help="The packed records, a file.")
work_option = click.option(
    "--work", type=PATH, default=WORK, help="Folder of trainings and of records that are not packed yet."
)
grid_option = click.option("--grid", "conf", type=PATH, default=CONF, help="The grid.")


@main.command(name="run")
@click.option("--data", type=click.Path(path_type=Path, exists=True), required=True, help="Folder of the corpora.")
@click.option("--threads", type=click.IntRange(min=1), default=1)
@click.option("--device", type=click.Choice(["cpu", "cuda", "auto"]), default="cpu")
@click.option("--seed", "seeds", type=int, multiple=True, help="Only this seed; repeatable.")
@click.option("--minutes", type=float, help="Start no further run after this time.")
@click.option("--table", "tables", multiple=True, help="Only this table; repeatable.")
@grid_option
@results_option
@work_option
@report_errors(as_json=False)
def train_grid(
    data: Path,
    threads: int,
    device: str,
    seeds: tuple[int, ...],
    minutes: float | None,
    tables: tuple[str, ...],
    conf: Path,
    results: Path,
    work: Path,
) -> None:
    """Train every run that has no record, or one of an earlier configuration."""
    torch.set_num_threads(threads)
    grid = read_grid(conf)
    started = time.monotonic()
    recorded = read_records(results, work, current_in(grid))
    failed: list[str] = []
    for item in runs_of(grid, tables or list(grid.tables)):
        if minutes is not None and time.monotonic() - started > 60 * minutes:
            break
        if (seeds and item.seed not in seeds) or is_current(recorded.get(item.name), item, grid):
            continue
        with exclusive(work / f"{item.name}.lock", wait=False) as mine:
            # Read again: another process may have finished the run since.
            if not mine or is_current(read_records(results, work, current_in(grid)).get(item.name), item, grid):
                continue
            info(f"{item.name}: started")
            try:
                record = train_run(item, grid, data=data, work=work, device=device)
            except Exception:  # noqa: BLE001
                # One run must not stop the others; it stays without a record and the next call tries it again.
                info(f"{item.name}: failed\n{traceback.format_exc()}")
                failed.append(item.name)
                continue
            write_record(work, record)
            shutil.rmtree(work / item.name)
            info(f"{item.name}: finished")
    if failed:
        info(f"failed: {', '.join(failed)}")
        sys.exit(1)


@main.command()
@click.option("--table", "tables", multiple=True, help="Only this table; repeatable.")
@grid_option
@results_option
@work_option
@report_errors(as_json=False)
def status(tables: tuple[str, ...], conf: Path, results: Path, work: Path) -> None:
    """Say what is left to train, and how long it takes by the records of similar runs."""
    grid = read_grid(conf)
    left = remaining(grid, tables or list(grid.tables), read_records(results, work, current_in(grid)))
    total = Remaining(
        table="all",
        runs=sum(item.runs for item in left),
        missing=[run for item in left for run in item.missing],
        earlier=[run for item in left for run in item.earlier],
        seconds=sum(item.seconds for item in left),
    )
    header = ("table", "runs", "without a record", "of an earlier configuration", "core hours")
    rows = [
        (item.table, item.runs, len(item.missing), len(item.earlier), f"{item.seconds / 3600:.1f}")
        for item in (*left, total)
    ]
    click.echo(table(rows, header=header))


@main.command()
@grid_option
@results_option
@work_option
@report_errors(as_json=False)
def pack(conf: Path, results: Path, work: Path) -> None:
    """Move the records of the working folder into the packed file."""
    packed = pack_records(results, work, current_in(read_grid(conf)))
    info(f"{results}: {counted(len(packed), 'new record')}")


@main.command()
@click.option(
    "--output", "-o", type=PATH, default=Path("docs/results.md"), help="The page; its picture lies beside it."
)
@click.option("--claims", type=PATH, default=Path("research/claims.md"), help="The page of all claims.")
@grid_option
@results_option
@work_option
@report_errors(as_json=False)
def render(output: Path, claims: Path, conf: Path, results: Path, work: Path) -> None:
    """Write the page of results, its picture, and the page of all claims."""
    from research.grid.claims import answer_claims, pool_answers
    from research.grid.page import render_claims, render_page
    from research.plots import draw_answers

    grid = read_grid(conf)
    records = read_records(results, work, current_in(grid))
    answers = answer_claims(grid, records)
    pooled, picture = pool_answers(answers), output.with_suffix(".png")
    for path in (output, claims):
        path.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(render_page(grid, records, pooled, picture=picture.name), encoding="utf-8")
    claims.write_text(render_claims(grid, records, answers), encoding="utf-8")
    if pooled:
        draw_answers(pooled, picture)
