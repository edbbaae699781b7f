"""Linear-chain CRF by a tree of matrix products, in as many rounds as the logarithm of the longest sentence.

Going up, neighbouring steps are multiplied until one matrix per sentence is left; going down, vectors carry to each
step the sums over all steps before and after it (a parallel prefix sum; Blelloch, 1990). Wang et al. (2021, section
3.4) use such a tree on GPUs. It multiplies matrices where a scan multiplies vectors, hence many times the arithmetic.
As in the paper, a round is one batch of the pairs of all sentences, which are found beforehand: no padding is
multiplied.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from concord.models.decoders.crf.factors import Factors, Messages


@dataclass(frozen=True, kw_only=True, slots=True)
class _Round:
    """Which of a round's matrices are multiplied; the next round has the P products, then the matrices left over."""

    left: Tensor
    right: Tensor
    """The two factors of each product, shape ``(P,)``, int64."""
    single: Tensor
    """The last matrix of each sentence with an odd number, which has no partner, int64."""
    owners: Tensor
    """Ranks by length of the sentences of the next round's matrices, int64."""
    order: Tensor
    """Sorts the left factors, the right factors and the single matrices as in this round, int64."""


def tree_messages(factors: Factors) -> Messages:
    """Multiply one matrix for each word but the first of a sentence, ordered as these words in the packing."""
    packing, transitions = factors.packing, factors.transitions
    sentences = packing.shape[0]
    first, following = factors.words[:sentences] * factors.start, factors.words[sentences:]
    rounds, owners = _plan(packing.sizes, following.device)
    pairs, roots, log_scale = _go_up(transitions, following, rounds, sentences)
    whole = first.index_copy(0, owners, (first[owners][:, None] @ roots)[:, 0])
    log_partition = torch.mv(whole, factors.end).log() + log_scale
    incoming, outgoing = first[owners], factors.end.expand(len(owners), -1)
    for found, (left, right) in zip(reversed(rounds), reversed(pairs), strict=True):
        incoming, outgoing = _go_down(found, left, right, incoming, outgoing)
    suffixes = following * outgoing
    ends = factors.end.expand_as(factors.words)
    return Messages(
        before=torch.cat((first, _scaled(incoming @ transitions) * following)),
        after=ends.index_copy(0, packing.followed, suffixes @ transitions.T),
        suffixes=suffixes,
        log_partition=torch.empty_like(log_partition).index_copy(0, packing.sentences[:sentences], log_partition)
        + factors.shift,
    )


def _plan(sizes: Sequence[int], device: torch.device) -> tuple[list[_Round], Tensor]:
    """Return the rounds, and the ranks of the sentences of the matrices that are left."""
    # By NumPy: on such small arrays its calls take a fifth of the time.
    places, owners = (np.arange(sizes[0]) < np.array(sizes[1:])[:, None]).nonzero()
    rounds = []
    while places.any():
        rows = np.full((sizes[0], places.max() // 2 * 2 + 2), -1)
        rows[owners, places] = np.arange(len(owners))
        lefts, rights = rows[:, ::2], rows[:, 1::2]
        paired, alone = rights >= 0, (lefts >= 0) & (rights < 0)
        left, right, single = lefts[paired], rights[paired], lefts[alone]
        owners, places = (np.concatenate(both) for both in zip(paired.nonzero(), alone.nonzero(), strict=True))
        order = np.concatenate((left, right, single)).argsort()
        numbers = [torch.from_numpy(found).to(device) for found in (left, right, single, owners, order)]
        rounds.append(_Round(**dict(zip(("left", "right", "single", "owners", "order"), numbers, strict=True))))
    return rounds, torch.from_numpy(owners).to(device)


def _go_up(
    transitions: Tensor, following: Tensor, rounds: Sequence[_Round], sentences: int
) -> tuple[list[tuple[Tensor, Tensor]], Tensor, Tensor]:
    """Return the factors of each round, the last matrices, and the logarithm of all scales by rank, shape ``(B,)``."""
    matrices: Tensor | None = None

    def take(rows: Tensor) -> Tensor:
        # The lowest matrices are computed where they are needed, in the order of their round.
        return transitions * following[rows][:, None] if matrices is None else matrices.index_select(0, rows)

    pairs, log_scale = [], following.new_zeros(sentences)
    for found in rounds:
        left, right, single = take(found.left), take(found.right), take(found.single)
        products = left @ right
        scale = products.detach().amax(dim=(1, 2), keepdim=True)
        log_scale = log_scale.index_add(0, found.owners[: len(products)], scale.log().flatten())
        matrices = torch.cat((products / scale, single))
        pairs.append((left, right))
    return pairs, transitions * following[:, None] if matrices is None else matrices, log_scale


def _go_down(found: _Round, left: Tensor, right: Tensor, incoming: Tensor, outgoing: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the incoming and outgoing vectors of a round's matrices from those of the next round's."""
    entering, leaving = incoming[: len(left)], outgoing[: len(left)]
    entered = _scaled((entering[:, None] @ left)[:, 0])
    left_by = _scaled((right @ leaving[:, :, None])[:, :, 0])
    incoming = torch.cat((entering, entered, incoming[len(left) :]))
    outgoing = torch.cat((left_by, leaving, outgoing[len(left) :]))
    return incoming.index_select(0, found.order), outgoing.index_select(0, found.order)


def _scaled(vectors: Tensor) -> Tensor:
    return vectors / vectors.detach().amax(dim=1, keepdim=True)
