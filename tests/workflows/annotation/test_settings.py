"""Settings that a run leaves out are those of the collection, and only those that decide labels tag anything again."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from concord_testing import runs
from concord_testing.command_line import concord_json

from concord.models.config import flatten
from concord.models.errors import ModelError
from concord.pipeline.config import AnnotateConfig
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.verify import verify
from concord.pipeline.run_report import RunReport
from concord.workflows.annotation.job import job_values, read_annotate_job, resolve_job, with_settings_of_collection

pytestmark = pytest.mark.slow

NEUTRAL = [
    "output.keep_text=true",
    "output.keep=3",
    "output.grace_seconds=5",
    "parser.batch_documents=3",
    "tagger.batch_words=50",
    "tagger.accept_parser=true",
    "planning.shard_bytes=40",
    "max_dead_letters=0.3",
    "report=false",
    "reader.format=jsonl",
    "reader.encoding=auto",
    "reader.main_content=true",
    "reader.max_record_bytes=1000",
]
DECIDING = ["tagger.samples=3", "tagger.threshold=0.2", "tagger.precision=bf16"]
ONE_RUN = [
    "limit=3",
    "max_removed=1",
    "accept_input=true",
    "executor.threads=1",
    "executor.drain_seconds=5",
    "planning.rehash=true",
]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return runs.write_collection(tmp_path / "in.jsonl", documents=4)


def given(source: Path, *overrides: str, job: Path | None = None) -> tuple[AnnotateConfig, dict[str, Any]]:
    """Return the job of a command, and what it takes from the collection."""
    values = job_values({"output": str(source.parent / "out")})
    values |= {} if job is not None else {"input": str(source)}
    config = read_annotate_job(job, values=values, overrides=overrides)
    return with_settings_of_collection(config, OutputFolder(config.output.path))


def run(source: Path, *overrides: str, job: Path | None = None) -> RunReport:
    return runs.run_job(given(source, *overrides, job=job)[0])


def texts(source: Path) -> Sequence[str | None]:
    stored: list[str | None] = pq.read_table(source.parent / "out" / "documents")["raw_text"].to_pylist()
    return stored


def test_a_command_that_leaves_settings_out_does_what_the_first_did(source: Path) -> None:
    first = ["output.keep_text=true", "reader.id_field=id", "tagger.threshold=0.2", "output.keep=2"]
    run(source, *first)
    before = runs.committed_bytes(source.parent / "out")
    for overrides in (first, [], ["output.keep_text=true"], ["reader.text_field=text"]):
        report = run(source, *overrides)
        assert (report.annotated, report.changes.description) == (0, "no changes")
        assert runs.committed_bytes(source.parent / "out") == before
    assert None not in texts(source)
    taken = {"output.keep": 2, "output.keep_text": True, "tagger.threshold": 0.2}
    assert given(source)[1] == taken
    assert given(source, "output.keep=2", "tagger.threshold=0.3")[1] == {"output.keep_text": True}


def test_new_documents_are_annotated_with_the_settings_of_the_collection(source: Path) -> None:
    records = [{"name": f"n{number}", "body": "Anna met Bob."} for number in range(3)]
    source.write_text("".join(json.dumps(record) + "\n" for record in records[:2]))
    run(source, "output.keep_text=true", "reader.text_field=body", "reader.id_field=name")
    source.write_text("".join(json.dumps(record) + "\n" for record in records))
    report = run(source)
    assert (report.annotated, report.unchanged) == (1, 2)
    assert texts(source) == ["Anna met Bob."] * 3


def test_only_a_setting_that_decides_labels_tags_everything_again_and_holds(source: Path) -> None:
    run(source)
    for override in NEUTRAL:
        report = run(source, override)
        assert (report.annotated, report.words, report.changes.again, report.reasons) == (0, 0, 0, ()), override
    assert not verify(source.parent / "out")
    assert run(source).changes.description == "no changes"
    for override in DECIDING:
        announced: list[tuple[str, ...]] = []
        config, _ = given(source, override)
        report = runs.run_job(config, progress=lambda progress, told=announced: told.append(progress.reasons))
        assert (report.annotated, report.changes.again) == (4, 4)
        assert [reason.split(":")[0] for reason in report.reasons] == [override.split("=")[0]]
        assert announced[0] == report.reasons
        assert run(source).annotated == 0


def test_every_setting_is_known_to_decide_or_not_to(source: Path) -> None:
    config = read_annotate_job(None, values={"input": str(source), "output": "out"})
    deciding = flatten(config.values_where(lambda mark: mark.what == "labels")).keys()
    labels = {f"parser.{name}" for name in ("language", "trees", "tags")}
    assert deciding == labels | {"output.candidates", *(override.split("=")[0] for override in DECIDING)}
    kept = config.lasting.keys()
    assert not kept & {
        "input",
        "output.path",
        "limit",
        "max_removed",
        "accept_input",
        "planning.rehash",
        "tagger.device",
    }
    assert not [key for key in kept if key.startswith("executor.")]


def test_stored_texts_are_dropped_only_if_the_command_says_so(source: Path) -> None:
    run(source, "output.keep_text=true")
    for overrides in ([], ["tagger.threshold=0.1"], ["planning.shard_bytes=100"], ["limit=4"]):
        run(source, *overrides)
        assert None not in texts(source)
    report = run(source, "output.keep_text=false")
    assert (report.annotated, report.changes.texts) == (0, 4)
    assert set(texts(source)) == {None}
    assert run(source, "output.keep_text=true").annotated == 0
    assert None not in texts(source)


def test_texts_are_stored_of_documents_that_have_moved_in_their_file(source: Path) -> None:
    run(source)
    lines = source.read_text().splitlines(keepends=True)
    source.write_text("".join(reversed(lines)))
    report = run(source, "output.keep_text=true")
    assert (report.annotated, report.changes.texts) == (0, 4)
    assert sorted(map(str, texts(source))) == sorted(json.loads(line)["text"] for line in lines)


def test_another_reading_of_the_input_tags_only_the_texts_that_it_changes(tmp_path: Path) -> None:
    source = tmp_path / "in.csv"
    source.write_bytes("id,text\na,Anna came.\nb,Bj\u00f6rn left.\n".encode("windows-1252"))
    run(source, "reader.encoding=cp1250")
    # The letters are the same in both, and another one in Cyrillic.
    report = run(source, "reader.encoding=windows-1252")
    assert (report.annotated, report.changes.moved) == (0, 2)
    assert run(source, "reader.encoding=cp1251").changes.changed == 1
    report = run(source, "reader.encoding=windows-1252", "output.keep_text=true")
    assert (report.annotated, report.changes.changed) == (1, 1)
    documents = pq.read_table(tmp_path / "out" / "documents").to_pylist()
    assert {row["doc_id"]: row["encoding"] for row in documents} == {"a": "cp1252", "b": "cp1252"}
    assert sorted(map(str, texts(source))) == ["Anna came.", "Bj\u00f6rn left."]
    report = run(source, "reader.id_field=name", "reader.text_field=text", "max_removed=1")
    assert (report.annotated, report.changes.moved) == (0, 2)


def test_settings_of_a_run_that_found_nothing_to_do_hold(source: Path) -> None:
    run(source)
    assert run(source, "output.keep=3", "max_dead_letters=0.7").annotated == 0
    assert given(source)[1] == {"max_dead_letters": 0.7, "output.keep": 3}
    settings = source.parent / "out" / "_run" / "settings.yaml"
    settings.write_text(f"{settings.read_text()}limit: 1\nexecutor.kind: ray\nother: 1\n")
    config, taken = given(source)
    assert (config.limit, config.executor.kind, len(taken)) == (None, "local", 2)
    settings.unlink()
    assert given(source)[1] == {}


@pytest.mark.parametrize("override", ONE_RUN)
def test_permissions_and_where_a_run_works_do_not_hold_for_the_next(source: Path, override: str) -> None:
    run(source, override)
    config, taken = given(source)
    assert taken == {}
    assert config == given(source.with_name("in.jsonl"))[0]
    assert run(source).annotated == (1 if override == "limit=3" else 0)


def test_a_job_file_says_what_it_names_and_leaves_the_rest_to_the_collection(source: Path) -> None:
    run(source, "output.keep_text=true", "tagger.threshold=0.2", "output.keep=2")
    job = source.parent / "job.yaml"
    job.write_text(f"input: {source}\noutput: out\ntagger: {{threshold: 0.3}}\n")
    config, taken = given(source, "output.keep=4", job=job)
    assert (config.tagger.threshold, config.output.keep, config.output.keep_text) == (0.3, 4, True)
    assert taken == {"output.keep_text": True}


def test_a_tagger_of_the_collection_that_is_missing_is_to_be_named_in_the_job(source: Path) -> None:
    run(source, "tagger.model=entities_bo")
    values = {"input": str(source), "output": str(source.parent / "out")}
    with pytest.raises(ModelError, match=r"\nentities_bo is the tagger .* Name one in the job") as caught:
        resolve_job(read_annotate_job(None, values=values))
    assert str(caught.value).startswith("entities_bo: expected ")
    with pytest.raises(ModelError, match=r"^xyz: expected [^\n]*$"):
        resolve_job(read_annotate_job(None, values={**values, "tagger.model": "xyz"}))


def test_an_interrupted_run_is_taken_up_with_its_settings(source: Path) -> None:
    config, taken = given(source, "tagger.threshold=0.2", "planning.shard_bytes=1")
    assert taken == {}

    def stop(_: object) -> None:
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        runs.run_job(config, progress=stop)
    report = run(source)
    assert (report.annotated, report.shards) == (4, 4)
    assert OutputFolder(report.output).plan().config.tagger.threshold == 0.2


def test_a_retry_holds_for_one_run(source: Path) -> None:
    with source.open("a") as file:
        file.write("{broken\n")
    run(source, "output.keep_text=true", "max_dead_letters=1")
    assert run(source, "planning.retry=all").changes.retried == 1
    assert run(source).changes.retried == 0
    assert given(source)[1] == {"max_dead_letters": 1.0, "output.keep_text": True}


def test_the_command_line_names_the_settings_that_it_takes(source: Path) -> None:
    output = source.parent / "out"
    command = ["annotate", str(source), "--output", str(output)]
    concord_json(*command, "--model", "entities_en_small", "--set", "output.keep_text=true", "--set", "report=false")
    again = concord_json(*command)
    expected = {"output.keep_text": True, "report": False, "tagger.model": "entities_en_small"}
    assert (again["annotated"], again["taken"]) == (0, expected)
    assert concord_json(*command, "--dry-run")["taken"] == expected
