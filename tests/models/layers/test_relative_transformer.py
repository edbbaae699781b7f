"""Relative attention depends only on offsets, not on sentence length or earlier sentences."""

import math

import pytest
import torch
from torch import Tensor

from concord.models.errors import ConfigError
from concord.models.layers.attention import (
    RelativeAttention,
    TwoStreamConfig,
    TwoStreamEncoder,
)

CONFIG = TwoStreamConfig(heads=2, head_dimension=6, layers=2, dropout=0.0, attention_dropout=0.0)


@pytest.fixture
def attention() -> RelativeAttention:
    torch.manual_seed(0)
    return RelativeAttention(CONFIG).double().eval()


def states(length: int, *, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, length, CONFIG.width, dtype=torch.float64, generator=generator)


@torch.no_grad()
def test_scores_follow_the_formula(attention: RelativeAttention) -> None:
    queries, keys = states(4), states(4, seed=2)
    found = attention.scores(queries, keys)
    for head in range(CONFIG.heads):
        part = slice(head * CONFIG.head_dimension, (head + 1) * CONFIG.head_dimension)
        for i in range(4):
            for j in range(4):
                query, key = attention.query(queries)[0, i, part], attention.key(keys)[0, j, part]
                angles = [(i - j) / 10_000 ** (2 * pair / CONFIG.head_dimension) for pair in range(3)]
                offset = torch.tensor([*map(math.sin, angles), *map(math.cos, angles)], dtype=torch.float64)
                expected = (query + attention.content_bias[head]) @ key
                expected += (query + attention.position_bias[head]) @ (attention.position.weight @ offset)
                assert float(found[0, head, i, j]) == pytest.approx(float(expected) / math.sqrt(6), abs=1e-6)


@pytest.mark.parametrize("shift", [1, 3, 20])
@torch.no_grad()
def test_scores_do_not_change_when_words_are_shifted(attention: RelativeAttention, shift: int) -> None:
    queries, keys = states(5), states(5, seed=2)
    pad = states(shift, seed=3)
    later = attention.scores(torch.cat([pad, queries], dim=1), torch.cat([pad, keys], dim=1))
    assert float((later[..., shift:, shift:] - attention.scores(queries, keys)).abs().max()) < 1e-9


@torch.no_grad()
def test_scores_change_with_the_sign_of_the_offsets(attention: RelativeAttention) -> None:
    queries, keys = states(5), states(5, seed=2)
    forward = attention.scores(queries, keys)
    flipped = attention.scores(queries.flip(1), keys.flip(1)).flip(-1, -2)
    difference = (forward - flipped).abs().amax(dim=(0, 1))
    assert float(difference.diagonal().max()) < 1e-9
    assert float(difference[~torch.eye(5, dtype=torch.bool)].min()) > 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@torch.no_grad()
def test_scores_of_far_words_are_as_exact_as_those_of_near_ones(
    attention: RelativeAttention, dtype: torch.dtype
) -> None:
    """Against the sinusoids of every offset, from i - j = 299 to -299."""
    attention, queries, keys = attention.to(dtype), states(300).to(dtype), states(300, seed=2).to(dtype)
    found = attention.scores(queries, keys)
    query = attention.query(queries)[0].unflatten(1, (CONFIG.heads, -1)).double()
    key = attention.key(keys)[0].unflatten(1, (CONFIG.heads, -1)).double()
    place = torch.arange(300.0, dtype=torch.float64)
    angles = (place[:, None] - place)[:, :, None] / 10_000 ** (torch.arange(3, dtype=torch.float64) / 3)
    offsets = attention.position.weight.double() @ torch.cat([angles.sin(), angles.cos()], dim=-1)[..., None]
    expected = torch.einsum("ihd,jhd->hij", query + attention.content_bias, key)
    expected += torch.einsum("ihd,ijd->hij", query + attention.position_bias, offsets[..., 0])
    assert float((found[0] - expected / math.sqrt(6)).abs().max()) < (2e-6 if dtype == torch.float32 else 1e-12)


@torch.no_grad()
def test_attention_does_not_depend_on_earlier_sentences(attention: RelativeAttention) -> None:
    short = states(10)
    mask = torch.ones(1, 10, dtype=torch.bool)
    before = attention(short, short, mask)
    attention(states(300), states(300), torch.ones(1, 300, dtype=torch.bool))
    assert torch.equal(attention(short, short, mask), before)


@torch.no_grad()
def test_padding_is_ignored_and_zero(attention: RelativeAttention) -> None:
    words = states(6)
    mask = torch.tensor([[True] * 4 + [False] * 2])
    found = attention(words, words, mask)
    alone = attention(words[:, :4], words[:, :4], mask[:, :4])
    assert float((found[:, :4] - alone).abs().max()) < 1e-12
    assert not found[:, 4:].any()


def test_attention_of_a_single_word_is_its_value_with_a_finite_gradient(attention: RelativeAttention) -> None:
    word = states(1).requires_grad_()
    found = attention(word, word, torch.ones(1, 1, dtype=torch.bool))
    assert torch.allclose(found, attention.value(word))
    found.sum().backward()
    assert word.grad is not None
    assert bool(word.grad.isfinite().all())


def test_every_layer_and_stream_has_its_own_weights() -> None:
    torch.manual_seed(0)
    encoder = TwoStreamEncoder(TwoStreamConfig(heads=2, head_dimension=6, layers=3))
    queries = [module.query.weight for module in encoder.modules() if isinstance(module, RelativeAttention)]
    assert len(queries) == 4
    assert len({weight.data_ptr() for weight in queries}) == 4
    assert len({float(weight.detach().sum()) for weight in queries}) == 4


@torch.no_grad()
def test_labels_reach_a_word_only_through_attention() -> None:
    """The label stream has no residual connection: with zero values the labels have no effect."""
    torch.manual_seed(0)
    encoder = TwoStreamEncoder(CONFIG).double().eval()
    words, labels, mask = states(4), states(4, seed=2), torch.ones(1, 4, dtype=torch.bool)
    from_words, from_labels = encoder.read_labels(words, labels, mask)
    other_words, other_labels = encoder.read_labels(words, 2 * labels, mask)
    assert torch.equal(from_words, other_words)
    assert not torch.allclose(from_labels, other_labels)
    encoder.label_attention.value.weight.zero_()
    assert not encoder.read_labels(words, labels, mask)[1].any()


def test_odd_head_dimension_is_rejected() -> None:
    with pytest.raises(ConfigError, match="head_dimension"):
        TwoStreamConfig.from_mapping({"heads": 2, "head_dimension": 7})
