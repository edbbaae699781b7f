"""Attention of stage two."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from concord.models.data.batch import Batch, finished
from concord.models.data.outputs import PredictOptions
from concord.models.data.sentence import Sentence
from concord.models.layers.attention import (
    LayeredTwoStreamEncoder,
    RelativeAttention,
    RelativeLayer,
    TwoStreamConfig,
    capture_outputs,
)
from concord.models.taggers.two_stage_networks import MemoryContents, TwoStageConfig

pytestmark = pytest.mark.slow

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


HEADS, WIDTH = 2, 4
CONFIG = TwoStreamConfig(heads=HEADS, head_dimension=WIDTH, layers=2, dropout=0.3, attention_dropout=0.3)


def attend(layer: RelativeLayer, queries: Tensor, states: Tensor) -> Tensor:
    """Attend from one sentence of words to states, both ``(T, heads * width)``, head by head and word by word."""
    attention, rates = layer.attention, 10_000 ** (-torch.arange(0, WIDTH, 2) / WIDTH).to(queries)
    query, key, value = (
        (inputs @ matrix.weight.T).unflatten(1, (HEADS, WIDTH))
        for inputs, matrix in ((queries, attention.query), (states, attention.key), (states, attention.value))
    )
    found = torch.zeros_like(query)
    for head in range(HEADS):
        for i in range(len(queries)):
            scores = []
            for j in range(len(states)):
                offset = attention.position.weight @ torch.cat([((i - j) * rates).sin(), ((i - j) * rates).cos()])
                by_content = (query[i, head] + attention.content_bias[head]) @ key[j, head]
                scores.append(by_content + (query[i, head] + attention.position_bias[head]) @ offset)
            found[i, head] = (torch.stack(scores) / WIDTH**0.5).softmax(0) @ value[:, head]
    return found.flatten(1)


def update(layer: RelativeLayer, queries: Tensor, states: Tensor) -> Tensor:
    """Compute FeedForward(LayerNorm(states + Linear(Attention(queries, states)))) for one sentence."""
    attended = layer.attention_norm(states + layer.projection(attend(layer, queries, states)))
    result: Tensor = layer.feed_forward_norm(attended + layer.feed_forward(attended))
    return result


def remember(tagger: Any, document: list[Sentence]) -> tuple[Batch, Tensor, MemoryContents]:
    """Draft a document; return it as a batch, the drafts' probabilities, and what its words read in the memory."""
    batch = tagger.encode(document, documents=[0] * len(document))
    draft = finished(tagger._draft(batch, None, samples=None))
    memory = tagger._fill_memory(batch, draft.hidden, draft.probabilities)
    rows = (batch.mask.flatten().cumsum(0) - 1).view(batch.mask.shape).masked_fill(~batch.mask, -1)
    return batch, draft.probabilities, memory.read(rows)


@torch.inference_mode()
def test_words_and_labels_are_updated_in_every_layer_as_in_equation_9() -> None:
    torch.manual_seed(0)
    encoder = LayeredTwoStreamEncoder(CONFIG).double().eval()
    words, labels = torch.randn(2, 2, 5, HEADS * WIDTH, dtype=torch.float64)
    lengths = [5, 3]
    mask = torch.arange(5) < torch.tensor(lengths)[:, None]
    found = [words, labels]
    for number in range(CONFIG.layers):
        found = encoder.run_layer(number, found, mask)
    for row, length in enumerate(lengths):
        h, y = words[row, :length], labels[row, :length]
        for word_layer, label_layer in zip((*encoder.lower, encoder.last), encoder.labels, strict=True):
            assert isinstance(word_layer, RelativeLayer)
            assert isinstance(label_layer, RelativeLayer)
            h, y = update(word_layer, h, h), update(label_layer, h, y)
        for stream, expected in zip(found, (h, y), strict=True):
            assert torch.allclose(stream[row, :length], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("sentence_labels", [True, False])
@pytest.mark.parametrize(("contexts", "labels"), [(True, True), (True, False), (False, True)])
@torch.inference_mode()
def test_memory_streams_join_those_of_the_sentence_before_every_layer(
    build: Callable[..., Any], documents: list[list[Sentence]], contexts: bool, labels: bool, sentence_labels: bool
) -> None:
    memory = {"contexts": contexts, "labels": labels}
    sizes = {"two_stream": CONFIG.model_dump(), "sentence_labels": sentence_labels, "memory": memory}
    tagger = build("doc_uanet", label_stream="paper", **sizes)
    network, reader = tagger.refine_network, tagger.refine_network.reader
    batch, probabilities, contents = remember(tagger, documents[0])
    x = network.words_in(network.representation(batch, None))
    found = network(batch, None, probabilities, contents)
    for row, length in enumerate(batch.lengths.tolist()):
        h = x[row, :length]
        y: Any = network.embed_drafts(probabilities[row, :length]) if sentence_labels else None
        # Equation 10 reads once, by the words' own representations.
        context, remembered = [], []
        for place in range(length):
            read = contents.slots[contents.cells == row * batch.mask.shape[1] + place].flatten().tolist()
            slots = [slot for slot in read if slot >= 0]
            keys = reader.key(contents.hidden[slots])
            weights = (keys @ reader.query(h[place]) / h.shape[1] ** 0.5).softmax(0)
            if contexts:
                context.append(weights @ keys if slots else reader.default_context)
            if labels:
                values = reader.value(network.embed_drafts(contents.probabilities[slots]))
                remembered.append(weights @ values if slots else reader.default_label)
        if labels and not sentence_labels:
            y = torch.stack(remembered)
        for number, word_layer in enumerate((*network.encoder.lower, network.encoder.last)):
            if contexts:
                h = network.join_words[number](torch.cat([h, torch.stack(context)], dim=-1))
            if labels and sentence_labels:
                y = network.join_labels[number](torch.cat([y, torch.stack(remembered)], dim=-1))
            y = y if y is None else update(network.encoder.labels[number], h, y)
            h = update(word_layer, h, h)
        expected = network.output(h if y is None else torch.cat([h, y], dim=-1))
        assert torch.allclose(found[row, :length], expected, atol=1e-5)


def test_the_released_stream_is_the_default(build: Callable[..., Any]) -> None:
    assert TwoStageConfig().label_stream == "released"
    names = {name for name, _ in build("uanet").refine_network.encoder.named_parameters()}
    assert not {name for name in names if "projection" in name or name.startswith("labels")}
    assert {name for name in names if name.startswith("label_attention.")}
    assert isinstance(build("uanet").refine_network.encoder.last.projection, nn.Identity)
