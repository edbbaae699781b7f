"""Parses as tables: what one worker passes to another is unchanged."""

from dataclasses import replace

import pytest
from concord_testing import fakes

from concord.pipeline.documents import Document, ParsedDocument, ParsedSentence, ParsedWord
from concord.pipeline.worker.stages import Parses, parse_tables

BARE = ParsedWord(0, 2, "Hm", "Hm", None, None, None, None, 0, "root")
FULL = ParsedWord(3, 5, "go", "go", "go", "VERB", "VB", "Mood=Imp", 0, "root")


def document(doc_id: str, text: str) -> Document:
    return Document(doc_id=doc_id, text=text, source_uri="/in.jsonl", source_position=7, meta='{"lang": "en"}')


def test_parses_are_unchanged_by_the_tables() -> None:
    parsed = [
        fakes.parsed_document(document("a", "Ada met Bob. Bob left.")),
        ParsedDocument(document=document("empty", ""), sentences=()),
        ParsedDocument(
            document=document("b", "Hm go"),
            sentences=(ParsedSentence(words=(BARE,)), ParsedSentence(words=(FULL,), continues=True)),
        ),
    ]
    found = Parses(parse_tables(parsed))
    assert [found.find(item.document) for item in parsed] == parsed


def test_no_parse_is_found_for_another_document_or_text_and_none_stored_that_cannot_be_written() -> None:
    parsed = fakes.parsed_document(document("a", "Ada left."))
    found = Parses(parse_tables([parsed]))
    assert found.find(document("b", "Ada left.")) is None
    assert found.find(replace(parsed.document, text="Ada stayed.")) is None
    assert Parses(parse_tables([])).find(parsed.document) is None
    with pytest.raises(UnicodeEncodeError):
        parse_tables([fakes.parsed_document(document("a", "\ud800 went."))])
