"""An input without records: its collection is as finished as any other."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from concord_testing import runs
from concord_testing.command_line import concord, concord_json

from concord import open as open_run
from concord.pipeline.exchange.export import ExportForm, export_collection
from concord.pipeline.output.collection import open_collection
from concord.pipeline.output.schema import SCHEMAS
from concord.pipeline.output.shard_stats import total_counts
from concord.workflows.annotation import inspection
from concord.workflows.annotation.summary import describe_run


def write_empty(folder: Path, kind: str) -> Path:
    """Write an input without records and return its path."""
    if kind == "jsonl":
        (folder / "empty.jsonl").touch()
        return folder / "empty.jsonl"
    if kind == "parquet":
        pq.write_table(pa.table({"text": pa.array([], pa.string())}), folder / "empty.parquet")
        return folder / "empty.parquet"
    (folder / "texts").mkdir()
    (folder / "texts" / "a.jsonl").touch()
    (folder / "texts" / "b.jsonl").write_text("\n\n")
    return folder / "texts"


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "folder"])
def test_an_empty_collection_is_a_result(kind: str, tmp_path: Path) -> None:
    config = runs.job(write_empty(tmp_path, kind), tmp_path / "out", report=True)
    for _ in range(2):
        report = runs.run_job(config)
        assert (report.read, report.shards, report.exit_code) == (0, 0, 0)
        collection = open_collection(report.output)
        assert total_counts(collection.manifest.shards)["entities"] == 0
        summary = describe_run(report, config=config, collection=collection)
        assert summary.startswith("0 read = 0 annotated + 0 unchanged + 0 dead letters\n")
        assert "the input has no records" in summary
        assert "0 entities in 0 documents" in summary
    output = runs.folder_of(report)
    assert inspection.status(output).values["finished"]
    assert inspection.verify(output, deep=True).exit_code == 0
    assert Path(inspection.report(output).values["report"]).exists()
    run = open_run(output)
    assert [getattr(run, name).count_rows() for name in SCHEMAS] == [0, 0, 0, 0, 0, 0]
    forms: tuple[ExportForm, ...] = ("conllu", "jsonl", "brat", "label-studio")
    for form in forms:
        assert export_collection(output, tmp_path / form, to=form).documents == 0


@pytest.mark.slow
def test_the_command_line_reports_an_empty_collection(tiny_bundle: Path, tmp_path: Path) -> None:
    command = ("annotate", write_empty(tmp_path, "jsonl"), "-o", tmp_path / "out", "-m", tiny_bundle)
    for _ in range(2):
        result = concord(*command)
        assert result.exit_code == 0, result.output
        assert result.stdout.startswith("0 read = ")
    assert concord_json(*command)["counts"]["entities"] == 0
    assert concord_json(*command, "--dry-run")["read"] == 0
    (tmp_path / "empty.jsonl").write_text(json.dumps({"text": "Ada met Charles."}) + "\n")
    assert concord_json(*command)["annotated"] == 1
