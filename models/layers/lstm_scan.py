"""One bidirectional LSTM layer on a CPU, without gradient, over products computed once for each distinct input.

An LSTM multiplies each input by a matrix that does not depend on the words around it. Where inputs repeat, as the
vectors of words do, that product is computed once for each distinct input; a step of the scan looks it up and adds the
product of the states of all sentences that have not ended.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

DIRECTIONS = ("l0", "l0_reverse")

# Fewer sentences are as fast in PyTorch's own loop, whose steps cost less than a dozen calls from Python.
_FEWEST_SENTENCES = 8


def can_scan(lstm: nn.LSTM, inputs: Tensor) -> bool:
    """Return whether a scan applies and pays: one layer, many sentences, on a CPU, without gradient.

    The first two dimensions of the inputs are B and T.
    """
    is_one_layer = lstm.bidirectional and lstm.num_layers == 1
    many = inputs.shape[0] >= _FEWEST_SENTENCES
    return is_one_layer and many and inputs.device.type == "cpu" and not torch.is_grad_enabled()


def project(lstm: nn.LSTM, inputs: Tensor) -> tuple[Tensor, ...]:
    """Multiply inputs ``(R, D)`` by the input weights; return ``(R, 4H)`` for each direction, biases included."""
    return tuple(
        nn.functional.linear(
            inputs,
            lstm.get_parameter(f"weight_ih_{name}"),
            lstm.get_parameter(f"bias_ih_{name}") + lstm.get_parameter(f"bias_hh_{name}"),
        )
        for name in DIRECTIONS
    )


def scan(lstm: nn.LSTM, projected: Sequence[Tensor], index: Tensor, lengths: Tensor) -> Tensor:
    """Return the states of padded sentences, shape ``(B, T, 2H)``, zeros where padded.

    Args:
        projected: the products of the inputs, as ``project`` returns them.
        index: the row of each word among the inputs, shape ``(B, T)``, int64.
        lengths: shape ``(B,)``, int64; every sentence has a word.
    """
    sentences, width = index.shape
    cells, mirrored, sizes = _by_step(lengths, width)
    size = lstm.hidden_size
    states = projected[0].new_zeros(sentences * width, 2 * size)
    for number, (name, places) in enumerate(zip(DIRECTIONS, (cells, mirrored), strict=True)):
        rows = index.flatten()[places].split(sizes)
        found = _scan_direction(projected[number], lstm.get_parameter(f"weight_hh_{name}"), rows)
        states[:, number * size : (number + 1) * size].index_copy_(0, places, found)
    return states.view(sentences, width, 2 * size)


def _by_step(lengths: Tensor, width: int) -> tuple[Tensor, Tensor, list[int]]:
    """Order words by step, and within a step by length of their sentence, longest first.

    Return the cells of the words among all ``B * T``, counting steps from the start of each sentence, the cells
    counting from its end, and the number of sentences at each step.
    """
    ordered, sentences = lengths.sort(descending=True, stable=True)
    steps = torch.arange(width)[:, None]
    inside = steps < ordered
    firsts = sentences * width
    sizes = [size for size in inside.sum(dim=1).tolist() if size]
    return (firsts + steps)[inside], (firsts + ordered - 1 - steps)[inside], sizes


def _scan_direction(projected: Tensor, weight: Tensor, steps: Sequence[Tensor]) -> Tensor:
    """Return the states of all words by step, shape ``(N, H)``; the steps hold the rows of their words."""
    size = weight.shape[1]
    transposed = weight.T.to(projected.dtype)
    hidden = cell = projected.new_zeros(len(steps[0]), size)
    states = []
    for rows in steps:
        gates = projected.index_select(0, rows)
        active = len(gates)
        gates.addmm_(hidden[:active], transposed)
        gates[:, : 2 * size].sigmoid_()
        input_gate, forget_gate, candidate, output_gate = gates.chunk(4, dim=1)
        cell = (input_gate * candidate.tanh_()).addcmul_(forget_gate, cell[:active])
        hidden = cell.tanh().mul_(output_gate.sigmoid_())
        states.append(hidden)
    return torch.cat(states)
