"""Structured attention over labels: the marginals of a CRF as attention weights (Wang et al., 2021, section 3).

Unlike the softmax of label attention, a word's weights depend on the scores of the whole sentence.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from concord.models.decoders.crf.distribution import CrfDistribution

Merge = Literal["residual", "concatenation"]


class StructuredAttention(nn.Module):
    """Refines hidden states by the label embeddings expected given the whole sentence.

    With the marginals ``mu``, the label embeddings ``v`` and the projection ``V``, which has a bias, a word's state
    ``h`` becomes ``LayerNorm(h + ReLU(sum_y mu(y) V v_y))`` (Wang et al., 2021); with the merge ``concatenation`` (the
    ablation in its Table 8) the two summands are concatenated instead. The marginals stay in the graph, so training
    differentiates the log-partition twice.
    """

    def __init__(self, dimension: int, *, merge: Merge) -> None:
        super().__init__()
        self.output_dimension = dimension if merge == "residual" else 2 * dimension
        self.value = nn.Linear(dimension, dimension)
        self.norm = nn.LayerNorm(self.output_dimension)
        self._merge = merge

    def forward(self, hidden: Tensor, label_embedding: Tensor, distribution: CrfDistribution) -> Tensor:
        """Refine the states of a batch, shape ``(B, T, dimension)`` to ``(B, T, output_dimension)``.

        The label embeddings have shape ``(L, dimension)``; the distribution is scored from the states.
        """
        values = self.value(label_embedding)
        expected = (distribution.marginals().to(values.dtype) @ values).relu()
        merged = hidden + expected if self._merge == "residual" else torch.cat((hidden, expected), dim=-1)
        refined: Tensor = self.norm(merged)
        return refined
