"""The softmax decoder against plain sums over words."""

import math

import pytest
import torch

from concord.models.decoders.distribution import entropy
from concord.models.decoders.softmax import SoftmaxDistribution

LOGITS = torch.tensor([[[0.0, math.log(3.0)], [math.log(4.0), 0.0]], [[1.0, 1.0], [9.0, -9.0]]])
MASK = torch.tensor([[True, True], [True, False]])


@torch.inference_mode()
def test_softmax_labels_words_independently_and_ignores_padding() -> None:
    distribution = SoftmaxDistribution(LOGITS, MASK)
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
