"""One bidirectional LSTM over long sequences on a CPU, without gradient: pieces of them are read side by side.

An LSTM forgets. A piece is read from some steps before its start, which brings the LSTM into the state that reading the
whole sequence would. Where the piece before ends in another state, the piece is read again from there, so that the
result is that of the whole sequence.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from concord.models.layers.one_sequence import can_read_sequence, read_sequence

_PIECE = 1_600
# Inputs that are multiplied at once; their products stay in the processor's cache.
_INPUTS_AT_ONCE = 1_000
# So many sequences of one piece each are read one by one: a step of oneDNN costs a fifth of one from Python.
_FEW = 4
# How far states may differ and count as equal, for cells in relation to their size; rounding makes a tenth of it.
_TOLERANCE = 1e-5
_DIRECTIONS = ("l0", "l0_reverse")


class Pieces:
    """The order of N steps of several sequences that are cut into R pieces, the longest first.

    Args:
        lengths: steps of each sequence, at least one.
        piece: the most steps of a piece.
    """

    def __init__(self, lengths: Sequence[int], *, piece: int = _PIECE) -> None:
        sizes = np.asarray(lengths)
        counts = -(-sizes // piece)
        sequence = np.repeat(np.arange(len(sizes)), counts)
        number = np.arange(len(sequence)) - np.repeat(np.cumsum(counts) - counts, counts)
        firsts = np.cumsum(sizes) - sizes
        pieces = np.minimum(piece, sizes[sequence] - number * piece)
        order = np.argsort(-pieces, kind="stable")
        row = np.empty_like(order)
        row[order] = np.arange(len(order))
        later = np.flatnonzero(number > 0)
        later = later[np.argsort(row[later])]
        self.sequences = list(lengths)
        self.are_few = len(sizes) <= _FEW and not later.size
        """Whether reading whole sequences one after the other is faster."""
        self.steps = int(sizes.sum())
        self.starts = (firsts[sequence] + number * piece)[order]
        self.lengths = pieces[order]
        self.later: NDArray[np.int64] = row[later]
        """Rows of pieces that do not start a sequence, in ascending order."""
        self.before: NDArray[np.int64] = row[later - 1]
        """For each of them, the row of the piece before it."""
        self._mirrored = np.repeat(2 * firsts + sizes - 1, sizes) - np.arange(self.steps)

    def by_step(self, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> tuple[list[int], Tensor]:
        """Return how many of some stretches, the longest first, have each step, and where it lies for each of them.

        The places have shape ``(2, steps of all stretches)``; the second row counts from the end of each sequence.
        """
        sizes = np.searchsorted(-lengths, -np.arange(lengths[0]), side="left")
        step = np.repeat(np.arange(len(sizes)), sizes)
        stretch = np.arange(len(step)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        places = starts[stretch] + step
        return sizes.tolist(), torch.from_numpy(np.stack([places, self._mirrored[places]]))


class PiecewiseLSTM:
    """The weights of an LSTM, in the order in which ``run`` reads them.

    Args:
        lstm: of one layer and two directions, with biases.
        warm_up: steps that are read before a piece, in each direction; not more for the first than for the second.
    """

    def __init__(self, lstm: nn.LSTM, *, warm_up: tuple[int, int]) -> None:
        self._lstm = lstm
        self._size = size = lstm.hidden_size
        self._warm_up = warm_up
        # Gates that are sigmoids first, so that one call computes them.
        order = torch.cat([torch.arange(2 * size), torch.arange(3 * size, 4 * size), torch.arange(2 * size, 3 * size)])
        ordered = [
            [lstm.get_parameter(f"{kind}_{name}").detach()[order] for name in _DIRECTIONS]
            for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        ]
        inputs, recurrent, bias, other_bias = (torch.stack(weights) for weights in ordered)
        self._input_weight = inputs.transpose(1, 2).contiguous()
        self._recurrent_weight = recurrent.transpose(1, 2).contiguous()
        self._bias = (bias + other_bias)[:, None]

    def run(self, inputs: Tensor, pieces: Pieces) -> Tensor:
        """Return the states at each step, shape ``(N, 2H)``, for inputs of shape ``(N, D)``."""
        if pieces.are_few and can_read_sequence(self._lstm, inputs):
            return torch.cat([read_sequence(self._lstm, part) for part in inputs.split(pieces.sequences)])
        hidden, cell = inputs.new_zeros(2, 2, len(pieces.lengths), self._size)
        later, before = torch.from_numpy(pieces.later), torch.from_numpy(pieces.before)
        if len(later):
            hidden[:, later], cell[:, later] = self._warmed_up(inputs, pieces)
        start = hidden, cell.clone()
        sizes, places = pieces.by_step(pieces.starts, pieces.lengths)
        states, hidden = self._read(inputs, places, sizes, hidden, cell)
        found = torch.cat(
            [rows.index_select(0, _inverse(place)) for rows, place in zip(states, places, strict=True)], 1
        )
        while len(wrong := _differing(start, (hidden, cell), later, before)):
            again, sources = later[wrong], before[wrong]
            start[0][:, again], start[1][:, again] = hidden[:, sources], cell[:, sources]
            sizes, places = pieces.by_step(pieces.starts[again.numpy()], pieces.lengths[again.numpy()])
            last = start[1][:, again]
            states, hidden[:, again] = self._read(inputs, places, sizes, start[0][:, again], last)
            cell[:, again] = last
            for direction, columns in enumerate(found.split(self._size, 1)):
                columns[places[direction]] = states[direction]
        return found

    def _warmed_up(self, inputs: Tensor, pieces: Pieces) -> tuple[Tensor, Tensor]:
        """Return the states before each later piece after reading some steps before it; both ``(2, later, H)``."""
        near, far = self._warm_up
        starts = pieces.starts[pieces.later]
        hidden, cell = inputs.new_zeros(2, 2, len(starts), self._size)
        for steps, back, first in ((far - near, far, 1), (near, near, 0)):
            if steps:
                sizes, places = pieces.by_step(starts - back, np.full(len(starts), steps))
                _, hidden[first:] = self._read(inputs, places[first:], sizes, hidden[first:], cell[first:])
        return hidden, cell

    def _read(
        self, inputs: Tensor, places: Tensor, sizes: Sequence[int], hidden: Tensor, cell: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Read stretches of inputs, the longest first, in both directions or in the last alone.

        Args:
            places: of the inputs by step; shape ``(directions, steps of all stretches)``.
            sizes: how many stretches have each step.
            hidden, cell: the states before, shape ``(directions, stretches, H)``; ``cell`` becomes that at the end.

        Returns:
            the states by step, shape ``(directions, steps of all stretches, H)``, and those at the end of each stretch.
        """
        directions, size = len(places), self._size
        input_weight, bias = self._input_weight[-directions:], self._bias[-directions:]
        recurrent = self._recurrent_weight[-directions:]
        states = inputs.new_empty(directions, places.shape[1], size)
        last, end = hidden.clone(), 0
        for part in _parts(sizes):
            first, end = end, end + sum(part)
            rows = inputs.index_select(0, places[:, first:end].flatten()).view(directions, end - first, -1)
            products = torch.baddbmm(bias, rows, input_weight)
            for count, gates, state in zip(
                part, products.split(part, 1), states[:, first:end].split(part, 1), strict=True
            ):
                if count < hidden.shape[1]:
                    last[:, count : hidden.shape[1]] = hidden[:, count:]
                    hidden = hidden[:, :count]
                gates.baddbmm_(hidden, recurrent)
                gates[..., : 3 * size].sigmoid_()
                input_gate, forget_gate, output_gate, candidate = gates.split(size, 2)
                active = cell[:, :count].mul_(forget_gate).addcmul_(input_gate, candidate.tanh_())
                hidden = torch.mul(active.tanh(), output_gate, out=state)
        last[:, : hidden.shape[1]] = hidden
        return states, last


def _parts(sizes: Sequence[int]) -> list[list[int]]:
    """Split the sizes of steps into parts of about ``_INPUTS_AT_ONCE`` inputs."""
    ends = np.cumsum(sizes)
    cuts = np.flatnonzero(np.diff(ends // _INPUTS_AT_ONCE)) + 1
    return [part.tolist() for part in np.split(np.asarray(sizes), cuts)]


def _inverse(places: Tensor) -> Tensor:
    inverse = torch.empty_like(places)
    inverse[places] = torch.arange(len(places))
    return inverse


def _differing(start: tuple[Tensor, Tensor], end: tuple[Tensor, Tensor], later: Tensor, before: Tensor) -> Tensor:
    """Return which later pieces do not start in the states in which the piece before them ends."""
    if not len(later):
        return later
    hidden = (start[0][:, later] - end[0][:, before]).abs()
    cell = (start[1][:, later] - end[1][:, before]).abs() / end[1][:, before].abs().clamp(min=1)
    return (torch.maximum(hidden, cell).amax((0, 2)) > _TOLERANCE).nonzero()[:, 0]
