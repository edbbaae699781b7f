"""What a run reports while a shard is being done."""

from pathlib import Path
from typing import Any

import pytest
from concord_testing import fakes, runs

from concord.models.data.outputs import OnBatch
from concord.pipeline.config import ParserConfig
from concord.pipeline.documents import Document
from concord.pipeline.errors import ShardError
from concord.pipeline.parsing.stanza_parser import StanzaParser
from concord.pipeline.planning.planner import Planner
from concord.pipeline.run_report import Progress
from concord.pipeline.worker.shard_progress import ShardProgress
from concord.pipeline.worker.stages import ParseStage


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


def test_share_of_a_shard_goes_by_the_seconds_of_the_shards_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Parsing takes three seconds of a shard, and tagging one.
    clock = iter([0, 0, 0, 3, 3, 4, 4, 4])
    monkeypatch.setattr("concord.pipeline.worker.shard_progress.perf_counter", lambda: next(clock, 4))
    source = runs.write_collection(tmp_path / "in.jsonl", documents=2)
    plan = Planner(runs.resolved(runs.job(source, tmp_path / "out", planning={"shard_bytes": 1}))).resolve()
    worker = fakes.build_fake_worker(plan)

    def tag_half(run: Any, records: Any, *, on_batch: OnBatch) -> Any:
        on_batch(0, 200)
        on_batch(100, 200)
        return run(records)

    fakes.wrap_stage(worker.tag_stage, tag_half)
    seen: list[ShardProgress] = []
    for shard in plan.shards:
        worker.run(shard, on_progress=seen.append)
    # The fake parser counts documents. A word that is parsed but not tagged is three quarters of the work on it.
    assert [(step.shard, step.stage, step.share, step.words) for step in seen] == [
        (0, "parse", 0.5, 0),
        (0, "tag", 0.5, 100),
        (0, "tag", 0.75, 150),
        (1, "parse", 0.75, 1),
        (1, "tag", 0.75, 150),
        (1, "tag", 0.875, 175),
    ]


def test_share_of_the_text_says_how_many_words_there_are() -> None:
    seen: list[tuple[int, int]] = []
    texts = ["a" * 10, "b" * 30, "", "c" * 40]
    documents = [Document(doc_id=text, text=text, source_uri="d", source_position=0) for text in texts]
    stage = ParseStage(fakes.FakeParser(), batch_documents=1)
    stage.run(documents, on_batch=lambda done, words: seen.append((done, words)))
    assert seen == [(1, 8), (2, 4), (3, 6), (3, 3)]


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
