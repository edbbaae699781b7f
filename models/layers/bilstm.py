"""The plain bidirectional LSTM over padded batches."""

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from concord.models.config import Config

# Hidden and cell states, each of shape (layers * directions, B, H).
LstmState = tuple[Tensor, Tensor]


class BiLstmConfig(Config):
    """Sizes of a bidirectional LSTM."""

    hidden: int = Field(default=200, ge=1)
    """Units of each direction."""
    layers: int = Field(default=1, ge=1)
    dropout: float = Field(default=0.5, ge=0, lt=1)
    """Dropout between the layers and on the output."""


class BiLstm(nn.Module):
    """A stack of bidirectional LSTM layers with dropout on its output (NCRF++; Yang and Zhang, 2018)."""

    def __init__(self, config: BiLstmConfig, input_dimension: int) -> None:
        """Build the stack."""
        super().__init__()
        between = config.dropout if config.layers > 1 else 0.0
        self.lstm = nn.LSTM(
            input_dimension,
            config.hidden,
            config.layers,
            batch_first=True,
            bidirectional=True,
            dropout=between,
        )
        self.dropout = nn.Dropout(config.dropout)
        self.output_dimension = 2 * config.hidden

    def forward(self, inputs: Tensor, lengths: Tensor) -> Tensor:
        """Read sentences both ways.

        Args:
            inputs: shape ``(B, T, D)``, float.
            lengths: shape ``(B,)``, int64, on the CPU.

        Returns:
            Shape ``(B, T, output_dimension)``, float; zeros where padded.
        """
        return self.read(inputs, lengths)[0]

    def read(self, inputs: Tensor, lengths: Tensor, *, state: LstmState | None = None) -> tuple[Tensor, LstmState]:
        """Read sentences from given states on, zeros if None; also give each sentence's last states."""
        outputs, last = run_lstm_from(self.lstm, inputs, lengths, state)
        return self.dropout(outputs), last


class NoLstm(nn.Module):
    """Stands where an LSTM is left out: gives what it is given."""

    def __init__(self, input_dimension: int) -> None:
        """Take the width that passes through."""
        super().__init__()
        self.output_dimension = input_dimension

    def forward(self, inputs: Tensor, lengths: Tensor) -> Tensor:
        """Give the inputs; shapes as in ``BiLstm``."""
        del lengths
        return inputs


def build_bilstm(config: BiLstmConfig | None, input_dimension: int) -> BiLstm | NoLstm:
    """Build the stack, or what stands for it where the configuration leaves it out."""
    return NoLstm(input_dimension) if config is None else BiLstm(config, input_dimension)


def run_lstm(lstm: nn.LSTM, inputs: Tensor, lengths: Tensor, *, weights: Mapping[str, Tensor] | None = None) -> Tensor:
    """Run a batch-first LSTM over padded sentences of differing length; zeros where padded.

    Args:
        weights: what stands in for the LSTM's own parameters of these names.
    """
    return run_lstm_from(lstm, inputs, lengths, None, weights=weights)[0]


def run_lstm_from(
    lstm: nn.LSTM,
    inputs: Tensor,
    lengths: Tensor,
    state: LstmState | None,
    *,
    weights: Mapping[str, Tensor] | None = None,
) -> tuple[Tensor, LstmState]:
    """Run a batch-first LSTM as ``run_lstm`` does, from given states on, and give the last states too."""
    packed = pack_padded_sequence(inputs, lengths, batch_first=True, enforce_sorted=False)
    outputs, last = functional_call(lstm, dict(weights), (packed, state)) if weights else lstm(packed, state)
    padded, _ = pad_packed_sequence(outputs, batch_first=True, total_length=inputs.shape[1])
    return padded, last


def reversal_index(lengths: Tensor, steps: int) -> Tensor:
    """Give the index that reverses each sentence within its own length; padding keeps its place.

    Args:
        lengths: shape ``(B,)``, int64.

    Returns:
        Shape ``(B, steps)``, int64.
    """
    positions = torch.arange(steps)[None, :]
    ends = lengths[:, None]
    return torch.where(positions < ends, ends - 1 - positions, positions)
