"""Linear-chain CRF by a tree of matrix products, in as many rounds as the logarithm of the longest sentence.

Going up, neighbouring steps are multiplied until one matrix per sentence is left; going down, vectors carry to each
step the sums over all steps before and after it (a parallel prefix sum; Blelloch, 1990). Wang et al. (2021) use such a
tree on GPUs. It multiplies matrices where a scan multiplies vectors, hence many times the arithmetic.
"""

import torch
from torch import Tensor

from concord.models.decoders.crf.factors import Factors, Messages


def tree_messages(factors: Factors) -> Messages:
    """Multiply one matrix per word: the identity for the last word of a sentence and for padding."""
    packing = factors.packing
    words = packing.pad(factors.words)
    levels, log_scale = _go_up(_word_matrices(factors, words))
    first = (words[:, 0] * factors.start)[:, None]
    last = factors.end.expand_as(first)
    total = ((first[:, :, None] @ levels[-1])[:, :, 0] * last).sum(dim=(1, 2))
    incoming, outgoing = first, last
    for matrices in levels[-2::-1]:
        incoming, outgoing = _go_down(matrices, incoming, outgoing)
    following = packing.pack(outgoing[:, : words.shape[1]])[packing.followed]
    suffixes = factors.words[packing.shape[0] :] * following
    ends = factors.end.expand_as(factors.words)
    return Messages(
        before=packing.pack(incoming[:, : words.shape[1]]),
        after=ends.index_copy(0, packing.followed, suffixes @ factors.transitions.T),
        suffixes=suffixes,
        log_partition=total.log() + log_scale + factors.shift,
    )


def _word_matrices(factors: Factors, words: Tensor) -> Tensor:
    """Return the factors from a word's label to that of the next word, shape ``(B, T, L, L)``."""
    following = torch.cat((words[:, 1:], torch.zeros_like(words[:, :1])), dim=1)
    continues = following.detach().any(dim=2)[:, :, None, None]
    identity = torch.eye(words.shape[2], dtype=words.dtype, device=words.device)
    return torch.where(continues, factors.transitions * following[:, :, None], identity)


def _go_up(matrices: Tensor) -> tuple[list[Tensor], Tensor]:
    """Return the products of each level, leaves first, and the logarithm of all scales, shape ``(B,)``."""
    levels = [matrices]
    log_scale = torch.zeros_like(matrices[:, 0, 0, 0])
    while levels[-1].shape[1] > 1:
        if levels[-1].shape[1] % 2:
            identity = torch.eye(matrices.shape[2], dtype=matrices.dtype, device=matrices.device)
            levels[-1] = torch.cat((levels[-1], identity.expand_as(levels[-1][:, :1])), dim=1)
        products = levels[-1][:, ::2] @ levels[-1][:, 1::2]
        scale = products.detach().amax(dim=(2, 3), keepdim=True)
        levels.append(products / scale)
        log_scale = log_scale + scale.log().sum(dim=(1, 2, 3))
    return levels, log_scale


def _go_down(matrices: Tensor, incoming: Tensor, outgoing: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the incoming and outgoing vectors of each matrix ``(B, n, L, L)`` from those of its parent.

    There are ``n / 2`` parents, plus one if their level was padded to an even number.
    """
    incoming, outgoing = incoming[:, : matrices.shape[1] // 2], outgoing[:, : matrices.shape[1] // 2]
    entering = (incoming[:, :, None] @ matrices[:, ::2])[:, :, 0]
    leaving = (matrices[:, 1::2] @ outgoing[:, :, :, None])[:, :, :, 0]
    return (
        torch.stack((incoming, _scaled(entering)), dim=2).flatten(1, 2),
        torch.stack((_scaled(leaving), outgoing), dim=2).flatten(1, 2),
    )


def _scaled(vectors: Tensor) -> Tensor:
    return vectors / vectors.detach().amax(dim=2, keepdim=True)
