"""Finished runs: opened and read by their manifest alone, and verified against it."""

from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
from concord_testing import runs, stores

from concord.pipeline.documents import DeadLetter
from concord.pipeline.errors import IntegrityError, PlanError
from concord.pipeline.output.collection import open_collection
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.verify import verify
from concord.pipeline.plan import PLAN_VERSION

FinishRun = Callable[..., Path]

DOCUMENTS = {name: (f"{name} slept",) for name in ("Ada", "Bob", "Eva")}
DEAD_LETTER = DeadLetter(
    doc_id=None, source_uri="/data/a", position=3, stage="read", error="invalid_json", message="no"
)


def test_collection_reads_only_the_parts_in_the_manifest(finish_run: FinishRun) -> None:
    output = finish_run(DOCUMENTS, dead_letters=[DEAD_LETTER])
    (output / "documents" / "part-00009-g0-orphan.parquet").write_bytes(b"orphan")
    collection = open_collection(output)
    assert len(collection.parts("documents")) == 2
    documents = [
        collection.read_rows(report, "documents", ("doc_id",))["doc_id"].to_pylist()
        for report in collection.manifest.shards
    ]
    assert documents == [["Ada", "Bob"], ["Eva"]]
    errors = [
        collection.read_rows(report, "errors", ("error", "position")).to_pylist()
        for report in collection.manifest.shards
    ]
    assert errors == [[{"error": "invalid_json", "position": 3}], []]


def test_open_collection_ignores_an_unfinished_generation(finish_run: FinishRun) -> None:
    output = finish_run(DOCUMENTS)
    folder = OutputFolder(output)
    folder.write_plan(folder.plan().model_copy(update={"generation": 1}))
    collection = open_collection(output)
    assert (folder.latest_generation(), collection.plan.generation, collection.manifest.generation) == (1, 0, 0)


def test_open_collection_refuses_a_folder_without_a_finished_run(finish_run: FinishRun, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="found no plan"):
        open_collection(tmp_path)
    output = finish_run(DOCUMENTS)
    manifest = output / "current" / "manifest.json"
    manifest.write_bytes(b"[]")
    with pytest.raises(IntegrityError, match="not a manifest"):
        open_collection(output)
    runs.unfinish(output)
    with pytest.raises(PlanError, match="not finished"):
        open_collection(output)


def test_collection_of_another_version_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    job = runs.job(runs.write_collection(tmp_path / "in.jsonl"), tmp_path / "out")
    output = runs.folder_of(runs.run_job(job))
    plan = output / "current" / "plan.json"
    plan.write_bytes(plan.read_bytes().replace(f'"plan_version":{PLAN_VERSION}'.encode(), b'"plan_version":2'))
    before = runs.committed_bytes(output)
    for refused in (lambda: runs.run_job(job), lambda: open_collection(output)):
        with pytest.raises(PlanError, match=rf"expected a plan of version {PLAN_VERSION}.*annotate the input again"):
            refused()
    assert runs.committed_bytes(output) == before


def test_a_folder_of_collections_names_those_inside(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="nowhere: there is no such folder"):
        open_collection(tmp_path / "nowhere")
    for name in ("c", "a", "deep/b", *(f"z{number}" for number in range(4))):
        (tmp_path / "out" / name / "_run" / "plans").mkdir(parents=True)
    with pytest.raises(PlanError) as caught:
        open_collection(tmp_path / "out")
    named = ", ".join(str(tmp_path / "out" / name) for name in ("a", "c", "deep/b", "z0", "z1"))
    assert str(caught.value).endswith(f"no collection, but a folder of collections; choose one: {named}, 2 more")
    with pytest.raises(PlanError, match=f"choose one: {tmp_path}/out/deep/b$"):
        open_collection(tmp_path / "out" / "deep")


def test_verify_needs_a_finished_run(output: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(PlanError, match="found no plan"):
        verify(tmp_path / "empty")
    assert verify(output) == []
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
    path = output / "current" / "manifest.json"
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
    assert any(place in finding.place and problem in finding.problem for finding in findings), findings


def test_shallow_verify_finds_a_missing_part_but_not_a_flipped_byte(output: Path) -> None:
    flip_a_byte(output)
    assert verify(output, deep=False) == []
    some_part(output).unlink()
    assert len(verify(output, deep=False)) == 1
