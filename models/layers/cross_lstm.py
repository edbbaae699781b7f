"""Two ways to stack LSTMs of both directions, with variational dropout (Li et al., 2020).

In independent stacks, the paper's Baseline, the two directions meet only after the last layer: no cell sees the left
and the right context of a word together. In the Cross stack every layer reads both directions of the layer below.

Training draws one mask for all time steps and all sentences of a batch, as TensorFlow's DropoutWrapper does, for the
input and for the recurrent state of every cell and for the output of the top cells. A mask on an activation equals a
mask on the columns of the matrix that multiplies it, so plain LSTMs run with masked weights. Evaluation uses no mask.
"""

import math
from collections.abc import Callable

import torch
from pydantic import Field
from torch import Tensor, nn

from concord.models.config import Config
from concord.models.layers.bilstm import draw_mask, reversal_index, run_lstm


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
