"""What is counted means what its words say: of a run, of a generation, of a collection, and of a document."""

import json
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from concord_testing import fakes, runs, viewing
from concord_testing.checkout import CHECKOUT

from concord.models.errors import ConcordError
from concord.pipeline.config import AnnotateConfig
from concord.pipeline.corrections.correction import Correction, Mark, Seen, append_to_log
from concord.pipeline.output.collection import open_collection
from concord.pipeline.output.shard_stats import ALWAYS_COUNTED, collection_counts, total_counts
from concord.pipeline.output.verify import verify
from concord.pipeline.plan import Changes
from concord.pipeline.planning import planner
from concord.pipeline.run_report import Progress, RunReport
from concord.workflows.annotation.summary import describe_run

pytestmark = pytest.mark.slow

BROKEN = "{broken"


@pytest.fixture
def config(tmp_path: Path) -> AnnotateConfig:
    """Return a job over six documents in one shard, with a line between them that cannot be read."""
    write(tmp_path / "in.jsonl", 6)
    return runs.job(tmp_path / "in.jsonl", tmp_path / "out", planning={"shard_bytes": 10_000}, max_dead_letters=1.0)


def write(path: Path, documents: int, **texts: str) -> None:
    records = {f"d{number}": f"Anna saw {number} cats in Geneva." for number in range(documents)} | texts
    lines = [json.dumps({"id": doc_id, "text": text}) for doc_id, text in records.items()]
    path.write_text("".join(f"{line}\n" for line in [*lines[:3], BROKEN, *lines[3:]]))


def correct(config: AnnotateConfig, doc_id: str) -> None:
    text = f"Anna saw {doc_id[1:]} cats in Geneva."
    old, new = (Mark(start=0, end=4, type=kind, text="Anna") for kind in ("PER", "ORG"))
    made = Correction.of(old, new, text=text, seen=Seen(doc_id=doc_id, tagger="t", generation=0), who="ada")
    append_to_log(Path(config.output.path) / "corrections.jsonl", [made])


def counts(report: RunReport) -> tuple[int, int, int, int]:
    assert report.read == report.annotated + report.unchanged + report.dead_letters
    return report.read, report.annotated, report.unchanged, report.dead_letters


def generations(config: AnnotateConfig) -> dict[str, int]:
    found: dict[str, int] = {}
    collection = open_collection(Path(config.output.path))
    for shard in collection.manifest.shards:
        ids = collection.read_rows(shard, "documents", ["doc_id"])["doc_id"].to_pylist()
        found |= dict(zip(ids, shard.document_generations(len(ids)), strict=True))
    return found


def test_a_run_that_finds_nothing_to_do_annotated_nothing(config: AnnotateConfig) -> None:
    assert counts(runs.run_job(config)) == (7, 6, 0, 1)
    again = runs.run_job(config, build=fakes.build_no_worker)
    assert counts(again) == (7, 0, 6, 1)
    text = describe_run(again, config=config, collection=open_collection(again.output))
    assert text.startswith("7 read = 0 annotated + 6 unchanged + 1 dead letter\n")
    assert "1 dead letter in the collection" in text
    assert "the collection holds 12 entities in 6 documents" in text


def test_a_run_that_was_interrupted_and_taken_up_annotated_the_rest(config: AnnotateConfig) -> None:
    config = config.model_copy(update={"planning": config.planning.model_copy(update={"shard_bytes": 100})})

    def stop(progress: Progress) -> None:
        if progress.shards_done == 1:
            raise ConcordError("stopped")

    with pytest.raises(ConcordError, match="stopped"):
        runs.run_job(config, progress=stop)
    report = runs.run_job(config)
    assert report.done_before == 1
    assert counts(report) == (7, 4, 2, 1)
    manifest = open_collection(report.output).manifest
    assert (manifest.generation, manifest.annotated, manifest.unchanged) == (0, 6, 0)
    assert set(generations(config).values()) == {0}


def test_a_correction_leaves_the_dead_letter_and_the_generation_of_the_others(config: AnnotateConfig) -> None:
    runs.run_job(config)
    correct(config, "d1")
    report = runs.run_job(config)
    assert counts(report) == (7, 1, 5, 1)
    assert report.changes.description == "1 with other corrections"
    assert generations(config) == {f"d{number}": int(number == 1) for number in range(6)}
    assert not list(verify(Path(config.output.path)))
    write(Path(config.input), 6, d4="Bob left.")
    assert counts(runs.run_job(config)) == (7, 1, 5, 1)
    assert generations(config) == {"d0": 0, "d1": 1, "d2": 0, "d3": 0, "d4": 2, "d5": 0}


def test_generations_survive_the_merging_of_small_shards(
    config: AnnotateConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner, "MERGED_AT", 2)
    runs.run_job(config)
    expected = {f"d{number}": 0 for number in range(6)}
    for number in (4, 2, 4, 1):
        expected[f"d{number}"] = max(expected.values()) + 1
        correct(config, f"d{number}") if expected[f"d{number}"] != 3 else write(Path(config.input), 6, d4="Bob left.")
        runs.run_job(config)
        assert generations(config) == expected


@pytest.mark.parametrize("change", ["new", "removed", "before", "fixed"])
def test_a_dead_letter_of_a_changed_file_is_tried_again_and_is_not_new(config: AnnotateConfig, change: str) -> None:
    runs.run_job(config)
    source = Path(config.input)
    lines = source.read_text().splitlines(keepends=True)
    extra = json.dumps({"id": "x", "text": "Bob left."}) + "\n"
    changed = {
        "new": [*lines, extra],
        "removed": lines[:-1],
        "before": [extra, *lines],
        "fixed": [extra if line.startswith(BROKEN) else line for line in lines],
    }
    source.write_text("".join(changed[change]))
    report = runs.run_job(config)
    changes = report.changes
    expected = {"new": (1, 1, 0), "removed": (0, 1, 1), "before": (1, 1, 0), "fixed": (1, 0, 0)}
    assert (changes.new, changes.retried, changes.removed) == expected[change]
    assert report.dead_letters == int(change != "fixed")


def test_a_document_that_shares_an_id_is_no_new_record_after_a_correction(config: AnnotateConfig) -> None:
    with Path(config.input).open("a") as file:
        file.write(json.dumps({"id": "d0", "text": "Bob."}) + "\n")
    assert counts(runs.run_job(config)) == (8, 6, 0, 2)
    correct(config, "d1")
    report = runs.run_job(config)
    assert counts(report) == (8, 1, 5, 2)
    assert report.changes.new == 0
    assert not list(verify(Path(config.output.path)))


def test_what_people_corrected_is_not_counted_as_changed_by_stage_two(config: AnnotateConfig) -> None:
    first = runs.run_job(config)
    before = total_counts(open_collection(first.output).manifest.shards)
    correct(config, "d1")
    runs.run_job(config)
    collection = open_collection(first.output)
    after = total_counts(collection.manifest.shards)
    tokens = pq.read_table(Path(config.output.path) / "tokens").to_pylist()
    [anna] = [row for row in tokens if (row["doc_id"], row["text"]) == ("d1", "Anna")]
    assert (anna["ner"], anna["refined"]) == ("B-ORG", False)
    # "Anna", of 0.4 nats, was above the threshold, and changed from O.
    assert after["refined_tokens"] == before["refined_tokens"] - 1
    assert after["changed_tokens"] == before["changed_tokens"] - 1
    assert after["changed_tokens"] <= after["refined_tokens"]


def test_the_viewer_keeps_places_and_tells_generations_apart(config: AnnotateConfig, tmp_path: Path) -> None:
    runs.run_job(config)

    def view() -> tuple[list[str], dict[int, list[str]]]:
        client = viewing.open_client(Path(config.output.path), tmp_path / "cache")

        def listed(address: str) -> list[str]:
            return re.findall(r'<th scope="row"><a data-item href="/document\?id=(\w+)"', client.get(address).text)

        return listed("/"), {number: listed(f"/?generation={number}") for number in range(3)}

    assert view() == (in_order := [f"d{number}" for number in range(6)], {0: in_order, 1: [], 2: []})
    correct(config, "d0")
    runs.run_job(config)
    write(Path(config.input), 7, d2="Bob left.")
    runs.run_job(config)
    order, by_generation = view()
    assert order == [*in_order, "d6"]
    assert by_generation == {0: ["d1", "d3", "d4", "d5"], 1: ["d0"], 2: ["d2", "d6"]}


def test_the_page_of_counts_names_each_of_them(config: AnnotateConfig) -> None:
    page = (CHECKOUT / "docs" / "runs.md").read_text()
    described = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", page, re.MULTILINE))
    assert {name: described.get(name) for name in ALWAYS_COUNTED} == ALWAYS_COUNTED
    values: dict[str, Any] = {"read": 0, "annotated": 0, "unchanged": 0, "dead_letters": 0}
    report = runs.run_job(config)
    assert described.keys() >= Changes.model_fields.keys() - {"parsed"}
    assert described.keys() >= values.keys() | collection_counts(open_collection(report.output).manifest).keys()
