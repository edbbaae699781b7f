"""The progress within an epoch: lines in a log, nothing with --json."""

import re
from pathlib import Path

import pytest
from concord_testing.command_line import concord

from concord.workflows import progress

LINE = r"epoch 1/2: [\d,]+ of [\d,]+ words \(\d+%\), loss \d\.\d{3}; [\d,]+ words/s, 0:00:\d\d left"


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
