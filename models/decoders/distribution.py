"""What every decoder gives: a distribution over label sequences."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class AskedSpans:
    """Stretches of words of a batch, with the labels that each of their words may have.

    Attributes:
        sentences, starts: where the K stretches begin, shape ``(K,)``, int64.
        lengths: their words, 1 or more, all of them in the sentence; shape ``(K,)``, int64.
        allowed: shape ``(K, longest, L)``, bool; not looked at behind a stretch's last word.
    """

    sentences: Tensor
    starts: Tensor
    lengths: Tensor
    allowed: Tensor

    def only(self, words: Tensor) -> "AskedSpans":
        """Let the other words have any label; ``words`` is of shape ``(B, T)``, bool."""
        steps = torch.arange(self.allowed.shape[1], device=words.device)
        places = (self.starts[:, None] + steps).clamp(max=words.shape[1] - 1)
        return replace(self, allowed=self.allowed | ~words[self.sentences[:, None], places][:, :, None])


class LabelDistribution(ABC):
    """A distribution over the label sequences of a batch of sentences.

    ``mode``, ``marginals`` and ``span_probability`` work under ``torch.inference_mode()`` and need no autograd.
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

    @abstractmethod
    def span_probability(self, asked: AskedSpans) -> Tensor:
        """Give the probability that all words of a stretch have labels they may have, shape ``(K,)``, float, 0..1."""


def entropy(probabilities: Tensor) -> Tensor:
    """Give the entropy over the last dimension in nats; shape ``(..., L)`` to ``(...)``."""
    return -torch.xlogy(probabilities, probabilities).sum(dim=-1)
