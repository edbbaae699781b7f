"""Self-attention over words, compared with that of PyTorch."""

import pytest
import torch
from torch import Tensor

from concord.models.layers.attention import MultiHeadSelfAttention, SelfAttentionConfig

LENGTHS = torch.tensor([3, 7, 1])
MASK = torch.arange(7)[None, :] < LENGTHS[:, None]


@pytest.fixture
def attention() -> MultiHeadSelfAttention:
    torch.manual_seed(2)
    return MultiHeadSelfAttention(SelfAttentionConfig(heads=3, head_dimension=4), 6).double()


def make_states() -> Tensor:
    return torch.randn(3, 7, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


@torch.inference_mode()
def test_contexts_equal_those_of_torch_head_by_head(attention: MultiHeadSelfAttention) -> None:
    states = make_states()
    found = attention(states, MASK)
    for row, length in enumerate(LENGTHS.tolist()):
        words = states[row, :length]
        for head in range(3):
            part = slice(4 * head, 4 * head + 4)
            query, key, value = (
                (words @ matrix.weight[part].T)[None] for matrix in (attention.query, attention.key, attention.value)
            )
            expected = torch.nn.functional.scaled_dot_product_attention(query, key, value)
            assert torch.allclose(found[row, :length, part], expected[0], rtol=0, atol=1e-12)


@torch.inference_mode()
def test_weights_sum_to_one_and_are_zero_on_padding(attention: MultiHeadSelfAttention) -> None:
    weights = attention.weights(make_states(), MASK)
    assert weights.shape == (3, 3, 7, 7)
    assert torch.allclose(weights.sum(dim=-1), torch.ones(3, 3, 7, dtype=torch.float64))
    assert not weights.masked_select(~MASK[:, None, None, :]).any()
    assert bool((weights.masked_select(MASK[:, None, None, :]) > 0).all())


@torch.inference_mode()
def test_word_attends_to_itself_too(attention: MultiHeadSelfAttention) -> None:
    alone = attention.weights(make_states()[2:, :1], MASK[2:, :1])
    assert torch.equal(alone, torch.ones_like(alone))


def test_projections_have_the_sizes_of_the_paper_and_no_bias() -> None:
    attention = MultiHeadSelfAttention(SelfAttentionConfig(), 200)
    assert {name: tuple(weight.shape) for name, weight in attention.named_parameters()} == dict.fromkeys(
        ("query.weight", "key.weight", "value.weight"), (200, 200)
    )
    assert sum(weight.numel() for weight in attention.parameters()) == 120_000
