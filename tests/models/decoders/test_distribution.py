"""The softmax decoder, and training on allowed labels and probabilities, against enumeration of all label sequences."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from concord.models.data.batch import BatchEncoder
from concord.models.data.sentence import Sentence, SoftLabels
from concord.models.data.vocabulary import Vocabulary
from concord.models.decoders.crf import Crf
from concord.models.decoders.crf_messages import Factors
from concord.models.decoders.distribution import LabelDistribution, SoftmaxDistribution, entropy
from concord.models.labels import BIO

LABELS = BIO.label_set(["X"])
LENGTHS = (1, 3, 4)
MASK = torch.arange(4)[None, :] < torch.tensor(LENGTHS)[:, None]


def build(name: str, emissions: Tensor) -> LabelDistribution:
    if name == "softmax":
        return SoftmaxDistribution(emissions, MASK)
    torch.manual_seed(0)
    crf = Crf(LABELS, BIO, legal_mode=False).double()
    with torch.no_grad():
        for parameter in crf.parameters():
            parameter.normal_()
    distribution: LabelDistribution = crf(emissions, MASK)
    return distribution


def random_emissions(seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(3, 4, len(LABELS), dtype=torch.float64, generator=generator)


def path_probabilities(distribution: LabelDistribution, row: int) -> dict[tuple[int, ...], float]:
    """Return the probability of every label sequence of a sentence."""
    found = {}
    for path in product(range(len(LABELS)), repeat=LENGTHS[row]):
        labels = torch.zeros(3, 4, dtype=torch.int64)
        labels[row, : LENGTHS[row]] = torch.tensor(path)
        found[path] = float(distribution.log_prob(labels)[row].detach().exp())
    return found


def random_allowed() -> Tensor:
    allowed = torch.rand(3, 4, len(LABELS), generator=torch.Generator().manual_seed(2)) < 0.5
    allowed[:, :, 1] |= ~allowed.any(dim=2)
    return allowed & MASK[:, :, None]


@pytest.fixture(params=["softmax", "crf", "crf far apart"])
def distribution(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> LabelDistribution:
    if request.param == "crf far apart":
        monkeypatch.setattr(Factors, "of", lambda *_: None)
    return build(request.param.split()[0], random_emissions().requires_grad_())


def test_allowed_labels_equal_enumeration(distribution: LabelDistribution) -> None:
    allowed = random_allowed()
    found = distribution.log_prob_allowed(allowed)
    for row in range(3):
        total = sum(
            probability
            for path, probability in path_probabilities(distribution, row).items()
            if all(allowed[row, place, label] for place, label in enumerate(path))
        )
        assert float(found[row].detach().exp()) == pytest.approx(total, abs=1e-6)


def test_expected_log_prob_equals_enumeration() -> None:
    distribution = build("softmax", random_emissions())
    weights = torch.rand(3, 4, len(LABELS), generator=torch.Generator().manual_seed(3)).double()
    weights *= MASK[:, :, None]
    found = distribution.expected_log_prob(weights)
    for row in range(3):
        marginals = torch.zeros(4, len(LABELS), dtype=torch.float64)
        for path, probability in path_probabilities(distribution, row).items():
            marginals[range(LENGTHS[row]), path] += probability
        inside = slice(LENGTHS[row])
        expected = (weights[row, inside] * marginals[inside].log()).sum()
        assert float(found[row].detach()) == pytest.approx(float(expected.detach()), abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["softmax", "crf"])
def test_gradient_equals_finite_differences(name: str) -> None:
    allowed, weights = random_allowed(), random_allowed().double() / 2

    def both(emissions: Tensor) -> tuple[Tensor, ...]:
        distribution = build(name, emissions)
        found = (distribution.log_prob_allowed(allowed).double(),)
        return (*found, distribution.expected_log_prob(weights).double()) if name == "softmax" else found

    emissions = random_emissions().requires_grad_()
    tolerance = 1e-2 if name == "softmax" else 1e-6  # a softmax is normalised in fp32
    assert torch.autograd.gradcheck(both, emissions, eps=1e-2 if name == "softmax" else 1e-6, atol=tolerance)


@pytest.mark.parametrize(("name", "kind"), [("softmax", "set"), ("softmax", "probabilities"), ("crf", "set")])
def test_certain_soft_labels_train_as_gold_labels_do(name: str, kind: str) -> None:
    words = tuple("abcd")
    gold = [Sentence(words=words[:length], labels=("B-X", "I-X", "O", "B-X")[:length]) for length in LENGTHS]
    vocabulary = Vocabulary.from_sentences(gold, scheme=BIO)
    numbers = [np.array([LABELS.index(label) for label in sentence.labels or ()], dtype=np.int16) for sentence in gold]
    soft = [
        Sentence(
            words=sentence.words,
            soft=SoftLabels(
                names=LABELS,
                words=np.arange(len(own), dtype=np.int32),
                labels=own,
                probabilities=np.ones(len(own), dtype=np.float32) if kind == "probabilities" else None,
            ),
        )
        for sentence, own in zip(gold, numbers, strict=True)
    ]
    encoder = BatchEncoder(vocabulary)
    found = []
    for sentences in (gold, soft, [gold[0], *soft[1:]]):
        emissions = random_emissions().requires_grad_()
        likelihood = build(name, emissions).log_likelihood(encoder.encode_batch(sentences))
        (gradient,) = torch.autograd.grad(likelihood.sum(), emissions)
        found.append((likelihood.detach(), gradient))
    for likelihood, gradient in found[1:]:
        assert torch.allclose(likelihood, found[0][0], atol=1e-6)
        assert torch.allclose(gradient, found[0][1], atol=1e-6)


LOGITS = torch.tensor([[[0.0, math.log(3.0)], [math.log(4.0), 0.0]], [[1.0, 1.0], [9.0, -9.0]]])
TWO_WORDS = torch.tensor([[True, True], [True, False]])


@torch.inference_mode()
def test_softmax_labels_words_independently_and_ignores_padding() -> None:
    distribution = SoftmaxDistribution(LOGITS, TWO_WORDS)
    assert distribution.marginals().tolist() == [
        [pytest.approx([0.25, 0.75]), pytest.approx([0.8, 0.2])],
        [pytest.approx([0.5, 0.5]), [0.0, 0.0]],
    ]
    assert distribution.mode().tolist() == [[1, 0], [0, 0]]
    gold = torch.tensor([[1, 1], [0, -100]])
    assert distribution.log_prob(gold).tolist() == pytest.approx([math.log(0.75 * 0.2), math.log(0.5)])


def test_entropy_is_in_nats_and_finite_at_certainty() -> None:
    probabilities = torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.9, 0.1]])
    expected = [0.0, math.log(2.0), -0.9 * math.log(0.9) - 0.1 * math.log(0.1)]
    assert entropy(probabilities).tolist() == pytest.approx(expected)
