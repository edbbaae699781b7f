"""What only a real Ray can show, on one cluster; what the driver decides is tested on a simulated one.

The cluster has three CPUs and a GPU that is declared to Ray but does not exist: the division of work, on the CPU.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from concord_testing import fakes, runs
from concord_testing.broken_files import hostile_files, samples
from concord_testing.checkout import CHECKOUT
from concord_testing.command_line import concord as concord_command
from concord_testing.heads import Head, ray_head, ray_node
from concord_testing.processes import command_of, descendants, ray_workers
from concord_testing.tiny_taggers import tiny_bundle

import concord
from concord.pipeline.config import AnnotateConfig
from concord.pipeline.corrections.correction import LOG_NAME, Correction, Mark, Seen, append_to_log
from concord.pipeline.output.verify import verify

# Named as exported, since a linter sees no use of fixtures.
__all__ = ["tiny_bundle"]

SUPPORT = str(CHECKOUT / "tests" / "support")
# Ray ends a driver a minute after its cluster is gone, which is too long for a test.
GONE = {"RAY_gcs_rpc_server_reconnect_timeout_s": "5"}
HOSTILE: dict[str, Any] = {
    # Ten times as many seconds by the clock, also on a busy machine.
    "reader": {"extraction_memory_bytes": 128 << 20, "extraction_seconds": 3, "id_field": "key"},
    "planning": {"shard_bytes": 50_000},
    "max_dead_letters": 1,
    "max_lost_files": 99,
}
DRIVERS: list[BaseProcess] = []
TEXTS = ["Ada met Charles in London.", "", "He left Paris for Boston."]

IS_SLOW = pytest.mark.slow(reason="each worker is a process that imports Ray and torch")
pytestmark = [pytest.mark.ray, IS_SLOW, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    """Give the cluster of this file."""
    with ray_head(dashboard=True, options=("--num-cpus=3", "--num-gpus=1")) as started:
        yield started


@pytest.fixture(autouse=True)
def drivers_ended() -> Iterator[None]:
    """Let the drivers of a test that fails not disturb the next."""
    yield
    while DRIVERS:
        DRIVERS.pop().kill()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file of twelve documents."""
    return runs.write_collection(tmp_path / "in.jsonl")


def ray_job(source: Path, output: Path, *, changes: Mapping[str, Any] | None = None, **executor: Any) -> AnnotateConfig:
    """Return a job for Ray with one worker of one thread."""
    return runs.job(source, output, executor={"kind": "ray", "threads": 1, "actors": 1} | executor, **changes or {})


def start(work: Callable[[], object], address: str, **environment: str) -> BaseProcess:
    """Start a driver that joins a cluster; without an address, one that starts its own."""
    variables = {"RAY_ADDRESS": address, "RAY_AUTH_MODE": "disabled", "PYTHONPATH": SUPPORT}
    DRIVERS.append(runs.in_child(work, **variables | environment))
    return DRIVERS[-1]


def start_job(config: AnnotateConfig, head: Head) -> BaseProcess:
    """Start a driver that writes its report beside the output."""

    def work() -> None:
        report = runs.run_job(config)
        Path(config.output.path).with_suffix(".json").write_text(json.dumps(asdict(report), default=str))

    return start(work, head.address)


def finish(process: BaseProcess) -> int:
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def report_of(output: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(output.with_suffix(".json").read_text())
    return found


def commits(output: Path) -> int:
    return len(list(output.glob("_run/commits/*/*.json")))


def has_more_commits(output: Path, than: int) -> bool:
    return commits(output) > than


def wait_until(happened: Callable[[], object], process: BaseProcess | None = None) -> None:
    """Wait for something that happens while a driver runs."""
    while not happened():
        assert process is None or process.is_alive()
        time.sleep(0.02)


def check_equal(output: Path, expected: Path) -> None:
    found, wanted = runs.committed_bytes(output), runs.committed_bytes(expected)
    assert [name for name in wanted if wanted[name] != found.get(name)] == []
    assert found.keys() == wanted.keys()
    assert verify(output) == []


def test_workers_with_gpus_write_the_bytes_of_a_local_run_and_store_its_texts_later(tmp_path: Path, head: Head) -> None:
    folder = tmp_path / "archive"
    folder.mkdir()
    for name, content in hostile_files().items():
        (folder / name).write_bytes(content)
    source = runs.write_collection(folder / "in.jsonl", extra=("a PARSERFAULT", "", "Ann \t met Bob"))
    lines = source.read_text().splitlines(keepends=True)
    text, doc_id = json.loads(lines[5])["text"], f"in.jsonl:{len(''.join(lines[:5]))}"
    mark = Mark(start=0, end=len(text.split()[0]), type="ORG", text=text.split()[0])
    corrected = Correction.of(None, mark, text=text, seen=Seen(doc_id=doc_id, tagger="t", generation=0), who="ada")
    local, output = tmp_path / "local", tmp_path / "ray"
    for path in (local, output):
        path.mkdir()
        append_to_log(path / LOG_NAME, [corrected])
    copy = tmp_path / "copy"

    def with_texts(path: Path) -> dict[str, Any]:
        return {**HOSTILE, "output": {"path": str(path), "keep_text": True}}

    def work() -> None:
        runs.run_job(ray_job(folder, output, changes=HOSTILE, actors=2, gpus=0.5))
        runs.copy_output(output, copy)
        runs.run_job(ray_job(folder, output, changes=with_texts(output), gpus=1))

    assert finish(start(work, head.address)) == 0
    runs.run_job(runs.job(folder, local, **HOSTILE))
    check_equal(copy, local)
    runs.run_job(runs.job(folder, local, **with_texts(local)))
    check_equal(output, local)
    entities = pq.read_table(output / "entities").to_pylist()
    assert [row["label"] for row in entities if row["source"] == "corrected"] == ["ORG"]
    documents = pq.read_table(output / "documents")
    assert None not in documents["raw_text"].to_pylist()
    found = {Path(uri).name for uri in documents["source_uri"].to_pylist()}
    assert {sample.name for sample in samples().values() if sample.encoding == "utf-8"} <= found
    errors = {Path(row["source_uri"]).name: row["error"] for row in pq.read_table(output / "errors").to_pylist()}
    expected = {"abort.pdf": "extraction_died", "endless.html.gz": "took_too_long"}
    assert errors.items() >= {**expected, "large.html": "took_too_much_memory"}.items()
    assert len([name for name in errors if name not in found]) > 40


def test_documents_that_kill_or_stall_their_workers_are_left_out_and_workers_that_end_or_hang_replaced(
    source: Path, tmp_path: Path, head: Head
) -> None:
    output, local = tmp_path / "out", tmp_path / "local"
    runs.run_job(runs.job(source, local))
    runs.write_collection(source, extra=("a KILLER", "a STALLER", "Bob saw it."))
    runs.configure_fakes(source, seconds=0.1)
    limits = {"reader": {"extraction_seconds": 0.1}}
    config = ray_job(source, output, changes=limits, actors=2, shard_seconds=5.0)
    process = start(lambda: runs.run_job(config), head.address)
    wait_until(lambda: commits(output) and len(ray_workers(head.pid)) > 1, process)
    for victim, number in zip(ray_workers(head.pid), (signal.SIGTERM, signal.SIGSTOP), strict=False):
        os.kill(victim, number)
    assert finish(process) == 0
    rows = pq.read_table(output / "errors").to_pylist()
    assert [(row["doc_id"], row["stage"], row["error"]) for row in rows] == [
        ("d12", "parse", "annotation_died"),
        ("d13", "parse", "took_too_long"),
    ]
    assert verify(output) == []
    assert not list(output.glob("_run/attempts/*/*"))
    for table in ("tokens", "entities"):
        found = pq.read_table(output / table, filters=[("doc_id", "!=", "d14")])
        assert found.equals(pq.read_table(local / table))


def test_workers_that_do_not_fit_or_cannot_be_built_end_the_run(
    source: Path, tmp_path: Path, head: Head, capfd: pytest.CaptureFixture[str]
) -> None:
    fitting = ray_job(source, tmp_path / "fitting")
    refused: list[dict[str, Any]] = [
        {"actors": 3, "threads": 2},
        {"actors": 2, "gpus": 1},
    ]

    def work() -> None:
        for number, executor in enumerate(refused):
            with pytest.raises(concord.ConfigError) as caught:
                runs.run_job(ray_job(source, tmp_path / str(number), **executor))
            print(caught.value, file=sys.stderr)
        runs.run_job(fitting, build=fakes.build_no_worker)

    assert finish(start(work, head.address)) == 2
    said = capfd.readouterr().err
    assert "3 workers of 2 CPUs and 0 GPUs do not fit the Ray cluster (3 CPUs and 1 GPUs)" in said
    assert "2 workers of 1 CPUs and 1 GPUs do not fit the Ray cluster (3 CPUs and 1 GPUs)" in said
    assert "ModelError: a worker cannot be built: OSError: no weights for fake_tagger" in said
    assert not list(tmp_path.glob("*/*/*.parquet"))


def test_shards_of_a_lost_node_are_done_by_other_workers(tmp_path: Path, head: Head) -> None:
    source = runs.write_collection(tmp_path / "in.jsonl", documents=40)
    runs.run_job(runs.job(source, tmp_path / "local"))
    runs.configure_fakes(source, seconds=0.1)
    output = tmp_path / "out"

    with ray_node(head, options=("--num-cpus=1", "--num-gpus=1")) as node:
        process = start(lambda: runs.run_job(ray_job(source, output, actors=2, gpus=1)), head.address)
        wait_until(lambda: commits(output) and ray_workers(node) and ray_workers(head.pid), process)
        before = commits(output)
    assert before < len(list((tmp_path / "local").glob("_run/commits/*/*.json")))
    assert finish(process) == 0
    check_equal(output, tmp_path / "local")


def test_workers_above_their_memory_are_replaced(tmp_path: Path, head: Head) -> None:
    source = runs.write_collection(tmp_path / "in.jsonl", documents=6)
    runs.run_job(runs.job(source, tmp_path / "local"))
    output = tmp_path / "out"
    others, seen = {*ray_workers(head.pid)}, set[int]()
    process = start_job(ray_job(source, output, worker_memory_bytes=1), head)
    while process.is_alive():
        seen |= {*ray_workers(head.pid)} - others
        time.sleep(0.05)
    assert finish(process) == 0
    # After the last shard no new worker is needed.
    assert 1 < len(seen) <= report_of(output)["shards"]
    check_equal(output, tmp_path / "local")


def test_run_that_is_killed_or_stopped_on_either_executor_is_continued_on_the_other(tmp_path: Path, head: Head) -> None:
    source, output = runs.write_collection(tmp_path / "in.jsonl", documents=40), tmp_path / "out"
    runs.run_job(runs.job(source, tmp_path / "local"))
    killed_here = runs.in_child(lambda: runs.run_job(runs.job(source, output)), crash_at="commit:2")
    assert finish(killed_here) == -signal.SIGKILL
    runs.configure_fakes(source, seconds=0.2)
    for number, exit_code in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 143)):
        done = commits(output)
        process = start_job(ray_job(source, output), head)
        wait_until(partial(has_more_commits, output, done), process)
        assert process.pid is not None
        os.kill(process.pid, number)
        assert finish(process) == exit_code
    runs.configure_fakes(source)
    assert runs.run_job(runs.job(source, output)).done_before > 3
    check_equal(output, tmp_path / "local")


def test_run_ends_when_the_store_of_its_own_ray_dies_and_leaves_nothing(tmp_path: Path) -> None:
    source = runs.write_collection(tmp_path / "in.jsonl", documents=40)
    # The paths of Ray's sockets must be short.
    folder = Path("/tmp") / f"r{os.getpid()}"
    folder.mkdir()
    runs.run_job(runs.job(source, tmp_path / "local"))
    runs.configure_fakes(source, seconds=0.3)
    output, config = tmp_path / "out", ray_job(source, tmp_path / "out")

    def work() -> None:
        runs.run_job(config)

    process = start(work, "", RAY_TMPDIR=str(folder), **GONE)
    assert process.pid is not None
    wait_until(partial(has_more_commits, output, 0), process)
    started = list(descendants(process.pid))
    [store] = (pid for pid in started if b"gcs_server" in command_of(pid))
    os.kill(store, signal.SIGKILL)
    assert finish(process) > 0
    wait_until(lambda: not any(map(command_of, started)) and not list(folder.iterdir()))

    runs.configure_fakes(source)
    done = commits(output)
    process = start(work, "", RAY_TMPDIR=str(folder), **GONE)
    assert finish(process) == 0
    assert 0 < done < commits(output)
    check_equal(output, tmp_path / "local")
    assert not list(folder.iterdir())
    folder.rmdir()


def test_a_submitted_job_is_followed_to_its_end_and_its_exit_code_returned(
    tmp_path: Path, tiny_bundle: Path, head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [json.dumps({"text": f"Ada King lives in London, at number {number}."}) for number in range(4)]
    (tmp_path / "in.jsonl").write_text("\n".join([*lines, "not JSON"]) + "\n")
    job = tmp_path / "tiny.yaml"
    job.write_text(
        f"input: {tmp_path}/in.jsonl\noutput: {tmp_path}/out\ntagger: {{model: {tiny_bundle}}}\n"
        "planning: {shard_bytes: 100}\nexecutor: {actors: 1}\nmax_dead_letters: 0\n"
    )
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    # This must not be mistaken for the job server.
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    done = concord_command("submit", job, "--address", head.job_server, "--python", sys.executable, "--json")
    assert done.exit_code == 3, done.output
    assert (json.loads(done.stdout)["status"], json.loads(done.stdout)["exit_code"]) == ("FAILED", 3)
    assert "5 of 5 records (100%)" in done.stderr
    assert "words/s" in done.stderr
    assert "5 read = 4 annotated + 0 unchanged + 1 dead letter" in done.stderr
    assert verify(tmp_path / "out") == []


def test_a_dataset_is_annotated_on_ray(head: Head) -> None:
    """In a process of its own: this one stays unconnected, as other tests expect."""
    code = f"""
import json, sys
import ray, ray.data
import concord

ray.init(address={head.address!r}, log_to_driver=False)
dataset = ray.data.from_items([{{"id": number, "text": text}} for number, text in enumerate({TEXTS * 2!r})])
annotated = dataset.map_batches(
    concord.Annotator,
    fn_constructor_kwargs={{"model": "entities_en_small"}},
    batch_format="pyarrow",
    batch_size=4,
    concurrency=1,
)
rows = sorted(annotated.take_all(), key=lambda row: row["id"])
print(json.dumps([[row["id"], [entity["text"] for entity in row["entities"]]] for row in rows]))
"""
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled", "PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    nlp = concord.load("entities_en_small")
    expected = [[number, [entity.text for entity in nlp(text).entities]] for number, text in enumerate(TEXTS * 2)]
    assert json.loads(done.stdout.splitlines()[-1]) == expected
