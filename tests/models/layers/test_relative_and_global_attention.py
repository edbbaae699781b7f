"""Relative and global attention: weights, padding, and sentences of one word."""

import pytest
import torch
from torch import Tensor

from concord.models.layers.attention import GlobalAttention, OtherWordsAttention

WIDTH = 6
MASK = torch.tensor([[True] * 5, [True] * 2 + [False] * 3, [True] + [False] * 4])


@pytest.fixture
def others() -> OtherWordsAttention:
    torch.manual_seed(0)
    return OtherWordsAttention(WIDTH).double()


@pytest.fixture
def global_attention() -> GlobalAttention:
    torch.manual_seed(0)
    return GlobalAttention(WIDTH, 4).double()


def vectors(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def test_word_attends_to_all_words_but_itself(others: OtherWordsAttention) -> None:
    weights = others.weights(vectors(3, 5, WIDTH), MASK)
    assert not weights.diagonal(dim1=1, dim2=2).any()
    assert torch.allclose(weights[0].sum(dim=-1), torch.ones(5, dtype=torch.float64))
    assert weights[1, :2].tolist() == [[0, 1, 0, 0, 0], [1, 0, 0, 0, 0]]
    assert not weights[1, 2:].any()
    assert not weights[2].any()
    assert int((weights[0] > 0).sum()) == 20


@torch.no_grad()
def test_context_of_other_words_follows_the_formula(others: OtherWordsAttention) -> None:
    states = vectors(1, 3, WIDTH)
    query, key, value = (layer(states[0]) for layer in (others.query, others.key, others.value))
    found = others(states, torch.ones(1, 3, dtype=torch.bool))
    for place in range(3):
        rest = [other for other in range(3) if other != place]
        shares = (key[rest] @ query[place] / WIDTH**0.5).softmax(dim=0)
        assert torch.allclose(found[0, place], shares @ value[rest] + value[place], atol=1e-14)


def test_only_word_of_a_sentence_has_no_context_and_a_finite_gradient(others: OtherWordsAttention) -> None:
    states = vectors(3, 5, WIDTH).requires_grad_()
    found = others(states, MASK)
    assert torch.equal(found[2, 0], others.value(states)[2, 0])
    found.square().sum().backward()
    for weight in (states, *others.parameters()):
        assert weight.grad is not None
        assert bool(weight.grad.isfinite().all())
    assert states.grad is not None
    assert bool(states.grad[2, 0].any())


@torch.no_grad()
def test_padding_is_ignored_and_zero(others: OtherWordsAttention, global_attention: GlobalAttention) -> None:
    states, query = vectors(3, 5, WIDTH), vectors(3, 4, seed=2)
    for row, words in enumerate((5, 2, 1)):
        mask = torch.ones(1, words, dtype=torch.bool)
        part = slice(row, row + 1)
        for together, alone in (
            (others(states, MASK), others(states[part, :words], mask)),
            (global_attention(states, query, MASK), global_attention(states[part, :words], query[part], mask)),
        ):
            assert torch.allclose(together[row, :words], alone[0], atol=1e-14)
            assert not together[row, words:].any()


@torch.no_grad()
def test_global_weights_sum_to_one_and_scale_the_words(global_attention: GlobalAttention) -> None:
    states, query = vectors(3, 5, WIDTH), vectors(3, 4, seed=2)
    shares = global_attention.weights(states, query, MASK)
    assert torch.allclose(shares.sum(dim=1), torch.ones(3, dtype=torch.float64))
    assert not shares[~MASK].any()
    hidden = (global_attention.state(states[0]) + global_attention.query(query[0])).tanh()
    assert torch.allclose(shares[0], global_attention.score(hidden)[:, 0].softmax(dim=0), atol=1e-14)
    assert torch.allclose(global_attention(states, query, MASK)[0], shares[0, :, None] * states[0], atol=1e-14)


@torch.no_grad()
def test_global_weights_do_not_depend_on_word_order(global_attention: GlobalAttention) -> None:
    states, query = vectors(3, 5, WIDTH), vectors(3, 4, seed=2)
    order = [3, 0, 4, 2, 1]
    whole = torch.ones(3, 5, dtype=torch.bool)
    found = global_attention(states[:, order], query, whole)
    assert torch.allclose(found, global_attention(states, query, whole)[:, order], atol=1e-14)
    assert not torch.allclose(
        global_attention(states, query + 1, whole), global_attention(states, query, whole), atol=1e-3
    )
