"""Windows of long sentences: they overlap, and no word is lost."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from concord.models.data.outputs import PredictOptions
from concord.models.data.sentence import Sentence, cut_windows


def numbered(words: int) -> Sentence:
    return Sentence(words=tuple(f"w{number}" for number in range(words)))


@pytest.mark.slow
@given(
    lengths=st.lists(st.lists(st.integers(0, 60), max_size=3), max_size=3),
    longest=st.integers(8, 30),
    overlap=st.integers(0, 40),
)
def test_windows_keep_every_word_once_and_in_order(lengths: list[list[int]], longest: int, overlap: int) -> None:
    documents = [[numbered(words) for words in document] for document in lengths]
    kept = []
    for window in cut_windows(documents, longest=longest, overlap=overlap):
        assert 0 < len(window.sentence.words) <= longest
        begin, stop = window.keep
        kept += [(window.document, window.first + place, window.sentence.words[place]) for place in range(begin, stop)]
    expected = [(number, word) for number, document in enumerate(documents) for part in document for word in part.words]
    assert kept == [(number, row, word) for row, (number, word) in enumerate(expected)]


@pytest.mark.slow
@given(length=st.integers(1, 300), longest=st.integers(8, 60), overlap=st.integers(0, 59))
def test_kept_words_are_half_the_overlap_away_from_the_edge(length: int, longest: int, overlap: int) -> None:
    overlap = min(overlap, longest - 1)
    windows = cut_windows([[numbered(length)]], longest=longest, overlap=overlap)
    for window in windows:
        begin, stop = window.keep
        last = window.first + len(window.sentence.words)
        if window.first > 0:
            assert begin >= overlap // 2
        if last < length:
            assert len(window.sentence.words) - stop >= overlap // 2


def test_a_sentence_that_fits_is_one_window() -> None:
    sentence = Sentence(words=("a",) * 30, labels=("O",) * 30)
    (window,) = cut_windows([[sentence]], longest=30, overlap=8)
    assert window.sentence == replace(sentence, labels=None)
    assert window.keep == (0, 30)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bilstm_softmax", "uanet"])
def test_windows_change_results_only_near_their_seams(name: str, build: Callable[..., Any]) -> None:
    """Drafts and one-stage labels depend on a context that fades within some words of a cut."""
    sentence = Sentence(words=tuple(f"{'xyz'[number % 3]}{number % 7}" for number in range(160)))
    whole = build(name, window_words=160).tabulate([[sentence]])
    cut = build(name, window_words=100, window_overlap=40).tabulate([[sentence]])
    assert float((whole.uncertainty - cut.uncertainty).abs().max()) < 1e-3
    far = torch.tensor([*range(60), *range(100, 160)])
    assert float((whole.uncertainty - cut.uncertainty)[far].abs().max()) < 1e-6
    assert torch.equal(whole.draft[far], cut.draft[far])


@pytest.mark.parametrize("name", ["bilstm_crf", "doc_uanet"])
def test_long_sentences_and_empty_documents_have_one_result_per_word(name: str, build: Callable[..., Any]) -> None:
    tagger = build(name)
    documents = [
        [],
        [Sentence(words=())],
        [Sentence(words=("Paris",) * 600), Sentence(words=()), Sentence(words=("Ford", "laughed"))],
    ]
    predictions = tagger.predict_documents(documents, PredictOptions(threshold=-1.0))
    assert [[len(entry.labels) for entry in document] for document in predictions] == [[], [0], [600, 0, 2]]
    for entry in predictions[2]:
        assert len(entry.labels) == len(entry.draft_labels) == len(entry.probabilities) == len(entry.uncertainty)
        assert all(0 < probability <= 1 for probability in entry.probabilities)
        assert all(0 <= margin <= 1 for margin in entry.margins)
        assert entry.refined == (name == "doc_uanet",) * len(entry.labels)


@pytest.mark.slow
def test_memory_spans_the_windows_of_a_sentence(build: Callable[..., Any]) -> None:
    tagger = build("doc_uanet", window_words=20, window_overlap=4)
    filler = tuple(f"w{number}" for number in range(60))

    def probability(neighbour: str) -> float:
        sentence = Sentence(words=("Ford", *filler, "Ford", neighbour))
        return float(tagger.tabulate([[sentence]], PredictOptions(threshold=-1.0)).probability[0])

    assert probability("Paris") != probability("Ada")
