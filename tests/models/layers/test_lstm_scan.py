"""The scan of an LSTM in evaluation against PyTorch's LSTM, and its inputs computed once for each distinct word."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from concord.models.data.sentence import Sentence
from concord.models.layers.bilstm import BiLstm, BiLstmConfig, run_lstm
from concord.models.layers.lstm_scan import StepOrder, can_scan
from concord.models.tagger import Tagger

LENGTHS = torch.tensor([3, 7, 1, 7, 4])


def lstm(*, layers: int, bidirectional: bool) -> nn.LSTM:
    torch.manual_seed(3)
    made = nn.LSTM(6, 5, layers, batch_first=True, bidirectional=bidirectional)
    return made.double().eval()


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("with_state", [True, False])
def test_scan_equals_the_lstm_of_pytorch(layers: int, bidirectional: bool, with_state: bool) -> None:
    network = lstm(layers=layers, bidirectional=bidirectional)
    inputs = torch.randn(5, 8, 6, dtype=torch.float64)
    states = torch.randn(2, layers * (1 + bidirectional), 5, 5, dtype=torch.float64)
    initial = (states[0], states[1]) if with_state else None
    expected, (hidden, cell) = run_lstm(network, inputs, LENGTHS, state=initial)
    assert not can_scan(network, inputs)
    with torch.no_grad():
        assert can_scan(network, inputs)
        found, last = run_lstm(network, inputs, LENGTHS, state=initial)
    assert found.shape == expected.shape
    assert torch.allclose(found, expected, atol=1e-12)
    assert torch.allclose(last[0], hidden, atol=1e-12)
    assert torch.allclose(last[1], cell, atol=1e-12)


def test_scan_is_for_results_without_gradient_and_without_dropout_between_layers() -> None:
    network = lstm(layers=2, bidirectional=True)
    inputs = torch.zeros(1, 1, 6, dtype=torch.float64)
    assert not can_scan(network, inputs)
    with torch.inference_mode():
        assert can_scan(network.train(), inputs)
        network.dropout = 0.5
        assert not can_scan(network, inputs)
        assert can_scan(network.eval(), inputs)


def test_order_is_by_step_and_mirrored_within_each_sentence() -> None:
    order = StepOrder.of(torch.tensor([1, 3, 2]), 4)
    assert order.sizes == [3, 2, 1]
    assert order.sentences.tolist() == [1, 2, 0]
    assert order.cells.tolist() == [4, 8, 0, 5, 9, 6]
    assert order.cells[order.mirrored].tolist() == [6, 9, 0, 5, 8, 4]
    assert order.cells[order.last].tolist() == [0, 6, 9]


def test_words_are_read_like_their_vectors(build: Callable[..., Any], random_documents: Callable[..., Any]) -> None:
    tagger: Tagger = build("bilstm_crf")
    sentences: list[Sentence] = random_documents(4, documents=1)[0]
    representation: Any = tagger.get_submodule("representation")
    reader = BiLstm(BiLstmConfig(hidden=4, layers=2), representation.output_dimension).eval()
    forms = tagger.batch_encoder.encode_forms(sentences, shared=True)
    batch = tagger.encode(sentences, forms=forms)
    expected = reader(representation(batch, None), batch.lengths)
    assert torch.equal(reader.read_words(batch, representation, None), expected)
    with torch.inference_mode():
        assert torch.allclose(reader.read_words(batch, representation, None), expected, atol=1e-6)
        for sentence, row in zip(sentences, expected, strict=True):
            alone = reader.read_words(tagger.encode([sentence], forms=forms), representation, None)
            assert torch.allclose(alone[0], row[: len(sentence.words)], atol=1e-6)


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
