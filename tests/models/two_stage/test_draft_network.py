"""Stage one's drafts: the mean of the softmax over weight samples, and its entropy."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from concord.models.data.batch import Batch
from concord.models.data.sentence import Sentence
from concord.models.decoders.distribution import entropy
from concord.models.two_stage.tagger import TwoStageTagger

Build = Callable[..., TwoStageTagger]
STRONG = {"hidden": 8, "input_dropout": 0.4, "recurrent_dropout": 0.4, "output_dropout": 0.4}
NONE = {"hidden": 8, "input_dropout": 0.0, "recurrent_dropout": 0.0, "output_dropout": 0.0}


@pytest.fixture
def tagger(build: Build) -> TwoStageTagger:
    """Return a tagger whose weight samples disagree."""
    tagger = build("uanet", lstm=STRONG)
    with torch.no_grad():
        tagger.draft_network.output.weight *= 8
    return tagger


def encode(tagger: TwoStageTagger, documents: list[list[Sentence]]) -> Batch:
    return tagger.encode([sentence for document in documents for sentence in document])


def draft(tagger: TwoStageTagger, batch: Batch, samples: int) -> Any:
    network = tagger.draft_network
    return network.draft(batch, None, network.lstm.draw_samples(samples, seed=5))


def sampled_logits(tagger: TwoStageTagger, batch: Batch, samples: int) -> Tensor:
    """Return the logits of each sample, shape ``(M, B, T, L)``, with z_out applied to the activations."""
    network = tagger.draft_network
    words = network.representation(batch, None)
    return torch.stack(
        [
            network.output(sample(words, batch.lengths) * sample.output_mask)
            for sample in network.lstm.draw_samples(samples, seed=5)
        ]
    )


@torch.inference_mode()
def test_draft_is_the_mean_of_the_softmax_and_not_the_softmax_of_the_mean(
    tagger: TwoStageTagger, documents: list[list[Sentence]]
) -> None:
    batch = encode(tagger, documents)
    found, logits = draft(tagger, batch, 6), sampled_logits(tagger, batch, 6)
    mean_of_softmax, softmax_of_mean = logits.softmax(-1).mean(0), logits.mean(0).softmax(-1)
    assert float((found.probabilities - mean_of_softmax).abs().max()) < 1e-6
    assert float((found.probabilities - softmax_of_mean).abs().max()) > 1e-2
    assert torch.equal(found.labels, found.probabilities.argmax(-1))


@torch.inference_mode()
def test_hidden_is_the_mean_state_before_the_output_mask(
    tagger: TwoStageTagger, documents: list[list[Sentence]]
) -> None:
    batch, network = encode(tagger, documents), tagger.draft_network
    words = network.representation(batch, None)
    states = [sample(words, batch.lengths) for sample in network.lstm.draw_samples(6, seed=5)]
    assert float((draft(tagger, batch, 6).hidden - torch.stack(states).mean(0)).abs().max()) < 1e-6


@torch.inference_mode()
def test_uncertainty_is_the_entropy_of_the_mean_within_its_bounds(
    tagger: TwoStageTagger, documents: list[list[Sentence]]
) -> None:
    batch = encode(tagger, documents)
    found, logits = draft(tagger, batch, 6), sampled_logits(tagger, batch, 6)
    assert torch.allclose(found.uncertainty, entropy(found.probabilities))
    assert bool((found.uncertainty >= entropy(logits.softmax(-1)).mean(0) - 1e-6).all())
    words = found.uncertainty[batch.mask]
    assert float(words.min()) >= 0
    assert float(words.max()) <= math.log(len(tagger.vocabulary.labels)) + 1e-6


@torch.inference_mode()
def test_number_of_samples_has_no_effect_without_dropout(build: Build, documents: list[list[Sentence]]) -> None:
    tagger = build("uanet", lstm=NONE)
    batch = encode(tagger, documents)
    one, many = draft(tagger, batch, 1), draft(tagger, batch, 7)
    plain = tagger.draft_network(batch, None)[0].softmax(-1)
    assert torch.allclose(one.probabilities, many.probabilities, atol=1e-6)
    assert torch.allclose(one.probabilities, plain, atol=1e-6)
    assert torch.allclose(many.uncertainty, entropy(plain), atol=1e-6)


def test_number_of_samples_has_an_effect_with_dropout_and_can_be_set_per_call(
    tagger: TwoStageTagger, documents: list[list[Sentence]]
) -> None:
    one, three = tagger.tabulate(documents, samples=1), tagger.tabulate(documents, samples=3)
    assert not torch.equal(one.uncertainty, three.uncertainty)
    assert torch.equal(tagger.tabulate(documents).uncertainty, three.uncertainty)


@torch.inference_mode()
def test_training_draws_new_masks_in_every_pass(build: Build, documents: list[list[Sentence]]) -> None:
    tagger = build("uanet", lstm=STRONG)
    twin = tagger.encode([documents[0][0], documents[0][0]])
    first, second = (tagger.draft_network(twin, None)[0] for _ in range(2))
    assert not torch.equal(first, second)
    assert not torch.equal(first[0], first[1])
