"""A run from configuration to output folder: started, resumed, repeated."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from concord_testing import fakes, runs, stores

from concord.models.errors import ConfigError
from concord.pipeline.annotate import dry_run
from concord.pipeline.errors import InputError, PlanError, ReconciliationError, ShardError
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.run_stats import read_stats
from concord.pipeline.output.schema import SCHEMAS
from concord.pipeline.output.verify import verify
from concord.pipeline.plan import Plan
from concord.pipeline.storage.files import file_sha256
from concord.pipeline.worker.shard_worker import ShardWorker


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file of twelve documents, old enough for its hash to be kept."""
    path = runs.write_collection(tmp_path / "in.jsonl")
    os.utime(path, (1e9, 1e9))
    return path


def state_of(output: Path) -> dict[str, tuple[int, int, str]]:
    """Return inode, time and hash of every file, and inode and time of every folder but that of the lock."""
    paths = sorted({output, *output.rglob("*")} - {output / "_run"})
    return {
        str(path): (path.stat().st_ino, path.stat().st_mtime_ns, file_sha256(path) if path.is_file() else "")
        for path in paths
    }


def test_run_writes_the_documented_files(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    config = runs.job(source, output, report=True)
    report = runs.run_job(config)
    assert yaml.safe_load((output / "_run" / "settings.yaml").read_text()) == config.lasting
    assert OutputFolder(output).plan().config == config
    assert sorted(path.name for path in output.iterdir()) == ["_run", "current", *sorted([*SCHEMAS, "generations"])]
    assert sorted(path.name for path in (output / "_run").iterdir()) == [
        "attempts",
        "commits",
        "files.json",
        "parts",
        "plans",
        "report.html",
        "settings.yaml",
        "staging",
        "stats.json",
    ]
    assert verify(output) == []
    assert (report.read, report.annotated, report.unchanged, report.dead_letters) == (12, 12, 0, 0)
    assert report.exit_code == 0
    assert report.report == output / "_run" / "report.html"
    assert pq.read_table(output / "documents")["doc_id"].to_pylist() == [f"d{number}" for number in range(12)]


def test_relative_paths_become_absolute(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    report = runs.run_job(runs.job(Path("in.jsonl"), Path("out")))
    assert report.output == tmp_path / "out"
    assert OutputFolder(report.output).plan().config.input == str(source)


@pytest.mark.slow
def test_finished_run_is_left_untouched_and_does_not_join_ray(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = runs.job(source, tmp_path / "out", report=True)
    first = runs.run_job(config)
    before = state_of(tmp_path / "out")
    again = runs.run_job(config, build=fakes.build_no_worker)
    assert state_of(tmp_path / "out") == before
    assert (again.done_before, again.annotated, again.unchanged) == (first.shards, 0, first.annotated)
    assert (again.words, OutputFolder(first.output).latest_generation()) == (0, 0)
    # There is no such cluster, so joining it would fail.
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    on_ray = runs.run_job(runs.job(source, tmp_path / "out", report=True, executor={"kind": "ray", "threads": 1}))
    assert on_ray.done_before == on_ray.shards


@pytest.mark.slow
def test_only_missing_shards_are_annotated_again(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    config = runs.job(source, output)
    runs.run_job(config)
    original = runs.committed_bytes(output)
    folder = OutputFolder(output)
    runs.unfinish(output)
    (output / "_run" / "commits" / "0" / "00001.json").unlink()
    stores.local(folder.part(folder.finished_shards(folder.plan())[2], "tokens")).write_bytes(b"cut")
    (output / "_run" / "parts" / "tokens" / "part-00009-g0-stray.parquet").touch()
    (output / "_run" / "staging" / "left").touch()
    report = runs.run_job(config)
    assert report.done_before == report.shards - 2
    assert runs.committed_bytes(output) == original
    assert verify(output) == []


@pytest.mark.slow
def test_what_a_kill_at_the_end_leaves_is_repaired_without_a_worker(source: Path, tmp_path: Path) -> None:
    config, output = runs.job(source, tmp_path / "out", report=True), tmp_path / "out"
    runs.run_job(config)
    original = runs.committed_bytes(output)
    for lost in ("current", "tokens", "_run/report.html"):
        (output / lost).unlink()
        runs.run_job(config, build=fakes.build_no_worker)
        assert (output / lost).exists()
    (output / "current" / "manifest.json").write_text("{")
    (output / "documents" / "part-00000-g0-00000000.parquet").touch()
    runs.run_job(config, build=fakes.build_no_worker)
    assert runs.committed_bytes(output) == original


@pytest.mark.parametrize(("allowed", "exit_code"), [(0.1, 3), (0.2, 0)])
def test_exit_code_is_3_when_dead_letters_exceed_the_limit(
    source: Path, tmp_path: Path, allowed: float, exit_code: int
) -> None:
    runs.write_collection(source, documents=12, extra=("PARSERFAULT", "LOSTTEXT"))
    config = runs.job(source, tmp_path / "out", max_dead_letters=allowed)
    assert runs.run_job(config).exit_code == exit_code
    assert runs.run_job(config).exit_code == exit_code
    assert verify(tmp_path / "out") == []


@pytest.mark.slow
def test_run_fails_when_a_stage_drops_a_document(source: Path, tmp_path: Path) -> None:
    config = runs.job(source, tmp_path / "out")
    with pytest.raises(ReconciliationError) as caught:
        runs.run_job(config, build=fakes.build_worker_that_loses)
    assert caught.value.exit_code == 1
    assert not (tmp_path / "out" / "current").exists()
    runs.run_job(config)
    assert verify(tmp_path / "out") == []


def build_failing_worker(plan: Plan) -> ShardWorker:
    """Build a worker that raises an unexpected error at the third shard."""
    worker = fakes.build_fake_worker(plan)

    def break_at_two(commit: Callable[..., Any], shard: Any, outcomes: Any, **step: Any) -> Any:
        if shard.index == 2:
            raise LookupError("no such thing")
        return commit(shard, outcomes, **step)

    fakes.wrap_stage(worker.commit_stage, break_at_two)
    return worker


def test_failed_shard_is_named_and_committed_shards_are_kept(source: Path, tmp_path: Path) -> None:
    config = runs.job(source, tmp_path / "out")
    with pytest.raises(ShardError, match="shard 00002: LookupError: no such thing"):
        runs.run_job(config, build=build_failing_worker)
    assert runs.run_job(config).done_before == 2


def test_missing_input_creates_no_output_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        runs.run_job(runs.job(tmp_path / "nothing.jsonl", tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_stats_add_up_the_times_of_all_calls(source: Path, tmp_path: Path) -> None:
    config = runs.job(source, tmp_path / "out")
    with pytest.raises(ShardError):
        runs.run_job(config, build=build_failing_worker)
    report = runs.run_job(config)
    stats = read_stats(OutputFolder(tmp_path / "out"))
    tokens = pq.read_table(tmp_path / "out" / "tokens").num_rows
    assert (stats.shards, stats.words) == (report.shards, tokens)
    assert set(stats.seconds) == {"read", "parse", "tag", "write"}
    (first,) = stats.generations
    assert (first.number, first.words, first.seconds) == (0, tokens, stats.wall_seconds)
    assert report.words_per_second == pytest.approx(report.words / report.wall_seconds)


def test_dry_run_writes_nothing(source: Path, tmp_path: Path) -> None:
    config = runs.job(source, tmp_path / "out")
    report = dry_run(runs.resolved(config))
    assert not (tmp_path / "out").exists()
    assert (report.read, report.annotated, report.done_before) == (12, 0, 0)
    runs.run_job(config)
    before = state_of(tmp_path / "out")
    assert dry_run(runs.resolved(config)).done_before == report.shards
    assert state_of(tmp_path / "out") == before
    with pytest.raises(PlanError):
        dry_run(runs.resolved(runs.job(source, tmp_path / "out", limit=3)))


@pytest.mark.parametrize("below", ["file/out", "file", "/proc/nothing/out"])
def test_output_that_cannot_be_made_is_refused_before_anything_is_written(
    source: Path, tmp_path: Path, below: str
) -> None:
    (tmp_path / "file").write_text("in the way")
    config = runs.job(source, tmp_path / below)
    with pytest.raises(ConfigError, match=r"output: expected a folder that can be written, got .*(file|proc)"):
        runs.run_job(config)
    assert (tmp_path / "file").read_text() == "in the way"
