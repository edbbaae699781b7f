"""Put the dev scores of finished trainings side by side, epoch by epoch (Cui and Zhang, 2019, figure 3)."""

import json
from collections.abc import Sequence
from pathlib import Path

import click
from safetensors import SafetensorError, safe_open

from concord.models.errors import ConfigError
from concord.models.regular_files import check_regular
from concord.models.training.fit import HISTORY, STATE_NAME, EpochResult
from concord.pipeline.errors import InputError
from concord.workflows.cli.options import FOLDER, verb
from concord.workflows.console import Answer, table
from research.plots import draw_epochs

NUMBERS_NAME, PICTURE_NAME = "epochs.json", "epochs.png"


def compare_epochs(folders: Sequence[Path], output: Path) -> Answer:
    """Write the dev scores of each training, named by its folder, and draw them.

    Raises:
        InputError: when two trainings have the same name, or scores of different measures.
    """
    histories = {folder.name: _history(folder) for folder in folders}
    measures = {epoch.measure for history in histories.values() for epoch in history}
    if len(histories) < len(folders) or len(measures) > 1:
        raise InputError("expected folders of different names with trainings of one measure of dev scores")
    (measure,) = measures
    curves = {
        name: [{"epoch": epoch.epoch, "dev": epoch.dev_score, "seconds": epoch.seconds} for epoch in history]
        for name, history in histories.items()
    }
    values = {"measure": measure, "trainings": curves}
    output.mkdir(parents=True, exist_ok=True)
    draw_epochs(curves, output / PICTURE_NAME, measure=measure, title=f"{measure} on dev by epoch")
    (output / NUMBERS_NAME).write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    rows = [(name, *(f"{entry['dev']:.2f}" for entry in entries)) for name, entries in curves.items()]
    return Answer(values=values, text=f"{output}\n{table(rows)}")


def _history(folder: Path) -> list[EpochResult]:
    """Return the epochs of the training in a folder of ``concord train``."""
    path = folder / STATE_NAME
    if not path.exists():
        raise InputError(f"{path}: expected the state of a training, found no such file")
    try:
        with safe_open(check_regular(path), framework="pt") as stored:
            return HISTORY.validate_json(stored.metadata()["history"])
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: expected the state of a training, got {error}") from error


@verb(example="python -m research.epochs runs/bilstm_lan runs/bilstm_crf --output out/epochs")
@click.argument("folders", nargs=-1, required=True, type=FOLDER)
@click.option("--output", "-o", required=True, type=FOLDER, help="Folder for the picture and the numbers.")
def main(folders: Sequence[Path], output: Path) -> Answer:
    """Compare trainings epoch by epoch: FOLDERS are those of concord train, each with a dev corpus."""
    return compare_epochs(folders, output)


if __name__ == "__main__":
    main()
