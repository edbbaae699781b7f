"""The progress within an epoch: lines at intervals in a log, one bar on a terminal, nothing with --json."""

import re
import time
from pathlib import Path

import pytest
from concord_testing.command_line import concord

from concord.models.training.fit import EpochProgress
from concord.workflows.training import progress
from concord.workflows.training.progress import TrainingProgress

LINE = r"epoch 1/2: [\d,]+ of [\d,]+ words \(\d+%\), loss \d\.\d{3}; [\d,]+ words/s, 0:00:\d\d left"


def steps(epoch: int) -> list[EpochProgress]:
    return [
        EpochProgress(epoch=epoch, epochs=2, words_done=done, words=5000, loss=lambda: 0.5)
        for done in range(100, 5001, 100)
    ]


def test_a_log_gets_a_line_at_intervals(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    show = TrainingProgress(terminal=False)
    for step in (*steps(1), *steps(2)):
        show(step)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "epoch 1/2: 1,200 of 5,000 words (24%), loss 0.500; 100 words/s, 0:00:38 left"
    assert len(lines) == 8
    assert all(line.startswith("epoch 2/2") for line in lines[4:])


def test_a_terminal_gets_one_bar_that_ends_with_its_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    show = TrainingProgress(terminal=True)
    for step in (*steps(1), *steps(2)):
        show(step)
    shown = capsys.readouterr().err
    assert "epoch 1/2" in shown
    assert "epoch 2/2" in shown
    assert "\n" not in shown


@pytest.mark.slow
@pytest.mark.parametrize(("option", "shown"), [([], True), (["--json"], False)])
def test_train_shows_progress_unless_it_answers_in_json(
    train_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: list[str], shown: bool
) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    arguments = ("--no-tracking", "-o", tmp_path / "run", "--set", "fit.batch_sentences=4", *option)
    result = concord("train", train_file, *arguments)
    assert result.exit_code == 0, result.output
    assert bool(re.search(LINE, result.stderr)) is shown
    assert "epoch 2/2: loss" in result.stderr
