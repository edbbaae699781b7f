"""The Child-Sum Tree-LSTM over dependency trees (Tai et al., 2015, section 3.1), batched by height.

The state of a word is computed from its vector and the states of its dependents. All words of a batch with the same
height (that of leaves is 0) are computed together, so a batch takes as many steps as its highest tree has levels.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from concord.models.data.sentence import Sentence, TreeError, first_words


@dataclass(frozen=True, kw_only=True, slots=True)
class Level:
    """The words of one height, ordered by the height of their heads."""

    words: int
    """Number of words."""
    targets: tuple[int, ...]
    """The heights of their heads, ascending; the head of a root has the forest's height."""
    leaving: tuple[int, ...]
    """Number of words whose head has each of these heights."""
    heads: Tensor
    """For every child of the level's words, the index of its head in the level, shape ``(K,)``, int64; children are
    ordered by height, then as in their level."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Forest:
    """The trees of a batch of B sentences with N words in total."""

    levels: tuple[Level, ...]
    """From the leaves up."""
    cells: Tensor
    """Index of each word in the flattened batch, level by level, shape ``(N,)``, int64."""
    roots: Tensor
    """Index of each root in the flattened batch, shape ``(R,)``, int64."""
    root_sentences: Tensor
    """Index of each root's sentence, shape ``(R,)``, int64."""
    root_counts: Tensor
    """Number of roots in each sentence, shape ``(B,)``, int64."""

    def root_states(self, states: Tensor) -> Tensor:
        """Return the mean over the roots of each sentence; shape ``(B, T, H)`` to ``(B, H)``."""
        own = states.flatten(0, 1)[self.roots]
        sums = own.new_zeros(len(self.root_counts), own.shape[1]).index_add(0, self.root_sentences, own)
        return sums / self.root_counts[:, None]


def grow_forest(sentences: Sequence[Sentence], *, device: torch.device | str = "cpu") -> Forest:
    """Order the words of a batch bottom-up; no sentence may be empty, several roots are allowed.

    Raises:
        TreeError: when a sentence has no heads, a head outside the sentence, no root or a cycle.
    """
    lengths = np.array([len(sentence.words) for sentence in sentences])
    starts = np.cumsum(lengths) - lengths
    owners = np.repeat(np.arange(len(sentences)), lengths)
    heads = np.concatenate([_heads(sentence) for sentence in sentences])
    outside = np.flatnonzero((heads < 0) | (heads > lengths[owners]))
    if outside.size:
        sentence, place = sentences[owners[outside[0]]], int(outside[0] - starts[owners[outside[0]]])
        fault = f"expected a head from 0 to {len(sentence.words)}, got {heads[outside[0]]}"
        raise TreeError(_explain(sentence, place, fault))
    # One node after the last word is the parent of all roots: its height is the number of levels.
    top = len(heads)
    parents = np.where(heads == 0, top, starts[owners] + heads - 1)
    heights = _heights(parents)
    circular = np.flatnonzero(heights < 0)
    if circular.size:
        sentence, place = sentences[owners[circular[0]]], int(circular[0] - starts[owners[circular[0]]])
        fault = "its heads lead back to it" if 0 in (sentence.heads or ()) else "no word of the sentence is a root"
        raise TreeError(_explain(sentence, place, fault))
    roots = np.flatnonzero(heads == 0)
    cells = owners * lengths.max() + np.arange(top) - starts[owners]
    order = np.lexsort((heights[parents], heights[:top]))
    return Forest(
        levels=tuple(_levels(order, parents, heights, device)),
        cells=torch.from_numpy(cells[order]).to(device),
        roots=torch.from_numpy(cells[roots]).to(device),
        root_sentences=torch.from_numpy(owners[roots]).to(device),
        root_counts=torch.from_numpy(np.bincount(owners[roots], minlength=len(sentences))).to(device),
    )


def _heads(sentence: Sentence) -> np.ndarray:
    if sentence.heads is None:
        raise TreeError(f"heads: expected a tree, got none for the sentence {first_words(sentence)!r}")
    return np.array(sentence.heads, dtype=np.int64)


def _heights(parents: np.ndarray) -> np.ndarray:
    """Return the height of every word and, last, of the parent of all roots; -1 for a word on a cycle."""
    top = len(parents)
    waiting = np.bincount(parents, minlength=top + 1)
    heights = np.full(top + 1, -1)
    level, ready = 0, np.flatnonzero(waiting[:top] == 0)
    while ready.size:
        heights[ready] = level
        above, children = np.unique(parents[ready], return_counts=True)
        waiting[above] -= children
        level, ready = level + 1, above[(waiting[above] == 0) & (above < top)]
    heights[top] = level
    return heights


def _levels(order: np.ndarray, parents: np.ndarray, heights: np.ndarray, device: torch.device | str) -> list[Level]:
    """Split the words, ordered by height, into levels."""
    targets = heights[parents[order]]
    ends = np.cumsum(np.bincount(heights[order]))
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    children = order[np.argsort(targets, kind="stable")]
    child_ends = np.cumsum(np.bincount(targets, minlength=len(ends)))
    levels = []
    for height, end in enumerate(ends):
        start = ends[height - 1] if height else 0
        above, counts = np.unique(targets[start:end], return_counts=True)
        arriving = children[child_ends[height - 1] if height else 0 : child_ends[height]]
        levels.append(
            Level(
                words=int(end - start),
                targets=tuple(above.tolist()),
                leaving=tuple(counts.tolist()),
                heads=torch.from_numpy(places[parents[arriving]] - start).to(device),
            )
        )
    return levels


def _explain(sentence: Sentence, place: int, fault: str) -> str:
    word = sentence.words[place]
    return f"heads: word {place + 1}, {word!r}, of the sentence {first_words(sentence)!r}: {fault}"


class TreeLstm(nn.Module):
    """One Child-Sum Tree-LSTM layer.

    With h the sum of the children's states h_k and c_k their cells (Tai et al., 2015, eq. 2-8)::

        i, u, o = sigmoid, tanh, sigmoid of (W x + U h + b)
        f_k = sigmoid(W_f x + U_f h_k + b_f)
        c = i * u + sum of f_k * c_k
        state = o * tanh(c)
    """

    def __init__(self, input_dimension: int, hidden: int) -> None:
        super().__init__()
        self._hidden = hidden
        self.input = nn.Linear(input_dimension, 4 * hidden)
        """Computes the gates f, i, u and o, in this order."""
        self.state = nn.Linear(hidden, 3 * hidden, bias=False)
        """Computes the gates i, u and o."""
        self.forget_state = nn.Linear(hidden, hidden, bias=False)

    def forward(self, inputs: Tensor, forest: Forest) -> Tensor:
        """Encode every tree from its leaves to its root; shape ``(B, T, D)`` to ``(B, T, H)``, zeros where padded."""
        gates = self.input(inputs.flatten(0, 1)[forest.cells])
        # The states of each level are split by the levels of the heads: no step, nor its gradient, touches words that
        # it does not need.
        arriving: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(len(forest.levels) + 1)]
        levels = []
        sizes = [level.words for level in forest.levels]
        for level, level_gates, children in zip(forest.levels, gates.split(sizes), arriving, strict=False):
            hidden, cell = self._compute(level, level_gates, children)
            levels.append(hidden)
            pieces = zip(hidden.split(level.leaving), cell.split(level.leaving), strict=True)
            for target, piece in zip(level.targets, pieces, strict=True):
                arriving[target].append(piece)
        states = torch.cat(levels)
        flat = states.new_zeros(inputs.shape[0] * inputs.shape[1], self._hidden)
        return flat.index_copy(0, forest.cells, states).view(*inputs.shape[:2], self._hidden)

    def _compute(self, level: Level, gates: Tensor, children: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Return the states and cells of a level's words, each of shape ``(words, H)``."""
        forget, others = gates[:, : self._hidden], gates[:, self._hidden :]
        kept = None
        if children:
            hidden, cells = (torch.cat(parts) for parts in zip(*children, strict=True))
            sums = hidden.new_zeros(level.words, self._hidden).index_add(0, level.heads, hidden)
            others = others + self.state(sums)
            remembered = (forget[level.heads] + self.forget_state(hidden)).sigmoid() * cells
            kept = remembered.new_zeros(level.words, self._hidden).index_add(0, level.heads, remembered)
        entering, candidate, leaving = others.chunk(3, dim=1)
        cell = entering.sigmoid() * candidate.tanh()
        cell = cell if kept is None else cell + kept
        return leaving.sigmoid() * cell.tanh(), cell
