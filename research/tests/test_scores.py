"""Scores that only the grid compares: counts by document, NCRF++'s rules, p of the bootstrap."""

import re
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concord.models.data.sentence import Sentence
from concord.models.evaluation.metrics import Scores, span_scores
from concord.models.evaluation.significance import f1, resampled_differences
from concord.models.labels import decode_spans, encode_spans
from research.grid.scores import bootstrap_p, counts_by_document, label_counts_by_document, lenient_scores

LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
sentences = st.lists(
    st.integers(1, 8).flatmap(
        lambda length: st.tuples(
            st.lists(st.sampled_from(LABELS), min_size=length, max_size=length),
            st.lists(st.sampled_from(LABELS), min_size=length, max_size=length),
        )
    ),
    min_size=1,
    max_size=6,
)


def counts(correct: list[list[int]], *, gold: int = 4) -> np.ndarray:
    """Return counts of seeds x units, with this many gold and predicted names in every unit."""
    found = np.array(correct)
    return np.stack([np.full_like(found, gold), np.full_like(found, gold), found], axis=-1)


def test_names_are_counted_by_document() -> None:
    document = [
        Sentence(words=("Ada", "King", "met", "Ford"), labels=("B-PER", "I-PER", "O", "B-PER")),
        Sentence(words=("FORD", "left", "Rome"), labels=("B-PER", "O", "B-LOC")),
    ]
    predicted = [("B-PER", "I-PER", "O", "B-ORG"), ("B-PER", "O", "B-LOC")]
    assert counts_by_document([document, []], [predicted, []]) == {
        "all": [[4, 4, 3], [0, 0, 0]],
        "multi_word": [[1, 1, 1], [0, 0, 0]],
        "recurring": [[2, 2, 1], [0, 0, 0]],
        "once": [[2, 2, 2], [0, 0, 0]],
    }


def test_correct_labels_are_counted_by_document() -> None:
    document = [Sentence(words=("Dogs", "bark"), labels=("NNS", "VBP")), Sentence(words=("Stop",), labels=("VB",))]
    assert label_counts_by_document([document, []], [[("NNS", "VB"), ("VB",)], []]) == {"all": [[3, 3, 2], [0, 0, 0]]}
    with pytest.raises(ValueError, match="sentence 0: expected 2 labels, got 1"):
        label_counts_by_document([document[:1]], [[("NNS",)]])


def test_lenient_score_counts_malformed_entities() -> None:
    gold = [("O", "B-PER", "I-PER", "E-PER")]
    assert lenient_scores(gold, [("O", "B-PER", "I-ORG", "E-LOC")]) == Scores(gold=1, predicted=1, correct=1)
    assert lenient_scores(gold, [("O", "B-ORG", "I-PER", "E-PER")]) == Scores(gold=1, predicted=1, correct=0)
    # NCRF++ closes what is open at the end of the sentence without its last place, as it writes single words.
    assert lenient_scores(gold, [("O", "B-PER", "I-PER", "I-PER")]) == Scores(gold=1, predicted=1, correct=0)
    single = [("O", "S-PER", "O", "O")]
    assert lenient_scores(single, [("O", "B-PER", "I-PER", "O")]) == Scores(gold=1, predicted=1, correct=1)


def test_lenient_entity_cut_after_one_word_is_no_entity_of_one_word() -> None:
    gold = [("S-PER", "S-LOC")]
    for cut in ("S-LOC", "B-LOC"):
        assert lenient_scores(gold, [("B-PER", cut)]) == Scores(gold=2, predicted=2, correct=1)
    assert lenient_scores([("B-PER", "S-LOC")], [("B-PER", "S-LOC")]) == Scores(gold=2, predicted=2, correct=2)


def test_lenient_entities_are_those_of_a_regular_expression() -> None:
    labels = ("O", "B-X", "I-X", "E-X", "S-X", "E-Y")
    pattern = re.compile(r"(?P<single>S)|B[OI]*(?P<last>E)|B[OI]*(?=[BS])|B(?=[OI]*$)")
    for length in range(1, 6):
        for found in product(labels, repeat=length):
            matches = list(pattern.finditer("".join(label[0] for label in found)))
            # Gold with one entity at each match, all of the type of its first label.
            gold, cut = ["O"] * length, 0
            for match in matches:
                size = match.end() - match.start()
                # What the next entity cuts after its first word is written otherwise than a word by itself.
                cut += size == 1 and match.group() == "B" and match.end() < length and found[match.end()][0] in "BS"
                inside = ["S-X"] if size == 1 else ["B-X", *["I-X"] * (size - 2), "E-X"]
                gold[match.start() : match.end()] = inside
            number = len(matches)
            expected = Scores(gold=number, predicted=number, correct=number - cut)
            assert lenient_scores([gold], [found]) == expected, found


@pytest.mark.slow
@given(sentences)
def test_lenient_score_of_well_formed_labels_is_the_strict_one(pairs: list[tuple[list[str], list[str]]]) -> None:
    sides = [
        [encode_spans(decode_spans(pair[side], "BIO"), len(pair[side]), "BIOES") for pair in pairs] for side in (0, 1)
    ]
    strict = span_scores(*[[pair[side] for pair in pairs] for side in (0, 1)])["all"]
    assert lenient_scores(*sides) == strict


def test_p_of_the_bootstrap_is_below_alpha_where_the_interval_excludes_zero() -> None:
    chance = np.random.default_rng(11)
    for _ in range(30):
        first, second = (counts([list(chance.integers(0, 5, 12))]) for _ in range(2))
        drawn = resampled_differences(first, second, resamples=2000)
        low, high = np.percentile(drawn, [2.5, 97.5])
        p = bootstrap_p(drawn)
        if abs(p - 0.05) > 0.002:  # within the grain of 2,000 resamples either may be
            assert (p < 0.05) == (low > 0 or high < 0), (p, low, high)


def test_p_of_the_bootstrap_is_that_of_all_resamples() -> None:
    """Four units have 256 ordered resamples, each as likely."""
    first, second = counts([[4, 3, 1, 4]]), counts([[2, 2, 3, 1]])
    every = np.array([[f1(side[0, list(rows)].sum(axis=0)) for side in (first, second)]
                      for rows in product(range(4), repeat=4)])  # fmt: skip
    gains = every[:, 0] - every[:, 1]
    exact = 2 * min((gains <= 1e-9).mean(), (gains >= -1e-9).mean())
    assert bootstrap_p(resampled_differences(first, second, resamples=20_000)) == pytest.approx(exact, abs=0.01)
    assert bootstrap_p(np.zeros(50)) == 1.0
    assert bootstrap_p(np.ones(99)) == pytest.approx(0.02)
