"""The character CNN: the maximum over the positions of a word, regardless of padding."""

import pytest
import torch

from concord.models.data.batch import UNKNOWN
from concord.models.words.representation import CharCnn, CharCnnConfig


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


@torch.no_grad()
def test_char_cnn_returns_zeros_without_characters_and_accepts_one_character() -> None:
    network = char_cnn((2, 3))
    found = network(torch.tensor([[0, 0], [UNKNOWN, 0]]))
    assert not found[0].any()
    assert bool(found[1].isfinite().all())
