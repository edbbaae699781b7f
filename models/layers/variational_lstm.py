"""The variational LSTM, whose dropout masks are the same for a whole sentence.

Ye et al. (2021), eq. 4: z_x masks the input, z_h the recurrent state, z_out the output, each with the same mask at all
time steps. Training draws new masks for every sentence. Inference uses M weight samples, drawn once from a seed: a
mask on an activation equals a mask on the columns of the matrix that multiplies it, so a sample is a plain ``nn.LSTM``
with some columns scaled or zeroed, and the result for a sentence does not depend on other sentences. Without gradient
all samples read together, in one product per step of the weights that they share.
"""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from functools import cached_property
from typing import cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from concord.models.config import Config
from concord.models.data.batch import by_step, send
from concord.models.layers.lstm import SampledLayer, both_directions, draw_mask, lstm_states, run_lstm, weights_key


class VariationalLstmConfig(Config):
    """Sizes and dropout rates of a variational LSTM."""

    hidden: int = Field(default=200, ge=1)
    """Units per direction."""
    layers: int = Field(default=1, ge=1)
    input_dropout: float = Field(default=0.25, ge=0, lt=1)
    """Rate of z_x, the mask on the input of every layer."""
    recurrent_dropout: float = Field(default=0.25, ge=0, lt=1)
    """Rate of z_h, which equation 4 of the paper has and the released code has not (0)."""
    output_dropout: float = Field(default=0.25, ge=0, lt=1)
    """Rate of z_out, the mask on the input of the output layer."""


MaskedLayer = tuple[nn.LSTM, Tensor, Tensor]
"""A layer that all samples share, and a sample's masks of it: z_x, shape ``(D,)``, and z_h of both directions,
``(2, H)``."""


class LstmSample(nn.Module):
    """One weight sample: plain LSTM layers with the masks folded into their weights, and the mask of the output."""

    def __init__(self, layers: list[nn.LSTM], output_mask: Tensor, masked: Sequence[MaskedLayer] = ()) -> None:
        """Store z_out, ``output_mask``, shape ``(2H,)``; ``masked`` are the layers before their masks were folded."""
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.output_mask = output_mask
        self.masked = tuple(masked)

    def forward(self, inputs: Tensor, lengths: Tensor) -> Tensor:
        """Encode sentences; shape ``(B, T, D)`` to ``(B, T, 2H)``, without z_out."""
        hidden = inputs
        for layer in self.layers:
            hidden = lstm_states(cast(nn.LSTM, layer), hidden, lengths)
        return hidden

    def read_packed(self, words: PackedSequence) -> Tensor:
        """Encode sentences that are packed; return their states, shape ``(N, 2H)``, in the same order."""
        for layer in self.layers:
            words = layer(words)[0]
        return words.data


class LstmSamples(list[LstmSample]):
    """Weight samples that were drawn together, and so can read together."""

    @cached_property
    def layers(self) -> list[SampledLayer]:
        """The layers that the samples share, with the masks of all samples."""
        layers = []
        for masked in zip(*(sample.masked for sample in self), strict=True):
            (lstm, *_), input_masks, state_masks = zip(*masked, strict=True)
            layers.append(SampledLayer(lstm, torch.stack(input_masks), torch.stack(state_masks, dim=1)))
        return layers


class VariationalLstm(nn.Module):
    """Stacked bidirectional LSTM layers with variational dropout."""

    def __init__(self, config: VariationalLstmConfig, input_dimension: int) -> None:
        """Build the layers as separate bidirectional LSTMs, so that masks can be applied between them."""
        super().__init__()
        self._config = config
        self.output_dimension = 2 * config.hidden
        widths = [input_dimension] + [self.output_dimension] * (config.layers - 1)
        self.layers = nn.ModuleList(
            nn.LSTM(width, config.hidden, batch_first=True, bidirectional=True) for width in widths
        )
        self._drawn: tuple[object, LstmSamples] | None = None

    def forward(self, inputs: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Run one stochastic pass over inputs ``(B, T, D)`` with new masks for every sentence.

        Return hidden states without and with z_out, each of shape ``(B, T, 2H)``, zeros where padded.
        """
        config, sentences = self._config, inputs.shape[0]
        hidden = inputs
        for layer in self._lstm_layers():
            hidden = hidden * draw_mask((sentences, 1, hidden.shape[2]), config.input_dropout, like=hidden)
            if config.recurrent_dropout:
                state_mask = draw_mask((2, sentences, config.hidden), config.recurrent_dropout, like=hidden)
                hidden = run_masked_lstm(layer, hidden, lengths, state_mask)
            else:
                hidden, _ = run_lstm(layer, hidden, lengths)
        masked = hidden * draw_mask((sentences, 1, self.output_dimension), config.output_dropout, like=hidden)
        return hidden, masked

    def weight_samples(self, samples: int, seed: int) -> LstmSamples:
        """Return M weight samples, which are drawn again only when the weights or their device have changed."""
        key, drawn = (samples, seed, weights_key(self.parameters())), self._drawn
        if drawn is None or drawn[0] != key:
            drawn = self._drawn = key, self.draw_samples(samples, seed)
        return drawn[1]

    @torch.no_grad()
    def draw_samples(self, samples: int, seed: int) -> LstmSamples:
        """Draw M weight samples; those of a smaller draw are the first of a larger one."""
        config, generator = self._config, torch.Generator().manual_seed(seed)
        drawn = LstmSamples()
        for _ in range(samples):
            folded, masked = [], []
            for layer in self._lstm_layers():
                like = layer.get_parameter("weight_ih_l0")
                input_mask = draw_mask((layer.input_size,), config.input_dropout, like=like, generator=generator)
                state_mask = draw_mask((2, config.hidden), config.recurrent_dropout, like=like, generator=generator)
                folded.append(_fold(layer, input_mask, state_mask))
                masked.append((layer, input_mask, state_mask))
            output_mask = draw_mask((self.output_dimension,), config.output_dropout, like=like, generator=generator)
            drawn.append(LstmSample(folded, output_mask, masked))
        return drawn

    def mean_weights(self) -> LstmSample:
        """Return the sample without masks, whose weights are the expected value of those of a weight sample."""
        layers = list(self._lstm_layers())
        like = layers[0].get_parameter("weight_ih_l0")
        return LstmSample(layers, torch.ones(self.output_dimension, dtype=like.dtype, device=like.device))

    def _lstm_layers(self) -> Iterator[nn.LSTM]:
        return (cast(nn.LSTM, layer) for layer in self.layers)


def run_samples(
    samples: Sequence[LstmSample], inputs: Tensor, lengths: Tensor
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Yield the states of all weight samples of a variational LSTM, as their ``forward`` returns them, part by part.

    A part has the m samples among the M; cells among all ``B * T`` of the states from the left and of those from the
    right, ``(2, K)``, int64; and the states, ``(2, m, K, H)``.

    On a CPU, samples that were drawn together read together, unless in bfloat16 or with gradient; their states then
    differ from those of ``forward`` by rounding. On a GPU a sample is one call. No part has states of padding.
    """
    device, width = inputs.device, inputs.shape[1]
    is_plain = device.type == "cpu" and not (torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"))
    if isinstance(samples, LstmSamples) and is_plain:
        states = inputs.flatten(0, 1)
        for layer in samples.layers[:-1]:
            states = _gather(layer.read(states, lengths, width), cells=len(lengths) * width)
        for cells, part in samples.layers[-1].read(states, lengths, width):
            yield slice(len(samples)), cells, part
        return
    if device.type != "cpu":
        cells, sizes = by_step(lengths, width)
        (words,) = send(device, cells[0])
        packed = PackedSequence(inputs.flatten(0, 1).index_select(0, words), torch.tensor(sizes))
        for number, sample in enumerate(samples):
            yield slice(number, number + 1), words.expand(2, -1), _by_direction(sample.read_packed(packed))
        return
    cells = (torch.arange(width) < lengths[:, None]).flatten().nonzero()[:, 0].expand(2, -1)
    for number, sample in enumerate(samples):
        yield slice(number, number + 1), cells, _by_direction(sample(inputs, lengths).flatten(0, 1)[cells[0]])


def _by_direction(states: Tensor) -> Tensor:
    """Arrange the states of a sample, shape ``(K, 2H)`` to ``(2, 1, K, H)``."""
    return states.view(len(states), 2, 1, -1).permute(1, 2, 0, 3)


def _gather(parts: Iterator[tuple[Tensor, Tensor]], *, cells: int) -> Tensor:
    """Return the states of all samples, ``(M, cells, 2H)``, of which the parts are those of ``SampledLayer.read``."""
    found: list[tuple[Tensor, Tensor]] = list(parts)
    _, samples, _, size = found[0][1].shape
    states = found[0][1].new_zeros(samples, cells, 2 * size)
    for places, part in found:
        for direction in range(2):
            states[:, places[direction], direction * size : (direction + 1) * size] = part[direction]
    return states


def run_masked_lstm(lstm: nn.LSTM, inputs: Tensor, lengths: Tensor, state_mask: Tensor) -> Tensor:
    """Run one bidirectional layer with a mask on the recurrent state; ``(B, T, D)`` to ``(B, T, 2H)``, 0 where padded.

    Both directions advance together, and a step computes only sentences that have not ended. ``state_mask`` is z_h of
    each direction and sentence, shape ``(2, B, H)``.
    """
    order = lengths.argsort(descending=True, stable=True)
    cells, sizes = by_step(lengths, inputs.shape[1])
    order, cells = send(inputs.device, order, cells)
    input_weight = both_directions(lstm, "weight_ih").transpose(1, 2)
    state_weight = both_directions(lstm, "weight_hh").transpose(1, 2)
    bias = both_directions(lstm, "bias_ih") + both_directions(lstm, "bias_hh")
    words = inputs.flatten(0, 1)
    gates = torch.baddbmm(bias[:, None], words.index_select(0, cells.flatten()).unflatten(0, (2, -1)), input_weight)
    outputs = _scan(gates, state_weight, state_mask[:, order], sizes)
    padded = outputs.new_zeros(len(words), outputs.shape[2])
    sides = [padded.index_copy(0, places, states) for places, states in zip(cells, outputs, strict=True)]
    return torch.cat(sides, dim=1).view(*inputs.shape[:2], -1)


def _scan(gates: Tensor, state_weight: Tensor, state_mask: Tensor, active: list[int]) -> Tensor:
    """Run both directions step by step over packed gates of shape ``(2, words, 4H)``."""
    hidden = torch.zeros_like(state_mask)
    cell = torch.zeros_like(state_mask)
    outputs = []
    # One split instead of one slice per step: the gradient of a slice is a zero tensor of the whole size.
    for step_gates in gates.split(active, dim=1):
        sentences = step_gates.shape[1]
        hidden, cell, mask = hidden[:, :sentences], cell[:, :sentences], state_mask[:, :sentences]
        step = torch.baddbmm(step_gates, hidden * mask, state_weight)
        input_gate, forget_gate, candidate, output_gate = step.chunk(4, dim=2)
        cell = forget_gate.sigmoid() * cell + input_gate.sigmoid() * candidate.tanh()
        hidden = output_gate.sigmoid() * cell.tanh()
        outputs.append(hidden)
    return torch.cat(outputs, dim=1)


def _fold(layer: nn.LSTM, input_mask: Tensor, state_mask: Tensor) -> nn.LSTM:
    folded = deepcopy(layer)
    for suffix, mask in (("", state_mask[0]), ("_reverse", state_mask[1])):
        folded.get_parameter(f"weight_ih_l0{suffix}").mul_(input_mask)
        folded.get_parameter(f"weight_hh_l0{suffix}").mul_(mask)
    return folded.requires_grad_(False)
