"""A run that was killed at any moment and started again writes the bytes of an undisturbed run."""

import logging
import os
import random
import resource
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from concord_testing import runs
from concord_testing.command_line import concord as command

import concord
from concord.pipeline.config import AnnotateConfig
from concord.pipeline.names.language import load_languages
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.verify import verify
from concord.pipeline.run_report import RunReport

# A shard has a part for each of four tables, and one for errors if there are any. Each is written, flushed and renamed.
# Plan, resolved configuration, commit record and manifest are written and flushed as well.
CRASHES = (
    "plan",
    *("write:1", "write:2", "write:3", "write:5", "write:7", "write:13"),
    *("fsync:1", "fsync:2", "fsync:4", "fsync:7", "fsync:8"),
    *("rename:1", "rename:3", "rename:4", "rename:9"),
    *("commit:1", "commit:2", "commit:3"),
    *("link:1", "link:4", "publish", "sweep", "swap"),
)


pytestmark = pytest.mark.slow(reason="each kill ends a process, and another one finishes its run")


def check_rerun(config: AnnotateConfig, undisturbed: dict[str, bytes]) -> RunReport:
    """Run the job again and compare."""
    report = runs.run_job(config)
    output = Path(config.output.path)
    assert runs.committed_bytes(output) == undisturbed
    assert verify(output) == []
    return report


SEVERAL = ("fsync:3", "commit:1", "rename:2", "write:4", "commit:1", "rename:4", "commit:2", "sweep", "swap")


@pytest.mark.parametrize("steps", [*((step,) for step in CRASHES), SEVERAL], ids="+".join)
def test_kills_at_any_step_change_no_byte(
    source: Path, tmp_path: Path, undisturbed: dict[str, bytes], steps: tuple[str, ...]
) -> None:
    config = runs.job(source, tmp_path / "out")
    kills = 0
    for step in steps:
        process = runs.in_child(lambda: runs.run_job(config), crash_at=step)
        process.join()
        kills += process.exitcode == -signal.SIGKILL
    assert 3 * kills >= 2 * len(steps)
    check_rerun(config, undisturbed)


def test_processes_are_forked_from_one_with_a_single_thread(tmp_path: Path) -> None:
    runs.in_child(lambda: (tmp_path / "threads").symlink_to(f"/proc/{os.getppid()}/task")).join()
    assert len(list((tmp_path / "threads").iterdir())) == 1


@pytest.mark.parametrize("seed", range(2))
def test_kill_at_a_random_moment_changes_no_byte(
    source: Path, tmp_path: Path, undisturbed: dict[str, bytes], seed: int
) -> None:
    config = runs.job(source, tmp_path / "out")
    runs.configure_fakes(source, seconds=0.05)
    process = runs.in_child(lambda: runs.run_job(config))
    time.sleep(random.Random(seed).uniform(0.1, 0.8))
    process.kill()
    process.join()
    check_rerun(config, undisturbed)


def wait_for(output: Path, pattern: str) -> None:
    """Wait until a file below the output's folder of its own exists."""
    deadline = time.monotonic() + 60
    while not list((output / "_run").glob(pattern)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signal_lets_the_shard_in_flight_finish(
    source: Path, tmp_path: Path, undisturbed: dict[str, bytes], number: signal.Signals, exit_code: int
) -> None:
    config = runs.job(source, tmp_path / "out")
    runs.configure_fakes(source, seconds=0.1)
    process = runs.in_child(lambda: runs.run_job(config))
    wait_for(tmp_path / "out", "commits/*/*.json")
    assert process.pid is not None
    os.kill(process.pid, number)
    process.join()
    assert process.exitcode == exit_code
    folder = OutputFolder(tmp_path / "out")
    assert not list((tmp_path / "out/_run/staging").iterdir())
    done = folder.finished_shards(folder.plan())
    assert 1 <= len(done) < len(folder.plan().shards)
    assert sum(1 for _ in (tmp_path / "out/_run/parts/tokens").iterdir()) == len(done)
    assert check_rerun(config, undisturbed).done_before == len(done)


def one_long_shard(source: Path, output: Path, *, drain_seconds: float) -> AnnotateConfig:
    """Return a job of one shard that takes ten seconds."""
    runs.configure_fakes(source, seconds=0.75)
    executor = {"threads": 1, "drain_seconds": drain_seconds}
    return runs.job(source, output, planning={"shard_bytes": 10**6}, executor=executor)


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_shard_that_does_not_finish_in_time_is_dropped_between_batches(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], number: signal.Signals, exit_code: int
) -> None:
    source = runs.write_collection(tmp_path / "in.jsonl")
    config = one_long_shard(source, tmp_path / "out", drain_seconds=1)

    def run() -> None:
        logging.basicConfig(stream=sys.stderr, force=True)
        runs.run_job(config)

    process = runs.in_child(run)
    wait_for(tmp_path / "out", "attempts/*/*")
    assert process.pid is not None
    os.kill(process.pid, number)
    process.join(timeout=5)
    assert process.exitcode == exit_code
    assert f"{number.name}: no further shard is started; those in flight have 1 s to finish" in capfd.readouterr().err
    assert not list((tmp_path / "out").glob("_run/commits/*/*"))
    # No attempt is counted.
    assert not list((tmp_path / "out").glob("_run/attempts/*/*"))
    runs.configure_fakes(source)
    runs.run_job(config)
    runs.run_job(config.model_copy(update={"output": config.output.model_copy(update={"path": str(tmp_path / "two")})}))
    assert runs.committed_bytes(tmp_path / "out") == runs.committed_bytes(tmp_path / "two")


def test_second_signal_stops_at_once(tmp_path: Path) -> None:
    source = runs.write_collection(tmp_path / "in.jsonl")
    process = runs.in_child(lambda: runs.run_job(one_long_shard(source, tmp_path / "out", drain_seconds=60)))
    wait_for(tmp_path / "out", "attempts/*/*")
    assert process.pid is not None
    for _ in range(2):
        os.kill(process.pid, signal.SIGTERM)
        time.sleep(0.2)
    process.join(timeout=3)
    assert process.exitcode == 143


def test_writer_that_is_stopped_goes_on_and_meanwhile_others_read_and_are_told_who_writes(
    source: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    other_tagger = replace(runs.TAGGER, digest="3" * 64)
    for place in (output, tmp_path / "undisturbed"):
        runs.run_job(runs.job(source, place))
    runs.run_job(runs.job(source, place), tagger=other_tagger)
    runs.configure_fakes(source, seconds=0.2)
    config = runs.job(source, output)
    process = runs.in_child(lambda: runs.run_job(config, tagger=other_tagger))
    wait_for(output, "commits/1/*.json")
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)
    for arguments in (
        ("annotate", source, "-o", output, "--model", "entities_en_small"),
        ("history", output, "--tag", "v1"),
        ("history", output, "--prune"),
        ("report", output),
    ):
        said = command(*arguments)
        assert said.exit_code == 75
        assert f"{output}: process {process.pid} of " in said.output
    assert concord.open(output).generation == 0
    for name in ("status", "errors", "files", "history", "export"):
        options = ("--to", "jsonl", "-o", tmp_path / "a.jsonl") if name == "export" else ()
        assert command(name, output, *options).exit_code == 0
    os.kill(process.pid, signal.SIGCONT)
    process.join()
    assert process.exitcode == 0
    assert runs.committed_bytes(output) == runs.committed_bytes(tmp_path / "undisturbed")


def test_run_stops_when_the_disk_is_full_and_resumes_with_space(
    source: Path, tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    config = runs.job(source, tmp_path / "out")

    def run_with_little_space() -> None:
        # It is unpacked on disk before the first shard.
        load_languages()
        # Only parts of tokens are larger than this, as if the disk became full in the middle of a shard.
        resource.setrlimit(resource.RLIMIT_FSIZE, (8_000, 8_000))
        runs.run_job(config)

    process = runs.in_child(run_with_little_space)
    process.join()
    assert process.exitcode == 75
    assert not list((tmp_path / "out").glob("_run/commits/*/*"))
    assert not list((tmp_path / "out").glob("_run/staging/*"))
    check_rerun(config, undisturbed)
