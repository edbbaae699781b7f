"""A collection in two languages with the parser for many: English documents have trees, others have words alone."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import spacy
from concord_testing.command_line import concord as command
from concord_testing.command_line import concord_json
from concord_testing.finished_runs import null_columns
from concord_testing.viewing import open_client, read
from spacy.tokens import DocBin

import concord
from concord.models.errors import ModelError
from concord.pipeline.config import ParserConfig
from concord.pipeline.identity import ResolvedTagger
from concord.pipeline.job import check_trees

pytestmark = pytest.mark.slow

TEXTS = {
    "ferry": "Mira Solberg runs the ferry in Bergen. She couldn't leave on Tuesday, when the mayor closed the bridge.",
    "ponte": "A ponte abriu em 1886. O arquiteto, porém, morreu em Lisboa antes da inauguração do viaduto.",
}
MULTI = ("--set", "parser.package=parser_multi")
NULLS = null_columns(["trees", "tags"])


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory, tiny_bundle: Path) -> Path:
    """Annotate two texts, and beside them each with a parser of its own."""
    folder = tmp_path_factory.mktemp("languages")
    annotate(folder, tiny_bundle, "out", *MULTI)
    annotate(folder, tiny_bundle, "english")
    annotate(folder, tiny_bundle, "words", *MULTI, "--no-trees", "--set", "parser.tags=false")
    return folder / "out"


def annotate(folder: Path, model: Path, name: str, *options: str) -> dict[str, Any]:
    source = folder / "in.jsonl"
    source.write_text("".join(json.dumps({"id": id_, "text": text}) + "\n" for id_, text in TEXTS.items()))
    return concord_json("annotate", source, "-o", folder / name, "-m", model, "--threads", 1, *options)


def tokens(output: Path, doc_id: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(output / "tokens").to_pylist()
    return [row for row in rows if row["doc_id"] == doc_id]


def test_english_documents_have_trees_and_others_nulls(output: Path) -> None:
    assert tokens(output, "ferry") == tokens(output.parent / "english", "ferry")
    assert all(row["upos"] and row["deprel"] for row in tokens(output, "ferry"))
    assert tokens(output, "ponte") == tokens(output.parent / "words", "ponte")
    assert all(row | NULLS == row for row in tokens(output, "ponte"))
    # Words are the same without trees and tags.
    assert tokens(output.parent / "words", "ferry") == [row | NULLS for row in tokens(output, "ferry")]
    assert command("verify", output).exit_code == 0
    assert concord_json("diff", output, output.parent / "english")["documents"]


def test_stored_parses_serve_a_run_with_another_setting_of_the_tagger(
    output: Path, tmp_path: Path, tiny_bundle: Path
) -> None:
    shutil.copytree(output, tmp_path / "out", symlinks=True)
    again = annotate(tmp_path, tiny_bundle, "out", "--set", "tagger.samples=2", "--set", "accept_input=true")
    assert (again["changes"]["again"], again["changes"]["parsed"]) == (2, 2)
    assert [tokens(tmp_path / "out", one) for one in TEXTS] == [tokens(output, one) for one in TEXTS]


def test_exports_have_trees_where_there_are_any(output: Path, tmp_path: Path) -> None:
    assert command("export", output, "--to", "conllu", "-o", tmp_path / "a.conllu").exit_code == 0
    english, portuguese = (tmp_path / "a.conllu").read_text().split("# newdoc id = ponte")
    rows = [line.split("\t") for line in english.splitlines() if line[:1].isdigit()]
    assert all("_" not in (row[2], row[3], row[6], row[7]) for row in rows)
    rows = [line.split("\t") for line in portuguese.splitlines() if line[:1].isdigit()]
    assert {tuple(row[2:9]) for row in rows} == {("_",) * 7}
    assert command("export", output, "--to", "docbin", "-o", tmp_path / "bins").exit_code == 0
    bin_ = DocBin().from_bytes((tmp_path / "bins" / "part-00000.spacy").read_bytes())
    docs = {doc.text: doc for doc in bin_.get_docs(spacy.blank("xx").vocab)}
    assert [docs[text].has_annotation("DEP") for text in TEXTS.values()] == [True, False]
    assert [len(list(docs[text].sents)) for text in TEXTS.values()] == [2, 2]
    assert not any(word.pos_ or word.lemma_ for word in docs[TEXTS["ponte"]])


def test_the_viewer_draws_a_tree_or_says_that_there_is_none(output: Path, tmp_path: Path) -> None:
    client = open_client(output, tmp_path / "cache")
    assert "<svg" in read(client, "/document?id=ferry&tree=0")
    assert "No tree: this document was annotated without trees" in read(client, "/document?id=ponte&tree=0")
    assert "ferry" in read(client, "/search?q=run&by=lemma")
    assert "ponte" in read(client, "/search?q=abriu&by=lemma")


def test_texts_in_memory_have_trees_in_english(tiny_bundle: Path) -> None:
    nlp = concord.load(tiny_bundle, settings={"parser.package": "parser_multi"})
    english, portuguese = nlp.pipe(TEXTS.values())
    assert all(token.head is not None and token.lemma for token in english.tokens)
    assert {(token.head, token.deprel, token.upos, token.lemma) for token in portuguese.tokens} == {(None,) * 4}


def test_a_tagger_that_reads_trees_is_refused() -> None:
    tagger = ResolvedTagger(name="tree_reader", version=None, digest="", folder=Path(), trees="stanza/parser_en@1")
    with pytest.raises(ModelError, match=r"tree_reader reads dependency trees, .*set parser.package=parser_en if"):
        check_trees(tagger, ParserConfig(package="parser_multi"), "stanza/parser_en@1", accept=True)
