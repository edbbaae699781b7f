"""Structured refinement: sizes, what layers share, and gradients through marginals."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from concord.models.data.batch import Batch
from concord.models.data.sentence import Sentence
from concord.models.data.vocabulary import Vocabulary
from concord.models.decoders.crf import CrfDistribution, LinearChain
from concord.models.errors import ConfigError
from concord.models.labels import BIOES
from concord.models.taggers.structured_refinement import Merge, StructuredAttention, StructuredRefinement

LENGTHS = torch.tensor([1, 2, 5])
MASK = torch.arange(5)[None, :] < LENGTHS[:, None]
Build = Callable[..., StructuredRefinement]
Documents = list[list[Sentence]]


@pytest.fixture
def paper(build: Callable[..., Any]) -> Build:
    """Build the tagger in the paper's sizes, for 18 entity types in BIOES, that is 73 labels."""
    vocabulary = Vocabulary(
        words=("word",), characters=("c",), labels=BIOES.label_set([f"T{number:02}" for number in range(18)])
    )
    representation = {"word_dimension": 100, "characters": {"kind": "lstm", "embedding_dimension": 30, "hidden": 50}}

    def make(*, hidden: int = 300, **changes: Any) -> StructuredRefinement:
        built = build(
            "structured_refinement",
            vocabulary=vocabulary,
            representation=representation,
            lstm={"hidden": hidden},
            **changes,
        )
        assert isinstance(built, StructuredRefinement)
        return built

    return make


@pytest.fixture
def tagger(build: Callable[..., Any]) -> Build:
    return lambda **changes: build("structured_refinement", **changes)


def encode(tagger: StructuredRefinement, documents: Documents) -> Batch:
    return tagger.encode([sentence for document in documents for sentence in document])


def count(tagger: StructuredRefinement) -> int:
    """Count parameters without word and character embeddings."""
    tables = {id(module.weight) for module in tagger.modules() if isinstance(module, nn.Embedding)}
    return sum(weight.numel() for weight in tagger.parameters() if id(weight) not in tables)


class Marginals(nn.Module):
    """Has the marginals of a random chain."""

    def __init__(self, labels: int) -> None:
        super().__init__()
        self.chain = random_chain(labels)

    def forward(self, emissions: Tensor) -> Tensor:
        distribution: CrfDistribution = self.chain(emissions, MASK)
        return distribution.marginals()


def random_chain(labels: int) -> LinearChain:
    torch.manual_seed(0)
    chain = LinearChain(labels).double()
    for scores in chain.parameters():
        nn.init.normal_(scores)
    return chain


def random_emissions(labels: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(3, 5, labels, dtype=torch.float64, generator=generator)


@pytest.mark.slow
def test_number_of_parameters_matches_the_paper(paper: Build) -> None:
    one = count(paper())
    assert one == 3_813_475
    assert sum(weight.numel() for weight in paper().crfs.parameters()) == 5_475
    assert count(paper(layers=2)) - one == 2_526_600
    assert one - count(paper(hidden=200)) == 1_978_400
    assert count(paper(sharing="embeddings")) - one == 5_475
    assert count(paper(sharing="none")) - one == 5_475 + 73 * 600
    assert count(paper(sharing="none", latent_labels=10)) - one == 10 * 10 + 2 * 10 + 10 * 600


@pytest.mark.parametrize(("sharing", "same"), [("both", (1, 1)), ("embeddings", (1, 3)), ("none", (3, 3))])
def test_layers_and_decoder_use_the_same_objects_when_shared(
    tagger: Build,
    documents: Documents,
    record_calls: Callable[..., AbstractContextManager[Any]],
    sharing: str,
    same: tuple[int, int],
) -> None:
    built = tagger(layers=2, sharing=sharing)
    with record_calls(LinearChain, StructuredAttention) as calls:
        built.distribution(encode(built, documents))
    chains = [module for module, _ in calls if isinstance(module, LinearChain)]
    read = [arguments[1] for module, arguments in calls if isinstance(module, StructuredAttention)]
    assert len(chains) == 3
    assert len({id(part) for part in (*read, built.label_embeddings[-1])}) == same[0]
    assert len({id(chain) for chain in chains}) == same[1]
    assert chains[-1] is built.crfs[-1]


def test_layer_with_its_own_latent_labels_learns(tagger: Build, documents: Documents) -> None:
    built = tagger(sharing="none", latent_labels=4)
    assert [len(embedding) for embedding in built.label_embeddings] == [4, 13]
    built.train().loss(encode(built, documents)).backward()
    assert all(weight.grad is not None and bool((weight.grad != 0).any()) for weight in built.parameters())


def test_shared_latent_labels_are_rejected(tagger: Build) -> None:
    with pytest.raises(ConfigError, match=r"latent_labels: .*expected sharing: none"):
        tagger(latent_labels=4)


@pytest.mark.parametrize("merge", ["residual", "concatenation"])
def test_attention_is_the_expected_projected_label_embedding(merge: Merge) -> None:
    layer = StructuredAttention(6, merge=merge).double()
    nn.init.normal_(layer.norm.weight)
    hidden = torch.randn(3, 5, 6, dtype=torch.float64)
    embedding = torch.randn(4, 6, dtype=torch.float64)
    distribution: CrfDistribution = random_chain(4)(random_emissions(4), MASK)
    refined, marginals = layer(hidden, embedding, distribution), distribution.marginals()
    for row, length in enumerate(LENGTHS.tolist()):
        for word in range(length):
            expected = torch.zeros(6, dtype=torch.float64)
            for label in range(4):
                expected = expected + marginals[row, word, label] * layer.value(embedding[label])
            state, added = hidden[row, word], expected.clamp(min=0)
            joined = state + added if merge == "residual" else torch.cat((state, added))
            assert torch.allclose(refined[row, word], layer.norm(joined), atol=1e-12, rtol=0)


@pytest.mark.slow
def test_gradient_of_the_marginals_equals_finite_differences() -> None:
    network = Marginals(3)
    names, scores = zip(*network.named_parameters(), strict=True)

    def marginals(emissions: Tensor, *scores: Tensor) -> Tensor:
        found: Tensor = torch.func.functional_call(network, dict(zip(names, scores, strict=True)), emissions)
        return found

    emissions = random_emissions(3).requires_grad_()
    assert torch.autograd.gradcheck(marginals, (emissions, *scores), eps=1e-6, atol=1e-7, rtol=0)
    assert torch.autograd.gradgradcheck(marginals, (emissions, *scores), eps=1e-6, atol=1e-7, rtol=0)


def test_attention_maps_are_the_marginals_of_each_layer(tagger: Build, documents: Documents) -> None:
    maps = tagger(layers=2).attention_maps(documents[0])
    assert list(maps[0]) == ["refinement_1", "refinement_2"]
    assert maps[0]["refinement_1"].columns == tagger().vocabulary.labels
    assert maps[0]["refinement_1"].weights.shape == (1, 7, 13)
    assert tagger(sharing="none").attention_maps(documents[0])[0] == {}
