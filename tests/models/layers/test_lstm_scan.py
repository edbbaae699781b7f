"""The scan of an LSTM against PyTorch's LSTM, over inputs that are projected once for each distinct word."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from concord.models.layers import bilstm
from concord.models.layers.bilstm import BiLstm, BiLstmConfig, read_words, run_lstm
from concord.models.layers.lstm import can_scan, project, scan
from concord.models.taggers.base import Tagger

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
