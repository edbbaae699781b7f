"""Invented dependency trees for test sentences, the same for the same words."""

import random
from dataclasses import replace

from concord.models.data.sentence import Sentence

_TAGS = ("NOUN", "VERB", "ADP")
_RELATIONS = ("nsubj", "obj", "case", "nmod")


def with_tree(sentence: Sentence) -> Sentence:
    """Add tags and a random tree to a sentence; each word depends on a word drawn before it."""
    chance = random.Random("\n".join(sentence.words).encode("utf-8", "surrogatepass"))
    words = len(sentence.words)
    order = chance.sample(range(words), words)
    heads = [0] * words
    for place in range(1, words):
        heads[order[place]] = order[chance.randrange(place)] + 1
    return replace(
        sentence,
        tags=tuple("PROPN" if word[:1].isupper() else chance.choice(_TAGS) for word in sentence.words),
        heads=tuple(heads),
        relations=tuple(chance.choice(_RELATIONS) if head else "root" for head in heads),
    )
