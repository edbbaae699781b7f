"""The words of several sentences as rows without padding, in the order in which packed LSTMs read them.

One bidirectional LSTM over long sequences on a CPU, without gradient: pieces of them are read side by side.

An LSTM forgets. A piece is read from some steps before its start, which brings the LSTM into the state that reading the
whole sequence would. Where the piece before ends in another state, the piece is read again from there, so that the
result is that of the whole sequence. oneDNN, which compiles code for each shape, reads a few steps of as many pieces as
there are lanes; a lane reads one piece after the other.
"""

from collections.abc import Iterator, Sequence
from heapq import heapreplace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from concord.models.data.batch import by_step
from concord.models.layers.lstm import can_read_sequence, ordered_weights, read_sequence, read_steps


class PackedSentences:
    """The order of N words of B sentences, the longest first: all first words, then all second words, and so on.

    Args:
        lengths: words of each sentence, at least one, in descending order.

    Attributes:
        lengths: as given.
        source: which word each row holds, counted through the sentences one after the other; shape ``(N,)``.
        row: the row of each word, the inverse of ``source``; shape ``(N,)``.
        cell: where each row lies in ``B`` times ``longest`` cells, sentence by sentence with padding; shape ``(N,)``.
    """

    def __init__(self, lengths: Sequence[int], *, device: torch.device) -> None:
        self.lengths = list(lengths)
        self.longest = lengths[0]
        self.sentences = len(lengths)
        (cells, _), steps = by_step(torch.tensor(lengths), self.longest)
        self.cell: NDArray[np.int64] = cells.numpy()
        sentence, place = np.divmod(self.cell, self.longest)
        self.source = (np.cumsum(lengths) - lengths)[sentence] + place
        self.row = np.argsort(self.source)
        self._device_cell = cells.to(device)
        self._batch_sizes = torch.tensor(steps)

    def run(self, lstm: Any, rows: Tensor, first_hidden: Tensor, first_cell: Tensor) -> Tensor:
        """Run a highway LSTM of Stanza over rows of inputs.

        Args:
            rows: shape ``(N, inputs)``.
            first_hidden, first_cell: of each layer and direction; shape ``(layers * directions, 1, hidden)``.

        Returns:
            shape ``(N, directions * hidden)``.
        """
        if self.sentences == 1 and all(can_read_sequence(layer.lstm, rows) for layer in lstm.lstm):
            return _read_sentence(lstm, rows, first_hidden, first_cell)
        states = tuple(state.expand(-1, self.sentences, -1).contiguous() for state in (first_hidden, first_cell))
        packed, _ = lstm(PackedSequence(rows, self._batch_sizes), self.lengths, hx=states)
        output: Tensor = packed.data
        return output

    def pad(self, rows: Tensor) -> Tensor:
        """Return rows of shape ``(N, D)`` by sentence, with zeros as padding: shape ``(B, longest, D)``."""
        cells = rows.new_zeros(self.sentences * self.longest, rows.shape[1])
        cells[self._device_cell] = rows
        return cells.view(self.sentences, self.longest, -1)

    def rows_of(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows of other words of each row's sentence, given by their places in it; both ``(N,)``."""
        row_of_cell = np.empty(self.sentences * self.longest, dtype=np.int64)
        row_of_cell[self.cell] = np.arange(len(self.cell))
        rows: NDArray[np.int64] = row_of_cell[self.cell // self.longest * self.longest + places]
        return rows


def _read_sentence(lstm: Any, rows: Tensor, first_hidden: Tensor, first_cell: Tensor) -> Tensor:
    """Run a highway LSTM over one sentence: an LSTM, to whose states each layer adds a gated map of its inputs."""
    directions = lstm.num_directions
    for number, layer in enumerate(lstm.lstm):
        own = slice(number * directions, (number + 1) * directions)
        states = read_sequence(layer.lstm, rows, state=(first_hidden[own], first_cell[own]))
        carried = lstm.highway[number](rows)
        if lstm.highway_func is not None:
            carried = lstm.highway_func(carried)
        rows = states + torch.sigmoid(lstm.gate[number](rows)) * carried
    return rows


# Small batches win on a CPU (caches, padding), large ones on a GPU.
BATCH_WORDS = {"cpu": 2_000, "cuda": 8_000}
# Pairs of words, by sentence and with padding, per word of a batch: the parser scores each pair.
_PAIRS_PER_WORD = 100


def length_sorted(sentences: Sequence[Sequence[str]], *, batch_words: int) -> Iterator[list[int]]:
    """Split sentences, the shortest first, into batches limited in words and in pairs of words."""
    batch: list[int] = []
    words = 0
    for index in sorted(range(len(sentences)), key=lambda index: len(sentences[index])):
        length = len(sentences[index])
        pairs = (len(batch) + 1) * length**2
        if batch and (words + length > batch_words or pairs > batch_words * _PAIRS_PER_WORD):
            yield batch
            batch, words = [], 0
        batch.append(index)
        words += length
    if batch:
        yield batch


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
