"""The character LSTM, compared with a plain LSTM on single words."""

import pytest
import torch

from concord.models.data.batch import UNKNOWN, BatchEncoder
from concord.models.data.sentence import Sentence
from concord.models.data.vocabulary import Vocabulary
from concord.models.words.representation import CharLstm, CharLstmConfig, WordRepresentation, WordRepresentationConfig

WORDS = [[3, 4, 5, 6], [7], [UNKNOWN, 3], [9] * 7]


@pytest.fixture
def network() -> CharLstm:
    torch.manual_seed(0)
    return CharLstm(CharLstmConfig(embedding_dimension=4, hidden=5), 10).double().eval()


def rows(words: list[list[int]], *, width: int) -> torch.Tensor:
    return torch.tensor([word + [0] * (width - len(word)) for word in words])


def one_direction(network: CharLstm, *, suffix: str) -> torch.nn.LSTM:
    plain = torch.nn.LSTM(4, 5, batch_first=True).double()
    plain.load_state_dict({name: network.lstm.get_parameter(name + suffix) for name in plain.state_dict()})
    return plain


@torch.inference_mode()
def test_word_vector_is_the_last_state_of_a_plain_lstm_in_each_direction(network: CharLstm) -> None:
    forward, backward = (one_direction(network, suffix=suffix) for suffix in ("", "_reverse"))
    found = network(rows(WORDS, width=9))
    assert found.shape == (len(WORDS), network.output_dimension)
    for word, vector in zip(WORDS, found, strict=True):
        embedded = network.embedding(torch.tensor([word]))
        expected = torch.cat([forward(embedded)[0][0, -1], backward(embedded.flip(1))[0][0, -1]])
        assert torch.allclose(vector, expected, rtol=0, atol=1e-12)


@torch.inference_mode()
def test_padding_changes_nothing(network: CharLstm) -> None:
    assert torch.equal(network(rows(WORDS, width=7)), network(rows(WORDS, width=30)))
    alone = torch.cat([network(torch.tensor([word])) for word in WORDS])
    assert torch.allclose(network(rows(WORDS, width=7)), alone, rtol=0, atol=1e-12)


def test_row_without_characters_is_zero_and_has_no_gradient(network: CharLstm) -> None:
    found = network(rows([[], [3, 4]], width=3))
    assert not found[0].any()
    assert bool(found[1].any())
    found[0].sum().backward()
    assert all(weight.grad is not None and not weight.grad.any() for weight in network.parameters())


def test_weights_and_characters_of_a_word_all_get_a_gradient(network: CharLstm) -> None:
    network(rows([[3, 4, 5, 6]], width=6)).pow(2).sum().backward()
    assert all(weight.grad is not None and bool(weight.grad.any()) for weight in network.parameters())
    assert network.embedding.weight.grad is not None
    touched = network.embedding.weight.grad.ne(0).any(dim=1).nonzero().flatten()
    assert touched.tolist() == [3, 4, 5, 6]


def test_representation_accepts_the_character_lstm(vocabulary: Vocabulary) -> None:
    config = WordRepresentationConfig(word_dimension=7, characters=CharLstmConfig(hidden=3), dropout=0.0)
    built = WordRepresentation(config, vocabulary).eval()
    batch = BatchEncoder(vocabulary).encode_batch([Sentence(words=("Works", "works", "Works"))])
    (vectors,) = built(batch, None)
    assert vectors.shape == (3, 7 + 6)
    assert torch.equal(vectors[0], vectors[2])
    assert not torch.equal(vectors[0, 7:], vectors[1, 7:])
