"""Windows of words of any length within an encoder's capacity."""

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from concord.models.words.subwords import window_bounds

CAPACITY = 510


@given(
    st.lists(st.integers(1, 500) | st.integers(1, 3), max_size=200),
    st.sampled_from([0, 1, 32, 500]),
)
@example([31] * 24, 32)
@example([64] * 16, 32)
@example([127, 383] * 9, 32)
@example([500, 1] * 60, 32)
def test_windows_keep_each_word_once_at_bounded_cost(counts: list[int], overlap_words: int) -> None:
    bounds = window_bounds(counts, capacity=CAPACITY, overlap_words=overlap_words)
    kept = [word for _, _, begin, end in bounds for word in range(begin, end)]
    assert kept == list(range(len(counts)))
    costs = [sum(counts[first:last]) for first, last, _, _ in bounds]
    assert all(cost <= CAPACITY for cost in costs)
    assert all(first <= begin < end <= last for first, last, begin, end in bounds)
    assert 3 * sum(costs) <= 4 * sum(counts) + CAPACITY
    for left, right in pairwise(bounds):
        assert 0 <= left[1] - right[0] <= overlap_words
        assert sum(counts[right[0] : left[1]]) <= CAPACITY // 4


@given(st.lists(st.integers(1, 3), max_size=2000))
def test_neighbours_share_words_where_those_have_few_subwords(counts: list[int]) -> None:
    bounds = window_bounds(counts, capacity=CAPACITY, overlap_words=32)
    assert all(left[1] - right[0] == 32 for left, right in pairwise(bounds))
    for first, last, _, _ in bounds[:-1]:
        assert CAPACITY - 3 < sum(counts[first:last]) <= CAPACITY
