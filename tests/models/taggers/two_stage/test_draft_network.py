"""Stage one's drafts: the mean of the softmax over weight samples, and its entropy."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from concord.models.data.batch import Batch, finished
from concord.models.data.outputs import PredictOptions
from concord.models.data.sentence import Sentence
from concord.models.decoders.distribution import entropy
from concord.models.taggers.two_stage import TwoStageTagger

pytestmark = pytest.mark.slow

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
    return finished(network.drafting(batch, None, network.lstm.draw_samples(samples, seed=5)))


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


def test_number_of_samples_has_an_effect_with_dropout_and_can_be_set_per_call(
    tagger: TwoStageTagger, documents: list[list[Sentence]]
) -> None:
    one, three = (
        tagger.tabulate(documents, PredictOptions(samples=1)),
        tagger.tabulate(documents, PredictOptions(samples=3)),
    )
    assert not torch.equal(one.uncertainty, three.uncertainty)
    assert torch.equal(tagger.tabulate(documents).uncertainty, three.uncertainty)


@torch.inference_mode()
def test_samples_above_draws_samples_only_for_sentences_with_an_uncertain_word(
    tagger: TwoStageTagger, documents: list[list[Sentence]]
) -> None:
    batch, network = encode(tagger, documents), tagger.draft_network
    samples = network.lstm.draw_samples(6, seed=5)
    mean = finished(network.drafting(batch, None, [network.lstm.mean_weights()]))
    all_drawn = finished(network.drafting(batch, None, samples))
    most = mean.uncertainty.masked_fill(~batch.mask, 0).amax(dim=1)
    limit = most.median().item()
    found = finished(network.drafting(batch, None, samples, samples_above=limit))
    drawn = most > limit
    assert 0 < int(drawn.sum()) < len(drawn)
    for name in ("probabilities", "labels", "uncertainty", "hidden"):
        values, without, sampled = (getattr(draft, name) for draft in (found, mean, all_drawn))
        assert torch.allclose(values[drawn], sampled[drawn], atol=1e-6), name
        assert torch.equal(values[~drawn], without[~drawn]), name
    assert found.samples.shape == all_drawn.samples.shape
    assert torch.allclose(found.samples[:, drawn], all_drawn.samples[:, drawn], atol=1e-6)
    assert all(torch.equal(one[~drawn], mean.probabilities[~drawn]) for one in found.samples)


@torch.inference_mode()
def test_mean_weights_are_those_of_the_lstm_without_dropout(
    tagger: TwoStageTagger, build: Build, documents: list[list[Sentence]]
) -> None:
    plain = build("uanet", lstm=NONE)
    plain.load_state_dict(tagger.state_dict())
    batch = encode(tagger, documents)
    network = tagger.draft_network
    found = finished(network.drafting(batch, None, [network.lstm.mean_weights()]))
    assert torch.allclose(found.probabilities, draft(plain, batch, 1).probabilities, atol=1e-6)


@pytest.mark.parametrize("name", ["uanet", "doc_uanet"])
def test_samples_above_depends_on_no_other_sentence_and_a_number_of_samples_turns_it_off(
    name: str, build: Build, random_documents: Callable[..., list[list[Sentence]]]
) -> None:
    documents = random_documents(2, documents=5)
    always = build(name, lstm=STRONG)
    limit = always.tabulate(documents).uncertainty.quantile(0.8).item()
    tagger = build(name, lstm=STRONG, samples_above=limit)
    tagger.load_state_dict(always.state_dict())
    drawn, table = always.tabulate(documents), tagger.tabulate(documents)
    changed = table.uncertainty != drawn.uncertainty
    assert bool(changed.any())
    assert not bool(changed.all())
    assert torch.equal(tagger.tabulate(documents, PredictOptions(samples=3)).uncertainty, drawn.uncertainty)
    always.config = tagger.config
    assert torch.equal(always.tabulate(documents).uncertainty, table.uncertainty)
    alone = torch.cat([tagger.tabulate([document]).uncertainty for document in documents])
    assert torch.allclose(alone, table.uncertainty, atol=1e-5)
    backwards = [tagger.tabulate(documents[::-1], PredictOptions(batch_words=20)).uncertainty.flip(0)]
    assert torch.allclose(torch.cat(backwards).sort().values, table.uncertainty.sort().values, atol=1e-5)


def test_weight_samples_follow_the_weights(tagger: TwoStageTagger, documents: list[list[Sentence]]) -> None:
    before = tagger.tabulate(documents).uncertainty
    assert torch.equal(tagger.tabulate(documents).uncertainty, before)
    state = {name: weight.clone() for name, weight in tagger.state_dict().items()}
    with torch.no_grad():
        tagger.draft_network.lstm.layers[0].get_parameter("weight_hh_l0").mul_(-1)
    assert not torch.allclose(tagger.tabulate(documents).uncertainty, before)
    tagger.load_state_dict(state)
    assert torch.equal(tagger.tabulate(documents).uncertainty, before)
