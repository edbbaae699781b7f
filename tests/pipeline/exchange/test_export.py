"""Exports in every format, read back with the readers of the tools."""

import csv
import gzip
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from concord_testing.exports import (
    EXPORTED,
    MULTI_WORD,
    TEXTS,
    Row,
    annotate_texts,
    entities,
    sentences,
    table,
    write_texts,
)
from concord_testing.runs import in_child

from concord.models.data.sentence import Sentence
from concord.models.errors import ConfigError, ModelError
from concord.pipeline.corpora.gold_corpus import read_corpus
from concord.pipeline.errors import InputError, IntegrityError, PlanError
from concord.pipeline.exchange import export as export_module
from concord.pipeline.exchange.docbin import write_docbin
from concord.pipeline.exchange.export import (
    ENDINGS,
    ExportForm,
    ExportStream,
    export_collection,
    read_ids,
    spacy_record,
    write_hf_dataset,
)
from concord.pipeline.exchange.items import ExportItem
from concord.pipeline.exchange.review_queue import Quotas, write_review_queue
from concord.pipeline.output.collection import open_collection, read_collection
from concord.pipeline.output.verify import verify
from concord.pipeline.worker.source_texts import SourceTexts

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from spacy.tokens import Doc

FILE_FORMS: tuple[ExportForm, ...] = ("conllu", "jsonl", "label-studio", "csv", "spacy-jsonl")
FOLDER_FORMS: tuple[ExportForm, ...] = ("brat", "docbin", "hf")
WITH_WORDS = [doc_id for doc_id in EXPORTED if doc_id not in ("empty", "blank")]


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an annotated collection of difficult documents; tests must not modify it."""
    folder = tmp_path_factory.mktemp("collection")
    annotate_texts(write_texts(folder / "texts.jsonl", TEXTS), folder / "out")
    return folder / "out"


def stream_lines(path: Path) -> list[bytes]:
    with pa.input_stream(path) as stream:
        return [line for line in stream.read().split(b"\n") if line]


def texts_of(path: Path) -> dict[str, str]:
    return {document["doc_id"]: document["text"] for document in map(json.loads, stream_lines(path))}


def single_spaced(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def test_collection_contains_the_difficult_cases(output: Path) -> None:
    assert any(row["continues"] for row in table(output, "sentences", "seam"))
    assert any(row["end_token"] > 8 for row in table(output, "entities", "seam"))
    assert [row["doc_id"] for row in table(output, "errors", "faulty")] == ["faulty"]
    assert {"10\t000", "New\r\n York"} <= {row["text"] for row in table(output, "tokens", "separators")}
    assert any("\r\n" in row["text"] for row in table(output, "entities", "crlf"))


# CoNLL-U


def read_with_stanza(path: Path) -> dict[str, Any]:
    from stanza.utils.conll import CoNLL

    documents = {}
    for document in CoNLL.conll2multi_docs(str(path)):
        documents[unquote(document.sentences[0].doc_id)] = document
    return documents


def test_conllu_is_read_by_stanza(output: Path, tmp_path: Path) -> None:
    report = export_collection(output, tmp_path / "a.conllu", to="conllu")
    documents = read_with_stanza(tmp_path / "a.conllu")
    assert list(documents) == WITH_WORDS
    for doc_id, document in documents.items():
        expected = sentences(output, doc_id)
        assert [len(sentence.words) for sentence in document.sentences] == [len(rows) for rows in expected]
        for sentence, rows in zip(document.sentences, expected, strict=True):
            for word, row in zip(sentence.words, rows, strict=True):
                assert (word.text, word.lemma, word.upos, word.xpos, word.feats, word.head, word.deprel) == tuple(
                    row[name] for name in ("word", "lemma", "upos", "xpos", "feats", "head", "deprel")
                )
            offsets = dict.fromkeys((row["start_char"], row["end_char"]) for row in rows)
            assert [(token.start_char, token.end_char) for token in sentence.tokens] == list(offsets)
            assert [token.text for token in sentence.tokens] == [
                single_spaced(TEXTS[doc_id][start:end]) for start, end in offsets
            ]
            assert sentence.text == single_spaced(TEXTS[doc_id][rows[0]["start_char"] : rows[-1]["end_char"]])
    assert (report.documents, report.wordless, report.dead_letters) == (len(EXPORTED) - 2, 2, 1)


def test_conllu_is_read_by_our_corpus_reader(output: Path, tmp_path: Path) -> None:
    export_collection(output, tmp_path / "a.conllu.zst", to="conllu")
    found = read_corpus(tmp_path / "a.conllu.zst").documents
    assert [unquote(document.name or "") for document in found] == WITH_WORDS
    for document in found:
        expected = sentences(output, unquote(document.name or ""))
        assert [sentence.words for sentence in document.sentences] == [
            Sentence(words=tuple(row["word"] for row in rows)).words for rows in expected
        ]
        assert [sentence.heads for sentence in document.sentences] == [
            tuple(row["head"] for row in rows) for rows in expected
        ]
        for sentence, rows in zip(document.sentences, expected, strict=True):
            labels = [row["ner"] for row in rows]
            labels[0] = labels[0].replace("I-", "B-")
            assert list(sentence.labels or ()) == labels


def test_conllu_marks_entities_across_a_split_and_writes_multi_word_tokens_as_ranges(
    output: Path, tmp_path: Path
) -> None:
    export_collection(output, tmp_path / "a.conllu", to="conllu", ids=frozenset({"seam"}))
    text = (tmp_path / "a.conllu").read_text()
    assert text.count("# continues = yes\n") == 2
    assert text.count("NERContinues=Yes") == 1
    seam = next(line for line in text.splitlines() if "NERContinues" in line)
    assert seam.split("\t")[:2] == ["1", "Smith"]
    assert seam.endswith("start_char=23|end_char=28|NER=B-PER|NERContinues=Yes")
    export_collection(output, tmp_path / "b.conllu", to="conllu", ids=frozenset({"mwt"}))
    rows = [line.split("\t") for line in (tmp_path / "b.conllu").read_text().splitlines() if line[:1].isdigit()]
    ranges = {row[1]: row for row in rows if "-" in row[0]}
    assert list(ranges) == list(MULTI_WORD)
    assert ranges["au"] == ["3-4", "au", *"_" * 7, "start_char=6|end_char=8"]
    assert [row[1] for row in rows if "-" not in row[0]] == ["Il", "va", "a", "le", "Louvre", "de", "le", "Roi."]
    assert "start_char" not in next(row for row in rows if row[1] == "le")[9]


# JSON Lines


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_json_lines_contain_all_columns_of_the_tables(output: Path, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.jsonl{suffix}"
    report = export_collection(output, path, to="jsonl")
    documents = [json.loads(line) for line in stream_lines(path)]
    assert [document["doc_id"] for document in documents] == EXPORTED
    for document in documents:
        doc_id = document["doc_id"]
        assert document["text"] == TEXTS[doc_id]
        assert document["meta"] == {"number": list(TEXTS).index(doc_id)}
        words = [word for sentence in document["sentences"] for word in sentence["tokens"]]
        rows = table(output, "tokens", doc_id)
        assert [word | {"ner_prob": 0, "uncertainty": 0} for word in words] == [
            {key: value for key, value in row.items() if key not in ("doc_id", "sent_id")}
            | {"ner_prob": 0, "uncertainty": 0}
            for row in rows
        ]
        assert [word["ner_prob"] for word in words] == pytest.approx([row["ner_prob"] for row in rows], abs=1e-6)
        assert all(document["text"][word["start_char"] : word["end_char"]] == word["text"] for word in words)
        assert [Row(row["start_char"], row["end_char"], row["label"]) for row in document["entities"]] == entities(
            output, doc_id
        )
    assert (report.documents, report.words) == (len(EXPORTED), sum(len(table(output, "tokens", i)) for i in EXPORTED))


# brat


def read_brat(path: Path) -> list[tuple[str, list[tuple[int, int]], str]]:
    """Read the entities of an .ann file as brat does: by line, columns split at tabs, fragments at semicolons."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        key, middle, tail = line.split("\t")
        if key.startswith("T"):
            label, _, offsets = middle.partition(" ")
            spans = [
                (int(start), int(end)) for start, _, end in (fragment.partition(" ") for fragment in offsets.split(";"))
            ]
            assert len(tail) == sum(end - start for start, end in spans) + len(spans) - 1
            found.append((label, spans, tail))
    return found


def test_brat_entities_have_the_offsets_of_the_tables(output: Path, tmp_path: Path) -> None:
    export_collection(output, tmp_path / "brat", to="brat")
    index = [json.loads(line) for line in (tmp_path / "brat/documents.jsonl").read_bytes().splitlines()]
    assert [entry["doc_id"] for entry in index] == EXPORTED
    for entry in index:
        doc_id, text = entry["doc_id"], TEXTS[entry["doc_id"]]
        # Read as brat does, with universal newlines.
        shown = (tmp_path / f"brat/{entry['file']}.txt").read_text(encoding="utf-8")
        assert len(shown) == len(text)
        found = read_brat(tmp_path / f"brat/{entry['file']}.ann")
        assert [Row(spans[0][0], spans[-1][1], label) for label, spans, _ in found] == entities(output, doc_id)
        for _, spans, tail in found:
            pieces = [shown[start:end] for start, end in spans]
            assert not any("\n" in piece or piece != piece.strip() for piece in pieces)
            assert tail == " ".join(pieces).replace("\u2028", " ").replace("\t", " ").replace("\u0085", " ").replace(
                "\u00a0", " "
            )
            assert "".join("".join(pieces).split()) == "".join(text[spans[0][0] : spans[-1][1]].split())
    assert (tmp_path / "brat/annotation.conf").read_text().split() == [
        *("[entities]", "PER", "[relations]", "[events]", "[attributes]")
    ]
    # An entity is split at line ends.
    assert read_brat(tmp_path / "brat/crlf.ann") == [
        ("PER", [(5, 9), (11, 16)], "Anna Smith"),
        ("PER", [(26, 29), (30, 33), (37, 40)], "Bob Lee Roe"),
    ]
    # File names are safe on every file system.
    names = {path.name for path in (tmp_path / "brat").iterdir() if path.suffix == ".txt"}
    assert len(names) == len(EXPORTED)
    assert {"plain.txt", "crlf.txt"} <= names
    assert any(re.fullmatch(r"news_a_b_\.txt~[0-9a-f]{16}\.txt", name) for name in names)
    assert all(re.fullmatch(r"[\w~-][\w.~-]*", name) for name in names)
    assert max(len(name.encode()) for name in names) < 255


# Label Studio


def test_label_studio_offsets_count_utf16_code_units(output: Path, tmp_path: Path) -> None:
    report = export_collection(output, tmp_path / "tasks.json", to="label-studio")
    tasks = json.loads((tmp_path / "tasks.json").read_bytes())
    assert [task["data"]["doc_id"] for task in tasks] == EXPORTED
    for task in tasks:
        doc_id, units = task["data"]["doc_id"], task["data"]["text"].encode("utf-16-le")
        (prediction,) = task["predictions"]
        expected = table(output, "entities", doc_id)
        assert prediction["score"] == pytest.approx(min((row["confidence"] for row in expected), default=1), abs=1e-6)
        for region, row in zip(prediction["result"], expected, strict=True):
            value = region["value"]
            assert units[2 * value["start"] : 2 * value["end"]].decode("utf-16-le") == value["text"]
            assert value["text"].replace("\n", " ").split() == row["text"].split()
            assert (value["labels"], region["score"]) == ([row["label"]], pytest.approx(row["confidence"], abs=1e-6))
            assert (region["from_name"], region["to_name"], region["type"]) == ("label", "text", "labels")
    assert report.labels == ("PER",)
    by_id = {task["data"]["doc_id"]: task for task in tasks}
    first = by_id["emoji"]["predictions"][0]["result"][0]["value"]
    assert (first["start"], first["end"], first["text"]) == (3, 7, "Anna")  # an emoji is two units
    assert entities(output, "emoji")[0] == Row(2, 6, "PER")
    assert by_id["crlf"]["data"]["text"] == "one \nAnna \nSmith left. \n \nBob\nLee  \n Roe"


# DocBin


def read_docbin(folder: Path) -> "list[Doc]":
    import spacy
    from spacy.tokens import DocBin

    vocab = spacy.blank("xx").vocab
    return [document for path in sorted(folder.iterdir()) for document in DocBin().from_disk(path).get_docs(vocab)]


def test_docbin_has_the_texts_trees_and_entities_of_the_tables(output: Path, tmp_path: Path) -> None:
    collection = open_collection(output)
    documents_with_texts = ExportStream(tmp_path / "bins", dead_letters=0).with_texts(
        read_collection(collection), SourceTexts.of(collection.plan)
    )
    write_docbin(tmp_path / "bins", documents_with_texts, part_words=15)
    assert len(list((tmp_path / "bins").iterdir())) > 2
    documents = {document.user_data["doc_id"]: document for document in read_docbin(tmp_path / "bins")}
    assert list(documents) == EXPORTED
    for doc_id, document in documents.items():
        assert document.text == TEXTS[doc_id]
        found = [Row(span.start_char, span.end_char, span.label_) for span in document.ents]
        assert found == entities(output, doc_id)
        if doc_id == "mwt":
            continue
        expected = sentences(output, doc_id)
        sents = [[word for word in sentence if not word.is_space] for sentence in document.sents] if expected else []
        assert [[word.idx for word in sentence] for sentence in sents] == [
            [row["start_char"] for row in rows] for rows in expected
        ]
        for words, rows in zip(sents, expected, strict=True):
            for word, row in zip(words, rows, strict=True):
                assert (word.text, word.tag_, word.pos_, word.lemma_, word.dep_, str(word.morph)) == tuple(
                    row[name] if name != "deprel" or row["head"] else "ROOT"
                    for name in ("text", "xpos", "upos", "lemma", "deprel", "feats")
                )
                assert word.head == (words[row["head"] - 1] if row["head"] else word)


def test_docbin_has_confidence_and_metadata_and_merges_multi_word_tokens(output: Path, tmp_path: Path) -> None:
    export_collection(output, tmp_path / "bins", to="docbin", ids=frozenset({"plain", "mwt"}))
    plain, merged = read_docbin(tmp_path / "bins")
    expected = table(output, "entities", "plain")
    assert [span._.confidence for span in plain.ents] == pytest.approx([row["confidence"] for row in expected])
    assert plain.user_data["meta"] == {"number": 0}
    assert plain.user_data["tagger"].startswith("fake_tagger")
    assert [word.text for word in merged] == ["Il", "va", "au", "Louvre", "du", "Roi."]
    assert [word.head.text for word in merged] == ["Il", "Il", "va", "au", "Louvre", "du"]
    assert [word.lemma_ for word in merged][2] == "a"


@pytest.fixture(scope="module")
def words_alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a collection of the same documents without trees and tags."""
    folder = tmp_path_factory.mktemp("words_alone")
    parser = {"trees": False, "tags": False}
    annotate_texts(write_texts(folder / "texts.jsonl", TEXTS), folder / "out", parser=parser)
    return folder / "out"


def test_docbin_without_trees_has_the_same_sentences(words_alone: Path, output: Path, tmp_path: Path) -> None:
    for source in (output, words_alone):
        export_collection(source, tmp_path / source.parent.name, to="docbin")
    whole, alone = (read_docbin(tmp_path / source.parent.name) for source in (output, words_alone))
    for document, same in zip(whole, alone, strict=True):
        assert same.text == document.text
        assert [(span.text, span.label_) for span in same.ents] == [(span.text, span.label_) for span in document.ents]
        if any(not word.is_space for word in document):
            assert [sent.text for sent in same.sents] == [sent.text for sent in document.sents]
            assert not same.has_annotation("DEP")
        assert not any(word.pos_ or word.lemma_ for word in same if not word.is_space)


@pytest.mark.parametrize("to", [*FILE_FORMS, "brat", "hf"])
def test_collections_without_trees_are_exported(words_alone: Path, tmp_path: Path, to: ExportForm) -> None:
    name = tmp_path / f"a{ENDINGS[to][0] if to in ENDINGS else ''}"
    assert export_collection(words_alone, name, to=to).documents >= len(EXPORTED) - 2
    if to == "conllu":
        rows = [line.split("\t") for line in name.read_text().splitlines() if line[:1].isdigit()]
        assert {tuple(row[2:9]) for row in rows} == {("_",) * 7}
        assert {sentence.heads for document in read_corpus(name).documents for sentence in document.sentences} == {None}
    assert verify(words_alone) == []


def test_docbin_is_rejected_at_once_when_spacy_is_missing(
    output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelError, match="spacy; install it with the extra 'spacy'"):
        export_collection(output, tmp_path / "bins", to="docbin")


# CSV


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8-sig", newline="") as stream:
        return list(csv.DictReader(stream, strict=True))


def test_csv_has_a_row_for_each_entity_with_its_sentence(output: Path, tmp_path: Path) -> None:
    report = export_collection(output, tmp_path / "a.csv", to="csv")
    found = read_csv(tmp_path / "a.csv")
    expected = [row for doc_id in EXPORTED for row in table(output, "entities", doc_id)]
    assert [(row["doc_id"], int(row["start_char"]), int(row["end_char"]), row["label"]) for row in found] == [
        (row["doc_id"], row["start_char"], row["end_char"], row["label"]) for row in expected
    ]
    assert [row["value"] or None for row in found] == [row["value"] for row in expected]
    for column in ("name", "canonical", "source"):
        assert [row[column] for row in found] == [row[column] for row in expected]
    for column in ("confidence", "uncertainty"):
        assert [float(row[column]) for row in found] == pytest.approx([row[column] for row in expected], abs=1e-6)
    for row, entity in zip(found, expected, strict=True):
        (piece,) = (rows for rows in sentences(output, row["doc_id"]) if rows[0]["sent_id"] == entity["sent_id"])
        text = TEXTS[row["doc_id"]][piece[0]["start_char"] : piece[-1]["end_char"]]
        assert row["context"].split() == text.split()
        assert "\n" not in row["context"]
    assert (report.entities, report.wordless, report.dead_letters) == (len(found), 2, 1)


def test_csv_is_read_by_spreadsheets_and_data_frames(output: Path, tmp_path: Path) -> None:
    import duckdb
    import pandas as pd

    export_collection(output, tmp_path / "a.csv", to="csv")
    found = read_csv(tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_bytes().startswith("\ufeffdoc_id,".encode())
    assert pd.read_csv(tmp_path / "a.csv", keep_default_na=False)["context"].to_list() == [
        row["context"] for row in found
    ]
    rows = duckdb.sql(f"select name, start_char from '{tmp_path}/a.csv'").fetchall()
    assert rows == [(row["name"], int(row["start_char"])) for row in found]


def test_no_cell_of_a_csv_is_a_formula(tmp_path: Path) -> None:
    texts = {f'{start}HYPERLINK("x","Anna, Bob")': "=1+1 , Anna" for start in (*"=+-@", "\t", "\r", "\n", "＝")}
    annotate_texts(write_texts(tmp_path / "texts.jsonl", texts), tmp_path / "out")
    export_collection(tmp_path / "out", tmp_path / "a.csv", to="csv")
    found = {(row["doc_id"], row["context"], row["name"]) for row in read_csv(tmp_path / "a.csv")}
    assert found == {(f"'{doc_id}", "'=1+1 , Anna", "Anna") for doc_id in texts}


# JSON Lines for spaCy and Prodigy


def test_spacy_trains_on_the_lines_of_spacy_jsonl(output: Path, tmp_path: Path) -> None:
    import spacy
    from spacy.training import Example

    export_collection(output, tmp_path / "a.jsonl", to="spacy-jsonl")
    records = [json.loads(line) for line in stream_lines(tmp_path / "a.jsonl")]
    assert [record["doc_id"] for record in records] == EXPORTED
    nlp = spacy.blank("xx")
    for record in records:
        assert record["text"] == TEXTS[record["doc_id"]]
        expected = entities(output, record["doc_id"])
        assert [Row(*entity) for entity in record["entities"]] == expected
        assert [Row(span["start"], span["end"], span["label"]) for span in record["spans"]] == expected
    (plain,) = (record for record in records if record["doc_id"] == "plain")
    example = Example.from_dict(nlp.make_doc(plain["text"]), {"entities": plain["entities"]})
    assert [span.text for span in example.reference.ents] == ["Anna Smith", "Bob"]
    assert read_ids(tmp_path / "a.jsonl") == set(EXPORTED)


def test_spacy_jsonl_has_no_two_entities_at_one_place(output: Path) -> None:
    document = next(read_collection(open_collection(output)))
    twice = replace(document, entities=tuple(entity for entity in document.entities for _ in range(2)))
    record = spacy_record(ExportItem(name="plain", document=twice, text=TEXTS["plain"]))
    assert record["entities"] == [(0, 10, "PER"), (22, 25, "PER")]
    assert [span["start"] for span in record["spans"]] == [0, 0, 22, 22]


# A folder for the library datasets


def load_dataset(folder: Path, cache: Path) -> Any:
    import datasets

    datasets.disable_progress_bars()
    return datasets.load_dataset(str(folder), cache_dir=str(cache))


def test_datasets_loads_words_and_labels_with_their_names(output: Path, tmp_path: Path) -> None:
    report = export_collection(output, tmp_path / "hf", to="hf")
    dataset = load_dataset(tmp_path / "hf", tmp_path / "cache")["train"]
    tags = dataset.features["ner_tags"].feature
    assert tags.names == ["O", "B-PER", "I-PER"]
    words: dict[str, list[tuple[str, str]]] = {}
    for row in dataset:
        labels = tags.int2str(row["ner_tags"])
        assert not labels[0].startswith("I-")
        words.setdefault(row["doc_id"], []).extend(zip(row["tokens"], labels, strict=True))
    assert words == {
        doc_id: [(row["word"], row["ner"]) for row in table(output, "tokens", doc_id)] for doc_id in WITH_WORDS
    }
    assert (report.documents, report.wordless, len(words["seam"])) == (len(WITH_WORDS), 2, 18)
    assert [row["sent_id"] for row in dataset if row["doc_id"] == "seam"] == [0, 3]


def test_datasets_loads_labels_that_yaml_would_take_for_something_else(output: Path, tmp_path: Path) -> None:
    labels = ("PER", "1", "no", "a: b", "#", "---\n---", "é")
    document = next(read_collection(open_collection(output)))
    write_hf_dataset(tmp_path / "hf", [ExportItem(name="plain", document=document)], labels=labels)
    dataset = load_dataset(tmp_path / "hf", tmp_path / "cache")["train"]
    names = [f"{prefix}-{label}" for label in labels for prefix in "BI"]
    assert dataset.features["ner_tags"].feature.names == ["O", *names]
    assert dataset[0]["ner_tags"] == [1, 2, 0, 0]


# Texts, selection and failures


@pytest.mark.parametrize("form", [*FILE_FORMS, *FOLDER_FORMS])
def test_equal_collections_give_equal_bytes(output: Path, tmp_path: Path, form: ExportForm) -> None:
    for name in ("a", "b"):
        export_collection(output, tmp_path / name, to=form)
    first, second = (
        {path.relative_to(folder): path.read_bytes() for path in (folder, *folder.rglob("*")) if path.is_file()}
        for folder in (tmp_path / "a", tmp_path / "b")
    )
    assert first == second
    assert first


@pytest.mark.parametrize("name", ["texts.jsonl", "texts.jsonl.zst", "texts.parquet", "texts"])
def test_texts_are_read_from_every_input_format(tmp_path: Path, name: str) -> None:
    texts = {
        f"{key}.txt": text for key, text in TEXTS.items() if key in ("plain", "emoji", "crlf", "separators", "seam")
    }
    annotate_texts(write_texts(tmp_path / name, texts), tmp_path / "out")
    report = export_collection(tmp_path / "out", tmp_path / "a.jsonl", to="jsonl")
    assert texts_of(tmp_path / "a.jsonl") == texts
    assert report.left_out == 0


def test_texts_are_found_where_they_moved_and_left_out_and_reported_where_they_changed(tmp_path: Path) -> None:
    source, output = write_texts(tmp_path / "texts.jsonl", {"a": "Anna.", "b": "Bob.", "c": "Carla."}), tmp_path / "out"
    annotate_texts(source, output)
    write_texts(source, {"new": "Nobody. " * 5, "c": "Carla.", "a": "Anna.", "b": "Bob."})
    export_collection(output, tmp_path / "a.jsonl", to="jsonl")
    assert texts_of(tmp_path / "a.jsonl") == {"a": "Anna.", "b": "Bob.", "c": "Carla."}

    write_texts(source, {"a": "Anna.", "b": "Bot.", "c": "Carla."})
    report = export_collection(output, tmp_path / "b.jsonl", to="jsonl")
    assert (report.documents, report.left_out, report.errors) == (2, 1, tmp_path / "b.jsonl.errors.jsonl")
    (dead_letter,) = map(json.loads, stream_lines(tmp_path / "b.jsonl.errors.jsonl"))
    assert (dead_letter["doc_id"], dead_letter["error"]) == ("b", "source_changed")
    assert "expected the text of document 'b'" in dead_letter["message"]
    assert export_collection(output, tmp_path / "a.conllu", to="conllu").documents == 3

    # A second generation is exported completely.
    write_texts(source, {"d": "Dora. " * 9, "a": "Anna.", "b": "Bert."})
    annotate_texts(source, output, max_removed=1.0)
    export_collection(output, tmp_path / "c.jsonl", to="jsonl")
    assert texts_of(tmp_path / "c.jsonl") == {"a": "Anna.", "b": "Bert.", "d": "Dora. " * 9}

    source.unlink()
    with pytest.raises(InputError, match=r"texts\.jsonl: cannot be read"):
        export_collection(output, tmp_path / "d.jsonl", to="jsonl")
    assert not (tmp_path / "d.jsonl").exists()


def test_old_error_list_is_removed_when_nothing_is_left_out(output: Path, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.errors.jsonl").write_text("of an earlier attempt")
    export_collection(output, tmp_path / "a.jsonl", to="jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


@pytest.mark.parametrize("form", [*FILE_FORMS, *FOLDER_FORMS])
def test_failed_export_leaves_nothing(
    output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: ExportForm
) -> None:
    def fail_after_three(*arguments: Any, **options: Any) -> Any:
        yield from (document for _, document in zip(range(3), read_collection(*arguments, **options), strict=False))
        raise IntegrityError("damaged part")

    monkeypatch.setattr(export_module, "read_collection", fail_after_three)
    with pytest.raises(IntegrityError, match="damaged part"):
        export_collection(output, tmp_path / "target", to=form)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("form", ["conllu", "brat"])
def test_killed_export_leaves_nothing_under_its_name(output: Path, tmp_path: Path, form: ExportForm) -> None:
    process = in_child(lambda: export_collection(output, tmp_path / "target", to=form), crash_at="fsync")
    process.join(timeout=60)
    assert process.exitcode == -9
    assert [path.suffix for path in tmp_path.iterdir()] == [".staged"]
    export_collection(output, tmp_path / "target", to=form)
    assert (tmp_path / "target").exists()


def test_missing_text_file_leaves_out_one_document(tmp_path: Path) -> None:
    source = write_texts(tmp_path / "texts", {"a.txt": "Anna.", "b.txt": "Bob."})
    annotate_texts(source, tmp_path / "out")
    (source / "a.txt").unlink()
    report = export_collection(tmp_path / "out", tmp_path / "a.jsonl", to="jsonl")
    assert (report.documents, report.left_out) == (1, 1)
    assert json.loads((tmp_path / "a.jsonl.errors.jsonl").read_bytes())["doc_id"] == "a.txt"


@pytest.mark.parametrize("name", ["texts.jsonl", "texts"])
def test_stored_texts_need_no_input(tmp_path: Path, name: str) -> None:
    texts = {"a.txt": "Anna.", "b.txt": "Bob  left.\n"}
    source, output = write_texts(tmp_path / name, texts), tmp_path / "out"
    annotate_texts(source, output, output={"path": str(output), "keep_text": True})
    source.rename(tmp_path / "elsewhere")
    report = export_collection(output, tmp_path / "a.jsonl", to="jsonl")
    assert (report.documents, report.left_out) == (2, 0)
    assert texts_of(tmp_path / "a.jsonl") == texts
    quotas = Quotas(size=9, per_document=None, per_type=None, seed=1)
    queue = write_review_queue(output, tmp_path / "queue.jsonl", to="jsonl", quotas=quotas)
    assert {sentence.doc_id for sentence in queue.choices} == set(texts)


def test_truncated_part_is_an_error(tmp_path: Path) -> None:
    annotate_texts(write_texts(tmp_path / "texts.jsonl", {"a": "Anna. Bob."}), tmp_path / "out")
    (part,) = (tmp_path / "out/tokens").iterdir()
    pq.write_table(pq.read_table(part).slice(1), part)
    with pytest.raises(IntegrityError, match="ends before the last row that the table of documents counts"):
        export_collection(tmp_path / "out", tmp_path / "a.conllu", to="conllu")


def test_ids_and_limit_select_documents(output: Path, tmp_path: Path) -> None:
    report = export_collection(
        output, tmp_path / "a.jsonl", to="jsonl", ids=frozenset({"seam", "plain", "faulty", "nobody"})
    )
    assert [json.loads(line)["doc_id"] for line in stream_lines(tmp_path / "a.jsonl")] == ["plain", "seam"]
    assert report.unknown == ("faulty", "nobody")
    assert export_collection(output, tmp_path / "b.JSONL.GZ", to="jsonl", limit=3).documents == 3
    assert gzip.decompress((tmp_path / "b.JSONL.GZ").read_bytes()).startswith(b"{")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ids.txt", "plain\r\nnews/a b%.txt\n\n"),
        ("ids.jsonl", '{"doc_id": "plain"}\n{"doc_id": "news/a b%.txt", "x": 1}\n'),
        ("ids.json", '[{"data": {"doc_id": "plain"}}, {"data": {"doc_id": "news/a b%.txt"}}]'),
    ],
)
def test_read_ids_accepts_lists_and_exports(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_bytes(text.encode())
    assert read_ids(tmp_path / name) == {"plain", "news/a b%.txt"}


@pytest.mark.parametrize(("name", "text"), [("a.jsonl", '{"id": "a"}'), ("a.json", "[1]"), ("a.json", "plain")])
def test_read_ids_rejects_files_without_ids(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match="expected one id a line"):
        read_ids(tmp_path / name)


@pytest.mark.parametrize("form", ["jsonl", "brat"])
def test_existing_destination_is_not_overwritten(output: Path, tmp_path: Path, form: ExportForm) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    export_collection(output, tmp_path / "folder", to="brat")
    for name in ("file", "folder"):
        with pytest.raises(ConfigError, match="expected a new name"):
            export_collection(output, tmp_path / name, to=form)
    with pytest.raises(ConfigError, match="outside of the collection"):
        export_collection(output, output / "tokens/a.jsonl", to=form)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    ("form", "name", "known"),
    [
        ("conllu", "a.conllu.bz2", ".conllu, .conllu.gz, .conllu.zst"),
        ("conllu", "a.txt", ".conllu"),
        ("jsonl", "a.jsonl.xz", ".jsonl, .jsonl.gz"),
        ("label-studio", "a.jsonl", ".json, .json.gz"),
        ("csv", "a.xlsx", ".csv, .csv.gz"),
        ("spacy-jsonl", "a.spacy", ".jsonl, .jsonl.gz"),
    ],
)
def test_name_with_an_unknown_ending_is_refused(
    output: Path, tmp_path: Path, form: ExportForm, name: str, known: str
) -> None:
    with pytest.raises(ConfigError, match=f"expected a name ending in {re.escape(known)}.*, got {re.escape(name)}"):
        export_collection(output, tmp_path / name, to=form)
    assert list(tmp_path.iterdir()) == []


def test_unfinished_run_is_rejected(output: Path, tmp_path: Path) -> None:
    shutil.copytree(output / "_run/plans", tmp_path / "out/_run/plans")
    with pytest.raises(PlanError, match="not finished"):
        export_collection(tmp_path / "out", tmp_path / "a.jsonl", to="jsonl")
