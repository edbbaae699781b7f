"""Verification of a finished run against its manifest."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from concord_testing import runs, stores

from concord.pipeline.errors import PlanError
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.verify import verify
from concord.pipeline.storage.files import file_sha256


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """Annotate a small collection: three shards or more, with a dead letter."""
    source = runs.write_collection(tmp_path / "in.jsonl", extra=("PARSERFAULT",))
    runs.run_job(runs.job(source, tmp_path / "out"))
    return tmp_path / "out"


def test_verify_refuses_a_folder_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="found no plan"):
        verify(tmp_path)


def test_verify_finds_nothing_in_a_complete_run(output: Path) -> None:
    assert verify(output) == []


def test_verify_reports_an_unfinished_run(output: Path) -> None:
    runs.unfinish(output)
    (finding,) = verify(output)
    assert "not finished" in finding.problem


def some_part(output: Path, table: str = "tokens") -> Path:
    return min((output / table).iterdir())


def flip_a_byte(output: Path) -> None:
    part = some_part(output)
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)


def edit_record(output: Path) -> None:
    path = stores.local(OutputFolder(output).record_path(0, generation=0))
    path.write_bytes(path.read_bytes().replace(b'"read":', b'"read":1'))


def edit_manifest(output: Path) -> None:
    path = stores.local(OutputFolder(output).manifest_path)
    values = orjson.loads(path.read_bytes())
    values["shards"][0]["annotated"] += 1
    path.write_bytes(orjson.dumps(values))


@pytest.mark.parametrize(
    ("damage", "place", "problem"),
    [
        (flip_a_byte, "tokens/part-00000", "SHA-256 differs"),
        (lambda output: some_part(output).unlink(), "tokens/part-00000", "missing"),
        (lambda output: some_part(output).write_bytes(b""), "tokens/part-00000", "bytes, found 0"),
        (lambda output: (output / "errors" / "part-x.parquet").touch(), "errors/part-x.parquet", "orphan"),
        (lambda output: (output / "_run" / "staging" / "x").touch(), "_run/staging/x", "orphan"),
        (
            lambda output: OutputFolder(output).record_path(1, generation=0).unlink(missing_ok=True),
            "_run/commits/0/00001",
            "missing",
        ),
        (lambda output: some_part(output, "names").unlink(), "names/part-00000", "missing"),
        (edit_record, "_run/commits/0/00000.json", "not what the manifest says"),
        (edit_manifest, "_run/commits/0/00000.json", "not what the manifest says"),
        (lambda output: stores.local(OutputFolder(output).plan_path(0)).write_text("{}"), "_run/plans/0.json", ""),
    ],
)
def test_verify_finds_damage(output: Path, damage: Callable[[Path], None], place: str, problem: str) -> None:
    damage(output)
    findings = verify(output)
    assert any(finding.place.startswith(place) and problem in finding.problem for finding in findings), findings


def test_shallow_verify_finds_a_missing_part_but_not_a_flipped_byte(output: Path) -> None:
    flip_a_byte(output)
    assert verify(output, deep=False) == []
    some_part(output).unlink()
    assert len(verify(output, deep=False)) == 1


def rewrite(output: Path, name: str, change: Callable[[pa.Table], pa.Table]) -> None:
    """Change a committed table of the first shard, or that of names, with its commit record and the manifest."""
    folder = OutputFolder(output)
    manifest = folder.manifest()
    assert manifest is not None
    first = manifest.shards[0]
    [old, *_] = manifest.files(name)
    path = output / old.path
    table = change(pq.read_table(path))
    pq.write_table(table, path)
    part = replace(old, rows=table.num_rows, size=path.stat().st_size, sha256=file_sha256(path))
    if name == "names":
        stores.local(folder.manifest_path).write_bytes(orjson.dumps(replace(manifest, names=part)))
        return
    report = replace(first, files={**first.files, name: part})
    stores.local(folder.record_path(0, generation=0)).write_bytes(orjson.dumps(report))
    shards = (report, *manifest.shards[1:])
    stores.local(folder.manifest_path).write_bytes(orjson.dumps(replace(manifest, shards=shards)))


def with_column(name: str, change: Callable[[list[object]], list[object]]) -> Callable[[pa.Table], pa.Table]:
    def changed(table: pa.Table) -> pa.Table:
        index = table.schema.get_field_index(name)
        values = change(table.column(name).to_pylist())
        return table.set_column(index, table.schema.field(name), pa.array(values, table.schema.field(name).type))

    return changed


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("documents", lambda table: table.slice(1), "unchanged documents, got"),
        ("documents", with_column("doc_id", lambda ids: [ids[0]] * len(ids)), "occurs twice"),
        ("sentences", lambda table: table.slice(1), "in order"),
        ("sentences", with_column("sent_id", lambda ids: [*ids[1:], 9]), "does not count from 0"),
        ("sentences", with_column("start_char", lambda starts: [1, *starts[1:]]), "that of the first word"),
        ("tokens", lambda table: table.slice(0, table.num_rows - 1), "does not add up"),
        ("tokens", with_column("start_char", lambda starts: [starts[1], *starts[1:]]), "offsets leave the document"),
        ("tokens", with_column("end_char", lambda ends: [ends[1], *ends[1:]]), "overlap"),
        ("tokens", with_column("text", lambda texts: ["longer text", *texts[1:]]), "not as long as"),
        ("tokens", with_column("head", lambda heads: [99, *heads[1:]]), "head is not in its sentence"),
        ("tokens", with_column("head", lambda heads: [None, *heads[1:]]), "some words of a document have a head"),
        ("tokens", with_column("token_id", lambda ids: [7, *ids[1:]]), "does not count from 1"),
        ("entities", with_column("entity_id", lambda ids: [5, *ids[1:]]), "does not count from 0"),
        ("entities", with_column("source", lambda sources: ["candidate", *sources[1:]]), "candidates are not the last"),
        ("entities", with_column("text", lambda texts: ["longer text", *texts[1:]]), "not as long as"),
        ("entities", with_column("name", lambda names: ["other", *names[1:]]), "not text with single spaces"),
        ("entities", with_column("identity", lambda numbers: [0] * len(numbers)), "two canonical names"),
        ("entities", with_column("value", lambda values: ["1945", *values[1:]]), "not the normal form"),
        ("names", lambda table: table.slice(1), "mentions in all, as there are entities that are names"),
        ("names", with_column("name_id", lambda ids: [ids[1], *ids[1:]]), "name_id occurs twice"),
        ("names", lambda table: table.drop_columns(["variants"]), "its columns are not those"),
        ("documents", with_column("raw_text", lambda texts: ["other", *texts[1:]]), "does not match its SHA-256"),
        ("documents", with_column("parts", lambda parts: [[], *parts[1:]]), "but no raw_text in which they begin"),
        (
            "documents",
            with_column("parts", lambda parts: [[{"kind": "page", "label": "1", "start": 9999}], *parts[1:]]),
            "leave its text",
        ),
        ("tokens", lambda table: table.drop_columns(["lemma"]), "its columns are not those"),
        ("tokens", lambda table: table.replace_schema_metadata({}), "expected schema version 12, got None"),
    ],
)
def test_verify_finds_inconsistent_tables(
    output: Path, name: str, change: Callable[[pa.Table], pa.Table], problem: str
) -> None:
    rewrite(output, name, change)
    findings = verify(output)
    assert any(problem in finding.problem for finding in findings), findings


def test_verify_finds_a_document_in_two_shards(output: Path) -> None:
    second = pq.read_table(sorted((output / "documents").iterdir())[1])["doc_id"][0].as_py()
    rewrite(output, "documents", with_column("doc_id", lambda ids: [second, *ids[1:]]))
    assert any(f"document {second!r} occurs twice" in finding.problem for finding in verify(output))
