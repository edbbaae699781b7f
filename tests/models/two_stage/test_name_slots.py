"""Slots by name: which occurrences a word reads first, and how they match."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from concord.models.data.sentence import Sentence
from concord.models.options import PredictOptions
from concord.models.two_stage.document_memory import number_words, occurrence_index
from concord.models.two_stage.name_slots import MARKS, NameSlots

Build = Callable[..., Any]
LABELS = ("O", "B-PER", "I-PER", "E-PER", "S-PER", "B-LOC", "I-LOC", "E-LOC", "S-LOC")
TAGGED = st.tuples(st.sampled_from("abc"), st.sampled_from(LABELS))


def name_slots(document: list[str], *, first: tuple[int, ...] = ()) -> tuple[NameSlots, torch.Tensor]:
    """Return the names of a document, and the occurrences of each word, of sentences like ``Ada/B-PER King/E-PER``."""
    sentences = [[word.partition("/") for word in sentence.split()] for sentence in document]
    words = [word for sentence in sentences for word, _, _ in sentence]
    numbers = torch.arange(len(sentences)).repeat_interleave(torch.tensor([*map(len, sentences)]))
    groups = number_words([words], "lower")
    names = NameSlots(groups, numbers, LABELS, first)
    drafts = torch.tensor([LABELS.index(label or "O") for sentence in sentences for _, _, label in sentence])
    names.write(torch.arange(len(words)), nn.functional.one_hot(drafts, len(LABELS)).float())
    return names, occurrence_index(groups, slots=8)


def read(document: list[str], row: int, *, most: int = 3, first: tuple[int, ...] = ()) -> list[tuple[int, list[bool]]]:
    """Return the slots of a word with their marks."""
    names, index = name_slots(document, first=first)
    slots, marks = names.choose(torch.tensor(row), index[row], most=most)
    return [(slot, mark) for slot, mark in zip(slots.tolist(), marks.tolist(), strict=True) if slot >= 0]


ALONE, NAME, BEFORE, AFTER = [False] * 3, [True] * 3, [False, True, False], [False, False, True]


def test_the_name_is_read_before_names_that_hold_the_word_and_those_before_the_word() -> None:
    document = [
        "he likes baxter street",
        "Jo/B-PER Baxter/E-PER left",
        "Alan/B-PER Baxter/E-PER left",
        "Alan Baxter left",
    ]
    assert read(document, 11) == [(8, NAME), (5, AFTER), (2, ALONE)]
    assert read(document, 11, most=1) == [(8, NAME)]
    assert read(document, 10) == [(7, NAME)]


def test_a_name_stands_where_a_longer_one_holds_it() -> None:
    document = ["Baxter/S-PER left", "then Alan/B-PER Baxter/E-PER slept"]
    assert read(document, 4) == [(0, [True, False, False])]
    # The longer one does not stand where only a part of it does.
    assert read(document, 0) == [(4, ALONE)]


def test_names_end_where_drafts_say_and_at_the_ends_of_sentences() -> None:
    assert read(["New/B-LOC York/E-LOC Ada/S-PER", "York Ada"], 3) == [(1, AFTER)]
    assert read(["in York/B-LOC", "Ada/E-LOC left in York"], 5) == [(1, [True, True, True])]
    assert read(["York/S-LOC York/S-LOC", "York"], 2) == [(0, [True, True, False]), (1, [True, False, True])]


def test_certain_words_are_read_before_names() -> None:
    document = ["a Ford here", "Ford/S-PER left", "Ford"]
    assert [slot for slot, _ in read(document, 5)] == [3, 1]
    assert [slot for slot, _ in read(document, 5, first=(1,))] == [1, 3]


@pytest.mark.slow
@given(st.lists(st.lists(TAGGED, min_size=1, max_size=5), min_size=1, max_size=5))
@settings(deadline=None, max_examples=150)
def test_marks_are_those_of_words_compared_one_by_one(sentences: list[list[tuple[str, str]]]) -> None:
    names, index = name_slots([" ".join(f"{word}/{label}" for word, label in sentence) for sentence in sentences])
    places = [(number, place) for number, sentence in enumerate(sentences) for place in range(len(sentence))]
    slots, marks = names.choose(torch.arange(len(places)), index, most=8)

    def word(number: int, place: int) -> str | None:
        return sentences[number][place][0] if 0 <= place < len(sentences[number]) else None

    def goes_on(number: int, place: int) -> bool:
        """Whether a word goes on with the name of the word before."""
        if not 0 < place < len(sentences[number]):
            return False
        (_, before), (_, label) = sentences[number][place - 1 : place + 1]
        return label[0] in "IE" and before[0] in "BI" and label[1:] == before[1:]

    for reader, (number, place) in enumerate(places):
        assert sorted(slots[reader].tolist()) == sorted(index[reader].tolist())
        for slot, mark in zip(slots[reader].tolist(), marks[reader].tolist(), strict=True):
            if slot < 0:
                assert mark == ALONE
                continue
            other, at = places[slot]
            start, stop = at, at + 1
            while goes_on(other, start):
                start -= 1
            while goes_on(other, stop):
                stop += 1
            same = [word(other, one) == word(number, place + one - at) for one in range(start, stop)]
            stands = sentences[other][at][1] != "O" and all(same)
            assert mark == [stands, *(word(other, at + one) == word(number, place + one) for one in (-1, 1))]
        ranks = [
            (not mark[0], sentences[places[slot][0]][places[slot][1]][1] == "O", slot)
            for slot, mark in zip(slots[reader].tolist(), marks[reader].tolist(), strict=True)
            if slot >= 0
        ]
        assert ranks == sorted(ranks)


def test_an_untrained_reader_of_names_reads_like_one_of_words(build: Build, documents: list[list[Sentence]]) -> None:
    plain, named = build("doc_uanet"), build("doc_uanet", memory={"by_name": True})
    named.load_state_dict(plain.state_dict(), strict=False)
    options = PredictOptions(threshold=-1.0)
    before = plain.tabulate(documents, options).probability
    assert torch.allclose(named.tabulate(documents, options).probability, before, atol=1e-6)
    for number in range(MARKS + 1):
        with torch.no_grad():
            named.refine_network.reader.mark_values.zero_()[number] = 3.0
        after = named.tabulate(documents, options).probability
        assert not torch.allclose(after, before, atol=1e-6), "the mark has no effect"


@pytest.mark.parametrize("label_stream", ["released", "paper"])
def test_results_depend_on_neither_batches_nor_other_documents(
    label_stream: str, build: Build, random_documents: Callable[..., list[list[Sentence]]]
) -> None:
    tagger = build("doc_uanet", memory={"by_name": True, "slots": 2}, label_stream=label_stream)
    with torch.no_grad():
        tagger.refine_network.reader.mark_values.normal_()
        tagger.refine_network.reader.mark_scores.normal_()
    documents = random_documents(3, documents=4)
    whole = tagger.tabulate(documents, PredictOptions(threshold=-1.0)).probability
    small = tagger.tabulate(documents, PredictOptions(threshold=-1.0, batch_words=8)).probability
    assert torch.allclose(whole, small, atol=1e-5)
    alone = [tagger.tabulate([one], PredictOptions(threshold=-1.0)).probability for one in documents]
    assert torch.allclose(whole, torch.cat(alone), atol=1e-5)
    numbers = [number for number, document in enumerate(documents) for _ in document]
    labelled = [Sentence(words=one.words, labels=("O",) * len(one.words)) for document in documents for one in document]
    loss = tagger.train().loss(tagger.encode(labelled, documents=numbers))
    loss.backward()
    assert bool((tagger.refine_network.reader.mark_values.grad != 0).any())
    assert len(tagger.eval().attention_maps(documents[0])) == len(documents[0])
