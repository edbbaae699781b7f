"""Trying dead letters again, as documents that are new."""

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from concord_testing import fakes, runs, stores

from concord.pipeline.config import AnnotateConfig, OutputConfig, Retry
from concord.pipeline.documents import DeadLetter, Document, ParsedDocument
from concord.pipeline.errors import PlanError, StoreError
from concord.pipeline.output.collection import read_dead_letters
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.verify import verify
from concord.pipeline.plan import Plan
from concord.pipeline.run_report import RunReport
from concord.pipeline.storage.output_paths import OutputPath
from concord.pipeline.worker.shard_worker import ShardWorker

pytestmark = pytest.mark.slow

SOUND = {"a": "Anna came.", "b": "Bob went.", "c": "Carla stayed."}


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Write a folder with dead letters of three stages in two of its four files."""
    folder = tmp_path / "in"
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
    values = {
        "planning": {"shard_bytes": 30, "retry": changes.pop("retry", None)},
        "max_removed": 1.0,
        "max_dead_letters": 1.0,
    }
    return runs.job(archive, archive.parent / "out", **(values | changes))


class FixedParser(fakes.FakeParser):
    """A parser without the fault of the other."""

    def parse(self, documents: Sequence[Document], **_: Any) -> list[ParsedDocument | DeadLetter]:
        return [fakes.parsed_document(document) for document in documents]


def build_fixed_worker(plan: Plan) -> ShardWorker:
    return ShardWorker(plan, parser=FixedParser(), tagger=fakes.FakeTagger())


def retry(archive: Path, stage: Retry = "all", **arguments: Any) -> RunReport:
    return runs.run_job(job(archive, retry=stage), **arguments)


def dead_letters_of(report: RunReport) -> list[DeadLetter]:
    """Read the current dead letters, and verify the folder."""
    assert verify(report.output) == []
    assert report.read == report.annotated + report.unchanged + report.dead_letters
    manifest = OutputFolder(report.output).manifest()
    assert manifest is not None
    found = read_dead_letters(OutputFolder(report.output), manifest.shards)
    return sorted(found, key=lambda dead_letter: dead_letter.message)


def attempts(report: RunReport) -> dict[str | None, int]:
    return {found.doc_id: found.attempts for found in dead_letters_of(report)}


def parts(output: OutputPath) -> dict[Path, tuple[int, bytes]]:
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in stores.local(output).glob("*/*.parquet")}


def texts_of(output: OutputPath) -> dict[str, list[str]]:
    rows = pq.read_table(stores.local(output) / "tokens", columns=["doc_id", "text"]).to_pylist()
    return {row["doc_id"]: [other["text"] for other in rows if other["doc_id"] == row["doc_id"]] for row in rows}


def test_dead_letters_are_retried_by_stage_with_what_is_new(archive: Path) -> None:
    first = runs.run_job(job(archive))
    assert (first.annotated, first.dead_letters) == (5, 5)
    before = parts(first.output)
    manifest = OutputFolder(first.output).manifest()
    assert manifest is not None
    untouched = {
        stores.local(first.output / part.path)
        for report in manifest.shards
        if not report.dead_letters
        for part in report.files.values()
    }
    (archive / "new.txt").write_text("Carla went.")
    report = retry(archive, "parse", build=build_fixed_worker)
    assert (report.changes.retried, report.changes.new, report.annotated, report.unchanged) == (2, 1, 3, 5)
    assert attempts(report) == {None: 0, "d": 0, "f": 0}
    after = parts(first.output)
    assert untouched
    assert {path: before[path] for path in untouched} == {path: after[path] for path in untouched}
    assert texts_of(report.output)["e"] == ["PARSERFAULT", "one."]
    report = retry(archive, "read")
    assert (report.changes.retried, attempts(report)) == (1, {None: 1, "d": 0, "f": 0})
    report = runs.run_job(job(archive), build=fakes.build_no_worker)
    assert attempts(report) == {None: 1, "d": 0, "f": 0}


def test_retry_counts_every_failed_attempt_and_does_nothing_when_none_matches(archive: Path) -> None:
    first = runs.run_job(job(archive))
    before = parts(first.output)
    report = retry(archive, "write", build=fakes.build_no_worker)
    assert parts(report.output) == before
    assert OutputFolder(report.output).latest_generation() == 0
    assert (report.dead_letters, report.changes.retried) == (5, 0)
    for number in (1, 2, 3):
        report = retry(archive)
        assert attempts(report) == {None: number, "d": 0, "e": number, "f": number, "whole.txt": number}
        assert (report.annotated, report.unchanged) == (0, 5)


def test_a_record_that_lacks_only_a_free_id_is_not_retried(archive: Path) -> None:
    write_lines(archive / "a.jsonl", {"x": "PARSERFAULT"})
    runs.run_job(job(archive))
    write_lines(archive / "b.jsonl", {"x": "Zoe came."})
    write_lines(archive / "0.jsonl", {"x": "Zoe went."})
    runs.run_job(job(archive))
    report = retry(archive, "parse")
    errors = [found.error for found in dead_letters_of(report) if found.doc_id == "x"]
    assert sorted(errors) == ["duplicate_id", "duplicate_id", "parse_failed"]
    assert (report.changes.retried, report.changes.new) == (3, 0)
    report = retry(archive, "parse", build=build_fixed_worker)
    assert texts_of(report.output)["x"] == ["PARSERFAULT"]
    (archive / "a.jsonl").unlink()
    report = runs.run_job(job(archive))
    assert texts_of(report.output)["x"] == ["Zoe", "went."]


def test_dead_letters_of_a_changed_file_are_matched_by_id(archive: Path) -> None:
    runs.run_job(job(archive))
    lines = (archive / "mixed.jsonl").read_text()
    (archive / "mixed.jsonl").write_text(lines.replace("TAGGERFAULT", "Tagged").replace("Dora sang.", "Dora sings."))
    report = retry(archive, "parse")
    assert (texts_of(report.output)["f"], texts_of(report.output)["d"]) == (["Tagged", "two."], ["Dora", "sings."])
    assert attempts(report) == {None: 0, "d": 0, "e": 1, "whole.txt": 1}
    again = runs.run_job(job(archive), build=fakes.build_no_worker)
    assert again.shards == report.shards
    (archive / "mixed.jsonl").write_text('{"id": "z", "text": "Zoe came."}\n' + (archive / "mixed.jsonl").read_text())
    report = retry(archive)
    assert (report.changes.new, report.changes.retried) == (1, 4)
    assert attempts(report) == {None: 1, "d": 0, "e": 2, "whole.txt": 2}


def test_a_truncated_stream_is_one_dead_letter_and_is_retried(archive: Path) -> None:
    lines = (archive / "sound.jsonl").read_bytes()
    (archive / "torn.jsonl.gz").write_bytes(gzip.compress(lines.replace(b'"', b'"x', 2))[:-9])

    def of_torn(report: RunReport) -> list[tuple[str, int]]:
        found = [dead for dead in dead_letters_of(report) if dead.source_uri.endswith("torn.jsonl.gz")]
        return [(dead.message, dead.attempts) for dead in found if dead.error != "duplicate_id"]

    before = of_torn(runs.run_job(job(archive)))
    again = of_torn(retry(archive, "read"))
    assert len(before) > 1
    assert [(message, number + 1) for message, number in before] == again


def test_retry_with_other_settings_is_a_run_with_these(archive: Path) -> None:
    runs.run_job(job(archive))
    other = fakes.PARSER.model_copy(update={"digest": "8" * 64})
    report = retry(archive, parser=other, build=build_fixed_worker)
    assert (report.changes.again, report.changes.retried) == (5, 5)
    assert attempts(report) == {None: 1, "d": 0, "f": 1}
    (archive / "mixed.jsonl").unlink()
    report = retry(archive, parser=other)
    assert (report.changes.removed, report.dead_letters) == (2, 0)


def test_an_interrupted_retry_is_continued_and_any_other_run_keeps_the_attempts(archive: Path) -> None:
    with pytest.raises(StoreError):
        runs.run_job(job(archive), build=fakes.build_worker_without_room)
    # The first run is finished first, and what fails in it has just been tried.
    assert set(attempts(retry(archive)).values()) == {0}
    with pytest.raises(StoreError):
        retry(archive, build=fakes.build_worker_without_room)
    report = retry(archive)
    assert attempts(report) == {None: 1, "d": 0, "e": 1, "f": 1, "whole.txt": 1}
    assert OutputFolder(report.output).latest_generation() == 1
    with pytest.raises(StoreError):
        retry(archive, build=fakes.build_worker_without_room)
    report = runs.run_job(job(archive))
    assert attempts(report) == {None: 1, "d": 0, "e": 1, "f": 1, "whole.txt": 1}
    assert report.annotated == 0
    (archive / "new.txt").write_text("Dora went.")
    with pytest.raises(StoreError):
        runs.run_job(job(archive), build=fakes.build_worker_without_room)
    report = retry(archive)
    assert (report.annotated, attempts(report)["e"]) == (1, 2)


def test_retry_covers_dead_letters_of_a_limited_run(archive: Path) -> None:
    limited = job(archive, limit=6)
    first = runs.run_job(limited)
    assert first.read == 6
    assert first.dead_letters > 0
    (archive / "zz.txt").write_text("Behind the limit.")
    again = runs.run_job(limited, build=fakes.build_no_worker)
    assert (again.changes.new, OutputFolder(first.output).latest_generation()) == (0, 0)
    report = runs.run_job(job(archive, limit=6, retry="all"))
    assert (report.read, report.changes.retried) == (6, first.dead_letters)
    (archive / "0 first.txt").write_text("Before all others.")
    moved_on = runs.run_job(limited.model_copy(update={"output": OutputConfig(path=str(archive.parent / "fresh"))}))
    with pytest.raises(PlanError, match="would be dropped"):
        runs.run_job(limited)
    assert moved_on.read == 6
