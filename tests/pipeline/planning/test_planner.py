"""Later runs annotate only what is new or changed, and their output equals that of a single run."""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow.parquet as pq
import pytest
from concord_testing import fakes, runs
from hypothesis import given
from hypothesis import strategies as st

from concord.pipeline.annotate import dry_run
from concord.pipeline.config import AnnotateConfig
from concord.pipeline.documents import DeadLetter, Document, ParsedDocument
from concord.pipeline.errors import InputError, PlanError, StoreError
from concord.pipeline.identity import ResolvedTagger
from concord.pipeline.output import output_folder
from concord.pipeline.output.manifest import read_commit_record
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.verify import verify
from concord.pipeline.plan import Changes
from concord.pipeline.planning import planner
from concord.pipeline.run_report import RunReport
from concord.pipeline.storage.atomic_writes import CRASH_STEPS

pytestmark = pytest.mark.slow(reason="several runs a test, and processes that are killed")

TABLES = ("documents", "sentences", "tokens", "entities", "errors")
OTHER_TAGGER = replace(runs.TAGGER, digest="3" * 64)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A folder of ten text files and a JSON Lines file of ten documents."""
    return make_archive(tmp_path / "in")


def make_archive(folder: Path) -> Path:
    folder.mkdir()
    for number in range(10):
        (folder / f"t{number}.txt").write_text(text_of(number))
    write_lines(folder / "lines.jsonl", {f"d{number}": text_of(number + 10) for number in range(10)})
    return folder


def text_of(number: int) -> str:
    return f"Anna Smith saw {number} cats in Geneva. Bob did not.\n\nNew York is large. {'Word ' * (number % 4)}"


def write_lines(path: Path, texts: Mapping[str, str], **fields: object) -> None:
    records = [{"id": doc_id, "text": text, **fields} for doc_id, text in texts.items()]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def job(archive: Path, **changes: Any) -> AnnotateConfig:
    values = {"planning": {"shard_bytes": 300}, "max_removed": 1.0}
    return runs.job(archive, archive.parent / "out", **(values | changes))


def record_parsed_ids(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which every document that is parsed from now on adds its id."""
    parsed: list[str] = []
    parse = fakes.FakeParser.parse

    def record(
        self: fakes.FakeParser, documents: Sequence[Document], **named: Any
    ) -> list[ParsedDocument | DeadLetter]:
        parsed.extend(document.doc_id for document in documents)
        return parse(self, documents, **named)

    monkeypatch.setattr(fakes.FakeParser, "parse", record)
    return parsed


def rows_of(output: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of every table in the order of document ids, without their positions within files."""
    found = {}
    for name in TABLES:
        rows = pq.read_table(output / name).to_pylist() if (output / name).exists() else []
        rows = [{key: value for key, value in row.items() if key != "source_position"} for row in rows]
        found[name] = sorted(rows, key=lambda row: (row["doc_id"] or "", row.get("source_uri", "")))
    return found


def assert_equals_one_run(archive: Path, report: RunReport, **changes: Any) -> None:
    """Check that the output equals that of a single run over the input as it is now."""
    output = runs.folder_of(report)
    assert verify(output) == []
    assert report.read == report.annotated + report.unchanged + report.dead_letters
    fresh = archive.parent / "fresh"
    shutil.rmtree(fresh, ignore_errors=True)
    runs.run_job(runs.job(archive, fresh, **({"max_removed": 1.0} | changes)))
    ours, theirs = rows_of(output), rows_of(fresh)
    for name in TABLES:
        assert [row for row in ours[name] if name != "errors"] == [row for row in theirs[name] if name != "errors"]
    assert [row["error"] for row in ours["errors"]] == [row["error"] for row in theirs["errors"]]


def parts(output: Path) -> dict[Path, tuple[int, bytes]]:
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for name in TABLES for path in (output / name).glob("*")}


def test_run_whose_input_is_the_same_reads_no_part_and_each_record_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = runs.write_collection(tmp_path / "in.jsonl", extra=("a PARSERFAULT",))
    config = runs.job(source, tmp_path / "out", max_dead_letters=1.0)
    first = runs.run_job(config)

    def read_none(*_: object, **__: object) -> None:
        raise AssertionError("a part is read")

    monkeypatch.setattr("concord.pipeline.output.parquet_parts.pq.ParquetFile", read_none)
    with mock.patch.object(output_folder, "read_commit_record", wraps=read_commit_record) as read:
        again = runs.run_job(config)
    assert again.changes == Changes(unchanged=12)
    assert again.done_before == again.shards == first.shards > 2
    # Once by the planner and once by the run.
    assert read.call_count <= 2 * first.shards


def test_only_new_and_changed_documents_are_annotated(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = runs.run_job(job(archive))
    before = parts(runs.folder_of(first))
    edit_archive(archive)
    parsed = record_parsed_ids(monkeypatch)
    report = runs.run_job(job(archive))
    assert sorted(parsed) == ["new.txt", "t3.txt"]
    changes = report.changes
    assert (changes.new, changes.changed, changes.removed, changes.moved, changes.again) == (1, 1, 1, 1, 0)
    assert (report.annotated, report.unchanged) == (2, 18)
    after = parts(runs.folder_of(first))
    reused = before.keys() & after.keys()
    assert len(reused) > len(before) / 2
    assert {path: before[path] for path in reused} == {path: after[path] for path in reused}
    assert_equals_one_run(archive, report)


def test_lines_that_move_are_unchanged_and_other_meta_is_copied(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = runs.run_job(job(archive))
    before = parts(runs.folder_of(first))
    lines = (archive / "lines.jsonl").read_text().splitlines(keepends=True)
    new = json.dumps({"id": "first", "text": "Edna sang."}) + "\n"
    (archive / "lines.jsonl").write_text("".join([new, "\n", *reversed(lines)]))
    parsed = record_parsed_ids(monkeypatch)
    report = runs.run_job(job(archive))
    assert parsed == ["first"]
    assert before.items() <= parts(runs.folder_of(first)).items()
    assert_equals_one_run(archive, report)
    write_lines(archive / "lines.jsonl", {f"d{number}": text_of(number + 10) for number in range(10)}, year=1914)
    parsed.clear()
    report = runs.run_job(job(archive))
    assert parsed == []
    assert (report.changes.moved, report.changes.removed) == (10, 1)
    assert_equals_one_run(archive, report)


def test_new_tagger_reuses_the_stored_parses(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = runs.run_job(job(archive))
    (archive / "t3.txt").write_text("Carla came.")
    parsed = record_parsed_ids(monkeypatch)
    report = runs.run_job(job(archive, tagger={"threshold": 0.1}), tagger=OTHER_TAGGER)
    assert parsed == ["t3.txt"]
    assert (report.changes.again, report.changes.parsed, report.changes.changed) == (19, 19, 1)
    assert report.annotated == 20
    signatures = {row["tagger"] for row in rows_of(runs.folder_of(first))["documents"]}
    assert signatures == {f"fake_tagger@{'3' * 64}"}
    ours = rows_of(runs.folder_of(first))
    fresh = runs.run_job(runs.job(archive, archive.parent / "fresh", tagger={"threshold": 0.1}), tagger=OTHER_TAGGER)
    assert ours == rows_of(runs.folder_of(fresh))
    assert verify(first.output) == []


def test_another_list_of_terms_tags_all_documents_again(archive: Path) -> None:
    terms = archive.parent / "terms.jsonl"
    terms.write_text('{"label": "PER", "pattern": "Anna"}\n')
    without = runs.run_job(job(archive))
    plan = OutputFolder(without.output).plan()
    assert plan.tagger.terms is None
    first = runs.run_job(job(archive, tagger={"terms": str(terms)}))
    assert (first.changes.again, first.changes.parsed) == (20, 20)
    moved = terms.rename(archive.parent / "moved.jsonl")
    assert runs.run_job(job(archive, tagger={"terms": str(moved)})).changes.again == 0
    moved.write_text('{"label": "PER", "pattern": "Bob"}\n')
    assert runs.run_job(job(archive, tagger={"terms": str(moved)})).changes.again == 20
    again = runs.run_job(job(archive))
    assert again.changes.again == 20
    assert OutputFolder(again.output).plan().tagger == plan.tagger
    with pytest.raises(InputError, match=r"terms\.jsonl: cannot be read"):
        runs.run_job(job(archive, tagger={"terms": str(terms)}))


def test_new_parser_parses_and_tags_everything_again(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs.run_job(job(archive))
    parsed = record_parsed_ids(monkeypatch)
    report = runs.run_job(job(archive), parser=fakes.PARSER.model_copy(update={"digest": "8" * 64}))
    assert len(parsed) == report.annotated == 20
    assert report.changes.parsed == 0
    assert verify(report.output) == []


def test_document_comes_back_after_two_interrupted_runs(archive: Path) -> None:
    first = (archive / "t0.txt").read_text()
    runs.run_job(job(archive))
    (archive / "t0.txt").unlink()
    (archive / "new.txt").write_text(text_of(20) * 9)
    for number in (1, 0):
        with pytest.raises(StoreError):
            runs.run_job(job(archive), build=partial(fakes.build_worker_without_room, shards=number))
        (archive / f"z{number}.txt").write_text(text_of(30 + number))
    (archive / "t0.txt").write_text(first)
    assert_equals_one_run(archive, runs.run_job(job(archive)))


def test_small_shards_are_merged(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "MERGED_AT", 4)
    settings = {"planning": {"shard_bytes": 2000}, "max_removed": 1.0}
    runs.run_job(job(archive, **settings))
    for number in range(6):
        (archive / f"night{number}.txt").write_text(f"Night {number} was dark.")
        report = runs.run_job(job(archive, **settings))
        assert report.annotated == 1
    plan = OutputFolder(report.output).plan()
    assert len(plan.reused) + len(plan.shards) < 6
    assert_equals_one_run(archive, report)


def test_run_that_would_drop_many_documents_is_refused(archive: Path) -> None:
    first = runs.run_job(job(archive))
    before = parts(runs.folder_of(first))
    with pytest.raises(PlanError, match=r"16 of the 20 documents .* not among the first 4 records"):
        runs.run_job(job(archive, limit=4))
    (archive / "lines.jsonl").unlink()
    (archive / "t1.txt").unlink()
    with pytest.raises(PlanError, match=r"11 of the 20 documents .* are gone.*max_removed"):
        runs.run_job(job(archive, max_removed=0.5))
    assert parts(runs.folder_of(first)) == before


def test_files_of_a_newer_generation_are_no_orphans(archive: Path) -> None:
    first = runs.run_job(job(archive))
    plan = OutputFolder(first.output).plan()
    (archive / "new.txt").write_text("Dora went.")
    (archive / "t3.txt").write_text("Carla came.")
    with pytest.raises(StoreError):
        runs.run_job(job(archive), build=partial(fakes.build_worker_without_room, shards=1))
    unfinished = {
        *runs.folder_of(first).rglob("*-g1-*"),
        *runs.folder_of(first).rglob("commits/1/*"),
        *runs.folder_of(first).rglob("plans/1.json"),
    }
    assert len(unfinished) > 4
    with pytest.raises(PlanError, match="generation 0 is dropped"):
        OutputFolder(first.output).finish(plan)
    manifest = OutputFolder(first.output).manifest()
    assert manifest is not None
    assert unfinished.isdisjoint(OutputFolder(first.output).orphans(manifest))


def test_moved_archive_is_accepted_when_configured(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs.run_job(job(archive))
    moved = archive.rename(archive.parent / "elsewhere")
    with pytest.raises(PlanError, match=r"this job reads .*elsewhere.*accept_input"):
        runs.run_job(job(moved))
    parsed = record_parsed_ids(monkeypatch)
    report = runs.run_job(job(moved, accept_input=True))
    assert parsed == []
    assert report.changes.moved == 20
    assert_equals_one_run(moved, report)


def test_dry_run_names_the_documents_of_each_kind(archive: Path) -> None:
    def named(tagger: ResolvedTagger = runs.TAGGER) -> dict[str, list[str]]:
        found = dry_run(runs.resolved(job(archive), tagger=tagger)).named
        return {kind: list(ids) for kind, ids in found.items() if ids}

    with (archive / "lines.jsonl").open("a") as stream:
        end = stream.tell()
        stream.write("no json\n")
    assert named() == {
        "new": [*(f"d{number}" for number in range(10)), f"lines.jsonl:{end}", *(f"t{n}.txt" for n in range(10))]
    }
    report = runs.run_job(job(archive))
    assert report.named == {}
    assert named() == {}

    (archive / "t1.txt").write_text("Carla came.")
    (archive / "t2.txt").rename(archive / "u2.txt")
    (archive / "t3.txt").unlink()
    (archive / "v.txt").write_text("Dora went.")
    assert named() == {"changed": ["t1.txt"], "new": ["v.txt"], "moved": ["t2.txt -> u2.txt"], "removed": ["t3.txt"]}
    assert len(named(OTHER_TAGGER)["again"]) == 17


@pytest.mark.parametrize("generations", [1, 2])
@pytest.mark.parametrize("number", range(4))
def test_lost_part_of_a_generation_is_restored_and_no_other_shard_is_touched(
    archive: Path, generations: int, number: int
) -> None:
    # Its shards have records of one file, of which some are dead letters.
    lines = (archive / "lines.jsonl").read_text().splitlines()
    lines[2:2] = ['{"id": "without text"}']
    lines += ['{"id": "other type", "text": 5}', '{"id": "d3", "text": "It has the id of another one."}']
    (archive / "lines.jsonl").write_text("\n".join(lines))
    for generation in range(generations):
        (archive / f"z{generation}.txt").write_text(f"Dora went {generation} times.")
        report = runs.run_job(job(archive))
    manifest = OutputFolder(report.output).manifest()
    assert manifest is not None
    lost, *others = manifest.shards[number:] + manifest.shards[:number]
    (runs.folder_of(report) / lost.files["tokens"].path).unlink()
    report = runs.run_job(job(archive))
    assert report.annotated == lost.annotated
    restored = OutputFolder(report.output).manifest()
    assert restored is not None
    assert [shard for shard in restored.shards if shard in others] == sorted(others, key=lambda shard: shard.shard)
    assert len(restored.shards) == len(manifest.shards)
    assert_equals_one_run(archive, report)


@pytest.mark.parametrize("lost", ["_run", "_run/plans", "generations/000001", "generations/000001/manifest.json"])
def test_run_goes_on_where_plans_or_the_newest_generation_are_lost(archive: Path, lost: str) -> None:
    config = job(archive, output={"path": str(archive.parent / "out"), "keep": 2})
    for generation in range(2):
        (archive / f"z{generation}.txt").write_text(f"Dora went {generation} times.")
        report = runs.run_job(config)
    place = runs.folder_of(report) / lost
    if place.is_dir():
        shutil.rmtree(place)
    else:
        place.unlink()
    assert_equals_one_run(archive, runs.run_job(config))
    assert not runs.run_job(config).annotated


@pytest.mark.parametrize("is_first", [True, False])
def test_commits_of_an_interrupted_run_are_reused_when_the_input_changes_again(
    archive: Path, monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    if not is_first:
        runs.run_job(job(archive))
        for number in range(8):
            (archive / f"t{number}.txt").write_text(text_of(number).replace("Anna", "Emma"))
    with pytest.raises(StoreError):
        runs.run_job(job(archive), build=partial(fakes.build_worker_without_room, shards=2))
    (archive / "t0.txt").write_text("Carla came.")
    (archive / "new.txt").write_text("Dora went.")
    parsed = record_parsed_ids(monkeypatch)
    report = runs.run_job(job(archive))
    assert (11 if is_first else 2) <= len(parsed) < (21 if is_first else 9)
    assert_equals_one_run(archive, report)


def edit_archive(archive: Path) -> None:
    (archive / "t3.txt").write_text("Carla came.")
    (archive / "new.txt").write_text("Dora went.")
    (archive / "t5.txt").unlink()
    (archive / "t7.txt").rename(archive / "renamed.txt")


@pytest.fixture(scope="module")
def edited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an archive that was edited, its collection of before, and that of an undisturbed run since."""
    folder = tmp_path_factory.mktemp("edited")
    archive = make_archive(folder / "in")
    runs.run_job(job(archive, output=str(folder / "before")))
    edit_archive(archive)
    undisturbed = runs.copy_output(folder / "before", folder / "undisturbed")
    runs.run_job(job(archive, output=str(undisturbed)))
    return folder


@pytest.mark.parametrize("step", [*CRASH_STEPS, "write:4", "fsync:4", "rename:4"])
def test_later_generation_killed_at_any_step_has_the_bytes_of_an_undisturbed_one(
    edited: Path, tmp_path: Path, step: str
) -> None:
    output, undisturbed = runs.copy_output(edited / "before", tmp_path / "out"), edited / "undisturbed"
    config = job(edited / "in", output=str(output))
    killed = runs.in_child(lambda: runs.run_job(config), crash_at=step)
    killed.join()
    runs.run_job(config)
    assert runs.committed_bytes(output).keys() == runs.committed_bytes(undisturbed).keys()
    assert verify(output) == []
    tables = {path: content for path, content in runs.committed_bytes(output).items() if path.endswith(".parquet")}
    assert tables.items() <= runs.committed_bytes(undisturbed).items()


edits = st.lists(
    st.tuples(st.sampled_from(["write", "remove", "rename", "line", "cut"]), st.integers(0, 12), st.integers(0, 5)),
    min_size=1,
    max_size=6,
)


@pytest.mark.slow(reason="each example is several runs")
@given(rounds=st.lists(edits, min_size=1, max_size=3))
def test_any_sequence_of_edits_and_runs_equals_one_run(
    tmp_path_factory: pytest.TempPathFactory, rounds: list[Any]
) -> None:
    archive = tmp_path_factory.mktemp("archives") / "in"
    archive.mkdir()
    (archive / "always.txt").write_text("Here.")
    (archive / "lines.jsonl").touch()
    settings = {"planning": {"shard_bytes": 150}, "max_removed": 1.0, "max_dead_letters": 1.0}
    runs.run_job(job(archive, **settings))
    for round_edits in rounds:
        for kind, number, text in round_edits:
            edit(archive, kind, number, text)
        report = runs.run_job(job(archive, **settings))
        assert verify(report.output) == []
    assert_equals_one_run(archive, report, max_dead_letters=1.0)


def edit(archive: Path, kind: str, number: int, text: int) -> None:
    path, lines = archive / f"f{number}.txt", archive / "lines.jsonl"
    content = text_of(text) if text else "TAGGERFAULT"
    match kind:
        case "write":
            path.write_text(content)
        case "remove":
            path.unlink(missing_ok=True)
        case "rename" if path.exists():
            path.rename(archive / f"g{number}.txt")
        case "line":
            record = json.dumps({"id": f"d{number}", "text": content})
            lines.write_text(f"{record}\n{lines.read_text()}")
        case "cut":
            records = lines.read_text().splitlines(keepends=True)
            lines.write_text("".join(records[: len(records) // 2]))
