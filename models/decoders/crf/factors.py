"""The scores of a linear-chain CRF as factors, without padding, and the sums computed from them.

Sums over label sequences are products of factors: exponentials of scores less their maximum, in fp64. The code that
multiplies them rescales states before they can leave the range of fp64.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from concord.models.devices import send

# The entries of a state stay within this many nats. The product of two states, one of a forward and one of a backward
# scan, must stay within the 708 nats of fp64.
_RANGE = 300.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Packing:
    """The order of the N words of a batch: by step, and within a step by length of their sentence, longest first."""

    sizes: list[int]
    """Number of sentences with a word at each step, never rising."""
    rows: Tensor
    """Row of each word among all ``B * T`` cells, shape ``(N,)``, int64."""
    sentences: Tensor
    """Sentence of each word, shape ``(N,)``, int64."""
    followed: Tensor
    """The words that are not the last of their sentence, ordered as the words that follow them, shape ``(N - B,)``,
    int64."""
    last: Tensor
    """The last word of each sentence, shape ``(B,)``, int64, not in the order of the sentences."""
    shape: tuple[int, int]
    """B and T."""

    @classmethod
    def of(cls, mask: Tensor) -> "Packing":
        """Order the words of a mask, shape ``(B, T)``, bool, true for words; every sentence has a word."""
        # On the CPU, since the host must know how many words there are at each step.
        lengths, order = mask.sum(dim=1).cpu().sort(descending=True, stable=True)
        steps = torch.arange(mask.shape[1])[:, None]
        inside = steps < lengths
        continues = (steps + 1 < lengths)[inside]
        rows, sentences, followed, last = send(
            mask.device,
            (order * mask.shape[1] + steps)[inside],
            order.expand_as(inside)[inside],
            continues.nonzero()[:, 0],
            (~continues).nonzero()[:, 0],
        )
        return cls(
            sizes=[size for size in inside.sum(dim=1).tolist() if size],
            rows=rows,
            sentences=sentences,
            followed=followed,
            last=last,
            shape=(mask.shape[0], mask.shape[1]),
        )

    def pack(self, values: Tensor) -> Tensor:
        """Remove the padding of a batch, shape ``(B, T, L)`` to ``(N, L)``."""
        return values.flatten(0, 1).index_select(0, self.rows)

    def pad(self, values: Tensor) -> Tensor:
        """Restore a padded batch, with zeros where padded."""
        padded = values.new_zeros((self.shape[0] * self.shape[1], *values.shape[1:]))
        return padded.index_copy(0, self.rows, values).reshape(*self.shape, *values.shape[1:])


@dataclass(frozen=True, kw_only=True, slots=True)
class Factors:
    """A batch's scores as factors of at most 1, in fp64: exponentials of scores less shifts."""

    packing: Packing
    words: Tensor
    """Shape ``(N, L)``, packed."""
    transitions: Tensor
    """From label (row) to label (column), shape ``(L, L)``."""
    start: Tensor
    end: Tensor
    """Shape ``(L,)``."""
    shift: Tensor
    """Sum of a sentence's shifts in nats, shape ``(B,)``."""
    interval: int
    """Number of steps after which a state must be rescaled."""

    @classmethod
    def of(
        cls, emissions: Tensor, transitions: Tensor, start: Tensor, end: Tensor, packing: Packing
    ) -> "Factors | None":
        """Compute the factors; None if scores are too far apart for a state to survive a single step.

        A step can spread the entries of a state by no more than the spread of the scores; their maximum falls by no
        more than that, and rises by no more than the logarithm of the number of labels.
        """
        labels = len(start)
        words = packing.pack(emissions).double()
        chain = torch.cat((transitions.flatten(), start, end)).double()
        lowest, highest = words.detach().aminmax(dim=1, keepdim=True)
        least, most = chain.detach().aminmax()
        nats = float((highest - lowest).max() + most - least) + math.log(labels)
        if not nats <= _RANGE / 2:
            return None
        chain = (chain - most).exp()
        sums = torch.zeros(packing.shape[0], dtype=torch.float64, device=words.device)
        return cls(
            packing=packing,
            words=(words - highest).exp(),
            transitions=chain[: labels * labels].view(labels, labels),
            start=chain[labels * labels : -labels],
            end=chain[-labels:],
            # A sentence has one transition fewer than words, plus a start and an end.
            shift=sums.index_add(0, packing.sentences, highest[:, 0] + most) + most,
            interval=int(_RANGE / max(nats, 1.0)) - 1,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Messages:
    """Sums over the labels before and after each word; each row is scaled by a factor of its own."""

    before: Tensor
    """Over the prefixes that end in a word and label, shape ``(N, L)``."""
    after: Tensor
    """Over the suffixes that follow a word and label, shape ``(N, L)``."""
    suffixes: Tensor
    """Over the suffixes that begin with a word and label, for words after the first, shape ``(N - B, L)``; ``suffixes @
    transitions.T`` is ``after`` of the words before them."""
    log_partition: Tensor
    """Log Z in nats, shape ``(B,)``."""
