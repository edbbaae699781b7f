"""LSTMs without gradient equal those of PyTorch."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from concord.models.layers import bilstm
from concord.models.layers.bilstm import BiLstm, BiLstmConfig, read_words, run_lstm
from concord.models.layers.lstm import can_read_sequence, can_scan, project, read_sequence, scan
from concord.models.taggers.base import Tagger


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


LENGTHS = torch.tensor([3, 7, 1, 7, 4, 2, 2, 5])


def lstm(*, layers: int = 1) -> nn.LSTM:
    torch.manual_seed(3)
    return nn.LSTM(6, 5, layers, batch_first=True, bidirectional=True).double().eval()


@torch.no_grad()
def test_scan_equals_the_lstm_of_pytorch() -> None:
    network, distinct = lstm(), torch.randn(9, 6, dtype=torch.float64)
    for width in (7, 9):
        index = torch.randint(9, (len(LENGTHS), width))
        expected, _ = run_lstm(network, distinct[index], LENGTHS)
        found = scan(network, project(network, distinct), index, LENGTHS)
        assert found.shape == expected.shape
        assert torch.allclose(found, expected, rtol=0, atol=1e-12)


def test_scan_is_for_one_layer_and_many_sentences_without_gradient() -> None:
    inputs = torch.zeros(8, 1, 6, dtype=torch.float64)
    assert not can_scan(lstm(), inputs)
    with torch.inference_mode():
        assert can_scan(lstm(), inputs)
        assert not can_scan(lstm(), inputs[:7])
        assert not can_scan(lstm(layers=2), inputs)
        assert not can_scan(nn.LSTM(6, 5), inputs)


def test_words_are_read_like_their_vectors(
    build: Callable[..., Any], random_documents: Callable[..., Any], monkeypatch: Any
) -> None:
    tagger: Tagger = build("bilstm_crf")
    representation: Any = tagger.get_submodule("representation")
    reader = BiLstm(BiLstmConfig(hidden=4), representation.output_dimension).eval()
    sentences = random_documents(4, documents=1, sentences=12)[0]
    forms = tagger.batch_encoder.encode_forms(sentences, shared=True)
    batch = tagger.encode(sentences, forms=forms)
    expected = reader(representation(batch, None), batch.lengths)
    assert torch.equal(read_words(reader, batch, representation, None), expected)
    scans: list[Tensor] = []

    def spy(*arguments: Any) -> Tensor:
        scans.append(scan(*arguments))
        return scans[-1]

    monkeypatch.setattr(bilstm, "scan", spy)
    with torch.inference_mode():
        assert torch.allclose(read_words(reader, batch, representation, None), expected, atol=1e-6)
        assert len(scans) == 1
        for sentence, row in zip(sentences, expected, strict=True):
            alone = read_words(reader, tagger.encode([sentence], forms=forms), representation, None)
            assert torch.allclose(alone[0], row[: len(sentence.words)], atol=1e-6)
        features = torch.zeros(*batch.mask.shape, 0)
        assert torch.allclose(read_words(reader, batch, representation, features), expected, atol=1e-6)
    assert len(scans) == 1
    read_words(reader.train(), batch, representation, None)
    assert len(scans) == 1


def test_a_changed_weight_changes_the_next_call(
    build: Callable[..., Any], random_documents: Callable[..., Any]
) -> None:
    tagger: Tagger = build("bilstm_crf")
    documents = random_documents(4, documents=2)
    before = tagger.tabulate(documents)
    with torch.no_grad():
        for weight in tagger.get_submodule("representation").parameters():
            weight.add_(1.0)
    assert not torch.allclose(tagger.tabulate(documents).probability, before.probability)
