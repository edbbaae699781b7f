"""A prediction depends on its document alone: not on other documents, batches, or which sentences skip stage two."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from concord.models.data.outputs import PredictOptions
from concord.models.data.sentence import Sentence
from concord.models.layers.lstm import SampledLayer
from concord.models.taggers.token_table import TokenTable
from concord.models.taggers.two_stage_networks import RefineNetwork
from concord.models.words.representation import WordRepresentation

Documents = list[list[Sentence]]
Draw = Callable[..., Documents]
NEAR = 1e-5


@pytest.fixture(params=["uanet", "doc_uanet"])
def tagger(request: pytest.FixtureRequest, build: Callable[..., Any]) -> Any:
    """Return a tagger that is certain of some words and uncertain of others."""
    tagger = build(request.param)
    with torch.no_grad():
        tagger.draft_network.output.weight *= 10
    return tagger


def words_in(document: list[Sentence]) -> int:
    return sum(len(sentence.words) for sentence in document)


def middle_threshold(tagger: Any, documents: Documents) -> float:
    """Return a threshold that the words of some sentences exceed and those of others do not."""
    table = tagger.tabulate(documents, PredictOptions(threshold=10.0))
    lengths = [len(sentence.words) for document in documents for sentence in document]
    worst = sorted(float(part.max()) for part in table.uncertainty.split(lengths))
    return (worst[len(worst) // 2 - 1] + worst[len(worst) // 2]) / 2


def assert_same_but_for_near_ties(left: TokenTable, right: TokenTable, threshold: float) -> None:
    near = (torch.minimum(left.margin, right.margin) < NEAR) | ((left.uncertainty - threshold).abs() < NEAR)
    assert bool(((left.label == right.label) | near).all())
    assert bool(((left.draft == right.draft) | near).all())
    assert float(near.float().mean()) < 0.1
    assert float((left.uncertainty - right.uncertainty).abs().max()) < 1e-5


@pytest.mark.parametrize("threshold", [-1.0, 10.0])
def test_document_alone_equals_document_in_a_batch_of_three(
    tagger: Any, random_documents: Draw, threshold: float
) -> None:
    documents = random_documents(3, documents=3)
    together = tagger.tabulate(documents, PredictOptions(threshold=threshold))
    first = 0
    for document in documents:
        alone = tagger.tabulate([document], PredictOptions(threshold=threshold))
        rows = slice(first, first + words_in(document))
        first = rows.stop
        assert float((alone.uncertainty - together.uncertainty[rows]).abs().max()) <= 2e-6
        assert float((alone.probability - together.probability[rows]).abs().max()) <= 2e-6
        assert torch.equal(alone.label, together.label[rows])


def test_order_of_the_documents_does_not_matter(tagger: Any, random_documents: Draw) -> None:
    documents = random_documents(3, documents=3)
    forward = tagger.predict_documents(documents, PredictOptions(threshold=-1.0))
    backward = tagger.predict_documents(documents[::-1], PredictOptions(threshold=-1.0))[::-1]
    for left, right in zip(chain(*forward), chain(*backward), strict=True):
        assert left.labels == right.labels
        assert left.probabilities == pytest.approx(right.probabilities, abs=2e-6)


@pytest.mark.slow
def test_skipping_stage_two_is_lossless(tagger: Any, random_documents: Draw) -> None:
    """With one sentence per batch the forced pass computes the same sums, so the results are equal bit by bit."""
    documents = random_documents(4, documents=4)
    threshold = middle_threshold(tagger, documents)
    skipping = tagger.tabulate(documents, PredictOptions(threshold=threshold, batch_words=1))
    forced = tagger.tabulate(documents, PredictOptions(threshold=-1.0, batch_words=1))
    drafts = tagger.tabulate(documents, PredictOptions(threshold=10.0, batch_words=1))
    refined = forced.uncertainty > threshold
    assert 0 < int(refined.sum()) < len(refined)
    assert torch.equal(skipping.refined, refined)
    assert torch.equal(skipping.label, torch.where(refined, forced.label, forced.draft))
    assert torch.equal(skipping.probability, torch.where(refined, forced.probability, drafts.probability))


def test_skipping_stage_two_is_lossless_within_batches(tagger: Any, random_documents: Draw) -> None:
    documents = random_documents(4, documents=4)
    threshold = middle_threshold(tagger, documents)
    skipping = tagger.tabulate(documents, PredictOptions(threshold=threshold))
    forced = tagger.tabulate(documents, PredictOptions(threshold=-1.0))
    expected = torch.where(forced.uncertainty > threshold, forced.label, forced.draft)
    assert torch.equal(skipping.label, expected)
    chosen = skipping.refined
    assert float((skipping.probability - forced.probability)[chosen].abs().max()) <= 2e-6


def test_stage_one_reads_once_for_all_samples_and_stage_two_only_uncertain_sentences(
    tagger: Any, random_documents: Draw, record_calls: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = random_documents(5, documents=4, sentences=6)
    documents = [[replace(entry, labels=None) for entry in document] for document in drawn]
    threshold, budget = middle_threshold(tagger, documents), 24
    reads: list[int] = []
    read = SampledLayer.read

    def count(layer: SampledLayer, inputs: Tensor, lengths: Tensor, width: int) -> Any:
        for cells, states in read(layer, inputs, lengths, width):
            reads.extend([states.shape[1]] * cells.shape[1])
            yield cells, states

    monkeypatch.setattr(SampledLayer, "read", count)
    with record_calls(nn.LSTM, WordRepresentation, RefineNetwork) as calls:
        table = tagger.tabulate(documents, PredictOptions(samples=3, threshold=threshold, batch_words=budget))
    lstm_calls = [arguments for module, arguments in calls if isinstance(module, nn.LSTM)]
    drafted = [arguments[0] for module, arguments in calls if module is tagger.draft_network.representation]
    refined = [arguments[0] for module, arguments in calls if isinstance(module, RefineNetwork)]
    represented = [module for module, _ in calls if module is tagger.refine_network.representation]

    sentences = [sentence for document in documents for sentence in document]
    parts = table.uncertainty.split([len(sentence.words) for sentence in sentences])
    uncertain = [id(entry) for entry, part in zip(sentences, parts, strict=True) if float(part.max()) > threshold]
    assert 0 < len(uncertain) < len(sentences)
    assert not lstm_calls
    assert reads == [3] * sum(len(entry.words) for entry in sentences)
    assert sorted(id(entry) for batch in drafted for entry in batch.sentences) == sorted(map(id, sentences))
    assert sorted(id(entry) for batch in refined for entry in batch.sentences) == sorted(uncertain)
    assert len(represented) == len(refined)
    for batch in (*drafted, *refined):
        assert batch.mask.numel() <= budget
    # By length, as full as the budget allows: never many more batches than the padded words need.
    needed = math.ceil(sum(len(sentence.words) for sentence in sentences) / budget)
    assert len(drafted) <= 2 * needed
    assert len(refined) <= len(drafted)


def test_stage_two_does_not_run_when_every_word_is_certain(
    tagger: Any, random_documents: Draw, record_calls: Callable[..., Any]
) -> None:
    with record_calls(RefineNetwork, WordRepresentation) as calls:
        tagger.tabulate(random_documents(5, documents=3), PredictOptions(threshold=10.0))
    assert [module for module, _ in calls] == [tagger.draft_network.representation]


@pytest.mark.slow
def test_batch_size_changes_labels_only_at_near_ties(tagger: Any, random_documents: Draw) -> None:
    documents = random_documents(6, documents=6)
    threshold = middle_threshold(tagger, documents)
    wide = tagger.tabulate(documents, PredictOptions(threshold=threshold))
    for batch_words in (1, 13, 60):
        narrow = tagger.tabulate(documents, PredictOptions(threshold=threshold, batch_words=batch_words))
        assert_same_but_for_near_ties(wide, narrow, threshold)


def test_bf16_leaves_all_but_the_encoder_in_fp32_on_a_cpu(tagger: Any, random_documents: Draw) -> None:
    documents = random_documents(4, documents=2)
    exact, rough = (
        tagger.tabulate(documents, PredictOptions(threshold=-1.0, precision=precision))
        for precision in ("fp32", "bf16")
    )
    assert torch.equal(exact.probability, rough.probability)
    assert torch.equal(exact.uncertainty, rough.uncertainty)


def test_tagging_is_reproducible_whatever_the_global_random_state(tagger: Any, random_documents: Draw) -> None:
    documents = random_documents(7, documents=4)
    torch.manual_seed(1)
    first = tagger.tabulate(documents)
    torch.manual_seed(2)
    second = tagger.tabulate(documents)
    for name in ("draft", "label", "probability", "margin", "uncertainty", "refined"):
        assert torch.equal(getattr(first, name), getattr(second, name)), name
