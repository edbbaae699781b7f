"""The dependency-aware tagger: its input, loss, ablation switches, and missing trees."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from concord_testing.trees import with_tree
from torch import Tensor, nn

from concord.models.data.sentence import Sentence, TreeError, cut_windows
from concord.models.data.vocabulary import Vocabulary
from concord.models.errors import ConfigError
from concord.models.layers.attention import GlobalAttention, OtherWordsAttention
from concord.models.layers.lstm import BiLstm
from concord.models.layers.tree_lstm import TreeLstm, grow_forest
from concord.models.taggers.base import Tagger

pytestmark = pytest.mark.slow

Build = Callable[..., Any]
SENTENCE = with_tree(Sentence(words=("Ada", "King", "met", "Ford", "in", "Paris", ".")))


def uncertainty(tagger: Tagger, *sentences: Sentence) -> Tensor:
    return tagger.tabulate([list(sentences)]).uncertainty


def with_other_heads(sentence: Sentence) -> Sentence:
    """Return the sentence with a chain as its tree, from the first word on, and the same relations."""
    return replace(sentence, heads=tuple(range(len(sentence.words))))


@pytest.mark.parametrize(
    ("changes", "used"),
    [
        ({}, {"tags", "relations", "heads"}),
        ({"tags": False}, {"relations", "heads"}),
        ({"relations": False}, {"tags", "heads"}),
        ({"branches": "tree", "tags": False, "relations": False}, {"heads"}),
        ({"branches": "sequence"}, {"tags", "relations"}),
        ({"branches": "sequence", "tags": False, "relations": False}, set()),
    ],
)
def test_input_switches_turn_off_their_part(build: Build, changes: dict[str, Any], used: set[str]) -> None:
    tagger = build("dependency_aware", **changes)
    before = uncertainty(tagger, SENTENCE)
    others = {
        "tags": replace(SENTENCE, tags=("VERB",) * 7),
        "relations": replace(SENTENCE, relations=("case",) * 7),
        "heads": with_other_heads(SENTENCE),
    }
    assert {name for name, other in others.items() if not torch.equal(uncertainty(tagger, other), before)} == used


@pytest.mark.parametrize(
    ("changes", "built"),
    [
        ({}, {BiLstm: 2, TreeLstm: 2, OtherWordsAttention: 1, GlobalAttention: 1, nn.LayerNorm: 6}),
        ({"branches": "tree"}, {TreeLstm: 2, OtherWordsAttention: 1, GlobalAttention: 1, nn.LayerNorm: 4}),
        ({"branches": "sequence", "layers": 1}, {BiLstm: 1, OtherWordsAttention: 1, GlobalAttention: 1}),
        ({"residual": False}, {BiLstm: 2, TreeLstm: 2, nn.LayerNorm: 2}),
        ({"relative_attention": False}, {OtherWordsAttention: 0, GlobalAttention: 1, nn.LayerNorm: 5}),
        ({"relative_attention": False, "global_attention": False}, {GlobalAttention: 0, nn.LayerNorm: 4}),
    ],
)
def test_switches_build_the_named_parts_and_train(
    build: Build, documents: list[list[Sentence]], changes: dict[str, Any], built: dict[type[nn.Module], int]
) -> None:
    tagger = build("dependency_aware", **changes)
    assert {kind: sum(type(module) is kind for module in tagger.modules()) for kind in built} == built
    tagger.train().loss(tagger.encode(documents[0])).backward()
    assert all(weight.grad is not None and bool(weight.grad.any()) for weight in tagger.parameters())


def test_tags_and_relations_have_a_quarter_of_the_word_width(build: Build) -> None:
    words = {"word_dimension": 256, "characters": None, "dropout": 0.0}
    tagger = build("dependency_aware", representation=words)
    assert tagger.tags.embedding_dim == tagger.relations.embedding_dim == 64
    assert [layer.layer.output_dimension for layer in tagger.sequence] == [384, 384]
    assert tagger.output.in_features == 768
    with pytest.raises(ConfigError, match="expected an even total width, half for each direction of the LSTM, got 9"):
        build("dependency_aware", representation=words | {"word_dimension": 7})


def test_loss_is_a_mean_over_words_plus_a_penalty_on_lstms_and_attentions(
    build: Build, documents: list[list[Sentence]]
) -> None:
    plain, penalised = (build("dependency_aware", regularization=value) for value in (0.0, 0.5))
    batch = plain.encode(documents[0])
    likelihood = plain.distribution(batch).log_prob(batch.labels).sum()
    assert float(plain.loss(batch).detach()) == pytest.approx(-float(likelihood.detach()) / int(batch.mask.sum()))
    extractors = {
        id(weight): weight
        for layer in (*penalised.sequence, *penalised.tree, penalised.relative, penalised.overall)
        for weight in layer.layer.parameters()
    }
    expected = 0.5 * sum(float(weight.detach().square().sum()) for weight in extractors.values())
    assert float((penalised.loss(batch) - plain.loss(batch)).detach()) == pytest.approx(expected, rel=1e-5)
    outside = {name for name, weight in penalised.named_parameters() if id(weight) not in extractors}
    assert {name.split(".")[0] for name in outside} >= {"representation", "tags", "relations", "output", "crf"}
    assert all("norm" in name for name in outside if name.split(".")[0] in {"sequence", "tree", "relative", "overall"})


def test_summary_of_a_sentence_is_its_last_lstm_states_and_its_roots(
    build: Build, record_calls: Callable[..., Any]
) -> None:
    tagger = build("dependency_aware", relative_attention=False)
    long = replace(SENTENCE, heads=(0, 1, 1, 0, 4, 4, 4))
    short = with_tree(Sentence(words=("It", "rained", ".")))
    with torch.inference_mode(), record_calls(GlobalAttention) as calls:
        tagger.distribution(tagger.encode([long, short]))
    ((_, (states, query, _)),) = calls
    width = states.shape[2] // 2
    half = width // 2
    assert torch.equal(query[0, :half], states[0, 6, :half])
    assert torch.equal(query[1, :half], states[1, 2, :half])
    assert torch.equal(query[:, half:width], states[:, 0, half:width])
    assert torch.allclose(query[0, width:], states[0, [0, 3], width:].mean(dim=0))
    root = (short.heads or ()).index(0)
    assert torch.equal(query[1, width:], states[1, root, width:])


def test_input_dropout_uses_one_mask_for_all_words_of_a_sentence(
    build: Build, documents: list[list[Sentence]], record_calls: Callable[..., Any]
) -> None:
    tagger = build("dependency_aware", input_dropout=0.5, dropout=0.0, layers=1)
    batch = tagger.encode(documents[0])

    def inputs() -> Tensor:
        with torch.inference_mode(), record_calls(BiLstm) as calls:
            tagger.distribution(batch)
        read: Tensor = calls[0][1][0]
        return read

    whole = inputs()
    tagger.train()
    for module in tagger.representation.modules():
        module.training = False
    masked = inputs()
    share = masked / whole
    for row, words in enumerate(batch.lengths.tolist()):
        seen = share[row, :words][whole[row, :words] != 0]
        assert bool(((seen == 0) | ((seen - 2).abs() < 1e-6)).all())
        columns = (masked[row, :words] == 0) | (whole[row, :words] == 0)
        dropped = (masked[row, :words] == 0).all(dim=0)
        assert 0.2 < float(dropped.float().mean()) < 0.8
        assert torch.equal(columns & (whole[row, :words] != 0), dropped & (whole[row, :words] != 0))
    assert not torch.equal(masked[0, 0] == 0, masked[1, 0] == 0)


def test_every_component_reads_its_input_under_one_mask_per_sentence(
    build: Build, documents: list[list[Sentence]], record_calls: Callable[..., Any]
) -> None:
    tagger = build("dependency_aware", input_dropout=0.0, dropout=0.3).train()
    batch = tagger.encode(documents[0])
    with torch.no_grad(), record_calls(BiLstm, TreeLstm, OtherWordsAttention, GlobalAttention) as calls:
        tagger.distribution(batch)
    assert len(calls) == 6
    for _, (states, *_) in calls:
        kept = [row[:words] != 0 for row, words in zip(states, batch.lengths.tolist(), strict=True)]
        assert all(torch.equal(row, row[:1].expand_as(row)) for row in kept)
        assert 0.1 < float((~torch.stack([row[0] for row in kept])).float().mean()) < 0.5
        assert not torch.equal(kept[0][0], kept[1][0])
    # Aguilar and Solorio (2019), section 3.3: LN(x + Sublayer(m * x)), m drawn once for a sentence.
    states = torch.randn(*batch.mask.shape, tagger.output.in_features)
    torch.manual_seed(5)
    found = tagger.relative(states, batch.mask)
    torch.manual_seed(5)
    mask = torch.bernoulli(torch.full((len(states), 1, states.shape[2]), 0.7)) / 0.7
    expected = tagger.relative.norm(states + tagger.relative.layer(states * mask, batch.mask))
    assert torch.allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("missing", ["tags", "heads", "relations"])
def test_sentence_without_a_tree_error_names_it_and_says_what_to_do(build: Build, missing: str) -> None:
    tagger = build("dependency_aware")
    changes: dict[str, Any] = {missing: None}
    bare = replace(with_tree(Sentence(words=("It", "rained", "."))), **changes)
    with pytest.raises(TreeError, match=r"got a sentence without: 'It rained \.'; run `concord parse`"):
        tagger.predict_documents([[SENTENCE], [bare]])


def test_unknown_tags_and_relations_are_zero(build: Build, vocabulary: Vocabulary) -> None:
    tagger = build("dependency_aware")
    strange = replace(SENTENCE, tags=("STRANGE",) * 7, relations=("odd:kind",) * 7)
    batch = tagger.encode([strange])
    assert "STRANGE" not in vocabulary.tags
    assert not tagger.tags(batch.tags).any()
    assert not tagger.relations(batch.relations).any()
    ((prediction,),) = tagger.predict_documents([[strange]])
    assert len(prediction.labels) == 7


@pytest.mark.parametrize("seed", range(5))
def test_every_window_of_a_long_sentence_has_its_own_tree(build: Build, seed: int) -> None:
    sentence = with_tree(Sentence(words=tuple(f"w{seed}-{number}" for number in range(70))))
    windows = cut_windows([[sentence]], longest=20, overlap=6)
    assert len(windows) > 3
    for window in windows:
        grow_forest([window.sentence])
        assert window.sentence.relations is not None
        for place, head in enumerate(window.sentence.heads or ()):
            assert sentence.heads is not None
            whole = sentence.heads[window.first + place] - window.first
            assert head == (whole if 0 < whole <= len(window.sentence.words) else 0)
    ((prediction,),) = build("dependency_aware", window_words=20, window_overlap=6).predict_documents([[sentence]])
    assert len(prediction.labels) == 70


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({}, ["relative", "global"]),
        ({"relative_attention": False}, ["global"]),
        ({"global_attention": False}, ["relative"]),
        ({"relative_attention": False, "global_attention": False}, []),
    ],
)
def test_attention_maps_are_those_of_the_configured_attentions(
    build: Build, changes: dict[str, Any], names: list[str]
) -> None:
    (maps,) = build("dependency_aware", **changes).attention_maps([SENTENCE])
    assert list(maps) == names
    if "relative" in names:
        assert not maps["relative"].weights[0].diagonal().any()
    if "global" in names:
        assert torch.equal(maps["global"].weights[0], maps["global"].weights[0, :1].expand(7, -1))
