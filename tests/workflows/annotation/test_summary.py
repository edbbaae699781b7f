"""What summary and status say of the collection, its last change, and of shards and workers in trouble."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from concord_testing import runs, stores

import concord
from concord.pipeline.config import AnnotateConfig
from concord.pipeline.output.collection import open_collection
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.planning.planner import Planner
from concord.pipeline.run_report import RunReport
from concord.pipeline.worker.crash_log import CrashLog
from concord.workflows.annotation import inspection
from concord.workflows.annotation.summary import describe_run


@pytest.fixture
def config(tmp_path: Path) -> AnnotateConfig:
    """Return a job with a document for which memory does not suffice."""
    source = runs.write_collection(tmp_path / "in.jsonl", extra=("a GREEDY", "Anna ends it."))
    return runs.job(source, tmp_path / "out", report=True)


def summary_of(report: RunReport, config: AnnotateConfig) -> str:
    return describe_run(report, config=config, collection=open_collection(report.output))


@pytest.mark.slow
def test_summary_status_and_report_name_a_shard_that_backed_off(config: AnnotateConfig) -> None:
    report = runs.run_job(config)
    (name,) = (shard.name for shard in OutputFolder(report.output).plan().shards[-1:])

    summary = summary_of(report, config)
    assert "1 shard backed off, and may differ in bytes from those of an undisturbed run" in summary
    assert f"{name} one document at a time" in summary

    answer = inspection.status(report.output)
    assert answer.values["backed_off"] == {name: "alone"}
    assert f"shard {name} was done one document at a time" in answer.text

    assert isinstance(report.report, Path)
    assert f"<code>{name}</code> one document at a time." in report.report.read_text(encoding="utf-8")


@pytest.mark.slow
def test_an_undisturbed_run_does_not_mention_backing_off(config: AnnotateConfig) -> None:
    runs.write_collection(Path(config.input))
    report = runs.run_job(config)
    assert "backed off" not in summary_of(report, config)
    assert inspection.status(report.output).values["backed_off"] == {}
    assert isinstance(report.report, Path)
    assert "back off" not in report.report.read_text(encoding="utf-8")


@pytest.mark.slow
def test_status_names_the_shards_whose_workers_died(config: AnnotateConfig) -> None:
    output = runs.run_job(config).output
    plan = OutputFolder(output).plan()
    CrashLog(plan).record_death(plan.shards[0], "worker_died", None)
    answer = inspection.status(output)
    assert answer.values["trials"]["00000"]["deaths"] == 1
    assert "shard 00000: workers that died: 1 on the whole shard" in answer.text


@pytest.mark.slow
def test_status_report_and_summary_speak_of_the_collection_and_of_its_last_change(tmp_path: Path) -> None:
    source = runs.write_collection(tmp_path / "in.jsonl")
    config = runs.job(source, tmp_path / "out", report=True)
    first = runs.run_job(config)
    status = inspection.status(first.output)
    assert status.values["collection"]["documents"] == status.values["last_change"]["annotated"] == 12
    lines = source.read_text().splitlines(keepends=True)
    source.write_text("".join([*lines[2:], json.dumps({"id": "new", "text": "Anna met Bob."}) + "\n"]))
    report = runs.run_job(config)

    status = inspection.status(report.output)
    entities = open_collection(report.output).manifest.shards
    assert status.values["collection"]["documents"] == 11
    assert status.values["collection"]["entities"] == sum(shard.stats["entities"] for shard in entities)
    change = status.values["last_change"]
    assert (change["generation"], change["annotated"], change["unchanged"]) == (1, 1, 10)
    assert (change["changes"]["new"], change["changes"]["removed"]) == (1, 2)
    assert "entities in 11 documents" in status.text
    assert "generation 1" in status.text
    assert "1 annotated, 10 unchanged" in status.text
    assert "1 new, 2 removed" in status.text
    assert "so far" not in status.text

    assert "the collection holds" in summary_of(report, config)
    assert isinstance(report.report, Path)
    page = " ".join(re.sub(r"<[^>]*>", " ", report.report.read_text(encoding="utf-8")).split())
    assert "11 records = 11 documents + 0 dead letters" in page
    assert "Last change, generation 1: 1 annotated, 10 unchanged; 1 new, 2 removed" in page


def test_status_during_an_update_describes_what_readers_see(tmp_path: Path) -> None:
    source = runs.write_collection(tmp_path / "in.jsonl")
    config = runs.job(source, tmp_path / "out")
    report = runs.run_job(config)
    runs.write_collection(source, documents=8)
    folder = OutputFolder(report.output)
    folder.write_plan(Planner(runs.resolved(config)).resolve())
    status = inspection.status(report.output)
    assert not status.values["finished"]
    assert (status.values["generation"], status.values["collection"]["documents"]) == (1, 12)
    assert status.values["last_change"]["generation"] == 0
    assert "so far" in status.text
    current = folder.generations.current()
    assert current is not None
    stores.local(current.manifest_path).write_bytes(b"broken")
    assert inspection.status(report.output).values["collection"] is None


def test_the_summary_counts_replaced_workers_by_cause(tmp_path: Path) -> None:
    config = runs.job(runs.write_collection(tmp_path / "in.jsonl"), tmp_path / "out")
    report = runs.run_job(config)
    assert report.replaced == {}
    assert "replaced" not in summary_of(report, config)
    changed = replace(report, replaced={"memory": 2, "worker_died": 1})
    assert "3 workers replaced: 2 used too much memory, 1 died" in summary_of(changed, config)


def test_the_summary_counts_guessed_encodings_and_the_rows_name_them(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    for number, text in enumerate(("Muñoz met Anna.", "Zoë met Bob.", "Bob left.")):
        (source / f"{number}.txt").write_bytes(text.encode("latin-1"))
    (source / "3.txt").write_text("Łukasz left.", encoding="utf-8")
    config = runs.job(source, tmp_path / "out", reader={"encoding": "auto"})

    report = runs.run_job(config)

    assert "2 texts were not UTF-8; encodings guessed" in summary_of(report, config)
    rows = (
        concord.open(str(report.output)).to_arrow("documents").select(["encoding", "encoding_confidence"]).to_pylist()
    )
    assert [row["encoding"] for row in rows] == ["cp1252", "cp1252", "utf-8", "utf-8"]
    assert [row["encoding_confidence"] is None for row in rows] == [False, False, True, True]


def test_the_summary_counts_values_that_became_null_in_meta_and_names_their_fields(tmp_path: Path) -> None:
    late = pa.array([4_000_000, None, 4_000_000], pa.int32()).cast(pa.date32())
    table = pa.table({"text": ["Anna left.", "Bob left.", "Zoe left."], "when": late, "too": late.take([0, 1, 1])})
    pq.write_table(table, tmp_path / "in.parquet")
    config = runs.job(tmp_path / "in.parquet", tmp_path / "out")

    report = runs.run_job(config)

    assert (report.annotated, report.dead_letters) == (3, 0)
    assert "3 values could not be stored in meta and became null, by field: too 1, when 2" in summary_of(report, config)
    rows = concord.open(str(report.output)).to_arrow("documents").to_pylist()
    assert [row["meta_nulls"] for row in rows] == ['["too","when"]', None, '["when"]']


def test_what_reading_lost_is_still_counted_where_a_file_is_renamed(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    when = pa.array([4_000_000], pa.int32()).cast(pa.date32())
    pq.write_table(pa.table({"text": ["Anna left."], "when": when}), source / "a.parquet")
    (source / "a.txt").write_bytes(b"Bob \xff left.")
    config = runs.job(source, tmp_path / "out", reader={"errors": "replace"})
    runs.run_job(config)
    (source / "a.parquet").rename(source / "b.parquet")
    (source / "a.txt").rename(source / "b.txt")

    report = runs.run_job(config)

    assert (report.changes.moved, report.changes.new) == (2, 0)
    summary = summary_of(report, config)
    assert "1 value could not be stored in meta and became null, by field: when 1" in summary
    assert "1 U+FFFD stand for bytes that are not of the encoding" in summary
    rows = concord.open(str(report.output)).to_arrow("documents").to_pylist()
    assert {row["doc_id"]: (row["meta_nulls"], row["replaced"]) for row in rows} == {
        "b.parquet:0": ('["when"]', 0),
        "b.txt": (None, 1),
    }


def test_the_summary_counts_replaced_characters_and_the_rows_have_them(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    for number, content in enumerate((b"caf\xe9 and \xff", b"Anna left.", b"\xff Bob.")):
        (source / f"{number}.txt").write_bytes(content)
    config = runs.job(source, tmp_path / "out", reader={"errors": "replace"})

    report = runs.run_job(config)

    assert "3 U+FFFD stand for bytes that are not of the encoding" in summary_of(report, config)
    rows = concord.open(str(report.output)).to_arrow("documents").to_pylist()
    assert [row["replaced"] for row in rows] == [2, 0, 1]
