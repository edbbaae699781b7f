"""``concord diff``: the changes between two annotations of a collection as JSON, tables and page."""

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from concord_testing import finished_runs, runs

from concord.pipeline.documents import DeadLetter
from concord.pipeline.errors import IntegrityError, PlanError
from concord.pipeline.identity import ComponentIdentity
from concord.pipeline.output.schema import SCHEMA_VERSION
from concord.workflows.cli.main import main
from concord.workflows.diff.command import diff_collections

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


def diff(first: Path, second: Path, *, listed: int = 20) -> dict[str, Any]:
    answer = diff_collections(first, second, listed=listed)
    assert answer.exit_code == 0
    return dict(answer.values)


def concord(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def dead_letter(
    doc_id: str | None, *, position: int = 0, error: str = "parser_failed", message: str = "the parser failed"
) -> DeadLetter:
    return DeadLetter(
        doc_id=doc_id, source_uri="/data/a.jsonl", position=position, stage="parse", error=error, message=message
    )


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return two annotations of two documents; tests must not modify them."""
    folder = tmp_path_factory.mktemp("sides")
    tagger = ComponentIdentity(name="other_tagger", digest="3" * 64)
    return (
        finished_runs.write_run(folder / "a", BEFORE),
        finished_runs.write_run(folder / "b", AFTER, documents_per_shard=1, tagger=tagger),
    )


def test_diff_reports_every_kind_of_change_with_offsets_and_both_sides(sides: tuple[Path, Path]) -> None:
    values = diff(*sides)
    reported = [
        (
            change["kind"],
            change["doc_id"],
            *((side["label"], side["text"], side["confidence"], side["refined"]) for side in sides_of(change)),
        )
        for change in values["entities"]["changes"]
    ]
    assert reported == [
        ("relabelled", "yard", ("LOC", "Florence", 0.9, False), ("PER", "Florence", 0.97, True)),
        ("moved", "yard", ("ORG", "Baxter", 0.7, True), ("ORG", "Baxter's yard", 0.75, False)),
        ("lost", "yard", ("PER", "Tarn", 0.6, False), ("O", "Tarn", 0.92, False)),
        ("gained", "fair", ("O", "Goole", 0.55, True), ("LOC", "Goole", 0.99, False)),
    ]
    assert [change["sureness"] for change in values["entities"]["changes"]] == [0.9, 0.7, 0.6, 0.55]
    assert values["verdict"] == "4 of 5 entities changed, in 2 of 2 documents with the same text"
    lost = values["entities"]["changes"][2]
    assert lost["context"] == "Baxter's yard waits Florence met Tarn in Bern"
    for side in sides_of(lost):
        assert (side["sent_id"], side["start_char"], side["end_char"]) == (1, 33, 37)
        start = side["start_char"] - lost["context_start"]
        assert lost["context"][start : start + 4] == "Tarn"


def sides_of(change: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    return change["first"], change["second"]


def test_diff_counts_changes_by_kind_labels_and_sureness(sides: tuple[Path, Path]) -> None:
    entities = diff(*sides)["entities"]
    assert {kind: tally["count"] for kind, tally in entities["kinds"].items()} == {
        "same": 1,
        "relabelled": 1,
        "moved": 1,
        "lost": 1,
        "gained": 1,
    }
    assert entities["kinds"]["lost"]["below"] == {"0.5": 0, "0.8": 1, "0.95": 1}
    assert entities["kinds"]["relabelled"]["mean_confidence"] == [0.9, 0.97]
    assert entities["kinds"]["moved"]["refined"] == [1, 0]
    assert {(row["kind"], row["first"], row["second"]): row["count"] for row in entities["labels"]} == {
        ("same", "LOC", "LOC"): 1,
        ("relabelled", "LOC", "PER"): 1,
        ("moved", "ORG", "ORG"): 1,
        ("lost", "PER", "O"): 1,
        ("gained", "O", "LOC"): 1,
    }
    assert sum(entities["sureness"]) == 4
    assert entities["most_changed"] == [
        {"doc_id": "yard", "changes": 3, "entities": 4},
        {"doc_id": "fair", "changes": 1, "entities": 0},
    ]


def test_diff_lists_only_the_most_certain_changes(sides: tuple[Path, Path]) -> None:
    whole = diff(*sides)["entities"]
    for listed in (0, 1, 3):
        some = diff(*sides, listed=listed)["entities"]
        assert some["changes"] == whole["changes"][:listed]
        assert some["kinds"] == whole["kinds"]


def test_a_side_without_probabilities_is_of_unknown_certainty(tmp_path: Path) -> None:
    first = finished_runs.write_run(tmp_path / "a", {"d": ("Ada|B-PER|||- met|O|||- Tom|O|||- Bern|B-LOC|||-",)})
    second = finished_runs.write_run(tmp_path / "b", {"d": ("Ada|B-LOC|||0.7 met Tom|B-PER|||0.8 Bern|B-LOC",)})
    entities = diff(first, second)["entities"]
    assert [(change["kind"], change["sureness"]) for change in entities["changes"]] == [
        ("relabelled", None),
        ("gained", None),
    ]
    assert [[side["confidence"] for side in sides_of(change)] for change in entities["changes"]] == [
        [None, 0.7],
        [None, 0.8],
    ]
    assert entities["kinds"]["gained"]["mean_confidence"] == [None, 0.8]
    assert entities["kinds"]["same"]["below"] == {"0.5": 0, "0.8": 0, "0.95": 0}
    assert sum(entities["sureness"]) == 0
    result = concord("diff", first, second, "-o", tmp_path / "diff.html")
    assert result.exit_code == 0, result.output
    assert "PER - Ada" in result.output


def test_diff_finds_no_change_between_a_collection_and_itself(sides: tuple[Path, Path]) -> None:
    values = diff(sides[0], sides[0])
    assert values["verdict"] == "no entity changed in 2 documents with the same text"
    assert values["recipe"] == []
    assert set(values["tokens"]["differing"].values()) == {0}
    assert (values["entities"]["changes"], values["entities"]["kinds"]["same"]["count"]) == ([], 4)


def test_diff_compares_taggers_parsers_and_settings(sides: tuple[Path, Path]) -> None:
    values = diff(*sides)
    (line,) = values["recipe"]
    assert line.startswith("tagger: was 'entities_multi@222")
    assert "is now 'other_tagger@333" in line
    assert values["first"]["calibration"] == ["none"]
    assert values["first"]["parser"] == values["second"]["parser"]


def test_diff_compares_sentences_words_and_heads_by_offsets(tmp_path: Path) -> None:
    first = finished_runs.write_run(tmp_path / "a", {"d": ("Ada met Tom", "They can ~not stay")})
    second = finished_runs.write_run(tmp_path / "b", {"d": ("Ada met Tom", "They cannot stay")})
    values = diff(first, second)
    assert values["sentences"] == {"first": 2, "second": 2, "shared": 2}
    tokens = values["tokens"]
    assert (tokens["first"], tokens["second"], tokens["shared"]) == (7, 6, 5)
    # The root starts at the same offset, although its number and length differ: no head differs.
    assert (tokens["differing"]["head"], tokens["differing"]["deprel"]) == (0, 0)
    third = finished_runs.write_run(tmp_path / "c", {"d": ("Ada met", "Tom They cannot stay")})
    values = diff(second, third)
    assert (values["sentences"]["shared"], values["tokens"]["shared"]) == (0, 6)
    # Heads: Tom from met to They, They from cannot to root, cannot from root to They, stay from cannot to They.
    assert (values["tokens"]["differing"]["head"], values["tokens"]["differing"]["deprel"]) == (4, 2)


def test_diff_takes_heads_that_were_left_out_for_equal(tmp_path: Path) -> None:
    documents = {"d": ("Ada met Tom", "They can ~not stay")}
    first = finished_runs.write_run(tmp_path / "a", documents)
    second, third = (
        finished_runs.write_run(tmp_path / name, documents, left_out=["trees", "tags"]) for name in ("b", "c")
    )
    differing = {"head": 7, "deprel": 7, "lemma": 7, "upos": 7}
    assert {name: count for name, count in diff(first, second)["tokens"]["differing"].items() if count} == differing
    assert not any(diff(second, third)["tokens"]["differing"].values())


def test_diff_context_contains_the_whole_words_around_an_entity(tmp_path: Path) -> None:
    long = "x" * 200
    first = finished_runs.write_run(tmp_path / "a", {"d": (f"see {long}Tom{long} now",)})
    second = finished_runs.write_run(tmp_path / "b", {"d": (f"see {long} ~Tom|B-PER ~{long} now",)})
    (change,) = diff(first, second)["entities"]["changes"]
    start = change["second"]["start_char"] - change["context_start"]
    assert change["context"][start : start + 3] == "Tom"
    assert change["first"]["confidence"] == 0.9


def test_diff_matches_documents_by_id_then_by_text(tmp_path: Path) -> None:
    first = {"a": ("Ada slept",), "b": ("Bern shone|B-LOC",), "c": ("Carl left",), "d": ("Dora won",)}
    second = {"x": ("Dora won",), "b": ("Bern shone",), "c": ("Carl left again",), "e": ("Eva is new",)}
    values = diff(finished_runs.write_run(tmp_path / "a", first), finished_runs.write_run(tmp_path / "b", second))
    documents = values["documents"]
    assert {key: documents[key] for key in ("first", "second", "same_text", "renamed", "changed")} == {
        "first": 4,
        "second": 4,
        "same_text": 2,
        "renamed": 1,
        "changed": 1,
    }
    assert documents["listed"] == {
        "renamed": [["d", "x"]],
        "changed": ["c"],
        "only_first": ["a"],
        "only_second": ["e"],
    }
    # Only the four words of b and d are compared.
    assert values["tokens"]["first"] == values["tokens"]["second"] == 4
    assert values["entities"]["kinds"]["lost"]["count"] == 1


def test_diff_says_when_collections_share_no_text(tmp_path: Path) -> None:
    first = finished_runs.write_run(tmp_path / "a", {"a": ("Ada slept",)})
    answer = diff_collections(first, finished_runs.write_run(tmp_path / "b", {}), listed=5)
    assert answer.values["verdict"] == "A and B have no document with the same text"
    assert answer.values["documents"]["only_first"] == 1
    assert ("only in A  1  a" in answer.text, "same offsets" in answer.text) == (True, False)


def test_diff_reports_gained_and_lost_dead_letters_with_their_counterparts(tmp_path: Path) -> None:
    first = finished_runs.write_run(
        tmp_path / "a",
        {"ok": ("Ada slept",), "broken": ("Bern shone",)},
        dead_letters=[
            dead_letter("repaired"),
            dead_letter("other"),
            dead_letter(None, position=7),
            dead_letter(None, position=9),
        ],
    )
    second = finished_runs.write_run(
        tmp_path / "b",
        {"ok": ("Ada slept",), "repaired": ("Carl left",)},
        dead_letters=[
            dead_letter("broken"),
            dead_letter("other", error="tagger_failed"),
            dead_letter(None, position=7),
        ],
    )
    values = diff(first, second)["dead_letters"]
    assert (values["first"], values["second"], values["same"]) == (4, 3, 1)
    assert [(row["doc_id"], row["before"]) for row in values["listed"]["gained"]] == [
        ("other", "parse: parser_failed"),
        ("broken", "annotated"),
    ]
    assert [(row["doc_id"], row["position"], row["after"]) for row in values["listed"]["lost"]] == [
        ("other", 0, "parse: tagger_failed"),
        ("repaired", 0, "annotated"),
        (None, 9, "absent"),
    ]
    assert values["reasons"] == [
        {"stage": "parse", "error": "parser_failed", "first": 4, "second": 2},
        {"stage": "parse", "error": "tagger_failed", "first": 0, "second": 1},
    ]


def test_diff_escapes_terminal_control_characters(tmp_path: Path) -> None:
    first = finished_runs.write_run(tmp_path / "a", {"ok": ("Ada slept",)})
    second = finished_runs.write_run(tmp_path / "b", {"ok": ("Ada slept",)}, dead_letters=[dead_letter("red\x1b[31m")])
    text = diff_collections(first, second, listed=5).text
    assert "red\\x1b[31m" in text
    assert "\x1b" not in text


def random_documents(chance: random.Random, texts: list[list[str]]) -> dict[str, tuple[str, ...]]:
    """Label invented texts with random entities of one to three words."""
    documents: dict[str, tuple[str, ...]] = {}
    for number, words in enumerate(texts):
        labels: list[str] = []
        while len(labels) < len(words):
            kind, length = chance.choice(("PER", "LOC", "")), chance.randint(1, 3)
            labels += [f"B-{kind}", *[f"I-{kind}"] * (length - 1)] if kind else ["O"]
        rows = [
            f"{word}|{label}||{chance.choice((0.1, 0.6))}|{chance.randint(1, 99) / 100}"
            for word, label in zip(words, labels, strict=False)
        ]
        documents[f"d{number}"] = (" ".join(rows),)
    return documents


def rows_of(output: Path, table: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(output / table).to_pylist()
    return rows


def compare_by_enumeration(first: Path, second: Path) -> list[tuple[Any, ...]]:
    """Return kind, offsets, label, confidence and refined of both sides for each entity, compared one by one."""
    entities, words = ([rows_of(output, table) for output in (first, second)] for table in ("entities", "tokens"))

    def overlap(one: dict[str, Any], other: dict[str, Any]) -> bool:
        return one["doc_id"] == other["doc_id"] and bool(
            one["start_char"] < other["end_char"] and other["start_char"] < one["end_char"]
        )

    def position(row: dict[str, Any]) -> tuple[str, int, int]:
        return row["doc_id"], row["start_char"], row["end_char"]

    pairs = []
    spans = [{position(row): row for row in side} for side in entities]
    for key in spans[0].keys() & spans[1].keys():
        one, other = spans[0].pop(key), spans[1].pop(key)
        kind = "same" if one["label"] == other["label"] else "relabelled"
        pairs.append((kind, one, other))
    left = [sorted(side.values(), key=position) for side in spans]
    for one in list(left[0]):
        partner = next((other for other in left[1] if overlap(one, other)), None)
        if partner and next(row for row in left[0] if overlap(row, partner)) is one:
            pairs.append(("moved", one, partner))
    paired = [[id(pair[side]) for pair in pairs] for side in (1, 2)]

    def outside(row: dict[str, Any], side: int) -> dict[str, Any]:
        under = [word for word in words[side] if overlap(row, word)]
        confidence = min(word["ner_prob"] for word in under)
        return row | {"label": "O", "confidence": confidence, "refined": any(word["refined"] for word in under)}

    pairs += [("lost", row, outside(row, 1)) for row in left[0] if id(row) not in paired[0]]
    pairs += [("gained", outside(row, 0), row) for row in left[1] if id(row) not in paired[1]]
    return [
        (
            kind,
            *((*position(row), row["label"], round(row["confidence"], 4), row["refined"]) for row in (one, other)),
        )
        for kind, one, other in pairs
    ]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_diff_finds_the_same_changes_as_plain_enumeration(tmp_path: Path, seed: int) -> None:
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
    assert {(row["kind"], row["first"], row["second"]): row["count"] for row in values["labels"]} == Counter(
        (kind, one[3], other[3]) for kind, one, other in expected
    )
    reported = [
        (
            change["kind"],
            *(
                (change["doc_id"], *(side[key] for key in ("start_char", "end_char", "label", "confidence", "refined")))
                for side in sides_of(change)
            ),
        )
        for change in values["changes"]
    ]
    assert {kind for kind, *_ in reported} == {"relabelled", "moved", "lost", "gained"}
    assert sorted(reported) == sorted(row for row in expected if row[0] != "same")
    surenesses = [change["sureness"] for change in values["changes"]]
    assert surenesses == sorted(surenesses, reverse=True)
    assert surenesses == sorted((min(one[4], other[4]) for _, one, other in reported), reverse=True)


def test_diff_rejects_folders_that_cannot_be_compared(sides: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="expected the output of a run"):
        diff(sides[0], tmp_path)
    unfinished = finished_runs.write_run(tmp_path / "unfinished", BEFORE)
    runs.unfinish(unfinished)
    refused = concord("diff", unfinished, sides[1])
    assert (refused.exit_code, "the run is not finished" in refused.stderr) == (2, True)
    older = finished_runs.write_run(tmp_path / "older", BEFORE)
    manifest = orjson.loads((older / "_run/manifest.json").read_bytes())
    (older / "_run/manifest.json").write_bytes(orjson.dumps(manifest | {"schema_version": 1}))
    with pytest.raises(PlanError, match=rf"version 1 of the schema.*version {SCHEMA_VERSION}: expected the same"):
        diff(older, sides[1])
    broken = finished_runs.write_run(tmp_path / "broken", BEFORE)
    next((broken / "tokens").iterdir()).unlink()
    with pytest.raises(IntegrityError, match="concord verify"):
        diff(broken, sides[1])


def test_diff_ignores_files_that_the_manifest_does_not_name(sides: tuple[Path, Path], tmp_path: Path) -> None:
    output = finished_runs.write_run(tmp_path / "a", BEFORE)
    for table in ("documents", "entities"):
        (part,) = (output / table).iterdir()
        part.with_name("part-00009-g0-orphan.parquet").write_bytes(part.read_bytes())
    assert diff(output, sides[1])["entities"] == diff(*sides)["entities"]


def test_diff_command_prints_tables_and_writes_a_page(sides: tuple[Path, Path], tmp_path: Path) -> None:
    page = tmp_path / "deep" / "page.html"
    result = concord("diff", *sides, "--output", page, "--top", 2)
    assert result.exit_code == 0, result.output
    for text in (
        "4 of 5 entities changed, in 2 of 2 documents",
        "tagger: was",
        "A \\ B  LOC  ORG  PER  none",
        "LOC      1    0    1     0",
        "0.900      different label       LOC 0.90 Florence  PER 0.97* Florence      yard             1  20-28",
    ):
        assert text in result.stdout, result.stdout
    assert "Tarn" not in result.stdout
    assert page.read_text().startswith("<!doctype html>")
    values = json.loads(concord("diff", *sides, "--json", "--top", 2).stdout)
    assert len(values["entities"]["changes"]) == 2
    assert values == diff(*sides, listed=2)


def test_diff_page_shows_both_sides_and_escapes_all_values(tmp_path: Path) -> None:
    evil = "<b>x</b>"
    first = finished_runs.write_run(
        tmp_path / "a<i>",
        {evil: (f"{evil}|B-{evil}|||0.9 met <script>Tom",), "gone<u>": ("Only here",)},
        dead_letters=[dead_letter(None, message=f"cannot read {evil}", error=evil)],
        tagger=ComponentIdentity(name=evil, digest="4" * 64),
    )
    second = finished_runs.write_run(tmp_path / "b<i>", {evil: (f"{evil} met <script>Tom|B-PER",)})
    diff_collections(first, second, listed=5, output=tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert not any(raw in page for raw in ("<b>x", "<script", "<i>,", "gone<u>", "http://", "https://"))
    assert page.count('class="pair"') == 2
    for text in (
        "&lt;b&gt;x&lt;/b&gt;",
        "&lt;script&gt;Tom",
        "gone&lt;u&gt;",
        "no entity 0.90",
        "only in A",
        "only in B",
    ):
        assert text in page


def test_diff_page_renders_when_collections_have_no_documents(tmp_path: Path) -> None:
    empty = [finished_runs.write_run(tmp_path / name, {}) for name in "ab"]
    diff_collections(*empty, listed=5, output=tmp_path / "page.html")
    assert "A and B have no document with the same text" in (tmp_path / "page.html").read_text()
