"""An LSTM that reads pieces of sequences side by side, against PyTorch's over whole sequences."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from concord.pipeline.parsing import packed_sentences
from concord.pipeline.parsing.packed_sentences import Pieces, PiecewiseLSTM


def random_lstm(*, forget_bias: float) -> torch.nn.LSTM:
    torch.manual_seed(7)
    lstm = torch.nn.LSTM(5, 4, batch_first=True, bidirectional=True)
    for name, parameter in lstm.named_parameters():
        parameter.data = torch.randn(parameter.shape) * 0.6
        if "bias_ih" in name:
            parameter.data[4:8] += forget_bias
    return lstm.eval()


def expected_states(lstm: torch.nn.LSTM, inputs: Tensor, lengths: Sequence[int]) -> Tensor:
    return torch.cat([lstm(part[None])[0][0] for part in inputs.split(list(lengths))])


@pytest.mark.slow
@pytest.mark.parametrize("forget_bias", [-2.0, 20.0])
@pytest.mark.parametrize("lengths", [[1], [3, 1, 1], [10, 11, 1], [45, 7, 20, 1, 10]])
def test_states_are_those_of_whole_sequences(
    forget_bias: float, lengths: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_sentences, "_STEPS", 2)
    monkeypatch.setattr(packed_sentences, "_LANES", 3)
    monkeypatch.setattr(packed_sentences, "_SHORT", 10)
    lstm = random_lstm(forget_bias=forget_bias)
    inputs = torch.randn(sum(lengths), 5)
    with torch.inference_mode():
        found = PiecewiseLSTM(lstm, warm_up=(2, 6)).run(inputs, Pieces(lengths, piece=10))
        torch.testing.assert_close(found, expected_states(lstm, inputs, lengths), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("warm_up", [(0, 0), (0, 3), (4, 4)])
def test_pieces_that_start_in_a_wrong_state_are_read_again(
    warm_up: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    again: list[int] = []
    differing = packed_sentences._differing

    def counted(start: Tensor, end: Tensor) -> NDArray[np.bool_]:
        wrong = differing(start, end)
        again.append(int(np.count_nonzero(wrong)))
        return wrong

    monkeypatch.setattr(packed_sentences, "_differing", counted)
    monkeypatch.setattr(packed_sentences, "_STEPS", 1)
    lstm = random_lstm(forget_bias=20.0)
    inputs = torch.randn(60, 5)
    with torch.inference_mode():
        found = PiecewiseLSTM(lstm, warm_up=warm_up).run(inputs, Pieces([60], piece=10))
        torch.testing.assert_close(found, expected_states(lstm, inputs, [60]), rtol=1e-4, atol=2e-5)
    assert again[0] == 5
    assert again[-1] == 0


def test_one_piece_needs_no_second_reading() -> None:
    pieces = Pieces([4, 9, 1], piece=10)
    assert pieces.lengths.tolist() == [4, 9, 1]
    assert pieces.starts.tolist() == [0, 4, 13]
    assert pieces.later.tolist() == []


def test_lanes_are_as_many_as_pieces_keep_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_sentences, "_STEPS", 2)
    stretches, firsts = packed_sentences._schedule(np.array([1, 6, 3, 4]))
    assert stretches.tolist() == [[1, 3, 2], [1, 3, 2], [1, 0, 4]]
    assert firsts.tolist() == [[0, 0, 0], [2, 2, 2], [4, 0, 0]]
