"""The commands of the grid: running what has no record, surviving a kill or a failed run, packing, rendering."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from concord_testing.checkout import CHECKOUT

from concord.pipeline.storage.locks import exclusive
from research.grid import command
from research.grid.config import GridConfig, Run
from research.grid.records import write_record
from research.tests.grids import record, write_grid

pytestmark = pytest.mark.slow


def places(folder: Path) -> list[str]:
    return ["--results", str(folder / "grid.jsonl"), "--work", str(folder / "work")]


def call(verb: str, folder: Path, *options: str) -> Result:
    return CliRunner().invoke(command.main, [verb, *options, *places(folder)])


@pytest.mark.parametrize(
    ("options", "message"), [(["--table", "none"], "--table: expected one of"), (["--grid", "none"], "none: expected")]
)
def test_run_names_a_table_or_grid_that_does_not_exist(tmp_path: Path, options: list[str], message: str) -> None:
    result = call("run", tmp_path, "--data", str(tmp_path), *options)
    assert (result.exit_code, message in result.stderr) == (2, True), result.output


@pytest.mark.slow(reason="starts the grid, and trains four systems")
def test_killed_run_is_resumed_with_the_same_result(tmp_path: Path) -> None:
    conf = write_grid(tmp_path)

    options = ["--grid", str(conf), "--data", str(CHECKOUT / "examples"), "--table", "main", "--seed", "1"]
    command = [sys.executable, "-m", "research.grid", "run", *options, *places(tmp_path / "killed")]
    with subprocess.Popen(command, cwd=CHECKOUT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        next(line for line in process.stderr if line.startswith("epoch 1/3"))
        process.send_signal(signal.SIGKILL)
    assert not (tmp_path / "killed/work/records").exists()
    for name in ("killed", "undisturbed"):
        assert call("run", tmp_path / name, *options).exit_code == 0

    def recorded(name: str) -> dict[str, Any]:
        found = {path.name: json.loads(path.read_text()) for path in (tmp_path / name / "work/records").iterdir()}
        return {
            file: (values["dev"]["scores"], values["units"], values["best"]["loss"]) for file, values in found.items()
        }

    assert recorded("killed") == recorded("undisturbed")
    assert set(recorded("killed")) == {"ours.small.bilstm_softmax.1.json", "ours.small.wide.1.json"}
    assert call("run", tmp_path / "killed", *options).stderr == ""


def test_run_skips_what_is_recorded_and_goes_on_after_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[str] = []

    def train_run(run: Run, _: GridConfig, *, work: Path, **__: object) -> dict[str, Any]:
        trained.append(run.name)
        if run.row.own_key == "wide":
            raise OSError("the disk is on fire")
        (work / run.name).mkdir(parents=True)
        return record(run.row.own_key, run.seed, [5])

    monkeypatch.setattr(command, "train_run", train_run)
    options = ["--grid", str(write_grid(tmp_path)), "--data", str(CHECKOUT / "examples"), "--table", "main"]
    result = call("run", tmp_path, *options)
    assert result.exit_code == 1
    assert "the disk is on fire" in result.stderr
    assert "failed: ours.small.wide.1, ours.small.wide.2" in result.stderr
    assert {path.name for path in (tmp_path / "work/records").iterdir()} == {
        "ours.small.bilstm_softmax.1.json", "ours.small.bilstm_softmax.2.json"
    }  # fmt: skip
    assert not (tmp_path / "work/ours.small.bilstm_softmax.1").exists()

    write_record(tmp_path / "work", record("wide", 1, [5]))
    assert call("pack", tmp_path, *options[:2]).exit_code == 0
    write_record(tmp_path / "work", record("wide", 2, [5]))
    trained.clear()
    assert call("run", tmp_path, *options).exit_code == 0
    assert trained == []

    old = record("bilstm_softmax", 2, [5])
    packed = tmp_path / "grid.jsonl"
    lines = [line for line in packed.read_text().splitlines() if json.loads(line)["run"] != old["run"]]
    lines.append(json.dumps({**old, "settings": {**old["settings"], "revision": 0}}))
    packed.write_text("".join(f"{line}\n" for line in lines))
    left = call("status", tmp_path, *options[:2]).stdout.splitlines()
    assert [line.split() for line in left if line.startswith(("main", "more", "all"))] == [
        ["main", "4", "0", "1", "0.0"], ["more", "1", "1", "0", "0.0"], ["all", "5", "1", "1", "0.0"]
    ]  # fmt: skip
    assert call("run", tmp_path, *options).exit_code == 0
    assert trained == ["ours.small.bilstm_softmax.2"]


def test_run_leaves_a_run_to_the_process_that_locks_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "train_run", lambda run, *_, **__: pytest.fail(f"{run.name} was trained"))
    options = ["--grid", str(write_grid(tmp_path)), "--data", str(tmp_path), "--table", "more"]
    with exclusive(tmp_path / "work/alone.small.uanet.1.lock"):
        result = call("run", tmp_path, *options)
    assert (result.exit_code, result.stderr) == (0, "")


def test_render_writes_the_pages_from_packed_and_new_records(tmp_path: Path) -> None:
    page, claims = tmp_path / "docs/page.md", tmp_path / "claims.md"
    options = ["--grid", str(write_grid(tmp_path)), "-o", str(page), "--claims", str(claims)]
    assert call("render", tmp_path, *options).exit_code == 0
    assert "| wide | not run |" in page.read_text()
    assert "| Wide is better | Ours |" in claims.read_text()
    write_record(tmp_path / "work", record("wide", 1, [5, 5]))
    assert call("render", tmp_path, *options).exit_code == 0
    rendered = page.read_text()
    assert "| wide | 50.0 | 50.0 | 90.0 |" in rendered
    result = call("pack", tmp_path)
    assert "grid.jsonl: 1 new record\n" in result.stderr
    call("render", tmp_path, *options)
    assert page.read_text() == rendered
    (tmp_path / "grid.jsonl").write_text('{"run": "ours')
    result = call("render", tmp_path, *options)
    assert result.exit_code == 2
    assert "grid.jsonl:1: expected the record of a run, delete it to run it again" in result.stderr


# All tests of all claims take five minutes.
@pytest.mark.timeout(900)
@pytest.mark.release
def test_pages_are_those_of_the_packed_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CHECKOUT)
    page, claims = tmp_path / "results.md", tmp_path / "claims.md"
    options = ["--output", str(page), "--claims", str(claims), "--work", str(tmp_path / "none")]
    result = CliRunner().invoke(command.main, ["render", *options])
    assert result.exit_code == 0, result.output
    # Until they are: python -m research.grid pack, then render.
    assert page.read_text() == (CHECKOUT / "docs/results.md").read_text()
    assert claims.read_text() == (CHECKOUT / "research/claims.md").read_text()
    assert page.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
