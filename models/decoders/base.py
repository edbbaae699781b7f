"""What every decoder gives: a distribution over label sequences."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor


class LabelDistribution(ABC):
    """A distribution over the label sequences of a batch of sentences.

    ``mode`` and ``marginals`` work under ``torch.inference_mode()`` and need no autograd.
    """

    @abstractmethod
    def log_prob(self, labels: Tensor) -> Tensor:
        """Give the log-probability of label sequences in nats.

        Args:
            labels: shape ``(B, T)``, int64; padded entries are not looked at.

        Returns:
            Shape ``(B,)``, float.
        """

    @abstractmethod
    def mode(self) -> Tensor:
        """Give the most probable label sequence, shape ``(B, T)``, int64; 0 where padded."""

    @abstractmethod
    def marginals(self) -> Tensor:
        """Give each word's label probabilities, shape ``(B, T, L)``, float; zeros where padded."""


def entropy(probabilities: Tensor) -> Tensor:
    """Give the entropy over the last dimension in nats; shape ``(..., L)`` to ``(...)``."""
    return -torch.xlogy(probabilities, probabilities).sum(dim=-1)
