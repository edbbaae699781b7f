"""The records of runs: packing loses none, however it ends, and always writes the same bytes."""

import json
import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from concord_testing.checkout import CHECKOUT

from concord.models.errors import ConfigError
from research.grid import records
from research.grid.records import PACKED, pack_records, read_records, rounded, write_record
from research.grid.settings import current_in
from research.tests.grids import record, small_grid

CURRENT = current_in(small_grid())


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    return tmp_path / "grid.jsonl"


def test_packed_records_are_sorted_and_leave_the_working_folder(packed: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    assert pack_records(packed, work, CURRENT) == []
    assert not packed.exists()
    for seed in (3, 1, 2):
        write_record(work, record("wide", seed, [5]))
    before = read_records(packed, work, CURRENT)
    assert pack_records(packed, work, CURRENT) == ["ours.small.wide.1", "ours.small.wide.2", "ours.small.wide.3"]
    assert list((work / "records").iterdir()) == []
    assert [json.loads(line)["seed"] for line in packed.read_text().splitlines()] == [1, 2, 3]
    assert read_records(packed, work, CURRENT) == before


def test_packed_file_does_not_depend_on_the_order_of_packing(tmp_path: Path) -> None:
    packed = [tmp_path / "together.jsonl", tmp_path / "one_by_one.jsonl"]
    for seed in (1, 2, 3):
        write_record(tmp_path / "together", record("wide", seed, [5]))
    pack_records(packed[0], tmp_path / "together", CURRENT)
    for seed in (2, 3, 1):
        write_record(tmp_path / "single", record("wide", seed, [5]))
        pack_records(packed[1], tmp_path / "single", CURRENT)
    assert packed[0].read_bytes() == packed[1].read_bytes()


@pytest.mark.parametrize("killed", ["before the write", "after it"])
def test_packing_that_is_killed_is_repeated(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: str
) -> None:
    write_record(tmp_path, record("wide", 1, [5]))
    place, name = (records, "write_atomically") if killed == "before the write" else (Path, "unlink")
    with monkeypatch.context() as patch:
        patch.setattr(place, name, Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            pack_records(packed, tmp_path, CURRENT)
    assert (tmp_path / "records/ours.small.wide.1.json").exists()
    before = read_records(packed, tmp_path, CURRENT)
    assert pack_records(packed, tmp_path, CURRENT) == (["ours.small.wide.1"] if killed == "before the write" else [])
    assert not (tmp_path / "records/ours.small.wide.1.json").exists()
    assert read_records(packed, tmp_path, CURRENT) == before


def test_two_different_records_of_a_run_are_refused(packed: Path, tmp_path: Path) -> None:
    write_record(tmp_path, record("wide", 1, [5]))
    pack_records(packed, tmp_path, CURRENT)
    content = packed.read_bytes()
    write_record(tmp_path, record("wide", 1, [6]))
    for read in (read_records, pack_records):
        with pytest.raises(ConfigError, match=re.escape(f"ours.small.wide.1.json: expected the record that {packed}")):
            read(packed, tmp_path, CURRENT)
    packed.write_bytes(content * 2)
    with pytest.raises(ConfigError, match=r"grid.jsonl:2: expected one record a run, got a second of"):
        read_records(packed, tmp_path / "elsewhere", CURRENT)


def earlier(correct: int) -> dict[str, Any]:
    found = record("wide", 1, [correct])
    return {**found, "settings": {**found["settings"], "fit": {**found["settings"]["fit"], "epochs": 2}}}


def test_current_record_replaces_an_earlier_one(packed: Path, tmp_path: Path) -> None:
    write_record(tmp_path, earlier(5))
    pack_records(packed, tmp_path, CURRENT)
    new = record("wide", 1, [6])
    write_record(tmp_path, new)
    assert read_records(packed, tmp_path, CURRENT)["ours.small.wide.1"] == new
    assert pack_records(packed, tmp_path, CURRENT) == ["ours.small.wide.1"]
    assert read_records(packed, tmp_path, CURRENT) == {"ours.small.wide.1": new}


@pytest.mark.parametrize("known", [record("wide", 1, [5]), earlier(5)])
def test_record_of_an_earlier_configuration_replaces_none(packed: Path, tmp_path: Path, known: dict[str, Any]) -> None:
    write_record(tmp_path, known)
    pack_records(packed, tmp_path, CURRENT)
    write_record(tmp_path, earlier(6))
    for read in (read_records, pack_records):
        with pytest.raises(ConfigError, match=re.escape(f"ours.small.wide.1.json: expected the record that {packed}")):
            read(packed, tmp_path, CURRENT)
    assert [json.loads(line) for line in packed.read_text().splitlines()] == [known]


@pytest.mark.parametrize("content", ['{"run": "ours', "[]", "{}", "7"])
def test_broken_record_is_named(packed: Path, tmp_path: Path, content: str) -> None:
    (tmp_path / "records").mkdir()
    (tmp_path / "records/half.json").write_text(content)
    with pytest.raises(ConfigError, match=r"half.json: expected the record of a run, delete it to run it again"):
        read_records(packed, tmp_path, CURRENT)
    packed.write_text(f"{json.dumps(record('wide', 1, [5]))}\n{content}\n")
    with pytest.raises(ConfigError, match=r"grid.jsonl:2: expected the record of a run, delete it to run it again"):
        read_records(packed, tmp_path / "elsewhere", CURRENT)


@pytest.mark.slow
def test_committed_records_are_packed_as_packing_writes_them(tmp_path: Path) -> None:
    lines = (CHECKOUT / PACKED).read_bytes().splitlines()[::20]
    for line in lines:
        write_record(tmp_path, json.loads(line))
    pack_records(tmp_path / "again.jsonl", tmp_path, CURRENT)
    assert (tmp_path / "again.jsonl").read_bytes().splitlines() == lines


def test_numbers_are_rounded_within_plain_values() -> None:
    values = {"seconds": 1.23456, "counts": ((3, 0.11119),), "name": "x", "none": None}
    assert rounded(values) == {"seconds": 1.2346, "counts": [[3, 0.1112]], "name": "x", "none": None}
    assert rounded(values, digits=1)["seconds"] == 1.2
