"""The ablations of Ye et al. (2021), Table IV: each switch turns off what it names and nothing else."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from concord.models.bundles.checkpoint import load_tagger, save_tagger
from concord.models.data.batch import Batch
from concord.models.data.outputs import PredictOptions
from concord.models.data.sentence import Sentence
from concord.models.taggers.two_stage import TwoStageTagger
from concord.models.taggers.two_stage_networks import MemoryContents

pytestmark = pytest.mark.slow

Build = Callable[..., Any]
Documents = list[list[Sentence]]
Draw = Callable[..., Documents]
COLUMNS = ("draft", "label", "probability", "margin", "uncertainty", "refined")
REFINE_ALL = PredictOptions(threshold=-1.0)
NO_LABELS: dict[str, Any] = {"memory": {"labels": False}}
NO_CONTEXTS: dict[str, Any] = {"memory": {"contexts": False}}
NO_MEMORY: dict[str, Any] = {"memory": {"labels": False, "contexts": False}}
ABLATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "label": ("uanet", {"sentence_labels": False}),
    "hard": ("uanet", {"label_embedding": "hard"}),
    "label-stream": ("uanet", {"label_stream": "paper"}),
    "document-label-stream": ("doc_uanet", {"label_stream": "paper"}),
    "document-label-stream-label": ("doc_uanet", {"label_stream": "paper", **NO_LABELS}),
    "document-label-stream-context": ("doc_uanet", {"label_stream": "paper", **NO_CONTEXTS}),
    "label-stream-no-label": ("uanet", {"label_stream": "paper", "sentence_labels": False}),
    "document-label-stream-every-label": (
        "doc_uanet",
        {"label_stream": "paper", "sentence_labels": False, **NO_LABELS},
    ),
    "document-label-stream-sentence-label": ("doc_uanet", {"label_stream": "paper", "sentence_labels": False}),
    "crf": ("uanet", {"decoder": "crf"}),
    "label-crf": ("uanet", {"sentence_labels": False, "decoder": "crf"}),
    "document-label": ("doc_uanet", NO_LABELS),
    "document-context": ("doc_uanet", NO_CONTEXTS),
    "document-both": ("doc_uanet", NO_MEMORY),
    "sentence-label": ("doc_uanet", {"sentence_labels": False}),
    "sentence-label-document-context": ("doc_uanet", {"sentence_labels": False, **NO_CONTEXTS}),
    "every-label": ("doc_uanet", {"sentence_labels": False, **NO_LABELS}),
    "document-crf": ("doc_uanet", {"decoder": "crf"}),
    "rel-transformer-crf": ("rel_transformer", {"decoder": "crf"}),
    "variational-lstm-crf": ("variational_lstm", {"decoder": "crf"}),
}


def encode(tagger: Any, documents: Documents) -> Batch:
    owners = [number for number, document in enumerate(documents) for _ in document]
    batch: Batch = tagger.encode([sentence for document in documents for sentence in document], documents=owners)
    return batch


def memory_of(batch: Batch, tagger: TwoStageTagger, read: dict[int, list[int]], *, seed: int = 0) -> MemoryContents:
    """Return random contents, and the slots of each reading word."""
    generator = torch.Generator().manual_seed(seed)
    words, labels = int(batch.mask.numel()), len(tagger.vocabulary.labels)
    slots = torch.full((words, 3), -1)
    for word, numbers in read.items():
        slots[word, : len(numbers)] = torch.tensor(numbers)
    hidden = torch.randn(words, 16, generator=generator)
    probabilities = torch.randn(words, labels, generator=generator).softmax(-1)
    return MemoryContents.of(hidden, probabilities, slots.view(*batch.mask.shape, 3))


def drafts_of(batch: Batch, tagger: TwoStageTagger, *, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*batch.mask.shape, len(tagger.vocabulary.labels), generator=generator).softmax(-1)


@pytest.fixture(params=sorted(ABLATIONS))
def ablated(request: pytest.FixtureRequest, build: Build) -> Any:
    name, changes = ABLATIONS[request.param]
    return build(name, **changes)


# The values of the taggers without ablation switches.
@pytest.mark.parametrize(
    ("name", "probabilities"),
    [
        ("uanet", [0.116139, 0.139096, 0.12124, 0.183049, 0.123636, 0.175069, 0.119433]),
        ("doc_uanet", [0.1417, 0.157518, 0.137893, 0.191375, 0.131598, 0.146586, 0.10822]),
    ],
)
def test_default_weights_and_predictions_are_unchanged(
    name: str, probabilities: list[float], build: Build, documents: Documents
) -> None:
    table = build(name).tabulate(documents, REFINE_ALL)
    assert table.probability[:7].tolist() == pytest.approx(probabilities, abs=1e-5)
    uncertainty = [2.549801, 2.551096, 2.550235, 2.549991, 2.551553, 2.551598, 2.553925]
    assert table.uncertainty[:7].tolist() == pytest.approx(uncertainty, abs=1e-5)


def test_all_weights_of_an_ablation_get_a_gradient(ablated: Any, documents: Documents) -> None:
    ablated.train().loss(encode(ablated, documents)).backward()
    idle = [key for key, weight in ablated.named_parameters() if weight.grad is None or not bool(weight.grad.any())]
    assert idle == []
    grouped = [id(weight) for group in ablated.parameter_groups().values() for weight in group]
    assert sorted(grouped) == sorted(id(weight) for weight in ablated.parameters())


def test_ablation_is_saved_with_its_switch(ablated: Any, tmp_path: Path, random_documents: Draw) -> None:
    documents = random_documents(3, documents=3)
    save_tagger(ablated, tmp_path)
    loaded = load_tagger(tmp_path)
    assert loaded.config == ablated.config
    first, second = (which.tabulate(documents, REFINE_ALL) for which in (ablated, loaded))
    assert all(torch.equal(getattr(first, column), getattr(second, column)) for column in COLUMNS)


def test_ablation_predicts_the_same_alone_and_in_a_batch(ablated: Any, random_documents: Draw) -> None:
    documents = random_documents(2, documents=4)
    together = ablated.tabulate(documents, REFINE_ALL)
    apart = [ablated.tabulate([document], REFINE_ALL) for document in documents]
    assert torch.allclose(together.probability, torch.cat([table.probability for table in apart]), atol=1e-5)


def test_stage_two_reads_only_words_without_label_information(build: Build, documents: Documents) -> None:
    for changes in ({"sentence_labels": False}, {}):
        tagger = build("uanet", **changes)
        batch = encode(tagger, documents)
        one, other = (tagger.refine_network(batch, None, drafts_of(batch, tagger, seed=seed), None) for seed in (1, 2))
        assert torch.equal(one, other) == bool(changes)
        named = [name for name, _ in tagger.refine_network.named_parameters() if "label" in name]
        assert (named == []) == bool(changes)


def test_memory_holds_only_states_without_document_labels(build: Build, documents: Documents) -> None:
    assert memory_matters(build("doc_uanet", **NO_LABELS), documents, [4]) == {"hidden": True, "labels": False}


def test_memory_holds_only_labels_without_document_contexts(build: Build, documents: Documents) -> None:
    tagger = build("doc_uanet", **NO_CONTEXTS)
    assert memory_matters(tagger, documents, [4]) == {"hidden": False, "labels": True}
    # States address the slots: with more than one slot they determine the weights of the labels.
    assert memory_matters(tagger, documents, [4, 7]) == {"hidden": True, "labels": True}


def test_memory_is_read_completely_without_sentence_labels(build: Build, documents: Documents) -> None:
    tagger = build("doc_uanet", sentence_labels=False)
    assert memory_matters(tagger, documents, [4]) == {"hidden": True, "labels": True}
    batch = encode(tagger, documents)
    memory = memory_of(batch, tagger, {0: [4]})
    one, other = (tagger.refine_network(batch, None, drafts_of(batch, tagger, seed=seed), memory) for seed in (1, 2))
    assert torch.equal(one, other)


def memory_matters(tagger: TwoStageTagger, documents: Documents, slots: list[int]) -> dict[str, bool]:
    """Return which contents affect the result of stage two for a word that reads ``slots``."""
    batch = encode(tagger, documents)
    drafts = drafts_of(batch, tagger, seed=1)
    memory, other = (memory_of(batch, tagger, {0: slots}, seed=seed) for seed in (1, 2))
    contents = {
        "hidden": replace(memory, hidden=other.hidden),
        "labels": replace(memory, probabilities=other.probabilities),
    }
    expected = tagger.refine_network(batch, None, drafts, memory)
    return {
        name: not torch.allclose(tagger.refine_network(batch, None, drafts, changed), expected, atol=1e-6)
        for name, changed in contents.items()
    }


def test_doc_uanet_without_memory_is_uanet_trained_on_documents(build: Build, random_documents: Draw) -> None:
    tagger, uanet = build("doc_uanet", **NO_MEMORY), build("uanet", seed=2)
    assert tagger.learns_from_documents
    uanet.load_state_dict(tagger.state_dict())
    documents = random_documents(4, documents=3)
    found, expected = (which.tabulate(documents, REFINE_ALL) for which in (tagger, uanet))
    assert all(torch.equal(getattr(found, column), getattr(expected, column)) for column in COLUMNS)


def test_hard_label_is_the_embedding_of_the_draft_regardless_of_probability(build: Build) -> None:
    network = build("uanet", label_embedding="hard").refine_network
    probabilities = torch.full((2, 3, network.label_embedding.shape[0]), 0.01)
    probabilities[..., 5] = 0.5
    expected = network.labels_in(network.label_embedding[5]).expand(2, 3, -1)
    assert torch.allclose(network.embed_drafts(probabilities), expected, atol=1e-6)
    network.embed_drafts(probabilities).sum().backward()
    assert network.label_embedding.grad is not None
    assert network.label_embedding.grad.any(dim=1).nonzero().tolist() == [[5]]
    soft = build("uanet").refine_network
    assert not torch.allclose(soft.embed_drafts(probabilities), soft.labels_in(soft.label_embedding[5]), atol=1e-2)


@pytest.mark.parametrize("name", ["uanet", "doc_uanet", "rel_transformer", "variational_lstm"])
def test_crf_labels_are_well_formed_where_those_of_a_softmax_are_not(
    name: str, build: Build, random_documents: Draw
) -> None:
    documents = random_documents(8, documents=4)
    lengths = [len(sentence.words) for document in documents for sentence in document]
    legal = {}
    for decoder in ("softmax", "crf"):
        tagger = build(name, decoder=decoder)
        scheme, labels = tagger.vocabulary.scheme, tagger.vocabulary.labels
        rows = tagger.tabulate(documents, REFINE_ALL).label.split(lengths)
        names = [[None, *(labels[number] for number in row.tolist()), None] for row in rows]
        pairs = [pair for row in names for pair in pairwise(row)]
        legal[decoder] = all(scheme.allows(left, right) for left, right in pairs)
    assert legal == {"softmax": False, "crf": True}


def test_uncertain_words_get_their_label_in_the_best_sequence_of_the_crf(build: Build, random_documents: Draw) -> None:
    tagger, documents = build("uanet", decoder="crf"), random_documents(8, documents=4)
    everything = tagger.tabulate(documents, REFINE_ALL)
    threshold = everything.uncertainty.median().item()
    table = tagger.tabulate(documents, PredictOptions(threshold=threshold))
    assert torch.equal(table.refined, table.uncertainty > threshold)
    assert torch.equal(table.label, torch.where(table.refined, everything.label, everything.draft))
    assert torch.allclose(table.probability[table.refined], everything.probability[table.refined], atol=1e-6)


@torch.no_grad()
def test_crf_without_transitions_has_the_marginals_of_the_softmax(build: Build, random_documents: Draw) -> None:
    documents = random_documents(8, documents=2)
    soft, crf = build("uanet"), build("uanet", decoder="crf")
    batch = encode(soft, documents)
    drafts = drafts_of(batch, soft, seed=1)
    expected = soft.refine_network.decoder(soft.refine_network(batch, None, drafts, None), batch.mask).marginals()
    decided = crf.refine_network.decoder(crf.refine_network(batch, None, drafts, None), batch.mask)
    labels, found = decided.mode(), decided.marginals()
    assert torch.allclose(found[batch.mask], expected[batch.mask], atol=1e-5)
    crf.refine_network.decoder.crf.transitions.normal_()
    own = crf.tabulate(documents, REFINE_ALL).probability
    assert not torch.allclose(own, soft.tabulate(documents, REFINE_ALL).probability, atol=1e-3)
    assert bool(((own > 0) & (own < 1)).all())
    assert labels.shape == batch.mask.shape


def test_loss_of_a_crf_is_its_mean_negative_log_likelihood(build: Build, documents: Documents) -> None:
    still = {"hidden": 8, "input_dropout": 0.0, "recurrent_dropout": 0.0, "output_dropout": 0.0}
    tagger = build("uanet", decoder="crf", lstm=still)
    tagger.refine_network.decoder.crf.transitions.data.normal_()
    batch = encode(tagger, documents)
    assert batch.labels is not None
    logits, _ = tagger.draft_network(batch, None)
    first = nn.functional.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), reduction="sum")
    refined = tagger.refine_network(batch, None, logits.softmax(-1), None)
    second = -tagger.refine_network.decoder(refined, batch.mask).log_prob(batch.labels).sum()
    expected = (first + second) / len(batch.sentences)
    assert float(tagger.loss(batch).detach()) == pytest.approx(float(expected.detach()), rel=1e-5)


def test_variational_lstm_equals_the_drafts_of_uanet(build: Build, random_documents: Draw) -> None:
    documents = random_documents(5, documents=3)
    tagger, uanet = build("variational_lstm"), build("uanet", seed=2)
    tagger.network.load_state_dict(uanet.draft_network.state_dict())
    for samples in (None, 1, 5):
        found, expected = (
            which.tabulate(documents, PredictOptions(samples=samples, threshold=9.0)) for which in (tagger, uanet)
        )
        assert torch.equal(found.label, expected.draft)
        assert torch.allclose(found.uncertainty, expected.uncertainty, atol=1e-5)
        assert torch.allclose(found.probability, expected.probability, atol=1e-6)


def test_crf_over_the_variational_lstm_reads_the_mean_logits(build: Build, random_documents: Draw) -> None:
    documents = random_documents(5, documents=1, sentences=1)
    tagger = build("variational_lstm", decoder="crf")
    network, batch = tagger.network, encode(tagger, documents)
    with torch.no_grad():
        words = network.representation(batch, None)
        logits, _ = network.read(words, batch.lengths, network.lstm.draw_samples(4, tagger.config.sample_seed))
        expected = logits.mean(0).softmax(-1)
    table = tagger.tabulate(documents, PredictOptions(samples=4))
    own = expected.gather(2, table.label[None, :, None]).flatten()
    assert torch.allclose(table.probability, own, atol=1e-5)
    assert not torch.allclose(
        table.probability, tagger.tabulate(documents, PredictOptions(samples=1)).probability, atol=1e-5
    )


@torch.no_grad()
def test_relative_transformer_equals_stage_two_without_drafts(build: Build, documents: Documents) -> None:
    tagger, uanet = build("rel_transformer"), build("uanet", seed=2, sentence_labels=False)
    for own, stage_two in (("representation", "representation"), ("words_in", "words_in"),
                           ("transformer", "encoder"), ("output", "output")):  # fmt: skip
        getattr(tagger, own).load_state_dict(getattr(uanet.refine_network, stage_two).state_dict())
    batch = encode(tagger, documents)
    drafts = drafts_of(batch, uanet, seed=1)
    expected = uanet.refine_network(batch, None, drafts, None).softmax(-1) * batch.mask[:, :, None]
    assert torch.allclose(tagger.distribution(batch).marginals(), expected, atol=1e-6)
