"""Reading the document memory: attention from a word to its other occurrences (Ye et al., 2021, section III-E)."""

import torch
from torch import Tensor, nn


class MemoryReader(nn.Module):
    """Attends from a word's current state to the slots of its other occurrences.

    There is one head, scaled by the root of the width. The same weights sum up contexts (projected keys) and labels
    (projected values). A word without another occurrence reads a learned vector of each instead. Either of the two may
    be switched off; the keys address the slots all the same.
    """

    def __init__(self, *, width: int, hidden: int, dropout: float, contexts: bool = True, labels: bool = True) -> None:
        """Build the projections.

        Args:
            width: dimensions of the streams that read, and of the embedded drafts.
            hidden: dimensions of stage one's hidden states.
            dropout: on the reading weights.
            contexts, labels: which of the two are read.
        """
        super().__init__()
        self.reads_contexts, self.reads_labels = contexts, labels
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(hidden, width)
        if labels:
            self.value = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)
        if contexts:
            self.default_context = nn.Parameter(torch.randn(width))
        if labels:
            self.default_label = nn.Parameter(torch.randn(width))
        self._scale = width**0.5

    def forward(
        self, states: Tensor, hidden: Tensor, drafts: Tensor | None, slots: Tensor
    ) -> tuple[Tensor | None, Tensor | None]:
        """Read the memory.

        Args:
            states: the words that read, shape ``(B, T, width)``.
            hidden: stage one's states of the N words in memory, shape ``(N, hidden)``; N may be 0.
            drafts: their embedded drafts, shape ``(N, width)``; None if labels are not read.
            slots: rows to read for each word, shape ``(B, T, S)``, int64, -1 for an empty slot.

        Returns:
            Contexts and labels, each of shape ``(B, T, width)``, or None where it is not read.
        """
        keys, values = self.key(hidden), self.value(drafts) if drafts is not None else None
        present = slots >= 0
        known = present.any(dim=-1)
        context = self.default_context.expand_as(states).clone() if self.reads_contexts else None
        label = self.default_label.expand_as(states).clone() if self.reads_labels else None
        if known.any():
            rows = slots[known].clamp(min=0)
            slot_keys = keys[rows]
            query = self.query(states[known])
            scores = (slot_keys @ query[:, :, None])[:, :, 0] / self._scale
            weights = self.dropout(scores.masked_fill(~present[known], float("-inf")).softmax(dim=-1))
            if context is not None:
                context[known] = (weights[:, None, :] @ slot_keys)[:, 0].to(context.dtype)
            if label is not None and values is not None:
                label[known] = (weights[:, None, :] @ values[rows])[:, 0].to(label.dtype)
        return context, label
