"""What a run reports while a shard is being done."""

from pathlib import Path

import pytest
from concord_testing import runs

from concord.pipeline.config import ParserConfig
from concord.pipeline.documents import Document
from concord.pipeline.errors import ShardError
from concord.pipeline.parsing.stanza_parser import StanzaParser
from concord.pipeline.run_report import Progress
from concord.pipeline.worker.shard_progress import ShardProgress, ShardTracker


class Stop(Exception):
    """What a caller raises to end the work."""


def test_run_reports_progress_between_and_within_shards(tmp_path: Path) -> None:
    source = runs.write_collection(tmp_path / "in.jsonl")
    several: list[Progress] = []
    shards = runs.run_job(runs.job(source, tmp_path / "several"), progress=several.append).shards
    assert [step.shards_done for step in several if not step.in_flight] == list(range(shards + 1))
    assert [step.read_done for step in several] == sorted(step.read_done for step in several)
    assert several[0] == Progress(shards_done=0, shards=shards, read_done=0, read=12)
    assert several[-1].read_done == 12
    seen: list[Progress] = []
    runs.run_job(runs.job(source, tmp_path / "out", planning={"shard_bytes": 10**6}), progress=seen.append)
    assert [(step.shards_done, step.read_done) for step in (seen[0], seen[-1])] == [(0, 0), (1, 12)]
    within = [step for step in seen if step.in_flight]
    assert len(within) >= 12
    assert {step.in_flight[0].stage for step in within} >= {"parse"}
    shares = [step.read_in_flight for step in within]
    assert shares == sorted(shares)
    assert 0 < shares[0] < shares[-1] <= 12
    assert seen[-1].words > 0
    assert 0 < within[1].words <= within[-1].words
    assert [step.share for step in seen] == sorted(step.share for step in seen)
    assert (seen[0].share, seen[-1].share) == (0, 1)
    assert seen[-1].in_flight == ()


def test_error_of_a_listener_ends_the_work_and_is_no_fault_of_documents(tmp_path: Path) -> None:
    source = runs.write_collection(tmp_path / "in.jsonl")

    def show(progress: Progress) -> None:
        if progress.in_flight:
            raise BrokenPipeError

    with pytest.raises(ShardError, match="BrokenPipeError"):
        runs.run_job(runs.job(source, tmp_path / "out"), progress=show)
    report = runs.run_job(runs.job(source, tmp_path / "out"))
    assert (report.annotated, report.dead_letters) == (12, 0)


def test_share_of_a_shard_goes_by_the_seconds_of_the_shards_before() -> None:
    tracker = ShardTracker()
    seen: list[ShardProgress] = []
    tracker.add_seconds(parse=3.0, tag=1.0)
    with tracker.listening(7, seen.append):
        tracker.on_parse(0.5, 100)
        tracker.on_parse(1.0, 200)
        tracker.on_tag(0.0, 0)
        tracker.on_tag(0.5, 100)
    tracker.on_parse(1.0, 200)
    # 200 words that are parsed but not tagged are three quarters of the work on them.
    assert [(step.shard, step.stage, step.share, step.words) for step in seen] == [
        (7, "parse", 0.375, 75),
        (7, "parse", 0.75, 150),
        (7, "tag", 0.75, 150),
        (7, "tag", 0.875, 175),
    ]


@pytest.mark.slow
def test_parser_can_be_stopped_between_batches() -> None:
    parser = StanzaParser(ParserConfig())
    document = Document(doc_id="d", text="Ada met Charles in London. " * 400, source_uri="d", source_position=0)
    seen: list[tuple[int, int]] = []
    parsed = parser.parse([document], on_batch=lambda done, words: seen.append((done, words)))
    assert seen[0] == (0, 0)
    assert seen[-1] == (2_400, 2_400)
    assert len({done for done, _ in seen}) > 2

    def stop(done: int, words: int) -> None:
        if done:
            raise Stop

    with pytest.raises(Stop):
        parser.parse([document], on_batch=stop)
    assert parser.parse([document]) == parsed
