"""Blank spaCy pipelines, trained on a few sentences within seconds."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
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


def write_spacy(folder: Path, *, sentences: Iterable[Mapping[str, str]] = PEOPLE_AND_PLACES, steps: int = 40) -> Path:
    """Write an English pipeline whose NER has learned the entities of sentences; return its folder."""
    nlp = spacy.blank("en")
    nlp.add_pipe("ner")
    examples = [_example(nlp, list(words), list(words.values())) for words in sentences]
    return _train(nlp, examples, folder, steps=steps)


def _example(nlp: Any, words: Sequence[str], kinds: Sequence[str]) -> Any:
    reference = Doc(nlp.vocab, words=list(words), ents=[f"B-{kind}" if kind else "O" for kind in kinds])
    return Example(Doc(nlp.vocab, words=list(words)), reference)


FRENCH = (
    (
        ("Anna", "PROPN", 2, "nsubj", "PER"),
        ("habite", "VERB", 0, "ROOT", ""),
        ("à", "ADP", 4, "case", ""),
        ("Lyon", "PROPN", 2, "obl", "LOC"),
        (".", "PUNCT", 2, "punct", ""),
    ),
    (
        ("L'", "DET", 2, "det", ""),
        ("ami", "NOUN", 3, "nsubj", ""),
        ("dort", "VERB", 0, "ROOT", ""),
        (".", "PUNCT", 3, "punct", ""),
    ),
    (
        ("Bob", "PROPN", 2, "nsubj", "PER"),
        ("voit", "VERB", 0, "ROOT", ""),
        ("l'", "DET", 4, "det", ""),
        ("ami", "NOUN", 2, "obj", ""),
        (".", "PUNCT", 2, "punct", ""),
    ),
)
"""The sentences of the trained French pipeline: word, part of speech, head (1-based), relation and entity type."""


def write_french(folder: Path, *, steps: int = 40) -> Path:
    """Write a French pipeline whose tagger, parser and NER have learned ``FRENCH``; return its folder."""
    nlp = spacy.blank("fr")
    nlp.add_pipe("morphologizer")
    nlp.add_pipe("parser", config={"min_action_freq": 1})
    nlp.add_pipe("ner")
    # As one text too, from which the parser learns where a sentence ends.
    examples = [_parsed(nlp, sentences) for sentences in (*((sentence,) for sentence in FRENCH), FRENCH)]
    return _train(nlp, examples, folder, steps=steps)


def _train(nlp: Any, examples: Sequence[Any], folder: Path, *, steps: int) -> Path:
    spacy.util.fix_random_seed(0)
    optimizer = nlp.initialize(lambda: examples)
    for _ in range(steps):
        nlp.update(examples, sgd=optimizer)
    nlp.to_disk(folder)
    return folder


def _parsed(nlp: Any, sentences: Sequence[Sequence[tuple[str, str, int, str, str]]]) -> Any:
    firsts = accumulate(map(len, sentences), initial=0)
    rows = [
        (word, tag, first + (head - 1 if head else place), relation, f"B-{kind}" if kind else "O")
        for first, sentence in zip(firsts, sentences, strict=False)
        for place, (word, tag, head, relation, kind) in enumerate(sentence)
    ]
    words, tags, heads, relations, kinds = map(list, zip(*rows, strict=True))
    spaces = [not word.endswith("'") and after != "." for word, after in zip(words, [*words[1:], ""], strict=True)]
    text = Doc(nlp.vocab, words=words, spaces=spaces)
    reference = Doc(nlp.vocab, words=words, spaces=spaces, pos=tags, heads=heads, deps=relations, ents=kinds)
    return Example(text, reference)
