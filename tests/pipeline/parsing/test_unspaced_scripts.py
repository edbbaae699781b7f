"""Scripts without spaces between words: never cut at random by a bundled parser, which refuses texts of little else."""

import pytest

from concord.pipeline.config import ParserConfig
from concord.pipeline.documents import DeadLetter, Document, ParsedDocument
from concord.pipeline.parsing.stanza_parser import StanzaParser
from concord.pipeline.parsing.tokens import is_unspaced, join_unspaced, make_token


def document(text: str) -> Document:
    return Document(doc_id="1", text=text, source_uri="memory", source_position=0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Ada Lovelace wrote to 北京大学.", False),
        ("北京大学 (Peking University) は", False),
        ("北京大学在海淀区, founded 1898", True),
        ("東京は日本の首都です。", True),
        ("ประเทศไทย", True),
        ("서울은 한국의 수도이다.", False),
        ("", False),
        ("1984 ...", False),
    ],
)
def test_a_text_is_unspaced_where_most_of_its_letters_are(text: str, expected: bool) -> None:
    assert is_unspaced(text) is expected


def test_a_run_of_letters_without_spaces_is_one_word_and_ends_no_sentence() -> None:
    view = "In 北京大学, she"
    tokens = [make_token(view, a, b, [view[a:b]]) for a, b in [(0, 2), (3, 4), (4, 6), (6, 7), (7, 8), (9, 12)]]
    joined = join_unspaced(view, [tokens[:3], tokens[3:]])
    assert [[view[token.start : token.end] for token in sentence] for sentence in joined] == [
        ["In", "北京大学", ",", "she"]
    ]


@pytest.fixture(scope="module")
def parser() -> StanzaParser:
    return StanzaParser(ParserConfig(trees=False, tags=False))


def test_the_bundled_parser_refuses_a_chinese_text_and_says_what_to_do(parser: StanzaParser) -> None:
    refused, parsed = parser.parse(
        [document("北京大学位于海淀区。\n\n它成立于1898年。"), document("Ada met 北京大学 staff.")]
    )
    assert isinstance(refused, DeadLetter)
    assert refused.error == "no_spaces"
    assert "parser.language" in refused.message
    assert isinstance(parsed, ParsedDocument)
    assert "北京大学" in [word.text for sentence in parsed.sentences for word in sentence.words]
