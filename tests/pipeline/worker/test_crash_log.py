"""Documents that kill their worker, hang or find no memory become dead letters, and the rest is annotated."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from concord_testing import fakes, runs

from concord.pipeline.config import AnnotateConfig
from concord.pipeline.errors import DeviceError, ShardError, ShortageError
from concord.pipeline.output.manifest import CommitRecord
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.schema import Signature
from concord.pipeline.output.shard_stats import BackOffStep, backed_off
from concord.pipeline.output.tables import annotated_tables
from concord.pipeline.output.verify import verify
from concord.pipeline.plan import Plan
from concord.pipeline.resources import shortage_errors
from concord.pipeline.worker.crash_log import Cause, CrashLog, ShardAttempts, WorkPlace
from concord.pipeline.worker.shard_worker import ShardWorker

pytestmark = pytest.mark.slow(reason="each worker that is killed is a process")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file of twelve documents."""
    return runs.write_collection(tmp_path / "in.jsonl")


def letters(output: Path) -> list[tuple[str, str, str]]:
    """Return id, stage and error of every dead letter."""
    manifest = OutputFolder(output).manifest()
    assert manifest is not None
    rows = [row for part in manifest.files("errors") for row in pq.read_table(output / part.path).to_pylist()]
    return [(row["doc_id"], row["stage"], row["error"]) for row in rows]


def reports(output: Path) -> dict[int, CommitRecord]:
    folder = OutputFolder(output)
    return folder.finished_shards(folder.plan())


def run_until_done(config: AnnotateConfig) -> int:
    """Run a job in child processes until one survives; return how many were killed."""
    for deaths in range(10):
        process = runs.in_child(lambda: runs.run_job(config))
        process.join()
        if process.exitcode == 0:
            return deaths
        assert process.exitcode == -signal.SIGKILL
    raise AssertionError("killed every time")


@pytest.mark.parametrize(("word", "stage"), [("KILLER", "parse"), ("TAGKILLER", "tag")])
def test_document_that_kills_its_process_is_left_out_and_the_others_done_as_planned(
    source: Path, tmp_path: Path, word: str, stage: str
) -> None:
    runs.configure_fakes(source, batch_noise=1e-6)
    one_shard: dict[str, Any] = {"planning": {"shard_bytes": 10**6}}
    # A document with a fault of this kind is in no batch of the tagger either.
    runs.write_collection(source, extra=("a LOSTTEXT", "Anna ends it."))
    runs.run_job(runs.job(source, tmp_path / "undisturbed", **one_shard))
    runs.write_collection(source, extra=(f"a {word}", "Anna ends it."))

    output = tmp_path / "out"
    assert run_until_done(runs.job(source, output, **one_shard)) == 3 + 2

    assert letters(output) == [("d12", stage, "worker_died")]
    assert verify(output) == []
    assert not list(output.glob("_run/attempts/*/*"))
    assert backed_off(reports(output).values()) == {}
    assert annotations(output) == annotations(tmp_path / "undisturbed")


def annotations(output: Path) -> dict[str, bytes]:
    """Return the parts of tokens and entities."""
    return {
        name: content
        for name, content in runs.committed_bytes(output).items()
        if name.startswith(("tokens", "entities"))
    }


def test_kills_from_outside_that_meet_one_shard_change_no_byte(source: Path, tmp_path: Path) -> None:
    runs.configure_fakes(source, batch_noise=1e-6)
    one_shard: dict[str, Any] = {"planning": {"shard_bytes": 10**6}}
    runs.run_job(runs.job(source, tmp_path / "undisturbed", **one_shard))
    config = runs.job(source, tmp_path / "out", **one_shard)
    for _ in range(5):
        process = runs.in_child(lambda: runs.run_job(config), crash_at="rename:1")
        process.join()
        assert process.exitcode == -signal.SIGKILL
    runs.run_job(config)
    assert runs.committed_bytes(tmp_path / "out") == runs.committed_bytes(tmp_path / "undisturbed")


def test_probe_that_is_killed_continues_with_the_document_in_progress(source: Path, tmp_path: Path) -> None:
    plan = planned(source, tmp_path)
    (shard,) = plan.shards
    crash_log = CrashLog(plan)
    for _ in range(3):
        crash_log.record_death(shard, "worker_died", None)
    crash_log.record_probed(shard, 7)
    # Otherwise signals from outside that come by the clock would meet the same document each time.
    die_alone(crash_log, plan, 7)
    tagger = fakes.FakeTagger()
    worker = ShardWorker(plan, parser=fakes.FakeParser(), tagger=tagger)
    (commit,) = tmp_path.glob("planned/_run/commits/*/*")
    commit.unlink()
    worker.run(shard)
    assert [len(documents) for documents in tagger.calls] == [1] * (12 - 7) + [12]
    assert crash_log.read(shard).is_probed


def test_documents_that_kill_only_together_are_done_alone_in_the_end(source: Path, tmp_path: Path) -> None:
    runs.write_collection(source, extra=("a CROWDKILLER", "Anna ends it."))
    output = tmp_path / "out"
    assert run_until_done(runs.job(source, output)) == 3 + 3
    assert letters(output) == []
    assert list(backed_off(reports(output).values()).values()) == [BackOffStep.ALONE]
    assert verify(output) == []


def test_output_does_not_depend_on_how_often_the_run_was_killed(source: Path, tmp_path: Path) -> None:
    runs.configure_fakes(source, batch_noise=1e-6)
    runs.write_collection(source, extra=("a KILLER", "a TAGKILLER", "Anna ends it."))
    assert run_until_done(runs.job(source, tmp_path / "few", executor={"threads": 1, "attempts": 1})) == 1 + 2 * 2
    config = runs.job(source, tmp_path / "many")
    for step in ("commit:1", "fsync:2", "write:3"):
        runs.in_child(lambda: runs.run_job(config), crash_at=step).join()
    run_until_done(config)
    assert letters(tmp_path / "many") == [("d12", "parse", "worker_died"), ("d13", "tag", "worker_died")]
    assert runs.committed_bytes(tmp_path / "many") == runs.committed_bytes(tmp_path / "few")


def test_shard_whose_process_was_killed_once_is_done_again_as_planned(source: Path, tmp_path: Path) -> None:
    runs.write_collection(source, extra=("a KILLER",))
    runs.configure_fakes(source, once=str(tmp_path / "killed"))
    assert run_until_done(runs.job(source, tmp_path / "out")) == 1
    runs.run_job(runs.job(source, tmp_path / "undisturbed"))
    assert runs.committed_bytes(tmp_path / "out") == runs.committed_bytes(tmp_path / "undisturbed")
    assert verify(tmp_path / "out") == []


def planned(source: Path, tmp_path: Path, **changes: Any) -> Plan:
    """Return the plan of a finished run of one shard."""
    config = runs.job(source, tmp_path / "planned", planning={"shard_bytes": 10**6}, **changes)
    runs.run_job(config)
    return OutputFolder(Path(config.output.path)).plan()


def die_alone(crash_log: CrashLog, plan: Plan, number: int, cause: Cause = "worker_died") -> ShardAttempts:
    """Let a worker die while it does a record of the only shard alone."""
    (shard,) = plan.shards

    def die() -> None:
        with crash_log.mark_in_progress(shard, WorkPlace(number=number, stage="tag")):
            os.kill(os.getpid(), signal.SIGKILL)

    runs.in_child(die).join()
    return crash_log.record_death(shard, cause, crash_log.in_progress(shard))


def test_document_is_left_out_after_its_second_death_alone(source: Path, tmp_path: Path) -> None:
    plan = planned(source, tmp_path)
    crash_log = CrashLog(plan)
    assert die_alone(crash_log, plan, 3).quarantined == {}
    assert die_alone(crash_log, plan, 4).quarantined == {}
    trial = die_alone(crash_log, plan, 3, "time_limit")
    assert [(suspect.number, suspect.stage, suspect.cause) for suspect in trial.quarantined.values()] == [
        (3, "tag", "time_limit")
    ]
    assert crash_log.read(plan.shards[0]) == trial
    assert CrashLog(plan).read_all() == {"00000": trial}


def test_deaths_outside_of_single_documents_fail_the_shard_and_a_truncated_record_is_ignored(
    source: Path, tmp_path: Path
) -> None:
    plan = planned(source, tmp_path)
    (shard,) = plan.shards
    crash_log = CrashLog(plan)
    for _ in range(2 * 3 - 1):
        crash_log.record_death(shard, "worker_died", None)
    with pytest.raises(ShardError, match="its worker died 6 times, not on one of its documents"):
        crash_log.record_death(shard, "worker_died", None)
    assert crash_log.read(shard) == ShardAttempts()
    crash_log.record_death(shard, "worker_died", None)
    (path,) = (tmp_path / "planned").glob("_run/attempts/0/*.json")
    path.write_bytes(path.read_bytes()[:5])
    assert crash_log.read(shard) == ShardAttempts()


def test_shard_fails_when_workers_die_on_too_many_documents(source: Path, tmp_path: Path) -> None:
    plan = planned(source, tmp_path)
    crash_log = CrashLog(plan)
    for number in (0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5):
        die_alone(crash_log, plan, number)
    with pytest.raises(ShardError, match="died on 6 documents"):
        die_alone(crash_log, plan, 5)
    assert crash_log.read_all() == {}


def test_shard_fails_when_too_many_documents_find_no_memory(source: Path, tmp_path: Path) -> None:
    runs.configure_fakes(source, documents=0)
    config = runs.job(source, tmp_path / "out", planning={"shard_bytes": 10**6})
    with pytest.raises(ShortageError, match="no memory for 6 documents, each alone"):
        runs.run_job(config)
    source.with_name("fakes.json").unlink()
    assert runs.run_job(config).dead_letters == 0


def test_lack_of_memory_while_writing_makes_no_dead_letters(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_memory(documents: list[Any], signature: Signature, **options: Any) -> Any:
        if documents:
            raise MemoryError
        return annotated_tables(documents, signature, **options)

    config = runs.job(source, tmp_path / "out")
    monkeypatch.setattr("concord.pipeline.worker.commit_stage.annotated_tables", without_memory)
    with pytest.raises(ShortageError):
        runs.run_job(config)
    monkeypatch.undo()
    assert runs.run_job(config).dead_letters == 0


@pytest.mark.parametrize(
    ("steering", "step"),
    [
        ({"documents": 4}, "half"),
        ({"documents": 2}, "quarter"),
        ({"batch_words": 512}, "eighth"),
        ({"documents": 1}, "eighth"),
    ],
)
def test_shard_without_memory_is_done_in_smaller_batches(
    source: Path, tmp_path: Path, steering: dict[str, int], step: str
) -> None:
    changes: dict[str, Any] = {"planning": {"shard_bytes": 10**6}, "parser": {"batch_documents": 8}}
    runs.run_job(runs.job(source, tmp_path / "undisturbed", **changes))
    runs.configure_fakes(source, **steering)
    runs.run_job(runs.job(source, tmp_path / "out", **changes))

    (report,), (undisturbed,) = reports(tmp_path / "out").values(), reports(tmp_path / "undisturbed").values()
    assert dict(report.stats) == {**undisturbed.stats, f"backed_off.{step}": 1}
    assert report.files == undisturbed.files
    assert report.dead_letters == 0
    assert verify(tmp_path / "out") == []


def test_document_too_large_for_memory_becomes_a_dead_letter(source: Path, tmp_path: Path) -> None:
    runs.write_collection(source, extra=("a GREEDY", "Anna ends it."))
    report = runs.run_job(runs.job(source, tmp_path / "out"))
    assert (report.annotated, report.dead_letters) == (13, 1)
    assert letters(tmp_path / "out") == [("d12", "parse", "out_of_memory")]
    (step,) = backed_off(reports(tmp_path / "out").values()).values()
    assert step is BackOffStep.ALONE


def test_last_step_runs_on_the_cpu(source: Path, tmp_path: Path) -> None:
    lent = []

    def build(plan: Plan) -> ShardWorker:
        parser, tagger = fakes.FakeParser(), fakes.FakeTagger()

        @contextmanager
        def on_cpu() -> Iterator[Any]:
            lent.append("there")
            yield parser, tagger
            lent.append("back")

        # The GPU of this test has no memory for any batch.
        full = fakes.FakeParser(fakes.FakeSettings(documents=0))
        return ShardWorker(plan, parser=full, tagger=tagger, on_cpu=on_cpu)

    config = runs.job(source, tmp_path / "out", planning={"shard_bytes": 10**6})
    assert runs.run_job(config, build=build).annotated == 12
    assert lent == ["there", "back"]


def test_device_without_memory_goes_on_with_half_the_batch(source: Path, tmp_path: Path) -> None:
    def build(plan: Plan) -> ShardWorker:
        tagger = fakes.FakeTagger(fakes.FakeSettings(batch_words=2048))
        return ShardWorker(plan, parser=fakes.FakeParser(), tagger=tagger, on_cpu=_never)

    config = runs.job(source, tmp_path / "out", planning={"shard_bytes": 10**6}, tagger={"batch_words": 4096})
    assert runs.run_job(config, build=build).annotated == 12
    assert list(backed_off(reports(tmp_path / "out").values()).values()) == [BackOffStep.HALF]


def _never() -> Any:
    raise AssertionError("moved to the CPU")


def test_lost_device_ends_a_local_run_and_the_next_one_continues(source: Path, tmp_path: Path) -> None:
    runs.write_collection(source, extra=("a DEVICELOSS",))
    runs.configure_fakes(source, once=str(tmp_path / "lost"))
    config = runs.job(source, tmp_path / "out")
    message = (
        r"shard \d+: tag: the device is lost: .*launch failure\nCommitted shards are kept: run the same command again"
    )
    with pytest.raises(DeviceError, match=message):
        runs.run_job(config)
    report = runs.run_job(config)
    assert (report.annotated + report.unchanged, report.dead_letters) == (13, 0)
    runs.run_job(runs.job(source, tmp_path / "undisturbed"))
    assert runs.committed_bytes(tmp_path / "out") == runs.committed_bytes(tmp_path / "undisturbed")


def raising(error: Exception) -> Callable[[], object]:
    def fault() -> None:
        raise error

    return fault


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (lambda: torch.empty(10**15), ShortageError),
        (raising(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")), ShortageError),
        # As Stanza does.
        (raising(RuntimeError("CUDA out of memory. ... use depparse_batch_size")), ShortageError),
        (raising(MemoryError()), ShortageError),
        (raising(RuntimeError("shapes do not fit")), RuntimeError),
    ],
)
def test_every_lack_of_memory_is_recognised_and_nothing_else(
    fault: Callable[[], object], expected: type[Exception]
) -> None:
    with pytest.raises(expected) as caught, shortage_errors():
        fault()
    assert caught.type is expected
