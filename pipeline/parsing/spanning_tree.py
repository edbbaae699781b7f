"""Find the best dependency tree of a sentence from its arc scores."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def best_tree(scores: NDArray[np.floating]) -> NDArray[np.int64]:
    """Find the tree of highest score that has one root.

    Exact, in three steps of increasing cost. If each word's best head already makes a tree, no tree is better.
    Otherwise the best tree with any number of roots is searched (Chu-Liu-Edmonds); if it has one root, no tree of one
    root is better. Otherwise all arcs from the root are penalised by the same growing amount: this does not change
    the order among trees of one root, so the first such tree that wins is the best of them.

    Args:
        scores: of word i (row) having head j (column), where 0 is the root; shape ``(1 + T, 1 + T)``.
            The diagonal and row 0 are not read.

    Returns:
        heads, shape ``(1 + T,)``, 0 at index 0.

    Raises:
        ValueError: when scores are not finite.
    """
    from stanza.models.common.chuliu_edmonds import chuliu_edmonds

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
        heads: NDArray[np.int64] = np.argmax(penalized, axis=1)
        if not _is_tree(heads.tolist()):
            heads = np.asarray(chuliu_edmonds(penalized))
        if np.count_nonzero(heads[1:] == 0) <= 1 or penalty > enough:
            return heads
        penalty = max(1.0, 4 * penalty)


def _is_tree(heads: Sequence[int]) -> bool:
    """Return whether every word reaches the root."""
    seen_from = [-1] + [0] * (len(heads) - 1)
    for start in range(1, len(heads)):
        place = start
        while seen_from[place] == 0:
            seen_from[place] = start
            place = heads[place]
        if seen_from[place] == start:
            return False
    return True
