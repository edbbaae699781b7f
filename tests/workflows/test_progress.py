"""Progress on a terminal and in a log."""

from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace

import pytest

from concord.models.training.fit import EpochProgress
from concord.pipeline.run_report import Progress
from concord.pipeline.worker.shard_progress import ShardProgress
from concord.workflows import progress as workflow_progress
from concord.workflows.progress import RunProgress, TrainingProgress, counting


def at(shards: int) -> Progress:
    return Progress(
        shards_done=shards, shards=4, read_done=shards * 1000, read=4000, words=shards * 30_000, share=shards / 4
    )


def test_a_terminal_shows_a_bar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with closing(RunProgress(terminal=True)) as show:
        for shards in (1, 2, 4):
            show(at(shards))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "100%" in captured.err
    assert "4,000 of 4,000 records (100%), 4 of 4 shards" in captured.err


def test_a_log_shows_speed_and_time_left_every_few_seconds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 0.0, 5.0, 45.0, 65.0])
    monkeypatch.setattr(workflow_progress, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    with closing(RunProgress(terminal=False)) as show:
        # The models load for five seconds, and do not count towards the speed.
        started = replace(at(1), in_flight=(ShardProgress(shard=1, stage="parse", share=0.0),))
        for progress in (at(0), started):
            show(progress)
            assert capsys.readouterr().err == ""
        line = "3,000 of 4,000 records (75%), 3 of 4 shards, 90,000 words; 1,500 words/s, 0:00:20 left\n"
        show(at(3))
        assert capsys.readouterr().err == line
        line = "4,000 of 4,000 records (100%), 4 of 4 shards, 120,000 words; 1,500 words/s, 0:00:00 left\n"
        show(at(4))
        assert capsys.readouterr().err == line


def test_the_first_batch_of_a_shard_gives_speed_and_time_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 0.0, 30.0, 42.0])
    monkeypatch.setattr(workflow_progress, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    with closing(RunProgress(terminal=False)) as show:
        show(at(0))
        for share, words in ((0.0, 0), (0.1, 6_000)):
            shard = ShardProgress(shard=0, stage="parse", share=share, words=words)
            show(replace(at(0), in_flight=(shard,), words=words, share=share / 4))
    [_, line] = capsys.readouterr().err.splitlines()
    assert line.endswith("0 of 4 shards (parsing 00000 (10%)), 6,000 words; 500 words/s, 0:07:48 left")


def test_why_documents_are_tagged_again_is_said_before_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    progress = replace(at(0), reasons=("tagger.threshold: was 0.1, is now 0.2",))
    for terminal in (False, True):
        with closing(RunProgress(terminal=terminal)) as show:
            show(progress)
            show(progress)
        said = "Unchanged documents are tagged again, because tagger.threshold: was 0.1, is now 0.2"
        assert capsys.readouterr().err.count(said) == 1


def test_shards_in_flight_count_by_their_share(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 0.0, 5.0, 25.0])
    monkeypatch.setattr(workflow_progress, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    in_flight = (
        ShardProgress(shard=2, stage="tag", share=0.75, words=1_500),
        *(ShardProgress(shard=number, stage="parse", share=0.25) for number in (3, 4)),
    )
    with closing(RunProgress(terminal=False)) as show:
        show(at(0))
        show(replace(at(0), in_flight=(replace(in_flight[0], share=0.0),)))
        show(replace(at(0), words=31_500, in_flight=in_flight, read_in_flight=1_000.5, share=0.25))
    assert capsys.readouterr().err == (
        "1,000 of 4,000 records (25%), 0 of 4 shards (tagging 00002 (75%), parsing 00003 (25%), 1 more), 31,500 words; "
        "1,575 words/s, 0:01:00 left\n"
    )


def steps(epoch: int) -> list[EpochProgress]:
    return [
        EpochProgress(epoch=epoch, epochs=2, words_done=done, words=5000, loss=lambda: 0.5)
        for done in range(100, 5001, 100)
    ]


def test_a_log_gets_a_line_at_intervals(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr(workflow_progress, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    show = TrainingProgress(terminal=False)
    for step in (*steps(1), *steps(2)):
        show(step)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "epoch 1/2: 1,000 of 5,000 words (20%), loss 0.500; 100 words/s, 0:00:40 left"
    assert len(lines) == 8
    assert all(line.startswith("epoch 2/2") for line in lines[4:])


def test_a_terminal_gets_one_bar_that_ends_with_its_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    show = TrainingProgress(terminal=True)
    for step in (*steps(1), *steps(2)):
        show(step)
    shown = capsys.readouterr().err
    assert "epoch 1/2" in shown
    assert shown.count("epoch 2/2: 4,900 of 5,000 words (98%)") == 1


def test_counts_are_shown_on_a_terminal_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with counting("documents") as count:
        count(2)
    assert capsys.readouterr().err == ""
