"""Workers that parse for workers with a GPU, workers that are replaced, and the metrics of both.

The GPU is declared to Ray but does not exist: this tests the division of work, on the CPU.
"""

import json
import re
import time
from collections.abc import Iterator
from dataclasses import asdict
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from concord_testing import fakes, runs
from concord_testing.heads import Head, ray_head

from concord.models.errors import ConfigError
from concord.pipeline.config import AnnotateConfig, ExecutorConfig
from concord.pipeline.executors.ray_cluster import choose_roles, run_on_ray
from concord.pipeline.executors.ray_scheduler import RunMetrics
from concord.pipeline.output.manifest import CommitRecord
from concord.pipeline.output.verify import verify
from concord.pipeline.plan import Plan
from concord.pipeline.planning.build_plan import PlanInputs, make_plan
from concord.pipeline.worker.shard_progress import Timings

SUPPORT = Path(fakes.__file__).parents[1]
# By default Ray reports to its exporter every ten seconds.
OFTEN = {"RAY_metrics_report_interval_ms": "500"}
BUILD: Any = {"build": fakes.build_fake_worker, "build_parse": fakes.build_fake_parse_worker}
ROLES = {"actors": 2, "gpus": 0.5, "parse_actors": 2}


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    """Start a cluster that declares a GPU."""
    with ray_head(options=("--num-cpus=4", "--num-gpus=1"), environment=OFTEN) as started:
        yield started


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file of twelve documents."""
    return runs.write_collection(tmp_path / "in.jsonl")


def ray_job(source: Path, output: Path, **executor: Any) -> AnnotateConfig:
    return runs.job(source, output, executor={"kind": "ray", "threads": 1, "actors": 1} | executor)


def start(config: AnnotateConfig, head: Head, **builders: Any) -> BaseProcess:
    """Start a driver that joins the cluster and writes its report beside the output."""

    def work() -> None:
        report = runs.run_job(config, **builders)
        Path(config.output.path).with_suffix(".json").write_text(json.dumps(asdict(report), default=str))

    variables = {"RAY_ADDRESS": head.address, "RAY_AUTH_MODE": "disabled", "PYTHONPATH": str(SUPPORT), **OFTEN}
    return runs.in_child(work, **variables)


def finish(process: BaseProcess) -> int:
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def report_of(output: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(output.with_suffix(".json").read_text())
    return found


def counters(head: Head, collection: Path) -> dict[str, float]:
    """Read the metrics of a collection as Prometheus does: name -> number, summed over all other tags."""
    with urlopen(head.metrics, timeout=10) as answer:
        text = answer.read().decode()
    found: dict[str, float] = {}
    for name, tags, number in re.findall(r"^ray_concord_(\w+)\{([^}]*)\} (\S+)$", text, re.MULTILINE):
        if f'collection="{collection}"' in tags:
            found[name] = found.get(name, 0.0) + float(number)
    return found


@pytest.mark.ray
def test_two_roles_write_the_same_bytes_as_one(source: Path, tmp_path: Path, head: Head) -> None:
    runs.write_collection(source, extra=("a PARSERFAULT", "", "Ann \t met Bob"))
    runs.run_job(runs.job(source, tmp_path / "local"))
    assert finish(start(ray_job(source, tmp_path / "roles", **ROLES), head)) == 0
    assert runs.committed_bytes(tmp_path / "roles") == runs.committed_bytes(tmp_path / "local")
    assert finish(start(ray_job(source, tmp_path / "one", gpus=1, parse_actors=0), head)) == 0
    assert runs.committed_bytes(tmp_path / "one") == runs.committed_bytes(tmp_path / "local")
    assert report_of(tmp_path / "roles")["seconds"]["parse"] > 0


@pytest.mark.ray
def test_workers_with_a_gpu_receive_parsed_documents(source: Path, tmp_path: Path, head: Head) -> None:
    runs.run_job(runs.job(source, tmp_path / "local"))
    config = ray_job(source, tmp_path / "roles", **ROLES)
    assert finish(start(config, head, build=fakes.build_worker_that_only_tags)) == 0
    assert runs.committed_bytes(tmp_path / "roles") == runs.committed_bytes(tmp_path / "local")


@pytest.mark.ray
def test_shard_is_left_to_the_tagging_worker_when_its_parser_dies(source: Path, tmp_path: Path, head: Head) -> None:
    runs.write_collection(source, extra=("a KILLER",))
    runs.configure_fakes(source, once=str(tmp_path / "killed"))
    assert finish(start(ray_job(source, tmp_path / "roles", **ROLES), head)) == 0
    assert (tmp_path / "killed").exists()
    runs.run_job(runs.job(source, tmp_path / "local"))
    assert runs.committed_bytes(tmp_path / "roles") == runs.committed_bytes(tmp_path / "local")


@pytest.mark.ray
def test_shard_is_left_to_the_tagging_worker_when_its_parser_finds_no_memory(
    source: Path, tmp_path: Path, head: Head
) -> None:
    runs.write_collection(source, extra=("a GREEDY",))
    assert finish(start(ray_job(source, tmp_path / "roles", **ROLES), head)) == 0
    report = report_of(tmp_path / "roles")
    assert (report["annotated"], report["dead_letters"], report["replaced"]) == (12, 1, {})
    assert verify(tmp_path / "roles") == []


@pytest.mark.ray
@pytest.mark.parametrize(
    ("executor", "message"),
    [
        ({"gpus": 1, "actors": 2}, "2 workers of 1 CPUs and 1 GPUs do not fit the Ray cluster (4 CPUs and 1 GPUs)"),
        (
            {"gpus": 0.25, "actors": 2, "parse_actors": 3},
            "3 workers of 1 CPUs and 0 GPUs do not fit the Ray cluster (left by executor.actors: 2 CPUs and 0.5 GPUs); "
            "lower executor.parse_actors",
        ),
    ],
)
def test_workers_of_either_kind_that_do_not_fit_are_rejected(
    source: Path,
    tmp_path: Path,
    head: Head,
    capfd: pytest.CaptureFixture[str],
    executor: dict[str, Any],
    message: str,
) -> None:
    assert finish(start(ray_job(source, tmp_path / "out", **executor), head)) == 2
    assert message in capfd.readouterr().err


@pytest.mark.ray
def test_worker_that_uses_too_much_memory_is_replaced(source: Path, tmp_path: Path, head: Head) -> None:
    runs.run_job(runs.job(source, tmp_path / "local"))
    assert finish(start(ray_job(source, tmp_path / "out", worker_memory_bytes=1), head)) == 0
    report = report_of(tmp_path / "out")
    # After the last shard no new worker is needed.
    assert report["replaced"] == {"memory": report["shards"] - 1}
    assert runs.committed_bytes(tmp_path / "out") == runs.committed_bytes(tmp_path / "local")


@pytest.mark.ray
def test_dead_worker_is_counted_and_one_below_its_memory_limit_stays(source: Path, tmp_path: Path, head: Head) -> None:
    runs.write_collection(source, extra=("a KILLER",))
    runs.configure_fakes(source, once=str(tmp_path / "killed"))
    assert finish(start(ray_job(source, tmp_path / "out", worker_memory_bytes=1 << 40), head)) == 0
    assert report_of(tmp_path / "out")["replaced"] == {"worker_died": 1}


@pytest.mark.ray
def test_worker_that_loses_its_device_is_replaced_and_its_shard_done_again(
    source: Path, tmp_path: Path, head: Head, capfd: pytest.CaptureFixture[str]
) -> None:
    runs.write_collection(source, extra=("a DEVICELOSS",))
    runs.configure_fakes(source, once=str(tmp_path / "lost"))
    assert finish(start(ray_job(source, tmp_path / "out", **ROLES), head)) == 0
    assert "tag: the device is lost: AcceleratorError: CUDA error" in capfd.readouterr().err
    assert report_of(tmp_path / "out")["replaced"] == {"worker_died": 1}
    runs.run_job(runs.job(source, tmp_path / "local"))
    assert runs.committed_bytes(tmp_path / "out") == runs.committed_bytes(tmp_path / "local")


@pytest.mark.ray
def test_prometheus_can_read_the_metrics_of_a_run(source: Path, tmp_path: Path, head: Head) -> None:
    runs.configure_fakes(source, seconds=0.5)
    output = tmp_path / "out"
    process = start(ray_job(source, output), head)
    seen: dict[str, float] = {}
    while process.is_alive():
        seen |= counters(head, output)
        time.sleep(0.2)
    assert finish(process) == 0
    report = report_of(output)
    assert 0 < seen["documents_total"] <= report["annotated"]
    assert 0 < seen["words_total"] <= report["words"]
    assert 0 < seen["stage_seconds_total"] <= sum(report["seconds"].values())
    assert 0 < seen["shards_total"] <= report["shards"]
    assert 0 < seen["shard_seconds_count"] <= report["shards"]
    assert seen["shards_left"] < report["shards"]


class Metric:
    """Remembers its values, by name and tags."""

    values: dict[tuple[str, tuple[tuple[str, str], ...]], float]

    def __init__(self, name: str, *, description: str, tag_keys: tuple[str, ...], boundaries: Any = None) -> None:
        assert description
        self._name = name
        self._keys = set(tag_keys)
        self._default: dict[str, str] = {}

    def set_default_tags(self, tags: dict[str, str]) -> None:
        self._default = tags

    def inc(self, number: float, tags: dict[str, str]) -> None:
        assert number > 0
        key = self._key(tags)
        Metric.values[key] = Metric.values.get(key, 0.0) + number

    def set(self, number: float) -> None:
        Metric.values[self._key({})] = number

    def observe(self, number: float) -> None:
        self.inc(number, {})

    def _key(self, tags: dict[str, str]) -> tuple[str, tuple[tuple[str, str], ...]]:
        tags = self._default | tags
        assert set(tags) == self._keys
        return self._name, tuple(sorted(tags.items()))


def test_metrics_have_names_and_tags() -> None:
    Metric.values = {}
    run_metrics = RunMetrics(counter=Metric, gauge=Metric, histogram=Metric, collection="/out")
    run_metrics.set_shards_left(2)
    report = CommitRecord(shard=0, generation=0, read=3, annotated=2, unchanged=0, dead_letters=1)
    run_metrics.count_shard(report, Timings(read=0.5, parse=2.0, tag=1.0, words=7))
    run_metrics.count_replaced("memory")
    collection = ("collection", "/out")
    assert Metric.values == {
        ("concord_shards_left", (collection,)): 2,
        ("concord_shards_total", (collection,)): 1,
        ("concord_documents_total", (collection,)): 2,
        ("concord_dead_letters_total", (collection,)): 1,
        ("concord_words_total", (collection,)): 7,
        ("concord_stage_seconds_total", (collection, ("stage", "read"))): 0.5,
        ("concord_stage_seconds_total", (collection, ("stage", "parse"))): 2.0,
        ("concord_stage_seconds_total", (collection, ("stage", "tag"))): 1.0,
        ("concord_shard_seconds", (collection,)): 3.5,
        ("concord_workers_replaced_total", (("cause", "memory"), collection)): 1,
    }


@pytest.fixture
def plan(source: Path, tmp_path: Path) -> Plan:
    """A plan for the CPU, of one thread a worker."""
    return make_plan(PlanInputs(job=runs.resolved(runs.job(source, tmp_path / "out")), threads=1))


def numbers(plan: Plan, *nodes: tuple[float, float], shards: int = 1000, **config: Any) -> list[list[int]]:
    """Return how many workers of each kind are on each node, given its CPUs and GPUs."""
    resources = {str(number): {"CPU": cpus, "GPU": gpus} for number, (cpus, gpus) in enumerate(nodes)}
    found = choose_roles(plan, ExecutorConfig(kind="ray", **config), shards, resources, **BUILD)
    return [[role.nodes.count(node) if role.nodes else role.count for node in resources] for role in found]


def test_numbers_are_chosen_so_that_each_cpu_is_given_once(plan: Plan) -> None:
    assert numbers(plan, (16, 1), gpus=0.25) == [[4], [12]]
    assert numbers(plan, (8, 1), gpus=0.25) == [[2], [6]]
    assert numbers(plan, (64, 1), gpus=0.25) == [[4], [60]]
    assert numbers(plan, (2, 1), gpus=0.25) == [[1], [1]]
    assert numbers(plan, (1, 1), gpus=0.25) == [[1]]
    assert numbers(plan, (4, 1), (16, 1), (8, 0), gpus=0.25) == [[1, 4, 0], [3, 12, 8]]
    assert numbers(plan.model_copy(update={"threads": 4}), (16, 1), gpus=0.25) == [[2], [8]]
    assert numbers(plan, (16, 1), gpus=0.25, shards=3) == [[3], [3]]


def test_numbers_of_the_job_hold_and_the_others_follow(plan: Plan) -> None:
    assert numbers(plan, (16, 1), gpus=0.25, actors=2) == [[2], [14]]
    assert numbers(plan, (16, 1), gpus=0.25, parse_actors=3) == [[4], [3]]
    assert numbers(plan, (16, 1), gpus=0.0625, parse_actors=0) == [[16]]
    assert numbers(plan, (16, 1), (16, 1), gpus=0.5, actors=2, parse_actors=4) == [[1, 1], [2, 2]]
    assert numbers(plan, (16, 1)) == [[2]]
    assert numbers(plan, (16, 1), actors=5) == [[5]]


def test_tagger_on_a_gpu_has_a_quarter_of_it_unless_the_job_says_otherwise(plan: Plan) -> None:
    tagger = plan.config.tagger.model_copy(update={"device": "cuda"})
    on_gpu = plan.model_copy(update={"config": plan.config.model_copy(update={"tagger": tagger})})
    assert numbers(on_gpu, (16, 1)) == [[4], [12]]
    assert numbers(on_gpu, (16, 1), gpus=0.5) == [[2], [14]]
    assert numbers(on_gpu, (16, 1), gpus=0) == [[2]]
    with pytest.raises(ConfigError, match=r"1 workers of 1 CPUs and 0.25 GPUs do not fit .* \(16 CPUs and 0 GPUs\)"):
        numbers(on_gpu, (16, 0))


def test_what_was_chosen_is_told(plan: Plan, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    numbers(plan, (16, 1), gpus=0.25)
    numbers(plan, (16, 1), gpus=1, parse_actors=0)
    numbers(plan, (16, 1))
    assert [record.message for record in caplog.records] == [
        "executor.actors=4 with 0.25 GPUs and 1 CPUs each, executor.parse_actors=12 with 1 CPU each",
        "executor.actors=1 with 1 GPUs and 1 CPUs each, executor.parse_actors=0 with 1 CPU each",
    ]


def test_parts_of_two_gpus_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"executor.gpus.*expected a share of one GPU, up to 1, or a whole number"):
        AnnotateConfig.from_mapping({"input": "in", "output": "out", "executor": {"gpus": 1.5}})


def test_workers_that_parse_are_refused_where_none_has_a_gpu(plan: Plan) -> None:
    config = ExecutorConfig(kind="ray", parse_actors=2)
    with pytest.raises(ConfigError, match=r"executor\.parse_actors: expected null .* got 2; set tagger\.device=cuda"):
        run_on_ray(plan, plan.shards, lambda *_: None, config=config)


def test_parser_on_a_gpu_is_rejected_when_separate_workers_parse(source: Path, tmp_path: Path) -> None:
    config = runs.job(source, tmp_path / "out", parser={"device": "cuda"}, executor={"kind": "ray", "gpus": 1})
    plan = make_plan(PlanInputs(job=runs.resolved(config), threads=1))
    with pytest.raises(ConfigError, match=r"set executor.parse_actors=0 to parse where the tagger works"):
        run_on_ray(plan, plan.shards, lambda *_: None, config=config.executor)
