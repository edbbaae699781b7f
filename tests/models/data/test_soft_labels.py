"""Soft labels: what a word may be in an incomplete corpus, parts of sentences, and batches that hold both kinds."""

import numpy as np
import pytest
import torch

from concord.models.data.batch import BatchEncoder
from concord.models.data.sentence import Sentence, SoftLabels, allowed_labels
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
