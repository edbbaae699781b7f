"""The document memory resolves names whose type only one sentence of a document reveals.

The type of each name is drawn afresh for every document. Only a cue sentence reveals it; in the other sentences stage
one can only guess, and its uncertainty shows it. Stage two can look the type up if there is a memory.
"""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch

from concord.models.bundles.registry import build_tagger
from concord.models.data.sentence import Sentence
from concord.models.data.vocabulary import Vocabulary
from concord.models.labels import BIO
from concord.models.taggers.token_table import TokenTable

NAMES = tuple(f"name-{letter}" for letter in "abcdefghijklmnopqrst")
CUES = {"PER": ("mister", "laughed"), "LOC": ("city", "grew")}
STEPS = 500
DOCUMENTS_A_STEP = 4


@dataclass(frozen=True)
class Outcome:
    """The results of a trained tagger on new documents: its table, the gold labels, and the kinds of words."""

    table: TokenTable
    gold: torch.Tensor
    ambiguous: torch.Tensor
    cue: torch.Tensor

    def draft_accuracy(self) -> float:
        return float((self.table.draft == self.gold)[self.ambiguous].float().mean())

    def accuracy(self) -> float:
        return float((self.table.label == self.gold)[self.ambiguous].float().mean())


def draw_document(chance: random.Random) -> list[Sentence]:
    """Draw a document: a cue sentence and two ambiguous ones for each of two names, and one without a name."""
    sentences = [Sentence(words=("it", "rained", "all", "day"), labels=("O",) * 4)]
    for name in chance.sample(NAMES, 2):
        kind = chance.choice(sorted(CUES))
        before, after = CUES[kind]
        labels = ("O", "O", f"B-{kind}", "O")
        sentences.append(Sentence(words=("the", before, name, after), labels=labels))
        for _ in range(2):
            sentences.append(Sentence(words=("we", "saw", name, chance.choice(("again", "today"))), labels=labels))
    chance.shuffle(sentences)
    return sentences


def train_and_tag(name: str, seed: int, **options: str) -> Outcome:
    torch.manual_seed(seed)
    chance = random.Random(seed)
    vocabulary = Vocabulary.from_sentences(
        [sentence for _ in range(50) for sentence in draw_document(chance)], scheme=BIO
    )
    representation = {"word_dimension": 64, "characters": None, "dropout": 0.1}
    config = {
        "scheme": "BIO",
        "draft_representation": representation,
        "refine_representation": representation,
        "lstm": {"hidden": 32, "input_dropout": 0.05, "recurrent_dropout": 0.05, "output_dropout": 0.05},
        "samples": 4,
        "label_dimension": 32,
        "two_stream": {"heads": 4, "head_dimension": 16, "layers": 2, "dropout": 0.05, "attention_dropout": 0.0},
        **options,
    }
    tagger = build_tagger(name, config, vocabulary).train()
    optimizer = torch.optim.Adam(tagger.parameters(), lr=3e-3)
    for _ in range(STEPS):
        documents = [draw_document(chance) for _ in range(DOCUMENTS_A_STEP)]
        owners = [number for number, document in enumerate(documents) for _ in document]
        batch = tagger.encode([sentence for document in documents for sentence in document], documents=owners)
        optimizer.zero_grad()
        tagger.loss(batch).backward()
        torch.nn.utils.clip_grad_norm_(tagger.parameters(), 5.0)
        optimizer.step()
    fresh = [draw_document(chance) for _ in range(300)]
    words = [word for document in fresh for sentence in document for word in _facts(sentence)]
    return Outcome(
        table=tagger.eval().tabulate(fresh),
        gold=torch.tensor([vocabulary.labels.index(label) for label, _, _ in words]),
        ambiguous=torch.tensor([is_name and not has_cue for _, is_name, has_cue in words]),
        cue=torch.tensor([is_name and has_cue for _, is_name, has_cue in words]),
    )


def _facts(sentence: Sentence) -> Iterator[tuple[str, bool, bool]]:
    """Yield each word's label, whether it is a name, and whether its sentence reveals the type."""
    for word, label in zip(sentence.words, sentence.labels or (), strict=True):
        yield label, word in NAMES, sentence.words[0] == "the"


@pytest.fixture(scope="module")
def outcome() -> Callable[[str], Outcome]:
    """Train each tagger once for all tests of this file."""
    known: dict[str, Outcome] = {}

    def trained(name: str) -> Outcome:
        if name not in known:
            known[name] = train_and_tag(name, seed=1)
        return known[name]

    return trained


@pytest.mark.slow
def test_memory_resolves_types_that_drafts_can_only_guess(outcome: Callable[[str], Outcome]) -> None:
    found = outcome("doc_uanet")
    assert 0.42 < found.draft_accuracy() < 0.58
    assert abs(float(found.table.uncertainty[found.ambiguous].mean()) - math.log(2)) < 0.06
    assert found.accuracy() >= 0.99
    assert bool(found.table.refined[found.ambiguous].float().mean() > 0.99)


@pytest.mark.slow
def test_memory_resolves_types_beside_both_streams_of_every_layer() -> None:
    found = train_and_tag("doc_uanet", seed=2, label_stream="paper")
    assert 0.42 < found.draft_accuracy() < 0.58
    assert found.accuracy() >= 0.99


@pytest.mark.slow
def test_memory_does_not_change_certain_words(outcome: Callable[[str], Outcome]) -> None:
    found = outcome("doc_uanet")
    assert not found.table.refined[found.cue].any()
    assert torch.equal(found.table.label[found.cue], found.gold[found.cue])
    assert float(found.table.refined.float().mean()) < 0.2


@pytest.mark.slow
def test_types_remain_a_guess_without_a_memory(outcome: Callable[[str], Outcome]) -> None:
    found = outcome("uanet")
    assert bool(found.table.refined[found.ambiguous].float().mean() > 0.99)
    assert found.accuracy() < 0.65
