"""Small taggers, documents and a tiny encoder that the tests of models/ share."""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from concord_testing.encoders import write_encoder
from concord_testing.trees import with_tree
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from concord.models.bundles.registry import build_tagger
from concord.models.data.sentence import Sentence
from concord.models.data.vocabulary import Vocabulary
from concord.models.taggers.base import Tagger

# One thread: test machines have few cores, and equal sums need an equal number of threads.
torch.set_num_threads(1)

Document = list[Sentence]
Call = tuple[nn.Module, tuple[Any, ...]]

_WORDS_PER_PART = {"word_dimension": 12, "dropout": 0.1}
_CHARACTERS = {"embedding_dimension": 6, "filters": 8, "widths": [3], "dropout": 0.1}
_ONE_STAGE: dict[str, Any] = {
    "representation": {**_WORDS_PER_PART, "characters": _CHARACTERS},
    "lstm": {"hidden": 8, "dropout": 0.1},
}
_TWO_STAGE: dict[str, Any] = {
    "draft_representation": {**_WORDS_PER_PART, "characters": _CHARACTERS},
    "refine_representation": {**_WORDS_PER_PART, "characters": _CHARACTERS},
    "lstm": {"hidden": 8},
    "samples": 3,
    "label_dimension": 6,
    "two_stream": {"heads": 2, "head_dimension": 8, "layers": 2, "dropout": 0.1, "attention_dropout": 0.1},
}
_LABEL_ATTENTION: dict[str, Any] = {
    "representation": {**_WORDS_PER_PART, "characters": {"kind": "lstm", "embedding_dimension": 6, "hidden": 4}},
    "lstm": {"hidden": 8, "layers": 2, "dropout": 0.1},
    "heads": 2,
    "attention_dropout": 0.1,
}
_TINY = {
    "att_bilstm_cnn": {**_ONE_STAGE, "attention": {"heads": 2, "head_dimension": 4}},
    "baseline_bilstm_cnn": _ONE_STAGE,
    "bilstm_crf": _ONE_STAGE,
    "bilstm_lan": _LABEL_ATTENTION,
    "bilstm_softmax": _ONE_STAGE,
    "cross_bilstm_cnn": _ONE_STAGE,
    "dependency_aware": {
        "representation": {"word_dimension": 16, "dropout": 0.0, "characters": _CHARACTERS},
        "layers": 2,
    },
    "doc_uanet": _TWO_STAGE,
    "rel_transformer": {
        "representation": {**_WORDS_PER_PART, "characters": _CHARACTERS},
        "transformer": _TWO_STAGE["two_stream"],
    },
    "structured_refinement": _ONE_STAGE,
    "uanet": _TWO_STAGE,
    "variational_lstm": {
        "representation": {**_WORDS_PER_PART, "characters": _CHARACTERS},
        "lstm": {"hidden": 8},
        "samples": 3,
    },
}


def tagged(text: str) -> Sentence:
    """Parse ``Ada/B-PER King/I-PER slept`` as a sentence; a word without a label is ``O``."""
    pairs = [word.partition("/") for word in text.split()]
    return Sentence(words=tuple(pair[0] for pair in pairs), labels=tuple(pair[2] or "O" for pair in pairs))


@pytest.fixture(scope="session")
def sentence() -> Callable[[str], Sentence]:
    """Return a function that parses a labelled sentence."""
    return tagged


@pytest.fixture(scope="session")
def documents() -> list[Document]:
    """Return three gold documents with trees, in which words recur within and across documents."""
    labelled = [
        [
            tagged("Ada/B-PER King/I-PER met Ford/B-PER in Paris/B-LOC ."),
            tagged("Ford/B-PER laughed ."),
            tagged("She saw the River/B-LOC Seine/I-LOC in Paris/B-LOC and wrote 3 letters home ."),
        ],
        [
            tagged("Ford/B-ORG Motor/I-ORG Works/I-ORG closed a plant in Paris/B-LOC ."),
            tagged("Workers of Ford/B-ORG went home ."),
        ],
        [tagged("It rained .")],
    ]
    return [[with_tree(sentence) for sentence in document] for document in labelled]


@pytest.fixture(scope="session")
def vocabulary(documents: list[Document]) -> Vocabulary:
    """Return the vocabulary of ``documents``."""
    return Vocabulary.from_sentences(sentence for document in documents for sentence in document)


@pytest.fixture(scope="session")
def tiny_config() -> Callable[[str], dict[str, Any]]:
    """Return a function from a tagger's name to a configuration with some thousand parameters."""
    return lambda name: dict(_TINY[name])


@pytest.fixture(scope="session")
def build(vocabulary: Vocabulary, tiny_config: Callable[[str], dict[str, Any]]) -> Callable[..., Any]:
    """Return a function that builds a tiny untrained tagger, in evaluation mode; keywords change its configuration."""

    def make(name: str, *, seed: int = 1, vocabulary: Vocabulary = vocabulary, **changes: Any) -> Tagger:
        torch.manual_seed(seed)
        return build_tagger(name, tiny_config(name) | changes, vocabulary).eval()

    return make


@pytest.fixture(scope="session")
def random_documents(vocabulary: Vocabulary) -> Callable[..., list[Document]]:
    """Return a function that draws unlabelled documents with trees, in which known and unknown words recur."""

    def draw(seed: int, *, documents: int, sentences: int = 5, longest: int = 12) -> list[Document]:
        chance = random.Random(seed)
        words = (*vocabulary.words[:12], "Zanzibar", "xyzzy", "1984")
        return [
            [
                with_tree(Sentence(words=tuple(chance.choices(words, k=chance.randint(1, longest)))))
                for _ in range(sentences)
            ]
            for _ in range(documents)
        ]

    return draw


@pytest.fixture(scope="session")
def record_calls() -> Callable[..., AbstractContextManager[list[Call]]]:
    """Return a context manager that records the forward calls of modules of some classes, with their arguments."""

    @contextmanager
    def recording(*classes: type[nn.Module]) -> Iterator[list[Call]]:
        calls: list[Call] = []

        def record(module: nn.Module, arguments: tuple[Any, ...], output: object) -> None:
            del output
            if isinstance(module, classes):
                calls.append((module, arguments))

        handle = register_module_forward_hook(record)
        try:
            yield calls
        finally:
            handle.remove()

    return recording


@pytest.fixture(scope="session")
def tiny_encoder(tmp_path_factory: pytest.TempPathFactory, vocabulary: Vocabulary) -> Path:
    """Write a random two-layer BERT with windows of 14 subwords as a Hugging Face folder."""
    words = sorted({word.lower() for word in vocabulary.words} - {"laughed", "letters"})
    pieces = [*words, "laugh", "letter", "##ed", "##s", "##e"]
    return write_encoder(tmp_path_factory.mktemp("encoder"), pieces)


@pytest.fixture(scope="session")
def encoder_values(tiny_encoder: Path) -> Mapping[str, Any]:
    """Return the configuration values of the tiny encoder."""
    return {"source": str(tiny_encoder), "last_layers": 2, "overlap_words": 3}
