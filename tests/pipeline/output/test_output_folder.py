"""Plans, commit records and the manifest of an output folder."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from concord_testing import stores

from concord.pipeline.errors import IntegrityError, PlanError, ReconciliationError
from concord.pipeline.output.manifest import CommitRecord, DataFile, canonical_json
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.schema import DOCUMENT_TABLES, SCHEMAS
from concord.pipeline.plan import Plan

pytestmark = pytest.mark.slow


@pytest.fixture
def plan(output: Path) -> Plan:
    """Return the plan of that run."""
    return OutputFolder(output).plan()


def part_with(output: Path, content: bytes, shard: int) -> CommitRecord:
    files = {}
    for table in DOCUMENT_TABLES:
        path = f"{table}/part-{shard:05d}-g0-{content.hex()[:8]}.parquet"
        place = output / "_run" / "parts" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        files[table] = DataFile(path=path, rows=1, size=len(content), sha256="0" * 64)
    return CommitRecord(shard=shard, generation=0, read=1, annotated=1, unchanged=0, dead_letters=0, files=files)


def test_one_of_many_concurrent_commits_wins(tmp_path: Path) -> None:
    folder = OutputFolder(tmp_path)
    for shard in range(10):
        reports = [part_with(tmp_path, bytes([attempt]) * 4, shard) for attempt in range(8)]
        with ThreadPoolExecutor(8) as pool:
            winners = list(pool.map(folder.commit, reports))
        assert len({canonical_json(winner) for winner in winners}) == 1
        left = [path.name for path in (tmp_path / "_run/parts/documents").glob(f"part-{shard:05d}-*")]
        assert left == [Path(winners[0].files["documents"].path).name]


def test_record_of_another_shard_is_not_taken_for_that_of_a_shard(output: Path, plan: Plan) -> None:
    folder = OutputFolder(output)
    first, second = (output / f"_run/commits/0/{name}.json" for name in ("00000", "00001"))
    first.write_bytes(second.read_bytes())
    assert folder.find_commit(0, generation=0) is None
    assert 0 not in folder.finished_shards(plan)


def test_write_plan_accepts_another_executor_and_no_other_plan_of_the_generation(output: Path, plan: Plan) -> None:
    with pytest.raises(PlanError, match="generation 0 has been started with a different plan"):
        OutputFolder(output).write_plan(plan.model_copy(update={"threads": 3}))
    before = OutputFolder(output).plan_path(0).read_bytes()
    executor = plan.config.executor.model_copy(update={"kind": "ray"})
    config = plan.config.model_copy(update={"executor": executor})
    OutputFolder(output).write_plan(plan.model_copy(update={"config": config}))
    assert OutputFolder(output).plan_path(0).read_bytes() == before


def test_shards_that_have_lost_parts_are_committed_again(output: Path, plan: Plan) -> None:
    folder = OutputFolder(output)
    committed = folder.finished_shards(plan)
    assert sorted(committed) == [shard.index for shard in plan.shards]
    assert len(committed) > 2
    (output / committed[0].files["tokens"].path).unlink()
    assert sorted(folder.finished_shards(plan)) == [shard.index for shard in plan.shards][1:]
    again = part_with(output, b"again", 0)
    assert folder.commit(again) == again == folder.find_commit(0, generation=0)
    assert folder.commit(part_with(output, b"again", 1)) == committed[1]
    stores.local(folder.record_path(0, generation=0)).unlink()
    cut = output / committed[1].files["tokens"].path
    cut.write_bytes(cut.read_bytes()[:-1])
    stores.local(folder.record_path(2, generation=0)).write_text("{")
    assert sorted(folder.finished_shards(plan)) == [shard.index for shard in plan.shards][3:]


def test_finish_checks_the_totals_and_needs_every_shard(output: Path, plan: Plan) -> None:
    folder = OutputFolder(output)
    with pytest.raises(ReconciliationError, match="records were planned"):
        folder.finish(plan.model_copy(update={"read": plan.read + 1}))
    folder.record_path(1, generation=0).unlink(missing_ok=True)
    with pytest.raises(IntegrityError, match="shard 00001"):
        folder.finish(plan)


def test_manifest_lists_every_part_in_shard_order(output: Path, plan: Plan) -> None:
    manifest = OutputFolder(output).manifest()
    assert manifest is not None
    assert (manifest.read, manifest.annotated, manifest.dead_letters) == (13, 12, 1)
    for name in SCHEMAS:
        listed = [part.path for part in manifest.files(name)]
        assert listed == sorted(path.relative_to(output).as_posix() for path in (output / name).iterdir())
    assert len(manifest.files("errors")) == 1
    assert manifest.plan == plan.digest
