"""BiLSTM-LAN: its identity with softmax, the attention to labels, what the layers read, and its size."""

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from concord.models.bundles.registry import build_tagger
from concord.models.data.batch import Batch
from concord.models.data.sentence import Sentence
from concord.models.data.vocabulary import Vocabulary
from concord.models.errors import ConfigError
from concord.models.labels import BIOES
from concord.models.taggers.bilstm_lan import LabelAttention, LabelScorer, Projection

Documents = list[list[Sentence]]
Build = Callable[..., Any]
Recorder = Callable[..., AbstractContextManager[list[tuple[nn.Module, tuple[Any, ...]]]]]


def draw(
    *, heads: int, projection: Projection | None = "relu", width: int = 12
) -> tuple[LabelAttention, Tensor, Tensor, Tensor]:
    """Return attention in evaluation mode, hidden states (zeros where padded), label embeddings and the mask."""
    torch.manual_seed(heads)
    attention = LabelAttention(width, heads=heads, dropout=0.5, projection=projection).double().eval()
    mask = torch.tensor([[True, True, True], [True, False, False]])
    hidden = torch.randn(2, 3, width, dtype=torch.float64) * mask[:, :, None]
    return attention, hidden, torch.randn(5, width, dtype=torch.float64), mask


def relu_linear(projection: nn.Module, state: Tensor) -> Tensor:
    weight, bias = dict(projection.named_parameters()).values()
    return (weight @ state + bias).clamp(min=0)


def attend(attention: LabelAttention, state: Tensor, labels: Tensor, *, heads: int) -> tuple[Tensor, Tensor]:
    """Attend from one word to the labels, head by head."""
    query = relu_linear(attention.query, state).chunk(heads)
    keys = [relu_linear(attention.key, label).chunk(heads) for label in labels]
    values = [relu_linear(attention.value, label).chunk(heads) for label in labels]
    weights, gathered = [], []
    for head in range(heads):
        scores = torch.stack([query[head] @ key[head] for key in keys]) / math.sqrt(len(query[head]))
        weights.append(scores.exp() / scores.exp().sum())
        gathered.append(sum(share * value[head] for share, value in zip(weights[head], values, strict=True)))
    return torch.stack(weights), torch.cat([part for part in gathered if isinstance(part, Tensor)])


@pytest.mark.parametrize("heads", [1, 3])
@torch.inference_mode()
def test_attention_equals_that_of_each_head_and_word_plus_a_residual(heads: int) -> None:
    attention, hidden, labels, mask = draw(heads=heads)
    joined, weights = attention(hidden, labels, mask)
    assert joined.shape == (2, 3, 24)
    assert weights.shape == (2, heads, 3, 5)
    for row, column in mask.nonzero().tolist():
        state = hidden[row, column]
        expected_weights, gathered = attend(attention, state, labels, heads=heads)
        assert torch.allclose(weights[row, :, column], expected_weights, rtol=0, atol=1e-12)
        assert torch.allclose(joined[row, column], torch.cat([state, state + gathered]), rtol=0, atol=1e-12)


@torch.inference_mode()
def test_linear_projections_are_the_matrices_of_the_paper() -> None:
    attention, hidden, labels, mask = draw(heads=3, projection="linear")
    query, key, value = (
        projection.get_parameter("weight").T.split(4, dim=1)
        for projection in (attention.query, attention.key, attention.value)
    )
    joined, weights = attention(hidden, labels, mask)
    attended = joined[:, :, 12:] - hidden
    for head in range(3):
        # Cui and Zhang (2019), section 4.2: softmax(Q W_q (K W_k)^T / sqrt(d_h)) V W_v of each head.
        shares = ((hidden @ query[head]) @ (labels @ key[head]).T / math.sqrt(4)).softmax(-1) * mask[:, :, None]
        assert torch.allclose(weights[:, head], shares, rtol=0, atol=1e-12)
        found = attended[:, :, 4 * head : 4 * head + 4]
        assert torch.allclose(found, shares @ (labels @ value[head]), rtol=0, atol=1e-12)
    scorer = LabelScorer(12, projection="linear").double()
    matrices = [projection.get_parameter("weight").T for projection in (scorer.query, scorer.key)]
    scores = (hidden @ matrices[0]) @ (labels @ matrices[1]).T / math.sqrt(12)
    expected = scores.softmax(-1) * mask[:, :, None]
    assert torch.allclose(scorer(hidden, labels, mask).marginals().double(), expected, atol=1e-6)


@torch.inference_mode()
def test_naive_attention_has_neither_projection_nor_scale() -> None:
    attention, hidden, labels, mask = draw(heads=1, projection=None)
    joined, weights = attention(hidden, labels, mask)
    expected = (hidden @ labels.T).softmax(-1) * mask[:, :, None]
    assert torch.allclose(weights[:, 0], expected, rtol=0, atol=1e-12)
    assert torch.allclose(joined[:, :, 12:], hidden + expected @ labels, rtol=0, atol=1e-12)
    assert not list(attention.parameters())


def test_dropout_hides_labels_in_training_but_not_in_the_returned_weights() -> None:
    attention, hidden, labels, mask = draw(heads=1)
    calm, _ = attention(hidden, labels, mask)
    stirred, weights = attention.train()(hidden, labels, mask)
    assert not torch.equal(stirred, calm)
    assert torch.allclose(weights[0].sum(-1), torch.ones(1, 3).double())


@torch.inference_mode()
def test_logits_are_the_raw_scores_of_the_last_attention() -> None:
    torch.manual_seed(0)
    scorer = LabelScorer(12, projection="relu").double()
    _, hidden, labels, mask = draw(heads=1)
    scores = torch.zeros(2, 3, 5)
    for row, column, label in torch.cartesian_prod(torch.arange(2), torch.arange(3), torch.arange(5)).tolist():
        query, key = relu_linear(scorer.query, hidden[row, column]), relu_linear(scorer.key, labels[label])
        scores[row, column, label] = query @ key / math.sqrt(12)
    distribution = scorer(hidden, labels, mask)
    assert torch.allclose(distribution.marginals(), scores.softmax(-1) * mask[:, :, None], atol=1e-6)
    assert torch.equal(distribution.mode(), scores.argmax(-1) * mask)
    assert torch.equal(scorer.train()(hidden, labels, mask).marginals(), distribution.marginals())


def encode(tagger: Any, documents: Documents) -> Batch:
    batch: Batch = tagger.encode([sentence for document in documents for sentence in document])
    return batch


def test_one_naive_layer_equals_a_softmax_whose_weights_are_the_label_embeddings(
    build: Build, documents: Documents, tiny_config: Callable[[str], dict[str, Any]]
) -> None:
    lan = build("bilstm_lan", naive=True, lstm={"hidden": 8, "layers": 1})
    softmax = build("bilstm_softmax", lstm={"hidden": 8}, representation=tiny_config("bilstm_lan")["representation"])
    softmax.representation.load_state_dict(lan.representation.state_dict())
    softmax.lstm.load_state_dict(lan.lstms[0].state_dict())
    with torch.no_grad():
        lan.labels.normal_()
        softmax.output.weight.copy_(lan.labels)
        softmax.output.bias.zero_()
    batch = encode(lan, documents)
    with torch.inference_mode():
        assert float((lan.loss(batch) - softmax.loss(batch)).abs()) == 0.0
        difference = lan.distribution(batch).marginals() - softmax.distribution(batch).marginals()
    assert float(difference.abs().max()) == 0.0
    assert sum(weight.numel() for weight in lan.parameters()) + len(lan.labels) == sum(
        weight.numel() for weight in softmax.parameters()
    )


def second_layer_input(tagger: Any, batch: Batch, record_calls: Recorder) -> Tensor:
    """Return the input of the second layer's LSTM, one row per word."""
    with torch.inference_mode(), record_calls(nn.LSTM) as calls:
        tagger.distribution(batch)
    (packed,) = [arguments[0] for module, arguments in calls if module is tagger.lstms[1].lstm]
    data: Tensor = packed.data
    return data


def test_next_layer_reads_hidden_states_and_attended_labels(
    build: Build, documents: Documents, record_calls: Recorder
) -> None:
    tagger = build("bilstm_lan")
    batch = encode(tagger, documents)
    whole = second_layer_input(tagger, batch, record_calls)
    with torch.no_grad():
        for weight in tagger.attentions[0].value.parameters():
            weight.zero_()
    without = second_layer_input(tagger, batch, record_calls)
    assert whole.shape == (int(batch.lengths.sum()), 32)
    assert torch.equal(whole[:, :16], without[:, :16])
    assert torch.equal(without[:, 16:], without[:, :16])
    assert bool(((whole[:, 16:] - without[:, 16:]).abs().amax(dim=1) > 1e-4).all())


@pytest.mark.slow
def test_next_layer_reads_hidden_states_alone_without_attention(
    build: Build, documents: Documents, record_calls: Recorder
) -> None:
    whole, without = build("bilstm_lan"), build("bilstm_lan", attention=False)
    batch = encode(without, documents)
    without.lstms[0].load_state_dict(whole.lstms[0].state_dict())
    without.representation.load_state_dict(whole.representation.state_dict())
    hidden = second_layer_input(without, batch, record_calls)
    assert torch.equal(hidden, second_layer_input(whole, batch, record_calls)[:, :16])
    assert list(without.attend(batch)) == ["labels_2"]


@torch.inference_mode()
def test_each_layer_attends_to_labels_and_the_last_one_decides(build: Build, documents: Documents) -> None:
    tagger = build("bilstm_lan", lstm={"hidden": 8, "layers": 3})
    batch = encode(tagger, documents)
    found = tagger.attend(batch)
    assert list(found) == ["labels_1", "labels_2", "labels_3"]
    *maps, decided = [entry.weights for entry in found.values()]
    sentences, longest = batch.mask.shape
    assert [layer.shape for layer in maps] == [(sentences, 2, longest, len(tagger.vocabulary.labels))] * 2
    for layer in maps:
        assert torch.allclose(layer.sum(-1), batch.mask[:, None, :].expand(-1, 2, -1).float(), atol=1e-6)
    assert not torch.equal(maps[0], maps[1])
    assert torch.equal(decided[:, 0], tagger.distribution(batch).marginals())


def starts(tagger: Any, batch: Batch, record_calls: Recorder) -> list[Any]:
    """Return the initial states of each layer."""
    with torch.inference_mode(), record_calls(nn.LSTM) as calls:
        tagger.distribution(batch)
    own = {id(layer.lstm) for layer in tagger.lstms}
    return [arguments[1] for module, arguments in calls if id(module) in own]


def test_higher_layers_start_from_the_last_states_of_the_first_only_when_configured(
    build: Build, documents: Documents, record_calls: Recorder
) -> None:
    layers = {"hidden": 8, "layers": 3}
    plain, carried = build("bilstm_lan", lstm=layers), build("bilstm_lan", lstm=layers, carry_state=True)
    batch = encode(plain, documents)
    assert starts(plain, batch, record_calls) == [None, None, None]
    first, second, third = starts(carried, batch, record_calls)
    assert first is None
    assert second is third
    with torch.inference_mode():
        words = carried.representation(batch, None)
        for row, length in enumerate(batch.lengths.tolist()):
            _, last = carried.lstms[0].lstm(words[row : row + 1, :length])
            for state, expected in zip(second, last, strict=True):
                assert torch.allclose(state[:, row], expected[:, 0], atol=1e-6)


@pytest.mark.parametrize(
    "changes", [{"attention": False}, {"naive": True}, {"carry_state": True}, {"projection": "linear"}]
)
def test_every_variant_trains_all_its_weights(build: Build, documents: Documents, changes: dict[str, Any]) -> None:
    tagger = build("bilstm_lan", **changes).train()
    tagger.loss(encode(tagger, documents)).backward()
    without = [name for name, weight in tagger.named_parameters() if weight.grad is None or not weight.grad.any()]
    assert without == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("units", "layers", "heads", "millions"),
    [(400, 2, 5, 8.06), (400, 3, 5, 10.15), (400, 4, 5, 12.23), (600, 3, 5, 16.48)],
)
def test_size_equals_that_of_table_2_in_the_paper(units: int, layers: int, heads: int, millions: float) -> None:
    kinds = [f"K{number}" for number in range(11)]
    vocabulary = Vocabulary(words=("a",), characters=("a",), labels=BIOES.label_set(kinds))
    assert len(vocabulary.labels) == 45  # as many as the parts of speech of the WSJ
    config = {
        "representation": {"word_dimension": 100, "characters": {"kind": "lstm"}},
        "lstm": {"hidden": units // 2, "layers": layers},
        "heads": heads,
    }
    tagger = build_tagger("bilstm_lan", config, vocabulary)
    own = count(weight for name, weight in tagger.named_parameters() if not name.startswith("representation."))
    # The paper's model has in addition a dummy label and, never read, the value projection of the last layer.
    dead = units + units * (units + 1)
    embeddings = 4.915e6
    assert round((embeddings + own + dead) / 1e6, 2) == millions


def count(weights: Iterable[Tensor]) -> int:
    return sum(weight.numel() for weight in weights)


@pytest.mark.parametrize("heads", [3, 32])
def test_heads_that_do_not_divide_the_width_are_rejected(build: Build, heads: int) -> None:
    with pytest.raises(ConfigError, match=r"heads: .*expected a divisor of 2 \* lstm.hidden \(16\), got"):
        build("bilstm_lan", heads=heads)
