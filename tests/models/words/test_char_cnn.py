"""The character CNN: the maximum over a word's own positions, whatever the padding."""

import torch

from concord.models.data.batch import UNKNOWN
from concord.models.words.char_cnn import CharCnn, CharCnnConfig


def char_cnn(widths: tuple[int, ...]) -> CharCnn:
    torch.manual_seed(0)
    return CharCnn(CharCnnConfig(embedding_dimension=4, filters=5, widths=widths), 10).double().eval()


@torch.no_grad()
def test_char_cnn_does_not_depend_on_the_longest_word_of_the_batch() -> None:
    network = char_cnn((2, 3, 4))
    short = torch.tensor([[3, 4, 5]])
    padded = torch.tensor([[3, 4, 5, 0, 0, 0, 0, 0], [7] * 8])
    assert float((network(padded)[0] - network(short)[0]).abs().max()) < 1e-12


@torch.no_grad()
def test_char_cnn_is_the_maximum_over_the_words_own_positions() -> None:
    network = char_cnn((3,))
    characters = [3, 4, 5, 6]
    window = network.embedding(torch.tensor([0, *characters, 0]))
    weight, bias = network.convolutions[0].weight, network.convolutions[0].bias
    scores = [(weight * window[place : place + 3].T).sum((1, 2)) + bias for place in range(4)]
    assert torch.allclose(network(torch.tensor([characters]))[0], torch.stack(scores).amax(0))


@torch.no_grad()
def test_char_cnn_gives_zeros_for_no_characters_and_takes_one() -> None:
    network = char_cnn((2, 3))
    found = network(torch.tensor([[0, 0], [UNKNOWN, 0]]))
    assert not found[0].any()
    assert bool(found[1].isfinite().all())
