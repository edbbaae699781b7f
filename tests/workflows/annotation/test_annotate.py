"""Annotation with a registered model: resolved before the run, not contacted during it, logged to afterwards."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import Result
from concord_testing.checkout import CHECKOUT
from concord_testing.command_line import concord
from mlflow import MlflowClient
from mlflow.entities import Run

from concord.models.bundles.manifest import tagger_digest
from concord.pipeline.annotate import annotate as run_pipeline
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.run_report import Progress, RunReport
from concord.workflows.annotation import annotate as runs
from concord.workflows.mlflow_client import tracking_uri
from concord.workflows.registry import resolve, set_alias

pytestmark = pytest.mark.slow

DOWN = "http://127.0.0.1:1"
TEXTS = ("Ada King met Charles Babbage in London.", "Nothing happened.", "Zoë flew to Łódź.")


@pytest.fixture
def collection(registered_store: Path) -> Path:
    """Return a collection, next to a registry in which version 1 of `tiny` has the alias `live`."""
    path = registered_store / "documents.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return path


def annotate(collection: Path, name: str = "out", *, settings: Sequence[str] = ()) -> Result:
    chosen = [part for setting in ("planning.shard_bytes=1", *settings) for part in ("--set", setting)]
    return concord("annotate", collection, "-o", collection.parent / name, "-m", "models:/tiny@live", *chosen)


def annotation_runs() -> list[Run]:
    client = MlflowClient(tracking_uri())
    experiment = client.get_experiment_by_name("concord").experiment_id
    return list(client.search_runs([experiment], filter_string="tags.`concord.kind` = 'annotation'"))


@contextmanager
def store_down() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", DOWN)
        yield


def test_a_run_is_logged_once_and_linked_to_the_version(collection: Path, tiny_bundle: Path) -> None:
    for _ in range(2):
        done = annotate(collection)
        assert (done.exit_code, "Warning" in done.stderr) == (0, False), done.output
    (run,) = annotation_runs()
    assert (run.info.status, run.info.run_name) == ("FINISHED", "out")
    assert run.data.tags["concord.model"] == "models:/tiny/1"
    assert run.data.tags["concord.digest"] == tagger_digest(tiny_bundle)
    metrics = run.data.metrics
    assert (metrics["read"], metrics["annotated"], metrics["dead_letters"], metrics["dead_letter_share"]) == (
        3,
        3,
        0,
        0,
    )
    assert metrics["counts.tokens"] == pq.read_table(collection.parent / "out" / "tokens").num_rows
    assert metrics["words_per_second.run"] > 0
    assert run.data.params["tagger.model"] == "models:/tiny@live"
    kept = {item.path for item in MlflowClient(tracking_uri()).list_artifacts(run.info.run_id)}
    assert kept == {"report.html", "stats.json"}
    assert concord("verify", collection.parent / "out").exit_code == 0


def test_a_run_with_an_unregistered_model_is_not_logged(collection: Path, tiny_bundle: Path) -> None:
    with store_down():
        done = concord("annotate", collection, "-o", collection.parent / "out", "-m", tiny_bundle)
    assert (done.exit_code, "Warning" in done.stderr) == (0, False), done.output
    assert annotation_runs() == []


def test_a_run_that_wrote_to_s3_is_logged(collection: Path, s3_url: str) -> None:
    result = concord("annotate", collection, "-o", f"{s3_url}/out", "-m", "models:/tiny@live")
    assert (result.exit_code, "Warning" in result.stderr) == (0, False), result.output
    (run,) = annotation_runs()
    kept = {item.path for item in MlflowClient(tracking_uri()).list_artifacts(run.info.run_id)}
    assert kept == {"report.html", "stats.json"}


def test_a_run_fails_when_the_store_is_down(collection: Path) -> None:
    assert annotate(collection).exit_code == 0
    with store_down():
        refused = annotate(collection, "other")
    assert refused.exit_code == 75
    assert DOWN in refused.stderr
    assert "the alias may have moved, so a cached bundle cannot be used" in refused.stderr
    assert not (collection.parent / "other").exists()


def test_a_run_does_not_need_the_store_while_it_is_working(collection: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def annotate_without_store(*arguments: Any, **named: Any) -> RunReport:
        with store_down():
            return run_pipeline(*arguments, **named)

    monkeypatch.setattr(runs, "annotate", annotate_without_store)
    done = annotate(collection)
    assert (done.exit_code, "Warning" in done.stderr) == (0, False), done.output
    assert len(annotation_runs()) == 1


def test_a_store_that_goes_down_during_the_run_costs_one_warning(
    collection: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def annotate_and_lose_the_store(*arguments: Any, **named: Any) -> RunReport:
        report = run_pipeline(*arguments, **named)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", DOWN)
        return report

    with monkeypatch.context() as patch:
        patch.setattr(runs, "annotate", annotate_and_lose_the_store)
        done = annotate(collection)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    output = collection.parent / "out"
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("3 read = 3 annotated")
    warnings = [line for line in done.stderr.splitlines() if "Warning" in line]
    assert len(warnings) == 1
    assert "Warning: the run is complete, but MLflow could not record it" in warnings[0]
    assert concord("verify", output).exit_code == 0
    assert annotation_runs() == []


def test_a_promotion_during_a_run_takes_effect_in_the_next(
    collection: Path, tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    better = tmp_path / "better"
    better.mkdir()
    for path in tiny_bundle.iterdir():
        content = path.read_bytes()
        (better / path.name).write_bytes(content.replace(b'"trees": null', b'"trees":  null'))
    assert tagger_digest(better) != tagger_digest(tiny_bundle)
    assert concord("registry", "register", better, "--name", "tiny").exit_code == 0
    reported: list[Progress] = []

    def annotate_while_promoting(*arguments: Any, **named: Any) -> RunReport:
        def promote(progress: Progress) -> None:
            reported.append(progress)
            if progress.shards_done == 1:
                set_alias("tiny", "live", 2)

        return run_pipeline(*arguments, **{**named, "progress": promote})

    with monkeypatch.context() as patch:
        patch.setattr(runs, "annotate", annotate_while_promoting)
        assert annotate(collection).exit_code == 0
    assert [done for done, _ in groupby(progress.shards_done for progress in reported)] == [0, 1, 2, 3]
    assert resolve("models:/tiny@live").version == 2
    assert annotate(collection, "next").exit_code == 0
    used = {name: OutputFolder(collection.parent / name).plan().tagger for name in ("out", "next")}
    assert {name: identity.version for name, identity in used.items()} == {"out": "1", "next": "2"}
    for name, identity in used.items():
        documents = pq.read_table(collection.parent / name / "documents")
        assert documents["tagger"].to_pylist() == [f"tiny@{identity.digest}"] * 3
    assert [run.data.tags["concord.model"] for run in annotation_runs()] == ["models:/tiny/2", "models:/tiny/1"]


@pytest.mark.slow(reason="starts a process that loads parser and tagger")
def test_a_worker_needs_no_store_and_imports_no_library_without_need(collection: Path) -> None:
    assert annotate(collection).exit_code == 0
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from concord.pipeline.output.output_folder import OutputFolder\n"
        "from concord.pipeline.worker.shard_worker import build_worker\n"
        "folder = OutputFolder(Path(sys.argv[1]))\n"
        "plan = folder.plan()\n"
        "worker = build_worker(plan)\n"
        "parsed = worker.parse_stage.run(worker.read_stage.run(plan.shards[0]))\n"
        "assert worker.tag_stage.run(parsed)[0].predictions\n"
        "slow_to_import = {'mlflow', 'ray', 'transformers', 'torch._dynamo', 'sympy', 'pandas'}\n"
        "assert slow_to_import.isdisjoint(sys.modules)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT), "MLFLOW_TRACKING_URI": DOWN}
    command = [sys.executable, "-c", code, str(collection.parent / "out")]
    subprocess.run(command, env=environment, check=True)
