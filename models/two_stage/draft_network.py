"""Stage one: a variational LSTM drafts labels with an uncertainty (Ye et al., 2021, section III-B)."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from concord.models.data.batch import Batch
from concord.models.data.vocabulary import Vocabulary
from concord.models.decoders.distribution import entropy
from concord.models.layers.variational_lstm import LstmSample, VariationalLstm, VariationalLstmConfig
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
        words = self.representation(batch, features)
        for sample in samples:
            states = sample(words, batch.lengths)
            yield nn.functional.linear(states, self.output.weight * sample.output_mask, self.output.bias), states

    def draft(self, batch: Batch, features: Tensor | None, samples: Sequence[LstmSample]) -> Draft:
        """Average the softmax and the states over the weight samples; the entropy of the mean is the uncertainty."""
        probabilities, hidden = torch.zeros(()), torch.zeros(())
        kept = []
        for logits, states in self.sampled(batch, features, samples):
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
