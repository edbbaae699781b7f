"""Runs keep people's corrections: only documents whose corrections changed are annotated again."""

import json
import logging
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest
from concord_testing import fakes, runs

from concord.pipeline.config import AnnotateConfig
from concord.pipeline.corrections.correction import Correction, Mark, Seen, append_to_log, log_path
from concord.pipeline.errors import InputError
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.verify import verify
from concord.pipeline.plan import Plan

pytestmark = pytest.mark.slow

TEXT = "Anna Smith saw Geneva. the cat met Bob there."
TEXTS = {f"d{number}": TEXT if number == 4 else f"Anna saw {number} cats in Geneva." for number in range(9)}
SEAM = "a b c d e f Anna Maria Smith Jones k l. then Bob."
"""The fake parser cuts a sentence after eight words, which is here within the name."""


@pytest.fixture
def config(tmp_path: Path) -> AnnotateConfig:
    """A job over nine documents in shards of a few, of which d4 has a text of its own."""
    write(tmp_path / "in.jsonl", TEXTS)
    return job(tmp_path / "in.jsonl", tmp_path / "out")


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("template")
    write(folder / "in.jsonl", TEXTS)
    runs.run_job(job(folder / "in.jsonl", folder / "out"))
    return folder


@pytest.fixture
def finished(template: Path, tmp_path: Path) -> AnnotateConfig:
    """The same job after its first run; the input must not be changed."""
    runs.copy_output(template / "out", tmp_path / "out")
    return job(template / "in.jsonl", tmp_path / "out")


def job(source: Path, output: Path) -> AnnotateConfig:
    return runs.job(source, output, planning={"shard_bytes": 200}, max_removed=1.0, max_dead_letters=1.0)


def write(path: Path, texts: dict[str, str]) -> None:
    path.write_text("".join(json.dumps({"id": doc_id, "text": text}) + "\n" for doc_id, text in texts.items()))


def mark(surface: str, label: str, text: str = TEXT) -> Mark:
    start = text.index(surface)
    return Mark(start=start, end=start + len(surface), type=label, text=surface)


def correct(
    config: AnnotateConfig, old: Mark | None, new: Mark | None, *, doc_id: str = "d4", text: str = TEXT
) -> Correction:
    made = Correction.of(old, new, text=text, seen=Seen(doc_id=doc_id, tagger="t", generation=0), who="ada")
    Path(config.output.path).mkdir(exist_ok=True)
    append_to_log(Path(config.output.path) / "corrections.jsonl", [made])
    return made


def rows(config: AnnotateConfig, table: str, doc_id: str = "d4") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(Path(config.output.path) / table).to_pylist()
    return [row for row in found if row["doc_id"] == doc_id]


def entities(config: AnnotateConfig, doc_id: str = "d4") -> list[tuple[str, str, str]]:
    return [(row["text"], row["label"], row["source"]) for row in rows(config, "entities", doc_id)]


def check(config: AnnotateConfig) -> None:
    """Check the files of the output, and that labels and entities say the same."""
    assert not list(verify(Path(config.output.path)))
    for doc_id in TEXTS:
        labelled = [row["start_char"] for row in rows(config, "tokens", doc_id) if row["ner"].startswith("B-")]
        assert labelled == [row["start_char"] for row in rows(config, "entities", doc_id)]


def test_corrections_override_the_tagger_until_they_are_undone(finished: AnnotateConfig) -> None:
    output = Path(finished.output.path)
    first = rows(finished, "entities"), rows(finished, "tokens")
    assert entities(finished) == [("Anna Smith", "PER", "model"), ("Geneva.", "PER", "model"), ("Bob", "PER", "model")]
    before = runs.committed_bytes(output)
    made = [
        correct(finished, mark("Anna Smith", "PER"), mark("Smith", "ORG")),
        correct(finished, mark("Geneva.", "PER"), None),
        correct(finished, None, mark("cat", "PET")),
        correct(finished, mark("met", "O"), None),
    ]
    report = runs.run_job(finished, build=fakes.build_worker_that_only_tags)
    assert (report.changes.corrected, report.changes.unchanged, report.changes.parsed) == (1, 8, 1)
    assert report.changes.description == "1 with other corrections"
    assert entities(finished) == [("Smith", "ORG", "corrected"), ("cat", "PET", "corrected"), ("Bob", "PER", "model")]
    labels = {row["text"]: (row["ner"], row["ner_prob"]) for row in rows(finished, "tokens")}
    certain = {"Anna": ("O", 1.0), "Smith": ("B-ORG", 1.0), "Geneva.": ("O", 1.0), "cat": ("B-PET", 1.0)}
    assert {word: found for word, found in labels.items() if found[1] == 1} == certain | {"met": ("O", 1.0)}
    assert [row["confidence"] == 1 for row in rows(finished, "entities")] == [True, True, False]
    check(finished)
    # Parts of shards without corrected documents are the same files.
    after = runs.committed_bytes(output)
    kept = [name for name in before if "00000" in name and name.endswith(".parquet") and "names" not in name]
    assert kept
    assert all(after[name] == before[name] for name in kept)
    # An unchanged log writes nothing.
    assert runs.run_job(finished, build=fakes.build_no_worker).changes.unchanged == 9
    assert runs.committed_bytes(output) == after
    append_to_log(log_path(output), [one.undone(who="bob") for one in made])
    assert runs.run_job(finished).changes.corrected == 1
    assert (rows(finished, "entities"), rows(finished, "tokens")) == first
    check(finished)


def test_correction_says_whom_an_entity_names_as_long_as_there_is_a_log(finished: AnnotateConfig) -> None:
    output, first = Path(finished.output.path), rows(finished, "entities")
    correct(finished, mark("Bob", "PER"), mark("Bob", "PER").model_copy(update={"canonical": "Anna Smith"}))
    assert runs.run_job(finished).changes.corrected == 1
    anna, _, bob = rows(finished, "entities")
    assert bob["source"] == "corrected"
    assert (bob["canonical"], bob["identity"]) == (anna["canonical"], anna["identity"]) == ("Anna Smith", 0)
    table = pq.read_table(output / "names").to_pylist()
    assert [row["variants"] for row in table if row["canonical"] == "Anna Smith"] == [["Anna Smith", "Bob"]]
    log_path(output).unlink()
    assert runs.run_job(finished).changes.corrected == 1
    assert rows(finished, "entities") == first
    check(finished)


def test_corrections_survive_new_generations_and_changed_text(
    config: AnnotateConfig, caplog: pytest.LogCaptureFixture
) -> None:
    correct(config, mark("Bob", "PER"), mark("Bob", "ORG"))
    correct(config, mark("Anna Smith", "PER"), None)
    runs.run_job(config)
    assert entities(config)[1:] == [("Bob", "ORG", "corrected")]
    other = runs.TAGGER.__class__(name="fake_tagger", version=None, digest="3" * 64, folder=Path("/nowhere"))
    assert runs.run_job(config, tagger=other).changes.again == 9
    assert entities(config)[1:] == [("Bob", "ORG", "corrected")]
    write(Path(config.input), TEXTS | {"d4": TEXT.replace("Anna Smith", "Carla")})
    with caplog.at_level(logging.WARNING):
        assert runs.run_job(config, tagger=other).changes.changed == 1
    assert entities(config)[0] == ("Carla", "PER", "model")
    assert entities(config)[2] == ("Bob", "ORG", "corrected")
    assert "'Anna Smith' is no longer in it" in caplog.text
    check(config)


def test_interrupted_run_resumes_with_the_corrections_of_its_time(finished: AnnotateConfig) -> None:
    correct(finished, mark("Bob", "PER"), None)
    runs.in_child(lambda: runs.run_job(finished), crash_at="commit").join()
    assert runs.run_job(finished).changes.corrected == 1
    assert [row[0] for row in entities(finished)] == ["Anna Smith", "Geneva."]
    # With one more while it was interrupted, what it did is brought up to date.
    correct(finished, mark("Geneva.", "PER"), None)
    runs.in_child(lambda: runs.run_job(finished), crash_at="commit").join()
    correct(finished, mark("Anna Smith", "PER"), None)
    runs.run_job(finished)
    assert entities(finished) == []
    check(finished)


def test_entity_across_the_pieces_of_a_sentence_is_corrected(tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", {"d4": SEAM, "d5": "Bob."})
    config = job(tmp_path / "in.jsonl", tmp_path / "out")
    runs.run_job(config)
    whole = mark("Anna Maria Smith Jones", "PER", SEAM)
    assert entities(config)[0][0] == whole.text
    correct(config, whole, whole.model_copy(update={"type": "ORG"}), text=SEAM)
    runs.run_job(config)
    assert entities(config) == [(whole.text, "ORG", "corrected"), ("Bob.", "PER", "model")]
    assert [row["ner"] for row in rows(config, "tokens")][5:11] == ["O", "B-ORG", *["I-ORG"] * 3, "O"]
    smith = mark("Smith", "PER", SEAM)
    correct(config, whole, smith, text=SEAM)
    runs.run_job(config)
    assert entities(config) == [("Smith", "PER", "corrected"), ("Bob.", "PER", "model")]
    assert not list(verify(Path(config.output.path)))


def test_renamed_document_loses_its_corrections_and_a_returned_one_has_them(config: AnnotateConfig) -> None:
    correct(config, mark("Bob", "PER"), None)
    runs.run_job(config)
    write(Path(config.input), {doc_id.replace("d4", "e4"): text for doc_id, text in TEXTS.items()})
    runs.run_job(config)
    assert entities(config, "e4")[-1] == ("Bob", "PER", "model")
    write(Path(config.input), TEXTS)
    runs.run_job(config)
    assert entities(config)[-1] == ("Geneva.", "PER", "model")
    check(config)


def test_moved_document_keeps_its_corrections(config: AnnotateConfig, tmp_path: Path) -> None:
    correct(config, mark("Bob", "PER"), None)
    runs.run_job(config)
    records = [{"id": doc_id, "text": text, "new": 1} for doc_id, text in TEXTS.items()]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    report = runs.run_job(config)
    assert (report.changes.moved, report.changes.unchanged) == (9, 9)
    assert entities(config)[-1] == ("Geneva.", "PER", "model")
    assert runs.run_job(config, build=fakes.build_no_worker).changes.unchanged == 9


def test_retry_writes_the_corrections_of_other_documents(config: AnnotateConfig, tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", TEXTS | {"d8": "PARSERFAULT Bob."})
    correct(config, mark("Bob", "PER"), None)
    runs.run_job(config)
    correct(config, mark("Geneva.", "PER"), None)
    correct(config, mark("Bob.", "PER", "PARSERFAULT Bob."), None, doc_id="d8", text="PARSERFAULT Bob.")
    planning = config.planning.model_copy(update={"retry": "all"})
    report = runs.run_job(config.model_copy(update={"planning": planning}))
    assert (report.changes.corrected, report.changes.retried) == (1, 1)
    assert [row[0] for row in entities(config)] == ["Anna Smith"]
    check(config)


def test_corrections_that_concern_nothing_and_a_broken_log_change_nothing(finished: AnnotateConfig) -> None:
    output = Path(finished.output.path)
    before = runs.committed_bytes(output)
    for doc_id in ("", "no such\ndocument", "\u202e\x00"):
        correct(finished, mark("Bob", "PER"), None, doc_id=doc_id)
    runs.run_job(finished, build=fakes.build_no_worker)
    assert runs.committed_bytes(output) == before
    log_path(output).write_text("nonsense\n{}\n")
    with pytest.raises(InputError, match="line 1: expected a correction"):
        runs.run_job(finished)
    assert runs.committed_bytes(output) == before


def test_digest_of_a_plan_covers_the_corrections(finished: AnnotateConfig) -> None:
    correct(finished, mark("Bob", "PER"), None)
    runs.run_job(finished)
    plan = OutputFolder(finished.output.path).plan()
    assert list(plan.corrected) == ["d4"]
    assert Plan.from_json(plan.to_json()).digest == plan.digest
    assert Plan.from_json(orjson.dumps(orjson.loads(plan.to_json()) | {"corrected": {}})).digest != plan.digest
