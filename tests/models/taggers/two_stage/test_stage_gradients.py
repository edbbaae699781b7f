"""Gradients: stage two never trains stage one, and nothing trains a frozen encoder."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from concord.models.data.batch import Batch
from concord.models.data.outputs import PredictOptions
from concord.models.data.sentence import Sentence
from concord.models.taggers.two_stage import TwoStageTagger
from concord.models.taggers.two_stage_networks import MemoryContents
from concord.models.words.bert import Bert
from concord.models.words.encoder import load_encoder
from concord.models.words.encoder_config import EncoderConfig

Build = Callable[..., TwoStageTagger]
TAGGERS = pytest.mark.parametrize("name", ["uanet", "doc_uanet"])
# Without dropout the loss is a function of the weights alone, so gradients can be compared.
STILL: dict[str, Any] = {
    "lstm": {"hidden": 8, "input_dropout": 0.0, "recurrent_dropout": 0.0, "output_dropout": 0.0},
    "draft_representation": {"word_dimension": 12, "dropout": 0.0, "characters": None, "rare_to_unknown": 0.0},
    "refine_representation": {"word_dimension": 12, "dropout": 0.0, "characters": None, "rare_to_unknown": 0.0},
    "two_stream": {"heads": 2, "head_dimension": 8, "dropout": 0.0, "attention_dropout": 0.0},
}


def encode(tagger: TwoStageTagger, documents: list[list[Sentence]]) -> Batch:
    owners = [number for number, document in enumerate(documents) for _ in document]
    return tagger.encode([sentence for document in documents for sentence in document], documents=owners)


def cross_entropy(logits: Tensor, batch: Batch) -> Tensor:
    assert batch.labels is not None
    return nn.functional.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), reduction="sum")


@pytest.mark.parametrize("form", ["paper", "released"])
def test_memory_trains_the_label_embedding_in_the_form_of_the_paper_alone(
    form: str, build: Build, documents: list[list[Sentence]]
) -> None:
    # Without labels of the sentence only those in memory could train their embedding.
    tagger = build("doc_uanet", **STILL, sentence_labels=False, memory={"value_gradient": form, "dropout": 0.0})
    other = build("doc_uanet", **STILL, sentence_labels=False, memory={"dropout": 0.0})
    loss = tagger.loss(encode(tagger, documents))
    assert torch.equal(loss, other.loss(encode(other, documents)))
    loss.backward()
    assert (tagger.refine_network.label_embedding.grad is not None) == (form == "paper")
    reader = tagger.refine_network.reader
    assert reader is not None
    assert reader.value.weight.grad is not None
    assert bool(reader.value.weight.grad.any())


@TAGGERS
def test_stage_one_learns_only_from_its_own_loss(name: str, build: Build, documents: list[list[Sentence]]) -> None:
    tagger = build(name, **STILL)
    batch = encode(tagger, documents)
    weights = list(tagger.draft_network.parameters())
    both = torch.autograd.grad(tagger.loss(batch), weights)
    own = torch.autograd.grad(
        cross_entropy(tagger.draft_network(batch, None)[0], batch) / len(batch.sentences), weights
    )
    assert all(torch.allclose(left, right, atol=1e-6) for left, right in zip(both, own, strict=True))


@TAGGERS
def test_loss_is_the_sum_of_both_cross_entropies_per_sentence(
    name: str, build: Build, documents: list[list[Sentence]]
) -> None:
    tagger = build(name, **STILL)
    single = [[document[0]] for document in documents]
    batch = encode(tagger, single)
    logits, hidden = tagger.draft_network(batch, None)
    # One sentence per document without repeated words: nothing to remember.
    empty = torch.full((*batch.mask.shape, 10), -1)
    memory = MemoryContents.of(hidden.flatten(0, 1), logits.softmax(-1).flatten(0, 1), empty)
    refined = tagger.refine_network(batch, None, logits.softmax(-1), memory if name == "doc_uanet" else None)
    expected = (cross_entropy(logits, batch) + cross_entropy(refined, batch)) / 3
    assert float(tagger.loss(batch).detach()) == pytest.approx(float(expected.detach()), rel=1e-5)


@TAGGERS
def test_word_representations_share_no_storage(name: str, build: Build) -> None:
    tagger = build(name)
    first, second = tagger.draft_network.representation, tagger.refine_network.representation
    assert first.words is not None
    assert second.words is not None
    assert not torch.equal(first.words.weight, second.words.weight)
    places = [{weight.data_ptr() for weight in part.parameters()} for part in (first, second)]
    assert places[0].isdisjoint(places[1])


@pytest.mark.slow
@pytest.mark.encoder
@TAGGERS
def test_both_stages_share_one_frozen_encoder(
    name: str,
    build: Build,
    documents: list[list[Sentence]],
    encoder_values: Mapping[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    networks: list[Bert] = []
    read = Bert.states

    def record(network: Bert, rows: Sequence[Sequence[int]]) -> list[Tensor]:
        networks.append(network)
        return read(network, rows)

    monkeypatch.setattr(Bert, "states", record)
    load_encoder.cache_clear()
    tagger = build(name, encoder=encoder_values)
    encoder = load_encoder(EncoderConfig.from_mapping(encoder_values), "cpu")
    before = encoder.features([("ada", "laughed")])[0]
    tagger.predict_documents(documents, PredictOptions(threshold=-1.0))
    assert len(networks) == 2
    assert networks[1] is networks[0]
    weights = list(networks[0]._weights.values())
    assert not any(weight.requires_grad for weight in weights)

    owned = {parameter.data_ptr() for parameter in tagger.parameters()}
    assert owned.isdisjoint(weight.data_ptr() for weight in weights)
    assert len(tagger.state_dict()) == len(list(tagger.parameters()))
    optimizer = torch.optim.SGD(tagger.parameters(), lr=0.1)
    tagger.train().loss(encode(tagger, documents)).backward()
    optimizer.step()
    assert torch.equal(encoder.features([("ada", "laughed")])[0], before)


@pytest.mark.slow
@pytest.mark.encoder
def test_each_stage_has_its_own_projection_of_the_encoder(build: Build, encoder_values: Mapping[str, Any]) -> None:
    parts = {"word_dimension": 4, "characters": None, "encoder_dimension": 5}
    tagger = build("uanet", encoder=encoder_values, draft_representation=parts, refine_representation=parts)
    first, second = tagger.draft_network.representation, tagger.refine_network.representation
    assert first.projection is not None
    assert second.projection is not None
    assert first.projection.weight.shape == (5, 16)
    assert first.projection.weight.data_ptr() != second.projection.weight.data_ptr()
