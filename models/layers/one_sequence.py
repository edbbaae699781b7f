"""An LSTM that reads one sequence on a CPU, without gradient, by code that oneDNN compiles for few lengths.

oneDNN compiles an LSTM for each length, in the time of reading a hundred words or more, and a process keeps the code of
the latest ones. So sequences are padded to few lengths, at their ends: both directions read forwards, the second one
over the reversed sequence. The weights are brought into oneDNN's order once, while PyTorch does it in every call.
"""

from collections.abc import Iterable
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
