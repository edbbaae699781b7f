"""What the teacher says of texts: the few most probable tags and heads of each word."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from stanza.models.lemma.trainer import Trainer as Lemmatizer
from torch.nn import functional

from research.parser_en.student import Labelled
from research.parser_en.teacher import Teacher, readable_batches

_TAGS, _HEADS = 2, 4


def label(
    teacher: Teacher, sentences: Iterable[Sequence[str]], vocabulary: Any, lemmatizer: Lemmatizer
) -> Iterator[Labelled]:
    """Label sentences of words, in another order; those too long for the encoder are left out.

    Args:
        vocabulary: Stanza's, of the student's labels.
        lemmatizer: a dictionary of words and tags.
    """
    teacher.eval()
    numbers = {
        name: np.array(vocabulary[name].map(names), dtype=np.int16)
        for name, names in zip(("upos", "xpos", "feats", "deprel"), teacher.names, strict=True)
    }
    for batch in readable_batches(sentences, lambda words: words):
        for found in _label_batch(teacher, batch, numbers):
            tags = vocabulary["upos"].unmap(found.upos[0][:, 0].tolist())
            lemmas = lemmatizer.predict_dict(list(zip(found.words, tags, strict=True)))
            yield found._replace(lemmas=np.array(vocabulary["lemma"].map(lemmas), dtype=np.int16))


def _label_batch(
    teacher: Teacher, sentences: Sequence[Sequence[str]], numbers: dict[str, NDArray[np.int16]]
) -> Iterator[Labelled]:
    upos_scores, xpos_scores, feats_scores = (found := teacher.read(sentences)).tags
    tags = {}
    for name, scores in (("upos", upos_scores), ("xpos", xpos_scores)):
        best = scores.softmax(-1).topk(_TAGS)
        tags[name] = numbers[name][best.indices.numpy()], best.values.numpy()
    parts = numbers["feats"][feats_scores.argmax(-1).numpy()]
    relations = numbers["deprel"][found.relations.numpy()]
    heads = found.heads[..., None]
    # Short sentences have fewer heads to choose from.
    probabilities = functional.pad(found.arcs.exp(), (0, _HEADS))
    # The head of the tree comes first, whether or not it is the most probable one.
    chosen = probabilities.gather(2, heads)
    others = probabilities.scatter(2, heads, -1.0).topk(_HEADS - 1)
    all_heads = torch.cat([heads, others.indices], 2).to(torch.int16).numpy()
    all_chances = torch.cat([chosen.clamp(min=1e-4), others.values.clamp(min=0)], 2).numpy()
    all_heads[all_chances == 0] = 0
    for row, words in enumerate(sentences):
        kept = (row, slice(len(words)))
        yield Labelled(
            words,
            (tags["upos"][0][kept], tags["upos"][1][kept]),
            (tags["xpos"][0][kept], tags["xpos"][1][kept]),
            parts[kept],
            (all_heads[kept], all_chances[kept]),
            relations[kept],
            np.zeros(len(words), dtype=np.int16),
        )
