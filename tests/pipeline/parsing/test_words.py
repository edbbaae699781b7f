"""Where words and sentences end, whatever a network has said of them."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concord.pipeline.parsing.tokens import SyntacticWord, Token, find_token_fault, make_token
from concord.pipeline.parsing.words import is_unspaced, mend_words


def read(marked: str) -> tuple[str, list[list[Token]]]:
    """Return a text and its tokens: they end at ``|``, at white space, and with their sentence at ``/``."""
    view, sentences = "", [[]]  # type: tuple[str, list[list[Token]]]
    for piece in re.findall(r"[^\s|/]+|\s+|/", marked):
        if piece == "/":
            sentences.append([])
        else:
            start, view = len(view), view + piece
            if not piece.isspace():
                sentences[-1].append(make_token(view, start, len(view), [piece]))
    return view, sentences


def mended(marked: str, *, letters: bool = True) -> str:
    """Return a marked text with the marks that are right."""
    view, sentences = read(marked)
    found = mend_words(view, sentences, letters=letters)
    tokens = [token for sentence in found for token in sentence]
    assert find_token_fault(view, tokens) is None
    ends = {sentence[-1].end: "/" for sentence in found[:-1]}
    for before, token in pairwise(tokens):
        if before.end == token.start:
            ends.setdefault(token.start, "|")
    return "".join(ends.get(place, "") + character for place, character in enumerate(view))


@pytest.mark.parametrize(
    ("marked", "expected"),
    [
        ("Песникиња Десанк|а/ Максимовић/ је дошл|а|.", "Песникиња Десанка Максимовић је дошла|."),
        ("Мост/\nОтворен је/ мост/ Most/ Ada", "Мост/\nОтворен је мост Most/ Ada"),
        ("Η ποιήτρι/α Κικ|ή/ Δημουλά|.", "Η ποιήτρια Κική Δημουλά|."),
        ("Ліна Костенк|о в Києві|./ П|’ять о|б'єктів", "Ліна Костенко в Києві|./ П’ять об'єктів"),
        ("Zuża|nna i Paw|eł|./ Książk|ę/\nkupił", "Zużanna i Paweł|./ Książkę/\nkupił"),
        ("नरें|द्र मो|दी", "नरेंद्र मोदी"),
        ("Re|\u0301ne\u0301| 5|\u20e3", "Re\u0301ne\u0301 5\u20e3"),
        ('חזר ליו|"|ר/ ול|"ספרי|ם|"', 'חזר ליו"ר ול|"ספרים|"'),
        ("In| 北京|大学|, Obama|北京", "In 北京大学|, Obama|北京"),
        ("Obama|는 왔|다|.", "Obama는 왔다|."),
        ("do|n't Ca|n’t can|not gon|na|, l'|air|, it|'s", "do|n't Ca|n’t can|not gon|na|, l'|air|, it|'s"),
        ("palki|nnot to|nt d'|Ar|c 5|km km|2", "palkinnot tont d'|Arc 5|km km|2"),
    ],
)
def test_no_word_ends_within_letters_and_no_sentence_behind_one_that_was_cut(marked: str, expected: str) -> None:
    assert mended(marked) == expected


def test_the_words_of_another_package_may_end_between_letters() -> None:
    assert mended("zrobił|em po|\u0301, am 3|./ Mai", letters=False) == "zrobił|em po\u0301, am 3|./ Mai"


@pytest.mark.parametrize(
    ("marked", "expected"),
    [
        ("Oslo\U0001f1f3|\U0001f1f4/ og Bergen\U0001f600|!", "Oslo|\U0001f1f3\U0001f1f4/ og Bergen|\U0001f600|!"),
        (
            "Ada\U0001f44b\U0001f3fd \U0001f468|\U0001f469|\U0001f467",
            "Ada|\U0001f44b\U0001f3fd \U0001f468\U0001f469\U0001f467",
        ),
        ("I♥Rom Tarn® №5 20°C n°", "I|♥|Rom Tarn|® №|5 20°C n°"),
        ("‹Split›|. ›Aarhus‹.«", "‹|Split|›|. ›|Aarhus|‹|.|«"),
        ("‚Ulm‘ und „Köln“ l’air ‘tis d‘État", "‚|Ulm|‘ und „|Köln|“ l’air ‘tis d‘État"),
        ("(Riga) [4] a) “(Bonn).” 「Nara」", "(|Riga|) [|4|] a|) “|(|Bonn|)|.|” 「|Nara|」"),
        (":-) (s)he word(s) f(x) l» a»b", ":-) (s)he word(s) f(x) l|» a»b"),
    ],
)
def test_symbols_and_quotation_marks_are_words_of_their_own(marked: str, expected: str) -> None:
    assert mended(marked, letters=False) == expected


def test_the_words_of_a_token_are_divided_with_it() -> None:
    view = "\u201cca\u0301n't\U0001f600 b"
    token = make_token(view, 0, 8, ["\u201cca\u0301", "n't\U0001f600"])
    [[mark, word, symbol]] = mend_words(view, [[token]], letters=True)
    assert word == Token(1, 7, (SyntacticWord(1, 4, "ca\u0301"), SyntacticWord(4, 7, "n't")))
    assert (mark.words[0].form, symbol.words[0].form) == ("\u201c", "\U0001f600")
    whole = make_token("a del\u2665", 2, 6, ["de", "el\u2665"])
    assert mend_words("a del\u2665", [[whole]], letters=True) == [[whole]]


@pytest.mark.parametrize(
    ("marked", "expected"),
    [
        ("bis 31|./ Mai, vom 2|./ April an", "bis 31. Mai, vom 2. April an"),
        ("Der 1|./ FC/ Ulm siegt beim 1. FSV/ Trier", "Der 1. FC Ulm siegt beim 1. FSV Trier"),
        ("Ada is 7|./ May is 8|./ April is 9|./ Er", "Ada is 7|./ May is 8|./ April is 9|./ Er"),
    ],
)
def test_no_sentence_ends_after_an_ordinal_number_of_german(marked: str, expected: str) -> None:
    assert mended(marked) == expected


@pytest.mark.parametrize(
    "number",
    [
        "1,234,567.89",
        "1.234.567,89",
        "12,34,567",
        "1.2.3",
        "1990,1991",
        "\u0661\u066c\u0662\u0663\u0664\u066b\u0665",
        "\u0967,\u0968\u0969\u096a",
    ],
)
@pytest.mark.parametrize("letters", [True, False])
def test_a_number_with_commas_and_points_is_one_word(number: str, letters: bool) -> None:
    for marked in ("|".join(number), "/".join(number)):
        assert mended(f"a {marked}|, b", letters=letters) == f"a {number}|, b"


@pytest.mark.parametrize("marked", ["1/ 2|34", "1|'|2/3|4", "1|, 2", "1/.", "|,|5", "1|.|.|2", "a|,|5", "5|-|6"])
def test_other_numbers_are_left_as_they_are(marked: str) -> None:
    assert mended(marked) == marked.lstrip("|")


def test_a_number_keeps_the_other_words_of_its_token() -> None:
    view = "1,234's"
    tokens = [make_token(view, 0, 1, ["1"]), make_token(view, 1, 2, [","]), make_token(view, 2, 7, ["234", "'s"])]
    words = (SyntacticWord(0, 5, "1,234"), SyntacticWord(5, 7, "'s"))
    assert mend_words(view, [tokens], letters=True) == [[Token(0, 7, words)]]


@given(
    st.text(
        st.sampled_from("12,.aя’() |||///\n\u0663\u0301\u0939\u093f北»‘“\U0001f600\U0001f3fd\U0001f1f3"), max_size=30
    ),
    st.booleans(),
)
def test_mended_tokens_cover_the_text(marked: str, letters: bool) -> None:
    view, sentences = read(marked)
    found = mend_words(view, [sentence for sentence in sentences if sentence], letters=letters)
    assert all(found)
    assert find_token_fault(view, [token for sentence in found for token in sentence]) is None


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
