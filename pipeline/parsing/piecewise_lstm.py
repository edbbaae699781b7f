"""One bidirectional LSTM over long sequences on a CPU, without gradient: pieces of them are read side by side.

An LSTM forgets. A piece is read from some steps before its start, which brings the LSTM into the state that reading the
whole sequence would. Where the piece before ends in another state, the piece is read again from there, so that the
result is that of the whole sequence. oneDNN, which compiles code for each shape, reads a few steps of as many pieces as
there are lanes; a lane reads one piece after the other.
"""

from collections.abc import Sequence
from heapq import heapreplace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from concord.models.layers.lstm import ordered_weights, read_sequence, read_steps

_LANES = 16
# Steps that are read at once; those of a piece and of a warm-up are multiples.
_STEPS = 50
# Steps of a single sequence that are sooner read at once.
_SHORT = 8 * _STEPS
_PIECE = 64 * _STEPS
# How far states may differ and count as equal, for cells in relation to their size; rounding makes a tenth of it.
_TOLERANCE = 1e-5


class Pieces:
    """The N steps of several sequences, which are cut into R pieces.

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
        self.starts = firsts[sequence] + number * piece
        self.lengths = np.minimum(piece, sizes[sequence] - number * piece)
        self.later = np.flatnonzero(number > 0)
        """The pieces that do not start a sequence."""
        steps = np.arange(sizes.sum())
        mirrored = np.repeat(2 * firsts + sizes - 1, sizes) - steps
        self.orders = np.append(np.stack([steps, mirrored]), [[len(steps)]] * 2, axis=1)
        """The order of the steps from the start of each sequence, and from its end; then N. Shape ``(2, N + 1)``."""


class PiecewiseLSTM:
    """An LSTM that reads pieces of sequences.

    Args:
        lstm: of one layer and two directions, with biases.
        warm_up: steps that are read before a piece, in each direction; no more than those of a piece.
    """

    def __init__(self, lstm: nn.LSTM, *, warm_up: tuple[int, int]) -> None:
        self._lstm = lstm
        self._warm_up = warm_up

    def run(self, inputs: Tensor, pieces: Pieces) -> Tensor:
        """Return the states at each step, shape ``(N, 2H)``, for inputs of shape ``(N, D)``."""
        if len(pieces.lengths) == 1 and len(inputs) <= _SHORT:
            return read_sequence(self._lstm, inputs)
        found = inputs.new_empty(len(inputs) + 1, 2 * self._lstm.hidden_size)  # the last row is for no step
        for warm_up, order, weights, own in zip(
            self._warm_up, pieces.orders, ordered_weights(self._lstm), found.chunk(2, 1), strict=True
        ):
            _Direction(inputs, order, weights, own).read_pieces(pieces, warm_up)
        return found[:-1]


class _Direction:
    """Inputs ``(N, D)``, the order in which they are read, and the states that are found, ``(N + 1, H)``."""

    def __init__(self, inputs: Tensor, order: NDArray[np.int64], weights: list[Tensor], found: Tensor) -> None:
        self._inputs = inputs
        self._order = order
        self._weights = weights
        self._found = found

    def read_pieces(self, pieces: Pieces, warm_up: int) -> None:
        """Read pieces until each starts in the state in which the one before it ends."""
        start = self._found.new_zeros(2, len(pieces.lengths), self._found.shape[1])
        later = pieces.later
        if not len(later):
            self._read(pieces.starts, pieces.lengths, start)
            return
        if warm_up:
            start[:, later] = self._read(pieces.starts[later] - warm_up, np.full(len(later), warm_up), start[:, later])
        end, rows = start.clone(), np.arange(len(pieces.lengths))
        while len(rows):
            end[:, rows] = self._read(pieces.starts[rows], pieces.lengths[rows], start[:, rows])
            rows = later[_differing(start[:, later], end[:, later - 1])]
            start[:, rows] = end[:, rows - 1]

    def _read(self, starts: NDArray[np.int64], lengths: NDArray[np.int64], states: Tensor) -> Tensor:
        """Read stretches from the hidden and cell states before them, ``(2, stretches, H)``.

        Return the states after them, which mean nothing for a length that is not a multiple of ``_STEPS``.
        """
        stretches, firsts = _schedule(lengths)
        steps, nowhere = np.arange(_STEPS)[:, None], len(self._inputs)
        starts, lengths = np.append(starts, 0), np.append(lengths, 0)  # of lanes that have none
        hidden, cell = nn.functional.pad(states, (0, 0, 0, 1))
        for numbers, first in zip(stretches, firsts, strict=True):
            places = np.where(first + steps < lengths[numbers], starts[numbers] + first + steps, nowhere)
            cells, lanes = torch.from_numpy(self._order[places.reshape(-1)]), torch.from_numpy(numbers)
            inputs = self._inputs.index_select(0, cells.clamp(max=nowhere - 1)).view(_STEPS, len(lanes), -1)
            before = (kind.index_select(0, lanes)[None] for kind in (hidden, cell))
            found, *after = read_steps(inputs, self._weights, *before)
            self._found.index_copy_(0, cells, found.flatten(0, 1))
            for kind, values in zip((hidden, cell), after, strict=True):
                kind.index_copy_(0, lanes, values[0])
        return torch.stack([hidden, cell])[:, :-1]


def _schedule(lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return which stretch each lane reads in each turn, and from which of its steps; both ``(turns, lanes)``.

    The number of a lane that has nothing left to read is that of the stretches.
    """
    turns = -(-lengths // _STEPS)
    ends = [(0, lane) for lane in range(min(_LANES, -(-turns.sum() // turns.max())))]
    reads = []
    for number in np.argsort(-lengths, kind="stable").tolist():
        first, lane = ends[0]
        heapreplace(ends, (first + int(turns[number]), lane))
        reads.append((number, lane, first))
    stretches = np.full((max(ends)[0], len(ends)), len(lengths))
    firsts = np.zeros_like(stretches)
    for number, lane, first in reads:
        own = slice(first, first + turns[number]), lane
        stretches[own], firsts[own] = number, np.arange(turns[number]) * _STEPS
    return stretches, firsts


def _differing(start: Tensor, end: Tensor) -> NDArray[np.bool_]:
    """Return which pieces do not start in the states in which the piece before them ends, both ``(2, pieces, H)``."""
    difference = (start - end).abs()
    difference[1] /= end[1].abs().clamp(min=1)
    wrong: NDArray[np.bool_] = (difference > _TOLERANCE).any(dim=2).any(dim=0).numpy()
    return wrong
