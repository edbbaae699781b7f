"""Odd texts for parsers, and the invariants of what parsers return."""

from collections.abc import Sequence

from concord.models.data.sentence import visible
from concord.pipeline.config import ParserConfig
from concord.pipeline.documents import DeadLetter, Document, ParsedDocument, ParsedSentence
from concord.pipeline.parsing.parser import Parser
from concord.pipeline.parsing.stanza_parser import StanzaParser
from concord.pipeline.parsing.stanza_pipeline import PlainStanza
from concord.pipeline.parsing.tokens import parser_view


def plain_parser(config: ParserConfig) -> StanzaParser:
    """Return a parser without shortcuts: Stanza's own processors."""
    parser = StanzaParser(config)
    parser._stanza = PlainStanza(parser._stanza._nlp)
    return parser


ODD = {
    "empty": "",
    "blank": " \n\t \r\n\u2003\u2028",
    "leading_white_space": "\n\n  \n Hello   there.\n \n\n World  wide   web .  \n",
    "byte_order_mark": "\ufeffHello there. \ufeff It works.",
    "zero_width_joiners": "A family \U0001f468\u200d\U0001f469\u200d\U0001f467 went home. He\u200dllo wor\u200cld.",
    "only_zero_width": "\u200b\u200d",
    "soft_hyphens": "An ex\u00adample of soft\u00adhyphens.",
    "emoji": "I \u2764\ufe0f NY \U0001f600\U0001f600! Great.",
    "crlf": "First line.\r\nSecond line.\r\n\r\nThird paragraph.\r\n",
    "decomposed": "Cafe\u0301 in Sa\u0303o Paulo is nai\u0308ve. \u0301",
    "nul_and_controls": "A\x00B and \x00 C. \x07\x1b[0m x.",
    "line_separators": "One line.\u2028Two lines.\u2029Three.\x85Four.\x0bFive.\x1cSix.",
    "no_break_spaces": "He paid 10\u00a0000\u00a0USD in\u202fall.",
    "windows_1252_controls": "It was\x97he said\x97fine. Don\x92t. \x93Yes\x94 \x81",
    "lone_surrogate": "A \ud800 lone one.",
    "right_to_left": "\u202eHello\u202c world \u05d0\u05d1.",
    "private_use": "\ue000 \U000f0000 \uffff",
    "other_scripts": "\u0939\u093f\u0928\u094d\u0926\u0940 \u0939\u092e: \u4e2d\u6587\u3002",
    "underscores": "_ _ is _ .",
    "long_token": "Sum: " + "0123456789abcdef" * 190 + " end.",
}


def documents_of(texts: Sequence[str]) -> list[Document]:
    return [
        Document(doc_id=f"d{number}", text=text, source_uri="/data/invented.jsonl", source_position=number)
        for number, text in enumerate(texts)
    ]


def parse_text(parser: Parser, text: str) -> ParsedDocument:
    [outcome] = parser.parse(documents_of([text]))
    assert isinstance(outcome, ParsedDocument)
    return outcome


def check_tokens(document: ParsedDocument) -> None:
    """Check offsets: ordered, disjoint, covering; each text is a slice, each form that slice but for white space."""
    text = document.document.text
    covered: set[int] = set()
    place = 0
    for word in (word for sentence in document.sentences for word in sentence.words):
        assert place <= word.start_char < word.end_char <= len(text)
        assert word.text == text[word.start_char : word.end_char]
        assert "".join(word.word.split()) == "".join(parser_view(word.text).split())
        assert visible(word.word) == word.word
        covered.update(range(word.start_char, word.end_char))
        place = word.end_char
    assert visible("".join(text[i] for i in range(len(text)) if i not in covered)).strip() == ""


def check_parse(document: ParsedDocument | DeadLetter) -> None:
    """Check the offsets and trees of a document that was parsed."""
    assert isinstance(document, ParsedDocument)
    check_tokens(document)
    for sentence in document.sentences:
        check_tree(sentence)


def check_tree(sentence: ParsedSentence) -> None:
    heads = [word.head for word in sentence.words if word.head is not None]
    assert len(heads) == len(sentence.words)
    assert sum(head == 0 for head in heads) == 1
    assert all(0 <= head <= len(heads) for head in heads)
    assert all((word.deprel == "root") == (word.head == 0) for word in sentence.words)
    for start in range(1, len(heads) + 1):
        place, steps = start, 0
        while place:
            place, steps = heads[place - 1], steps + 1
            assert steps <= len(heads)
