"""The result of every decoder: a distribution over label sequences, alone or with Monte-Carlo weight samples.

That of a softmax labels each word independently.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from typing_extensions import override

from concord.models.data.batch import IGNORED_LABEL, Batch, send
from concord.models.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class SpanQuery:
    """Spans of words in a batch, the longest first, with the labels that each of their words may have."""

    sentences: Tensor
    starts: Tensor
    """Sentence and first word of the K spans, shape ``(K,)``, int64."""
    lengths: Tensor
    """The number of words, at least 1, all within the sentence; shape ``(K,)``, int64, on the CPU."""
    allowed: Tensor
    """Shape ``(K, longest, L)``, bool; ignored after the last word of a span."""

    def reaching(self, step: int) -> int:
        """Return how many of the spans, which are the first, have a word at a step, counted from 0."""
        return int((self.lengths > step).sum())

    def to(self, device: torch.device) -> "SpanQuery":
        """Move all but the lengths to a device."""
        sentences, starts, allowed = send(device, self.sentences, self.starts, self.allowed)
        return replace(self, sentences=sentences, starts=starts, allowed=allowed)

    def restricted_to(self, words: Tensor) -> "SpanQuery":
        """Allow every label for all words but these; ``words`` has shape ``(B, T)``, bool."""
        steps = torch.arange(self.allowed.shape[1], device=words.device)
        places = (self.starts[:, None] + steps).clamp(max=words.shape[1] - 1)
        return replace(self, allowed=self.allowed | ~words[self.sentences[:, None], places][:, :, None])


class LabelDistribution(ABC):
    """A distribution over the label sequences of a batch of sentences.

    ``mode``, ``marginals`` and ``span_probability`` work under ``torch.inference_mode()`` and need no autograd.
    """

    @abstractmethod
    def log_prob(self, labels: Tensor) -> Tensor:
        """Return the log-probability of label sequences ``(B, T)`` in nats, shape ``(B,)``; padding is ignored."""

    def log_likelihood(self, batch: Batch) -> Tensor:
        """Return how well the distribution fits a batch's labels, in nats, shape ``(B,)``.

        That is the log-probability of gold labels; of soft labels ``log_prob_allowed`` or ``expected_log_prob``.

        Raises:
            ConfigError: for soft labels, if a distribution of this kind cannot be trained on them.
        """
        if batch.targets is None:
            return self.log_prob(batch.gold)
        weights, are_sets = batch.targets.weights, batch.targets.are_sets
        if are_sets.all():
            return self.log_prob_allowed(weights > 0)
        if not are_sets.any():
            return self.expected_log_prob(weights)
        return torch.where(are_sets, self.log_prob_allowed(weights > 0), self.expected_log_prob(weights))

    def log_prob_allowed(self, allowed: Tensor) -> Tensor:
        """Return the log-probability that every word has an allowed label, in nats, shape ``(B,)``.

        Allowed labels have shape ``(B, T, L)``, bool; every word has one.
        """
        del allowed
        raise ConfigError(f"data.train: a {type(self).__name__} is trained on gold labels alone, got soft ones")

    def expected_log_prob(self, weights: Tensor) -> Tensor:
        """Return the negative cross-entropy of the words' labels, in nats, shape ``(B,)``.

        It is the sum over words t and labels l of ``q_t(l) log p_t(l)``, where q are the weights, ``(B, T, L)``, and p
        the marginals.
        """
        del weights
        raise ConfigError(f"data.train: a {type(self).__name__} is trained on gold labels alone, got soft ones")

    @abstractmethod
    def mode(self) -> Tensor:
        """Return the most probable label sequence, shape ``(B, T)``, int64; 0 where padded."""

    @abstractmethod
    def marginals(self) -> Tensor:
        """Return each word's label probabilities, shape ``(B, T, L)``, float; zeros where padded."""

    @abstractmethod
    def span_probability(self, query: SpanQuery) -> Tensor:
        """Return the probability that all words of a span have an allowed label, shape ``(K,)``, float, 0..1."""


class SampledDistribution(LabelDistribution):
    """A distribution with the labels and marginals of one decoder and the span probabilities of M weight samples.

    The labels of a span's words depend on each other: a sample that doubts the first word doubts the next. So the
    probability of a span is the mean of its probability in each sample, not the product of the words' means.
    """

    def __init__(self, deciding: LabelDistribution, samples: Sequence[LabelDistribution]) -> None:
        self._deciding = deciding
        self._samples = samples

    @override
    def log_prob(self, labels: Tensor) -> Tensor:
        return self._deciding.log_prob(labels)

    @override
    def mode(self) -> Tensor:
        return self._deciding.mode()

    @override
    def marginals(self) -> Tensor:
        return self._deciding.marginals()

    @override
    def span_probability(self, query: SpanQuery) -> Tensor:
        return torch.stack([sample.span_probability(query) for sample in self._samples]).mean(dim=0)


def entropy(probabilities: Tensor) -> Tensor:
    """Return the entropy over the last dimension in nats; shape ``(..., L)`` to ``(...)``."""
    return -torch.xlogy(probabilities, probabilities).sum(dim=-1)


class SoftmaxDistribution(LabelDistribution):
    """Independent labels, from logits of shape ``(B, T, L)``, which are normalised in fp32."""

    def __init__(self, logits: Tensor, mask: Tensor) -> None:
        self._log_probabilities = logits.float().log_softmax(dim=-1)
        self._mask = mask

    @override
    def log_prob(self, labels: Tensor) -> Tensor:
        known = labels.masked_fill(labels == IGNORED_LABEL, 0)
        gold = self._log_probabilities.gather(2, known[:, :, None])[:, :, 0]
        return (gold * self._mask).sum(dim=1)

    @override
    def log_prob_allowed(self, allowed: Tensor) -> Tensor:
        # Padding allows every label, since a logarithm of no probability has no gradient.
        possible = allowed | ~self._mask[:, :, None]
        words = self._log_probabilities.masked_fill(~possible, float("-inf")).logsumexp(dim=-1)
        return (words * self._mask).sum(dim=1)

    @override
    def expected_log_prob(self, weights: Tensor) -> Tensor:
        return (weights * self._log_probabilities).sum(dim=(1, 2))

    @override
    def mode(self) -> Tensor:
        return self._log_probabilities.argmax(dim=-1) * self._mask

    @override
    def marginals(self) -> Tensor:
        return self._log_probabilities.exp() * self._mask[:, :, None]

    @override
    def span_probability(self, query: SpanQuery) -> Tensor:
        return joint_probability(self._log_probabilities.exp(), query)


def joint_probability(probabilities: Tensor, query: SpanQuery) -> Tensor:
    """Return the probability of spans whose words are labelled independently; ``(..., B, T, L)`` to ``(..., K)``.

    It is the product over a span's words of the sum over the labels that the word may have.
    """
    joint = probabilities.new_ones(*probabilities.shape[:-3], len(query.starts))
    for step in range(query.allowed.shape[1]):
        bound = slice(query.reaching(step))
        allowed = query.allowed[bound, step]
        words = probabilities[..., query.sentences[bound], query.starts[bound] + step, :]
        # A word that may have any label changes nothing, but its probabilities may not sum to exactly 1.
        joint[..., bound] *= (words * allowed).sum(dim=-1).masked_fill_(allowed.all(dim=1), 1.0)
    return joint
