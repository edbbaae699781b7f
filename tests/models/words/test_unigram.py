"""Pieces of words: the same as from the library tokenizers, over the pieces of the bundled encoder."""

import json
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from concord.models.words.bundled_encoder import PIECES_NAME, UnigramSplitter, _read_tokenizer, normalize
from concord.models.words.encoder_config import BUNDLED_ENCODER, CONFIG_NAME

Split = Callable[[Sequence[str]], list[list[int]]]

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
TEXT = """
Ada laughed internationalisation don't O'Neil's 3.14 $1,000,000 e-mail COVID-19 http://example.org/a?b=c&d
größer Straßenbahn Österreich ÜBERSETZUNG éléphant aujourd'hui garçon cœur Ça naïve ¿Qué mañana niñez corazón
São Tomé coração João łódź źródło zażółć Москва съёмка вчера Україна їжак Ελλάδα μουσική ς العربية مدرسة القاهرة
שלום ירושלים नमस्ते हिन्दी कक्षा বাংলা ไทย ภาษา 東京都 日本語 カタカナ ｶﾀｶﾅ ひらがな 北京 中文 한국어 서울 ἀρχή
Việt Nam İstanbul ığdır çocuk ǅ ﬁnance ﬀ Ⅷ ① ½ ２０２４ ＡＢＣ № ™ ℃ … ‘quoted’ “quoted” «guillemets» – — • · € ₹
😀 👩‍🚀 🏳️‍🌈 👍🏽 ❤️ 🇫🇷 é e\u0301 a\u0308\u0301 \u0301 q\u0303 ́x soft\u00adhyphen zero\u200bwidth join\u200der \ufeffbom
\u202eright \u2060word \x00nul a\x00b a\x07b \x7f a\x7fb a\x8fb a\x9fb a\x85b a\x80b a\x1fb \x0bv a\x0bb tab\tbed
▁ a▁b ▁▁ ▁a a▁ <s> </s> <mask> <pad> <unk> x<s>y <s><s> <0x41> [SEP] ## @@ \\n %s {} <a> &amp;
a\u00a0b a\u3000b a\u2003b a\u1680b a\u2028b a\ufffdb \ufffd \ue000 \U0001f9ff \U00020000 \U000e0041 \U0010ffff
"""
WORDS = [word for line in TEXT.split("\n") for word in line.split(" ") if word]
SPACED = [
    "",
    " ",
    "  ",
    "\u00ad",
    "\u200d",
    "a b",
    " a",
    "a ",
    "a  b   c",
    "x\ny",
    "New\tYork",
    "\u3000a",
    "a\u200b b",
    "\r\n",
]
LONG = [
    "a" * 600,
    "ab" * 200,
    "Donaudampfschifffahrtsgesellschaft" * 5,
    "漢" * 100,
    "😀" * 50,
    "\U00020000" * 20,
    "." * 99,
]


def is_in_every_table(character: str) -> bool:
    """Return whether every version of Unicode since 3.2 normalizes a character equally.

    Python and the library have tables of different versions: few modifier letters were given a decomposition since.
    """
    if unicodedata.category(character) == "Cs":
        return False
    is_old = unicodedata.ucd_3_2_0.category(character) != "Cn"
    return is_old or not (unicodedata.decomposition(character) or unicodedata.combining(character))


CHARACTERS = st.one_of(
    st.sampled_from("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,;:!?'\"-()/&@#%"),
    st.characters(max_codepoint=0x24F),
    st.characters(min_codepoint=0x370, max_codepoint=0x6FF),  # Greek, Cyrillic, Armenian, Hebrew, Arabic
    st.characters(min_codepoint=0x900, max_codepoint=0xEFF),  # Devanagari to Lao
    st.characters(min_codepoint=0x1E00, max_codepoint=0x206F),  # Vietnamese, polytonic Greek, punctuation, zero width
    st.characters(min_codepoint=0x3040, max_codepoint=0x9FFF),
    st.characters(min_codepoint=0xAC00, max_codepoint=0xD7A3),
    st.characters(min_codepoint=0x300, max_codepoint=0x36F),  # combining marks
    st.characters(min_codepoint=0x1F300, max_codepoint=0x1F64F),
    st.characters(min_codepoint=0xFB00, max_codepoint=0xFFFD),
    st.characters(max_codepoint=0x1F),
    st.sampled_from(" \u00a0\u00ad\u200b\u200c\u200d\u2060\u3000\ufe0f\ufeff\ufffd▁"),
    st.characters(),
).filter(is_in_every_table)


@pytest.fixture(scope="module")
def ours() -> Split:
    """Return the function that splits words for the bundled encoder."""
    config: dict[str, Any] = json.loads((BUNDLED_ENCODER / CONFIG_NAME).read_bytes())
    split = _read_tokenizer(config).split
    return lambda words: split(list(words))


@pytest.fixture(scope="module")
def library() -> Split:
    """Return the same function of the library tokenizers."""
    pytest.importorskip("tokenizers", reason="comes with the extra 'hf'")
    from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers
    from tokenizers.models import Unigram

    found = load_file(BUNDLED_ENCODER / PIECES_NAME)
    scores = found["scores"].tolist()
    # Text that reads like a special piece is text: those are replaced by texts that cannot occur.
    pieces = [
        (f"\x01{piece}", min(scores)) if piece in SPECIAL else (piece, score)
        for piece, score in zip(bytes(found["text"].numpy()).decode().split("\n"), scores, strict=True)
    ]
    tokenizer = Tokenizer(Unigram(pieces, unk_id=3, byte_fallback=False))
    steps = [
        normalizers.Replace("\u00ad", ""),
        normalizers.Nmt(),
        normalizers.NFKC(),
        normalizers.Replace(Regex(" {2,}"), " "),
        normalizers.Strip(),
    ]
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always", split=True)
    return lambda words: [row.ids for row in tokenizer.encode_batch_fast(list(words), add_special_tokens=False)]


@pytest.mark.slow
@pytest.mark.parametrize("words", [WORDS, SPACED, LONG], ids=["words", "spaced", "long"])
def test_pieces_of_listed_words_are_those_of_the_library(ours: Split, library: Split, words: Sequence[str]) -> None:
    found = dict(zip(words, ours(words), strict=True))
    assert found == dict(zip(words, library(words), strict=True))


@pytest.mark.slow
@given(words=st.lists(st.text(CHARACTERS, max_size=12), min_size=1, max_size=20))
def test_pieces_of_any_words_are_those_of_the_library(ours: Split, library: Split, words: list[str]) -> None:
    found = dict(zip(words, ours(words), strict=True))
    assert found == dict(zip(words, library(words), strict=True))


@pytest.mark.slow
def test_every_piece_that_is_a_word_is_split_as_by_the_library(ours: Split, library: Split) -> None:
    text = bytes(load_file(BUNDLED_ENCODER / PIECES_NAME)["text"].numpy()).decode()
    words = [word for piece in text.split("\n") if all(map(is_in_every_table, word := piece.replace("▁", "")))][::7]
    wrong = [word for word, left, right in zip(words, ours(words), library(words), strict=True) if left != right]
    assert len(words) > 30_000
    assert not wrong


@pytest.mark.parametrize("word", SPECIAL)
def test_text_that_reads_like_a_special_piece_is_text(ours: Split, word: str) -> None:
    (found,) = ours([word])
    assert len(found) > 1
    assert not {0, 1, 2, 250_001} & set(found)


def test_a_word_does_not_depend_on_the_others(ours: Split) -> None:
    assert [ours([word])[0] for word in WORDS[:40]] == ours(WORDS[:40])


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("Ada", "Ada"),
        ("ｶﾞ", "ガ"),
        ("ﬁn", "fin"),
        ("e\u0301", "é"),
        ("soft\u00adhyphen", "softhyphen"),
        (" a \t\n b\u200b ", "a b"),
        ("a\x00b", "a\x00b"),
        ("a\x07b\x7f", "ab"),
        ("\u00ad\u200d", ""),
        ("", ""),
    ],
)
def test_words_are_normalized(word: str, expected: str) -> None:
    assert normalize(word) == expected


@st.composite
def small_models(draw: st.DrawFn) -> tuple[Mapping[str, tuple[int, float]], str]:
    """Draw pieces with scores, and a word of their characters and others."""
    pieces = draw(st.lists(st.text("ab▁", min_size=1, max_size=4), min_size=1, max_size=8, unique=True))
    scores = draw(st.lists(st.integers(-40, -1), min_size=len(pieces), max_size=len(pieces)))
    numbered = {piece: (number, float(score)) for number, (piece, score) in enumerate(zip(pieces, scores, strict=True))}
    return numbered, draw(st.text("abc", min_size=1, max_size=7))


def all_splits(text: str) -> list[list[str]]:
    """Return every way to cut a text into parts."""
    if not text:
        return [[]]
    return [[text[:end], *rest] for end in range(1, len(text) + 1) for rest in all_splits(text[end:])]


@given(model=small_models())
def test_the_pieces_have_the_largest_sum_of_scores(model: tuple[Mapping[str, tuple[int, float]], str]) -> None:
    scores, word = model
    unknown = 99
    penalty = min(score for _, score in scores.values()) - 10

    def total(parts: Sequence[str]) -> float:
        return sum(scores[part][1] if part in scores else penalty for part in parts)

    def numbers(parts: Sequence[str]) -> list[int]:
        found = [scores[part][0] if part in scores else unknown for part in parts]
        return [
            number for place, number in enumerate(found) if number != unknown or found[place - 1 : place] != [unknown]
        ]

    splits = [parts for parts in all_splits("▁" + word) if all(part in scores or len(part) == 1 for part in parts)]
    best = max(map(total, splits))
    (found,) = UnigramSplitter(scores, unknown=unknown).split([word])
    assert found in [numbers(parts) for parts in splits if total(parts) == best]
