"""Verification of a finished run against its manifest."""

from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
from concord_testing import runs, stores

from concord.pipeline.errors import PlanError
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.verify import verify

pytestmark = pytest.mark.slow


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
