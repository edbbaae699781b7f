"""What summary and status say of the collection, its last change, and of shards and workers in trouble."""

import json
import re
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
from concord.workflows.annotation import inspection
from concord.workflows.annotation.summary import describe_run

pytestmark = pytest.mark.slow


def summary_of(report: RunReport, config: AnnotateConfig) -> str:
    return describe_run(report, config=config, collection=open_collection(report.output))


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


def test_the_summary_counts_guessed_encodings_and_the_rows_name_them(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    for number, text in enumerate(("Muñoz met Anna.", "Zoë met Bob.", "Bob left.")):
        (source / f"{number}.txt").write_bytes(text.encode("latin-1"))
    (source / "3.txt").write_text("Łukasz left.", encoding="utf-8")
    config = runs.job(source, tmp_path / "out", reader={"encoding": "auto"})

    report = runs.run_job(config)

    assert "2 texts not in UTF-8; encodings guessed" in summary_of(report, config)
    rows = (
        concord.open(str(report.output)).to_arrow("documents").select(["encoding", "encoding_confidence"]).to_pylist()
    )
    assert [row["encoding"] for row in rows] == ["cp1252", "cp1252", "utf-8", "utf-8"]
    assert [row["encoding_confidence"] is None for row in rows] == [False, False, True, True]


def test_what_reading_lost_is_counted_also_where_a_file_is_renamed(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    late = pa.array([4_000_000, None], pa.int32()).cast(pa.date32())
    table = pa.table({"text": ["Anna left.", "Bob left."], "when": late, "too": late.take([0, 0])})
    pq.write_table(table, source / "a.parquet")
    (source / "a.txt").write_bytes(b"caf\xe9 and \xff")
    config = runs.job(source, tmp_path / "out", reader={"errors": "replace"})
    for name in ("a", "b"):
        report = runs.run_job(config)
        assert report.dead_letters == 0
        summary = summary_of(report, config)
        assert "3 values could not be stored in meta and became null, by field: too 2, when 1" in summary
        assert "2 characters U+FFFD in place of bytes that are not" in summary
        rows = concord.open(str(report.output)).to_arrow("documents").to_pylist()
        assert {row["doc_id"]: (row["meta_nulls"], row["replaced"]) for row in rows} == {
            f"{name}.parquet:0": ('["too","when"]', 0),
            f"{name}.parquet:1": ('["too"]', 0),
            f"{name}.txt": (None, 2),
        }
        for path in source.iterdir():
            path.rename(path.with_stem("b"))
    assert (report.changes.moved, report.changes.new) == (3, 0)
