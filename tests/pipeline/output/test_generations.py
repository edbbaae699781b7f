"""Generations of a collection: what readers see while the next is written, which are kept, and copies."""

import errno
import os
import shutil
import subprocess
import time
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from concord_testing import fakes, faults, runs

import concord
from concord.models.errors import ConfigError
from concord.pipeline.errors import PlanError, StoreError
from concord.pipeline.output import tables
from concord.pipeline.output.collection import open_collection
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.schema import SCHEMAS
from concord.pipeline.output.verify import verify
from concord.pipeline.report.html import write_report
from concord.pipeline.storage import atomic_writes

pytestmark = pytest.mark.slow(reason="several runs a test, and processes that are killed")


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A folder of eight texts and a dead letter, in several shards."""
    return make_archive(tmp_path / "in")


def make_archive(folder: Path) -> Path:
    folder.mkdir()
    for number in range(8):
        (folder / f"t{number}.txt").write_text(f"Anna saw {number} cats. Bob Smith left. " * 4)
    (folder / "bad.txt").write_text("PARSERFAULT")
    return folder


def run(archive: Path, output: Path | None = None, *, keep: int = 1, grace: float = 3600, **arguments: Any) -> Path:
    """Annotate the archive."""
    place = {"path": str(output or archive.parent / "out"), "keep": keep, "grace_seconds": grace}
    settings = {"planning": {"shard_bytes": 300}, "max_dead_letters": 1.0, "max_removed": 1.0}
    return runs.folder_of(runs.run_job(runs.job(archive, "", **(settings | {"output": place})), **arguments))


def change(archive: Path, number: int = 1) -> None:
    """Change a text, add one and remove one."""
    (archive / f"t{number}.txt").write_text("Carla came.")
    (archive / f"new{number}.txt").write_text(f"Dora went to {number}.")
    (archive / f"t{number + 4}.txt").unlink()


def seen(output: Path) -> dict[str, list[str]]:
    """Return the rows that a reader of the six folders sees, as sorted strings."""
    return {name: sorted(map(str, pq.read_table(output / name).to_pylist())) for name in SCHEMAS}


build_worker_for_one_shard = partial(fakes.build_worker_without_room, shards=1)


def test_parts_of_a_run_in_progress_are_seen_by_no_reader(archive: Path) -> None:
    with pytest.raises(StoreError):
        run(archive, build=build_worker_for_one_shard)
    output = archive.parent / "out"
    assert not list(output.glob("*/*.parquet"))
    before = seen(run(archive))
    change(archive)
    with pytest.raises(StoreError):
        run(archive, build=build_worker_for_one_shard)
    assert list(output.glob("_run/parts/documents/*-g1-*"))
    assert seen(output) == before
    assert seen(run(archive)) != before
    assert not list(output.glob("_run/parts/*/*"))


def test_one_link_makes_a_generation_current_and_the_one_before_stays_readable(archive: Path) -> None:
    output = run(archive)
    assert (output / "current").readlink() == Path("generations/000000")
    assert {(output / name).readlink() for name in SCHEMAS} == {Path("current", name) for name in SCHEMAS}
    collection, before = concord.open(output), seen(output)
    files = collection.entities.files
    change(archive)
    run(archive)
    assert (output / "current").readlink() == Path("generations/000001")
    first, second = (
        {path.stat().st_ino for path in output.glob(f"generations/{name}/tokens/*")} for name in ("000000", "000001")
    )
    assert first & second, "unchanged parts are hard links"
    assert first - second
    assert sorted(map(str, collection.to_arrow("tokens").to_pylist())) == before["tokens"]
    assert sorted(map(str, pq.read_table(files).to_pylist())) == before["entities"]
    folder = output / "generations" / "000000"
    for opened in (concord.open(output, generation=0), concord.open(folder)):
        assert (opened.generation, opened.to_arrow("tokens").num_rows) == (0, len(before["tokens"]))
    files_before = sorted(folder.rglob("*"))
    for refused in (lambda: run(archive, folder), lambda: verify(folder), lambda: write_report(OutputFolder(folder))):
        with pytest.raises(PlanError, match="one generation of a collection"):
            refused()
    assert sorted(folder.rglob("*")) == files_before


def test_names_are_written_again_only_where_they_are_lost_or_entities_change(archive: Path) -> None:
    output = run(archive)
    [part] = (output / "names").iterdir()
    assert part.name.startswith("part-00000-g0-")
    content = part.read_bytes()
    part.unlink()
    run(archive, build=fakes.build_no_worker)
    assert part.read_bytes() == content
    assert verify(output) == []
    (archive / "t0.txt").rename(archive / "new.txt")
    run(archive)
    rewritten = list((output / "names").iterdir())
    assert rewritten != [part]
    (archive / "worse.txt").write_text("PARSERFAULT")
    run(archive)
    assert list((output / "names").iterdir()) == rewritten


def test_names_keep_their_ids_when_the_rules_change(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ids(output: Path) -> dict[str, str]:
        return dict(pq.read_table(output / "names", columns=["canonical", "name_id"]).to_pandas().to_numpy())

    before = ids(run(archive))
    monkeypatch.setattr(tables, "_key", lambda label, canonical: f"{label}\0{canonical.lower()}es")
    change(archive)
    after = ids(run(archive))
    assert before.items() <= after.items()
    assert after.keys() - before.keys() == {"Carla", "Dora"}
    assert len(set(after.values())) == len(after)


def names(output: Path) -> list[str]:
    """Return the names of the generations that are kept."""
    return sorted(path.name for path in (output / "generations").iterdir())


def test_generations_are_kept_for_their_grace_by_number_and_by_name(archive: Path) -> None:
    output = run(archive)
    folder = OutputFolder(output)
    for number in range(1, 4):
        change(archive, number)
        run(archive)
        if number == 1:
            folder.generations.tag(folder.find(), "paper-2026")
    assert names(output) == ["000000", "000001", "000002", "000003"]
    assert folder.prune(keep=1, grace_seconds=3600) == []
    assert [found.name for found in folder.prune(keep=2, grace_seconds=0)] == ["000000"]
    (archive / "t0.txt").write_text("Eva slept.")
    run(archive, grace=0)
    assert names(output) == ["000001", "000004"]
    assert open_collection(output, version="paper-2026").manifest.generation == 1
    assert pq.read_table(output / "versions" / "paper-2026" / "documents").num_rows == 8
    folder.generations.untag("paper-2026")
    assert [found.name for found in folder.prune(keep=1, grace_seconds=0)] == ["000001"]
    assert verify(output) == []


def test_grace_begins_when_the_next_generation_becomes_current(archive: Path) -> None:
    output = run(archive)
    change(archive)
    killed = runs.in_child(lambda: run(archive), crash_at="publish")
    killed.join()
    hours_ago = time.time() - 7200
    for name in ("000000", "000001"):
        os.utime(output / "generations" / name / "manifest.json", (hours_ago, hours_ago))
    run(archive)
    assert names(output) == ["000000", "000001"]


def test_names_and_numbers_that_do_not_fit_are_refused(archive: Path) -> None:
    output = run(archive)
    folder = OutputFolder(output)
    generations = folder.generations
    with pytest.raises(ConfigError, match="letters, digits"):
        generations.tag(folder.find(), "../out")
    generations.tag(folder.find(), "v1")
    generations.tag(folder.find(), "v1")
    change(archive)
    run(archive)
    with pytest.raises(ConfigError, match="v1 is generation 000000"):
        generations.tag(folder.find(), "v1")
    with pytest.raises(PlanError, match="no generation 7; there are: 0, 1"):
        open_collection(output, generation=7)
    with pytest.raises(PlanError, match="no version 'v2'; there are: v1"):
        open_collection(output, version="v2")


def test_generation_that_is_finished_again_stays_and_an_older_one_is_refused(archive: Path) -> None:
    output = run(archive)
    change(archive)
    run(archive)
    finished = (output / "generations/000001/manifest.json").stat().st_mtime_ns
    (output / "_run/parts/tokens/part-00000-g1-00000000.parquet").touch()
    assert verify(output)
    run(archive, build=fakes.build_no_worker)
    assert verify(output) == []
    assert (output / "generations/000001/manifest.json").stat().st_mtime_ns == finished
    older = OutputFolder(output).plan().model_copy(update={"generation": 0})
    shutil.rmtree(output / "_run/plans")
    before = seen(output)
    with pytest.raises(PlanError, match="a newer generation is finished, whose plan is gone"):
        OutputFolder(output).finish(older)
    assert seen(output) == before
    run(archive, build=fakes.build_no_worker)
    assert verify(output) == []


def test_copy_with_or_without_its_links_is_a_collection_of_its_own(archive: Path) -> None:
    output = run(archive)
    change(archive)
    run(archive)
    copy = Path(shutil.copytree(output, archive.parent / "copy"))
    expected = seen(output)
    assert concord.open(copy).generation == 1
    assert seen(run(archive, copy, build=fakes.build_no_worker)) == expected
    assert (copy / "current").is_symlink()
    assert runs.committed_bytes(copy) == runs.committed_bytes(output)
    assert verify(copy) == []
    with_links = archive.parent / "with links"
    subprocess.run(["cp", "-r", str(output), str(with_links)], check=True)
    shutil.rmtree(output)
    assert verify(with_links) == []
    assert concord.open(with_links).to_arrow("documents").num_rows == 8


def refuse(*_: Any, **__: Any) -> None:
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))


@pytest.mark.parametrize("function", ["link", "symlink"])
def test_file_system_without_links_is_refused(archive: Path, monkeypatch: pytest.MonkeyPatch, function: str) -> None:
    with pytest.raises(StoreError):
        run(archive, build=build_worker_for_one_shard)
    monkeypatch.setattr(os, function, refuse)
    with pytest.raises(StoreError, match=r"(hard|symbolic) links"):
        run(archive)
    if function == "link":
        with pytest.raises(StoreError, match="run as the user whose parts these are"):
            atomic_writes.hard_link(archive / "t0.txt", archive / "t1.txt")


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str], dict[str, list[str]]]:
    """A folder with a changed archive and its collection of before, ``base``; the calls and rows of the next run."""
    folder = tmp_path_factory.mktemp("faulty")
    archive = make_archive(folder / "in")
    run(archive, folder / "base")
    change(archive)
    for path in archive.iterdir():
        # So long ago that each run remembers its hash, and makes the same calls.
        os.utime(path, (1, 1))
    output = runs.copy_output(folder / "base", folder / "undisturbed")
    with faults.failing_call() as undisturbed:
        expected = seen(run(archive, output, grace=0))
    return folder, undisturbed.calls, expected


@pytest.mark.parametrize("call", faults.CALLS)
def test_fault_while_finishing_is_an_error_of_the_store(
    changed: tuple[Path, list[str], dict[str, list[str]]], tmp_path: Path, call: str
) -> None:
    folder, calls, expected = changed
    archive, base = folder / "in", folder / "base"
    # That the file of a lock stays is no fault.
    made = [
        (number, made) for number, made in enumerate(calls, 1) if made != f"unlink {folder / 'undisturbed/_run/lock'}"
    ]
    numbers = [number for number, made in made if made.startswith(f"{call} ")]
    for number, error in zip({*numbers[:1], *numbers[-2:]}, cycle([errno.EIO, errno.ENOSPC]), strict=False):
        output = runs.copy_output(base, tmp_path / f"out{number}")
        with faults.failing_call(number, error=error), pytest.raises(StoreError, match="run the same command again"):
            run(archive, output, grace=0)
        assert seen(output) in (seen(base), expected)
        assert seen(run(archive, output, grace=0)) == expected
        assert verify(output) == []
