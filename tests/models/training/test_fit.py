"""The training loop, its optimizers and its checkpoints."""

import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from concord.models.bundles.checkpoint import load_tagger
from concord.models.bundles.registry import build_tagger
from concord.models.data.batch import Batch
from concord.models.data.outputs import PredictOptions
from concord.models.data.sentence import Sentence
from concord.models.data.vocabulary import Vocabulary
from concord.models.errors import ConfigError
from concord.models.evaluation.metrics import span_scores
from concord.models.labels import BIO, TOKENS, LabelScheme
from concord.models.taggers.base import Tagger
from concord.models.taggers.two_stage import TwoStageTagger
from concord.models.training import fit as training
from concord.models.training.fit import (
    CaseNoise,
    EpochResult,
    FitConfig,
    OptimizerConfig,
    build_optimizers,
    change_case,
    check_bf16,
    fit,
    learning_rate,
)
from concord.models.training.fit_calibration import (
    REFINE_ALL,
    best_threshold,
    label_sequences,
    sweep_threshold,
)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("schedule", "epoch", "step", "expected"),
    [
        ("constant", 7, 70, 0.1),
        ("inverse", 0, 0, 0.1),
        ("inverse", 4, 40, 0.1 / 1.2),
        ("linear", 0, 0, 0.01),
        ("linear", 0, 9, 0.1),
        ("linear", 5, 55, 0.05),
        ("linear", 9, 99, 0.1 / 90),
        ("linear", 9, 103, 0.0),
    ],
)
def test_learning_rate_follows_its_schedule(schedule: str, epoch: int, step: int, expected: float) -> None:
    config = OptimizerConfig.from_mapping({"learning_rate": 0.1, "schedule": schedule, "decay": 0.05, "warmup": 0.1})
    assert learning_rate(config, epoch=epoch, step=step, steps=100) == pytest.approx(expected)


def test_cosine_restarts_equal_those_of_torch() -> None:
    config = OptimizerConfig(learning_rate=5e-3, schedule="cosine_restarts", first_cycle=10, cycle_growth=2)
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=5e-3)
    library = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=10, T_mult=2)
    found, expected = [], []
    for epoch in range(151):
        found.append(learning_rate(config, epoch=epoch, step=16 * epoch, steps=16 * 151))
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        library.step()
    assert found == pytest.approx(expected, abs=1e-12)
    assert [epoch for epoch, rate in enumerate(found) if rate == 5e-3] == [0, 10, 30, 70, 150]


REPRESENTATION = {"word_dimension": 8, "characters": {"embedding_dimension": 4, "filters": 4}, "dropout": 0.2}
MODELS: dict[str, dict[str, object]] = {
    "bilstm_crf": {"representation": REPRESENTATION, "lstm": {"hidden": 6}},
    "doc_uanet": {
        "draft_representation": REPRESENTATION,
        "refine_representation": REPRESENTATION,
        "lstm": {"hidden": 6},
        "samples": 2,
        "label_dimension": 6,
        "two_stream": {"heads": 2, "head_dimension": 4, "layers": 2},
    },
}
PLACES = ("Lisbon", "Leeds", "Aqaba", "Kent")
PEOPLE = ("Maria", "Bob", "Ada", "Carl")


def corpus(documents: int) -> list[list[Sentence]]:
    made = []
    for number in range(documents):
        person, place = PEOPLE[number % 4], PLACES[(number * 3 + number // 4) % 4]
        made.append(
            [
                Sentence(words=(person, "lives", "in", place, "."), labels=("B-PER", "O", "O", "B-LOC", "O")),
                Sentence(words=("We", "met", person), labels=("O", "O", "B-PER")),
            ]
        )
    return made


def new_tagger(name: str) -> Tagger:
    torch.manual_seed(3)
    sentences = [sentence for document in corpus(12) for sentence in document]
    return build_tagger(name, MODELS[name], Vocabulary.from_sentences(sentences))


def fit_config(tagger: Tagger, **changes: object) -> FitConfig:
    values = {
        "epochs": 4,
        "batch_sentences": 6,
        "optimizers": {group: {"kind": "adam", "learning_rate": 0.01} for group in tagger.parameter_groups()},
    }
    return FitConfig.from_mapping(values | changes)


class Killed(Exception):
    """Simulates a kill between two epochs."""


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", sorted(MODELS))
def test_resumed_training_ends_with_the_weights_of_an_uninterrupted_one(name: str, device: str, tmp_path: Path) -> None:
    def stop(result: EpochResult) -> None:
        if result.epoch == 2:
            raise Killed

    whole, broken, resumed = (new_tagger(name).move_to(device) for _ in range(3))
    config = fit_config(whole)
    expected = fit(whole, corpus(12), [corpus(4)], config, tmp_path / "whole")
    with pytest.raises(Killed):
        fit(broken, corpus(12), [corpus(4)], config, tmp_path / "broken", on_epoch=stop)
    found = fit(resumed, corpus(12), [corpus(4)], config, tmp_path / "broken")
    assert len(found.epochs) == 4
    assert [epoch.loss for epoch in found.epochs] == [epoch.loss for epoch in expected.epochs]
    assert [epoch.dev_f1 for epoch in found.epochs] == [epoch.dev_f1 for epoch in expected.epochs]
    for key, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[key]), key


@pytest.mark.parametrize("name", sorted(MODELS))
def test_bundle_is_the_tagger_of_the_best_epoch(name: str, tmp_path: Path) -> None:
    tagger = new_tagger(name)
    result = fit(tagger, corpus(12), [corpus(4)], fit_config(tagger), tmp_path)
    assert result.best.dev_f1 == max(epoch.dev_f1 or 0.0 for epoch in result.epochs)
    best = load_tagger(result.bundle)
    assert best.threshold == result.best.threshold
    dev = corpus(4)
    labels = [prediction.labels for document in best.predict_documents(dev) for prediction in document]
    gold = [sentence.labels or () for document in dev for sentence in document]
    assert span_scores(gold, labels)["all"].f1 == pytest.approx(result.best.dev_f1)


def test_state_of_another_training_is_rejected(tmp_path: Path) -> None:
    tagger = new_tagger("bilstm_crf")
    fit(tagger, corpus(12), [corpus(4)], fit_config(tagger, epochs=1), tmp_path)
    with pytest.raises(ConfigError, match="state of a training with this configuration"):
        fit(tagger, corpus(12), [corpus(4)], fit_config(tagger, epochs=2), tmp_path)


def test_damaged_state_is_named(tmp_path: Path) -> None:
    state = tmp_path / "state.safetensors"
    fit(new_tagger("bilstm_crf"), corpus(4), [corpus(2)], FitConfig(epochs=1), tmp_path)
    whole = state.read_bytes()
    for damaged in (whole[:1000], b"", whole.replace(b'"step"', b'"stop"')):
        state.write_bytes(damaged)
        with pytest.raises(ConfigError, match=r"state\.safetensors: expected the state of a training, .* start again"):
            fit(new_tagger("bilstm_crf"), corpus(4), [corpus(2)], FitConfig(epochs=1), tmp_path)


def test_training_stops_after_epochs_of_patience(tmp_path: Path) -> None:
    tagger = new_tagger("bilstm_crf")
    optimizers = {"tagger": {"kind": "sgd", "learning_rate": 1e-12}}
    config = fit_config(tagger, epochs=9, patience=2, optimizers=optimizers)
    assert len(fit(tagger, corpus(12), [corpus(4)], config, tmp_path).epochs) == 3


def test_patience_begins_with_a_score_above_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = iter([0.0, 0.0, 0.0, 0.0, 5.0, 4.0, 3.0, 2.0, 9.0])
    parts = {"dev_precision": 0.0, "dev_recall": 0.0, "draft_f1": 0.0}
    monkeypatch.setattr(training, "_score", lambda *_: ({"dev_f1": next(scores), **parts}, None))
    tagger = new_tagger("bilstm_crf")
    config = fit_config(tagger, epochs=9, patience=2)
    assert len(fit(tagger, corpus(2), [corpus(1)], config, tmp_path).epochs) == 7


def test_optimizers_must_match_the_parameter_groups() -> None:
    tagger = new_tagger("doc_uanet")
    with pytest.raises(ConfigError, match=r"expected the groups \['stage_one', 'stage_two'\], got \['tagger'\]"):
        build_optimizers(tagger.parameter_groups(), {"tagger": OptimizerConfig()})


def test_sweep_equals_prediction_at_each_threshold(tmp_path: Path) -> None:
    tagger = new_tagger("doc_uanet")
    dev = corpus(8)
    fit(tagger, corpus(12), [dev], fit_config(tagger, epochs=2), tmp_path)
    gold = [sentence.labels or () for document in dev for sentence in document]
    curve = sweep_threshold(tagger.eval().tabulate(dev, PredictOptions(threshold=REFINE_ALL)), dev, tagger.vocabulary)
    for threshold, score in list(curve.items())[:: len(curve) // 6]:
        table = tagger.tabulate(dev, PredictOptions(threshold=threshold))
        assert span_scores(gold, sequences(table.label, dev, tagger))["all"].f1 == pytest.approx(score)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_best_epoch_of_token_labels_is_chosen_by_accuracy(name: str, tmp_path: Path) -> None:
    train, dev = (
        [
            [Sentence(words=each.words, labels=tuple(map(str.lower, each.words))) for each in document]
            for document in some
        ]
        for some in (corpus(12), corpus(8))
    )
    torch.manual_seed(3)
    vocabulary = Vocabulary.from_sentences([each for document in train for each in document], scheme=TOKENS)
    tagger = build_tagger(name, MODELS[name] | {"scheme": "TOKENS"}, vocabulary)
    result = fit(tagger, train, [dev], fit_config(tagger), tmp_path)
    best = load_tagger(result.bundle)
    assert best.vocabulary == vocabulary
    assert result.best.dev_score == result.best.dev_accuracy == max(epoch.dev_accuracy or 0 for epoch in result.epochs)
    assert result.best.dev_f1 is None
    gold = [each.labels or () for document in dev for each in document]
    predictions = [prediction for document in best.predict_documents(dev) for prediction in document]
    found, drafted = (
        span_scores(gold, labels, scheme=TOKENS)["all"].recall
        for labels in zip(*((each.labels, each.draft_labels) for each in predictions), strict=True)
    )
    assert found == pytest.approx(result.best.dev_accuracy)
    assert drafted == pytest.approx(result.best.draft_accuracy)
    if isinstance(best, TwoStageTagger):
        curve = sweep_threshold(best.tabulate(dev, PredictOptions(threshold=REFINE_ALL)), dev, vocabulary)
        assert best_threshold([curve]) == best.threshold
        assert curve[best.threshold] == pytest.approx(found, abs=1e-4)


@pytest.mark.parametrize(("scheme", "expected"), [(TOKENS, "I-X"), (BIO, "B-X")])
def test_entity_is_split_with_a_long_sentence_but_token_labels_are_unchanged(
    scheme: LabelScheme, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = Sentence(words=("Maria",) * 20, labels=("B-X", *["I-X"] * 19))
    config = MODELS["bilstm_crf"] | {"window_words": 16, "window_overlap": 4, "scheme": scheme.name}
    tagger = build_tagger("bilstm_crf", config, Vocabulary.from_sentences([long], scheme=scheme))
    batches: list[Batch] = []

    def loss(batch: Batch, *, original: Callable[[Batch], torch.Tensor] = tagger.loss) -> torch.Tensor:
        batches.append(batch)
        return original(batch)

    monkeypatch.setattr(tagger, "loss", loss)
    result = fit(tagger, [[long]], [[[long]]], fit_config(tagger, epochs=1), tmp_path)
    assert math.isfinite(result.best.loss)
    pieces = [sentence for batch in batches for sentence in batch.sentences if len(sentence.words) == 4]
    assert [piece.labels for piece in pieces] == [(expected, "I-X", "I-X", "I-X")]


def sequences(labels: torch.Tensor, dev: Sequence[Sequence[Sentence]], tagger: Tagger) -> list[tuple[str, ...]]:
    assert isinstance(tagger, TwoStageTagger)
    return label_sequences(labels, dev, tagger.vocabulary)


def test_dev_score_and_threshold_are_means_over_corpora(tmp_path: Path) -> None:
    tagger, first, second = new_tagger("doc_uanet"), corpus(2), corpus(9)[5:]
    result = fit(tagger, corpus(12), [first, second], fit_config(tagger, epochs=2), tmp_path)
    best = load_tagger(result.bundle)
    assert isinstance(best, TwoStageTagger)
    curves = [
        sweep_threshold(best.tabulate(dev, PredictOptions(threshold=REFINE_ALL)), dev, best.vocabulary)
        for dev in (first, second)
    ]
    means = {threshold: sum(curve[threshold] for curve in curves) / 2 for threshold in curves[0]}
    assert means[best.threshold] == max(means.values())
    assert result.best.dev_f1 == pytest.approx(means[best.threshold])


@pytest.mark.parametrize("name", MODELS)
def test_training_in_bf16_follows_that_in_fp32_or_is_refused(name: str, tmp_path: Path) -> None:
    try:
        check_bf16(torch.device("cpu"))
    except ConfigError:
        with pytest.raises(ConfigError, match=r"fit\.precision: .* cannot train an LSTM in bf16"):
            fit(new_tagger(name), corpus(2), [], FitConfig(precision="bf16"), tmp_path)
        return
    found = {}
    for precision in ("fp32", "bf16"):
        tagger = new_tagger(name)
        config = fit_config(tagger, epochs=3, precision=precision)
        found[precision] = fit(tagger, corpus(12), [corpus(4)], config, tmp_path / precision)
        assert {value.dtype for value in tagger.parameters()} == {torch.float32}
    for exact, rounded in zip(found["fp32"].epochs, found["bf16"].epochs, strict=True):
        assert rounded.loss == pytest.approx(exact.loss, rel=0.05)
    assert found["bf16"].epochs[0].loss != found["fp32"].epochs[0].loss


def test_precision_is_refused_where_the_processor_cannot_compute_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("could not create a primitive descriptor. Run workload with environment variable ...")

    monkeypatch.setattr(torch.nn.LSTM, "forward", fail)
    with pytest.raises(ConfigError, match=r"bf16 .*\(cpu: could not create a primitive descriptor\); use"):
        check_bf16(torch.device("cpu"))


def test_case_noise_changes_words_alone_and_differs_between_epochs() -> None:
    batches = [[document] for document in corpus(300)]
    noise = CaseNoise(lower=0.2, upper=0.1)
    changed = change_case(batches, noise, random.Random(1))
    again, other = change_case(batches, noise, random.Random(1)), change_case(batches, noise, random.Random(2))
    assert changed == again != other
    sentences = [sentence for batch in changed for unit in batch for sentence in unit]
    plain = [sentence for batch in batches for unit in batch for sentence in unit]
    lowered = sum(one.words == tuple(map(str.lower, old.words)) for one, old in zip(sentences, plain, strict=True))
    raised = sum(one.words == tuple(map(str.upper, old.words)) for one, old in zip(sentences, plain, strict=True))
    assert 0.15 < lowered / len(plain) < 0.25
    assert 0.06 < raised / len(plain) < 0.14
    assert [one.labels for one in sentences] == [old.labels for old in plain]


def test_features_are_kept_of_the_first_words_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tagger, kept = new_tagger("bilstm_crf"), []
    monkeypatch.setattr(tagger, "keep_features", lambda documents: kept.append(len(documents)))
    monkeypatch.setattr("concord.models.training.fit._KEPT_WORDS", 17)  # a document has 8
    fit(tagger, corpus(5), [corpus(2)], FitConfig(epochs=1), tmp_path)
    assert kept == [3, 2]
