"""Listing dead letters, and retrying them without touching other documents."""

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from concord_testing import fakes, runs, stores

from concord.pipeline.config import AnnotateConfig, OutputConfig
from concord.pipeline.documents import DeadLetter, Document, ParsedDocument
from concord.pipeline.errors import InputError, PlanError, StoreError
from concord.pipeline.output.collection import DeadLetterFilter, read_dead_letters
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.verify import verify
from concord.pipeline.plan import Plan
from concord.pipeline.run_report import RunReport
from concord.pipeline.storage.atomic_writes import CRASH_STEPS
from concord.pipeline.storage.output_paths import OutputPath
from concord.pipeline.worker.shard_worker import ShardWorker

pytestmark = pytest.mark.slow

ALL = DeadLetterFilter()
SOUND = {"a": "Anna came.", "b": "Bob went.", "c": "Carla stayed."}


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Write a folder with dead letters of three stages in two of its four files."""
    return make_archive(tmp_path / "in")


def make_archive(folder: Path) -> Path:
    folder.mkdir()
    write_lines(folder / "sound.jsonl", SOUND)
    lines = write_lines(folder / "mixed.jsonl", {"d": "Dora sang.", "e": "PARSERFAULT one.", "f": "TAGGERFAULT two."})
    lines.write_text('{"id": "torn\n' + lines.read_text() + '{"id": "d", "text": "Another d."}\n')
    (folder / "whole.txt").write_text("PARSERFAULT three.")
    (folder / "other.txt").write_text("Emma slept.")
    return folder


def write_lines(path: Path, texts: Mapping[str, str]) -> Path:
    path.write_text("".join(json.dumps({"id": doc_id, "text": text}) + "\n" for doc_id, text in texts.items()))
    return path


def job(archive: Path, **changes: Any) -> AnnotateConfig:
    values = {"planning": {"shard_bytes": 30}, "max_removed": 1.0, "max_dead_letters": 1.0}
    output = changes.pop("output", str(archive.parent / "out"))
    return runs.job(archive, output, **(values | changes))


class FixedParser(fakes.FakeParser):
    """A parser without the fault of the other."""

    def parse(self, documents: Sequence[Document], **_: Any) -> list[ParsedDocument | DeadLetter]:
        return [fakes.parsed_document(document) for document in documents]


def build_fixed_worker(plan: Plan) -> ShardWorker:
    return ShardWorker(plan, parser=FixedParser(), tagger=fakes.FakeTagger())


def retry(archive: Path, wanted: DeadLetterFilter = ALL, **arguments: Any) -> RunReport:
    return runs.run_job(arguments.pop("config", None) or job(archive), retry=wanted, **arguments)


def dead_letters_of(report: RunReport, **filters: tuple[str, ...]) -> list[DeadLetter]:
    """Read the current dead letters, and verify the folder."""
    assert verify(report.output) == []
    assert report.read == report.annotated + report.unchanged + report.dead_letters
    manifest = OutputFolder(report.output).manifest()
    assert manifest is not None
    found = read_dead_letters(OutputFolder(report.output), manifest.shards)
    return sorted(
        (dead_letter for dead_letter in found if DeadLetterFilter(**filters).matches(dead_letter)),
        key=lambda dead_letter: dead_letter.message,
    )


def attempts(report: RunReport) -> dict[str | None, int]:
    return {found.doc_id: found.attempts for found in dead_letters_of(report)}


def parts(output: OutputPath) -> dict[Path, tuple[int, bytes]]:
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in stores.local(output).glob("*/*.parquet")}


def texts_of(output: OutputPath) -> dict[str, list[str]]:
    rows = pq.read_table(stores.local(output) / "tokens", columns=["doc_id", "text"]).to_pylist()
    return {row["doc_id"]: [other["text"] for other in rows if other["doc_id"] == row["doc_id"]] for row in rows}


def test_dead_letters_are_filtered_and_retried_by_stage_reason_and_document(archive: Path) -> None:
    report = runs.run_job(job(archive))
    assert (report.annotated, report.dead_letters) == (5, 5)
    chosen = {
        "parse": dead_letters_of(report, stages=("parse",)),
        "read": dead_letters_of(report, stages=("read",)),
        "both": dead_letters_of(report, errors=("tag_failed", "duplicate_id")),
        "e": dead_letters_of(report, stages=("parse", "tag"), ids=("e", "d")),
    }
    assert {name: [item.doc_id for item in found] for name, found in chosen.items()} == {
        "parse": ["e", "whole.txt"],
        "read": [None, "d"],
        "both": ["d", "f"],
        "e": ["e"],
    }
    report = retry(archive, DeadLetterFilter(ids=("e",)), build=build_fixed_worker)
    assert (report.changes.retried, report.annotated) == (1, 1)
    assert attempts(report) == {None: 0, "d": 0, "f": 0, "whole.txt": 0}
    report = retry(archive, DeadLetterFilter(errors=("duplicate_id",)))
    assert attempts(report) == {None: 0, "d": 1, "f": 0, "whole.txt": 0}


def test_retry_annotates_only_dead_letters(archive: Path) -> None:
    first = runs.run_job(job(archive))
    before = parts(first.output)
    manifest = OutputFolder(first.output).manifest()
    assert manifest is not None
    untouched = {
        stores.local(first.output / part.path)
        for report in manifest.shards
        if not report.dead_letters
        for part in report.files.values()
    }
    (archive / "new.txt").write_text("Left to the next run.")
    (archive / "other.txt").write_text("This change as well.")
    report = retry(archive, build=build_fixed_worker)
    assert (report.changes.retried, report.changes.new, report.annotated, report.unchanged) == (5, 0, 2, 5)
    assert attempts(report) == {None: 1, "d": 1, "f": 1}
    after = parts(first.output)
    assert untouched
    assert {path: before[path] for path in untouched} == {path: after[path] for path in untouched}
    assert texts_of(report.output)["e"] == ["PARSERFAULT", "one."]
    assert texts_of(report.output)["other.txt"] == ["Emma", "slept."]
    next_run = runs.run_job(job(archive))
    assert (next_run.changes.new, next_run.changes.changed, next_run.changes.retried) == (1, 1, 0)
    assert attempts(next_run) == {None: 1, "d": 1, "f": 1}


def test_retry_counts_every_failed_attempt_and_does_nothing_when_none_matches(archive: Path) -> None:
    first = runs.run_job(job(archive))
    before = parts(first.output)
    report = retry(archive, DeadLetterFilter(ids=("nobody",)), build=fakes.build_no_worker)
    assert parts(report.output) == before
    assert OutputFolder(report.output).latest_generation() == 0
    assert (report.dead_letters, report.changes.retried) == (5, 0)
    for number in (1, 2, 3):
        report = retry(archive)
        assert attempts(report) == {None: number, "d": number, "e": number, "f": number, "whole.txt": number}
        assert (report.annotated, report.unchanged) == (0, 5)


def test_retry_leaves_an_id_with_the_dead_letter_that_has_it(archive: Path) -> None:
    write_lines(archive / "a.jsonl", {"x": "PARSERFAULT"})
    write_lines(archive / "b.jsonl", {"x": "Zoe came."})
    runs.run_job(job(archive))
    report = retry(archive, DeadLetterFilter(errors=("duplicate_id",)))
    assert {found.error for found in dead_letters_of(report, ids=("x",))} == {"parse_failed", "duplicate_id"}
    report = retry(archive, build=build_fixed_worker)
    assert texts_of(report.output)["x"] == ["PARSERFAULT"]


def test_retry_leaves_an_id_with_the_document_that_has_it(archive: Path) -> None:
    write_lines(archive / "a.jsonl", {"y": "PARSERFAULT it."})
    write_lines(archive / "z.jsonl", {"x": "Zoe came.", "f": "PARSERFAULT it."})
    runs.run_job(job(archive))
    write_lines(archive / "z.jsonl", {"x": "Zoe came.", "y": "Zoe went.", "f": "PARSERFAULT it."})
    runs.run_job(job(archive))
    write_lines(archive / "b.jsonl", {"x": "Another x."})
    runs.run_job(job(archive))
    assert texts_of(archive.parent / "out")["y"] == ["Zoe", "went."]

    report = retry(archive, build=build_fixed_worker)
    assert (report.changes.new, report.changes.changed, report.changes.removed) == (0, 0, 0)
    texts = texts_of(report.output)
    assert (texts["x"], texts["y"]) == (["Zoe", "came."], ["Zoe", "went."])
    assert {found.doc_id for found in dead_letters_of(report, errors=("duplicate_id",))} >= {"x", "y"}
    assert runs.run_job(job(archive), build=fakes.build_no_worker).shards == report.shards


def test_retry_annotates_all_changes_of_a_fixed_file(archive: Path) -> None:
    runs.run_job(job(archive))
    fixed = (archive / "mixed.jsonl").read_text().replace('{"id": "torn\n', "").replace("TAGGERFAULT", "Tagged")
    (archive / "mixed.jsonl").write_text(fixed.replace("Dora sang.", "Dora sings."))
    report = retry(archive, DeadLetterFilter(errors=("tag_failed",)))
    assert texts_of(report.output)["f"] == ["Tagged", "two."]
    assert texts_of(report.output)["d"] == ["Dora", "sings."]
    assert attempts(report) == {"d": 0, "e": 0, "whole.txt": 0}
    again = runs.run_job(job(archive), build=fakes.build_no_worker)
    assert again.shards == report.shards
    (archive / "mixed.jsonl").write_text('{"id": "z", "text": "Zoe came."}\n' + (archive / "mixed.jsonl").read_text())
    assert attempts(retry(archive)) == {"d": 1, "e": 1, "whole.txt": 1}


def test_a_truncated_stream_is_one_dead_letter_and_is_retried(archive: Path) -> None:
    lines = (archive / "sound.jsonl").read_bytes()
    (archive / "torn.jsonl.gz").write_bytes(gzip.compress(lines.replace(b'"', b'"x', 2))[:-9])
    report = runs.run_job(job(archive))
    before = dead_letters_of(report, stages=("read",))
    again = dead_letters_of(retry(archive, DeadLetterFilter(stages=("read",))), stages=("read",))
    assert [(found.message, found.attempts + 1) for found in before] == [
        (found.message, found.attempts) for found in again
    ]
    assert any(found.source_uri.endswith("torn.jsonl.gz") for found in again)


def test_retry_refuses_another_configuration_or_parser_and_a_missing_file(archive: Path) -> None:
    runs.run_job(job(archive))
    with pytest.raises(PlanError, match=r"parser.language: was 'en', is now 'de'.*'concord annotate' does all"):
        retry(archive, config=job(archive, parser={"language": "de"}))
    with pytest.raises(PlanError, match="parser: was"):
        retry(archive, parser=fakes.PARSER.model_copy(update={"digest": "8" * 64}))
    assert retry(archive, config=job(archive, max_removed=0.0)).changes.retried == 5
    (archive / "whole.txt").unlink()
    with pytest.raises(InputError, match=r"whole.txt: holds dead letters .* gone"):
        retry(archive)
    assert attempts(retry(archive, DeadLetterFilter(ids=("e",))))["e"] == 2


def test_retry_refuses_an_unfinished_run_and_an_interrupted_one_is_continued(archive: Path) -> None:
    with pytest.raises(StoreError):
        runs.run_job(job(archive), build=fakes.build_worker_without_room)
    with pytest.raises(PlanError, match="not finished"):
        retry(archive)
    runs.run_job(job(archive))
    with pytest.raises(StoreError):
        retry(archive, build=fakes.build_worker_without_room)
    report = retry(archive)
    assert set(attempts(report).values()) == {1}
    assert OutputFolder(report.output).latest_generation() == 1
    with pytest.raises(StoreError):
        retry(archive, build=fakes.build_worker_without_room)
    report = runs.run_job(job(archive))
    assert set(attempts(report).values()) == {1}
    assert report.annotated == 0
    (archive / "new.txt").write_text("Dora went.")
    with pytest.raises(StoreError):
        runs.run_job(job(archive), build=fakes.build_worker_without_room)
    with pytest.raises(PlanError, match=r"generation \d is not finished"):
        retry(archive)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an archive, its collection, and that of an undisturbed retry."""
    folder = tmp_path_factory.mktemp("finished")
    archive = make_archive(folder / "in")
    runs.run_job(job(archive, output=str(folder / "before")))
    undisturbed = job(archive, output=str(runs.copy_output(folder / "before", folder / "undisturbed")))
    retry(archive, config=undisturbed, build=build_fixed_worker)
    return folder


@pytest.mark.parametrize("step", CRASH_STEPS[:-1])
def test_a_retry_killed_at_any_step_ends_with_the_same_bytes(finished: Path, tmp_path: Path, step: str) -> None:
    archive = finished / "in"
    config = job(archive, output=str(runs.copy_output(finished / "before", tmp_path / "out")))
    killed = runs.in_child(lambda: retry(archive, config=config, build=build_fixed_worker), crash_at=step)
    killed.join()
    if step not in {"publish", "swap"}:
        report = retry(archive, config=config, build=build_fixed_worker)
    else:
        # Only removing orphans is left to do, which the next run of either kind does.
        report = runs.run_job(config)
    assert set(attempts(report).values()) == {1}
    assert runs.committed_bytes(stores.local(report.output)) == runs.committed_bytes(finished / "undisturbed")


def test_retry_covers_dead_letters_of_a_limited_run(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limited = job(archive, limit=6)
    first = runs.run_job(limited)
    assert first.read == 6
    assert first.dead_letters > 0
    again = runs.run_job(limited, build=fakes.build_no_worker)
    assert (again.changes.new, OutputFolder(first.output).latest_generation()) == (0, 0)
    report = retry(archive, config=limited)
    assert (report.read, report.changes.retried) == (6, first.dead_letters)
    (archive / "0 first.txt").write_text("Before all others.")
    moved_on = runs.run_job(limited.model_copy(update={"output": OutputConfig(path=str(archive.parent / "fresh"))}))
    with pytest.raises(PlanError, match="would be dropped"):
        runs.run_job(limited)
    assert moved_on.read == 6
