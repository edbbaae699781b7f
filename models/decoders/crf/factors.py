"""A linear-chain CRF's scores as factors, without padding, and the sums that a scan makes of them.

Sums over label sequences are products of factors, exponentials of scores less their largest, in fp64. Who multiplies
them scales states anew before these could leave the range of fp64.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# Nats within which the entries of a state stay. The product of two states, of a forward and a backward scan, has to
# stay within the 708 nats of fp64.
_RANGE = 300.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Packing:
    """Where the N words of a batch stand: by step, within a step by length of their sentence.

    Attributes:
        sizes: sentences that have a word at each step, never rising.
        rows: row of each word among all ``B * T`` cells, shape ``(N,)``, int64.
        sentences: sentence of each word, shape ``(N,)``, int64.
        followed: the words that another word of the sentence follows, in the order of these, shape ``(N - B,)``, int64.
        last: the last word of each sentence, shape ``(B,)``, int64, in no order of theirs.
        shape: B and T.
    """

    sizes: list[int]
    rows: Tensor
    sentences: Tensor
    followed: Tensor
    last: Tensor
    shape: tuple[int, int]

    @classmethod
    def of(cls, mask: Tensor) -> "Packing":
        """Read a mask of shape ``(B, T)``, bool, true where a word stands; every sentence has a word."""
        lengths, order = mask.sum(dim=1).sort(descending=True, stable=True)
        steps = torch.arange(mask.shape[1], device=mask.device)[:, None]
        inside = steps < lengths
        goes_on = (steps + 1 < lengths)[inside]
        return cls(
            sizes=[size for size in inside.sum(dim=1).tolist() if size],
            rows=(order * mask.shape[1] + steps)[inside],
            sentences=order.expand_as(inside)[inside],
            followed=goes_on.nonzero()[:, 0],
            last=(~goes_on).nonzero()[:, 0],
            shape=(mask.shape[0], mask.shape[1]),
        )

    def pack(self, values: Tensor) -> Tensor:
        """Take the words out of a padded batch, shape ``(B, T, L)`` to ``(N, L)``."""
        return values.flatten(0, 1).index_select(0, self.rows)

    def pad(self, values: Tensor) -> Tensor:
        """Undo ``pack``, with zeros where padded."""
        padded = values.new_zeros((self.shape[0] * self.shape[1], *values.shape[1:]))
        return padded.index_copy(0, self.rows, values).reshape(*self.shape, *values.shape[1:])

    def steps(self, values: Tensor) -> list[Tensor]:
        """Cut packed values into steps."""
        return list(values.split(self.sizes))


@dataclass(frozen=True, kw_only=True, slots=True)
class Factors:
    """A batch's scores as factors of at most 1, in fp64: exponentials of scores less shifts.

    Attributes:
        words: shape ``(N, L)``, packed.
        transitions: from label (row) to label (column), shape ``(L, L)``.
        start, end: shape ``(L,)``.
        shift: sum of a sentence's shifts in nats, shape ``(B,)``.
        interval: steps after which a state has to be scaled.
    """

    packing: Packing
    words: Tensor
    transitions: Tensor
    start: Tensor
    end: Tensor
    shift: Tensor
    interval: int

    @classmethod
    def of(
        cls, emissions: Tensor, transitions: Tensor, start: Tensor, end: Tensor, packing: Packing
    ) -> "Factors | None":
        """Take exponentials; None where scores lie too far apart for a state to take a single step.

        In a step the entries of a state come to lie at most as far apart as the scores do; their largest falls by no
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
            # A sentence has one transition fewer than words, and a start and an end.
            shift=sums.index_add(0, packing.sentences, highest[:, 0] + most) + most,
            interval=int(_RANGE / max(nats, 1.0)) - 1,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Messages:
    """Sums over what stands before and after each word; each row is scaled by a factor of its own.

    Attributes:
        before: of the prefixes that end in a word and label, shape ``(N, L)``.
        after: of the suffixes that follow a word and label, shape ``(N, L)``.
        onwards: of the suffixes that begin with a word and label, for words after the first, shape ``(N - B, L)``;
            ``onwards @ transitions.T`` is ``after`` of the words before them.
        log_partition: log Z in nats, shape ``(B,)``.
    """

    before: Tensor
    after: Tensor
    onwards: Tensor
    log_partition: Tensor
