"""The first pass: a small tagger that reads every sentence, so that both stages read only those it is unsure of.

It needs no encoder, which is most of the time of a two-stage tagger that has one. A sentence whose words all have less
entropy than the gate keeps its labels; the document memory stores these, and states mapped to those of stage one, so
that recurring names still read each other. A sentence that misses a name which stage one drafts elsewhere in its
document is read by both stages as well.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from concord.models.data.batch import Batch
from concord.models.data.windows import Window
from concord.models.decoders.distribution import LabelDistribution, entropy
from concord.models.errors import ConfigError
from concord.models.taggers.base import Tagger
from concord.models.taggers.one_stage import BiLstmTagger
from concord.models.taggers.token_table import TokenTable


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstLabels:
    """What the first pass computes for a batch."""

    distribution: LabelDistribution
    marginals: Tensor
    """Shape ``(B, T, L)``."""
    uncertainty: Tensor
    """Entropy of the marginals in nats, shape ``(B, T)``."""
    states: Tensor
    """Shape ``(B, T, H)``, not mapped, in fp32."""

    def is_sure(self, batch: Batch, gate: float) -> Tensor:
        """Tell which sentences have less entropy than the gate, in nats, at every word; shape ``(B,)``, bool."""
        return ~((self.uncertainty >= gate) & batch.mask).any(dim=1)


class FirstPass(nn.Module):
    """A one-stage tagger without an encoder, and the map from its states to those of stage one."""

    def __init__(self, tagger: Tagger, *, labels: tuple[str, ...], hidden: int) -> None:
        """Build an untrained map to states of ``hidden`` dimensions.

        Raises:
            ConfigError: when the tagger has an encoder, no LSTM states, or other labels than the two stages.
        """
        super().__init__()
        if not isinstance(tagger, BiLstmTagger) or tagger.config.encoder is not None:
            raise ConfigError(
                f"first pass: expected a tagger of one stage with LSTM states and without an encoder, such as "
                f"bilstm_softmax or bilstm_crf, got {tagger.name}{' with an encoder' if tagger.config.encoder else ''}"
            )
        if tagger.vocabulary.labels != labels:
            raise ConfigError(
                f"first pass: expected the labels of the two stages, {', '.join(labels)}; got "
                f"{', '.join(tagger.vocabulary.labels)}"
            )
        self.tagger = tagger
        self.to_stage_one = nn.Linear(tagger.output.in_features, hidden)

    def forward(self, batch: Batch) -> FirstLabels:
        """Label a batch that ``tagger`` encoded."""
        states = self.tagger.read(batch)
        distribution = self.tagger.decode(states, batch)
        marginals = distribution.marginals()
        return FirstLabels(
            distribution=distribution, marginals=marginals, uncertainty=entropy(marginals), states=states.float()
        )

    def fit_map(self, states: Tensor, hidden: Tensor, *, ridge: float = 1.0) -> float:
        """Fit the map by ridge regression and return the share of variance that it explains.

        States of K words have shape ``(K, H)``, those of stage one ``(K, hidden)``.
        """
        inputs, outputs = states.double(), hidden.double()
        centre, target = inputs.mean(dim=0), outputs.mean(dim=0)
        inputs, outputs = inputs - centre, outputs - target
        penalty = ridge * torch.eye(inputs.shape[1], dtype=inputs.dtype, device=inputs.device)
        weight = torch.linalg.solve(inputs.T @ inputs + penalty, inputs.T @ outputs)
        with torch.no_grad():
            self.to_stage_one.weight.copy_(weight.T)
            self.to_stage_one.bias.copy_(target - centre @ weight)
        return float(1 - (outputs - inputs @ weight).square().sum() / outputs.square().sum())


def windows_with_missed_names(
    table: TokenTable, *, drafted: Sequence[Window], passed: Sequence[Window]
) -> list[Window]:
    """Return the passed windows that leave a word outside of entities which is a name elsewhere in its document.

    A word is a name there if stage one drafts it as part of an entity at half or more of its occurrences in the
    drafted windows; "The" of "The Hague" is none.
    """
    outside: Counter[tuple[int, str]] = Counter()
    inside: Counter[tuple[int, str]] = Counter()
    for window in drafted:
        for word, label in _kept_labels(window, table):
            (inside if label else outside)[window.document, word] += 1
    names = {key for key, count in inside.items() if count >= outside[key]}
    documents = {document for document, _ in names}
    return [
        window
        for window in passed
        if window.document in documents
        and any(not label and (window.document, word) in names for word, label in _kept_labels(window, table))
    ]


def _kept_labels(window: Window, table: TokenTable) -> Iterator[tuple[str, int]]:
    """Return the kept words of a window and the numbers of their drafts, of which 0 is O."""
    begin, stop = window.keep
    return zip(
        window.sentence.words[begin:stop], table.draft[window.first + begin : window.first + stop].tolist(), strict=True
    )
