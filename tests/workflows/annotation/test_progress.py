"""Progress on a terminal and in a log."""

from types import SimpleNamespace

import pytest

from concord.pipeline.run_report import Progress
from concord.workflows.annotation import progress as workflow_progress
from concord.workflows.annotation.progress import RunProgress


def at(shards: int) -> Progress:
    return Progress(shards_done=shards, shards=4, read_done=shards * 1000, read=4000)


def test_a_terminal_shows_a_bar(capsys: pytest.CaptureFixture[str]) -> None:
    with RunProgress(terminal=True) as show:
        for shards in (1, 2, 4):
            show(at(shards))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "4000/4000" in captured.err
    assert "shard 4/4" in captured.err


def test_a_log_shows_speed_and_time_left_every_few_seconds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 0.0, 5.0, 40.0, 45.0])
    monkeypatch.setattr(workflow_progress, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    with RunProgress(terminal=False) as show:
        # Records of an earlier run count as done, but not towards the speed.
        for shards in (1, 2):
            show(at(shards))
            assert capsys.readouterr().err == ""
        show(at(3))
        assert capsys.readouterr().err == "3,000 of 4,000 records (75%), 3 of 4 shards; 50.0 records/s, 0:00:20 left\n"
        show(at(4))
        assert capsys.readouterr().err == "4,000 of 4,000 records (100%), 4 of 4 shards; 66.7 records/s, 0:00:00 left\n"
