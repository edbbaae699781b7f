"""LSTMs: modules of both directions and their stacks, and kernels without gradient that are faster than PyTorch's.

Two ways to stack LSTMs of both directions, with variational dropout, are those of Li et al. (2020). In independent
stacks, the paper's Baseline, the two directions meet only after the last layer: no cell sees the left and the right
context of a word together. In the Cross stack every layer reads both directions of the layer below.

Training draws one mask for all time steps and all sentences of a batch, as TensorFlow's DropoutWrapper does, for the
input and for the recurrent state of every cell and for the output of the top cells. A mask on an activation equals a
mask on the columns of the matrix that multiplies it, so plain LSTMs run with masked weights. Evaluation uses no mask.

Without gradient, one sequence is read on a CPU by code that oneDNN compiles for each length, in the time of reading a
hundred words or more; a process keeps the code of the latest ones. So sequences are padded to few lengths, at their
ends: both directions read forwards, the second one over the reversed sequence. The weights are brought into oneDNN's
order once, while PyTorch does it in every call.

A batch is read step by step by both directions and all weight samples at once. An LSTM multiplies each input by a
matrix that does not depend on the words around it. That product is computed once: for each distinct word where words
repeat, and for the weights that weight samples share. A step then looks it up and adds the product of the states of all
sentences that have not ended.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import cast
from weakref import WeakKeyDictionary

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from concord.models.config import Config
from concord.models.data.batch import Batch, by_step, in_blocks
from concord.models.words.representation import WordRepresentation

LstmState = tuple[Tensor, Tensor]
"""Hidden and cell states, each of shape ``(layers * directions, B, H)``."""


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
        positions, ends = torch.arange(inputs.shape[1])[None, :], lengths[:, None]
        # Each sentence is reversed within its own length, and padding stays in place.
        reversal = torch.where(positions < ends, ends - 1 - positions, positions).to(inputs.device)[:, :, None]
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


_LSTM_MODE = 2  # of PyTorch's recurrent networks: ReLU, tanh, LSTM, GRU
_ordered: "WeakKeyDictionary[nn.LSTM, tuple[object, list[list[Tensor]]]]" = WeakKeyDictionary()


def weights_key(weights: Iterable[Tensor]) -> list[tuple[int, int]]:
    """Return a value that changes when weights are replaced or written to."""
    return [(weight.data_ptr(), 0 if weight.is_inference() else weight._version) for weight in weights]


def can_read_sequence(lstm: nn.Module, inputs: Tensor) -> bool:
    """Return whether ``read_sequence`` can read such inputs by a network."""
    return (
        isinstance(lstm, nn.LSTM)
        and lstm.bias
        and not lstm.proj_size
        and not lstm.training
        and inputs.device.type == "cpu"
        and inputs.dtype == torch.float32
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and torch.backends.mkldnn.is_available()
        and bool(torch.backends.mkldnn.enabled)
    )


def read_sequence(lstm: nn.LSTM, inputs: Tensor, *, state: LstmState | None = None) -> Tensor:
    """Return the states at each step, shape ``(T, directions * H)``, for inputs ``(T, D)``.

    It starts from ``state``, of B = 1; zeros if None. The states are those of the LSTM but for rounding.
    """
    directions, size, steps = 1 + lstm.bidirectional, lstm.hidden_size, len(inputs)
    first = state if state is not None else (inputs.new_zeros(lstm.num_layers * directions, 1, size),) * 2
    states, read = inputs, []
    for number, weights in enumerate(ordered_weights(lstm)):
        is_reverse = number % directions == 1
        ordered = states.flip(0) if is_reverse else states
        padded = nn.functional.pad(ordered, (0, 0, 0, _padded_length(steps) - steps))[:, None]
        own = [kind[number : number + 1] for kind in first]
        found = read_steps(padded, weights, *own)[0][:steps, 0]
        read.append(found.flip(0) if is_reverse else found)
        if len(read) == directions:
            states, read = torch.cat(read, dim=1), []
    return states


def _padded_length(steps: int) -> int:
    """Return the length that is read: a multiple of 8 up to 64, then of 64."""
    unit = 8 if steps <= 64 else 64
    return -(-steps // unit) * unit


def read_steps(inputs: Tensor, weights: list[Tensor], hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Read B sequences forwards by one direction of a layer, whose weights are those of ``ordered_weights``.

    Args:
        inputs: shape ``(T, B, D)``.
        hidden, cell: the states before, each of shape ``(1, B, H)``.

    Returns:
        the states at each step, ``(T, B, H)``, and hidden and cell states after the last.
    """
    # Reverse, batch_sizes, mode, hidden_size, num_layers, has_biases, bidirectional, batch_first and train.
    options: tuple[object, ...] = (False, [], _LSTM_MODE, hidden.shape[2], 1, True, False, False, False)
    found: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.mkldnn_rnn_layer(inputs, *weights, hidden, cell, *options)[:3]
    return found


def ordered_weights(lstm: nn.LSTM) -> list[list[Tensor]]:
    """Return the four weights of each direction of each layer, the first two in oneDNN's order."""
    weights: list[Tensor] = lstm._flat_weights  # type: ignore[assignment]
    key = weights_key(weights)
    known = _ordered.get(lstm)
    if known is None or known[0] != key:
        known = _ordered[lstm] = (
            key,
            [_order(lstm, weights[start : start + 4]) for start in range(0, len(weights), 4)],
        )
    return known[1]


def _order(lstm: nn.LSTM, weights: list[Tensor]) -> list[Tensor]:
    inputs, recurrent, *biases = (weight.detach() for weight in weights)
    # Then hidden_size, reverse, has_biases, batch_first and input_size.
    options = (lstm.hidden_size, False, True, False, None)
    return [*torch.ops.mkldnn._reorder_mkldnn_rnn_layer_weight(inputs, recurrent, *options), *biases]


DIRECTIONS = ("l0", "l0_reverse")

# Fewer sentences are as fast in PyTorch's own loop, whose steps cost less than a dozen calls from Python.
_FEWEST_SENTENCES = 8
# Sentences that all samples read together, and words whose gates are computed ahead: both should stay in the cache.
_SENTENCES = 16
_WORDS_AHEAD = 64


def can_scan(lstm: nn.LSTM, inputs: Tensor) -> bool:
    """Return whether a scan applies and pays: one layer, many sentences, on a CPU, without gradient.

    The first two dimensions of the inputs are B and T.
    """
    is_one_layer = lstm.bidirectional and lstm.num_layers == 1
    many = inputs.shape[0] >= _FEWEST_SENTENCES
    return is_one_layer and many and inputs.device.type == "cpu" and not torch.is_grad_enabled()


def project(lstm: nn.LSTM, inputs: Tensor) -> Tensor:
    """Multiply inputs ``(R, D)`` by the input weights; return ``(R, 2, 4H)``, both directions, biases included."""
    products: Tensor = nn.functional.linear(inputs, *input_weights(lstm)).unflatten(1, (2, -1))
    return products


def input_weights(lstm: nn.LSTM) -> tuple[Tensor, Tensor]:
    """Return the weight that inputs are multiplied by, ``(2 * 4H, D)``, and the bias, both directions in one."""
    weight, bias, other_bias = (
        torch.cat([lstm.get_parameter(f"{kind}_{name}") for name in DIRECTIONS])
        for kind in ("weight_ih", "bias_ih", "bias_hh")
    )
    return weight, bias + other_bias


def scan(lstm: nn.LSTM, projected: Tensor, index: Tensor, lengths: Tensor) -> Tensor:
    """Return the states of padded sentences, shape ``(B, T, 2H)``, zeros where padded.

    Args:
        projected: the products of the inputs, as ``project`` returns them.
        index: the row of each word among the inputs, shape ``(B, T)``, int64.
        lengths: shape ``(B,)``, int64; every sentence has a word.
    """
    sentences, width = index.shape
    cells, sizes = by_step(lengths, width)
    # Rows of both directions, in the tables of both.
    sides = torch.arange(2)[:, None]
    rows, table = index.flatten()[cells] * 2 + sides, projected.flatten(0, 1)
    gates = (nn.functional.embedding(step, table)[:, None] for step in rows.split(sizes, dim=1))
    weight = both_directions(lstm, "weight_hh").transpose(1, 2).to(projected.dtype)
    found = torch.cat(list(_advance(gates, weight)), dim=2)
    states = projected.new_zeros(sentences * width * 2, lstm.hidden_size)
    states.index_copy_(0, (cells * 2 + sides).flatten(), found.flatten(0, 2))
    return states.view(sentences, width, -1)


def both_directions(lstm: nn.LSTM, kind: str) -> Tensor:
    """Stack the parameters of a kind, such as ``weight_hh``, of both directions."""
    return torch.stack([lstm.get_parameter(f"{kind}_{name}") for name in DIRECTIONS])


class SampledLayer:
    """One layer read by M weight samples: they share its weights, and differ by masks on input and recurrent state.

    An input mask is 0 or one factor for all. So the product of a masked input is that of the whole input, which all
    samples share, less that of what the mask drops, which is little.
    """

    def __init__(self, lstm: nn.LSTM, input_masks: Tensor, state_masks: Tensor) -> None:
        """Arrange the weights; the masks have the shapes ``(M, D)`` and ``(2, M, H)``."""
        self._samples = len(input_masks)
        self._input_masks, self._state_masks = input_masks, state_masks[:, :, None]
        self._weight = both_directions(lstm, "weight_ih").transpose(1, 2)
        self._bias = (both_directions(lstm, "bias_ih") + both_directions(lstm, "bias_hh"))[:, None]
        self._state_weight = both_directions(lstm, "weight_hh").transpose(1, 2).contiguous()
        is_dropped = input_masks == 0
        most = int(is_dropped.sum(dim=1).max())
        self._dropped = is_dropped.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :most]
        removed = self._weight[:, self._dropped] * is_dropped.gather(1, self._dropped)[:, :, None]
        factor = input_masks.max()
        self._shared_weight, self._removed_weight = self._weight * factor, (removed * -factor).flatten(0, 1)

    def read(self, inputs: Tensor, lengths: Tensor, width: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield cells of both directions, ``(2, K)``, int64, and their states, ``(2, M, K, H)``, until all were read.

        The inputs are the B * T cells of padded sentences, ``(B * T, D)``, or ``(M, B * T, D)`` if each sample has its
        own; the lengths have shape ``(B,)``, int64, and ``width`` is T.
        """
        for first in range(0, len(lengths), _SENTENCES):
            cells, sizes = by_step(lengths[first : first + _SENTENCES], width)
            blocks = list(in_blocks(sizes, int, least=_WORDS_AHEAD))
            parts = (cells + first * width).split([sum(block) for block in blocks], dim=1)
            gates = (
                step for part, block in zip(parts, blocks, strict=True) for step in self._gates(inputs, part, block)
            )
            states = _advance(gates, self._state_weight, self._state_masks)
            for part, block in zip(parts, blocks, strict=True):
                yield part, torch.cat([next(states) for _ in block], dim=2)

    def _gates(self, inputs: Tensor, cells: Tensor, sizes: list[int]) -> Iterator[Tensor]:
        """Yield the products of the inputs of each step, ``(2, M, K, 4H)``; the cells of all steps are ``(2, N)``."""
        samples = self._samples
        if inputs.dim() == 3:
            own = (inputs[:, cells] * self._input_masks[:, None, None]).transpose(0, 1).flatten(1, 2)
            yield from torch.baddbmm(self._bias, own, self._weight).unflatten(1, (samples, -1)).split(sizes, dim=2)
            return
        words = inputs[cells]
        shared = torch.baddbmm(self._bias, words, self._shared_weight)[:, None]
        dropped = words[:, :, self._dropped].transpose(1, 2).flatten(0, 1)
        removed = (dropped @ self._removed_weight).unflatten(0, (2, samples))
        for whole, part in zip(shared.split(sizes, dim=2), removed.split(sizes, dim=2), strict=True):
            yield whole + part


def _advance(gates: Iterable[Tensor], weight: Tensor, masks: Tensor | None = None) -> Iterator[Tensor]:
    """Yield the states of each step, ``(2, M, K, H)``, of K sentences, which only become fewer.

    The gates of a step, ``(2, M, K, 4H)``, are what it reads but states; they may be overwritten. The recurrent weight
    is ``(2, H, 4H)``, the masks of the states are ``(2, M, 1, H)``.
    """
    hidden = cell = None
    for step in gates:
        samples, sentences = step.shape[1:3]
        rows = step.flatten(1, 2)
        if hidden is not None:
            read = hidden[:, :, :sentences]
            rows.baddbmm_((read if masks is None else read * masks).flatten(1, 2), weight)
        rows[..., : 2 * weight.shape[1]].sigmoid_()
        input_gate, forget_gate, candidate, output_gate = rows.unflatten(1, (samples, sentences)).chunk(4, dim=3)
        entering = input_gate * candidate.tanh_()
        cell = entering if cell is None else entering.addcmul_(forget_gate, cell[:, :, :sentences])
        hidden = cell.tanh().mul_(output_gate.sigmoid_())
        yield hidden
