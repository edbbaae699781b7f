"""A list of terms at annotation: from the command line, from Python, and what is refused."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from concord_testing.command_line import concord_json

import concord
from concord.pipeline.errors import InputError

MODEL = "entities_en_small"
TEXT = "Zorbax sold its plants in Vellmar to Tarn Metals in London last week ."

pytestmark = pytest.mark.slow


@pytest.fixture
def terms(tmp_path: Path) -> Path:
    path = tmp_path / "terms.jsonl"
    lines = ({"label": "ORG", "pattern": "Zorbax"}, {"label": "LOC", "pattern": "London"})
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def annotate(folder: Path, *options: str) -> dict[str, tuple[str, str]]:
    """Annotate the text and return label and source of the entities by their text."""
    (folder / "text.txt").write_text(TEXT)
    concord_json("annotate", folder / "text.txt", "-o", folder / "out", "-m", MODEL, *options)
    rows = pq.read_table(folder / "out" / "entities").to_pylist()
    return {row["text"]: (row["label"], row["source"]) for row in rows}


def test_entities_of_the_list_are_found_and_named(tmp_path: Path, terms: Path) -> None:
    plain = annotate(tmp_path)
    assert {source for _, source in plain.values()} == {"model"}
    found = annotate(tmp_path, "--set", f"tagger.terms={terms}")
    assert found["London"] == ("LOC", "terms")
    changed = found.keys() ^ plain.keys() | {name for name in plain if found.get(name, ("",))[0] != plain[name][0]}
    assert changed <= {"Zorbax"}
    concord_json("verify", tmp_path / "out")
    (signature,) = pq.read_table(tmp_path / "out" / "documents")["tagger"].unique().to_pylist()
    assert "+terms@" in signature
    entities = concord.load(MODEL, terms=terms)(TEXT).entities
    assert {entity.text: (entity.label, entity.source) for entity in entities} == found


def test_labels_that_the_tagger_does_not_know_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "terms.jsonl"
    path.write_text('{"label": "DRUG", "pattern": "aspirin"}\n')
    with pytest.raises(InputError, match=r"expected labels that the tagger knows \(CARDINAL, .*, TIME\), got DRUG"):
        concord.load(MODEL, terms=path)
