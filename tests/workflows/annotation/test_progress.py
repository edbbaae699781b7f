"""Progress on a terminal and in a log."""

from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace

import pytest

from concord.pipeline.run_report import Progress
from concord.pipeline.worker.shard_progress import ShardProgress
from concord.workflows.annotation import progress as workflow_progress
from concord.workflows.annotation.progress import RunProgress


def at(shards: int) -> Progress:
    return Progress(shards_done=shards, shards=4, read_done=shards * 1000, read=4000)


def test_a_terminal_shows_a_bar(capsys: pytest.CaptureFixture[str]) -> None:
    with closing(RunProgress(terminal=True)) as show:
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
    with closing(RunProgress(terminal=False)) as show:
        # Records of an earlier run count as done, but not towards the speed.
        for shards in (1, 2):
            show(at(shards))
            assert capsys.readouterr().err == ""
        show(at(3))
        assert capsys.readouterr().err == "3,000 of 4,000 records (75%), 3 of 4 shards; 50.0 records/s, 0:00:20 left\n"
        show(at(4))
        assert capsys.readouterr().err == "4,000 of 4,000 records (100%), 4 of 4 shards; 66.7 records/s, 0:00:00 left\n"


def test_shards_in_flight_count_by_their_share(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 0.0, 20.0])
    monkeypatch.setattr(workflow_progress, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    in_flight = (
        ShardProgress(shard=2, stage="tag", share=0.75, words=1_500),
        *(ShardProgress(shard=number, stage="parse", share=0.25) for number in (3, 4)),
    )
    with closing(RunProgress(terminal=False)) as show:
        show(at(0))
        show(replace(at(0), words=31_500, in_flight=in_flight, read_in_flight=1_000.5))
    assert capsys.readouterr().err == (
        "1,000 of 4,000 records (25%), 0 of 4 shards (tagging 00002 (75%), parsing 00003 (25%), 1 more), 31,500 words; "
        "50.0 records/s, 0:01:00 left\n"
    )
