"""The bidirectional LSTM, and functions that run any LSTM over padded batches and draw its dropout masks."""

from collections.abc import Mapping
from typing import cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from concord.models.config import Config
from concord.models.data.batch import Batch
from concord.models.layers.lstm_scan import can_scan, project, scan
from concord.models.layers.one_sequence import LstmState, can_read_sequence, read_sequence
from concord.models.words.representation import WordRepresentation


class BiLstmConfig(Config):
    """Sizes of a bidirectional LSTM."""

    hidden: int = Field(default=200, ge=1)
    """Units per direction."""
    layers: int = Field(default=1, ge=1)
    dropout: float = Field(default=0.5, ge=0, lt=1)
    """Dropout between layers and on the output."""


class BiLstm(nn.Module):
    """A stack of bidirectional LSTM layers with dropout on its output (NCRF++; Yang and Zhang, 2018)."""

    def __init__(self, config: BiLstmConfig, input_dimension: int) -> None:
        super().__init__()
        between = config.dropout if config.layers > 1 else 0.0
        self.lstm = nn.LSTM(
            input_dimension, config.hidden, config.layers, batch_first=True, bidirectional=True, dropout=between
        )
        self.dropout = nn.Dropout(config.dropout)
        self.output_dimension = 2 * config.hidden

    def forward(self, inputs: Tensor, lengths: Tensor) -> Tensor:
        """Encode sentences; shape ``(B, T, D)`` to ``(B, T, output_dimension)``, zeros where padded."""
        return cast(Tensor, self.dropout(lstm_states(self.lstm, inputs, lengths)))

    def read(self, inputs: Tensor, lengths: Tensor, *, state: LstmState | None = None) -> tuple[Tensor, LstmState]:
        """Encode sentences from an initial state, zeros if None; also return the last state of each sentence."""
        outputs, last = run_lstm(self.lstm, inputs, lengths, state=state)
        return self.dropout(outputs), last


class NoLstm(nn.Module):
    """Replaces an LSTM that is left out: returns its inputs."""

    def __init__(self, input_dimension: int) -> None:
        super().__init__()
        self.output_dimension = input_dimension

    def forward(self, inputs: Tensor, lengths: Tensor) -> Tensor:
        del lengths
        return inputs


def build_bilstm(config: BiLstmConfig | None, input_dimension: int) -> BiLstm | NoLstm:
    """Build the LSTM, or a ``NoLstm`` if the configuration is None."""
    return NoLstm(input_dimension) if config is None else BiLstm(config, input_dimension)


def read_words(lstm: nn.Module, batch: Batch, representation: WordRepresentation, features: Tensor | None) -> Tensor:
    """Encode sentences of words; shape ``(B, T, output_dimension)``, zeros where padded.

    Equal to encoding their vectors, of which a ``BiLstm`` that can be scanned needs but one for each distinct word.
    """
    if features is None and not lstm.training and isinstance(lstm, BiLstm) and can_scan(lstm.lstm, batch.mask):
        projected = batch.forms.once(lstm, lambda: project(lstm.lstm, representation.of_forms(batch.forms)))
        return scan(lstm.lstm, projected, batch.form_index, batch.lengths)
    return cast(Tensor, lstm(representation(batch, features), batch.lengths))


def lstm_states(lstm: nn.LSTM, inputs: Tensor, lengths: Tensor) -> Tensor:
    """Return the outputs of ``run_lstm``, sooner for one sentence without gradient."""
    if len(lengths) == 1 and can_read_sequence(lstm, inputs):
        words = int(lengths[0])
        states = read_sequence(lstm, inputs[0, :words])
        return nn.functional.pad(states, (0, 0, 0, inputs.shape[1] - words))[None]
    return run_lstm(lstm, inputs, lengths)[0]


def run_lstm(
    lstm: nn.LSTM,
    inputs: Tensor,
    lengths: Tensor,
    *,
    state: LstmState | None = None,
    weights: Mapping[str, Tensor] | None = None,
) -> tuple[Tensor, LstmState]:
    """Run a batch-first LSTM over padded sentences; return its outputs, zero where padded, and the last states.

    It starts from ``state``, zeros if None; ``weights`` replace the LSTM's parameters of these names.
    """
    # Sentences that are in order need no copy in order, which on a GPU would want an index of its own.
    in_order = bool((lengths[1:] <= lengths[:-1]).all())
    packed = pack_padded_sequence(inputs, lengths, batch_first=True, enforce_sorted=in_order)
    outputs, last = functional_call(lstm, dict(weights), (packed, state)) if weights else lstm(packed, state)
    padded, _ = pad_packed_sequence(outputs, batch_first=True, total_length=inputs.shape[1])
    return padded, last


def reversal_index(lengths: Tensor, steps: int) -> Tensor:
    """Return the index, ``(B, steps)``, that reverses each sentence within its own length; padding stays in place."""
    positions = torch.arange(steps)[None, :]
    ends = lengths[:, None]
    return torch.where(positions < ends, ends - 1 - positions, positions)


def draw_mask(shape: tuple[int, ...], rate: float, *, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draw a dropout mask, zero with the probability ``rate``, else 1 / (1 - rate); device and dtype are ``like``'s.

    It is drawn on the CPU, so that a seed yields the same masks on every device. The mask is one for all time steps of
    a sentence in variational dropout (Gal and Ghahramani, 2016).
    """
    keep = torch.full(shape, 1.0 - rate)
    return (torch.bernoulli(keep, generator=generator) / (1.0 - rate)).to(like)
