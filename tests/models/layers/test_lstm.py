"""LSTMs: stacks and what crossing contexts can learn; those without gradient equal those of PyTorch."""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn

from concord.models.data.sentence import Sentence
from concord.models.data.vocabulary import Vocabulary
from concord.models.layers import lstm as lstm_module
from concord.models.layers.lstm import (
    BiLstm,
    BiLstmConfig,
    CrossLstm,
    IndependentLstm,
    StackedLstmConfig,
    can_read_sequence,
    can_scan,
    draw_mask,
    project,
    read_sequence,
    read_words,
    run_lstm,
    scan,
)
from concord.models.taggers.base import Tagger

LENGTHS = torch.tensor([3, 8, 1, 6])
INPUTS, HIDDEN, RATE = 5, 4, 0.35
Stack = CrossLstm | IndependentLstm
AnyStack = TypeVar("AnyStack", bound=Stack)
both_kinds = pytest.mark.parametrize("kind", [CrossLstm, IndependentLstm])


def make_stack(kind: type[AnyStack], *, rate: float = RATE) -> AnyStack:
    torch.manual_seed(3)
    stack = kind(StackedLstmConfig(hidden=HIDDEN, layers=2, dropout=rate), INPUTS)
    stack.double()
    return stack


def make_inputs() -> Tensor:
    return torch.randn(4, 8, INPUTS, dtype=torch.float64, generator=torch.Generator().manual_seed(4))


def slow_direction(lstm: nn.LSTM, suffix: str, words: Tensor, masks: dict[str, Tensor]) -> Tensor:
    """Run one direction of one layer step by step with masks on input and state; return shape ``(T, H)``."""
    bias = lstm.get_parameter(f"bias_ih_{suffix}") + lstm.get_parameter(f"bias_hh_{suffix}")
    hidden = cell = torch.zeros(HIDDEN, dtype=words.dtype)
    states = []
    for word in words:
        gates = lstm.get_parameter(f"weight_ih_{suffix}") @ (word * masks[f"weight_ih_{suffix}"]) + bias
        gates = gates + lstm.get_parameter(f"weight_hh_{suffix}") @ (hidden * masks[f"weight_hh_{suffix}"])
        entering, forgetting, candidate, leaving = gates.split(HIDDEN)
        cell = forgetting.sigmoid() * cell + entering.sigmoid() * candidate.tanh()
        hidden = leaving.sigmoid() * cell.tanh()
        states.append(hidden)
    return torch.stack(states)


def draw_masks(lstm: nn.LSTM) -> tuple[dict[str, Tensor], Tensor]:
    """Draw the masks of all cells and of the output for a batch, in the order of the stack."""
    weights = {name: value for name, value in lstm.named_parameters() if name.startswith("weight")}
    masks = {name: draw_mask((value.shape[1],), RATE, like=value) for name, value in weights.items()}
    return masks, draw_mask((HIDDEN * (2 if lstm.bidirectional else 1),), RATE, like=lstm.get_parameter("bias_ih_l0"))


@torch.inference_mode()
def test_cross_stack_equals_masks_on_activations_shared_by_the_batch() -> None:
    stack, inputs = make_stack(CrossLstm), make_inputs()
    torch.manual_seed(9)
    found = stack(inputs, LENGTHS)
    torch.manual_seed(9)
    masks, top = draw_masks(stack.lstm)
    for row, length in enumerate(LENGTHS.tolist()):
        states = inputs[row, :length]
        for layer in range(2):
            ahead = slow_direction(stack.lstm, f"l{layer}", states, masks)
            back = slow_direction(stack.lstm, f"l{layer}_reverse", states.flip(0), masks).flip(0)
            states = torch.cat([ahead, back], dim=1)
        assert torch.allclose(found[row, :length], states * top, rtol=0, atol=1e-12)
        assert not found[row, length:].any()


@torch.inference_mode()
def test_independent_stacks_equal_masks_on_activations_shared_by_the_batch() -> None:
    stack, inputs = make_stack(IndependentLstm), make_inputs()
    torch.manual_seed(9)
    found = stack(inputs, LENGTHS)
    torch.manual_seed(9)
    drawn = [(lstm, *draw_masks(lstm)) for lstm in (stack.rightward, stack.leftward)]
    for row, length in enumerate(LENGTHS.tolist()):
        words = inputs[row, :length]
        ends = []
        for (lstm, masks, top), states in zip(drawn, (words, words.flip(0)), strict=True):
            lower = slow_direction(lstm, "l0", states, masks)
            ends.append(slow_direction(lstm, "l1", lower, masks) * top)
        expected = torch.cat([ends[0], ends[1].flip(0)], dim=1)
        assert torch.allclose(found[row, :length], expected, rtol=0, atol=1e-12)
        assert not found[row, length:].any()


@both_kinds
@torch.inference_mode()
def test_training_draws_new_masks_and_evaluation_uses_none(kind: type[Stack]) -> None:
    stack, inputs = make_stack(kind), make_inputs()
    assert not torch.equal(stack(inputs, LENGTHS), stack(inputs, LENGTHS))
    plain = make_stack(kind, rate=0.0)
    assert torch.equal(stack.eval()(inputs, LENGTHS), plain(inputs, LENGTHS))
    assert torch.equal(plain.eval()(inputs, LENGTHS), plain.train()(inputs, LENGTHS))


def reached(outputs: Tensor, inputs: Tensor, word: int) -> list[bool]:
    """Return which words of the sentence affect some outputs at a word."""
    (gradient,) = torch.autograd.grad(outputs[0, word].sum(), inputs, retain_graph=True)
    return (gradient[0] != 0).any(dim=1).tolist()


def test_independent_directions_see_one_side_and_cross_directions_both() -> None:
    inputs, lengths = make_inputs()[:1, :5].requires_grad_(), torch.tensor([5])
    apart = make_stack(IndependentLstm).eval()(inputs, lengths)
    assert reached(apart[:, :, :HIDDEN], inputs, 2) == [True, True, True, False, False]
    assert reached(apart[:, :, HIDDEN:], inputs, 2) == [False, False, True, True, True]
    crossed = make_stack(CrossLstm).eval()(inputs, lengths)
    for half in (crossed[:, :, :HIDDEN], crossed[:, :, HIDDEN:]):
        assert reached(half, inputs, 2) == [True] * 5


@pytest.mark.parametrize(("kind", "second"), [(IndependentLstm, 160_800), (CrossLstm, 240_800)])
def test_sizes_match_the_paper_with_one_bias_per_cell(kind: type[Stack], second: int) -> None:
    """A cell has one bias in the paper and two, which are added, in PyTorch."""
    named = dict(kind(StackedLstmConfig(), 364).named_parameters())
    sizes = [
        sum(weight.numel() for name, weight in named.items() if f"_l{layer}" in name and "bias_hh" not in name)
        for layer in range(2)
    ]
    assert sizes == [372_000, second]
    assert sum(weight.numel() for name, weight in named.items() if "bias_hh" in name) == 4 * 400


@both_kinds
def test_cells_start_with_an_open_forget_gate(kind: type[Stack]) -> None:
    named = make_stack(kind).named_parameters()
    biases = [value.detach() for name, value in named if name.startswith("bias") or ".bias" in name]
    totals = torch.stack(biases).sum(dim=0).split(HIDDEN)
    assert [total.tolist() for total in totals] == [[0.0] * 4, [4.0] * 4, [0.0] * 4, [0.0] * 4]


PHRASES = [
    Sentence(words=("key", "and", "peele"), labels=("O", "B-ART", "O")),
    Sentence(words=("you", "and", "i"), labels=("O", "B-ART", "O")),
    Sentence(words=("key", "and", "i"), labels=("O", "O", "O")),
    Sentence(words=("you", "and", "peele"), labels=("O", "O", "O")),
]
# The loss at chance level for the middle word, in nats.
CHANCE = math.log(2)

WIDTH = 12
SIZES: dict[str, Any] = {
    "representation": {"word_dimension": 8, "characters": None, "dropout": 0.0},
    "lstm": {"hidden": WIDTH, "dropout": 0.0},
}
Build = Callable[..., Tagger]
slow = pytest.mark.slow


def build_small(build: Build, name: str) -> Tagger:
    return build(name, vocabulary=Vocabulary.from_sentences(PHRASES), **SIZES)


def train(tagger: Tagger, *, steps: int, until: float = 0.0) -> float:
    """Train on the phrases until the loss falls below a bound, and return the last loss."""
    batch, optimizer = tagger.encode(PHRASES), torch.optim.Adam(tagger.train().parameters(), lr=0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = tagger.loss(batch)
        loss.backward()
        optimizer.step()
        if float(loss.detach()) < until:
            break
    tagger.eval()
    return float(loss.detach())


def right_phrases(tagger: Tagger) -> int:
    (predictions,) = tagger.predict_documents([PHRASES])
    return sum(found.labels == gold.labels for found, gold in zip(predictions, PHRASES, strict=True))


@slow
@pytest.mark.parametrize("name", ["cross_bilstm_cnn", "att_bilstm_cnn", "baseline_bilstm_cnn"])
def test_cross_stacks_and_attention_learn_the_exclusive_or(build: Build, name: str) -> None:
    """Two bidirectional layers of torch are a Cross stack, so they must not be used for the Baseline."""
    tagger: Any = build_small(build, name)
    if name == "baseline_bilstm_cnn":
        tagger.lstm = BiLstm(BiLstmConfig(hidden=WIDTH, layers=2, dropout=0.0), 8)
    assert train(tagger, steps=800, until=0.02) < 0.02
    assert right_phrases(tagger) == 4


@slow
@pytest.mark.parametrize(("name", "words"), [("baseline_bilstm_cnn", 3), ("bilstm_softmax", 1)])
def test_independent_stacks_and_one_layer_are_no_better_than_chance(build: Build, name: str, words: int) -> None:
    """The loss is the mean over three words of a phrase, or their sum."""
    tagger = build_small(build, name)
    assert CHANCE - 1e-4 < words * train(tagger, steps=150) < CHANCE + 0.01
    assert right_phrases(tagger) <= 3


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("steps", [1, 2, 31, 64, 65])
def test_states_are_those_of_pytorch(layers: int, bidirectional: bool, steps: int) -> None:
    torch.manual_seed(3)
    lstm = nn.LSTM(9, 16, layers, batch_first=True, bidirectional=bidirectional).eval()
    rows = layers * (1 + bidirectional)
    inputs = torch.randn(steps, 9)
    with torch.inference_mode():
        for state in (None, (torch.randn(rows, 1, 16), torch.randn(rows, 1, 16))):
            found = read_sequence(lstm, inputs, state=state)
            torch.testing.assert_close(found, lstm(inputs[None], state)[0][0], rtol=0, atol=1e-6)


def test_changed_weights_are_ordered_again() -> None:
    torch.manual_seed(3)
    lstm, inputs = nn.LSTM(4, 5, batch_first=True, bidirectional=True).eval(), torch.randn(6, 4)
    with torch.inference_mode():
        before = read_sequence(lstm, inputs)
    with torch.no_grad():
        lstm.get_parameter("weight_hh_l0_reverse").mul_(2)
        lstm.get_parameter("bias_ih_l0").add_(1)
    with torch.inference_mode():
        after = read_sequence(lstm, inputs)
        assert not torch.equal(before, after)
        torch.testing.assert_close(after, lstm(inputs[None])[0][0], rtol=0, atol=1e-6)


def test_only_plain_inference_on_a_cpu_in_float32_is_read() -> None:
    lstm, inputs = nn.LSTM(4, 5, batch_first=True).eval(), torch.randn(6, 4)
    assert not can_read_sequence(lstm, inputs)  # with gradient
    with torch.inference_mode():
        assert can_read_sequence(lstm, inputs)
        assert not can_read_sequence(lstm, inputs.double())
        assert not can_read_sequence(lstm, inputs.to("meta"))
        assert not can_read_sequence(nn.LSTM(4, 5, bias=False).eval(), inputs)
        assert not can_read_sequence(nn.LSTM(4, 5, proj_size=2).eval(), inputs)
        assert not can_read_sequence(nn.GRU(4, 5).eval(), inputs)
        assert not can_read_sequence(nn.LSTM(4, 5).train(), inputs)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert not can_read_sequence(lstm, inputs)


SENTENCES = torch.tensor([3, 7, 1, 7, 4, 2, 2, 5])


def lstm(*, layers: int = 1) -> nn.LSTM:
    torch.manual_seed(3)
    return nn.LSTM(6, 5, layers, batch_first=True, bidirectional=True).double().eval()


@torch.no_grad()
def test_scan_equals_the_lstm_of_pytorch() -> None:
    network, distinct = lstm(), torch.randn(9, 6, dtype=torch.float64)
    for width in (7, 9):
        index = torch.randint(9, (len(SENTENCES), width))
        expected, _ = run_lstm(network, distinct[index], SENTENCES)
        found = scan(network, project(network, distinct), index, SENTENCES)
        assert found.shape == expected.shape
        assert torch.allclose(found, expected, rtol=0, atol=1e-12)


def test_scan_is_for_one_layer_and_many_sentences_without_gradient() -> None:
    inputs = torch.zeros(8, 1, 6, dtype=torch.float64)
    assert not can_scan(lstm(), inputs)
    with torch.inference_mode():
        assert can_scan(lstm(), inputs)
        assert not can_scan(lstm(), inputs[:7])
        assert not can_scan(lstm(layers=2), inputs)
        assert not can_scan(nn.LSTM(6, 5), inputs)


def test_words_are_read_like_their_vectors(
    build: Callable[..., Any], random_documents: Callable[..., Any], monkeypatch: Any
) -> None:
    tagger: Tagger = build("bilstm_crf")
    representation: Any = tagger.get_submodule("representation")
    reader = BiLstm(BiLstmConfig(hidden=4), representation.output_dimension).eval()
    sentences = random_documents(4, documents=1, sentences=12)[0]
    forms = tagger.batch_encoder.encode_forms(sentences, shared=True)
    batch = tagger.encode(sentences, forms=forms)
    expected = reader(representation(batch, None), batch.lengths)
    assert torch.equal(read_words(reader, batch, representation, None), expected)
    scans: list[Tensor] = []

    def spy(*arguments: Any) -> Tensor:
        scans.append(scan(*arguments))
        return scans[-1]

    monkeypatch.setattr(lstm_module, "scan", spy)
    with torch.inference_mode():
        assert torch.allclose(read_words(reader, batch, representation, None), expected, atol=1e-6)
        assert len(scans) == 1
        for sentence, row in zip(sentences, expected, strict=True):
            alone = read_words(reader, tagger.encode([sentence], forms=forms), representation, None)
            assert torch.allclose(alone[0], row[: len(sentence.words)], atol=1e-6)
        features = torch.zeros(*batch.mask.shape, 0)
        assert torch.allclose(read_words(reader, batch, representation, features), expected, atol=1e-6)
    assert len(scans) == 1
    read_words(reader.train(), batch, representation, None)
    assert len(scans) == 1


def test_a_changed_weight_changes_the_next_call(
    build: Callable[..., Any], random_documents: Callable[..., Any]
) -> None:
    tagger: Tagger = build("bilstm_crf")
    documents = random_documents(4, documents=2)
    before = tagger.tabulate(documents)
    with torch.no_grad():
        for weight in tagger.get_submodule("representation").parameters():
            weight.add_(1.0)
    assert not torch.allclose(tagger.tabulate(documents).probability, before.probability)
