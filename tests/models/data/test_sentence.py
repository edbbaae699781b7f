"""Sentences: soft labels, passages and windows; what is left of words without their invisible characters."""

import random
import sys
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from concord.models.data.batch import BatchEncoder
from concord.models.data.outputs import PredictOptions
from concord.models.data.sentence import (
    INVISIBLE,
    Passage,
    Sentence,
    SoftLabels,
    allowed_labels,
    cut_windows,
    visible,
    with_passages,
    without_line_breaks,
)
from concord.models.data.vocabulary import Vocabulary
from concord.models.errors import ConfigError
from concord.models.labels import BIOES

NAMES = BIOES.label_set(["ORG", "PER"])
WORDS = ("Ada", "Lovelace", "met", "Acme")


def probabilities(*rows: dict[str, float]) -> SoftLabels:
    """Return the labels of words with these probabilities by name."""
    entries = [(place, name, value) for place, row in enumerate(rows) for name, value in row.items()]
    return SoftLabels(
        names=NAMES,
        words=np.array([place for place, _, _ in entries], dtype=np.int32),
        labels=np.array([NAMES.index(name) for _, name, _ in entries], dtype=np.int16),
        probabilities=np.array([value for _, _, value in entries], dtype=np.float32),
    )


def test_outside_words_of_an_incomplete_corpus_may_be_of_the_types_it_lacks() -> None:
    soft = allowed_labels(("B-PER", "I-PER", "O", "O"), NAMES, lacks={"ORG"}, scheme=BIOES)
    found = [
        {NAMES[label] for word, label in zip(soft.words, soft.labels, strict=True) if word == place}
        for place in range(4)
    ]
    free = {"O", "B-ORG", "I-ORG", "E-ORG", "S-ORG"}
    assert found == [{"B-PER"}, {"E-PER"}, free, free]
    assert soft.probabilities is None


def test_words_that_are_not_known_may_have_any_label_that_prolongs_no_known_entity() -> None:
    labels = ("O", "B-PER", "O", "O")
    soft = allowed_labels(labels, NAMES, lacks=(), scheme=BIOES, known=(False, True, False, False))
    found = [
        {NAMES[label] for word, label in zip(soft.words, soft.labels, strict=True) if word == place}
        for place in range(4)
    ]
    assert found == [set(NAMES), {"S-PER"}, {"O", "B-ORG", "S-ORG", "B-PER", "S-PER"}, set(NAMES)]


def test_part_of_a_sentence_has_the_soft_labels_of_its_words() -> None:
    soft = probabilities({"O": 1.0}, {"O": 0.5, "S-PER": 0.5}, {"S-ORG": 0.25, "O": 0.75}, {"O": 1.0})
    part = Sentence(words=WORDS, soft=soft).part(1, 3).soft
    assert part is not None
    assert part.words.tolist() == [0, 0, 1, 1]
    assert [NAMES[label] for label in part.labels] == ["O", "S-PER", "S-ORG", "O"]
    assert part.probabilities is not None
    assert part.probabilities.tolist() == [0.5, 0.5, 0.25, 0.75]


def test_batch_holds_gold_labels_probabilities_and_sets_in_one_tensor() -> None:
    sentences = [
        Sentence(words=WORDS[:2], labels=("B-PER", "I-PER")),
        Sentence(words=WORDS[2:], soft=probabilities({"O": 1.0}, {"S-ORG": 0.75, "O": 0.25})),
        Sentence(words=("Acme",), soft=allowed_labels(("O",), NAMES, lacks={"ORG"}, scheme=BIOES)),
    ]
    vocabulary = Vocabulary.from_sentences(sentences)
    assert vocabulary.labels == NAMES
    batch = BatchEncoder(vocabulary).encode_batch(sentences)
    assert batch.targets is not None
    assert batch.labels is None
    assert batch.targets.are_sets.tolist() == [True, False, True]
    weights = batch.targets.weights
    assert weights.shape == (3, 2, len(NAMES))
    assert weights[0].argmax(dim=1).tolist() == [NAMES.index("B-PER"), NAMES.index("E-PER")]
    assert weights[1, 1, NAMES.index("S-ORG")] == 0.75
    assert weights.sum(dim=2).tolist() == [[1, 1], [1, 1], [5, 0]]
    with pytest.raises(ConfigError, match="expected gold labels for this tagger"):
        _ = batch.gold

    part = batch.part(torch.tensor([2, 0]))
    assert part.targets is not None
    assert torch.equal(part.targets.weights, weights[[2, 0]])
    gold = BatchEncoder(vocabulary).encode_batch(sentences[:1])
    assert gold.targets is None
    assert gold.gold.tolist() == [[NAMES.index("B-PER"), NAMES.index("E-PER")]]


def test_unknown_soft_label_is_named() -> None:
    vocabulary = Vocabulary.from_sentences([Sentence(words=("Ada",), labels=("B-PER",))])
    with pytest.raises(ValueError, match=r"soft labels: expected some of O, .*, got 'B-ORG'"):
        BatchEncoder(vocabulary).encode_batch([Sentence(words=("a",), soft=probabilities({"O": 1.0}))])


def document(lengths: list[int]) -> list[Sentence]:
    return [Sentence(words=tuple(f"w{number}.{word}" for word in range(n))) for number, n in enumerate(lengths)]


@pytest.mark.parametrize("seed", range(20))
def test_passages_hold_their_sentences_in_order_and_are_of_about_equal_size(seed: int) -> None:
    draw = random.Random(seed)
    lengths = [draw.randint(0, 30) for _ in range(draw.randint(1, 60))]
    sentences = with_passages(document(lengths), 40)
    assert [sentence.words for sentence in sentences] == [sentence.words for sentence in document(lengths)]
    passages: list[Passage] = []
    for sentence in sentences:
        passage = sentence.passage
        assert passage is not None
        end = sentence.passage_start + len(sentence.words)
        assert passage.words[sentence.passage_start : end] == sentence.words
        if passage not in passages:
            passages.append(passage)
    assert sum(len(passage.words) for passage in passages) == sum(lengths)
    assert all(len(passage.words) <= 40 + max(lengths) / 2 for passage in passages)


def test_a_document_that_just_exceeds_a_passage_is_halved() -> None:
    first, *_, last = with_passages(document([10] * 5), 40)
    assert first.passage is not None
    assert last.passage is not None
    assert [len(first.passage.words), len(last.passage.words)] == [30, 20]


def test_sentences_keep_the_passage_that_they_have() -> None:
    whole = with_passages(document([5, 5, 5]), 40)
    again = with_passages(whole[1:], 40)
    assert [sentence.passage for sentence in again] == [whole[0].passage] * 2
    assert [sentence.passage_start for sentence in again] == [5, 10]


def test_a_part_of_a_sentence_stays_at_its_place() -> None:
    _, second = with_passages(document([3, 8]), 40)
    part = second.part(2, 6)
    assert part.passage is second.passage
    assert part.passage is not None
    assert part.passage.words[part.passage_start : part.passage_start + 4] == part.words


def test_sentences_without_words_need_no_passage() -> None:
    assert [sentence.words for sentence in with_passages(document([0, 0]), 40)] == [(), ()]
    assert with_passages([], 40) == []


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


@pytest.mark.slow
def test_memory_spans_the_windows_of_a_sentence(build: Callable[..., Any]) -> None:
    tagger = build("doc_uanet", window_words=20, window_overlap=4)
    filler = tuple(f"w{number}" for number in range(60))

    def probability(neighbour: str) -> float:
        sentence = Sentence(words=("Ford", *filler, "Ford", neighbour))
        return float(tagger.tabulate([[sentence]], PredictOptions(threshold=-1.0)).probability[0])

    assert probability("Paris") != probability("Ada")


WITH_A_GLYPH = {*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD}
"""Characters of the category Cf that stand before or around digits and are drawn."""
OTHERS = {0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2065, 0x3164, 0xFFA0, *range(0x180B, 0x1810), *range(0xFE00, 0xFE10)}
OTHERS |= {*range(0xFFF0, 0xFFF9), *range(0xE0000, 0xE1000)}
"""Characters of other categories, or of none yet, that Unicode calls default ignorable."""
LATER = {*range(0x13439, 0x13440)}
"""Format characters of hieroglyphs that Unicode 15 added, which an earlier Python does not know."""


def test_invisible_are_the_format_characters_and_all_that_may_be_ignored() -> None:
    found = {code for code in range(sys.maxunicode + 1) if INVISIBLE.fullmatch(chr(code))}
    formats = {code for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) == "Cf"}
    assert found == (formats - WITH_A_GLYPH) | OTHERS | LATER


@pytest.mark.parametrize("text", ["", "plain", "Çe\u0301 \u00a0\u2028\t", "\u0600\u06dd", "\x00\x07", "\U0001f469"])
def test_other_characters_stay(text: str) -> None:
    assert visible(text) == text


def test_words_of_a_sentence_are_visible_and_none_is_lost() -> None:
    sentence = Sentence(words=("Kel\u200bler", "\u200d", "\ufeff\u00ad", "ok"), labels=("O",) * 4)
    assert sentence.words == ("Keller", "\u200b", "\u200b", "ok")
    assert sentence.part(1, 3).words == ("\u200b", "\u200b")


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("in Wash-\nington", "in Washington"),
        ("Zü-  \r\n\trich", "Zürich"),
        ("Con-\nstan-\ntinople", "Constantinople"),
        ("Wash\u00ad\nIngton", "WashIngton"),
        ("Jean-\nPaul", "Jean-Paul"),
        ("Stratford-upon-\nAvon", "Stratford-upon-Avon"),
        ("mother-in-\nlaw", "mother-in-law"),
        ("a ferry-\nhouse, the ferry-house", "a ferry-house, the ferry-house"),
        ("to-\nnight, to the night", "to-night, to the night"),
        ("with-\nout, with and out and without", "without, with and out and without"),
    ],
)
def test_words_are_whole_without_line_ends(text: str, whole: str) -> None:
    assert without_line_breaks(text) == whole


@pytest.mark.parametrize(
    "text",
    [
        "pre- and",
        "pre-\nand post-war",
        "he said-\nThen",
        "10-\n20",
        "x-\nray",
        "a --\nb",
        "end-\n\nnext",
        "Wash -\nington",
    ],
)
def test_other_hyphens_and_line_ends_stay(text: str) -> None:
    assert without_line_breaks(text) == text
