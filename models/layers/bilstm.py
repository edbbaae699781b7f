"""The bidirectional LSTM, and functions that run any LSTM over padded batches and draw its dropout masks.

Two ways to stack LSTMs of both directions, with variational dropout, are those of Li et al. (2020). In independent
stacks, the paper's Baseline, the two directions meet only after the last layer: no cell sees the left and the right
context of a word together. In the Cross stack every layer reads both directions of the layer below.

Training draws one mask for all time steps and all sentences of a batch, as TensorFlow's DropoutWrapper does, for the
input and for the recurrent state of every cell and for the output of the top cells. A mask on an activation equals a
mask on the columns of the matrix that multiplies it, so plain LSTMs run with masked weights. Evaluation uses no mask.
"""

import math
from collections.abc import Callable, Mapping
from typing import cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from concord.models.config import Config
from concord.models.data.batch import Batch
from concord.models.layers.lstm import LstmState, can_read_sequence, can_scan, project, read_sequence, scan
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


class StackedLstmConfig(Config):
    """Sizes of stacked LSTMs."""

    hidden: int = Field(default=100, ge=1)
    """Units per direction."""
    layers: int = Field(default=2, ge=1)
    dropout: float = Field(default=0.35, ge=0, lt=1)
    """Dropout rate of the input and recurrent state of every cell and of the output of the top cells."""


class CrossLstm(nn.Module):
    """Layers of which each reads both directions of the layer below."""

    __call__: Callable[..., Tensor]

    def __init__(self, config: StackedLstmConfig, input_dimension: int) -> None:
        super().__init__()
        self._rate = config.dropout
        self.lstm = _new_lstm(config, input_dimension, bidirectional=True)
        self.output_dimension = 2 * config.hidden

    def forward(self, inputs: Tensor, lengths: Tensor) -> Tensor:
        """Encode sentences; shape ``(B, T, D)`` to ``(B, T, output_dimension)``, zeros where padded."""
        return _run(self.lstm, inputs, lengths, rate=self._rate if self.training else 0.0)


class IndependentLstm(nn.Module):
    """One stack of layers per direction; only their outputs are concatenated."""

    __call__: Callable[..., Tensor]

    def __init__(self, config: StackedLstmConfig, input_dimension: int) -> None:
        super().__init__()
        self._rate = config.dropout
        self.rightward = _new_lstm(config, input_dimension, bidirectional=False)
        self.leftward = _new_lstm(config, input_dimension, bidirectional=False)
        self.output_dimension = 2 * config.hidden

    def forward(self, inputs: Tensor, lengths: Tensor) -> Tensor:
        """Encode sentences in both directions, leftward from the end of each; shapes as in ``CrossLstm``."""
        rate = self._rate if self.training else 0.0
        reversal = reversal_index(lengths, inputs.shape[1]).to(inputs.device)[:, :, None]
        rightward = _run(self.rightward, inputs, lengths, rate=rate)
        leftward = _run(self.leftward, inputs.gather(1, reversal.expand_as(inputs)), lengths, rate=rate)
        return torch.cat([rightward, leftward.gather(1, reversal.expand_as(leftward))], dim=2)


def _new_lstm(config: StackedLstmConfig, input_dimension: int, *, bidirectional: bool) -> nn.LSTM:
    """Build an LSTM initialized like TensorFlow's: Glorot's bounds over a cell's whole matrix, forget bias 1."""
    hidden = config.hidden
    lstm = nn.LSTM(input_dimension, hidden, config.layers, batch_first=True, bidirectional=bidirectional)
    for name, parameter in lstm.named_parameters():
        if name.startswith("weight_ih"):
            bound = math.sqrt(6.0 / (parameter.shape[1] + hidden + 4 * hidden))
            nn.init.uniform_(parameter, -bound, bound)
            nn.init.uniform_(lstm.get_parameter(name.replace("_ih_", "_hh_")), -bound, bound)
        elif name.startswith("bias"):
            nn.init.zeros_(parameter)
            if name.startswith("bias_ih"):
                nn.init.ones_(parameter[hidden : 2 * hidden])
    return lstm


def _run(lstm: nn.LSTM, inputs: Tensor, lengths: Tensor, *, rate: float) -> Tensor:
    if not rate:
        return run_lstm(lstm, inputs, lengths)[0]
    masked = {
        name: parameter * draw_mask((parameter.shape[1],), rate, like=parameter)
        for name, parameter in lstm.named_parameters()
        if name.startswith("weight")
    }
    outputs, _ = run_lstm(lstm, inputs, lengths, weights=masked)
    return outputs * draw_mask((outputs.shape[2],), rate, like=outputs)
