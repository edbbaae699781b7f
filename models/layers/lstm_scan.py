"""LSTM layers without gradient on a CPU, step by step, over what they compute of each distinct input beforehand.

An LSTM multiplies each input by a matrix that does not depend on the words around it. Where inputs repeat, as the
vectors of words do, that product is computed once for each distinct input; a step of the scan looks it up and adds the
product of the states of all sentences that have not ended.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True, slots=True)
class StepOrder:
    """The N words of a padded batch by step, and within a step by length of their sentence, longest first."""

    sizes: list[int]
    """Number of sentences with a word at each step, never rising."""
    cells: Tensor
    """Cell of each word among all ``B * T``, shape ``(N,)``, int64."""
    mirrored: Tensor
    """The word as far from the end of its sentence as this one is from its start, shape ``(N,)``, int64."""
    sentences: Tensor
    """Number of each sentence, longest first, shape ``(B,)``, int64."""
    last: Tensor
    """The last word of each sentence, in the order of the sentences, shape ``(B,)``, int64."""

    @classmethod
    def of(cls, lengths: Tensor, width: int) -> "StepOrder":
        """Order the words of sentences that are padded to ``width``; every sentence has a word."""
        ordered, sentences = lengths.sort(descending=True, stable=True)
        steps = torch.arange(width)[:, None]
        inside = steps < ordered
        places = (inside.flatten().cumsum(0) - 1).view_as(inside)
        return cls(
            sizes=[size for size in inside.sum(dim=1).tolist() if size],
            cells=(sentences * width + steps)[inside],
            mirrored=places.gather(0, (ordered - 1 - steps).clamp(min=0))[inside],
            sentences=sentences,
            last=places.gather(0, ordered[None] - 1)[0][sentences.argsort()],
        )


def can_scan(lstm: nn.LSTM, inputs: Tensor) -> bool:
    """Return whether the functions below apply: on a CPU, without gradient and without dropout between layers."""
    drops = lstm.training and lstm.dropout > 0
    return inputs.device.type == "cpu" and not drops and not torch.is_grad_enabled()


def project(lstm: nn.LSTM, inputs: Tensor, *, layer: int = 0) -> tuple[Tensor, ...]:
    """Multiply inputs ``(R, D)`` by a layer's input weights; return ``(R, 4H)`` for each direction, with biases."""
    return tuple(
        nn.functional.linear(
            inputs,
            lstm.get_parameter(f"weight_ih_{name}"),
            lstm.get_parameter(f"bias_ih_{name}") + lstm.get_parameter(f"bias_hh_{name}"),
        )
        for name in _directions(lstm, layer)
    )


def scan(
    lstm: nn.LSTM,
    projected: tuple[Tensor, ...],
    rows: Tensor,
    order: StepOrder,
    *,
    state: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Run all layers; return the states of the words, ``(N, directions * H)``, and the last states of each sentence.

    Args:
        projected: the inputs of the first layer, as ``project`` returns them.
        rows: row of each word among them, in the order of ``order``, shape ``(N,)``, int64.
        state: initial states of each layer and direction, ``(layers * directions, B, H)``; zeros if None.
    """
    hidden = projected[0]
    last: list[tuple[Tensor, Tensor]] = []
    for layer in range(lstm.num_layers):
        if layer:
            projected, rows = project(lstm, hidden, layer=layer), torch.arange(len(hidden))
        outputs = []
        for number, name in enumerate(_directions(lstm, layer)):
            initial = None if state is None else tuple(part[len(last)][order.sentences] for part in state)
            weight = lstm.get_parameter(f"weight_hh_{name}")
            # What reads backward takes the words of each sentence from its end, and returns them so.
            own = rows[order.mirrored] if number else rows
            states, cells = _scan_direction(projected[number], weight, own.split(order.sizes), initial)
            last.append((states[order.last], cells[order.sentences.argsort()]))
            outputs.append(states[order.mirrored] if number else states)
        hidden = torch.cat(outputs, dim=1)
    return hidden, (torch.stack([states for states, _ in last]), torch.stack([cells for _, cells in last]))


def _directions(lstm: nn.LSTM, layer: int) -> list[str]:
    """Return the ends of the names of a layer's parameters."""
    return [f"l{layer}", f"l{layer}_reverse"] if lstm.bidirectional else [f"l{layer}"]


def _scan_direction(
    projected: Tensor, weight: Tensor, steps: tuple[Tensor, ...], initial: tuple[Tensor, ...] | None
) -> tuple[Tensor, Tensor]:
    """Return the states of all words, ``(N, H)``, and the last cells of the sentences, longest first, ``(B, H)``."""
    width = weight.shape[1]
    transposed = weight.T.to(projected.dtype)
    zeros = projected.new_zeros(len(steps[0]), width)
    hidden, cell = (zeros, zeros) if initial is None else (part.to(projected.dtype) for part in initial)
    states, ended = [], []
    for rows in steps:
        gates = projected.index_select(0, rows)
        sentences = len(gates)
        if sentences < len(hidden):
            ended.append(cell[sentences:])
            hidden, cell = hidden[:sentences], cell[:sentences]
        gates.addmm_(hidden, transposed)
        gates[:, : 2 * width].sigmoid_()
        input_gate, forget_gate, candidate, output_gate = gates.chunk(4, dim=1)
        cell = (input_gate * candidate.tanh_()).addcmul_(forget_gate, cell)
        hidden = cell.tanh().mul_(output_gate.sigmoid_())
        states.append(hidden)
    return torch.cat(states), torch.cat([cell, *ended[::-1]])
