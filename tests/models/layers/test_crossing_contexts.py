"""Which stacked LSTMs can combine the left and the right context of a word, tested on four phrases (Li et al., 2020).

The label of the middle word is the exclusive or of its neighbours. If the two directions never meet, its score is a sum
of one number for the left and one for the right, and no such sum is right for all four phrases: chance is the best.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from concord.models.data.sentence import Sentence
from concord.models.data.vocabulary import Vocabulary
from concord.models.layers.bilstm import BiLstm, BiLstmConfig, IndependentLstm, StackedLstmConfig
from concord.models.taggers.base import Tagger

PHRASES = [("key", "and", "peele"), ("you", "and", "i"), ("key", "and", "i"), ("you", "and", "peele")]
MIDDLE_ALONE = [("O", "B-ART", "O")] * 2 + [("O", "O", "O")] * 2
WHOLE_PHRASE = [("B-ART", "I-ART", "I-ART")] * 2 + [("O", "O", "O")] * 2
# The loss at chance level for the middle word, in nats.
CHANCE = math.log(2)

WIDTH = 12
SIZES: dict[str, Any] = {
    "representation": {"word_dimension": 8, "characters": None, "dropout": 0.0},
    "lstm": {"hidden": WIDTH, "dropout": 0.0},
}
Build = Callable[..., Tagger]
slow = pytest.mark.slow
seeds = pytest.mark.parametrize("seed", [1, 2, 3])


def label(labels: Sequence[tuple[str, ...]]) -> list[Sentence]:
    return [Sentence(words=words, labels=own) for words, own in zip(PHRASES, labels, strict=True)]


def build_small(build: Build, name: str, sentences: list[Sentence], seed: int) -> Tagger:
    return build(name, seed=seed, vocabulary=Vocabulary.from_sentences(sentences), **SIZES)


def train(tagger: Tagger, sentences: list[Sentence], *, steps: int, until: float = 0.0) -> float:
    """Train on the phrases until the loss falls below a bound, and return the last loss."""
    batch, optimizer = tagger.encode(sentences), torch.optim.Adam(tagger.train().parameters(), lr=0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = tagger.loss(batch)
        loss.backward()
        optimizer.step()
        if float(loss.detach()) < until:
            break
    tagger.eval()
    return float(loss.detach())


def right_phrases(tagger: Tagger, sentences: list[Sentence]) -> int:
    (predictions,) = tagger.predict_documents([sentences])
    return sum(found.labels == gold.labels for found, gold in zip(predictions, sentences, strict=True))


@slow
@seeds
@pytest.mark.parametrize("name", ["cross_bilstm_cnn", "att_bilstm_cnn"])
def test_cross_stacks_and_attention_learn_the_exclusive_or(build: Build, name: str, seed: int) -> None:
    sentences = label(MIDDLE_ALONE)
    tagger = build_small(build, name, sentences, seed)
    assert train(tagger, sentences, steps=800, until=1e-3) < 1e-3
    assert right_phrases(tagger, sentences) == 4


def assert_chance_level(tagger: Tagger, sentences: list[Sentence], *, words: int = 1) -> None:
    """Train a tagger whose loss is the mean over this many words per phrase (1 if it is their sum), and check it."""
    assert CHANCE - 1e-4 < words * train(tagger, sentences, steps=300) < CHANCE + 0.01
    assert right_phrases(tagger, sentences) <= 3


@slow
@seeds
def test_independent_stacks_are_no_better_than_chance(build: Build, seed: int) -> None:
    sentences = label(MIDDLE_ALONE)
    assert_chance_level(build_small(build, "baseline_bilstm_cnn", sentences, seed), sentences, words=3)


@pytest.mark.slow
def test_one_bidirectional_layer_is_no_better_than_chance(build: Build) -> None:
    sentences = label(MIDDLE_ALONE)
    assert_chance_level(build_small(build, "bilstm_softmax", sentences, 1), sentences)


@pytest.mark.slow
def test_two_bidirectional_layers_of_torch_learn_what_independent_stacks_cannot(build: Build) -> None:
    """They are a Cross stack, so they must not be used for the Baseline."""
    sentences = label(MIDDLE_ALONE)
    tagger = build_small(build, "baseline_bilstm_cnn", sentences, 1)
    tagger.lstm = BiLstm(BiLstmConfig(hidden=WIDTH, layers=2, dropout=0.0), 8)
    assert train(tagger, sentences, steps=800, until=1e-3) < 1e-3
    assert right_phrases(tagger, sentences) == 4


def independent_stacks_with_crf(build: Build, sentences: list[Sentence]) -> Tagger:
    tagger = build_small(build, "bilstm_crf", sentences, 1)
    tagger.lstm = IndependentLstm(StackedLstmConfig(hidden=WIDTH, dropout=0.0), 8)
    return tagger


@slow
def test_crf_does_not_help_independent_stacks_when_labels_of_neighbours_are_uninformative(build: Build) -> None:
    sentences = label(MIDDLE_ALONE)
    assert_chance_level(independent_stacks_with_crf(build, sentences), sentences)


@slow
def test_crf_helps_independent_stacks_when_labels_of_neighbours_are_informative(build: Build) -> None:
    """At the last word one direction has read the whole phrase, and transitions pass the information on."""
    sentences = label(WHOLE_PHRASE)
    tagger = independent_stacks_with_crf(build, sentences)
    assert train(tagger, sentences, steps=800, until=0.01) < 0.01
    assert right_phrases(tagger, sentences) == 4
