"""The best tree of a sentence, against enumeration and Stanza's search."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from concord.pipeline.parsing.spanning_tree import best_tree, best_trees

pytestmark = pytest.mark.slow


def enumerated_best(scores: NDArray[np.floating]) -> float:
    """Return the highest score of a tree with one root, by trying all heads."""
    size = len(scores)
    best = -np.inf
    for heads in itertools.product(range(size), repeat=size - 1):
        if heads.count(0) != 1 or any(head == word for word, head in enumerate(heads, start=1)):
            continue
        reached = {0}
        while new := {w for w, h in enumerate(heads, start=1) if h in reached and w not in reached}:
            reached |= new
        if len(reached) == size:
            best = max(best, sum(scores[word, head] for word, head in enumerate(heads, start=1)))
    return best


@given(st.integers(2, 5), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 3.0, 30.0]))
def test_best_tree_equals_exhaustive_search(size: int, seed: int, root_bonus: float) -> None:
    scores = np.random.default_rng(seed).normal(size=(size, size)).astype(np.float32) * 3
    scores[:, 0] += root_bonus
    heads = best_tree(scores)
    assert heads[0] == 0
    assert np.count_nonzero(heads[1:] == 0) == 1
    found = sum(scores[word, heads[word]] for word in range(1, size))
    assert found == pytest.approx(enumerated_best(scores), abs=1e-3)


def nested_cycles(words: int, *, seed: int = 0) -> NDArray[np.float32]:
    """Return arc scores whose best heads form a cycle, and again one each time that a cycle becomes one node."""
    scores = np.random.default_rng(seed).normal(size=(words + 1, words + 1)).astype(np.float32)
    scores[1:, 0] -= 50
    scores[np.arange(2, words + 1), np.arange(1, words)] += 10
    scores[np.arange(1, words), np.arange(2, words + 1)] += 5
    scores[1, 2] += 10
    return scores


def arcs_of(scores: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the scores as Stanza's search expects them."""
    arcs = scores.astype(np.float64)
    np.fill_diagonal(arcs, -np.inf)
    arcs[0], arcs[0, 0] = -np.inf, 0
    return arcs


@pytest.mark.parametrize("seed", range(5))
def test_best_tree_of_nested_cycles_equals_that_of_stanza(seed: int) -> None:
    from stanza.models.common.chuliu_edmonds import chuliu_edmonds_one_root

    scores = nested_cycles(12, seed=seed)
    assert best_tree(scores).tolist() == np.asarray(chuliu_edmonds_one_root(arcs_of(scores))).tolist()


@pytest.mark.parametrize("seed", range(3))
def test_best_trees_equal_those_of_each_sentence(seed: int) -> None:
    random = np.random.default_rng(seed)
    lengths = sorted(random.integers(2, 12, size=30).tolist(), reverse=True)
    scores = random.normal(size=(30, lengths[0], lengths[0])).astype(np.float32) * 3
    expected = np.zeros((30, lengths[0]), dtype=np.int64)
    for row, length in enumerate(lengths):
        expected[row, :length] = best_tree(scores[row, :length, :length])
    assert best_trees(scores, lengths).tolist() == expected.tolist()


def test_scores_that_are_not_finite_are_refused() -> None:
    scores = np.zeros((2, 4, 4), dtype=np.float32)
    scores[1, 2, 1] = np.nan
    with pytest.raises(ValueError, match="finite arc scores for a sentence of 3 words"):
        best_tree(scores[1])
    with pytest.raises(ValueError, match="finite arc scores for a sentence of 3 words"):
        best_trees(scores, [4, 4])
