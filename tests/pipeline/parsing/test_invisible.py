"""Invisible characters in texts: parser and tagger see the text without them, and offsets count them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import concord
from concord.doc import Entity, Token
from concord.models.data.sentence import INVISIBLE, visible, without_line_breaks
from concord.nlp import Nlp
from concord.pipeline.parsing import tokens

pytestmark = pytest.mark.slow

FREQUENT = (
    "\u00ad\u034f\u061c\u115f\u180e\u200b\u200c\u200d\u200e\u200f\u2060\u2064\u3164\ufe0e\ufe0f\ufeff\ufff9\uffa0"
)
HIDDEN = [*FREQUENT, *map(chr, (*range(0x202A, 0x202F), *range(0x2066, 0x2070), 0x1BCA0, 0x1D173, 0xE0001, 0xE0067))]
# A soft hyphen and a variation selector have meanings of their own; the last is two code units long elsewhere.
TRIED = "\u00ad\u200d\ufe0f\U000e0067"

PLAIN = "Maria Keller can't meet Tarn Logistics in Lisbon on 4 May.\n\nGeneva was cold. John Baker\u2019s ferry left."


@pytest.fixture(scope="module")
def nlp() -> Nlp:
    return concord.load("entities_en_small")


def marked(hidden: str) -> list[str]:
    """Return the text with a character within, before and after words, alone between them, and everywhere."""
    return [
        PLAIN.replace("Keller", f"Kel{hidden}ler").replace("can't", f"ca{hidden}n't").replace("4", f"4{hidden}"),
        re.sub(r"(\w+)", rf"{hidden}\1", PLAIN),
        re.sub(r"(\w+|\.)", rf"\1{hidden}", PLAIN),
        f"{hidden} {PLAIN}".replace(" in ", f" {hidden} in ").replace("\n\n", f"\n{hidden}\n") + f" {hidden}",
        hidden.join(PLAIN),
    ]


def seen(nlp: Nlp, text: str) -> list[tuple[tuple[object, ...], str]]:
    """Return what is found in a text, with places that do not count white space and invisible characters."""
    doc = nlp(text)
    rows: list[Token | Entity] = [*doc.tokens, *doc.entities]
    assert all(row.text == text[row.start_char : row.end_char] for row in rows)
    places = ["".join(visible(text[: row.start_char] + row.text).split()) for row in rows]
    words = [
        (word.word, word.lemma, word.upos, word.feats, word.head, word.deprel, word.ner, word.ner_prob)
        for word in doc.tokens
    ]
    names = [(entity.name, entity.label, entity.confidence, entity.uncertainty) for entity in doc.entities]
    return list(zip((*words, *names), places, strict=True))


def test_invisible_characters_decide_nothing(nlp: Nlp) -> None:
    expected = seen(nlp, PLAIN)
    assert any("Maria Keller" in row[0] for row in expected)
    # What the parser sees is the same for all of them.
    views = {tuple(tokens.parser_view(text) for text in marked(hidden)) for hidden in HIDDEN if hidden != "\u00ad"}
    assert len(views) == 1
    for text in (text for hidden in TRIED for text in marked(hidden)):
        assert seen(nlp, text) == expected, text


@pytest.mark.parametrize("text", ["\u200b", "\ufeff \u200d\n\n\u00ad", "\u200e" * 5000])
def test_text_of_invisible_characters_has_no_words(nlp: Nlp, text: str) -> None:
    doc = nlp(text)
    assert (doc.sentences, doc.entities, doc.error) == ((), (), None)


def test_word_that_is_cut_at_an_invisible_character_keeps_its_offsets(nlp: Nlp) -> None:
    text = "\ufeffI can\u200bnot go\u00ad, he \u200b do\u200cn't\u200e."
    words = [(word.word, word.start_char, word.end_char) for word in nlp(text).tokens]
    assert words == [
        ("I", 0, 2), ("can", 3, 7), ("not", 7, 10), ("go", 11, 14), (",", 14, 15),
        ("he", 16, 18), ("do", 21, 24), ("n't", 24, 28), (".", 28, 29),
    ]  # fmt: skip


@pytest.mark.parametrize("end", ["-\n", "\u2010 \r\n  ", "\u00ad\n", "\u00ac\r\r\n"])
def test_words_that_are_broken_at_line_ends_are_read_whole(nlp: Nlp, end: str) -> None:
    plain = nlp("The fleet left Washington on Monday. Mr. John Roosevelt cannot go to Philadelphia.")
    doc = nlp(f"The fleet left Wash{end}ington on Monday. Mr. John Roose{end}velt can{end}not go to Phila{end}delphia.")
    assert [(word.word, word.lemma, word.head, word.ner) for word in doc.tokens] == [
        (word.word, word.lemma, word.head, word.ner) for word in plain.tokens
    ]
    assert [(entity.name, entity.canonical) for entity in doc.entities] == [
        (entity.name, entity.canonical) for entity in plain.entities
    ]
    assert all(entity.text == doc.text[entity.start_char : entity.end_char] for entity in doc.entities)
    assert f"Wash{end}ington" in [entity.text for entity in doc.entities]
    can = next(word for word in doc.tokens if word.word == "can")
    assert can.text.strip() == can.text


@given(st.text(alphabet="ab \n.\u00ad\u200b\U000e0001", max_size=30))
def test_restored_offsets_cover_all_but_white_space_and_what_stands_alone(text: str) -> None:
    view = tokens.parser_view(text)
    found = [
        tokens.Token(*match.span(), (tokens.SyntacticWord(*match.span(), match[0]),))
        for match in re.finditer(r"[ab]+|\.", view)
    ]
    [restored] = tokens.restore_offsets(text, view, [found])
    texts = [text[token.start : token.end] for token in restored]
    assert [visible(without_line_breaks(word)) for word in texts] == [token.words[0].form for token in found]
    rest = list(text)
    for token in restored:
        rest[token.start : token.end] = "x" * (token.end - token.start)
    pieces = "".join(rest).split()
    assert all(set(piece) == {"x"} or INVISIBLE.sub("", piece) == "" for piece in pieces)
