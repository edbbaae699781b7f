"""Outputs in object stores: the guarantees of a folder hold, without hard links and renames."""

import signal
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from concord_testing import fakes, runs, stores

from concord.pipeline.errors import BusyError, InputError, StoreError
from concord.pipeline.output.manifest import CommitRecord, DataFile
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.schema import DOCUMENT_TABLES
from concord.pipeline.output.verify import verify
from concord.pipeline.plan import Plan
from concord.pipeline.report.html import write_report
from concord.pipeline.storage import object_stores
from concord.pipeline.storage.output_paths import output_path
from concord.pipeline.worker.shard_worker import ShardWorker

pytestmark = pytest.mark.slow


def test_a_run_into_a_store_writes_the_bytes_of_a_local_run_and_is_left_unchanged(
    source: Path, s3_url: str, undisturbed: dict[str, bytes]
) -> None:
    output = f"{s3_url}/my/out"
    report = runs.run_job(runs.job(source, output, report=True))
    assert stores.committed(output) == undisturbed
    assert verify(output_path(output)) == []
    assert str(report.output) == output
    assert str(report.report) == f"{output}/_run/report.html"
    stores.remove(f"{output}/_run/report.html")
    assert write_report(OutputFolder(output_path(output))) == report.report
    assert stores.get(f"{output}/_run/report.html").startswith(b"<!doctype html>")
    assert not any("staging" in name for name in stores.contents(output))
    before = stores.states(output)
    assert runs.run_job(runs.job(source, output, report=True), build=fakes.build_no_worker).done_before > 1
    assert stores.states(output) == before


@pytest.mark.usefixtures("ended_leases")
@pytest.mark.parametrize("step", ["plan", "rename:4", "commit:1", "commit:2", "swap"])
def test_a_run_killed_between_two_writes_ends_with_the_same_bytes_and_leaves_no_temporary_folder(
    source: Path, s3_url: str, tmp_path: Path, undisturbed: dict[str, bytes], step: str
) -> None:
    output, temporary = f"{s3_url}/out", tmp_path / "temporary"
    temporary.mkdir()
    config = runs.job(source, output)

    def run() -> None:
        # The process is forked from one that may have looked up TMPDIR already.
        tempfile.tempdir = str(temporary)
        runs.run_job(config)

    process = runs.in_child(run, crash_at=step)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert step != "commit:2" or list(temporary.iterdir()) == []
    runs.run_job(config)
    assert stores.committed(output) == undisturbed
    assert verify(output_path(output)) == []


@pytest.mark.usefixtures("ended_leases")
def test_run_that_was_taken_for_dead_publishes_nothing(
    source: Path, s3_url: str, undisturbed: dict[str, bytes]
) -> None:
    config = runs.job(source, f"{s3_url}/out")

    def build(plan: Plan) -> ShardWorker:
        # What a process of another machine does once the lock has not been renewed for long.
        stores.put(f"{s3_url}/out/_run/lock", b"process 2 of ada on host since today (2)")
        return fakes.build_fake_worker(plan)

    with pytest.raises(BusyError, match="another one writes to the collection now"):
        runs.run_job(config, build=build)
    assert "current" not in stores.contents(f"{s3_url}/out")
    assert stores.get(f"{s3_url}/out/_run/lock").startswith(b"process 2")
    runs.run_job(config)
    assert stores.committed(f"{s3_url}/out") == undisturbed
    assert verify(output_path(f"{s3_url}/out")) == []


@pytest.mark.parametrize("bucket", ["s3"], indirect=True)
def test_a_run_disturbed_at_random_ends_with_the_same_bytes(source: Path, bucket: stores.DisturbedBucket) -> None:
    stores.put(f"{bucket.url}/in/in.jsonl", source.read_bytes())
    runs.run_job(runs.job(f"{bucket.url}/in", f"{bucket.url}/out"))
    expected = stores.committed(f"{bucket.url}/out")
    bucket.proxy.disturb_at_random(seed=7)
    finished = False
    for _ in range(5):
        with suppress(StoreError):
            runs.run_job(runs.job(f"{bucket.url}/in", f"{bucket.url}/disturbed"))
            finished = True
            break
    assert finished
    assert stores.committed(f"{bucket.url}/disturbed") == expected
    assert verify(output_path(f"{bucket.url}/disturbed")) == []


def report(name: str) -> CommitRecord:
    files = {
        table: DataFile(path=f"{table}/{name}.parquet", rows=1, size=4, sha256="0" * 64) for table in DOCUMENT_TABLES
    }
    return CommitRecord(shard=0, generation=0, read=1, annotated=1, unchanged=0, dead_letters=0, files=files)


def test_the_second_commit_of_a_shard_removes_its_parts_unless_it_is_the_first_again(s3_url: str) -> None:
    folder = OutputFolder(f"{s3_url}/out")
    first, second = (report(name) for name in ("part-00000-g0-11111111", "part-00000-g0-22222222"))
    for part in (*first.files.values(), *second.files.values()):
        stores.put(f"{s3_url}/out/{part.path}", b"rows")
    # The response to the first request may have been lost.
    assert folder.commit(first) == folder.commit(first) == folder.find_commit(0, generation=0) == first
    assert folder.commit(second) == first
    left = [name for name in stores.contents(f"{s3_url}/out") if "part" in name]
    assert left == sorted(part.path for part in first.files.values())


def test_verify_finds_damaged_missing_and_orphaned_parts(source: Path, s3_url: str) -> None:
    output = f"{s3_url}/out"
    runs.run_job(runs.job(source, output))
    part = min(name for name in stores.contents(output) if name.startswith("tokens/"))
    whole = stores.get(f"{output}/{part}")

    flipped = bytearray(whole)
    flipped[len(flipped) // 2] ^= 1
    stores.put(f"{output}/{part}", bytes(flipped))
    assert verify(output_path(output), deep=False) == []
    assert [(found.place, "SHA-256 differs" in found.problem) for found in verify(output_path(output))] == [
        (part, True)
    ]
    stores.put(f"{output}/{part}", whole[:-1])
    assert [found.place for found in verify(output_path(output), deep=False)] == [part]
    stores.remove(f"{output}/{part}")
    stores.put(f"{output}/tokens/part-00099-g0-00000000.parquet", b"orphan")
    problems = {found.place: found.problem for found in verify(output_path(output), deep=False)}
    assert problems[part] == "missing"
    assert "orphan" in problems["tokens/part-00099-g0-00000000.parquet"]

    runs.run_job(runs.job(source, output))
    parts = [name for name in stores.contents(output) if name.startswith("tokens/")]
    assert whole in [stores.get(f"{output}/{name}") for name in parts]
    assert verify(output_path(output)) == []


def test_annotate_reads_no_annotated_collection(source: Path, s3_url: str) -> None:
    stores.put(f"{s3_url}/in.jsonl", source.read_bytes())
    with pytest.raises(InputError, match="output: expected a folder neither in the input"):
        runs.run_job(runs.job(s3_url, f"{s3_url}/out"))
    config = runs.job(f"{s3_url}/*", f"{s3_url}/out")
    assert runs.run_job(config).read == runs.run_job(config).read == 13
    assert runs.run_job(runs.job(s3_url, f"{s3_url}/out", accept_input=True)).read == 13
    with pytest.raises(InputError, match=r"neither in the input .* nor around it"):
        runs.run_job(runs.job(f"{s3_url}/out/documents", f"{s3_url}/out", accept_input=True))
    with pytest.raises(InputError, match="got an annotated collection"):
        runs.run_job(runs.job(f"{s3_url}/out", source.parent / "out"))


def test_an_unreachable_store_exits_with_the_code_for_a_retry(
    source: Path, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = runs.job(source, f"{s3_url}/out")
    runs.run_job(config)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    object_stores.clients.clear()
    for action in (lambda: runs.run_job(config), lambda: verify(output_path(f"{s3_url}/out"))):
        with pytest.raises(StoreError, match="run the same command again") as caught:
            action()
        assert caught.value.exit_code == 75


@pytest.mark.parametrize("output", ["memory://out", "https://host/out", "abfs://container/out"])
def test_annotate_refuses_an_output_that_is_neither_a_folder_nor_in_a_store(source: Path, output: str) -> None:
    with pytest.raises(InputError, match="expected a folder, s3://, gs:// or az://"):
        runs.run_job(runs.job(source, output))
