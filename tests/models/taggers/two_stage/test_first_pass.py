"""The first pass labels the sentences that it is sure of; the others are labelled by both stages."""

from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from concord.models.bundles.checkpoint import load_tagger, save_tagger
from concord.models.bundles.manifest import FIRST_PASS_NAME, WEIGHTS_NAME, tagger_digest
from concord.models.data.options import PredictOptions
from concord.models.data.sentence import Sentence
from concord.models.data.vocabulary import Vocabulary
from concord.models.data.windows import Window, cut_windows
from concord.models.errors import ConfigError, ModelError
from concord.models.labels.schemes import BIO
from concord.models.taggers.token_table import TokenTable
from concord.models.taggers.two_stage import tagger as two_stage
from concord.models.taggers.two_stage.first_pass import windows_with_missed_names
from concord.models.training.fit_first_pass import GateScore, choose_gate, fit_map, score_gates

Build = Callable[..., Any]
Documents = list[list[Sentence]]
Draw = Callable[..., Documents]
EVERY_SENTENCE = 10.0
"""Nats that no entropy reaches."""


@pytest.fixture(params=["uanet", "doc_uanet"])
def tagger(request: pytest.FixtureRequest, build: Build) -> Any:
    """Return a tagger whose first pass is sure of some sentences and unsure of others."""
    tagger = build(request.param)
    tagger.add_first_pass(sharp(build("bilstm_softmax", seed=2)), gate=0.2)
    return tagger


def sharp(first: Any) -> Any:
    with torch.no_grad():
        first.output.weight *= 20
    return first


def middle_gate(tagger: Any, documents: Documents) -> float:
    """Return a gate that the words of some sentences reach and those of others do not."""
    found = tagger.first_pass.tagger.predict_documents(documents)
    worst = sorted(max(prediction.uncertainty) for prediction in chain.from_iterable(found))
    return float(worst[len(worst) // 2 - 1] + worst[len(worst) // 2]) / 2


def test_gate_of_0_sends_every_sentence_to_both_stages(tagger: Any, build: Build, random_documents: Draw) -> None:
    documents = random_documents(0, documents=4)
    plain = build(tagger.name).predict_documents(documents)
    assert tagger.predict_documents(documents, PredictOptions(gate=0.0)) == plain
    tagger.add_first_pass(tagger.first_pass.tagger, gate=0.0)
    assert tagger.predict_documents(documents) == plain
    assert not tagger.tabulate(documents).first.any()


def test_first_pass_labels_every_sentence_below_the_gate(tagger: Any, random_documents: Draw) -> None:
    documents = random_documents(0, documents=4)
    found = list(chain.from_iterable(tagger.predict_documents(documents, PredictOptions(gate=EVERY_SENTENCE))))
    expected = list(chain.from_iterable(tagger.first_pass.tagger.predict_documents(documents)))
    for one, other in zip(found, expected, strict=True):
        assert (one.labels, one.draft_labels, one.spans) == (other.labels, other.labels, other.spans)
        assert one.uncertainty == pytest.approx(other.uncertainty, abs=1e-6)
        assert one.probabilities == pytest.approx(other.probabilities, abs=1e-6)
        assert one.confidences == pytest.approx(other.confidences, abs=1e-6)
        assert not any(one.refined)


def labelled_table(*documents: list[Sentence]) -> tuple[TokenTable, list[Window]]:
    """Return a table with the sentences' own labels as drafts, 1 for each word of an entity, and their windows."""
    table = TokenTable.empty(documents, calibration=None, labels=None)
    sentences = chain.from_iterable(documents)
    labels = [int(label != "O") for sentence in sentences for label in sentence.labels or ()]
    table.draft[:] = torch.tensor(labels)
    return table, cut_windows(documents, longest=256, overlap=64)


def test_a_name_of_drafted_sentences_is_missed_where_it_is_outside(sentence: Callable[[str], Sentence]) -> None:
    table, windows = labelled_table(
        [
            sentence("Pell/B-PER of The/B-LOC Hague/I-LOC slept ."),  # drafted
            sentence("The boats sank . The end ."),  # drafted
            sentence("Then Pell left ."),
            sentence("Pell/B-PER again ."),
            sentence("The boats left ."),
        ],
        [sentence("Ford/B-PER slept ."), sentence("Pell slept .")],  # the first is drafted
    )
    drafted = [windows[number] for number in (0, 1, 5)]
    passed = [window for window in windows if window not in drafted]
    missed = windows_with_missed_names(table, drafted=drafted, passed=passed)
    assert [window.sentence.words for window in missed] == [("Then", "Pell", "left", ".")]


def test_sentences_with_missed_names_are_labelled_as_without_a_first_pass(
    tagger: Any, random_documents: Draw, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = random_documents(0, documents=4)
    gate = middle_gate(tagger, documents)
    without = tagger.tabulate(documents, PredictOptions(gate=0.0, threshold=EVERY_SENTENCE))
    monkeypatch.setattr(two_stage, "windows_with_missed_names", lambda table, *, drafted, passed: passed)
    found = tagger.tabulate(documents, PredictOptions(gate=gate, threshold=EVERY_SENTENCE))
    assert not found.first.any()
    assert torch.equal(found.label, without.label)
    assert torch.allclose(found.span, without.span, atol=1e-6)
    assert torch.allclose(found.probability, without.probability, atol=1e-6)


def test_a_sentence_passes_as_a_whole(tagger: Any, random_documents: Draw, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = random_documents(0, documents=4)
    gate = middle_gate(tagger, documents)
    monkeypatch.setattr(two_stage, "windows_with_missed_names", lambda table, *, drafted, passed: [])
    table = tagger.tabulate(documents, PredictOptions(gate=gate))
    alone = tagger.first_pass.tagger.predict_documents(documents)
    first = 0
    for prediction in chain.from_iterable(alone):
        rows = slice(first, first + len(prediction.labels))
        first = rows.stop
        assert table.first[rows].tolist() == [max(prediction.uncertainty) < gate] * len(prediction.labels)
    assert 0 < int(table.first.sum()) < len(table.first)


def test_predictions_depend_on_their_document_alone(tagger: Any, random_documents: Draw) -> None:
    documents = random_documents(3, documents=4)
    gate = middle_gate(tagger, documents)
    together = tagger.predict_documents(documents, PredictOptions(gate=gate, threshold=-1.0))
    alone = [
        tagger.predict_documents([document], PredictOptions(gate=gate, threshold=-1.0))[0] for document in documents
    ]
    backward = tagger.predict_documents(documents[::-1], PredictOptions(gate=gate, threshold=-1.0, batch_words=7))[::-1]
    for found in (alone, backward):
        for one, other in zip(chain(*together), chain(*found), strict=True):
            assert one.labels == other.labels
            assert one.refined == other.refined
            assert one.probabilities == pytest.approx(other.probabilities, abs=1e-5)


def test_memory_holds_what_the_first_pass_labelled(build: Build, sentence: Callable[[str], Sentence]) -> None:
    tagger = build("doc_uanet")
    first = tagger.add_first_pass(sharp(build("bilstm_softmax", seed=2)), gate=0.2)
    document = [sentence("Ford laughed ."), sentence("Workers of Ford went home .")]
    worst = [max(found.uncertainty) for found in first.tagger.predict_documents([document])[0]]
    gate = sum(worst) / 2
    before = tagger.tabulate([document], PredictOptions(gate=gate, threshold=-1.0))
    assert set(before.first.split([3, 6])[worst.index(min(worst))].tolist()) == {True}
    assert set(before.first.split([3, 6])[worst.index(max(worst))].tolist()) == {False}
    with torch.no_grad():
        first.to_stage_one.bias += 1.0
    after = tagger.tabulate([document], PredictOptions(gate=gate, threshold=-1.0))
    both = ~before.first
    assert not torch.allclose(before.probability[both], after.probability[both], atol=1e-7)
    assert torch.equal(before.probability[~both], after.probability[~both])


def test_bf16_leaves_all_but_the_encoder_of_two_stages_in_fp32_on_a_cpu(tagger: Any, random_documents: Draw) -> None:
    documents = random_documents(4, documents=2)
    for gate in (middle_gate(tagger, documents), EVERY_SENTENCE):
        exact = tagger.tabulate(documents, PredictOptions(gate=gate, threshold=-1.0))
        rough = tagger.tabulate(documents, PredictOptions(gate=gate, threshold=-1.0, precision="bf16"))
        assert torch.equal(exact.first, rough.first)
        assert torch.equal(exact.probability, rough.probability)


def test_map_of_states_is_their_least_squares_fit(build: Build) -> None:
    first = build("doc_uanet").add_first_pass(build("bilstm_softmax"), gate=0.2)
    generator = torch.Generator().manual_seed(1)
    states = torch.randn(500, 16, generator=generator)
    weight, bias = torch.randn(16, 16, generator=generator), torch.randn(16, generator=generator)
    hidden = states @ weight + bias
    assert first.fit_map(states, hidden, ridge=1e-6) == pytest.approx(1.0)
    assert torch.allclose(first.to_stage_one(states), hidden, atol=1e-4)
    noise = torch.randn(500, 16, generator=generator)
    assert first.fit_map(states, noise) < 0.2


def test_fitted_map_explains_more_than_a_constant(tagger: Any, random_documents: Draw) -> None:
    explained = fit_map(tagger, tagger.first_pass, random_documents(1, documents=6))
    assert 0.05 < explained < 1


def test_saved_tagger_has_its_first_pass(tagger: Any, random_documents: Draw, tmp_path: Path) -> None:
    documents = random_documents(0, documents=4)
    gate = middle_gate(tagger, documents)
    tagger.add_first_pass(tagger.first_pass.tagger, gate=gate)
    save_tagger(tagger, tmp_path)
    loaded = load_tagger(tmp_path)
    own = {name for name in load_file(tmp_path / WEIGHTS_NAME) if name.startswith("first_pass")}
    assert own == {"first_pass.to_stage_one.weight", "first_pass.to_stage_one.bias"}
    assert loaded.predict_documents(documents, PredictOptions(threshold=-1.0)) == tagger.predict_documents(
        documents, PredictOptions(threshold=-1.0)
    )
    digest = tagger_digest(tmp_path)
    with torch.no_grad():
        tagger.first_pass.tagger.output.bias += 1.0
    save_tagger(tagger, tmp_path)
    assert tagger_digest(tmp_path) != digest
    (tmp_path / FIRST_PASS_NAME / WEIGHTS_NAME).unlink()
    with pytest.raises(ModelError, match=f"{FIRST_PASS_NAME}/{WEIGHTS_NAME}"):
        load_tagger(tmp_path)


def test_first_pass_that_does_not_fit_is_refused(build: Build, documents: Documents, vocabulary: Vocabulary) -> None:
    tagger = build("doc_uanet")
    with pytest.raises(ConfigError, match="LSTM states and without an encoder, such as bilstm_softmax"):
        tagger.add_first_pass(build("bilstm_lan"), gate=0.2)
    other = Vocabulary.from_sentences(chain(*documents), scheme=BIO)
    assert other.labels != vocabulary.labels
    with pytest.raises(ConfigError, match="expected the labels of the two stages"):
        tagger.add_first_pass(build("bilstm_softmax", vocabulary=other, scheme="BIO"), gate=0.2)


def test_gates_are_scored_from_none_to_all_sentences(tagger: Any, documents: Documents) -> None:
    scores = score_gates(tagger, documents, gates=(0.0, 0.1, EVERY_SENTENCE))
    shares = [score.encoded for score in scores]
    assert shares[0] == 1.0
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] == 0.0
    gold = (sentence.labels or () for sentence in chain(*documents))
    (renamed,) = score_gates(tagger, documents, gates=(0.0,), rename=lambda _: next(gold))
    assert scores[0].f1 < renamed.f1 == 100.0


def test_largest_gate_within_the_tolerance_on_every_corpus_is_chosen() -> None:
    def curve(*scores: float) -> list[GateScore]:
        return [GateScore(gate=gate, f1=f1, encoded=1 - gate) for gate, f1 in zip((0.0, 0.1, 0.2), scores, strict=True)]

    assert choose_gate([curve(80, 79.8, 79.7), curve(70, 71, 69.8)], tolerance=0.3) == 0.2
    assert choose_gate([curve(80, 79.8, 79.7), curve(70, 71, 69.6)], tolerance=0.3) == 0.1
    assert choose_gate([curve(80, 70, 79.7), curve(70, 69, 69.6)], tolerance=0.3) == 0.0
