"""Eighteen types of spaCy: annotated, exported, and corrected."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
import spacy
from click.testing import CliRunner
from spacy.tokens import DocBin

import concord
from concord.workflows.cli.main import main

pytestmark = pytest.mark.slow

WORDS = {
    "PERSON": "Ada",
    "NORP": "Belgian",
    "FAC": "Broadway",
    "ORG": "Unesco",
    "GPE": "Paris",
    "LOC": "Alps",
    "PRODUCT": "Cola",
    "EVENT": "Olympics",
    "WORK_OF_ART": "Hamlet",
    "LAW": "Miranda",
    "LANGUAGE": "Latin",
    "DATE": "1945",
    "TIME": "noon",
    "PERCENT": "half",
    "MONEY": "$5",
    "QUANTITY": "mile",
    "ORDINAL": "third",
    "CARDINAL": "seven",
}


def run(*arguments: object) -> dict[str, Any]:
    result = CliRunner().invoke(main, [*map(str, arguments), "--json"])
    assert result.exit_code == 0, result.output
    values: dict[str, Any] = json.loads(result.stdout)
    return values


@pytest.fixture
def collection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Annotate two texts by a pipeline of eighteen types, which also splits them."""
    monkeypatch.setenv("CONCORD_CACHE", str(tmp_path / "cache"))
    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer")
    patterns = [{"label": label, "pattern": word} for label, word in WORDS.items()]
    nlp.add_pipe("entity_ruler").add_patterns(patterns)
    nlp.to_disk(tmp_path / "pipeline")
    (tmp_path / "in").mkdir()
    for name in "ab":
        text = " ".join(f"They saw {word} there." for word in WORDS.values())
        (tmp_path / f"in/{name}.txt").write_text(f"{text} Nobody told Dora.", encoding="utf-8")
    annotate(tmp_path)
    return tmp_path / "out"


def annotate(folder: Path) -> None:
    pipeline = f"spacy:{folder}/pipeline"
    run(
        *("annotate", folder / "in", "-o", folder / "out", "--model", pipeline, "--no-trees"),
        *("--set", "parser.tags=false", "--set", f"parser.package={pipeline}"),
    )


def labels(collection: Path) -> dict[str, str]:
    entities = concord.open(str(collection)).to_arrow("entities").to_pylist()
    return {f"{row['doc_id']} {row['name']}": row["label"] for row in entities}


def test_eighteen_types_are_annotated_exported_and_corrected(collection: Path, tmp_path: Path) -> None:
    expected = {f"{name} {word}": label for name in ("a.txt", "b.txt") for label, word in WORDS.items()}
    assert labels(collection) == expected
    for form, name in (("brat", "brat"), ("docbin", "bins"), ("csv", "a.csv")):
        run("export", collection, "--to", form, "-o", tmp_path / name)
    configuration = (tmp_path / "brat/annotation.conf").read_text().split()
    assert set(WORDS) <= set(configuration)
    [part] = (tmp_path / "bins").glob("*.spacy")
    docs = DocBin().from_disk(part).get_docs(spacy.blank("en").vocab)
    assert [{entity.text: entity.label_ for entity in doc.ents} for doc in docs] == [
        {word: label for label, word in WORDS.items()}
    ] * 2
    with (tmp_path / "a.csv").open(encoding="utf-8-sig", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert {(row["label"], row["name"]) for row in rows} == set(WORDS.items())
    assert {row["label"]: row["value"] for row in rows if row["value"]} == {
        "MONEY": "5 USD",
        "CARDINAL": "7",
    }
    told = CliRunner().invoke(main, ["export", str(collection), "--to", "label-studio", "-o", str(tmp_path / "t.json")])
    assert set(re.findall(r'<Label value="(\w+)"', told.output)) == set(WORDS)
    tasks = json.loads((tmp_path / "t.json").read_text())
    for task in tasks:
        result = task["predictions"][0]["result"]
        changed = next(region["value"] for region in result if region["value"]["text"] == "Hamlet")
        changed["labels"] = ["PERSON"]
        task["annotations"] = [{"result": result}]
    (tmp_path / "t.json").write_text(json.dumps(tasks))
    run("corrections", "import", tmp_path / "t.json", collection, "--as", "ada")
    annotate(tmp_path)
    assert labels(collection) == expected | {"a.txt Hamlet": "PERSON", "b.txt Hamlet": "PERSON"}
