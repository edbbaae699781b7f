"""Annotating without trees, and without tags: all else is that of a whole run, and the choice is remembered."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from concord_testing.command_line import concord as command
from concord_testing.command_line import concord_json
from concord_testing.finished_runs import null_columns

import concord

pytestmark = pytest.mark.slow

MODEL = "entities_en_small"
TEXTS = (
    "Mira Solberg runs the ferry in Bergen. She couldn't leave on Tuesday.",
    "It rained.\n\nThe mayor of Oslo, whose boats lie in the canal, met Mira.",
    "Nobody came to Goole, not even Karl.",
)
LEFT_OUT = {"trees": ["trees"], "tags": ["trees", "tags"]}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write three texts, and annotate them with trees into ``whole`` beside them."""
    path = tmp_path_factory.mktemp("texts") / "in.jsonl"
    path.write_text("".join(json.dumps({"id": str(number), "text": text}) + "\n" for number, text in enumerate(TEXTS)))
    annotate(path, path.parent / "whole")
    return path


def annotate(source: Path, output: Path, *options: str) -> dict[str, Any]:
    return concord_json("annotate", source, "-o", output, "-m", MODEL, "--threads", 1, *options)


@pytest.mark.parametrize("left_out", LEFT_OUT.values(), ids=LEFT_OUT)
def test_words_and_labels_are_those_of_a_whole_run_in_batches_of_any_size(
    source: Path, tmp_path: Path, left_out: list[str]
) -> None:
    chosen = [value for part in left_out for value in ("--set", f"parser.{part}=false")]
    annotate(source, tmp_path / "out", *chosen, "--set", "parser.batch_documents=1")
    assert command("verify", tmp_path / "out").exit_code == 0
    null = null_columns(left_out)
    for name in ("documents", "sentences", "tokens", "entities"):
        rows, whole = (
            pq.read_table(folder / name).to_pylist() for folder in (tmp_path / "out", source.parent / "whole")
        )
        absent = {"parser": rows[0]["parser"]} if name == "documents" else null if name == "tokens" else {}
        assert rows == [row | absent for row in whole]
    assert command("review", tmp_path / "out", "--size", 2, "-o", tmp_path / "queue.json").exit_code == 0


def test_the_choice_is_that_of_the_collection_and_another_parses_again(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    annotate(source, output, "--no-trees")
    again = annotate(source, output)
    assert (again["annotated"], again["taken"]) == (0, {"parser.trees": False})
    tagged = annotate(source, output, "--set", "tagger.threshold=0.1")
    assert (tagged["changes"]["again"], tagged["changes"]["parsed"]) == (3, 3)
    assert pq.read_table(output / "tokens")["head"].null_count == tagged["counts"]["tokens"]
    preview = command("annotate", source, "-o", output, "--dry-run", "--trees", "--set", "parser.tags=false")
    assert "parser.tags: expected true where trees is true" in preview.output
    answer = annotate(source, output, "--trees")
    assert (answer["annotated"], answer["changes"]["again"], answer["changes"]["parsed"]) == (3, 3, 0)
    assert "parser.trees: was False, is now True" in answer["reasons"]
    assert pq.read_table(output / "tokens")["head"].null_count == 0


def test_a_text_in_memory_has_words_and_entities(source: Path) -> None:
    doc = concord.load(MODEL, settings={"parser.trees": False})(TEXTS[0])
    assert [(entity.text, entity.label) for entity in doc.entities][:2] == [("Mira Solberg", "PER"), ("Bergen", "LOC")]
    assert {(token.head, token.deprel) for token in doc.tokens} == {(None, None)}
    assert all(token.lemma and token.upos for token in doc.tokens)
