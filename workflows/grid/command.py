"""The grid of results: every tagger on every corpus, several seeds, one JSON a run, one page that shows them.

``python -m concord.workflows.grid run`` trains what has no JSON yet and may be stopped, killed and started again at any
moment: a training goes on from its last epoch. Several processes may share the folders; each run is locked by the one
that works on it. ``render`` writes the page from the JSON files alone; a cell without runs says so.
"""

import json
import shutil
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import click
import torch

from concord.models.config import ConfigError
from concord.workflows.console import info, report_errors
from concord.workflows.grid.config import CONF, read_grid, runs_of
from concord.workflows.grid.train_run import corpus_folder, locked, perform, read_features, surroundings

RESULTS = Path("tests/benchmarks/results/grid")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def main() -> None:
    """Train the grid of results, or show it."""


folder_option = click.option(
    "--results", type=click.Path(path_type=Path), default=RESULTS, show_default=True, help="One JSON a run."
)
grid_option = click.option(
    "--grid", "conf", type=click.Path(path_type=Path), default=CONF, show_default=True, help="What the grid holds."
)
tables_option = click.option("--table", "tables", multiple=True, help="Only this table; may be given often.")


@main.command()
@click.option("--data", type=click.Path(path_type=Path, exists=True), required=True, help="Folder of the corpora.")
@click.option("--work", type=click.Path(path_type=Path), default=Path("out/grid"), show_default=True)
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--device", type=click.Choice(["cpu", "cuda", "auto"]), default="cpu", show_default=True)
@click.option("--seed", "seeds", type=int, multiple=True, help="Only this seed; may be given often.")
@click.option("--minutes", type=float, help="Start no further run after so many minutes.")
@grid_option
@folder_option
@tables_option
@report_errors(as_json=False)
def run(
    data: Path,
    work: Path,
    threads: int,
    device: str,
    seeds: tuple[int, ...],
    minutes: float | None,
    conf: Path,
    results: Path,
    tables: tuple[str, ...],
) -> None:
    """Train what has no result yet."""
    torch.set_num_threads(threads)
    grid = read_grid(conf)
    started = time.monotonic()
    failed: list[str] = []
    for item in runs_of(grid, tables or list(grid.tables)):
        if minutes is not None and time.monotonic() - started > 60 * minutes:
            break
        if seeds and item.seed not in seeds:
            continue
        with locked(work / f"{item.name}.lock") as mine:
            path = results / f"{item.name}.json"
            if not mine or path.exists():
                continue
            info(f"{item.name}: begins")
            try:
                place = corpus_folder(item.corpus, grid, data, work)
                read_features(work, item, grid, place, device)
                record = perform(item, grid, data=place, folder=work, device=device) | surroundings(device)
            except Exception:  # noqa: BLE001
                # One run must not cost the night's others; it stays without a result and the next call tries again.
                info(f"{item.name}: failed\n{traceback.format_exc()}")
                failed.append(item.name)
                continue
            results.mkdir(parents=True, exist_ok=True)
            staged = work / f"{item.name}.json"
            staged.write_text(json.dumps(record, separators=(",", ":")) + "\n", encoding="utf-8")
            shutil.move(staged, path)
            shutil.rmtree(work / item.name)
            info(f"{item.name}: done")
    if failed:
        info(f"failed: {', '.join(failed)}")
        sys.exit(1)


@main.command()
@click.option("--output", "-o", type=click.Path(path_type=Path), default=Path("docs/results.md"), show_default=True)
@grid_option
@folder_option
@report_errors(as_json=False)
def render(output: Path, conf: Path, results: Path) -> None:
    """Write the page of results."""
    from concord.workflows.grid.page import render_page

    records = [_read_record(path) for path in sorted(results.glob("*.json"))]
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(render_page(read_grid(conf), records), encoding="utf-8")


def _read_record(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{path}: expected the record of a run, delete it to run it again: {error}") from error
