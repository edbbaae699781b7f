"""The words of several sentences as rows without padding, in the order in which packed LSTMs read them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from concord.models.layers.lstm import can_read_sequence, read_sequence


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
        sizes = np.asarray(lengths)
        self.lengths = list(lengths)
        self.longest = int(sizes[0])
        self.sentences = len(sizes)
        steps = np.searchsorted(-sizes, -np.arange(self.longest), side="left")  # sentences that have a word there
        first_rows, first_words = np.cumsum(steps) - steps, np.cumsum(sizes) - sizes
        place = np.repeat(np.arange(self.longest), steps)
        sentence = np.arange(sizes.sum()) - first_rows[place]
        self.source: NDArray[np.int64] = first_words[sentence] + place
        self.row = np.empty_like(self.source)
        self.row[self.source] = np.arange(len(self.source))
        self.cell = sentence * self.longest + place
        self._device_cell = torch.from_numpy(self.cell).to(device)
        self._batch_sizes = torch.from_numpy(steps)

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
