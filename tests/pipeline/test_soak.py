"""The soak draws schedules from its seed, carries them out, and finds what is wrong."""

import json
from dataclasses import asdict
from itertools import islice
from pathlib import Path

import pytest
from concord_testing import fakes
from concord_testing.soak import Archive, Edit, Fault, Night, Round, Schedule, Workshop, draw, soak

from concord.pipeline.plan import Plan
from concord.pipeline.worker.shard_worker import ShardWorker

DOCUMENTS = [(f"d{number}", f"Anna Smith saw {number} cats in Geneva. Bob did not.") for number in range(24)]


def workshop(folder: Path, **changes: object) -> Workshop:
    """Give a workshop of fakes that take a while for each document, so that faults come in the midst of it."""
    (folder / "fakes.json").write_text(json.dumps({"seconds": 0.01}))
    settings = {"planning": {"shard_bytes": 250}}
    return Workshop(documents=DOCUMENTS, folder=folder, settings=settings, **changes)  # type: ignore[arg-type]


def test_equal_seeds_give_equal_schedules_and_json_gives_them_back() -> None:
    schedules = [draw(1, number, ray=True) for number in range(40)]
    assert schedules == [draw(1, number, ray=True) for number in range(40)]
    assert len(set(schedules)) == 40
    assert {schedule.executor for schedule in schedules} == {"local", "ray"}
    for schedule in schedules:
        assert Schedule.from_mapping(json.loads(json.dumps(asdict(schedule)))) == schedule
    assert draw(2, 0, ray=True) != schedules[0]


def test_an_archive_knows_what_it_holds(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "archive", DOCUMENTS)
    assert (len(archive.ids), archive.letters) == (24, 6)
    for number, kind in enumerate(("change", "add", "remove", "rename", "tear") * 8):
        archive.edit(Edit(kind=kind, number=number * 7))  # type: ignore[arg-type]
    archive.write()
    lines = [json.loads(line) for path in archive.folder.glob("*.jsonl") for line in path.read_text().splitlines()]
    texts = [path.name for path in archive.folder.glob("*.txt")]
    assert sorted([*texts, *(line["id"] for line in lines if "text" in line)]) == archive.ids
    assert archive.letters == sum("text" not in line for line in lines)
    assert archive.letters > 6


@pytest.mark.slow
def test_a_short_soak_finds_nothing(tmp_path: Path) -> None:
    schedules = islice((draw(5, number, ray=False) for number in range(2)), 2)
    rounds = soak(workshop(tmp_path), schedules, seconds=60, told=lambda _round, _seconds: None)
    assert [done.findings for done in rounds] == [[], []]
    assert sum(event.hit for done in rounds for event in done.events) >= 3
    assert all(done.shards_compared for done in rounds)


def build_another_worker(plan: Plan) -> ShardWorker:
    """Build a worker that works otherwise once a run was disturbed."""
    parser = fakes.FakeParser()
    worker = ShardWorker(plan, parser=parser, tagger=fakes.FakeTagger())
    if plan.config.output.endswith("/disturbed"):
        fakes.wrap_stage(
            worker.read_stage, lambda run, shard, **parses: [_shortened(record) for record in run(shard, **parses)]
        )
    return worker


def _shortened(record: object) -> object:
    return (
        fakes.Document(**{**asdict(record), "text": record.text[:-5]}) if isinstance(record, fakes.Document) else record
    )  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_soak_ends_with_the_round_that_finds_other_bytes(tmp_path: Path) -> None:
    fault = Fault(kind="crash", step="commit:2")
    schedules = [
        Schedule(seed=1, number=number, executor="local", nights=(Night(edits=(), faults=(fault,)),))
        for number in range(2)
    ]
    told: list[Round] = []
    shop = workshop(tmp_path, build=build_another_worker)
    rounds = soak(shop, iter(schedules), seconds=60, told=lambda done, _seconds: told.append(done))
    assert rounds == told
    (done,) = rounds
    assert [(event.kind, event.hit, event.exit_codes) for event in done.events] == [("crash", True, [-9])]
    assert any("is in one of both outputs only" in finding for finding in done.findings)


def test_a_run_that_does_not_end_well_is_a_finding(tmp_path: Path) -> None:
    shop = workshop(tmp_path, build=fakes.build_worker_that_loses)
    done = Round(Schedule(seed=1, number=0, executor="local", nights=(Night(edits=(), faults=()),)), shop)
    done.run()
    assert done.findings[0] == "night 0, undisturbed: exit code 1, expected one of [0]"
