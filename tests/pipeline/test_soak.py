"""The soak test draws schedules from a seed and finds faults; readers beside a writer see one generation at a time."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest
from concord_testing import fakes, hostile, readers
from concord_testing.soak import Archive, Edit, Fault, Round, Schedule, ScheduledRun, SoakSetup, draw, soak

from concord.pipeline.documents import DeadLetter, Document
from concord.pipeline.plan import Plan
from concord.pipeline.worker.shard_worker import BuildWorker, ShardWorker

DOCUMENTS = [(f"d{number}", f"Anna Smith saw {number} cats in Geneva. Bob did not.") for number in range(24)]


def soak_setup(folder: Path, *, build: BuildWorker = fakes.build_fake_worker) -> SoakSetup:
    """Return a setup with fakes that are slow enough for faults to come in the middle of a run."""
    (folder / "fakes.json").write_text(json.dumps({"seconds": 0.01}))
    settings = {"planning": {"shard_bytes": 250}}
    return SoakSetup(documents=DOCUMENTS, folder=folder, settings=settings, build=build)


def test_schedules_are_equal_for_equal_seeds() -> None:
    schedules = [draw(1, number, ray=True) for number in range(40)]
    assert schedules == [draw(1, number, ray=True) for number in range(40)]
    assert len(set(schedules)) == 40
    assert {schedule.executor for schedule in schedules} == {"local", "ray"}
    assert draw(2, 0, ray=True) != schedules[0]


def test_archive_counts_match_its_files_after_edits(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "archive", DOCUMENTS)
    assert (len(archive.ids), archive.broken_records) == (24, 6)
    for number, kind in enumerate(("change", "add", "remove", "rename", "tear") * 8):
        archive.edit(Edit(kind=kind, number=number * 7))  # type: ignore[arg-type]
    archive.write()
    lines = [json.loads(line) for path in archive.folder.glob("*.jsonl") for line in path.read_text().splitlines()]
    files = [path.name for path in archive.folder.iterdir() if path.suffix in (".txt", ".html")]
    with (archive.folder / "table.csv").open(newline="") as table:
        rows = [row["id"] for row in csv.DictReader(table)]
    assert len(rows) > 2
    assert sorted([*files, *rows, *(line["id"] for line in lines if "text" in line)]) == archive.ids
    assert archive.broken_records == sum("text" not in line for line in lines)
    assert archive.broken_records > 6


@pytest.mark.slow(reason="a dozen processes write, die and read")
def test_short_soak_has_no_findings(tmp_path: Path) -> None:
    # Two runs with five faults of four kinds.
    schedules = iter([draw(11, 3, ray=False)])
    [done] = soak(soak_setup(tmp_path), schedules, seconds=240, on_round=lambda _round, _seconds: None)
    assert done.findings == []
    assert sum(event.hit for event in done.events) >= 2
    assert done.shards_compared
    assert done.reads


@pytest.mark.slow
def test_hostile_copies_are_part_of_the_soak(tmp_path: Path) -> None:
    crash = Fault(kind="crash", step="commit:2")
    attack = Fault(kind="hostile", attack=hostile.ATTACKS.index(("_run/parts/documents", "link_to_folder")))
    run = ScheduledRun(edits=(), faults=(crash, attack))
    done = Round(Schedule(seed=1, number=0, executor="local", runs=(run,)), soak_setup(tmp_path))
    done.run()
    assert done.findings == []
    assert [(event.kind, event.hit) for event in done.events] == [("crash", True), ("hostile", True)]


def build_inconsistent_worker(plan: Plan) -> ShardWorker:
    """Build a worker that gives other results in runs with faults."""
    parser = fakes.FakeParser()
    worker = ShardWorker(plan, parser=parser, tagger=fakes.FakeTagger())
    if plan.config.output.path.endswith("/disturbed"):
        fakes.wrap_stage(
            worker.read_stage, lambda run, shard, **parses: [shorten(record) for record in run(shard, **parses)]
        )
    return worker


def shorten(record: Document | DeadLetter) -> Document | DeadLetter:
    return replace(record, text=record.text[:-5]) if isinstance(record, Document) else record


@pytest.mark.slow
def test_soak_stops_at_the_first_round_with_other_bytes(tmp_path: Path) -> None:
    fault = Fault(kind="crash", step="commit:2")
    schedules = [
        Schedule(seed=1, number=number, executor="local", runs=(ScheduledRun(edits=(), faults=(fault,)),))
        for number in range(2)
    ]
    reported: list[Round] = []
    setup = soak_setup(tmp_path, build=build_inconsistent_worker)
    rounds = soak(setup, iter(schedules), seconds=60, on_round=lambda done, _seconds: reported.append(done))
    assert rounds == reported
    (done,) = rounds
    assert [(event.kind, event.hit, event.exit_codes) for event in done.events] == [("crash", True, [-9])]
    assert any("is in only one of the two outputs" in finding for finding in done.findings)


@pytest.mark.slow
def test_failed_run_is_a_finding(tmp_path: Path) -> None:
    setup = soak_setup(tmp_path, build=fakes.build_worker_that_loses)
    done = Round(Schedule(seed=1, number=0, executor="local", runs=(ScheduledRun(edits=(), faults=()),)), setup)
    done.run()
    assert done.findings[0] == "run 0, undisturbed: exit code 1, expected one of [0]"


@pytest.mark.slow(reason="six generations are written while two processes read")
def test_readers_beside_a_writer_see_one_generation_at_a_time(tmp_path: Path) -> None:
    found = readers.read_beside_a_writer(tmp_path, reads=100, documents=12, seed=1)
    assert found["generations"] > 3
    for name, counts in found["readers"].items():
        assert counts["generations"] > 2, (name, counts)
        assert counts["wrong"] == 0, (name, counts)
        assert counts["failed"] == 0, (name, counts)
