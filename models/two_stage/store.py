"""Document memories of a call, and how the two stages are merged."""

from collections.abc import Sequence

import torch
from torch import Tensor

from concord.models.data.sentence import Sentence
from concord.models.decoders.distribution import AskedSpans, LabelDistribution
from concord.models.decoders.softmax import joint_probability
from concord.models.inference.windows import Window
from concord.models.outputs import Draft, Refined
from concord.models.two_stage.config import MemoryConfig
from concord.models.two_stage.document_memory import occurrence_index
from concord.models.two_stage.refine_network import MemoryContents


class MemoryStore:
    """The document memories of one call, side by side; slots never point into another document."""

    def __init__(
        self,
        documents: Sequence[Sequence[Sentence]],
        config: MemoryConfig,
        *,
        hidden: int,
        labels: int,
        device: torch.device,
    ) -> None:
        words = [[word for sentence in document for word in sentence.words] for document in documents]
        self._index = occurrence_index(words, key=config.key, slots=config.slots)
        self._slots = config.slots
        self._device = device
        # Only words that another word can read are stored.
        readable = torch.zeros(len(self._index), dtype=torch.bool)
        readable[self._index[self._index >= 0]] = True
        self._place = torch.where(readable, readable.cumsum(0) - 1, -1)
        stored = int(readable.sum())
        self._hidden = torch.zeros(stored, hidden, device=device)
        self._probabilities = torch.zeros(stored, labels, device=device)

    def write(self, rows: Tensor, draft: Draft, cells: Tensor) -> None:
        """Store what stage one says of the words ``rows``, which stand in ``cells`` of the flattened batch."""
        places = self._place[rows]
        chosen = places >= 0
        places, cells = places[chosen].to(self._device), cells[chosen].to(self._device)
        self._hidden[places] = draft.hidden.flatten(0, 1)[cells]
        self._probabilities[places] = draft.probabilities.flatten(0, 1)[cells]

    def read(self, windows: Sequence[Window], width: int) -> MemoryContents:
        """Give what the words of a batch may read, with nothing that they do not."""
        slots = torch.full((len(windows), width, self._slots), -1, dtype=torch.int64)
        for number, window in enumerate(windows):
            length = len(window.sentence.words)
            slots[number, :length] = self._index[window.first : window.first + length]
        numbers, compact = torch.unique(slots[slots >= 0], return_inverse=True)
        slots[slots >= 0] = compact
        places = self._place[numbers].to(self._device)
        return MemoryContents(
            hidden=self._hidden[places],
            probabilities=self._probabilities[places],
            slots=slots.to(self._device),
        )


def merge_stages(
    draft_probabilities: Tensor, uncertainty: Tensor, decided: LabelDistribution, threshold: float
) -> Refined:
    """Keep a draft where its uncertainty is at most the threshold; take stage two's label elsewhere.

    Stage two labels every word before its labels are chosen from, a CRF too: what it says of a word depends neither on
    the threshold nor on which drafts stay. The mixture need not be well formed; the span decoder drops what is not.

    Args:
        draft_probabilities: shape ``(B, T, L)``.
        uncertainty: nats, shape ``(B, T)``.
        decided: what stage two says.
    """
    refined = uncertainty > threshold
    labels = torch.where(refined, decided.mode(), draft_probabilities.argmax(dim=-1))
    return Refined(probabilities=decided.marginals(), labels=labels, refined=refined)


def span_probability(samples: Tensor, decided: LabelDistribution, refined: Tensor, asked: AskedSpans) -> Tensor:
    """Give the probability of spans whose words have their labels from either stage, shape ``(K,)``.

    The drafted words of a span hang together through the weight samples, so that their product is taken within each
    sample; stage two reads the mean of the samples and says the same of its words in all of them.

    Args:
        samples: stage one's probabilities in each weight sample, shape ``(M, B, T, L)``.
        decided: what stage two says.
        refined: true where the label is stage two's, shape ``(B, T)``, bool.
    """
    return drafted_probability(samples, asked.only(~refined)) * decided.span_probability(asked.only(refined))


def drafted_probability(samples: Tensor, asked: AskedSpans) -> Tensor:
    return joint_probability(samples, asked).mean(dim=0)


def spread_memory(weights: Tensor, memory: MemoryContents, mask: Tensor) -> Tensor:
    """Turn reading weights by slot into weights by word of the batch.

    Args:
        weights: of the words that have another occurrence, in order, shape ``(known, S)``.
        memory: its slots are cells of the flattened batch.
        mask: shape ``(B, T)``, bool, with N words.

    Returns:
        Shape ``(B, 1, T, N)``.
    """
    known = (memory.slots >= 0).any(dim=-1)
    spread = weights.new_zeros(*mask.shape, mask.numel())
    # An empty slot has no weight to add.
    spread[known] = spread[known].scatter_add(1, memory.slots[known].clamp(min=0), weights)
    return spread[:, None, :, mask.flatten()]
