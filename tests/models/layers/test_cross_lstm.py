"""Stacked LSTMs: what each direction sees, sizes, and masks shared by a whole batch."""

from typing import TypeVar

import pytest
import torch
from torch import Tensor, nn

from concord.models.layers.bilstm import CrossLstm, IndependentLstm, StackedLstmConfig, draw_mask

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


@both_kinds
def test_every_weight_gets_a_gradient_through_the_masks(kind: type[Stack]) -> None:
    stack = make_stack(kind, rate=0.1)
    stack(make_inputs(), LENGTHS).sum().backward()
    assert all(weight.grad is not None and bool(weight.grad.any()) for weight in stack.parameters())


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
