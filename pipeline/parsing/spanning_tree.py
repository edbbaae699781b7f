"""Find the best dependency tree of a sentence from its arc scores."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


def best_trees(scores: NDArray[np.floating], lengths: Sequence[int]) -> NDArray[np.int64]:
    """Find the best tree of each of B sentences: the best heads of all at once, ``best_tree`` where they are no tree.

    Args:
        scores: as for ``best_tree``, with padding; shape ``(B, 1 + T, 1 + T)``. Padding must be finite; it and the
            diagonal are overwritten.
        lengths: words of each sentence with the root.

    Returns:
        heads, shape ``(B, 1 + T)``, 0 for roots and padding.

    Raises:
        ValueError: when scores are not finite.
    """
    size = scores.shape[1]
    is_padding = np.arange(size) >= np.asarray(lengths)[:, None]
    is_finite = np.isfinite(scores).all(axis=(1, 2))
    np.copyto(scores, -np.inf, where=is_padding[:, None, :] | np.eye(size, dtype=np.bool_))
    heads: NDArray[np.int64] = np.argmax(scores, axis=2)
    heads[:, 0] = 0
    heads[is_padding] = 0
    ancestors = heads
    for _ in range(size.bit_length()):  # each round doubles the steps towards the root
        ancestors = np.take_along_axis(ancestors, ancestors, axis=1)
    roots = np.count_nonzero((heads == 0) & ~is_padding, axis=1) - 1
    for row in np.flatnonzero(ancestors.any(axis=1) | (roots != 1) | ~is_finite).tolist():
        length = lengths[row]
        heads[row, :length] = best_tree(scores[row, :length, :length])
    return heads


def best_tree(scores: NDArray[np.floating]) -> NDArray[np.int64]:
    """Find the tree of highest score that has one root.

    Exact, in two steps. If the best tree with any number of roots (``_arborescence``) has one root, no tree of one root
    is better. Otherwise all arcs from the root are penalised by the same growing amount: this does not change the order
    among trees of one root, so the first such tree that wins is the best of them.

    Args:
        scores: of word i (row) having head j (column), where 0 is the root; shape ``(1 + T, 1 + T)``.
            The diagonal and row 0 are not read.

    Returns:
        heads, shape ``(1 + T,)``, 0 at index 0.

    Raises:
        ValueError: when scores are not finite.
    """
    arcs = scores.astype(np.float64)
    np.fill_diagonal(arcs, -np.inf)
    arcs[0] = -np.inf
    arcs[0, 0] = 0
    size = len(arcs)
    off_diagonal = arcs[1:][~np.eye(size, dtype=np.bool_)[1:]]
    if not np.isfinite(off_diagonal).all():
        raise ValueError(f"expected finite arc scores for a sentence of {size - 1} words")
    # No gain from a second root can outweigh this penalty, so the loop ends before exceeding it.
    enough = size * (off_diagonal.max() - off_diagonal.min()) + 1 if size > 1 else 0
    penalty = 0.0
    while True:
        penalized = arcs.copy()
        penalized[1:, 0] -= penalty
        heads = _arborescence(penalized)
        if np.count_nonzero(heads[1:] == 0) <= 1 or penalty > enough:
            return heads
        penalty = max(1.0, 4 * penalty)


def _arborescence(scores: NDArray[np.float64]) -> NDArray[np.int64]:
    """Find the tree of highest score with any number of roots: Chu-Liu-Edmonds, in time quadratic in the words.

    A path grows backwards from a word along best heads until it meets a word that is done. If it meets itself, the
    cycle is contracted into one node, whose incoming arcs are worth what they gain over the arc that they replace
    (Tarjan 1977). A node's arcs are kept by the words that they start from, so no contraction rewrites those of others.
    """
    size = len(scores)
    nodes = [_Node(gains=scores[word], dependents=np.full(size, word), words=np.array([word])) for word in range(size)]
    owner = list(range(size))  # the outermost node that holds each word
    nodes[0].is_done = True
    for start in range(1, size):
        path = [owner[start]]
        while not nodes[path[-1]].is_done:
            node = nodes[path[-1]]
            node.head = int(node.gains.argmax())
            before = owner[node.head]
            if nodes[before].is_done:
                for other in path:
                    nodes[other].is_done = True
            elif before not in path:
                path.append(before)
            else:
                first = path.index(before)
                nodes.append(_contract([nodes[member] for member in path[first:]], cycle=path[first:]))
                path[first:] = [len(nodes) - 1]
                for word in nodes[-1].words.tolist():
                    owner[word] = len(nodes) - 1
    return _expand(nodes, size)


@dataclass(kw_only=True, slots=True)
class _Node:
    """A word, or the words of a cycle.

    Attributes:
        gains: the worth of the best arc into it from each word, shape ``(size,)``.
        dependents: the word of the node at which that arc ends, shape ``(size,)``.
        head: the word that the chosen arc starts from.
        words: that it holds.
        cycle: the numbers of the nodes that form it; empty for a word.
    """

    gains: NDArray[np.float64]
    dependents: NDArray[np.int64]
    words: NDArray[np.int64]
    cycle: Sequence[int] = ()
    head: int = 0
    is_done: bool = False


def _contract(members: Sequence[_Node], *, cycle: Sequence[int]) -> _Node:
    """Return one node in place of those of a cycle."""
    gains, dependents = members[0].gains - members[0].gains[members[0].head], members[0].dependents
    for member in members[1:]:
        others = member.gains - member.gains[member.head]
        dependents = np.where(others > gains, member.dependents, dependents)
        gains = np.maximum(gains, others)
    words = np.concatenate([member.words for member in members])
    gains[words] = -np.inf
    return _Node(gains=gains, dependents=dependents, words=words, cycle=cycle)


def _expand(nodes: Sequence[_Node], size: int) -> NDArray[np.int64]:
    """Break each cycle, the outermost first, where the arc into it ends; return the heads of the words."""
    parent = {member: number for number, node in enumerate(nodes) for member in node.cycle}
    arcs = [(node.head, int(node.dependents[node.head])) for node in nodes]
    for number in range(len(nodes) - 1, size - 1, -1):
        member = arcs[number][1]
        while parent[member] != number:
            member = parent[member]
        arcs[member] = arcs[number]
    return np.array([head for head, _ in arcs[:size]], dtype=np.int64)
