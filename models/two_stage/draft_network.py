"""Stage one: a variational LSTM drafts labels with an uncertainty (Ye et al., 2021, section III-B)."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from concord.models.data.batch import Batch
from concord.models.data.vocabulary import Vocabulary
from concord.models.decoders.distribution import entropy
from concord.models.layers.variational_lstm import LstmSample, VariationalLstm, VariationalLstmConfig, run_samples
from concord.models.outputs import Draft
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

    def sampled(
        self, batch: Batch, features: Tensor | None, samples: Sequence[LstmSample]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the logits and hidden states of each weight sample, in the shapes of ``forward``."""
        return self._run(self.representation(batch, features), batch.lengths, samples)

    def draft(
        self,
        batch: Batch,
        features: Tensor | None,
        samples: Sequence[LstmSample],
        *,
        samples_above: float | None = None,
    ) -> Draft:
        """Average the softmax and the states over the weight samples; the entropy of the mean is the uncertainty.

        With ``samples_above``, in nats, the samples are drawn only for sentences in which the mean weights leave a word
        more uncertain than this. All of the draft of another sentence is that of the mean weights, which stand for each
        of its samples, so that the probability of a span there is the product over its words.
        """
        words = self.representation(batch, features)
        if samples_above is None:
            return self._average(words, batch.lengths, samples)
        draft = self._average(words, batch.lengths, [self.lstm.mean_weights()])
        draft = replace(draft, samples=draft.samples.repeat_interleave(len(samples), dim=0))
        rows = ((draft.uncertainty > samples_above) & batch.mask).any(dim=1).nonzero()[:, 0]
        if len(rows):
            sampled = self._average(words[rows], batch.lengths[rows.cpu()], samples)
            for name in ("probabilities", "labels", "uncertainty", "hidden"):
                getattr(draft, name)[rows] = getattr(sampled, name)
            draft.samples[:, rows] = sampled.samples
        return draft

    def _run(self, words: Tensor, lengths: Tensor, samples: Sequence[LstmSample]) -> Iterator[tuple[Tensor, Tensor]]:
        for sample, states in zip(samples, run_samples(samples, words, lengths), strict=True):
            yield nn.functional.linear(states, self.output.weight * sample.output_mask, self.output.bias), states

    def _average(self, words: Tensor, lengths: Tensor, samples: Sequence[LstmSample]) -> Draft:
        probabilities, hidden = torch.zeros(()), torch.zeros(())
        kept = []
        for logits, states in self._run(words, lengths, samples):
            sample = logits.float().softmax(dim=-1)
            probabilities = probabilities.to(logits.device) + sample
            hidden = hidden.to(states.device) + states.float()
            if self._has_entities:
                kept.append(sample)
        probabilities, hidden = probabilities / len(samples), hidden / len(samples)
        return Draft(
            probabilities=probabilities,
            labels=probabilities.argmax(dim=-1),
            uncertainty=entropy(probabilities),
            hidden=hidden,
            samples=torch.stack(kept) if kept else probabilities.new_empty(0, *probabilities.shape),
        )
