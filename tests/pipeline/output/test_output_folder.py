"""Commit records, the manifest, and the check of what stands there."""

import errno
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from concord_testing import runs

from concord.pipeline.errors import IntegrityError, PlanError, ReconciliationError, StoreError
from concord.pipeline.output.manifest import PartFile, ShardReport
from concord.pipeline.output.output_folder import OutputFolder, verify
from concord.pipeline.output.schema import SCHEMAS
from concord.pipeline.plan import Plan
from concord.pipeline.storage.files import file_sha256


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """Give the output folder of a finished run of three shards or more, with a dead letter."""
    source = runs.write_collection(tmp_path / "in.jsonl", extra=("PARSERFAULT",))
    runs.run_job(runs.job(source, tmp_path / "out"))
    return tmp_path / "out"


@pytest.fixture
def plan(output: Path) -> Plan:
    """Give that run's plan."""
    return OutputFolder(output).plan()


def part_with(output: Path, content: bytes, shard: int) -> ShardReport:
    path = f"documents/part-{shard:05d}-g0-{content.hex()[:8]}.parquet"
    (output / "documents").mkdir(parents=True, exist_ok=True)
    (output / path).write_bytes(content)
    part = PartFile(path=path, rows=1, size=len(content), sha256="0" * 64)
    return ShardReport(
        shard=shard, generation=0, read=1, annotated=1, unchanged=0, dead_letters=0, files={"documents": part}
    )


def test_the_first_commit_counts_and_the_second_cleans_up(tmp_path: Path) -> None:
    folder = OutputFolder(tmp_path)
    first, second = part_with(tmp_path, b"first", 0), part_with(tmp_path, b"second", 0)
    assert folder.commit(first) == first
    assert folder.commit(second) == first
    assert [path.name for path in (tmp_path / "documents").iterdir()] == [Path(first.files["documents"].path).name]
    assert not any(folder.staging.iterdir())


def test_a_second_commit_of_equal_bytes_keeps_the_file(tmp_path: Path) -> None:
    folder = OutputFolder(tmp_path)
    report = part_with(tmp_path, b"same", 0)
    folder.commit(report)
    assert folder.commit(report) == report
    assert (tmp_path / report.files["documents"].path).exists()


def test_of_many_commits_at_once_one_counts(tmp_path: Path) -> None:
    folder = OutputFolder(tmp_path)
    for shard in range(10):
        reports = [part_with(tmp_path, bytes([attempt]) * 4, shard) for attempt in range(8)]
        with ThreadPoolExecutor(8) as pool:
            winners = list(pool.map(folder.commit, reports))
        assert len({orjson.dumps(winner) for winner in winners}) == 1
        left = [path.name for path in (tmp_path / "documents").glob(f"part-{shard:05d}-*")]
        assert left == [Path(winners[0].files["documents"].path).name]


def test_no_space_commits_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = OutputFolder(tmp_path)
    report = part_with(tmp_path, b"x", 0)

    def no_space(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(StoreError):
        folder.commit(report)
    assert not folder.record_path(0, generation=0).exists()


def test_a_store_without_hard_links_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(_source: Path, _target: Path) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(StoreError, match="no hard links"):
        OutputFolder(tmp_path).commit(part_with(tmp_path, b"x", 0))


def test_another_plan_of_the_same_generation_is_refused(output: Path, plan: Plan) -> None:
    other = plan.model_copy(update={"threads": 3})
    with pytest.raises(PlanError, match="another run has just begun generation 0"):
        OutputFolder(output).write_plan(other)


def test_an_equal_plan_for_another_executor_is_taken(output: Path, plan: Plan) -> None:
    executor = plan.config.executor.model_copy(update={"kind": "ray"})
    before = OutputFolder(output).plan_path(0).read_bytes()
    OutputFolder(output).write_plan(
        plan.model_copy(update={"config": plan.config.model_copy(update={"executor": executor})})
    )
    assert OutputFolder(output).plan_path(0).read_bytes() == before


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="found no plan"):
        verify(tmp_path)


def test_shards_with_whole_parts_are_done(output: Path, plan: Plan) -> None:
    folder = OutputFolder(output)
    done = folder.committed_shards(plan)
    assert sorted(done) == [shard.index for shard in plan.shards]
    assert len(done) > 2
    (output / done[0].files["tokens"].path).unlink()
    cut = output / done[1].files["tokens"].path
    cut.write_bytes(cut.read_bytes()[:-1])
    folder.record_path(2, generation=0).write_text("{")
    assert sorted(folder.committed_shards(plan)) == [shard.index for shard in plan.shards][3:]


def test_only_records_of_broken_shards_are_withdrawn(output: Path, plan: Plan) -> None:
    folder = OutputFolder(output)
    (output / folder.committed_shards(plan)[1].files["entities"].path).unlink()
    folder.remove_broken_commits(plan.shards, generation=0)
    there = [folder.record_path(shard.index, generation=0).exists() for shard in plan.shards]
    assert there == [shard.index != 1 for shard in plan.shards]


def test_finishing_needs_every_shard(output: Path, plan: Plan) -> None:
    folder = OutputFolder(output)
    folder.record_path(1, generation=0).unlink()
    with pytest.raises(IntegrityError, match="shard 00001"):
        folder.finish(plan)


def test_finishing_checks_the_equation_in_total(output: Path, plan: Plan) -> None:
    with pytest.raises(ReconciliationError, match="records were planned"):
        OutputFolder(output).finish(plan.model_copy(update={"read": plan.read + 1}))


def test_the_manifest_lists_every_part_in_order(output: Path, plan: Plan) -> None:
    manifest = OutputFolder(output).manifest()
    assert manifest is not None
    assert (manifest.read, manifest.annotated, manifest.dead_letters) == (13, 12, 1)
    for name in SCHEMAS:
        listed = [part.path for part in manifest.files(name)]
        assert listed == sorted(path.relative_to(output).as_posix() for path in (output / name).iterdir())
    assert len(manifest.files("errors")) == 1
    assert manifest.plan == plan.digest


def test_a_whole_run_has_no_findings(output: Path) -> None:
    assert verify(output) == []


def test_an_unfinished_run_is_a_finding(output: Path) -> None:
    (output / "_run" / "manifest.json").unlink()
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
    path = OutputFolder(output).record_path(0, generation=0)
    path.write_bytes(path.read_bytes().replace(b'"read":', b'"read":1'))


def edit_manifest(output: Path) -> None:
    folder = OutputFolder(output)
    values = orjson.loads(folder.manifest_path.read_bytes())
    values["shards"][0]["annotated"] += 1
    folder.manifest_path.write_bytes(orjson.dumps(values))


@pytest.mark.parametrize(
    ("harm", "place", "problem"),
    [
        (flip_a_byte, "tokens/part-00000", "SHA-256 differs"),
        (lambda output: some_part(output).unlink(), "tokens/part-00000", "missing"),
        (lambda output: some_part(output).write_bytes(b""), "tokens/part-00000", "bytes, found 0"),
        (lambda output: (output / "errors" / "part-x.parquet").touch(), "errors/part-x.parquet", "stray"),
        (lambda output: (output / "_run" / "staging" / "x").touch(), "_run/staging/x", "stray"),
        (lambda output: OutputFolder(output).record_path(1, generation=0).unlink(), "_run/commits/0/00001", "missing"),
        (edit_record, "_run/commits/0/00000.json", "not what the manifest says"),
        (edit_manifest, "_run/commits/0/00000.json", "not what the manifest says"),
        (lambda output: OutputFolder(output).plan_path(0).write_text("{}"), "_run/plans/0.json", ""),
    ],
)
def test_harm_is_found(output: Path, harm: Callable[[Path], None], place: str, problem: str) -> None:
    harm(output)
    findings = verify(output)
    assert any(finding.place.startswith(place) and problem in finding.problem for finding in findings), findings


def test_a_shallow_look_finds_what_is_missing_but_not_a_flipped_byte(output: Path) -> None:
    flip_a_byte(output)
    assert verify(output, deep=False) == []
    some_part(output).unlink()
    assert len(verify(output, deep=False)) == 1


def rewrite(output: Path, name: str, change: Callable[[pa.Table], pa.Table]) -> None:
    """Change a committed table of the first shard and make record and manifest say so."""
    folder = OutputFolder(output)
    manifest = folder.manifest()
    assert manifest is not None
    first = manifest.shards[0]
    path = output / first.files[name].path
    table = change(pq.read_table(path))
    pq.write_table(table, path)
    part = replace(
        first.files[name],
        rows=table.num_rows,
        size=path.stat().st_size,
        sha256=file_sha256(path),
    )
    report = replace(first, files={**first.files, name: part})
    folder.record_path(0, generation=0).write_bytes(orjson.dumps(report))
    shards = (report, *manifest.shards[1:])
    folder.manifest_path.write_bytes(orjson.dumps(replace(manifest, shards=shards)))


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
        ("documents", with_column("doc_id", lambda ids: [ids[0]] * len(ids)), "stands twice"),
        ("sentences", lambda table: table.slice(1), "in order"),
        ("sentences", with_column("sent_id", lambda ids: [*ids[1:], 9]), "does not count from 0"),
        ("sentences", with_column("start_char", lambda starts: [1, *starts[1:]]), "that of the first word"),
        ("tokens", lambda table: table.slice(0, table.num_rows - 1), "does not add up"),
        ("tokens", with_column("start_char", lambda starts: [starts[1], *starts[1:]]), "offsets leave the document"),
        ("tokens", with_column("end_char", lambda ends: [ends[1], *ends[1:]]), "overlap"),
        ("tokens", with_column("text", lambda texts: ["longer text", *texts[1:]]), "not as long as"),
        ("tokens", with_column("head", lambda heads: [99, *heads[1:]]), "head is not in its sentence"),
        ("tokens", with_column("token_id", lambda ids: [7, *ids[1:]]), "does not count from 1"),
        ("entities", with_column("entity_id", lambda ids: [5, *ids[1:]]), "does not count from 0"),
        ("entities", with_column("text", lambda texts: ["longer text", *texts[1:]]), "not as long as"),
        ("tokens", lambda table: table.drop_columns(["lemma"]), "its columns are not those"),
        ("tokens", lambda table: table.replace_schema_metadata({}), "expected schema version 2, got None"),
    ],
)
def test_contents_that_do_not_fit_together_are_found(
    output: Path, name: str, change: Callable[[pa.Table], pa.Table], problem: str
) -> None:
    rewrite(output, name, change)
    findings = verify(output)
    assert any(problem in finding.problem for finding in findings), findings


def test_the_same_document_in_two_shards_is_found(output: Path) -> None:
    second = pq.read_table(sorted((output / "documents").iterdir())[1])["doc_id"][0].as_py()
    rewrite(output, "documents", with_column("doc_id", lambda ids: [second, *ids[1:]]))
    assert any(f"document {second!r} stands twice" in finding.problem for finding in verify(output))
