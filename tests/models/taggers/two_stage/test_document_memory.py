"""The document memory: which slots a word reads, and what it reads there."""

from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from concord.models.data.outputs import PredictOptions
from concord.models.data.sentence import Sentence
from concord.models.taggers.two_stage_networks import (
    DocumentMemory,
    MemoryContents,
    MemoryReader,
    number_words,
    occurrence_index,
    word_rows,
)
from concord.models.training.fit_calibration import REFINE_ALL

CPU = torch.device("cpu")
Document = list[Sentence]
Key = Literal["lower", "exact"]
WORDS = st.sampled_from(["Ford", "ford", "FORD", "1984", "1985", "the", ".", "\u00c9mile", "\u00e9mile"])


def naive_index(documents: list[list[str]], key: Key, slots: int) -> list[list[int]]:
    """List the other occurrences of each word by comparing all pairs."""

    def same(left: str, right: str) -> bool:
        if key == "exact":
            return left == right
        digits = str.maketrans("123456789", "000000000")
        return left.translate(digits).lower() == right.translate(digits).lower()

    rows, first = [], 0
    for words in documents:
        for place, word in enumerate(words):
            others = [first + other for other, found in enumerate(words) if other != place and same(word, found)]
            rows.append((others + [-1] * slots)[:slots])
        first += len(words)
    return rows


@pytest.mark.slow
@given(
    documents=st.lists(st.lists(WORDS, max_size=14), max_size=4),
    key=st.sampled_from(["lower", "exact"]),
    slots=st.integers(1, 5),
)
def test_index_lists_the_first_other_occurrences_in_document_order(
    documents: list[list[str]], key: Key, slots: int
) -> None:
    index = occurrence_index(number_words(documents, key), slots=slots)
    assert index.tolist() == naive_index(documents, key, slots)


@pytest.mark.slow
@given(documents=st.lists(st.lists(WORDS, max_size=14), max_size=4), slots=st.integers(1, 5))
def test_index_excludes_the_word_itself_and_other_documents(documents: list[list[str]], slots: int) -> None:
    index = occurrence_index(number_words(documents, "lower"), slots=slots)
    owner = [number for number, words in enumerate(documents) for _ in words]
    for word, row in enumerate(index.tolist()):
        read = [slot for slot in row if slot >= 0]
        assert word not in read
        assert all(owner[slot] == owner[word] for slot in read)
        assert read == sorted(set(read))


def test_key_lower_ignores_case_and_digits_and_exact_does_not() -> None:
    documents = [["Ford", "ford", "1984", "1985", "Ford"]]
    assert occurrence_index(number_words(documents, "lower"), slots=2).tolist() == [
        [1, 4],
        [0, 4],
        [3, -1],
        [2, -1],
        [0, 1],
    ]
    exact = [[4, -1], [-1, -1], [-1, -1], [-1, -1], [0, -1]]
    assert occurrence_index(number_words(documents, "exact"), slots=2).tolist() == exact


@pytest.fixture
def reader() -> MemoryReader:
    torch.manual_seed(2)
    return MemoryReader(width=4, hidden=6, dropout=0.0).double().eval()


@torch.no_grad()
def test_reader_sums_contexts_and_labels_with_the_same_weights(reader: MemoryReader) -> None:
    states, hidden, labels = (torch.randn(*shape).double() for shape in ((1, 3, 4), (5, 6), (5, 4)))
    slots = torch.tensor([[[0, 3, -1], [2, -1, -1], [-1, -1, -1]]])
    context, label = reader(states, MemoryContents.of(hidden, labels, slots), labels)
    for word, present in enumerate([[0, 3], [2]]):
        keys, values = reader.key(hidden[present]), reader.value(labels[present])
        weights = (keys @ reader.query(states[0, word]) / 2.0).softmax(0)
        assert torch.allclose(context[0, word], weights @ keys)
        assert torch.allclose(label[0, word], weights @ values)
    assert torch.equal(context[0, 2], reader.default_context)
    assert torch.equal(label[0, 2], reader.default_label)


def test_reader_returns_the_learned_defaults_for_an_empty_memory(reader: MemoryReader) -> None:
    hidden, labels = torch.zeros(0, 6, dtype=torch.float64), torch.zeros(0, 4, dtype=torch.float64)
    states = torch.randn(2, 3, 4, dtype=torch.float64)
    context, label = reader(states, MemoryContents.of(hidden, labels, torch.full((2, 3, 10), -1)), labels)
    assert torch.equal(context, reader.default_context.expand_as(states))
    (context.sum() + label.sum()).backward()
    assert reader.default_context.grad is not None
    assert reader.default_label.grad is not None


def test_default_vectors_affect_only_words_that_occur_once(build: Callable[..., Any]) -> None:
    tagger = build("doc_uanet")
    # One word a sentence: words of a sentence meet in the attention that follows the memory.
    document = [Sentence(words=(word,)) for word in ("Ford", "Paris", "ford", "Ada")]
    before = tagger.tabulate([document], PredictOptions(threshold=-1.0)).probability
    with torch.no_grad():
        tagger.refine_network.reader.default_label.add_(3.0)
    changed = tagger.tabulate([document], PredictOptions(threshold=-1.0)).probability != before
    assert changed.tolist() == [False, True, False, True]


def test_a_word_reads_the_output_of_stage_one_at_its_other_occurrence(build: Callable[..., Any]) -> None:
    tagger = build("doc_uanet")

    def probability(neighbour: str) -> float:
        document = [Sentence(words=("Ford",)), Sentence(words=("Ford", neighbour))]
        return float(tagger.tabulate([document], PredictOptions(threshold=-1.0)).probability[0])

    assert probability("Paris") != probability("Ada")
    other = [[Sentence(words=("Ford",))], [Sentence(words=("Ford", "Paris"))]]
    alone = [[Sentence(words=("Ford",))], [Sentence(words=("Ford", "Ada"))]]
    results = [
        tagger.tabulate(documents, PredictOptions(threshold=-1.0)).probability[0].item() for documents in (other, alone)
    ]
    assert results[0] == results[1]


def test_configured_key_decides_which_words_are_the_same(build: Callable[..., Any]) -> None:
    document = [Sentence(words=("Ford",)), Sentence(words=("ford", "Paris"))]
    changed = [Sentence(words=("Ford",)), Sentence(words=("ford", "Ada"))]
    for key, reads in (("lower", True), ("exact", False)):
        tagger = build("doc_uanet", memory={"key": key})
        results = [
            tagger.tabulate([words], PredictOptions(threshold=-1.0)).probability[0].item()
            for words in (document, changed)
        ]
        assert (results[0] != results[1]) == reads


def test_sentences_are_independent_without_slots(build: Callable[..., Any], documents: list[Document]) -> None:
    tagger = build("doc_uanet", threshold=REFINE_ALL)
    before = tagger.tabulate(documents)
    tagger.set_memory_slots(0)
    apart = [[sentence] for document in documents for sentence in document]
    assert torch.allclose(tagger.tabulate(documents).probability, tagger.tabulate(apart).probability, atol=1e-6)
    assert not torch.allclose(tagger.tabulate(documents).probability, before.probability, atol=1e-6)
    assert (tagger.memory_slots, tagger.config.memory.slots) == (0, 0)
    assert torch.isfinite(tagger.loss(tagger.encode(documents[0], documents=[0] * len(documents[0]))))
    tagger.set_memory_slots(10)
    assert torch.equal(tagger.tabulate(documents).probability, before.probability)


def test_set_memory_slots_rejects_a_tagger_without_memory(build: Callable[..., Any]) -> None:
    tagger = build("uanet")
    assert tagger.memory_slots is None
    with pytest.raises(ValueError, match="expected 0 or more and a tagger with a memory"):
        tagger.set_memory_slots(3)


def test_memory_returns_what_was_written_for_the_words_that_are_read() -> None:
    groups = number_words([["a", "b", "A"], ["a", "c", "c"]], "lower")
    memory = DocumentMemory(groups, slots=10, hidden=2, labels=1, device=CPU)
    hidden = torch.arange(12.0).view(6, 2)
    for rows in (torch.tensor([5, 0, 1]), torch.tensor([2, 3, 4])):
        memory.write(rows, rows, hidden[None], hidden[None, :, :1])
    contents = memory.read(torch.tensor([[2, 1], [4, -1]]))
    assert contents.cells.tolist() == [0, 2]
    assert contents.slots[:, 0].tolist() == [0, 1]
    assert int((contents.slots >= 0).sum()) == 2
    assert contents.hidden.tolist() == hidden[[0, 5]].tolist()
    assert contents.probabilities.tolist() == hidden[[0, 5], :1].tolist()


def test_word_rows_count_from_the_first_word_and_mark_padding() -> None:
    assert word_rows(torch.tensor([4, 0]), torch.tensor([1, 3])).tolist() == [[4, -1, -1], [0, 1, 2]]
