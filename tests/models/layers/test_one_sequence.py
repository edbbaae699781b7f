"""One sequence read at few lengths by weights that were ordered once, against PyTorch's LSTM."""

import pytest
import torch
from torch import nn

from concord.models.layers.lstm import can_read_sequence, read_sequence


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("steps", [1, 2, 31, 64, 65])
def test_states_are_those_of_pytorch(layers: int, bidirectional: bool, steps: int) -> None:
    torch.manual_seed(3)
    lstm = nn.LSTM(9, 16, layers, batch_first=True, bidirectional=bidirectional).eval()
    rows = layers * (1 + bidirectional)
    inputs = torch.randn(steps, 9)
    with torch.inference_mode():
        for state in (None, (torch.randn(rows, 1, 16), torch.randn(rows, 1, 16))):
            found = read_sequence(lstm, inputs, state=state)
            torch.testing.assert_close(found, lstm(inputs[None], state)[0][0], rtol=0, atol=1e-6)


def test_changed_weights_are_ordered_again() -> None:
    torch.manual_seed(3)
    lstm, inputs = nn.LSTM(4, 5, batch_first=True, bidirectional=True).eval(), torch.randn(6, 4)
    with torch.inference_mode():
        before = read_sequence(lstm, inputs)
    with torch.no_grad():
        lstm.get_parameter("weight_hh_l0_reverse").mul_(2)
        lstm.get_parameter("bias_ih_l0").add_(1)
    with torch.inference_mode():
        after = read_sequence(lstm, inputs)
        assert not torch.equal(before, after)
        torch.testing.assert_close(after, lstm(inputs[None])[0][0], rtol=0, atol=1e-6)


def test_only_plain_inference_on_a_cpu_in_float32_is_read() -> None:
    lstm, inputs = nn.LSTM(4, 5, batch_first=True).eval(), torch.randn(6, 4)
    assert not can_read_sequence(lstm, inputs)  # with gradient
    with torch.inference_mode():
        assert can_read_sequence(lstm, inputs)
        assert not can_read_sequence(lstm, inputs.double())
        assert not can_read_sequence(lstm, inputs.to("meta"))
        assert not can_read_sequence(nn.LSTM(4, 5, bias=False).eval(), inputs)
        assert not can_read_sequence(nn.LSTM(4, 5, proj_size=2).eval(), inputs)
        assert not can_read_sequence(nn.GRU(4, 5).eval(), inputs)
        assert not can_read_sequence(nn.LSTM(4, 5).train(), inputs)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert not can_read_sequence(lstm, inputs)
