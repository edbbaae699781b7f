"""LSTMs without gradient, faster than PyTorch's: of one sequence, and of a batch in both directions.

One sequence is read on a CPU by code that oneDNN compiles for each length, in the time of reading a hundred words or
more; a process keeps the code of the latest ones. So sequences are padded to few lengths, at their ends: both
directions read forwards, the second one over the reversed sequence. The weights are brought into oneDNN's order once,
while PyTorch does it in every call.

A batch is read step by step by both directions and all weight samples at once. An LSTM multiplies each input by a
matrix that does not depend on the words around it. That product is computed once: for each distinct word where words
repeat, and for the weights that weight samples share. A step then looks it up and adds the product of the states of all
sentences that have not ended.
"""

from collections.abc import Iterable, Iterator
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

LstmState = tuple[Tensor, Tensor]
"""Hidden and cell states, each of shape ``(layers * directions, B, H)``."""

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
    weight, bias, other_bias = (
        torch.cat([lstm.get_parameter(f"{kind}_{name}") for name in DIRECTIONS])
        for kind in ("weight_ih", "bias_ih", "bias_hh")
    )
    products: Tensor = nn.functional.linear(inputs, weight, bias + other_bias).unflatten(1, (2, -1))
    return products


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
            blocks = list(_blocks(sizes, words=_WORDS_AHEAD))
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


def by_step(lengths: Tensor, width: int) -> tuple[Tensor, list[int]]:
    """Order words by step, and within a step by length of their sentence, longest first.

    Return the cells of the words among all ``B * T``, shape ``(2, N)``, counting steps from the start of each sentence
    and from its end, and the number of sentences at each step.
    """
    ordered, sentences = lengths.sort(descending=True, stable=True)
    steps = torch.arange(width)[:, None]
    inside = steps < ordered
    firsts = sentences * width
    sizes = [size for size in inside.sum(dim=1).tolist() if size]
    return torch.stack([(firsts + steps)[inside], (firsts + ordered - 1 - steps)[inside]]), sizes


def _blocks(sizes: list[int], *, words: int) -> Iterator[list[int]]:
    """Split the sizes of steps into blocks of at least this many words; the last may be smaller."""
    block: list[int] = []
    for size in sizes:
        block.append(size)
        if sum(block) >= words:
            yield block
            block = []
    if block:
        yield block
