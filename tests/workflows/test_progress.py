"""Progress on a terminal and in a log."""

import pytest

from pipeline.annotate import Progress
from workflows import progress as workflow_progress
from workflows.progress import RunProgress


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


def test_a_log_gets_a_line_now_and_then(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with RunProgress(terminal=False) as show:
        show(at(1))
        assert capsys.readouterr().err == ""
        monkeypatch.setattr(workflow_progress, "LINE_SECONDS", 0.0)
        show(at(2))
    assert capsys.readouterr().err == "2,000 of 4,000 records, 2 of 4 shards\n"
