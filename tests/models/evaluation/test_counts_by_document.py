"""Counts by document: they add up to the scores of the whole."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concord.models.evaluation.metrics import group_counts_by_document, span_scores

LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
Pairs = list[tuple[list[str], list[str]]]

_label_lists = st.integers(1, 12).flatmap(
    lambda length: st.tuples(*[st.lists(st.sampled_from(LABELS), min_size=length, max_size=length)] * 2)
)
label_pairs = st.lists(_label_lists, min_size=1, max_size=6)


@pytest.mark.slow
@given(label_pairs)
def test_groups_by_document_add_up_to_the_scores(pairs: Pairs) -> None:
    gold, predicted = ([list(labels) for labels in side] for side in zip(*pairs, strict=True))
    counts = group_counts_by_document(
        [gold, []], [predicted, []], lambda _, place, span: ("all", span.label, place % 2)
    )
    scores = span_scores(gold, predicted)
    for name, part in scores.items():
        assert counts.get(name, np.zeros((2, 3)))[0].tolist() == [part.gold, part.predicted, part.correct]
    assert all((own[1] == 0).all() for own in counts.values())
    if "all" in counts:
        halves = [counts[half] for half in (0, 1) if half in counts]
        assert np.sum(halves, axis=0).tolist() == counts["all"].tolist()
