"""Taggers by name, and with further types."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from concord_testing.encoders import write_encoder
from torch import Tensor, nn

from concord.models.adapters.hf import HfTagger
from concord.models.bundles.checkpoint import load_tagger, save_tagger
from concord.models.bundles.registry import available, build_tagger, tagger_class, with_types
from concord.models.data.batch import Batch
from concord.models.data.sentence import Sentence
from concord.models.data.vocabulary import Vocabulary
from concord.models.errors import ConfigError
from concord.models.labels import BIO
from concord.models.taggers.base import Tagger
from concord.models.taggers.two_stage import TwoStageTagger
from concord.models.taggers.two_stage_networks import MemoryContents


def test_every_module_of_taggers_is_one_tagger_of_that_name() -> None:
    assert {"bilstm_crf", "bilstm_softmax", "doc_uanet", "uanet"} <= set(available())
    for name in available():
        assert tagger_class(name).name == name
        assert tagger_class(name).__module__ == f"concord.models.taggers.{name}"


def test_tagger_class_suggests_the_nearest_name_when_unknown() -> None:
    with pytest.raises(ConfigError, match="unknown tagger 'bilstm_crff'; did you mean 'bilstm_crf'"):
        tagger_class("bilstm_crff")
    with pytest.raises(ConfigError, match=r"unknown tagger 'x'; known taggers: att_bilstm_cnn, "):
        tagger_class("x")


def test_build_tagger_rejects_a_key_of_another_tagger(vocabulary: Vocabulary) -> None:
    with pytest.raises(ConfigError, match=r"bilstm_crf: samples: unknown key"):
        build_tagger("bilstm_crf", {"samples": 8}, vocabulary)


Build = Callable[..., Tagger]
Documents = list[list[Sentence]]

NAMES = tuple(name for name in available() if name != "fixed_labels")
READS_LABELS = ("bilstm_lan", "structured_refinement")
"""Taggers whose lower layers read the labels, so that new ones change their scores a little."""


def old_numbers(tagger: Tagger, wider: Tagger) -> list[int]:
    """Return the numbers that the labels of a tagger have in a wider one."""
    return [wider.vocabulary.labels.index(label) for label in tagger.vocabulary.labels]


def of_old_labels(value: Tensor, old: Tensor, numbers: list[int]) -> Tensor:
    """Return the part of a wider weight that belongs to the old labels."""
    for dimension, size in enumerate(old.shape):
        if value.shape[dimension] != size:
            value = value.index_select(dimension, torch.tensor(numbers))
    return value


def scores(tagger: Tagger, batch: Batch) -> Tensor:
    """Return what the output layer of stage one, or of the only stage, gives the labels."""
    outputs: list[Tensor] = []
    layer = next(module for name, module in tagger.named_modules() if name.rpartition(".")[2] == "output")
    assert isinstance(layer, nn.Linear)
    with layer.register_forward_hook(lambda *call: outputs.append(call[2])), torch.inference_mode():
        torch.manual_seed(5)
        tagger.loss(batch)
    return outputs[0]


@pytest.mark.parametrize("name", NAMES)
def test_old_weights_are_kept(build: Build, name: str) -> None:
    tagger = build(name)
    wider = with_types(tagger, ["DATE", "ZOO", "PER"])
    assert wider.entity_types == ("DATE", "LOC", "ORG", "PER", "ZOO")
    assert not wider.training
    numbers, weights, grown = old_numbers(tagger, wider), wider.state_dict(), 0
    assert weights.keys() == tagger.state_dict().keys()
    for key, old in tagger.state_dict().items():
        assert torch.equal(of_old_labels(weights[key], old, numbers), old), key
        grown += weights[key].shape != old.shape
    assert grown


@pytest.mark.parametrize("name", [name for name in NAMES if name not in READS_LABELS])
def test_scores_of_old_labels_are_unchanged(build: Build, documents: Documents, name: str) -> None:
    tagger = build(name)
    wider = with_types(tagger, ["DATE"])
    before, after = (scores(one, one.encode(documents[0])) for one in (tagger, wider))
    assert after.shape[-1] == before.shape[-1] + 4
    assert torch.equal(after[..., old_numbers(tagger, wider)], before)


@pytest.mark.parametrize("name", ["uanet", "doc_uanet"])
def test_stage_two_gives_old_labels_the_scores_it_gave_them_for_the_same_drafts(
    build: Build, documents: Documents, name: str
) -> None:
    tagger = build(name)
    wider = with_types(tagger, ["DATE"])
    assert isinstance(tagger, TwoStageTagger)
    assert isinstance(wider, TwoStageTagger)
    numbers, batch = old_numbers(tagger, wider), tagger.encode(documents[0])
    drafts = torch.rand(*batch.mask.shape, len(tagger.vocabulary.labels)).softmax(dim=-1)
    wide_drafts = torch.zeros(*batch.mask.shape, len(wider.vocabulary.labels)).index_copy(
        -1, torch.tensor(numbers), drafts
    )
    hidden, slots = torch.rand(7, 16), torch.arange(batch.mask.numel()).view(*batch.mask.shape, 1) % 8 - 1

    def memory(one: Tensor) -> MemoryContents | None:
        contents = MemoryContents.of(hidden, one[0, :7], slots)
        return contents if name == "doc_uanet" else None

    with torch.inference_mode():
        before = tagger.refine_network(batch, None, drafts, memory(drafts))
        after = wider.refine_network(batch, None, wide_drafts, memory(wide_drafts))
    assert torch.allclose(after[..., numbers], before, atol=1e-6)


@pytest.mark.parametrize("name", ["bilstm_softmax", "bilstm_crf", "dependency_aware", "rel_transformer"])
def test_before_it_is_trained_a_tagger_finds_what_it_found(
    build: Build, random_documents: Callable[..., Documents], name: str
) -> None:
    tagger = build(name)
    tagger.state_dict()["output.weight"].mul_(40)
    documents = random_documents(3, documents=4)
    before, after = (one.predict_documents(documents) for one in (tagger, with_types(tagger, ["DATE", "ZOO"])))
    labels = [[prediction.labels for prediction in document] for document in before]
    assert {label for document in labels for sentence in document for label in sentence} > {"O"}
    assert [[prediction.labels for prediction in document] for document in after] == labels


def test_a_new_type_follows_itself_as_the_others_do(build: Build) -> None:
    tagger = build("bilstm_crf")
    transitions = tagger.state_dict()["crf.transitions"]
    labels = tagger.vocabulary.labels
    for kind in tagger.entity_types:
        transitions[labels.index(f"B-{kind}"), labels.index(f"I-{kind}")] = 6.0
        transitions[labels.index(f"B-{kind}"), labels.index("O")] = -6.0
    wider = with_types(tagger, ["DATE"])
    grown, names = wider.state_dict()["crf.transitions"], wider.vocabulary.labels
    assert grown[names.index("B-DATE"), names.index("I-DATE")] == 6.0
    assert grown[names.index("B-DATE"), names.index("O")] == -6.0
    assert abs(grown[names.index("B-DATE"), names.index("I-PER")]) < 6.0


def test_a_wider_tagger_loads_as_it_was_saved(build: Build, documents: Documents, tmp_path: Path) -> None:
    tagger = build("doc_uanet")
    tagger.set_threshold(0.2)
    wider = with_types(tagger, ["DATE"])
    save_tagger(wider, tmp_path)
    loaded = load_tagger(tmp_path)
    assert loaded.entity_types == ("DATE", "LOC", "ORG", "PER")
    assert loaded.threshold == 0.2
    assert loaded.predict_documents(documents) == wider.predict_documents(documents)


def test_a_tagger_without_types_gets_its_first_ones(build: Build) -> None:
    empty = Vocabulary.from_sentences([Sentence(words=("Ada", "slept"), labels=("O", "O"))], scheme=BIO)
    wider = with_types(build("bilstm_crf", vocabulary=empty, scheme="BIO"), ["PER", "LOC"])
    assert wider.vocabulary.labels == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
    weight = wider.state_dict()["output.weight"]
    assert torch.equal(weight, weight[:1].expand_as(weight))


@pytest.mark.slow
def test_the_model_of_another_library_takes_no_new_type(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path, ["ada"], labels=("O", "B-PER", "I-PER"))
    with pytest.raises(ConfigError, match="hf: expected no new types"):
        with_types(HfTagger.adapt(str(folder)), ["DATE"])
