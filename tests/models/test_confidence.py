"""Calibration of probabilities, and candidates."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from concord.models.bundles.checkpoint import load_tagger, save_calibration, save_tagger
from concord.models.bundles.manifest import CALIBRATION_NAME, tagger_digest
from concord.models.confidence import (
    Calibration,
    Guarantee,
    Isotonic,
    Platt,
    Temperature,
    chosen_probability,
    find_spans,
    logit,
)
from concord.models.data.outputs import PredictOptions, known_numbers
from concord.models.data.sentence import Sentence
from concord.models.data.vocabulary import Vocabulary
from concord.models.errors import ConfigError, ModelError
from concord.models.evaluation import metrics
from concord.models.evaluation.metrics import coverage, expected_calibration_error
from concord.models.labels import BIO, BIOES, TOKENS, LabelScheme, Span, encode_spans
from concord.models.taggers.base import Tagger
from concord.models.training import fit_calibration as calibrating
from concord.models.training.fit_calibration import Entities, Observed, Words

pytestmark = pytest.mark.slow

Build = Callable[..., Tagger]
Documents = list[list[Sentence]]
HALF = Isotonic(inputs=[0.0, 1.0], outputs=[0.0, 0.5])
HOT = Calibration(tokens=Temperature(temperature=2.0), entities=Platt(slope=0.5, intercept=-1.0))


@given(st.lists(st.floats(0.001, 1.0), min_size=1, max_size=6), st.floats(0.2, 5.0))
def test_temperature_is_the_normalised_power(weights: list[float], temperature: float) -> None:
    probabilities = torch.tensor(weights, dtype=torch.float64) / sum(weights)
    powers = probabilities ** (1 / temperature)
    labels = torch.arange(len(weights))
    found = chosen_probability(probabilities.expand(len(weights), -1), labels, temperature)
    assert found.tolist() == pytest.approx((powers / powers.sum()).tolist())


def test_temperature_of_1_changes_nothing_and_padding_stays_0() -> None:
    probabilities = torch.cat([torch.rand(2, 3, 4).softmax(-1), torch.zeros(2, 1, 4)], dim=1)
    labels = torch.zeros(2, 4, dtype=torch.int64)
    assert torch.equal(chosen_probability(probabilities, labels, 1.0), probabilities[:, :, 0])
    assert chosen_probability(probabilities, labels, 0.1)[:, 3].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    "values",
    [
        {"inputs": [0.1, 0.1], "outputs": [0.2, 0.3]},
        {"inputs": [0.1, 0.2], "outputs": [0.3, 0.2]},
        {"inputs": [0.1, 0.2], "outputs": [0.3]},
        {"inputs": [0.1], "outputs": [1.1]},
        {"inputs": [], "outputs": []},
    ],
)
def test_isotonic_rejects_a_function_that_falls(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Isotonic.from_mapping(values)


def test_platt_maps_the_logit_and_accepts_0_and_1() -> None:
    found = Platt(slope=2.0, intercept=0.5).apply(np.asarray([0.0, 0.3, 1.0]))
    assert found[1] == pytest.approx(1 / (1 + np.exp(-(2 * np.log(0.3 / 0.7) + 0.5))))
    assert 0 <= found[0] < found[1] < found[2] <= 1
    assert logit(np.asarray([0.5])).tolist() == [0.0]


@pytest.mark.parametrize("name", ["bilstm_crf", "bilstm_softmax", "doc_uanet", "variational_lstm"])
@pytest.mark.parametrize("calibration", [HOT, Calibration(tokens=HALF, entities=HALF)])
def test_calibration_changes_only_probabilities(
    name: str, calibration: Calibration, build: Build, documents: Documents
) -> None:
    tagger = build(name)
    before = [entry for document in tagger.predict_documents(documents) for entry in document]
    tagger.calibration = calibration
    after = [entry for document in tagger.predict_documents(documents) for entry in document]
    for left, right in zip(before, after, strict=True):
        same = replace(right, probabilities=left.probabilities, confidences=left.confidences)
        assert same == left
        assert right.confidences == pytest.approx(calibration.entity_confidences(known_numbers(left.confidences)))
    if calibration is HOT:
        assert all(
            new < old
            for left, right in zip(before, after, strict=True)
            for old, new in zip(known_numbers(left.probabilities), known_numbers(right.probabilities), strict=True)
        )
    else:
        halves = [value / 2 for entry in before for value in known_numbers(entry.probabilities)]
        assert [value for entry in after for value in entry.probabilities] == pytest.approx(halves)


def test_calibration_is_saved_loaded_and_part_of_the_digest(build: Build, tmp_path: Path) -> None:
    tagger = build("uanet")
    save_tagger(tagger, tmp_path)
    plain = tagger_digest(tmp_path)
    save_calibration(HOT, tmp_path)
    assert tagger_digest(tmp_path) != plain
    loaded = load_tagger(tmp_path)
    assert loaded.calibration == HOT
    assert HOT.summary(candidates=False) == "tokens: temperature, entities: platt"
    save_tagger(loaded, tmp_path / "again")
    assert tagger_digest(tmp_path / "again") == tagger_digest(tmp_path)
    save_tagger(tagger, tmp_path)
    assert not (tmp_path / CALIBRATION_NAME).exists()
    assert tagger_digest(tmp_path) == plain


@pytest.mark.parametrize(
    "content", ["{", "[]", "{}", json.dumps({"tokens": {"method": "temperature", "temperature": 0}})]
)
def test_load_tagger_rejects_a_damaged_calibration(build: Build, tmp_path: Path, content: str) -> None:
    save_tagger(build("uanet"), tmp_path)
    (tmp_path / CALIBRATION_NAME).write_text(content)
    with pytest.raises(ModelError, match=r"calibration\.json"):
        load_tagger(tmp_path)


def overconfident(documents: int = 120, *, temperature: float = 2.0, seed: int = 1) -> Observed:
    """Draw the output of a tagger whose logits, of words and spans, are too large by a factor."""
    chance = np.random.default_rng(seed)
    words = 40 * documents
    logits = 2 * chance.normal(size=(words, 4))
    true = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    gold = (true.cumsum(axis=1) > chance.random((words, 1))).argmax(axis=1)
    reported = true**temperature / (true**temperature).sum(axis=1, keepdims=True)
    chosen = reported.argmax(axis=1)
    owners = np.repeat(np.arange(documents), 40)
    spans = chance.normal(size=10 * documents)
    right = chance.random(len(spans)) < 1 / (1 + np.exp(-spans))
    return Observed(
        words=Words(
            distributions=reported, chosen=chosen, gold=gold, known=np.ones(words, bool), right=chosen == gold,
            documents=owners,
        ),
        entities=Entities(
            confidences=1 / (1 + np.exp(-2 * spans - 1)), right=right, documents=np.repeat(np.arange(documents), 10)
        ),
        counts=np.stack([np.bincount(owners)] * 2 + [np.bincount(owners, weights=chosen == gold)], axis=1).astype(int),
    )  # fmt: skip


def test_fit_recovers_the_distortion_of_the_probabilities() -> None:
    observed = overconfident()
    fitted = calibrating.fit(observed, tokens="temperature", entities="platt")
    assert isinstance(fitted.tokens, Temperature)
    assert fitted.tokens.temperature == pytest.approx(2.0, rel=0.1)
    assert isinstance(fitted.entities, Platt)
    assert (fitted.entities.slope, fitted.entities.intercept) == pytest.approx((0.5, -0.5), abs=0.15)


@pytest.mark.parametrize(("tokens", "entities"), [("temperature", "platt"), ("isotonic", "isotonic")])
def test_calibration_error_falls_on_unseen_documents(tokens: Any, entities: Any) -> None:
    observed, other = overconfident(), overconfident(seed=2)
    fitted = calibrating.fit(observed, tokens=tokens, entities=entities)
    for data, after in (
        (observed, calibrating.cross_validate(observed, tokens=tokens, entities=entities)),
        (other, calibrating.apply(fitted, other)),
    ):
        before = calibrating.apply(None, data)
        for old, new, right in (
            (before.words, after.words, data.words.right),
            (before.entities, after.entities, data.entities.right),
        ):
            assert expected_calibration_error(old, right) > 0.08
            assert expected_calibration_error(new, right) < 0.06


def test_each_fold_is_calibrated_by_the_other_folds_alone() -> None:
    observed = overconfident(documents=10)
    flipped = observed.words.right ^ (observed.words.documents == 3)
    changed = replace(observed, words=replace(observed.words, right=flipped))
    first, second = (
        calibrating.cross_validate(data, tokens="isotonic", entities=None).words for data in (observed, changed)
    )
    own = observed.words.documents == 3
    assert np.array_equal(first[own], second[own])
    assert not np.array_equal(first[~own], second[~own])


def test_isotonic_fit_preserves_order() -> None:
    chance = np.random.default_rng(3)
    values = np.sort(chance.random(500))
    line = calibrating.fit_isotonic(values, chance.random(500) < values)
    mapped = line.apply(values)
    assert bool((np.diff(mapped) >= 0).all())
    inside = (values > line.inputs[0]) & (values < line.inputs[-1])
    assert bool((np.diff(mapped[inside]) > 0).all())


def test_methods_are_chosen_by_cross_validated_brier_score() -> None:
    observed = overconfident()
    assert calibrating.choose_tokens(observed) == "temperature"
    # One step between two levels: no logistic curve has that form.
    chance = np.random.default_rng(4)
    confidences = chance.random(len(observed.entities.right))
    right = chance.random(len(confidences)) < np.where(confidences > 0.5, 0.8, 0.2)
    steps = replace(observed.entities, confidences=confidences, right=right)
    assert calibrating.choose_entities(replace(observed, entities=steps)) == "isotonic"


def test_observe_ignores_the_existing_calibration(build: Build, documents: Documents) -> None:
    tagger = build("uanet")
    plain = calibrating.observe(tagger, documents)
    tagger.calibration = HOT
    observed = calibrating.observe(tagger, documents)
    assert tagger.calibration is HOT
    assert np.array_equal(observed.words.distributions, plain.words.distributions)
    tagger.calibration = None
    predictions = [entry for document in tagger.predict_documents(documents) for entry in document]
    own = [value for entry in predictions for value in entry.probabilities]
    assert observed.words.probabilities().tolist() == pytest.approx(own, abs=1e-7)
    assert observed.entities.confidences.tolist() == [value for entry in predictions for value in entry.confidences]
    gold = [label for document in documents for sentence in document for label in sentence.labels or ()]
    final = [label for entry in predictions for label in entry.labels]
    assert observed.words.right.tolist() == [left == right for left, right in zip(gold, final, strict=True)]
    assert bool(observed.words.known.all())
    assert observed.counts[:, 0].tolist() == [6, 3, 0]
    tagger.calibration = HOT
    again = [value for document in tagger.predict_documents(documents) for e in document for value in e.probabilities]
    after = calibrating.apply(HOT, observed)
    assert after.words.tolist() == pytest.approx(again, abs=1e-6)
    assert after.document_confidences(observed).tolist() == pytest.approx(
        [
            np.mean([np.log(value) for entry in document for value in known_numbers(entry.probabilities)])
            for document in tagger.predict_documents(documents)
        ],
        abs=1e-6,
    )


def test_types_that_are_left_out_count_nowhere(build: Build, documents: Documents) -> None:
    tagger = build("uanet")
    plain = calibrating.observe(tagger, documents)
    found = [span for document in tagger.predict_documents(documents) for entry in document for span in entry.spans]
    gold = [label for document in documents for sentence in document for label in sentence.labels or ()]
    labels = [label for document in tagger.predict_documents(documents) for entry in document for label in entry.labels]
    kind = "PER"
    assert {kind} < {span.label for span in found}
    observed = calibrating.observe(tagger, documents, left_out={kind})
    kept = np.asarray([span.label != kind for span in found])
    assert np.array_equal(observed.entities.confidences, plain.entities.confidences[kept])
    assert observed.counts[:, 1].sum() == kept.sum()
    open_words = [label.endswith(kind) and right == "O" for label, right in zip(labels, gold, strict=True)]
    assert 0 < sum(open_words) == len(plain.words.right) - len(observed.words.right)
    assert len(observed.candidates) < len(plain.candidates)


def test_word_labels_are_observed_and_calibrated(build: Build) -> None:
    sentence = Sentence(words=("Ada", "slept", "."), labels=("NNP", "VBD", "."))
    tagger = build("uanet", vocabulary=Vocabulary.from_sentences([sentence], scheme=TOKENS))
    strange = replace(sentence, labels=("XX", "VBD", "."))
    observed = calibrating.observe(tagger, [[sentence], [strange]])
    assert observed.counts[:, :2].tolist() == [[3, 3], [3, 3]]
    assert observed.words.known.tolist() == [True, True, True, False, True, True]
    fitted = calibrating.fit(observed, tokens="temperature", entities=None)
    assert fitted.entities is None
    assert fitted.summary(candidates=False) == "tokens: temperature, entities: none"


def test_calibration_error_equals_that_computed_by_hand() -> None:
    probabilities = np.asarray([0.1] * 10 + [0.9] * 10)
    right = np.asarray([True] * 3 + [False] * 7 + [True] * 8 + [False] * 2)
    assert expected_calibration_error(probabilities, right, binning="width") == pytest.approx(0.15)
    assert expected_calibration_error(np.zeros(0), np.zeros(0, bool)) == 0
    # The gaps of two right and two wrong predictions add up across bins, and cancel out within one.
    both = np.asarray([0.4, 0.6] * 15)
    assert expected_calibration_error(both, both > 0.5, binning="width") == pytest.approx(0.4)
    assert expected_calibration_error(np.full(30, 0.5), np.asarray([True, False] * 15)) == 0
    assert expected_calibration_error(np.asarray([0.0, 1.0]), np.asarray([True, True]), binning="width") == 0.5


def test_coverage_keeps_the_most_certain_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "COVERAGES", (0.75, 0.5))
    counts = np.asarray([[1, 1, 0], [2, 2, 2], [0, 0, 0], [4, 4, 2]])
    found = coverage(np.asarray([-9.0, -1.0, -2.0, -3.0]), counts)
    assert found == {
        "score": pytest.approx(100 * 8 / 14),
        "at_75_percent": pytest.approx(100 * 8 / 12),
        "at_50_percent": 100.0,
        "risk_coverage_area": pytest.approx((0 + 0 + 1 / 3 + 3 / 7) / 4),
    }


SENTENCE = Sentence(words=("Ada", "saw", "Rome"), labels=("B-PER", "O", "B-LOC"))


def enumerated(probabilities: np.ndarray, vocabulary: Vocabulary, least: float) -> dict[Span, float]:
    """Return the spans of one sentence by trying all of them."""
    scheme = vocabulary.scheme.spans
    assert scheme is not None
    words, found = len(probabilities), {}
    for span in (Span(start, end, kind) for start in range(words) for end in range(start + 1, words + 1) for kind in
                 vocabulary.entity_types):  # fmt: skip
        labels = encode_spans([span], words, scheme)[span.start : span.end]
        columns = [vocabulary.labels.index(label) for label in labels]
        needed = list(probabilities[range(span.start, span.end), columns])
        if scheme == "BIO" and span.end < words:
            needed.append(1 - probabilities[span.end, vocabulary.labels.index(f"I-{span.label}")])
        if min(needed) >= least:
            found[span] = float(min(needed))
    return found


@pytest.mark.parametrize("scheme", [BIO, BIOES])
@given(lengths=st.lists(st.integers(0, 5), max_size=4), least=st.sampled_from([0.001, 0.05, 0.4]), seed=st.integers(0))
def test_spans_are_those_of_an_enumeration(scheme: LabelScheme, lengths: list[int], least: float, seed: int) -> None:
    vocabulary = Vocabulary.from_sentences([SENTENCE], scheme=scheme)
    shape = sum(lengths), len(vocabulary.labels)
    probabilities = np.random.default_rng(seed).dirichlet([0.3] * shape[1], size=shape[0]).reshape(shape)
    sentences = np.split(probabilities, np.cumsum(lengths)[:-1]) if lengths else []
    expected = [enumerated(sentence, vocabulary, least) for sentence in sentences]
    found = find_spans(probabilities, lengths, vocabulary, least=least)
    assert [list(spans) for spans in found] == [sorted(spans) for spans in expected]
    assert found == [pytest.approx(spans) for spans in expected]


def test_longest_candidate_has_ten_words() -> None:
    vocabulary = Vocabulary.from_sentences([SENTENCE], scheme=BIOES)
    [found] = find_spans(np.full((30, len(vocabulary.labels)), 0.1), [30], vocabulary, least=0.1)
    assert max(span.end - span.start for span in found) == 10
    assert len(found) == 2 * sum(30 - length for length in range(10))


def test_word_labels_have_no_spans() -> None:
    vocabulary = Vocabulary.from_sentences([Sentence(words=("Ada",), labels=("NNP",))], scheme=TOKENS)
    assert find_spans(np.ones((2, 1)), [1, 1], vocabulary, least=0.1) == [{}, {}]


@pytest.mark.parametrize("name", ["bilstm_crf", "doc_uanet"])
def test_candidates_are_the_same_in_any_batch_and_change_no_label(name: str, build: Build) -> None:
    tagger = build(name)
    words = [tuple(f"w{number}" for number in range(length)) for length in (1, 7, 3, 12, 2)]
    documents = [[Sentence(words=sentence) for sentence in words], [Sentence(words=words[1])]]
    tagger.calibration = Calibration(
        tokens=Temperature(temperature=1.0), guarantee=Guarantee(recall=0.9, threshold=0.02, documents=20)
    )
    plain = tagger.predict_documents(documents)
    found = [
        tagger.predict_documents(documents, PredictOptions(batch_words=most), candidates=True) for most in (1, 4096)
    ]
    for small, large, without in zip(*(chain(*predictions) for predictions in (*found, plain)), strict=True):
        assert (small.spans, small.sources) == (large.spans, large.sources)
        assert small.confidences == pytest.approx(large.confidences, abs=1e-6)
        entities = len(without.spans)
        assert (small.labels, small.spans[:entities]) == (without.labels, without.spans)
        assert set(small.sources[:entities]) <= {"model"}
        assert set(small.sources[entities:]) <= {"candidate"}
    assert any("candidate" in prediction.sources for prediction in found[0][0])


def test_tagger_without_a_guarantee_refuses_candidates(build: Build) -> None:
    with pytest.raises(ConfigError, match="expected a tagger with a guarantee"):
        build("bilstm_crf").predict_documents([[SENTENCE]], candidates=True)
