"""The conditional random field decoder (Lafferty et al., 2001; as on top of a BiLSTM in Lample et al., 2016)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from typing_extensions import override

from models.data import IGNORED_LABEL
from models.decoders.base import LabelDistribution
from models.decoders.crf_scan import backward_scores, forward_scores, log_partition, sequence_scores, viterbi
from models.labels import Scheme, is_legal_transition, legal_transitions

# Cells (sentences times labels times labels) that a step of the search for the mode holds at most: 8 MB, for which the
# heap has room; larger pieces cost a page fault for every 4 KB, which outweighs the search.
_MOST_CELLS = 1 << 21
# Well below any score that training reaches, and small enough that sums of it stay finite in fp32.
_FORBIDDEN = -1e4


class LinearChain(nn.Module):
    """Transition scores between labels, with start and end vectors in place of extra labels."""

    def __init__(self, labels: int) -> None:
        """Start from zero scores."""
        super().__init__()
        self.transitions = nn.Parameter(torch.zeros(labels, labels))
        self.start = nn.Parameter(torch.zeros(labels))
        self.end = nn.Parameter(torch.zeros(labels))

    def forward(self, emissions: Tensor, mask: Tensor) -> "CrfDistribution":
        """Build the distribution.

        Args:
            emissions: shape ``(B, T, L)``, float; taken to fp32, or left in fp64.
            mask: true where a word stands, shape ``(B, T)``, bool.
        """
        emissions = emissions if emissions.dtype == torch.float64 else emissions.float()
        return CrfDistribution(self, emissions, mask)

    def mode_scores(self) -> tuple[Tensor, Tensor, Tensor]:
        """Give transitions, start and end as the search for the mode uses them."""
        return self.transitions, self.start, self.end


class Crf(LinearChain):
    """A linear chain over the labels of a scheme, which may forbid ill-formed sequences to the mode."""

    illegal: Tensor
    illegal_start: Tensor
    illegal_end: Tensor

    def __init__(self, labels: Sequence[str], scheme: Scheme, *, legal_mode: bool) -> None:
        """Start from zero scores.

        Args:
            legal_mode: whether the mode is sought among well-formed label sequences only. Training and marginals
                always go over all sequences.
        """
        super().__init__(len(labels))
        self._legal_mode = legal_mode
        starts = [not is_legal_transition(None, right, scheme) for right in labels]
        ends = [not is_legal_transition(left, None, scheme) for left in labels]
        self.register_buffer("illegal", ~torch.tensor(legal_transitions(labels, scheme)), persistent=False)
        self.register_buffer("illegal_start", torch.tensor(starts), persistent=False)
        self.register_buffer("illegal_end", torch.tensor(ends), persistent=False)

    @override
    def mode_scores(self) -> tuple[Tensor, Tensor, Tensor]:
        if not self._legal_mode:
            return super().mode_scores()
        return (
            self.transitions.masked_fill(self.illegal, _FORBIDDEN),
            self.start.masked_fill(self.illegal_start, _FORBIDDEN),
            self.end.masked_fill(self.illegal_end, _FORBIDDEN),
        )


class CrfDistribution(LabelDistribution):
    """Label sequences of a batch under a CRF."""

    def __init__(self, crf: LinearChain, emissions: Tensor, mask: Tensor) -> None:
        """Hold the scores; nothing is computed yet."""
        self._crf = crf
        self._emissions = emissions
        self._mask = mask

    def log_partition(self) -> Tensor:
        """Give log Z of each sentence, shape ``(B,)``."""
        crf = self._crf
        return log_partition(self._emissions, crf.transitions, crf.start, crf.end, self._mask)

    @override
    def log_prob(self, labels: Tensor) -> Tensor:
        crf, known = self._crf, labels.masked_fill(labels == IGNORED_LABEL, 0)
        score = sequence_scores(self._emissions, crf.transitions, crf.start, crf.end, self._mask, known)
        return score - self.log_partition()

    @override
    def mode(self) -> Tensor:
        scores, group = self._crf.mode_scores(), max(1, _MOST_CELLS // self._emissions.shape[2] ** 2)
        groups = zip(self._emissions.split(group), self._mask.split(group), strict=True)
        return torch.cat([viterbi(emissions, *scores, mask) for emissions, mask in groups])

    @override
    def marginals(self) -> Tensor:
        # Sums over long sentences reach the hundreds, where fp32 is exact to 3e-5 only: in it probabilities would
        # exceed 1 and entropies fall below 0.
        crf, emissions = self._crf, self._emissions.double()
        transitions, start, end = crf.transitions.double(), crf.start.double(), crf.end.double()
        before = forward_scores(emissions, transitions, start, self._mask)
        after = backward_scores(emissions, transitions, end, self._mask)
        total = (before[:, -1] + end).logsumexp(dim=1)
        marginals = (before + after - total[:, None, None]).exp() * self._mask[:, :, None]
        return marginals.to(self._emissions.dtype)
