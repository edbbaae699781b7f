"""What every tagger guarantees; a new one is tested here without extra test code.

The taggers are built from the ``small`` profile of their file in conf/train, over a tiny vocabulary; those that wrap
the model of another library, from an untrained one.
"""

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from concord_testing.checkout import CHECKOUT
from concord_testing.encoders import write_encoder
from concord_testing.spacy_pipelines import write_spacy
from concord_testing.trees import with_tree

from concord.models.adapters.base import AdaptedTagger
from concord.models.adapters.hf import HfTagger
from concord.models.adapters.spacy import SpacyTagger
from concord.models.bundles.checkpoint import load_tagger, save_tagger
from concord.models.bundles.manifest import SOURCE_NAME
from concord.models.bundles.registry import available, build_tagger
from concord.models.data.batch import PADDING, UNKNOWN, Batch
from concord.models.data.outputs import Prediction, PredictOptions
from concord.models.data.sentence import Sentence, SoftLabels
from concord.models.data.vocabulary import Vocabulary
from concord.models.decoders.crf import CrfDistribution
from concord.models.errors import ConfigError
from concord.models.labels import BIO, TOKENS, decode_spans, split_label
from concord.models.taggers.base import Tagger
from concord.models.taggers.one_stage import OneStageTagger
from concord.models.words.representation import WordRepresentation
from concord.workflows.training.job import read_train_config

pytestmark = pytest.mark.slow

CONF = CHECKOUT / "conf" / "train"
COLUMNS = ("draft", "label", "probability", "margin", "uncertainty", "refined", "span")
Documents = list[list[Sentence]]
Build = Callable[..., Tagger]
# Refine every word, if there is a stage two, so that the tests cover all that a tagger computes.
REFINE_ALL = PredictOptions(threshold=-1.0)


@pytest.fixture(params=(*available(), *(pytest.param(name, marks=pytest.mark.slow) for name in ("hf", "spacy"))))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Vocabulary], str]:
    """Return a function from the name of another library's tagger to the folder of a model of some labels."""

    @cache
    def write(name: str, words: tuple[str, ...], labels: tuple[str, ...], types: tuple[str, ...]) -> str:
        folder = tmp_path_factory.mktemp(name)
        if name == "spacy":
            sentence = {f"w{number}": kind for number, kind in enumerate(types)}
            return str(write_spacy(folder, sentences=[sentence], steps=0))
        pieces = sorted({word.lower() for word in words} - {"laughed"})
        return str(write_encoder(folder, [*pieces, "laugh", "##ed"], labels=labels[::-1]))

    return lambda name, vocabulary: write(name, vocabulary.words, vocabulary.labels, vocabulary.entity_types)


@pytest.fixture
def small(name: str, vocabulary: Vocabulary, other_model: Callable[[str, Vocabulary], str]) -> Build:
    """Return a function that builds the tagger from its small profile, or around a model of these labels."""

    def make(*, vocabulary: Vocabulary = vocabulary, **changes: Any) -> Tagger:
        if name == "hf":
            return HfTagger.adapt(other_model(name, vocabulary))
        if name == "spacy":
            if not vocabulary.entity_types:
                pytest.skip("an NER has entity types")
            return SpacyTagger.adapt(other_model(name, vocabulary))
        profile = read_train_config(CONF / f"{name}.yaml").profiles["small"]
        torch.manual_seed(1)
        return build_tagger(name, profile.model | changes, vocabulary).eval()

    return make


@pytest.fixture(scope="module")
def untouched() -> dict[str, Tagger]:
    return {}


@pytest.fixture
def tagger(name: str, small: Build, untouched: dict[str, Tagger]) -> Tagger:
    """Return a copy of the tagger as it was built, or the tagger itself if it has no weights."""
    if name not in untouched:
        untouched[name] = small()
    found = untouched[name]
    return deepcopy(found) if found.has_scores else found.eval()


@pytest.fixture
def learner(tagger: Tagger) -> Tagger:
    """Return the tagger if it can be trained."""
    if not tagger.has_scores:
        pytest.skip("it is not trained")
    return tagger


def encode(tagger: Tagger, documents: Documents) -> Batch:
    owners = [number for number, document in enumerate(documents) for _ in document]
    return tagger.encode([sentence for document in documents for sentence in document], documents=owners)


def parsed(*words: str) -> Sentence:
    return with_tree(Sentence(words=words))


def assert_whole(prediction: Prediction, sentence: Sentence, tagger: Tagger) -> None:
    """Check the invariants of a single prediction."""
    words = len(sentence.words)
    columns = (
        prediction.labels, prediction.draft_labels, prediction.probabilities, prediction.margins,
        prediction.uncertainty, prediction.refined,
    )  # fmt: skip
    assert all(len(column) == words for column in columns)
    assert decode_spans(prediction.labels, "BIO") == prediction.spans
    for label in (*prediction.labels, *prediction.draft_labels):
        prefix, kind = split_label(label)
        assert prefix in "OBI"
        assert kind in ("", *tagger.entity_types)
    assert len(prediction.confidences) == len(prediction.spans)
    shares = (*prediction.probabilities, *prediction.margins, *prediction.confidences)
    most = math.log(len(tagger.vocabulary.labels)) + 1e-5
    if not tagger.has_scores:
        assert {*shares, *prediction.uncertainty} <= {None}
        return
    assert all(value is not None and 0 <= value <= 1 + 1e-6 for value in shares)
    assert all(value is not None and -1e-6 <= value <= most for value in prediction.uncertainty)


def test_name_is_that_of_the_module_and_types_those_of_the_vocabulary(name: str, tagger: Tagger) -> None:
    assert tagger.name == name
    package = "adapters" if isinstance(tagger, AdaptedTagger) else "taggers"
    assert type(tagger).__module__ == f"concord.models.{package}.{name}"
    assert tagger.entity_types == ("LOC", "ORG", "PER")


def test_every_word_gets_one_label(tagger: Tagger, random_documents: Callable[..., Documents]) -> None:
    documents, progress = random_documents(1, documents=4), list[tuple[int, int]]()
    predictions = tagger.predict_documents(documents, REFINE_ALL, on_batch=lambda *words: progress.append(words))
    words = sum(len(sentence.words) for document in documents for sentence in document)
    assert progress[0] == (0, words)
    assert progress[-1] == (words, words)
    assert [len(document) for document in predictions] == [len(document) for document in documents]
    for document, found in zip(documents, predictions, strict=True):
        for sentence, prediction in zip(document, found, strict=True):
            assert_whole(prediction, sentence, tagger)


def test_empty_documents_and_sentences_and_unusual_words_are_labelled(tagger: Tagger) -> None:
    unusual = ("\u200d", "\U0001f469\u200d\U0001f680", "\ud800", "e\u0301", " ", "x" * 5000, "\u0661\u0662", "\x00")
    documents = [[], [parsed()], [parsed("Paris"), parsed(), parsed("?"), parsed(*unusual)]]
    predictions = tagger.predict_documents(documents, REFINE_ALL)
    assert [[len(entry.labels) for entry in document] for document in predictions] == [[], [0], [1, 0, 1, 8]]
    assert predictions[1][0].spans == ()
    for document, found in zip(documents, predictions, strict=True):
        for sentence, prediction in zip(document, found, strict=True):
            assert_whole(prediction, sentence, tagger)
    assert tagger.predict_documents([]) == []


def test_invisible_characters_decide_nothing(tagger: Tagger) -> None:
    words = ("Maria", "Keller", "met", "Bob", "in", "Lisbon", "1914", ".")
    expected = tagger.predict_documents([[parsed(*words)], [parsed("Keller", "slept", ".")]], REFINE_ALL)
    for hidden in ("\u00ad", "\u200b", "\u200d", "\u200e", "\u2067", "\ufe0f", "\ufeff"):
        marked = (f"{hidden}Maria", f"Kel{hidden}ler", "met", f"Bob{hidden * 2}", "in", "Lisbon", f"19{hidden}14", ".")
        documents = [[parsed(*marked)], [parsed(f"K{hidden}eller", f"slept{hidden}", f"{hidden}.")]]
        assert tagger.predict_documents(documents, REFINE_ALL) == expected, hidden


def test_prediction_is_the_same_alone_and_in_a_batch(
    tagger: Tagger, random_documents: Callable[..., Documents]
) -> None:
    documents = random_documents(2, documents=5)
    together = tagger.predict_documents(documents, REFINE_ALL)
    for document, expected in zip(documents, together, strict=True):
        (alone,) = tagger.predict_documents([document], REFINE_ALL)
        for left, right in zip(alone, expected, strict=True):
            if not tagger.has_scores:
                assert left == right
                continue
            assert left.probabilities == pytest.approx(right.probabilities, abs=1e-5)
            assert left.uncertainty == pytest.approx(right.uncertainty, abs=1e-5)
            near = any(margin is not None and margin < 1e-5 for margin in (*left.margins, *right.margins))
            assert near or left.labels == right.labels
            assert near or left.confidences == pytest.approx(right.confidences, abs=1e-5)


def test_sentences_are_independent_without_a_document_memory(
    tagger: Tagger, random_documents: Callable[..., Documents]
) -> None:
    if tagger.learns_from_documents:
        pytest.skip("it reads the whole document")
    documents = random_documents(2, documents=2)
    whole = tagger.tabulate(documents, REFINE_ALL)
    apart = tagger.tabulate([[sentence] for document in documents for sentence in document], REFINE_ALL)
    assert torch.allclose(whole.probability, apart.probability, atol=1e-5)
    assert tagger.has_scores or torch.equal(whole.label, apart.label)


def test_saved_equals_loaded(tagger: Tagger, tmp_path: Path, random_documents: Callable[..., Documents]) -> None:
    documents = random_documents(3, documents=3)
    save_tagger(tagger, tmp_path)
    loaded = load_tagger(tmp_path)
    assert loaded.name == tagger.name
    changes = {"source": str(tmp_path / SOURCE_NAME)} if isinstance(tagger, AdaptedTagger) else {}
    assert loaded.config == tagger.config.model_copy(update=changes)
    assert loaded.vocabulary == tagger.vocabulary
    assert loaded.threshold == tagger.threshold
    first, second = (which.tabulate(documents, REFINE_ALL) for which in (tagger, loaded))
    assert all(torch.equal(getattr(first, column), getattr(second, column)) for column in COLUMNS)


def test_every_parameter_gets_a_gradient_and_belongs_to_one_group(learner: Tagger, documents: Documents) -> None:
    learner.train().loss(encode(learner, documents)).backward()
    without = [
        name for name, weight in learner.named_parameters() if weight.grad is None or not bool((weight.grad != 0).any())
    ]
    assert without == []
    grouped = [id(weight) for group in learner.parameter_groups().values() for weight in group]
    assert sorted(grouped) == sorted(id(weight) for weight in learner.parameters())


def soft_sentence(sentence: Sentence, vocabulary: Vocabulary, *, probability: float | None) -> Sentence:
    """Replace gold labels by soft ones: sets of one label, or that label with a probability and another one."""
    gold = [vocabulary.labels.index(label) for label in vocabulary.scheme.from_gold(sentence.labels or ())]
    pairs = [(number, (number + 1) % len(vocabulary.labels)) for number in gold]
    soft = SoftLabels(
        names=vocabulary.labels,
        words=np.repeat(np.arange(len(gold), dtype=np.int32), 1 if probability is None else 2),
        labels=np.array(gold if probability is None else pairs, dtype=np.int16).flatten(),
        probabilities=None
        if probability is None
        else np.tile(np.array([probability, 1 - probability], dtype=np.float32), len(gold)),
    )
    return replace(sentence, labels=None, soft=soft)


def test_certain_labels_train_as_gold_labels_do(learner: Tagger, documents: Documents) -> None:
    soft = [[soft_sentence(one, learner.vocabulary, probability=None) for one in document] for document in documents]
    found = []
    for read in (documents, soft, [*documents[:1], *soft[1:]]):
        learner.train().zero_grad()
        torch.manual_seed(2)
        loss = learner.loss(encode(learner, read))
        loss.backward()
        found.append((loss.detach(), [weight.grad for weight in learner.parameters() if weight.grad is not None]))
    for loss, gradients in found[1:]:
        assert torch.allclose(loss, found[0][0], rtol=1e-4)
        assert all(
            torch.allclose(one, gold, rtol=1e-3, atol=1e-5) for one, gold in zip(gradients, found[0][1], strict=True)
        )


def test_probabilities_train_every_parameter(learner: Tagger, documents: Documents) -> None:
    soft = [[soft_sentence(one, learner.vocabulary, probability=0.75) for one in document] for document in documents]
    mixed = encode(learner, [*documents[:1], *soft[1:]])
    if isinstance(learner, OneStageTagger) and isinstance(learner.distribution(mixed), CrfDistribution):
        with pytest.raises(ConfigError, match="trained on gold labels alone, got soft ones"):
            learner.train().loss(mixed)
        return
    optimizer = torch.optim.Adam(learner.train().parameters(), lr=1e-3)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        torch.manual_seed(2)
        loss = learner.loss(mixed)
        loss.backward()
        assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in learner.parameters())
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]


def test_loss_falls_on_one_batch_and_unknown_words_are_trained(learner: Tagger, documents: Documents) -> None:
    batch, optimizer = encode(learner, documents), torch.optim.Adam(learner.train().parameters(), lr=0.01)
    tables = [
        module.words.weight
        for module in learner.modules()
        if isinstance(module, WordRepresentation) and module.words is not None and module.words.weight.requires_grad
    ]
    before = [table[UNKNOWN].detach().clone() for table in tables]
    assert not tables or not (batch.words == UNKNOWN).any()
    losses = []
    for _ in range(15):
        optimizer.zero_grad()
        loss = learner.loss(batch)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert sum(losses[-3:]) < 0.7 * sum(losses[:3])
    assert all(math.isfinite(loss) for loss in losses)
    assert not any(torch.equal(table[UNKNOWN], start) for table, start in zip(tables, before, strict=True))
    assert not any(bool(table[PADDING].any()) for table in tables)


def test_loss_requires_gold_labels(learner: Tagger) -> None:
    with pytest.raises(ValueError, match="expected gold labels"):
        learner.loss(learner.encode([parsed("a", "b")]))


def test_prediction_works_in_inference_mode_without_side_effects(tagger: Tagger, documents: Documents) -> None:
    random_state = torch.get_rng_state()
    before = {name: value.clone() for name, value in tagger.state_dict().items()}
    with torch.inference_mode():
        inside = tagger.tabulate(documents, REFINE_ALL)
    outside = tagger.tabulate(documents, REFINE_ALL)
    assert all(torch.equal(getattr(inside, column), getattr(outside, column)) for column in COLUMNS)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert not any(module.training for module in tagger.modules())
    assert all(weight.requires_grad and weight.grad is None for weight in tagger.parameters())
    assert all(torch.equal(value, before[name]) for name, value in tagger.state_dict().items())
    if tagger.has_scores:
        tagger.train().loss(encode(tagger, documents)).backward()


def test_prediction_in_training_mode_is_rejected(tagger: Tagger, documents: Documents) -> None:
    with pytest.raises(ValueError, match="expected a tagger in evaluation mode"):
        tagger.train().predict_documents(documents)
    assert tagger.training


def test_attention_maps_are_weights_over_named_columns(
    tagger: Tagger, random_documents: Callable[..., Documents]
) -> None:
    (document,) = random_documents(5, documents=1)
    document = [parsed(), *document, parsed("Paris")]
    maps = tagger.attention_maps(document)
    assert len(maps) == len(document)
    names = {tuple(found) for found in maps[1:]}
    assert len(names) == 1
    assert maps[0] == {}
    for sentence, found in zip(document, maps, strict=True):
        for attention in found.values():
            assert attention.weights.shape[1:] == (len(sentence.words), len(attention.columns))
            sums = attention.weights.sum(dim=-1)
            assert bool(((sums - 1).abs().minimum(sums.abs()) < 1e-5).all())
            assert bool((attention.weights >= 0).all())
    assert tagger.attention_maps([]) == []
    with pytest.raises(ValueError, match="expected a tagger in evaluation mode"):
        tagger.train().attention_maps(document)


@pytest.mark.parametrize("kinds", [(), ("PER",)])
def test_one_entity_type_or_none_is_supported_in_bio(small: Build, kinds: tuple[str, ...]) -> None:
    labels = ("B-PER", "I-PER", "O") if kinds else ("O", "O", "O")
    sentence = with_tree(Sentence(words=("Ada", "King", "slept"), labels=labels))
    tagger = small(vocabulary=Vocabulary.from_sentences([sentence], scheme=BIO), scheme="BIO")
    assert tagger.entity_types == kinds
    ((prediction,),) = tagger.predict_documents([[sentence]], REFINE_ALL)
    assert_whole(prediction, sentence, tagger)
    if not kinds:
        assert prediction.labels == ("O", "O", "O")
        assert prediction.probabilities == pytest.approx((1.0, 1.0, 1.0))
        assert prediction.margins == (1.0, 1.0, 1.0)
    if not tagger.has_scores:
        return
    loss = tagger.train().loss(encode(tagger, [[sentence]]))
    loss.backward()
    assert math.isfinite(float(loss.detach()))


def test_token_labels_are_predicted_unchanged(name: str, small: Build) -> None:
    if name in ("hf", "spacy"):
        pytest.skip("a model of another library says nothing of its scheme, and these labels look like two of them")
    # Prefixes have no meaning here: "I-" may follow any label and "B-" does not begin an entity.
    sentence = with_tree(Sentence(words=("Ada", "King", "slept", "."), labels=("I-NNP", "B-", "VBD", "O")))
    vocabulary = Vocabulary.from_sentences([sentence], scheme=TOKENS)
    tagger = small(vocabulary=vocabulary, scheme="TOKENS")
    assert tagger.entity_types == ()
    table = tagger.tabulate([[sentence]], REFINE_ALL)
    ((prediction,),) = table.predictions(vocabulary)
    assert prediction.labels == tuple(vocabulary.labels[number] for number in table.label.tolist())
    assert prediction.draft_labels == tuple(vocabulary.labels[number] for number in table.draft.tolist())
    assert prediction.spans == ()
    loss = tagger.train().loss(encode(tagger, [[sentence]]))
    loss.backward()
    assert math.isfinite(float(loss.detach()))


def test_thousand_token_labels_are_supported(
    name: str, small: Build, random_documents: Callable[..., Documents]
) -> None:
    if name == "spacy":
        pytest.skip("an NER has no labels of words")
    labels = tuple(f"N{number}" for number in range(1000))
    everything = with_tree(Sentence(words=("a",) * 1000, labels=labels))
    tagger = small(vocabulary=Vocabulary.from_sentences([everything], scheme=TOKENS), scheme="TOKENS")
    sentence = with_tree(Sentence(words=("a", "b", "c"), labels=labels[:3]))
    tagger.train().loss(encode(tagger, [[sentence]])).backward()
    documents = [[with_tree(Sentence(words=("a",)))] * 20, *random_documents(1, documents=1)]
    for document, predictions in zip(documents, tagger.eval().predict_documents(documents), strict=True):
        for found, prediction in zip(document, predictions, strict=True):
            assert len(prediction.labels) == len(found.words)
            assert set(prediction.labels) <= set(labels)


def test_bf16_predictions_are_complete_and_close_to_fp32(
    tagger: Tagger, random_documents: Callable[..., Documents]
) -> None:
    documents = random_documents(4, documents=2)
    exact = tagger.tabulate(documents, REFINE_ALL)
    rough = tagger.tabulate(documents, PredictOptions(threshold=-1.0, precision="bf16"))
    if not tagger.has_scores:
        pytest.skip("it has no probabilities")
    assert rough.probability.dtype == rough.uncertainty.dtype == torch.float32
    assert torch.allclose(exact.uncertainty, rough.uncertainty, atol=0.05)
    assert torch.allclose(exact.probability, rough.probability, atol=0.05)
    for document, found in zip(documents, rough.predictions(tagger.vocabulary), strict=True):
        for sentence, prediction in zip(document, found, strict=True):
            assert_whole(prediction, sentence, tagger)
