"""The bundled encoder: its packed values, its states beside a reference, damaged files, and pieces of words."""

import json
import random
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from concord.models.data.sentence import Passage
from concord.models.errors import ConfigError, EncoderMissingError
from concord.models.regular_files import file_digest
from concord.models.words import bundled_encoder
from concord.models.words.bundled_encoder import (
    PIECES_NAME,
    WEIGHT_NAMES,
    PackedTable,
    UnigramSplitter,
    _read_tokenizer,
    damaged_files,
    normalize,
    read_bundled_encoder,
    unpack,
)
from concord.models.words.encoder import FrozenEncoder
from concord.models.words.encoder_config import (
    BUNDLED_ENCODER,
    BUNDLED_NAME,
    BUNDLED_SHA256,
    CONFIG_NAME,
    EncoderConfig,
)

BUNDLED = EncoderConfig(source=BUNDLED_NAME)
TEXTS = (
    "Ada King met Charles Babbage in London in June 1833 .",
    "Das neue Werk in Köln gehört der Firma Weißhaupt & Söhne .",
    "La rivière traverse Paris , puis Rouen , et se jette dans la Manche .",
    "Москва и Санкт-Петербург связаны железной дорогой .",
    "東京 は 日本 の 首都 です 。",
    "Elle",
)
SENTENCES = (*(text.split() for text in TEXTS), ["", "\u200d", "😀", "<s>", "\x00", "xyzzyplughfrotz"])
WORDS = sorted({word for words in SENTENCES for word in words})


def read_config() -> dict[str, Any]:
    values: dict[str, Any] = json.loads((BUNDLED_ENCODER / CONFIG_NAME).read_bytes())
    return values


@pytest.fixture(scope="module")
def encoder() -> FrozenEncoder:
    """Return the encoder in int8."""
    return FrozenEncoder(BUNDLED)


@pytest.fixture(scope="module")
def reference() -> Callable[[Sequence[int]], list[Tensor]]:
    """Return a function from one row of subword numbers to the states of each layer, in float64."""
    config = read_config()
    width, heads = config["hidden_size"], config["num_attention_heads"]
    epsilon: float = config["layer_norm_eps"]
    found: dict[str, Tensor] = load_file(BUNDLED_ENCODER / WEIGHT_NAMES[0])
    parts: list[dict[str, Tensor]] = [load_file(BUNDLED_ENCODER / name) for name in WEIGHT_NAMES[1:]]
    words = {kind: torch.cat([part[kind] for part in parts]) for kind in ("packed", "scales")}

    @cache
    def matrix(name: str) -> Tensor:
        if name in found:
            return found[name].double()
        return unpack(found[f"{name}.packed"], found[f"{name}.scales"]).double()

    def project(name: str, states: Tensor) -> Tensor:
        return torch.addmm(found[f"{name}.bias"].double(), states, matrix(f"{name}.weight").T)

    def normalize(name: str, states: Tensor) -> Tensor:
        centred = states - states.mean(dim=1, keepdim=True)
        variance = centred.square().mean(dim=1, keepdim=True)
        scaled = centred / (variance + epsilon).sqrt()
        return scaled * matrix(f"{name}.LayerNorm.weight") + matrix(f"{name}.LayerNorm.bias")

    def transform(layer: str, states: Tensor) -> Tensor:
        query, key, value = (
            project(f"{layer}.attention.self.{stream}", states).view(len(states), heads, -1).transpose(0, 1)
            for stream in ("query", "key", "value")
        )
        shares = (query @ key.transpose(1, 2) / (width / heads) ** 0.5).softmax(dim=2)
        attended = (shares @ value).transpose(0, 1).reshape(len(states), width)
        states = normalize(f"{layer}.attention.output", project(f"{layer}.attention.output.dense", attended) + states)
        inner = project(f"{layer}.intermediate.dense", states)
        inner = inner * (1 + torch.erf(inner / 2**0.5)) / 2
        return normalize(f"{layer}.output", project(f"{layer}.output.dense", inner) + states)

    def compute(row: Sequence[int]) -> list[Tensor]:
        embeddings = unpack(words["packed"][list(row)], words["scales"][list(row)]).double()
        embeddings = embeddings + matrix("embeddings.position_embeddings.weight")[: len(row)]
        embeddings = embeddings + matrix("embeddings.token_type_embeddings.weight")[0]
        states = [normalize("embeddings", embeddings)]
        for layer in range(config["num_hidden_layers"]):
            states.append(transform(f"encoder.layer.{layer}", states[-1]))
        return states

    return compute


def draw_packed(rows: int, blocks: int, *, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    packed = torch.randint(0, 256, (rows, blocks * 16), generator=generator, dtype=torch.uint8)
    return {"packed": packed, "scales": torch.randn(rows, blocks, generator=generator).half()}


def test_unpacked_values_are_those_of_a_plain_loop() -> None:
    part = draw_packed(5, 3, seed=1)
    part["packed"][0, :4] = torch.tensor([0x00, 0x0F, 0xF0, 0xFF], dtype=torch.uint8)
    expected = []
    for row, scales in zip(part["packed"].tolist(), part["scales"].tolist(), strict=True):
        values = []
        for block, scale in enumerate(scales):
            contents = row[block * 16 : block * 16 + 16]
            halves = [byte % 16 for byte in contents] + [byte // 16 for byte in contents]
            values += [(half - 8) * scale for half in halves]
        expected.append(values)
    found = unpack(part["packed"], part["scales"])
    assert found.dtype == torch.float32
    assert found.tolist() == expected
    assert found[0, :2].tolist() == [-8 * part["scales"][0, 0], 7 * part["scales"][0, 0]]


def test_table_returns_rows_of_all_parts() -> None:
    parts: list[Mapping[str, Tensor]] = [draw_packed(rows, 2, seed=rows) for rows in (4, 3, 5)]
    whole = {kind: torch.cat([part[kind] for part in parts]) for kind in ("packed", "scales")}
    expected = unpack(whole["packed"], whole["scales"])
    table = PackedTable(parts)
    for numbers in ([3, 4], [6, 7], [0, 11], [11, 3, 4, 4, 0, 7, 6, 3], list(range(12)), [5], []):
        assert torch.equal(table(torch.tensor(numbers, dtype=torch.long)), expected[numbers])


def test_configuration_is_the_one_whose_digest_taggers_save() -> None:
    assert BUNDLED.sha256 == BUNDLED_SHA256 == file_digest(BUNDLED_ENCODER / CONFIG_NAME).hex()
    assert BUNDLED.precision == "int8"
    assert EncoderConfig(source=BUNDLED_NAME, sha256=None) == BUNDLED
    assert EncoderConfig(source=BUNDLED_NAME, precision="float32").precision == "float32"


def test_no_file_is_too_large_for_a_forge() -> None:
    sizes = {path.name: path.stat().st_size for path in BUNDLED_ENCODER.iterdir()}
    assert sizes.keys() >= {CONFIG_NAME, PIECES_NAME, *WEIGHT_NAMES, "LICENSE.txt", "README.md"}
    assert max(sizes.values()) < 50_000_000


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of links to the encoder's files, which is read in its place."""
    for path in BUNDLED_ENCODER.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.setattr(bundled_encoder, "BUNDLED_ENCODER", tmp_path)
    return tmp_path


def replace(path: Path, content: bytes) -> None:
    path.unlink()
    path.write_bytes(content)


@pytest.mark.slow
def test_damaged_files_are_named(copied: Path) -> None:
    assert damaged_files() == []
    content = bytearray((copied / PIECES_NAME).read_bytes())
    content[-1] ^= 1
    replace(copied / PIECES_NAME, bytes(content))
    assert damaged_files() == [PIECES_NAME]
    with pytest.raises(
        EncoderMissingError, match=rf"bundled encoder cannot be read: .*{PIECES_NAME}; install Concord again"
    ):
        FrozenEncoder(BUNDLED)
    (copied / WEIGHT_NAMES[1]).unlink()
    assert sorted(damaged_files()) == [PIECES_NAME, WEIGHT_NAMES[1]]


@pytest.mark.slow
@pytest.mark.parametrize("name", [PIECES_NAME, WEIGHT_NAMES[0], WEIGHT_NAMES[2], CONFIG_NAME])
def test_cut_or_missing_files_are_reported(copied: Path, name: str) -> None:
    content = (copied / name).read_bytes()
    replace(copied / name, content[: len(content) // 2])
    with pytest.raises(EncoderMissingError, match=r"the bundled encoder cannot be read: "):
        FrozenEncoder(BUNDLED)
    (copied / name).unlink()
    with pytest.raises(EncoderMissingError, match=rf"the bundled encoder cannot be read: .*{name}"):
        FrozenEncoder(BUNDLED)


def test_another_digest_is_refused() -> None:
    message = rf"the bundled encoder cannot be read: expected config\.json with sha256 {'0' * 64}, got {BUNDLED_SHA256}"
    with pytest.raises(EncoderMissingError, match=message):
        FrozenEncoder(EncoderConfig(source=BUNDLED_NAME, sha256="0" * 64))


@pytest.mark.parametrize("change", [{"tuned": True}, {"weights": "some/folder"}])
def test_bundled_encoder_is_not_tuned(change: Mapping[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"expected the folder of a Hugging Face model as source.*always frozen"):
        EncoderConfig.from_mapping({"source": BUNDLED_NAME, **change})


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_states_are_close_to_a_reference_in_float64(
    reference: Callable[[Sequence[int]], list[Tensor]], precision: str
) -> None:
    network, tokenizer, _ = read_bundled_encoder(
        EncoderConfig.from_mapping({"source": BUNDLED_NAME, "precision": precision}), device="cpu"
    )
    rows = [
        [tokenizer.start, *(number for word in tokenizer.split(words) for number in word), tokenizer.end]
        for words in SENTENCES
    ]
    with torch.inference_mode():
        found = network.states(rows)
    assert len(found) == 9
    sizes = [len(row) for row in rows]
    for place, row in enumerate(rows):
        for layer, (states, expected) in enumerate(
            zip((states.split(sizes)[place] for states in found), reference(row), strict=True)
        ):
            cosine = torch.cosine_similarity(states.double(), expected, dim=1)
            if precision == "float32" or layer == 0:
                assert float((states - expected).abs().max()) < 1e-4 * float(expected.abs().max())
            assert float(cosine.min()) > 0.99


@pytest.mark.slow
def test_a_word_is_the_mean_of_its_subwords_over_the_last_layers(
    encoder: FrozenEncoder, reference: Callable[[Sequence[int]], list[Tensor]]
) -> None:
    _, tokenizer, scale = read_bundled_encoder(BUNDLED, device="cpu")
    words = SENTENCES[0]
    pieces = tokenizer.split(words)
    states = reference([tokenizer.start, *(number for word in pieces for number in word), tokenizer.end])
    mean = torch.stack(states[-4:]).mean(dim=0)[1:-1]
    expected = torch.stack([part.mean(dim=0) for part in mean.split([len(word) for word in pieces])]) * scale
    (found,) = encoder.features([words])
    assert encoder.width == 384
    assert float(torch.cosine_similarity(found.double(), expected, dim=1).min()) > 0.99


@pytest.mark.slow
def test_passages_that_a_parser_has_read_are_not_encoded_again(
    encoder: FrozenEncoder,
    reference: Callable[[Sequence[int]], list[Tensor]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, tokenizer, _ = read_bundled_encoder(BUNDLED, device="cpu")
    passages = [Passage(tuple(words)) for words in SENTENCES[:2]]
    found = encoder.read(passages)
    pieces = tokenizer.split(list(passages[0].words))
    layers = reference([tokenizer.start, *(number for word in pieces for number in word), tokenizer.end])
    middle = ((layers[3] + layers[4]) / 2)[1:-1]
    last = [sum(map(len, pieces[: number + 1])) - 1 for number in range(len(pieces))]
    means = torch.stack([part.mean(dim=0) for part in middle.split([len(word) for word in pieces])])
    for own, other in zip(found[0].chunk(4, dim=1)[1:], (means, middle[last], layers[0][1:-1][last]), strict=True):
        assert float(torch.cosine_similarity(own.double(), other, dim=1).min()) > 0.99
    expected = FrozenEncoder(BUNDLED).features(SENTENCES[:3])
    encoded: list[Sequence[tuple[str, ...]]] = []
    encode = encoder._encode

    def record(sentences: Sequence[tuple[str, ...]]) -> list[Tensor]:
        encoded.append(sentences)
        return encode(sentences)

    monkeypatch.setattr(encoder, "_encode", record)
    assert all(map(torch.equal, encoder.features(SENTENCES[:3]), expected))
    assert encoded == [[tuple(SENTENCES[2])]]
    del passages
    encoder.features(SENTENCES[:1])
    assert encoded[1:] == [[tuple(SENTENCES[0])]]


@pytest.mark.slow
def test_features_do_not_depend_on_the_other_sentences(encoder: FrozenEncoder) -> None:
    chance = random.Random(1)
    sentences = [tuple(chance.choices(WORDS, k=chance.randint(1, 30))) for _ in range(16)]
    expected = encoder.features(sentences)
    for _ in range(2):
        order = chance.sample(range(16), k=16)
        while order:
            size = chance.randint(1, 8)
            chosen, order = order[:size], order[size:]
            found = encoder.features([sentences[number] for number in chosen])
            assert all(torch.equal(row, expected[number]) for row, number in zip(found, chosen, strict=True))
    for number in range(0, 16, 4):
        assert torch.equal(encoder.features([sentences[number]])[0], expected[number])


@pytest.mark.slow
def test_features_depend_neither_on_the_size_of_passes_nor_on_the_number_of_threads(
    encoder: FrozenEncoder, threads: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, usual = encoder.features(SENTENCES), encoder._pass_subwords
    for size, count in ((1, 1), (7, 1), (30, 1), (5000, 1), (usual, 2), (usual, 5)):
        monkeypatch.setattr(encoder, "_pass_subwords", size)
        threads(count)
        found = encoder.features(SENTENCES)
        assert all(torch.equal(left, right) for left, right in zip(found, expected, strict=True))


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.slow
def test_long_sentence_is_read_in_windows(encoder: FrozenEncoder) -> None:
    """Each word is one subword; windows of 510 words share 32, so they start at words 0, 478 and 956."""
    words = ["the", "river", "and", "city", "in"] * 240
    (found,) = encoder.features([words])
    assert found.shape == (1200, 384)
    assert bool(found.isfinite().all())
    for first, last, kept in ((0, 510, slice(0, 494)), (478, 988, slice(494, 972)), (956, 1200, slice(972, 1200))):
        (window,) = encoder.features([words[first:last]])
        assert torch.equal(found[kept], window[kept.start - first : kept.stop - first])
    (long_word,) = encoder.features([["Ada", "漢字" * 600, "Paris"]])
    assert long_word.shape == (3, 384)
    assert bool(long_word.isfinite().all())


@pytest.mark.slow
def test_more_layers_than_there_are_cannot_be_averaged() -> None:
    encoder = FrozenEncoder(EncoderConfig(source=BUNDLED_NAME, last_layers=10))
    with pytest.raises(ConfigError, match=r"encoder\.last_layers: expected 9 or less, got 10"):
        encoder.features([("Ada",)])


Split = Callable[[Sequence[str]], list[list[int]]]

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
LISTED_TEXT = """
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
LISTED_WORDS = [word for line in LISTED_TEXT.split("\n") for word in line.split(" ") if word]
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
@pytest.mark.parametrize("words", [LISTED_WORDS, SPACED, LONG], ids=["words", "spaced", "long"])
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
    assert [ours([word])[0] for word in LISTED_WORDS[:40]] == ours(LISTED_WORDS[:40])


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
