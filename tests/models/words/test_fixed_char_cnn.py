"""The character CNN over a fixed number of characters, and the case features."""

import string

import pytest
import torch

from concord.models.data.batch import PADDING, UNKNOWN, BatchEncoder
from concord.models.data.sentence import Sentence
from concord.models.data.vocabulary import Vocabulary
from concord.models.errors import ConfigError
from concord.models.words.representation import (
    FixedCharCnn,
    FixedCharCnnConfig,
    WordRepresentation,
    WordRepresentationConfig,
)

CHARACTERS = tuple("aZ0-$\u00e9")
LONG = "Internationalisierungen07"


@pytest.fixture
def network() -> FixedCharCnn:
    torch.manual_seed(0)
    config = FixedCharCnnConfig(length=6, embedding_dimension=3, filters=4, widths=(1, 3))
    return FixedCharCnn(config, CHARACTERS).double()


def with_types(network: FixedCharCnn, characters: list[int]) -> torch.Tensor:
    """Return embeddings with hand-written types, shape ``(C, D)``."""
    # Of padding, the unknown character, and a Z 0 - $ e-acute.
    types = ["0000", "0000", "0100", "1000", "0010", "0001", "0000", "0100"]
    hand = torch.tensor([[float(bit) for bit in types[number]] for number in characters], dtype=torch.float64)
    return torch.cat([network.embedding(torch.tensor(characters)), hand], dim=1)


@torch.inference_mode()
def test_word_vector_is_the_maximum_over_all_positions_of_the_fixed_length(network: FixedCharCnn) -> None:
    for word in ([2, 3, 4], [5, 6, 7, UNKNOWN, 2, 3], [2]):
        window = with_types(network, word + [PADDING] * (6 - len(word)))
        expected = [
            torch.stack([(weight * window[at : at + width].T).sum((1, 2)) for at in range(7 - width)]).amax(0)
            for width, weight in zip((1, 3), network.convolutions.parameters(), strict=True)
        ]
        for padded in (word, [*word, PADDING], word + [PADDING] * 9):
            assert torch.allclose(network(torch.tensor([padded]))[0], torch.cat(expected), rtol=0, atol=1e-12)


def test_padding_is_trained_and_character_types_are_not_saved(network: FixedCharCnn) -> None:
    network(torch.tensor([[2, 0]])).sum().backward()
    assert network.embedding.weight.grad is not None
    assert bool(network.embedding.weight.grad[PADDING].any())
    assert set(network.state_dict()) == {"embedding.weight", "convolutions.0.weight", "convolutions.1.weight"}


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
