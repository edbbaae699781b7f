"""Sentences, vocabularies and batches; training of the unknown word; work on a device that overlaps."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from concord_testing.fake_device import FakeDevice

from concord.models.data.batch import (
    IGNORED_LABEL,
    PADDING,
    UNKNOWN,
    BatchEncoder,
    Work,
    fetch,
    finished,
    overlap,
    send,
)
from concord.models.data.sentence import Sentence
from concord.models.data.vocabulary import Vocabulary
from concord.models.labels import BIO, TOKENS
from concord.models.words.representation import WordRepresentation, WordRepresentationConfig

Tagged = Callable[[str], Sentence]


def test_sentence_rejects_columns_of_different_length() -> None:
    with pytest.raises(ValueError, match=r"Sentence\.labels: expected 2 entries, got 1"):
        Sentence(words=("a", "b"), labels=("O",))


def test_vocabulary_counts_normalised_words_and_lists_rare_ones_last(sentence: Tagged) -> None:
    vocabulary = Vocabulary.from_sentences(
        [sentence("Ab 12 ab/B-X 77"), sentence("zz q")], pretrained_words=["zz", "new"], scheme=BIO
    )
    assert vocabulary.words == ("00", "zz", "new", "Ab", "ab", "q")
    assert vocabulary.rare_words == 3
    assert set(vocabulary.characters) == set("Aab0zq")
    assert vocabulary.labels == ("O", "B-X", "I-X")


def test_vocabulary_numbers_the_most_frequent_words_and_those_with_a_vector(sentence: Tagged) -> None:
    sentences = [sentence("b a a c/B-X"), sentence("b a d")]
    assert Vocabulary.from_sentences(sentences, most_words=2).words == ("a", "b")
    vocabulary = Vocabulary.from_sentences(sentences, most_words=3, pretrained_words=["d"])
    assert vocabulary.words == ("a", "b", "d", "c")
    assert vocabulary.rare_words == 1
    assert set(vocabulary.characters) == set("abcd")


def test_vocabulary_finds_vectors_of_exact_or_lower_cased_words_only(sentence: Tagged) -> None:
    # "Paris" takes the vector of "paris"; the forms that "Bonn" and "1995" turn into have no vector.
    cased = Vocabulary.from_sentences([sentence("Paris Rome")], pretrained_words=["paris", "1995"])
    assert cased.words == ("Paris", "paris", "Rome")
    assert cased.rare_words == 1
    lowered = Vocabulary.from_sentences([sentence("Paris")], pretrained_words=["Bonn", "paris"], lowercase=True)
    assert lowered.words == ("paris",)
    assert lowered.rare_words == 0


def test_vocabulary_keeps_digits_when_configured(sentence: Tagged) -> None:
    vocabulary = Vocabulary.from_sentences([sentence("AB12 1995")], digits="keep", pretrained_words=["1995"])
    assert vocabulary.words == ("1995", "AB12")
    assert set(vocabulary.characters) == set("AB1295")


def test_vocabulary_lowercases_words_but_not_characters(sentence: Tagged) -> None:
    vocabulary = Vocabulary.from_sentences([sentence("Ab ab"), sentence("Q")], lowercase=True)
    assert vocabulary.words == ("ab", "q")
    assert vocabulary.rare_words == 1
    assert set(vocabulary.characters) == set("AabQ")


def test_vocabulary_replaces_runs_of_digits_in_words_but_not_characters_when_configured(sentence: Tagged) -> None:
    vocabulary = Vocabulary.from_sentences(
        [sentence("12 345 a1-23 a4-5")], digits="runs", pretrained_words=["99", "a7-8"]
    )
    assert vocabulary.words == ("0", "a0-0")
    assert set(vocabulary.characters) == set("a-12345")
    batch = BatchEncoder(vocabulary).encode_batch([sentence("6789 a1-23")])
    assert batch.words.tolist() == [[2, 3]]
    spelled = ["", *vocabulary.characters]
    assert "".join(spelled[number - 1] for number in batch.forms.characters[2].tolist()) == "a1-23"
    assert Vocabulary.from_mapping(vocabulary.model_dump(mode="json")) == vocabulary


def test_vocabulary_adds_entity_types_missing_from_the_sentences(sentence: Tagged) -> None:
    vocabulary = Vocabulary.from_sentences([sentence("a/B-PER")], entity_types=["LOC"])
    assert vocabulary.entity_types == ("LOC", "PER")


def test_vocabulary_of_word_labels_has_the_labels_of_the_sentences() -> None:
    sentences = [Sentence(words=("a", "b"), labels=("VB", "O")), Sentence(words=("c",), labels=("B-NN",))]
    vocabulary = Vocabulary.from_sentences(sentences, scheme=TOKENS)
    assert vocabulary.labels == ("B-NN", "O", "VB")
    assert vocabulary.entity_types == ()
    assert Vocabulary.from_mapping(vocabulary.model_dump(mode="json")) == vocabulary
    labels = BatchEncoder(vocabulary).encode_batch(sentences).labels
    assert labels is not None
    assert labels.tolist() == [[2, 1], [0, IGNORED_LABEL]]


@pytest.mark.parametrize("labels", [(), ("b", "a"), ("a", "a")])
def test_vocabulary_rejects_word_labels_that_are_missing_repeated_or_unsorted(labels: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="expected one label or more, sorted"):
        Vocabulary(words=(), characters=(), labels=labels, scheme=TOKENS)


def test_batch_has_numbers_mask_and_labels(sentence: Tagged) -> None:
    sentences = [sentence("in Paris/B-LOC 1984"), sentence("Zo\u00eb")]
    vocabulary = Vocabulary.from_sentences(sentences[:1])
    batch = BatchEncoder(vocabulary).encode_batch(sentences)
    numbers = {word: number for number, word in enumerate(vocabulary.words, start=2)}
    assert batch.words.tolist() == [[numbers["in"], numbers["Paris"], numbers["0000"]], [UNKNOWN, PADDING, PADDING]]
    assert batch.mask.tolist() == [[True] * 3, [True, False, False]]
    assert batch.lengths.tolist() == [3, 1]
    single = vocabulary.labels.index("S-LOC")
    assert batch.labels is not None
    assert batch.labels.tolist() == [[0, single, 0], [0, IGNORED_LABEL, IGNORED_LABEL]]
    assert batch.forms.characters[batch.form_index[1, 0]].tolist()[:3] == [UNKNOWN] * 3
    assert not batch.forms.characters[batch.form_index[1, 1]].any()


def test_sentence_part_makes_words_roots_if_their_head_is_outside() -> None:
    whole = Sentence(
        words=("a", "b", "c", "d", "e"),
        labels=("O", "B-X", "I-X", "O", "O"),
        tags=("A", "B", "C", "D", "E"),
        heads=(2, 0, 2, 5, 3),
        relations=("p", "q", "r", "s", "t"),
    )
    part = whole.part(2, 5)
    assert part == Sentence(
        words=("c", "d", "e"),
        labels=("I-X", "O", "O"),
        tags=("C", "D", "E"),
        heads=(0, 3, 1),
        relations=("r", "s", "t"),
    )
    assert whole.part(0, 5) == whole
    assert Sentence(words=("a", "b")).part(1, 2) == Sentence(words=("b",))


def test_batch_numbers_tags_and_relations_with_unknown_and_padding() -> None:
    known = Sentence(words=("a", "b"), tags=("N", "V"), heads=(2, 0), relations=("obj", "root"))
    strange = Sentence(words=("a",), tags=("X",), heads=(0,), relations=("root",))
    vocabulary = Vocabulary.from_sentences([known])
    assert (vocabulary.tags, vocabulary.relations) == (("N", "V"), ("obj", "root"))
    batch = BatchEncoder(vocabulary).encode_batch([known, strange])
    assert batch.tags is not None
    assert batch.relations is not None
    assert batch.tags.tolist() == [[2, 3], [UNKNOWN, PADDING]]
    assert batch.relations.tolist() == [[2, 3], [3, PADDING]]
    bare = BatchEncoder(vocabulary).encode_batch([known, Sentence(words=("a",))])
    assert bare.tags is None
    assert bare.relations is None


def test_batch_has_each_distinct_word_once(sentence: Tagged, vocabulary: Vocabulary) -> None:
    batch = BatchEncoder(vocabulary).encode_batch([sentence("in in in Paris"), sentence("Paris")])
    assert len(batch.forms.characters) == 3
    assert int(batch.form_index[0, 3]) == int(batch.form_index[1, 0])


def test_batches_share_forms_for_which_a_network_computes_once(sentence: Tagged, vocabulary: Vocabulary) -> None:
    encoder = BatchEncoder(vocabulary)
    sentences = [sentence("in Paris"), sentence("Paris Zo\u00eb 1984")]
    forms = encoder.encode_forms(sentences, shared=True)
    representation = WordRepresentation(WordRepresentationConfig(word_dimension=8), vocabulary).eval()
    assert isinstance(representation.characters, torch.nn.Module)
    calls: list[Any] = []
    representation.characters.register_forward_hook(lambda *call: calls.append(call))
    for one in sentences:
        alone, shared = encoder.encode_batch([one]), encoder.encode_batch([one], forms=forms)
        assert torch.equal(alone.words, shared.words)
        assert torch.equal(shared.forms.numbers[shared.form_index], shared.words)
        calls.clear()
        vectors = representation(shared, None)
        assert len(calls) == (one is sentences[0])
        assert torch.allclose(vectors, representation(alone, None), atol=1e-6)
        assert torch.allclose(vectors, representation.of_forms(forms)[shared.form_index], atol=1e-6)
        assert len(calls) == 1 + (one is sentences[0])


def test_part_of_a_batch_has_its_own_forms(sentence: Tagged, vocabulary: Vocabulary) -> None:
    encoder = BatchEncoder(vocabulary)
    sentences = [sentence("in Paris"), sentence("Ford in Zo\u00eb")]
    part, alone = encoder.encode_batch(sentences).part(torch.tensor([1])), encoder.encode_batch(sentences[1:])
    assert set(part.forms.rows) == {"Ford", "in", "Zo\u00eb"}
    assert torch.equal(part.words, alone.words)
    assert torch.equal(part.forms.numbers[part.form_index], part.words)
    assert [part.forms.rows[word] for word in sentences[1].words] == part.form_index[0].tolist()


def test_batch_without_trees_has_neither_tags_nor_relations() -> None:
    known = Sentence(words=("a", "b"), tags=("N", "V"), heads=(2, 0), relations=("obj", "root"))
    batch = BatchEncoder(Vocabulary.from_sentences([known]), trees=False).encode_batch([known])
    assert batch.tags is None
    assert batch.relations is None


def test_batch_without_gold_has_no_labels(vocabulary: Vocabulary) -> None:
    assert BatchEncoder(vocabulary).encode_batch([Sentence(words=("in",))]).labels is None


def test_batch_rejects_an_empty_sentence_and_an_unknown_label(sentence: Tagged, vocabulary: Vocabulary) -> None:
    encoder = BatchEncoder(vocabulary)
    with pytest.raises(ValueError, match="each with a word or more"):
        encoder.encode_batch([sentence("a"), Sentence(words=())])
    with pytest.raises(ValueError, match=r"expected one of O, .* got 'S-GPE' at word 2 of 'in Paris'"):
        encoder.encode_batch([sentence("in Paris/B-GPE")])


def test_batch_truncates_a_very_long_word(vocabulary: Vocabulary) -> None:
    batch = BatchEncoder(vocabulary, max_characters=4).encode_batch([Sentence(words=("e" * 5000,))])
    assert batch.forms.characters.shape == (2, 4)


def test_rare_words_become_unknown_in_training_only(sentence: Tagged) -> None:
    sentences = [sentence("often often rare")]
    vocabulary = Vocabulary.from_sentences(sentences)
    torch.manual_seed(0)
    config = WordRepresentationConfig(word_dimension=8, characters=None, dropout=0.0, rare_to_unknown=1.0)
    representation = WordRepresentation(config, vocabulary)
    batch = BatchEncoder(vocabulary).encode_batch([sentence("often rare unseen")])
    assert representation.words is not None
    often, rare, unseen = representation.train()(batch, None)[0]
    assert torch.equal(rare, unseen)
    assert torch.equal(unseen, representation.words.weight[UNKNOWN])
    assert not torch.equal(often, unseen)
    often_later, rare_later, _ = representation.eval()(batch, None)[0]
    assert torch.equal(often_later, often)
    assert torch.equal(rare_later, representation.words.weight[2 + vocabulary.words.index("rare")])


def test_rare_words_become_unknown_at_the_configured_rate(sentence: Tagged) -> None:
    vocabulary = Vocabulary.from_sentences([sentence("often often rare")])
    torch.manual_seed(0)
    config = WordRepresentationConfig(word_dimension=2, characters=None, dropout=0.0, rare_to_unknown=0.5)
    representation = WordRepresentation(config, vocabulary).train()
    batch = BatchEncoder(vocabulary).encode_batch([sentence("rare " * 400), sentence("often " * 400)])
    assert representation.words is not None
    hidden = (representation(batch, None) == representation.words.weight[UNKNOWN]).all(dim=2)
    assert 0.4 < float(hidden[0].float().mean()) < 0.6
    assert not hidden[1].any()


CPU = torch.device("cpu")


def test_tensors_of_all_kinds_are_sent_in_one_copy() -> None:
    values = (
        torch.tensor([[1, -2], [3, 4]]),
        torch.tensor([True, False, True]),
        torch.zeros(0, 5),
        torch.rand(3, 3).t(),
        torch.tensor([7], dtype=torch.uint8),
    )
    with FakeDevice() as device:
        sent = send(torch.device("cuda"), *values)
        assert device.copies == {"to_device": 1}
        for value, found in zip(values, sent, strict=True):
            assert found.device.type == "cuda"
            assert (found.shape, found.dtype) == (value.shape, value.dtype)
            assert torch.equal(found.cpu(), value)


def test_a_cpu_is_sent_the_tensors_themselves() -> None:
    values = torch.rand(2), torch.tensor([3])
    assert all(found is value for found, value in zip(send(CPU, *values), values, strict=True))
    assert fetch(values[0])() is values[0]


def test_a_fetched_tensor_is_on_the_cpu_and_is_not_waited_for_at_once() -> None:
    with FakeDevice() as device:
        (sent,) = send(torch.device("cuda"), torch.tensor([[1.5, 2.5]]))
        copied = fetch(sent)
        assert not device.waits
        assert copied().device == CPU
        assert copied().tolist() == [[1.5, 2.5]]


def step_by_step(name: str, done: list[str], *, stops: int) -> Work[None]:
    for number in range(stops):
        done.append(f"{name}{number}")
        yield
    done.append(f"{name}.")


@pytest.mark.parametrize(
    ("device", "expected"), [("cpu", "a0 a1 a. b0 b. c0 c1 c."), ("cuda", "a0 b0 a1 c0 a. b. c1 c.")]
)
def test_work_on_a_gpu_begins_before_other_work_goes_on(device: str, expected: str) -> None:
    done: list[str] = []

    def works() -> Iterator[Work[None]]:
        for name, stops in (("a", 2), ("b", 1), ("c", 2)):
            yield step_by_step(name, done, stops=stops)

    overlap(works(), torch.device(device))
    assert done == expected.split()


def test_finished_work_returns_its_result_and_raises_its_error() -> None:
    def double(value: int) -> Work[int]:
        yield
        if value < 0:
            raise ValueError("too small")
        return 2 * value

    assert finished(double(3)) == 6
    with pytest.raises(ValueError, match="too small"):
        finished(double(-1))
