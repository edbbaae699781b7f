"""Documents that kill their worker, hang or find no memory become dead letters, and the rest is annotated."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from concord_testing import fakes, runs

from concord.pipeline.config import AnnotateConfig
from concord.pipeline.documents import DeadLetter
from concord.pipeline.errors import DeviceError, ShardError, ShortageError, StoppedError
from concord.pipeline.output.collection import read_dead_letters
from concord.pipeline.output.manifest import CommitRecord
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.schema import Signature
from concord.pipeline.output.tables import annotated_tables
from concord.pipeline.output.verify import verify
from concord.pipeline.readers.extraction import Isolation
from concord.pipeline.readers.records import RecordError
from concord.pipeline.resources import shortage_errors
from concord.pipeline.run_report import Progress
from concord.pipeline.worker.attempts import is_annotated_alone

ONE_SHARD: dict[str, Any] = {"planning": {"shard_bytes": 10**6}}

pytestmark = pytest.mark.slow(reason="each worker that is killed is a process")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file of twelve documents."""
    return runs.write_collection(tmp_path / "in.jsonl")


def letters(output: Path) -> list[DeadLetter]:
    """Return every dead letter."""
    folder = OutputFolder(output)
    return list(read_dead_letters(folder, (reports(output)[shard] for shard in sorted(reports(output)))))


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
    # A document with a fault of this kind is in no batch of the tagger either.
    runs.write_collection(source, extra=("a LOSTTEXT", "Anna ends it."))
    runs.run_job(runs.job(source, tmp_path / "undisturbed", **ONE_SHARD))
    runs.write_collection(source, extra=(f"a {word}", "Anna ends it."))

    output = tmp_path / "out"
    assert run_until_done(runs.job(source, output, **ONE_SHARD)) == 2

    [letter] = letters(output)
    assert (letter.doc_id, letter.stage, letter.error) == ("d12", stage, "annotation_died")
    assert "the process that annotates it ended by signal 9 (SIGKILL); repair or remove it" in letter.message
    assert verify(output) == []
    assert not list(output.glob("_run/attempts/*/*"))
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
    runs.run_job(runs.job(source, tmp_path / "undisturbed", **ONE_SHARD))
    config = runs.job(source, tmp_path / "out", **ONE_SHARD)
    for _ in range(4):
        process = runs.in_child(lambda: runs.run_job(config), crash_at="rename:1")
        process.join()
        assert process.exitcode == -signal.SIGKILL
    runs.run_job(config)
    assert runs.committed_bytes(tmp_path / "out") == runs.committed_bytes(tmp_path / "undisturbed")


def test_documents_that_kill_only_together_are_annotated_alone(source: Path, tmp_path: Path) -> None:
    runs.write_collection(source, extra=("a CROWDKILLER", "Anna ends it."))
    output = tmp_path / "out"
    assert run_until_done(runs.job(source, output)) == 2
    assert letters(output) == []
    assert verify(output) == []


def test_output_does_not_depend_on_how_often_the_run_was_killed(source: Path, tmp_path: Path) -> None:
    runs.configure_fakes(source, batch_noise=1e-6)
    runs.write_collection(source, extra=("a TAGKILLER", "Anna ends it."))
    assert run_until_done(runs.job(source, tmp_path / "few")) == 2
    config = runs.job(source, tmp_path / "many")
    for step in ("commit:1", "fsync:2", "write:3"):
        runs.in_child(lambda: runs.run_job(config), crash_at=step).join()
    run_until_done(config)
    found = [(letter.doc_id, letter.stage, letter.error) for letter in letters(tmp_path / "many")]
    assert found == [("d12", "tag", "annotation_died")]
    assert runs.committed_bytes(tmp_path / "many") == runs.committed_bytes(tmp_path / "few")


def counted(config: AnnotateConfig, attempts: bytes) -> AnnotateConfig:
    """Count attempts at the first shard that did not end."""
    folder = Path(config.output.path) / "_run" / "attempts" / "0"
    folder.mkdir(parents=True)
    (folder / "00000").write_bytes(attempts)
    return config


@pytest.mark.parametrize(("attempts", "processes"), [(b"1", 0), (b"1 alone", 0), (b"2", 1), (b"3 alone", 1), (b"", 0)])
def test_the_third_attempt_is_made_in_another_process_with_limits_by_the_size_of_a_document(
    source: Path, tmp_path: Path, attempts: bytes, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: dict[Isolation, list[tuple[float, int]]] = {}
    each = Isolation.each

    def note(self: Isolation, *call: Any, **settings: Any) -> Any:
        limits = settings["config"]
        started.setdefault(self, []).append((limits.extraction_seconds, limits.extraction_memory_bytes))
        return each(self, *call, **settings)

    runs.write_collection(source, documents=1, extra=("x" * 50, "x" * 150))
    config = counted(runs.job(source, tmp_path / "out", **ONE_SHARD), attempts)
    monkeypatch.setattr(Isolation, "each", note)
    seen: list[Progress] = []
    runs.run_job(config, progress=seen.append)
    assert len(started) == processes
    for limits in started.values():
        # Parsed, tagged, and then all together.
        assert len(limits) == 2 * 3 + 1
        assert limits[2:6] == [(31, (2 << 30) + 500_000)] * 2 + [(33, (2 << 30) + 1_500_000)] * 2
    shares = [progress.share for progress in seen]
    assert shares == sorted(shares)
    assert len(set(shares)) > 3


def test_document_that_takes_too_long_is_left_out(source: Path, tmp_path: Path) -> None:
    runs.write_collection(source, extra=("a STALLER", "Anna ends it."))
    config = runs.job(source, tmp_path / "out", reader={"extraction_seconds": 0.1}, **ONE_SHARD)
    runs.run_job(counted(config, b"2"))
    assert [(letter.doc_id, letter.error) for letter in letters(tmp_path / "out")] == [("d12", "took_too_long")]


def test_run_is_stopped_while_another_process_annotates(source: Path, tmp_path: Path) -> None:
    runs.configure_fakes(source, seconds=5)
    executor = {"threads": 1, "drain_seconds": 0.0}
    config = counted(runs.job(source, tmp_path / "out", executor=executor, **ONE_SHARD), b"2")
    folder = OutputFolder(tmp_path / "out")

    def stop(progress: Progress) -> None:
        if progress.in_flight:
            plan = folder.plan()
            assert is_annotated_alone(plan, plan.shards[0])
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(StoppedError):
        runs.run_job(config, progress=stop)
    assert not list((tmp_path / "out").glob("_run/attempts/*/*"))


def test_shard_fails_when_too_many_documents_end_their_process(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = [RecordError("annotation_died", "the process ended")]
    config = counted(runs.job(source, tmp_path / "out", **ONE_SHARD), b"2")
    monkeypatch.setattr(Isolation, "each", lambda *_, **__: ended)
    with pytest.raises(ShardError, match="6 of its documents ended the process that annotates them, each alone"):
        runs.run_job(config)
    monkeypatch.undo()
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


def test_shard_without_memory_is_annotated_in_another_process_on_the_cpu(source: Path, tmp_path: Path) -> None:
    runs.write_collection(source, extra=("a GREEDY", "Anna ends it."))
    devices = {"parser": {"device": "cuda"}, "tagger": {"device": "cuda"}}
    config = runs.job(source, tmp_path / "out", **devices, **ONE_SHARD)
    report = runs.run_job(config, build=fakes.build_worker_without_memory_on_its_device)
    assert (report.annotated, report.dead_letters) == (13, 1)
    [letter] = letters(tmp_path / "out")
    assert (letter.doc_id, letter.stage, letter.error) == ("d12", "parse", "took_too_much_memory")
    assert "raise reader.extraction_memory_bytes in a retry" in letter.message


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


def test_document_that_loses_the_device_each_time_is_left_out(source: Path, tmp_path: Path) -> None:
    runs.write_collection(source, extra=("a DEVICELOSS",))
    config = runs.job(source, tmp_path / "out")
    for _ in range(2):
        with pytest.raises(DeviceError):
            runs.run_job(config)
    runs.run_job(config)
    [letter] = letters(tmp_path / "out")
    assert (letter.doc_id, letter.stage, letter.error) == ("d12", "tag", "annotation_died")


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
