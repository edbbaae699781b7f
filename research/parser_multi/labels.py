"""What the network of ``parser_multi`` learns: treebanks, and their labels as numbers."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from concord.pipeline.parsing.biaffine import BiaffineConfig
from research.parser_en.conllu import ConlluSentence, read_sentences

MOST_WORDS = 124
"""Of a sentence that is trained on."""
_NONE = "_"
_WITH_XPOS = frozenset({"en", "de", "fi", "nl", "sv"})
"""Languages whose treebanks have at most 150 tags of their own, and not those of UD."""
TAGS, HEADS = 2, 4
"""How many of the best tags and heads of a word are kept."""
_CODES = {"no_bokmaal_norne": "nb", "no_nynorsk_norne": "nn", "ewt_uner": "en", "gum_ne_open": "en"}

Document = Sequence[Sequence[str]]


def language_of(path: Path) -> str:
    """Return the code of a corpus's language, by its name in a file such as ``fi_tdt.dev.conllu.zst``."""
    name = path.name.split(".")[0]
    name = path.parent.name if name in {"train", "dev", "test"} else name
    return _CODES.get(name) or name.removeprefix("uner_").removeprefix("europeana_")[:2]


def read_treebank(path: Path) -> list[list[ConlluSentence]]:
    """Read the sentences of each document; a treebank without documents is one."""
    language = language_of(path)
    starts = list(_starts(path))
    documents: list[list[ConlluSentence]] = []
    for starts_document, sentence in zip(starts, read_sentences(path), strict=True):
        if starts_document or not documents:
            documents.append([])
        words = len(sentence.words)
        xpos = sentence.xpos if language in _WITH_XPOS else (_NONE,) * words
        documents[-1].append(sentence._replace(languages=(language,) * words, xpos=xpos))
    return documents


def _starts(path: Path) -> Iterator[bool]:
    """Yield whether each sentence starts a document."""
    starts = inside = False
    for line in [*pa.input_stream(str(path)).read().decode().splitlines(), ""]:
        starts = starts or line.startswith("# newdoc")
        if line[:1].isdigit():
            inside = True
        elif not line and inside:
            yield starts
            starts = inside = False


def names_of(sentences: Iterable[ConlluSentence], width: int) -> BiaffineConfig:
    """Return the names of the labels of sentences."""
    found: dict[str, set[str]] = {name: set() for name in ("upos", "xpos", "languages", "relations")}
    features: dict[str, set[str]] = {}
    for sentence in sentences:
        for name, values in found.items():
            values.update(getattr(sentence, name))
        for pair in chain.from_iterable(map(_pairs, sentence.feats)):
            features.setdefault(pair[0], set()).add(pair[1])
    names: dict[str, Any] = {name: tuple(sorted(values)) for name, values in found.items()}
    names["features"] = {name: (_NONE, *sorted(values)) for name, values in sorted(features.items())}
    return BiaffineConfig(width=width, **names)


def _pairs(feats: str) -> list[list[str]]:
    return [] if feats == _NONE else [pair.split("=", 1) for pair in feats.split("|")]


class Labels(NamedTuple):
    """The labels of N words of S sentences, in documents; each with the most probable ones first.

    Attributes:
        upos, xpos, heads: numbers, shape ``(N, K)``, int16; a head counts from the root, 0.
        upos_chances, xpos_chances, head_chances: their probabilities, float16.
        languages, relations: numbers, shape ``(N,)``, int16.
        features: the number of each feature's value, ``(N, features)``, int8.
        lengths: words of each sentence, ``(S,)``, int32.
    """

    upos: NDArray[Any]
    upos_chances: NDArray[Any]
    xpos: NDArray[Any]
    xpos_chances: NDArray[Any]
    heads: NDArray[Any]
    head_chances: NDArray[Any]
    languages: NDArray[Any]
    relations: NDArray[Any]
    features: NDArray[Any]
    lengths: NDArray[Any]

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return labels one after the other."""
        return cls(*(np.concatenate(each) for each in zip(*parts, strict=True)))


class Numbers:
    """The numbers of the names of a network's labels; -1 for those that it does not know."""

    def __init__(self, config: BiaffineConfig) -> None:
        self.upos, self.xpos, self.languages, self.relations = (
            {name: number for number, name in enumerate(names)}
            for names in (config.upos, config.xpos, config.languages, config.relations)
        )
        self._features = {
            name: (column, {value: number for number, value in enumerate(values)})
            for column, (name, values) in enumerate(config.features.items())
        }

    def features(self, feats: Sequence[str]) -> NDArray[np.int8]:
        """Return the numbers of the values of features, shape ``(words, features)``."""
        found = np.zeros((len(feats), len(self._features)), dtype=np.int8)
        for row, text in enumerate(feats):
            for name, value in _pairs(text):
                if name in self._features:
                    column, values = self._features[name]
                    found[row, column] = values.get(value, 0)
        return found

    def gold(self, sentence: ConlluSentence) -> Labels:
        """Return the labels of a sentence of a treebank."""
        words = len(sentence.words)
        columns = {
            name: np.array([getattr(self, name).get(tag, -1) for tag in getattr(sentence, name)], dtype=np.int16)
            for name in ("upos", "xpos", "languages", "relations")
        }
        heads = np.array(sentence.heads, dtype=np.int16)
        return Labels(
            *_certain(columns["upos"], TAGS),
            *_certain(columns["xpos"], TAGS),
            *_certain(heads, HEADS),
            columns["languages"],
            columns["relations"],
            self.features(sentence.feats),
            np.array([words], dtype=np.int32),
        )


def _certain(numbers: NDArray[np.int16], kinds: int) -> tuple[NDArray[np.int16], NDArray[np.float16]]:
    others = np.zeros((len(numbers), kinds - 1))
    chances = np.concatenate([np.ones((len(numbers), 1)), others], axis=1)
    return np.concatenate([numbers[:, None], others], axis=1).astype(np.int16), chances.astype(np.float16)
