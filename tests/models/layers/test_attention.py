"""Attention over words: to all, to all but the word itself, to a sentence, and relative to where a word stands."""

import math

import pytest
import torch
from torch import Tensor

from concord.models.errors import ConfigError
from concord.models.layers.attention import (
    GlobalAttention,
    MultiHeadSelfAttention,
    OtherWordsAttention,
    RelativeAttention,
    SelfAttentionConfig,
    TwoStreamConfig,
    TwoStreamEncoder,
)

LENGTHS = torch.tensor([3, 7, 1])
WORDS = torch.arange(7)[None, :] < LENGTHS[:, None]


@pytest.fixture
def self_attention() -> MultiHeadSelfAttention:
    torch.manual_seed(2)
    return MultiHeadSelfAttention(SelfAttentionConfig(heads=3, head_dimension=4), 6).double()


def make_states() -> Tensor:
    return torch.randn(3, 7, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


@torch.inference_mode()
def test_contexts_equal_those_of_torch_head_by_head(self_attention: MultiHeadSelfAttention) -> None:
    states = make_states()
    found = self_attention(states, WORDS)
    for row, length in enumerate(LENGTHS.tolist()):
        words = states[row, :length]
        for head in range(3):
            part = slice(4 * head, 4 * head + 4)
            query, key, value = (
                (words @ matrix.weight[part].T)[None]
                for matrix in (self_attention.query, self_attention.key, self_attention.value)
            )
            expected = torch.nn.functional.scaled_dot_product_attention(query, key, value)
            assert torch.allclose(found[row, :length, part], expected[0], rtol=0, atol=1e-12)


def test_projections_have_the_sizes_of_the_paper_and_no_bias() -> None:
    self_attention = MultiHeadSelfAttention(SelfAttentionConfig(), 200)
    assert {name: tuple(weight.shape) for name, weight in self_attention.named_parameters()} == dict.fromkeys(
        ("query.weight", "key.weight", "value.weight"), (200, 200)
    )
    assert sum(weight.numel() for weight in self_attention.parameters()) == 120_000


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


CONFIG = TwoStreamConfig(heads=2, head_dimension=6, layers=2, dropout=0.0, attention_dropout=0.0)


@pytest.fixture
def relative() -> RelativeAttention:
    torch.manual_seed(0)
    return RelativeAttention(CONFIG).double().eval()


def states(length: int, *, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, length, CONFIG.width, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@torch.no_grad()
def test_scores_of_far_words_are_as_exact_as_those_of_near_ones(
    relative: RelativeAttention, dtype: torch.dtype
) -> None:
    """Against the sinusoids of every offset, from i - j = 299 to -299."""
    relative, queries, keys = relative.to(dtype), states(300).to(dtype), states(300, seed=2).to(dtype)
    found = relative.scores(queries, keys)
    query = relative.query(queries)[0].unflatten(1, (CONFIG.heads, -1)).double()
    key = relative.key(keys)[0].unflatten(1, (CONFIG.heads, -1)).double()
    place = torch.arange(300.0, dtype=torch.float64)
    angles = (place[:, None] - place)[:, :, None] / 10_000 ** (torch.arange(3, dtype=torch.float64) / 3)
    offsets = relative.position.weight.double() @ torch.cat([angles.sin(), angles.cos()], dim=-1)[..., None]
    expected = torch.einsum("ihd,jhd->hij", query + relative.content_bias, key)
    expected += torch.einsum("ihd,ijd->hij", query + relative.position_bias, offsets[..., 0])
    assert float((found[0] - expected / math.sqrt(6)).abs().max()) < (2e-6 if dtype == torch.float32 else 1e-12)


@torch.no_grad()
def test_attention_does_not_depend_on_earlier_sentences(relative: RelativeAttention) -> None:
    short = states(10)
    mask = torch.ones(1, 10, dtype=torch.bool)
    before = relative(short, short, mask)
    relative(states(300), states(300), torch.ones(1, 300, dtype=torch.bool))
    assert torch.equal(relative(short, short, mask), before)


@torch.no_grad()
def test_padding_is_ignored_by_relative_attention(relative: RelativeAttention) -> None:
    words = states(6)
    mask = torch.tensor([[True] * 4 + [False] * 2])
    found = relative(words, words, mask)
    alone = relative(words[:, :4], words[:, :4], mask[:, :4])
    assert float((found[:, :4] - alone).abs().max()) < 1e-12
    assert not found[:, 4:].any()


def test_attention_of_a_single_word_is_its_value_with_a_finite_gradient(relative: RelativeAttention) -> None:
    word = states(1).requires_grad_()
    found = relative(word, word, torch.ones(1, 1, dtype=torch.bool))
    assert torch.allclose(found, relative.value(word))
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
    found, other = (encoder.label_attention(words, read, mask) for read in (labels, 2 * labels))
    assert not torch.allclose(found, other)
    encoder.label_attention.value.weight.zero_()
    assert not encoder.label_attention(words, labels, mask).any()


def test_odd_head_dimension_is_rejected() -> None:
    with pytest.raises(ConfigError, match="head_dimension"):
        TwoStreamConfig.from_mapping({"heads": 2, "head_dimension": 7})
