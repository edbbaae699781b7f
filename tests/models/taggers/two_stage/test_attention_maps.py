"""Attention maps of the two-stage taggers and the relative Transformer: figures show what was computed."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from concord.models.data.outputs import PredictOptions
from concord.models.data.sentence import Sentence
from concord.models.layers.attention import RelativeAttention, capture_outputs

Build = Callable[..., Any]
Documents = list[list[Sentence]]


@pytest.mark.parametrize(
    ("name", "changes", "maps"),
    [
        ("uanet", {}, ["words_1", "words_2", "drafts"]),
        ("uanet", {"sentence_labels": False}, ["words_1", "words_2"]),
        ("uanet", {"label_stream": "paper"}, ["words_1", "words_2", "drafts_1", "drafts_2"]),
        ("doc_uanet", {"label_stream": "paper"}, ["words_1", "words_2", "drafts_1", "drafts_2", "memory"]),
        ("doc_uanet", {}, ["words_1", "words_2", "drafts", "memory"]),
        ("doc_uanet", {"memory": {"labels": False}}, ["words_1", "words_2", "drafts", "memory"]),
        ("doc_uanet", {"memory": {"labels": False, "contexts": False}}, ["words_1", "words_2", "drafts"]),
        ("rel_transformer", {}, ["words_1", "words_2"]),
        ("variational_lstm", {}, []),
    ],
)
def test_each_attention_has_its_map(
    name: str, changes: dict[str, Any], maps: list[str], build: Build, documents: Documents
) -> None:
    tagger = build(name, **changes)
    for sentence, found in zip(documents[0], tagger.attention_maps(documents[0]), strict=True):
        assert list(found) == maps
        for attention in (found[name] for name in maps if name != "memory"):
            assert attention.columns == sentence.words
            assert torch.allclose(attention.weights.sum(-1), torch.ones(2, len(sentence.words)))


@torch.no_grad()
def test_map_weights_are_those_applied_to_the_values(build: Build, documents: Documents) -> None:
    tagger, sentence = build("uanet"), documents[0][0]
    attention = tagger.refine_network.encoder.label_attention
    seen = []
    handle = attention.register_forward_hook(lambda _, arguments, output: seen.append((arguments, output)))
    (maps,) = tagger.attention_maps([sentence])
    handle.remove()
    (((queries, keys, mask), output),) = seen
    weights = maps["drafts"].weights
    expected = attention.scores(queries, keys).masked_fill(~mask[:, None, None, :], float("-inf")).softmax(-1)
    assert torch.allclose(weights, expected[0])
    values = attention.value(keys).view(len(sentence.words), 2, -1).transpose(0, 1)
    assert torch.allclose(output[0], (weights @ values).transpose(0, 1).flatten(1), atol=1e-6)


def test_memory_map_points_at_the_other_occurrences_in_the_document(build: Build, documents: Documents) -> None:
    document = documents[0]
    maps = build("doc_uanet").attention_maps(document)
    words = tuple(word for sentence in document for word in sentence.words)
    place = 0
    for sentence, found in zip(document, maps, strict=True):
        memory = found["memory"]
        assert memory.columns == words
        for word, row in zip(sentence.words, memory.weights[0], strict=True):
            others = [number for number, other in enumerate(words) if other == word and number != place]
            assert row.nonzero().flatten().tolist() == others
            assert float(row.sum()) == pytest.approx(1.0 if others else 0.0, abs=1e-6)
            place += 1


def test_memory_map_of_a_document_without_recurring_words_is_empty(build: Build) -> None:
    ((maps),) = build("doc_uanet").attention_maps([Sentence(words=("Ada", "slept"), labels=("B-UNHEARD_OF", "O"))])
    assert maps["memory"].weights.tolist() == [[[0.0, 0.0], [0.0, 0.0]]]


def test_attention_maps_leave_no_hook_and_change_nothing(build: Build, documents: Documents) -> None:
    tagger = build("doc_uanet")
    before = tagger.tabulate(documents, PredictOptions(threshold=-1.0)).probability
    tagger.attention_maps(documents[0])
    assert not any(module._forward_hooks for module in tagger.modules())
    assert torch.equal(tagger.tabulate(documents, PredictOptions(threshold=-1.0)).probability, before)


def test_capture_ends_when_its_block_fails() -> None:
    layer = nn.Linear(2, 2)

    def run() -> None:
        with capture_outputs({"layer": layer}):
            layer(torch.zeros(1, 3))

    with pytest.raises(RuntimeError):
        run()
    assert not layer._forward_hooks


def test_lower_layers_are_numbered_before_the_last(build: Build) -> None:
    encoder = build("uanet").refine_network.encoder
    attentions = [module for module in encoder.modules() if isinstance(module, RelativeAttention)]
    assert [id(module) for module in encoder.attentions().values()] == [id(module.dropout) for module in attentions]
