"""Passages: which sentences an encoder reads at once."""

import random

import pytest

from concord.models.data.sentence import Passage, Sentence, with_passages


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
