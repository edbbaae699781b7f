"""Stage one: a variational LSTM drafts labels with an uncertainty (Ye et al., 2021, section III-A)."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from concord.models.data.batch import Batch
from concord.models.data.outputs import Draft
from concord.models.data.vocabulary import Vocabulary
from concord.models.decoders.distribution import entropy
from concord.models.devices import Work, fetch, finished, send
from concord.models.layers.variational_lstm import LstmSample, VariationalLstm, VariationalLstmConfig, run_samples
from concord.models.words.representation import WordRepresentation, WordRepresentationConfig


class DraftNetwork(nn.Module):
    """Word representation, variational LSTM, linear layer."""

    def __init__(
        self,
        representation: WordRepresentationConfig,
        lstm: VariationalLstmConfig,
        vocabulary: Vocabulary,
        *,
        encoder_width: int | None,
    ) -> None:
        super().__init__()
        self.representation = WordRepresentation(representation, vocabulary, encoder_width=encoder_width)
        self.lstm = VariationalLstm(lstm, self.representation.output_dimension)
        self.output = nn.Linear(self.lstm.output_dimension, len(vocabulary.labels))
        self._has_entities = vocabulary.scheme.has_entities

    def forward(self, batch: Batch, features: Tensor | None) -> tuple[Tensor, Tensor]:
        """Make one stochastic pass; return logits ``(B, T, L)`` and hidden states ``(B, T, H)`` before z_out."""
        hidden, masked = self.lstm(self.representation(batch, features), batch.lengths)
        return self.output(masked), hidden

    def sampled(self, batch: Batch, features: Tensor | None, samples: Sequence[LstmSample]) -> tuple[Tensor, Tensor]:
        """Return the logits of each weight sample, ``(M, B, T, L)``, and the mean of their states, ``(B, T, H)``."""
        return self._read(self.representation(batch, features), batch.lengths, samples)

    def draft(
        self,
        batch: Batch,
        features: Tensor | None,
        samples: Sequence[LstmSample],
        *,
        samples_above: float | None = None,
    ) -> Draft:
        """Do the work of ``drafting``."""
        return finished(self.drafting(batch, features, samples, samples_above=samples_above))

    def drafting(
        self,
        batch: Batch,
        features: Tensor | None,
        samples: Sequence[LstmSample],
        *,
        samples_above: float | None = None,
        computing: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> Work[Draft]:
        """Average the softmax and the states over the weight samples; the entropy of the mean is the uncertainty.

        With ``samples_above``, in nats, the samples are drawn only for sentences in which the mean weights leave a word
        more uncertain than this. All of the draft of another sentence is that of the mean weights, which stand for each
        of its samples, so that the probability of a span there is the product over its words. ``computing`` makes the
        context in which the network computes.
        """
        with computing():
            words = self.representation(batch, features)
            if samples_above is None:
                return self._average(words, batch.lengths, samples)
            draft = self._average(words, batch.lengths, [self.lstm.mean_weights()])
        draft = replace(draft, samples=draft.samples.repeat_interleave(len(samples), dim=0))
        unsure = fetch(((draft.uncertainty > samples_above) & batch.mask).any(dim=1))
        yield
        rows = unsure().nonzero()[:, 0]
        if len(rows):
            (chosen,) = send(words.device, rows)
            with computing():
                sampled = self._average(words[chosen], batch.lengths[rows], samples)
            for name in ("probabilities", "labels", "uncertainty", "hidden"):
                getattr(draft, name)[chosen] = getattr(sampled, name)
            draft.samples[:, chosen] = sampled.samples
        return draft

    def _read(self, words: Tensor, lengths: Tensor, samples: Sequence[LstmSample]) -> tuple[Tensor, Tensor]:
        """Return what ``sampled`` does, float32; no sample's states are kept."""
        sentences, width = words.shape[:2]
        masks = torch.stack([sample.output_mask for sample in samples])
        # Both halves of a state, of the two directions, come apart: (2, M, H, L).
        weights = (self.output.weight * masks[:, None]).unflatten(2, (2, -1)).permute(2, 0, 3, 1)
        logits = self.output.bias.float().repeat(len(samples), sentences * width, 1)
        hidden = logits.new_zeros(sentences * width, self.lstm.output_dimension)
        for chosen, *sides in run_samples(samples, words, lengths):
            for cells, states, weight, own in zip(*sides, weights, hidden.chunk(2, 1), strict=True):
                logits[chosen].index_add_(1, cells, (states @ weight[chosen]).float())
                own.index_add_(0, cells, states.float().sum(dim=0))
        shape = (sentences, width)
        return logits.unflatten(1, shape), (hidden / len(samples)).unflatten(0, shape)

    def _average(self, words: Tensor, lengths: Tensor, samples: Sequence[LstmSample]) -> Draft:
        logits, hidden = self._read(words, lengths, samples)
        sampled = logits.softmax(dim=-1)
        probabilities = sampled.mean(dim=0)
        return Draft(
            probabilities=probabilities,
            labels=probabilities.argmax(dim=-1),
            uncertainty=entropy(probabilities),
            hidden=hidden,
            samples=sampled if self._has_entities else probabilities.new_empty(0, *probabilities.shape),
        )
