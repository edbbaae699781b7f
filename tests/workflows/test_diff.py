"""``concord diff``: the differences between two annotations as JSON and tables."""

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from concord_testing import finished_runs, runs
from concord_testing.command_line import concord

from concord.pipeline.documents import DeadLetter
from concord.pipeline.errors import IntegrityError, PlanError
from concord.pipeline.identity import ComponentIdentity
from concord.pipeline.output.schema import SCHEMA_VERSION
from concord.workflows.diff import diff_collections

pytestmark = pytest.mark.slow

# B relabels Florence, moves the boundaries of the yard, loses Tarn, gains Goole and agrees on Bern.
BEFORE = {
    "yard": (
        "Baxter|B-ORG||0.9|0.7 ~'s|O yard|O|||0.95 waits|O",
        "Florence|B-LOC|||0.9 met Tarn|B-PER|||0.6 in Bern|B-LOC",
    ),
    "fair": ("Nobody came to Goole|O||0.5|0.55",),
}
AFTER = {
    "yard": (
        "Baxter|B-ORG|||0.8 ~'s|I-ORG|||0.75 yard|I-ORG waits|O",
        "Florence|B-PER||0.9|0.97 met Tarn|O|||0.92 in Bern|B-LOC",
    ),
    "fair": ("Nobody came to Goole|B-LOC|||0.99",),
}
CHANGES = [
    ("only_second", "fair", "Goole", None, "LOC", 0.99),
    ("different", "yard", "Florence", "LOC", "PER", 0.9),
    ("only_second", "yard", "Baxter's yard", None, "ORG", 0.75),
    ("only_first", "yard", "Baxter", "ORG", None, 0.7),
    ("only_first", "yard", "Tarn", "PER", None, 0.6),
]


def diff(first: Path, second: Path, *, listed: int = 20) -> dict[str, Any]:
    answer = diff_collections(first, second, listed=listed)
    assert answer.exit_code == 0
    return dict(answer.values)


def reported(values: dict[str, Any]) -> list[tuple[Any, ...]]:
    names = ("kind", "doc_id", "name", "first_label", "second_label", "certainty")
    return [tuple(change[name] for name in names) for change in values["entities"]["changes"]]


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return two annotations of two documents; tests must not modify them."""
    folder = tmp_path_factory.mktemp("sides")
    tagger = ComponentIdentity(name="other_tagger", digest="3" * 64)
    return (
        finished_runs.write_run(folder / "a", BEFORE),
        finished_runs.write_run(folder / "b", AFTER, documents_per_shard=1, tagger=tagger),
    )


def test_diff_reports_every_kind_of_difference_by_certainty(sides: tuple[Path, Path]) -> None:
    values = diff(*sides)
    assert reported(values) == CHANGES
    assert values["verdict"] == "5 of 6 entities differ, in 2 of 2 documents with the same text"
    tarn = values["entities"]["changes"][-1]
    assert (tarn["sent_id"], tarn["start_char"], tarn["end_char"], tarn["first_confidence"]) == (1, 33, 37, 0.6)
    entities = values["entities"]
    counts = {"first": 4, "second": 4, "same": 1, "different": 1, "only_first": 2, "only_second": 2}
    assert {name: entities[name] for name in counts} == counts
    assert [(row["first"], row["second"], row["entities"]) for row in entities["labels"]] == [
        ("LOC", "PER", 1),
        ("ORG", None, 1),
        ("PER", None, 1),
        (None, "LOC", 1),
        (None, "ORG", 1),
        ("LOC", "LOC", 1),
    ]
    (line,) = values["settings"]
    assert line.startswith("tagger: was 'entities_multi@222")
    assert "is now 'other_tagger@333" in line
    for listed in (0, 1, 3):
        assert reported(diff(*sides, listed=listed)) == CHANGES[:listed]


def test_a_difference_without_probabilities_comes_last(tmp_path: Path) -> None:
    first = finished_runs.write_run(tmp_path / "a", {"d": ("Ada|B-PER|||- met|O|||- Tom|O|||- Bern|B-LOC|||-",)})
    second = finished_runs.write_run(tmp_path / "b", {"d": ("Ada|B-LOC|||0.7 met Tom|B-PER|||0.8 Bern|B-PER|||-",)})
    assert [(name, certainty) for _, _, name, *_, certainty in reported(diff(first, second))] == [
        ("Tom", 0.8),
        ("Ada", 0.7),
        ("Bern", None),
    ]
    result = concord("diff", first, second)
    assert result.exit_code == 0, result.output
    assert "-          LOC  PER       Bern" in result.output


def test_diff_finds_nothing_between_a_collection_and_itself(sides: tuple[Path, Path]) -> None:
    values = diff(sides[0], sides[0])
    assert values["verdict"] == "no entity differs in 2 documents with the same text"
    assert (values["settings"], values["entities"]["changes"], values["entities"]["same"]) == ([], [], 4)


def test_entities_at_the_same_offsets_are_matched_in_order(tmp_path: Path) -> None:
    # The words of a multi-word token share its offsets: here two entities, of which B has one.
    first, second = (
        finished_runs.write_run(tmp_path / name, {"d": ("Ada|B-PER Bern|B-LOC met Tom|B-PER",)}) for name in "ab"
    )
    for output, label in ((first, "PER"), (second, "ORG")):
        (part,) = (output / "entities").iterdir()
        table = pq.read_table(part)
        rows = table.to_pylist()
        rows[1] |= {"start_char": rows[0]["start_char"], "end_char": rows[0]["end_char"], "label": label}
        pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), part)
    entities = diff(first, second)["entities"]
    assert (entities["same"], entities["different"]) == (2, 1)


def test_diff_matches_documents_by_id(tmp_path: Path) -> None:
    first = {"a": ("Ada slept",), "b": ("Bern shone|B-LOC",), "c": ("Carl|B-PER left",), "d": ("Dora won",)}
    second = {"x": ("Dora won",), "b": ("Bern shone",), "c": ("Carl left again",), "e": ("Eva is new",)}
    dead_letter = DeadLetter(
        doc_id="f", source_uri="/data/a.jsonl", position=0, stage="parse", error="parser_failed", message="it failed"
    )
    output = finished_runs.write_run(tmp_path / "b", second, dead_letters=[dead_letter])
    answer = diff_collections(finished_runs.write_run(tmp_path / "a", first), output, listed=1)
    documents = dict(answer.values["documents"])
    assert documents.pop("listed") == {"different": ["c"], "only_first": ["a"], "only_second": ["e"]}
    assert documents == {"first": 4, "second": 4, "same": 1, "different": 1, "only_first": 2, "only_second": 2}
    # Carl is in a document of another text.
    assert answer.values["entities"]["only_first"] == 1
    assert (answer.values["first"]["dead_letters"], answer.values["second"]["dead_letters"]) == (0, 1)


def test_diff_says_when_collections_share_no_text(tmp_path: Path) -> None:
    first = finished_runs.write_run(tmp_path / "a\x1b", {"a\x1b[31m": ("Ada slept",)})
    empty = finished_runs.write_run(tmp_path / "b", {})
    answer = diff_collections(first, empty, listed=5)
    assert answer.values["verdict"] == "A and B have no document with the same text"
    assert "only in A  1  a\\x1b[31m" in answer.text
    assert "\x1b" not in answer.text
    assert diff(empty, empty)["documents"]["first"] == 0


def random_documents(chance: random.Random, texts: list[list[str]]) -> dict[str, tuple[str, ...]]:
    """Label invented texts with random entities of one to three words."""
    documents: dict[str, tuple[str, ...]] = {}
    for number, words in enumerate(texts):
        labels: list[str] = []
        while len(labels) < len(words):
            kind, length = chance.choice(("PER", "LOC", "")), chance.randint(1, 3)
            labels += [f"B-{kind}", *[f"I-{kind}"] * (length - 1)] if kind else ["O"]
        rows = [f"{word}|{label}|||{chance.randint(1, 99) / 100}" for word, label in zip(words, labels, strict=False)]
        documents[f"d{number}"] = (" ".join(rows),)
    return documents


def entities_of(output: Path) -> dict[tuple[str, int, int], dict[str, Any]]:
    rows = pq.read_table(output / "entities").to_pylist()
    return {(row["doc_id"], row["start_char"], row["end_char"]): row for row in rows}


def compare_by_enumeration(first: Path, second: Path) -> list[tuple[Any, ...]]:
    """Return place, labels and certainty of each entity, compared one by one."""
    sides = entities_of(first), entities_of(second)
    compared = []
    for place in sides[0].keys() | sides[1].keys():
        rows = [side.get(place) for side in sides]
        labels = [None if row is None else row["label"] for row in rows]
        certainty = min(round(row["confidence"], 4) for row in rows if row is not None)
        compared.append((*place, *labels, certainty))
    return compared


@pytest.mark.parametrize("seed", range(3))
def test_diff_finds_the_same_as_plain_enumeration(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    texts = [
        [chance.choice(("Ada", "met", "Tom", "in", "Bern")) for _ in range(chance.randint(1, 14))] for _ in range(40)
    ]
    first = finished_runs.write_run(tmp_path / "a", random_documents(chance, texts), documents_per_shard=7)
    # Cut into other shards, and in another order.
    documents = list(random_documents(chance, texts).items())
    chance.shuffle(documents)
    second = finished_runs.write_run(tmp_path / "b", dict(documents), documents_per_shard=9)
    expected = compare_by_enumeration(first, second)
    values = diff(first, second, listed=10_000)["entities"]
    assert {(row["first"], row["second"]): row["entities"] for row in values["labels"]} == Counter(
        (one, other) for *_, one, other, _ in expected
    )
    names = ("doc_id", "start_char", "end_char", "first_label", "second_label", "certainty")
    changes = [tuple(change[name] for name in names) for change in values["changes"]]
    assert sorted(changes, key=str) == sorted((row for row in expected if row[3] != row[4]), key=str)
    certainties = [change[-1] for change in changes]
    assert certainties == sorted(certainties, reverse=True)


def test_diff_rejects_folders_that_cannot_be_compared(sides: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="expected the output of a run"):
        diff(sides[0], tmp_path)
    unfinished = finished_runs.write_run(tmp_path / "unfinished", BEFORE)
    runs.unfinish(unfinished)
    refused = concord("diff", unfinished, sides[1])
    assert (refused.exit_code, "the run is not finished" in refused.stderr) == (2, True)
    older = finished_runs.write_run(tmp_path / "older", BEFORE)
    manifest = orjson.loads((older / "current/manifest.json").read_bytes())
    (older / "current/manifest.json").write_bytes(orjson.dumps(manifest | {"schema_version": 1}))
    with pytest.raises(PlanError, match=rf"version 1 of the schema.*version {SCHEMA_VERSION}: expected the same"):
        diff(older, sides[1])
    broken = finished_runs.write_run(tmp_path / "broken", BEFORE)
    next((broken / "entities").iterdir()).unlink()
    with pytest.raises(IntegrityError, match="concord verify"):
        diff(broken, sides[1])


def test_diff_command_prints_tables_or_json(sides: tuple[Path, Path]) -> None:
    result = concord("diff", *sides, "--top", 2)
    assert result.exit_code == 0, result.output
    for text in (
        "5 of 6 entities differ, in 2 of 2 documents",
        "tagger: was",
        "documents: 2 in A, 2 in B\n  the same  2",
        "LOC   PER          1",
        "0.900      LOC 0.90  PER 0.97  Florence  yard             1  20-28",
    ):
        assert text in result.stdout, result.stdout
    assert "Tarn" not in result.stdout
    assert json.loads(concord("diff", *sides, "--json", "--top", 2).stdout) == diff(*sides, listed=2)
