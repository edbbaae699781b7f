"""Texts in twelve languages: gold labels, true offsets in every table, and exports that keep each character."""

import csv
import json
import unicodedata
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import spacy
from concord_testing.exports import entities, table
from concord_testing.languages import FOLDER, GOLD, records, write_languages
from spacy.tokens import DocBin

import concord
from concord.pipeline.corpora.gold_corpus import read_corpus
from concord.pipeline.exchange.export import export_collection
from concord.pipeline.output.verify import verify

pytestmark = pytest.mark.slow

RECORDS = records()
# Croatian and Bosnian are told apart by few words: the library says 0.78 to 0.21 here.
LANGUAGES = {doc_id: None if doc_id == "hr-brodovi" else doc_id[:2] for doc_id in RECORDS}


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run over the texts; tests must not modify it."""
    return write_languages(tmp_path_factory.mktemp("languages") / "out")


def text_of(output: Path, doc_id: str) -> str:
    text: str = table(output, "documents", doc_id)[0]["raw_text"]
    return text


def test_gold_words_are_those_of_the_texts_and_contain_what_is_difficult() -> None:
    documents = read_corpus(GOLD).documents
    assert [document.name for document in documents] == list(RECORDS)
    for document in documents:
        assert len(document.sentences) == 10
        labels = [label for sentence in document.sentences for label in sentence.labels or ()]
        assert {label[2:] for label in labels if label.startswith("B-")} == {"PER", "LOC", "ORG"}
        words = "".join(word for sentence in document.sentences for word in sentence.words)
        assert words == "".join(RECORDS[document.name or ""]["text"].split())
    slovak, english, hebrew = (RECORDS[name]["text"] for name in ("sk-zvon", "en-library", "he-bakery"))
    assert all(unicodedata.normalize(form, "Čierna") in slovak for form in ("NFC", "NFD"))
    assert "ＮＨＫ" in english
    assert "שָׁלוֹם" in hebrew


def test_offsets_of_every_table_are_true(output: Path) -> None:
    for doc_id in RECORDS:
        text = text_of(output, doc_id)
        for name in ("tokens", "entities"):
            rows = table(output, name, doc_id)
            assert rows
            assert [text[row["start_char"] : row["end_char"]] for row in rows] == [row["text"] for row in rows]
        assert table(output, "documents", doc_id)[0]["n_chars"] == len(text)
        assert table(output, "sentences", doc_id)[-1]["end_char"] == len(text)


def test_each_language_is_known_and_the_rules_of_english_stay_in_english(output: Path) -> None:
    documents = pq.read_table(output / "documents").to_pylist()
    assert {row["doc_id"]: row["language"] for row in documents} == LANGUAGES
    assert verify(output) == []


def test_a_name_is_one_whether_its_accents_are_composed_or_not(output: Path) -> None:
    rows = [row for row in table(output, "entities", "sk-zvon") if "Hud" in row["text"] and row["label"] == "ORG"]
    assert len({row["text"] for row in rows}) == 2
    assert {(row["canonical"], row["identity"]) for row in rows} == {("Zvonárstvo Hudák", rows[0]["identity"])}


@pytest.fixture(scope="module")
def exports(output: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exports")
    export_collection(output, folder / "brat", to="brat")
    export_collection(output, folder / "tasks.json", to="label-studio")
    export_collection(output, folder / "a.conllu", to="conllu")
    export_collection(output, folder / "a.csv", to="csv")
    return folder


@pytest.mark.parametrize("number", range(12))
def test_exports_keep_text_and_places(output: Path, exports: Path, number: int) -> None:
    doc_id = list(RECORDS)[number]
    text, expected = text_of(output, doc_id), entities(output, doc_id)
    names = [text[row.start : row.end] for row in expected]

    assert (exports / f"brat/{doc_id}.txt").read_bytes().decode() == text
    lines = [line.split("\t") for line in (exports / f"brat/{doc_id}.ann").read_bytes().decode().split("\n")]
    found = [(*line[1].split(), line[2]) for line in lines if line[0].startswith("T")]
    assert found == [(row.label, str(row.start), str(row.end), name) for row, name in zip(expected, names, strict=True)]

    task = json.loads((exports / "tasks.json").read_bytes())[number]
    regions = [region["value"] for region in task["predictions"][0]["result"]]
    assert task["data"]["text"] == text
    # No text has a character beyond the basic plane, so that code units are code points.
    assert [(region["start"], region["end"], region["text"]) for region in regions] == [
        (row.start, row.end, name) for row, name in zip(expected, names, strict=True)
    ]

    document, gold = (read_corpus(path).documents[number] for path in (exports / "a.conllu", GOLD))
    assert document.name == gold.name == doc_id
    assert [(one.words, one.labels) for one in document.sentences] == [
        (one.words, one.labels) for one in gold.sentences
    ]

    with (exports / "a.csv").open(encoding="utf-8-sig", newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["doc_id"] == doc_id]
    assert [text[int(row["start_char"]) : int(row["end_char"])] for row in rows] == names
    assert [row["name"] for row in rows] == names


def test_docbin_has_every_text_and_entity(output: Path, tmp_path: Path) -> None:
    export_collection(output, tmp_path / "bins", to="docbin")
    vocab = spacy.blank("xx").vocab
    documents = [
        one for path in sorted((tmp_path / "bins").iterdir()) for one in DocBin().from_disk(path).get_docs(vocab)
    ]
    assert {one.user_data["doc_id"]: one.text for one in documents} == {name: text_of(output, name) for name in RECORDS}
    for one in documents:
        found = [(span.start_char, span.end_char, span.label_) for span in one.ents]
        assert found == entities(output, one.user_data["doc_id"])


def test_the_bundled_models_of_english_keep_true_offsets(tmp_path: Path) -> None:
    report = concord.annotate(FOLDER / "languages.jsonl", tmp_path / "out", model="entities_en_small")
    assert [*report.errors.to_table()["error"].to_pylist()] == []
    assert dict(report.sql("SELECT doc_id, language FROM documents").fetchall()) == LANGUAGES
    rows = report.sql("SELECT doc_id, start_char, end_char, text FROM entities UNION ALL "
                      "SELECT doc_id, start_char, end_char, text FROM tokens").fetchall()  # fmt: skip
    assert all(RECORDS[doc_id]["text"][start:end] == text for doc_id, start, end, text in rows)
    assert {doc_id for doc_id, *_ in rows} == set(RECORDS)
    values = "SELECT count(*) FROM entities JOIN documents USING (doc_id) WHERE value IS NOT NULL AND language <> 'en'"
    assert report.sql(values).fetchall() == [(0,)]
