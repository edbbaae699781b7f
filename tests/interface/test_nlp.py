"""Texts annotated from Python: documents, tables, and texts that cannot be annotated."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from concord_testing.checkout import CHECKOUT
from concord_testing.fakes import FakeParser, FakeTagger

import concord
from concord.doc import Entity, Sentence, Token, doc_of
from concord.models.errors import ConfigError, ModelError
from concord.nlp import Nlp, Text
from concord.pipeline.config import TaggerRunConfig
from concord.pipeline.identity import ResolvedTagger
from concord.pipeline.output.collection import documents_of
from concord.pipeline.output.schema import SCHEMAS, SHARD_TABLES, TableName
from concord.pipeline.texts import TextAnnotator
from concord.pipeline.worker.stages import ParseStage, TagStage


@pytest.fixture
def nlp() -> Nlp:
    """Return an Nlp around the fakes: runs of capitalised words are persons."""
    annotator = TextAnnotator(
        parse=ParseStage(FakeParser(), batch_documents=10), tag=TagStage(FakeTagger(), TaggerRunConfig())
    )
    return Nlp(annotator, ResolvedTagger(name="fake", version=None, digest="0" * 64, folder=CHECKOUT))


@pytest.mark.parametrize(("set_by_user", "expected"), [({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")])
def test_import_loads_nothing_heavy_and_lets_idle_threads_sleep(set_by_user: dict[str, str], expected: str) -> None:
    heavy = "[name for name in ('torch', 'pyarrow', 'ray', 'stanza') if name in sys.modules]"
    shown = "os.environ['OMP_WAIT_POLICY'], 'torch' in sys.modules"
    code = f"import concord, os, sys; print({heavy}); concord.ConfigError; print({shown})"
    inherited = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=CHECKOUT, env=inherited | set_by_user, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"[]\n{expected} False\n"


def test_every_public_name_is_importable() -> None:
    assert all(getattr(concord, name) is not None for name in concord.__all__)
    assert set(concord.__all__) <= set(dir(concord))
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        getattr(concord, "lode")  # noqa: B009 - a type checker refuses the plain form


def test_documents_hold_the_values_of_the_tables(nlp: Nlp) -> None:
    texts = ["then Ada met\tCharles Babbage .\n\nthey \U0001f389 spoke .", "", "Ada ."]
    outcomes = nlp.annotator.annotate(texts)
    tables = {name: table.to_pydict() for name, table in nlp.annotator.tables(outcomes).items()}
    assert list(nlp.pipe(texts)) == list(map(doc_of, documents_of(tables), texts))


def test_a_text_becomes_a_document_with_true_offsets(nlp: Nlp) -> None:
    text = "  then Ada met\tCharles Babbage .\n\nthey \U0001f389 spoke ."
    doc = nlp(text)
    assert [entity.text for entity in doc.entities] == ["Ada", "Charles Babbage"]
    first, second = doc.sentences
    assert (first.text, second.text) == ("then Ada met\tCharles Babbage .", "they \U0001f389 spoke .")
    parts: list[Sentence | Token | Entity] = [*doc.sentences, *doc.tokens, *doc.entities]
    for part in parts:
        assert text[part.start_char : part.end_char] == part.text
    assert doc.tokens == first.tokens + second.tokens
    assert str(doc) == text
    assert repr(doc) == "<concord.Doc '0' tokens=10 entities=2>"


def test_a_call_raises_when_the_text_cannot_be_annotated(nlp: Nlp) -> None:
    with pytest.raises(ValueError, match="the parser cannot do this"):
        nlp("PARSERFAULT here .")


@pytest.mark.parametrize("batch_size", [1, 2, 64])
def test_pipe_yields_one_document_per_text_in_order(nlp: Nlp, batch_size: int) -> None:
    texts: list[Text] = ["Ada spoke .", ("PARSERFAULT .", "b"), "", ("Charles left .", {"page": 3}), "TAGGERFAULT ."]
    docs = list(nlp.pipe(texts, batch_size=batch_size))
    assert [doc.doc_id for doc in docs] == ["0", "1", "2", "3", "4"]
    assert [doc.context for doc in docs] == [None, "b", None, {"page": 3}, None]
    assert [[entity.text for entity in doc.entities] for doc in docs] == [["Ada"], [], [], ["Charles"], []]
    assert [doc.error and doc.error.stage for doc in docs] == [None, "parse", None, None, "tag"]


def test_pipe_reads_no_more_than_one_batch_ahead(nlp: Nlp) -> None:
    taken = []

    def texts() -> Iterator[str]:
        for number in range(10):
            taken.append(number)
            yield "Ada spoke ."

    next(iter(nlp.pipe(texts(), batch_size=3)))
    assert taken == [0, 1, 2]


@pytest.mark.parametrize(("text", "message"), [(None, "got NoneType"), (b"x", "got bytes"), ("\ud800", "surrogates")])
def test_what_is_no_text_is_an_error_of_its_document(nlp: Nlp, text: Any, message: str) -> None:
    good, bad = nlp.pipe(["Ada spoke .", text])
    assert good.error is None
    assert bad.error is not None
    assert bad.error.stage == "read"
    assert message in bad.error.message


def test_html_escapes_the_text_and_shows_labels_and_errors(nlp: Nlp) -> None:
    html = nlp("<b> Ada & co .")._repr_html_()
    assert "&lt;b&gt; " in html
    assert "Ada <small" in html
    assert ">PER</small></mark> &amp; co ." in html
    [failed] = nlp.pipe(["PARSERFAULT ."])
    assert "the parser cannot do this" in failed._repr_html_()


@pytest.mark.parametrize("table", SHARD_TABLES)
def test_tables_have_the_schema_of_the_output(nlp: Nlp, table: TableName) -> None:
    found = nlp.to_arrow(["Ada spoke .", "Charles left ."], table, ids=["a", "b"], batch_size=1)
    assert found.schema.equals(SCHEMAS[table])
    assert set(found["doc_id"].to_pylist()) == (set() if table == "errors" else {"a", "b"})
    assert nlp.to_arrow([], table).schema.equals(SCHEMAS[table])


def test_tables_warn_of_texts_that_failed(nlp: Nlp) -> None:
    texts = ["Ada spoke .", "PARSERFAULT ."]
    with pytest.warns(UserWarning, match="1 of 2 texts could not be annotated"):
        frame = nlp.to_pandas(texts)
    assert frame["text"].tolist() == ["Ada"]
    assert nlp.to_pandas(texts, "errors")["error"].tolist() == ["parse_failed"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"table": "entity"}, "expected one of documents, sentences, tokens, entities, errors, got 'entity'"),
        ({"ids": ["a"]}, "expected one per text, got 1 for more texts"),
        ({"ids": ["a", "b", "c"]}, "expected one per text, got more than 2"),
        ({"batch_size": 0}, "batch_size: expected 1 or more"),
        ({"ids": ["a", "a"]}, "expected different ones, got 'a' twice"),
        ({"ids": ["a", None]}, "expected strings or integers, got None"),
    ],
)
def test_tables_refuse_wrong_arguments(nlp: Nlp, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        nlp.to_arrow(["Ada .", "Charles ."], **arguments)


def test_pairs_and_numbers_are_fine_and_an_odd_item_does_not_end_the_iteration(nlp: Nlp) -> None:
    assert nlp.to_arrow([("Ada spoke .", "context"), "Charles left ."], ids=[7, 8])["doc_id"].to_pylist() == ["7", "8"]
    odd: list[Any] = [("Ada .", 1, 2), ["Ada .", 1], {"text": "Ada ."}, "Ada spoke ."]
    assert [doc.error and doc.error.error for doc in nlp.pipe(odd)] == [*["text_not_string"] * 3, None]


def test_one_string_is_not_taken_for_many_texts(nlp: Nlp) -> None:
    with pytest.raises(TypeError, match="got one string; put it into a list"):
        nlp.pipe("Ada spoke .")
    with pytest.raises(ValueError, match="batch_size"):
        nlp.pipe(["Ada spoke ."], batch_size=0)


@pytest.mark.slow
def test_a_text_without_memory_does_not_take_others_along(nlp: Nlp) -> None:
    docs = list(nlp.pipe(["Ada spoke .", "GREEDY .", "Charles left .", "Ada left ."]))
    assert [doc.error and doc.error.error for doc in docs] == [None, "out_of_memory", None, None]


def test_threads_take_turns(nlp: Nlp) -> None:
    found: list[list[str]] = []
    threads = [
        threading.Thread(target=lambda: found.append([entity.text for entity in nlp("Ada met Charles .").entities]))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [["Ada", "Charles"]] * 4


def test_load_names_what_it_does_not_know() -> None:
    with pytest.raises(ModelError, match="did you mean 'entities_en_small'"):
        concord.load("entities_en_smal")
    with pytest.raises(ConfigError, match=r"parser\.pakage"):
        concord.load(settings={"parser.pakage": "x"})
    with pytest.raises(ConfigError, match="limit: unknown key; known keys: parser, tagger"):
        concord.load(settings={"limit": 3})
    with pytest.raises(ModelError, match="no_such_tagger"):
        concord.load(settings={"tagger": {"model": "no_such_tagger"}})


@pytest.mark.slow
def test_the_bundled_small_tagger_annotates(tmp_path: Path) -> None:
    nlp = concord.load("entities_en_small")
    assert nlp.model.name == "entities_en_small"
    assert repr(nlp).startswith("<concord.Nlp entities_en_small ")
    table = nlp.to_arrow(["He left Paris."])
    assert table["text"].to_pylist() == ["Paris"]
    assert b"entities_en_small" not in table.schema.metadata[b"concord.parser"]
    assert table.schema.metadata[b"concord.tagger"].startswith(b"entities_en_small")
    assert isinstance(table, pa.Table)
