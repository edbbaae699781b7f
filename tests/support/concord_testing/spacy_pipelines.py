"""A blank spaCy pipeline with an NER, trained on a few sentences within seconds."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import spacy
from spacy.tokens import Doc
from spacy.training import Example

PEOPLE_AND_PLACES = (
    {"Ada": "PER", "met": "", "Bob": "PER", "in": "", "Paris": "LOC", ".": ""},
    {"Bob": "PER", "saw": "", "London": "LOC", ".": ""},
)
"""The sentences of the trained pipeline: word -> entity type."""


def write_spacy(folder: Path, *, sentences: Iterable[Mapping[str, str]] = PEOPLE_AND_PLACES, steps: int = 25) -> Path:
    """Write an English pipeline whose NER has learned the entities of sentences; return its folder."""
    nlp = spacy.blank("en")
    nlp.add_pipe("ner")
    examples = [_example(nlp, list(words), list(words.values())) for words in sentences]
    spacy.util.fix_random_seed(0)
    optimizer = nlp.initialize(lambda: examples)
    for _ in range(steps):
        nlp.update(examples, sgd=optimizer)
    nlp.to_disk(folder)
    return folder


def _example(nlp: Any, words: Sequence[str], kinds: Sequence[str]) -> Any:
    reference = Doc(nlp.vocab, words=list(words), ents=[f"B-{kind}" if kind else "O" for kind in kinds])
    return Example(Doc(nlp.vocab, words=list(words)), reference)
