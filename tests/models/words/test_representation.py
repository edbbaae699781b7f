"""Word representations: their parts, and what characters add by a CNN, by one of fixed length, or by an LSTM."""

import string
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

from concord.models.data.batch import PADDING, UNKNOWN, BatchEncoder
from concord.models.data.sentence import Sentence
from concord.models.data.vocabulary import Vocabulary
from concord.models.errors import ConfigError
from concord.models.words.form_vectors import read_word_vectors
from concord.models.words.representation import (
    CharCnn,
    CharCnnConfig,
    CharLstm,
    CharLstmConfig,
    FixedCharCnn,
    FixedCharCnnConfig,
    WordRepresentation,
    WordRepresentationConfig,
)


def representation(vocabulary: Vocabulary, *, unit_variance: bool = False) -> WordRepresentation:
    torch.manual_seed(0)
    config = WordRepresentationConfig(word_dimension=2, characters=None, dropout=0.0, unit_variance=unit_variance)
    return WordRepresentation(config, vocabulary)


def test_vectors_match_the_exact_form_before_the_lower_cased_one() -> None:
    vocabulary = Vocabulary(words=("Ford", "ford", "Paris", "Zed"), characters=(), labels=("O",))
    numbers = np.array([[1, 1], [2, 2], [3, 3], [4, 4]], np.float32)
    vectors = dict(zip(["ford", "Ford", "paris", "ZED"], numbers, strict=True))
    built = representation(vocabulary)
    assert built.words is not None
    zed = built.words.weight[5].detach().clone()
    assert built.load_vectors(vocabulary, vectors) == 3
    assert built.words.weight[2:5].tolist() == [[2.0, 2.0], [1.0, 1.0], [3.0, 3.0]]
    assert torch.equal(built.words.weight[5], zed)
    assert not built.words.weight[PADDING].any()


def test_unit_variance_holds_before_and_after_loading_vectors() -> None:
    vocabulary = Vocabulary(words=tuple(map(str, range(200))), characters=(), labels=("O",))
    built = representation(vocabulary, unit_variance=True)
    assert built.words is not None
    assert float(built.words.weight[1:].detach().std()) == pytest.approx(1.0, abs=1e-5)
    drawn = np.random.default_rng(0).normal(0, 9, (200, 2)).astype(np.float32)
    vectors = dict(zip(vocabulary.words, drawn, strict=True))
    built.load_vectors(vocabulary, vectors)
    assert float(built.words.weight[1:].detach().std()) == pytest.approx(1.0, abs=1e-5)
    assert not built.words.weight[PADDING].any()


def test_unit_variance_keeps_words_without_a_vector_small_relative_to_vectors() -> None:
    vocabulary = Vocabulary(words=tuple(map(str, range(4000))), characters=(), labels=("O",))
    built = representation(vocabulary, unit_variance=True)
    assert built.words is not None
    drawn = np.random.default_rng(0).normal(0, 9, (2000, 2)).astype(np.float32)
    built.load_vectors(vocabulary, dict(zip(vocabulary.words[:2000], drawn, strict=True)))
    with_vector, without = built.words.weight[2:].detach().split(2000)
    # Words are drawn with a variance of 1 / dimension.
    assert float(with_vector.std() / without.std()) == pytest.approx(9 * 2**0.5, rel=0.05)


def character_table(vectors: Mapping[str, np.ndarray], *, dimension: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the embeddings of padding, unknown, x, y, z and q with these vectors, and as they are drawn without."""
    vocabulary = Vocabulary(words=(), characters=("x", "y", "z", "q"), labels=("O",))
    config = WordRepresentationConfig(
        word_dimension=4, characters=CharCnnConfig(embedding_dimension=dimension), characters_from_vectors=True
    )
    torch.manual_seed(0)
    built = WordRepresentation(config, vocabulary)
    assert built.characters is not None
    drawn = built.characters.embedding.weight.detach().clone()
    built.load_vectors(vocabulary, vectors)
    return built.characters.embedding.weight.detach(), drawn


@pytest.mark.parametrize("dimension", [3, 4, 6])
def test_characters_start_as_the_vectors_of_their_words_times_an_orthogonal_matrix(dimension: int) -> None:
    numbers = np.array([[4, 1, 0, 2], [7, 7, 7, 7], [0, 9, 3, 1]], np.float32)
    table, drawn = character_table(dict(zip(["x", "xy", "z"], numbers, strict=True)), dimension=dimension)
    # Wang et al. (2021), section 3.5: e_c = w_c Q, where Q has orthonormal columns or, if it is wider, rows. The matrix
    # is the next one that is drawn after the network.
    torch.manual_seed(0)
    WordRepresentation(
        WordRepresentationConfig(word_dimension=4, characters=CharCnnConfig(embedding_dimension=dimension)),
        Vocabulary(words=(), characters=("x", "y", "z", "q"), labels=("O",)),
    )
    matrix = torch.nn.init.orthogonal_(torch.empty(4, dimension))
    vectors = torch.from_numpy(numbers)[[0, 2]]
    assert torch.allclose(table[[2, 4]], vectors @ matrix, atol=1e-6)
    if dimension >= 4:
        # No length and no angle changes.
        assert torch.allclose(table[[2, 4]] @ table[[2, 4]].T, vectors @ vectors.T, atol=1e-4)
    assert torch.equal(table[[PADDING, UNKNOWN, 3, 5]], drawn[[PADDING, UNKNOWN, 3, 5]])


def test_characters_from_vectors_is_rejected_without_a_character_network() -> None:
    with pytest.raises(ConfigError, match=r"characters_from_vectors: .*expected characters of the kind cnn or lstm"):
        WordRepresentationConfig.from_mapping({"characters": None, "characters_from_vectors": True})


def test_vectors_of_another_width_are_rejected() -> None:
    vocabulary = Vocabulary(words=("a",), characters=(), labels=("O",))
    with pytest.raises(ConfigError, match=r"word_dimension: expected 3 as the vectors have, got 2"):
        representation(vocabulary).load_vectors(vocabulary, {"a": np.zeros(3, np.float32)})


def frozen(vocabulary: Vocabulary) -> WordRepresentation:
    config = WordRepresentationConfig(word_dimension=2, frozen=True, rare_to_unknown=0.0, characters=None, dropout=0.0)
    built = WordRepresentation(config, vocabulary)
    vectors = {"Ford": np.array([2, 2], np.float32), "paris": np.array([0, 3], np.float32)}
    assert built.load_vectors(vocabulary, vectors) == 1
    return built


def test_frozen_table_trains_only_the_vector_shared_by_words_without_one() -> None:
    vocabulary = Vocabulary(words=("Ford", "Paris", "Zed"), characters=(), labels=("O",))
    built = frozen(vocabulary).train()
    batch = BatchEncoder(vocabulary).encode_batch([Sentence(words=("Ford", "Paris", "Zed", "never-seen"))])
    before = built(batch, None)[0].detach()
    assert before[0].tolist() == [2.0, 2.0]
    assert torch.equal(before[1:], before[1:2].expand(3, 2))
    ((name, unknown),) = built.named_parameters()
    assert name == "words.unknown"
    optimizer = torch.optim.SGD(built.parameters(), lr=0.5)
    built(batch, None).sum().backward()
    assert unknown.grad is not None
    assert unknown.grad.tolist() == [3.0, 3.0]
    optimizer.step()
    after = built(batch, None)[0].detach()
    assert torch.equal(after[0], before[0])
    assert torch.allclose(after[1:], before[1:] - 1.5)


def test_frozen_table_is_saved_with_its_vectors() -> None:
    vocabulary = Vocabulary(words=("Ford", "Paris", "Zed"), characters=(), labels=("O",))
    stored, fresh = frozen(vocabulary), frozen(vocabulary)
    assert fresh.words is not None
    fresh.words.weight.zero_()
    fresh.load_state_dict(stored.state_dict())
    batch = BatchEncoder(vocabulary).encode_batch([Sentence(words=("Ford", "Paris"))])
    assert torch.equal(fresh(batch, None), stored(batch, None))


def test_representation_without_parts_is_rejected() -> None:
    vocabulary = Vocabulary(words=("a",), characters=(), labels=("O",))
    with pytest.raises(ConfigError, match="expected a word embedding, characters or an encoder"):
        WordRepresentation(WordRepresentationConfig(word_dimension=0, characters=None), vocabulary)


def test_parts_are_concatenated_and_encoder_features_are_projected_if_configured(vocabulary: Vocabulary) -> None:
    batch = BatchEncoder(vocabulary).encode_batch([Sentence(words=("in", "Paris"))])
    characters = CharCnnConfig(embedding_dimension=4, filters=3, widths=(2, 3))
    for projected, width in ((None, 7 + 6 + 9), (5, 7 + 6 + 5)):
        config = WordRepresentationConfig(word_dimension=7, characters=characters, encoder_dimension=projected)
        built = WordRepresentation(config, vocabulary, encoder_width=9).eval()
        assert built.output_dimension == width
        assert built(batch, torch.zeros(1, 2, 9)).shape == (1, 2, width)


def test_characters_distinguish_case(vocabulary: Vocabulary) -> None:
    config = WordRepresentationConfig(word_dimension=0, dropout=0.0)
    built = WordRepresentation(config, vocabulary).eval()
    batch = BatchEncoder(vocabulary).encode_batch([Sentence(words=("Works", "works"))])
    upper, lower = built(batch, None)[0]
    assert not torch.equal(upper, lower)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    def to_file(text: str) -> Path:
        path = tmp_path / "vectors.txt"
        path.write_bytes(text.encode())
        return path

    return to_file


@pytest.mark.parametrize(
    "text",
    [
        "the 0.5 -1\nParis 2 3e-1\n",
        "2 2\nthe 0.5 -1\nParis 2 3e-1\n",
        "2 2\nthe 0.5 -1 \nParis 2 3e-1 \n",
        "the 0.5 -1\r\nParis 2 3e-1\r\n",
        "the 0.5 -1\nParis 2 3e-1\nthe 9 9",
        "the 0.5 -1\n\nParis 2 3e-1\n\n",
    ],
    ids=["glove", "word2vec", "fasttext", "line-ends", "twice", "blank"],
)
def test_vectors_are_read_from_every_text_format(write: Callable[[str], Path], text: str) -> None:
    vectors = read_word_vectors(write(text))
    assert {vector.dtype for vector in vectors.values()} == {np.dtype(np.float32)}
    found = {word: vector.tolist() for word, vector in vectors.items()}
    assert found == {"the": [0.5, -1.0], "Paris": [2.0, pytest.approx(0.3)]}


def test_vectors_of_unusual_words_are_read(write: Callable[[str], Path]) -> None:
    vectors = read_word_vectors(write("\u00a0 1 2\n\u2028 3 4\n7 5 6\n\x85 7 8\n"))
    assert list(vectors) == ["\u00a0", "\u2028", "7", "\x85"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a 1 2\nb 1\n", r"vectors\.txt:2: expected 2 numbers for 'b', got 1"),
        ("a 1 2\nb 1 x\n", r"vectors\.txt:2: expected numbers after the word 'b', got \['1', 'x'\]"),
        ("2 2\na 1 2\nb\n", r"vectors\.txt:3: expected numbers after the word 'b', got \[\]"),
        ("a\n", r"vectors\.txt:1: expected numbers after the word 'a'"),
        ("a nan 1\n", r"vectors\.txt:1: expected numbers after the word 'a', got \['nan', '1'\]"),
        ("", r"vectors\.txt: expected a word and its numbers on each line"),
        ("10 300\n", r"vectors\.txt: expected a word and its numbers on each line"),
    ],
)
def test_malformed_vectors_error_names_file_and_line(write: Callable[[str], Path], text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_word_vectors(write(text))


@pytest.mark.parametrize("content", [b"a 1\n\xff 2\n", None])
def test_unreadable_vectors_raise_a_config_error(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "vectors.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"vectors\.txt"):
        read_word_vectors(path)


def char_cnn(widths: tuple[int, ...]) -> CharCnn:
    torch.manual_seed(0)
    return CharCnn(CharCnnConfig(embedding_dimension=4, filters=5, widths=widths), 10).double().eval()


@torch.no_grad()
def test_char_cnn_ignores_the_length_of_the_longest_word_in_the_batch() -> None:
    network = char_cnn((2, 3, 4))
    short = torch.tensor([[3, 4, 5]])
    padded = torch.tensor([[3, 4, 5, 0, 0, 0, 0, 0], [7] * 8])
    assert float((network(padded)[0] - network(short)[0]).abs().max()) < 1e-12


def test_char_cnn_without_gradient_equals_the_convolutions() -> None:
    for widths in ((3,), (2, 3, 4), (1, 5), (6, 2)):
        network = char_cnn(widths)
        forms = torch.tensor(
            [[3, 4, 5, 6, 7, 8], [0] * 6, [7, 9, 0, 0, 0, 0], [4, 0, 0, 0, 0, 0], [UNKNOWN, 2, 3, 0, 0, 0]]
        )
        expected = network(forms)
        with torch.no_grad():
            assert torch.allclose(network(forms), expected, atol=1e-12)
            assert not network(forms[1:2]).any()


@pytest.mark.slow
@torch.no_grad()
def test_char_cnn_reads_many_words_as_it_reads_each() -> None:
    network = char_cnn((2, 3))
    lengths = torch.randint(0, 12, (1100,), generator=torch.Generator().manual_seed(0))
    forms = torch.randint(1, 10, (1100, 12)) * (torch.arange(12)[None, :] < lengths[:, None])
    found = network(forms)
    alone = torch.cat([network(forms[row : row + 1]) for row in range(1100)])
    assert float((found - alone).abs().max()) < 1e-12


@torch.no_grad()
def test_char_cnn_is_the_maximum_over_positions_of_the_word() -> None:
    network = char_cnn((3,))
    characters = [3, 4, 5, 6]
    window = network.embedding(torch.tensor([0, *characters, 0]))
    weight, bias = network.convolutions[0].weight, network.convolutions[0].bias
    scores = [(weight * window[place : place + 3].T).sum((1, 2)) + bias for place in range(4)]
    assert torch.allclose(network(torch.tensor([characters]))[0], torch.stack(scores).amax(0))


CHARACTERS = tuple("aZ0-$\u00e9")
LONG = "Internationalisierungen07"


@pytest.fixture
def fixed_cnn() -> FixedCharCnn:
    torch.manual_seed(0)
    config = FixedCharCnnConfig(length=6, embedding_dimension=3, filters=4, widths=(1, 3))
    return FixedCharCnn(config, CHARACTERS).double()


def with_types(fixed_cnn: FixedCharCnn, characters: list[int]) -> torch.Tensor:
    """Return embeddings with hand-written types, shape ``(C, D)``."""
    # Of padding, the unknown character, and a Z 0 - $ e-acute.
    types = ["0000", "0000", "0100", "1000", "0010", "0001", "0000", "0100"]
    hand = torch.tensor([[float(bit) for bit in types[number]] for number in characters], dtype=torch.float64)
    return torch.cat([fixed_cnn.embedding(torch.tensor(characters)), hand], dim=1)


@torch.inference_mode()
def test_word_vector_is_the_maximum_over_all_positions_of_the_fixed_length(fixed_cnn: FixedCharCnn) -> None:
    for word in ([2, 3, 4], [5, 6, 7, UNKNOWN, 2, 3], [2]):
        window = with_types(fixed_cnn, word + [PADDING] * (6 - len(word)))
        expected = [
            torch.stack([(weight * window[at : at + width].T).sum((1, 2)) for at in range(7 - width)]).amax(0)
            for width, weight in zip((1, 3), fixed_cnn.convolutions.parameters(), strict=True)
        ]
        for padded in (word, [*word, PADDING], word + [PADDING] * 9):
            assert torch.allclose(fixed_cnn(torch.tensor([padded]))[0], torch.cat(expected), rtol=0, atol=1e-12)


def test_padding_is_trained_and_character_types_are_not_saved(fixed_cnn: FixedCharCnn) -> None:
    fixed_cnn(torch.tensor([[2, 0]])).sum().backward()
    assert fixed_cnn.embedding.weight.grad is not None
    assert bool(fixed_cnn.embedding.weight.grad[PADDING].any())
    assert set(fixed_cnn.state_dict()) == {"embedding.weight", "convolutions.0.weight", "convolutions.1.weight"}


def test_filters_wider_than_words_are_rejected() -> None:
    with pytest.raises(ConfigError, match=r"expected widths of 1 to length \(2\)"):
        FixedCharCnnConfig.from_mapping({"length": 2, "widths": [1, 3]})


def represent(words: tuple[str, ...], vocabulary: Vocabulary, config: WordRepresentationConfig) -> torch.Tensor:
    torch.manual_seed(1)
    built = WordRepresentation(config, vocabulary).eval()
    with torch.inference_mode():
        vectors: torch.Tensor = built(BatchEncoder(vocabulary).encode_batch([Sentence(words=words)]), None)[0]
    return vectors


@pytest.fixture
def letters() -> Vocabulary:
    """Return a vocabulary with the paper's 85 characters: letters, digits and punctuation."""
    punctuation = "".join(sign for sign in string.punctuation if sign not in "$+<=>^`|~")
    # Digits are normalized in words, but still in the table.
    alphabet = tuple(string.ascii_letters + string.digits + punctuation)
    return Vocabulary(words=("Ada", "ada"), characters=alphabet, labels=("O",))


def test_word_of_25_characters_equals_its_first_20(letters: Vocabulary) -> None:
    config = WordRepresentationConfig(word_dimension=0, characters=FixedCharCnnConfig())
    whole, first, shorter = represent((LONG, LONG[:20], LONG[:19]), letters, config)
    assert len(LONG) == 25
    assert torch.equal(whole, first)
    assert not torch.equal(first, shorter)


def test_case_features_are_set_for_known_and_unknown_words(letters: Vocabulary) -> None:
    config = WordRepresentationConfig(word_dimension=2, case_features=True, characters=None)
    words = ("Ada", "ada", "ZURICH", "Zurich", "zurich", "iZurich", "3", "U.S.", "I", "")
    vectors = represent(words, letters, config)
    assert vectors.shape == (len(words), 6)
    assert vectors[:, 2:].argmax(dim=1).tolist() == [1, 2, 0, 1, 2, 3, 3, 0, 0, 3]
    assert torch.equal(vectors[:, 2:].sum(dim=1), torch.ones(len(words)))
    assert torch.equal(vectors[2, :2], vectors[4, :2])


def test_sizes_match_the_paper(letters: Vocabulary) -> None:
    config = WordRepresentationConfig(
        word_dimension=300, frozen=True, case_features=True, characters=FixedCharCnnConfig(), dropout=0.0
    )
    built = WordRepresentation(config, letters)
    counts = {name: weight.numel() for name, weight in built.named_parameters()}
    assert built.output_dimension == 364
    assert counts.pop("characters.embedding.weight") == 2_175
    # 304 in the released code, where the vector of the unknown word also replaces the case features.
    assert counts.pop("words.unknown") == 300
    assert sum(counts.values()) == 3_480


CODES = [[3, 4, 5, 6], [7], [UNKNOWN, 3], [9] * 7]


@pytest.fixture
def char_lstm() -> CharLstm:
    torch.manual_seed(0)
    return CharLstm(CharLstmConfig(embedding_dimension=4, hidden=5), 10).double().eval()


def padded_rows(words: list[list[int]], *, width: int) -> torch.Tensor:
    return torch.tensor([word + [0] * (width - len(word)) for word in words])


def one_direction(char_lstm: CharLstm, *, suffix: str) -> torch.nn.LSTM:
    plain = torch.nn.LSTM(4, 5, batch_first=True).double()
    plain.load_state_dict({name: char_lstm.lstm.get_parameter(name + suffix) for name in plain.state_dict()})
    return plain


@torch.inference_mode()
def test_word_vector_is_the_last_state_of_a_plain_lstm_in_each_direction(char_lstm: CharLstm) -> None:
    forward, backward = (one_direction(char_lstm, suffix=suffix) for suffix in ("", "_reverse"))
    found = char_lstm(padded_rows(CODES, width=9))
    assert found.shape == (len(CODES), char_lstm.output_dimension)
    for word, vector in zip(CODES, found, strict=True):
        embedded = char_lstm.embedding(torch.tensor([word]))
        expected = torch.cat([forward(embedded)[0][0, -1], backward(embedded.flip(1))[0][0, -1]])
        assert torch.allclose(vector, expected, rtol=0, atol=1e-12)


def test_row_without_characters_is_zero_and_has_no_gradient(char_lstm: CharLstm) -> None:
    found = char_lstm(padded_rows([[], [3, 4]], width=3))
    assert not found[0].any()
    assert bool(found[1].any())
    found[0].sum().backward()
    assert all(weight.grad is not None and not weight.grad.any() for weight in char_lstm.parameters())


def test_weights_and_characters_of_a_word_all_get_a_gradient(char_lstm: CharLstm) -> None:
    char_lstm(padded_rows([[3, 4, 5, 6]], width=6)).pow(2).sum().backward()
    assert all(weight.grad is not None and bool(weight.grad.any()) for weight in char_lstm.parameters())
    assert char_lstm.embedding.weight.grad is not None
    touched = char_lstm.embedding.weight.grad.ne(0).any(dim=1).nonzero().flatten()
    assert touched.tolist() == [3, 4, 5, 6]


def test_representation_accepts_the_character_lstm(vocabulary: Vocabulary) -> None:
    config = WordRepresentationConfig(word_dimension=7, characters=CharLstmConfig(hidden=3), dropout=0.0)
    built = WordRepresentation(config, vocabulary).eval()
    batch = BatchEncoder(vocabulary).encode_batch([Sentence(words=("Works", "works", "Works"))])
    (vectors,) = built(batch, None)
    assert vectors.shape == (3, 7 + 6)
    assert torch.equal(vectors[0], vectors[2])
    assert not torch.equal(vectors[0, 7:], vectors[1, 7:])
