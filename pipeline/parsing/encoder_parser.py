"""The bundled parser of all languages: words by Stanza's tokenizer, tags and trees from the bundled encoder's states.

The encoder reads a document in the passages in which the default tagger does, which finds there what was read.
"""

import gzip
import json
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor
from typing_extensions import override

from concord.models.bundles.checkpoint import pick_device
from concord.models.data.outputs import OnBatch
from concord.models.data.sentence import Passage, Sentence, with_passages
from concord.models.errors import ModelError
from concord.models.words.encoder import load_encoder
from concord.pipeline.config import ParserConfig
from concord.pipeline.parsing.biaffine import BiaffineNetwork, Words, read_network
from concord.pipeline.parsing.packed_sentences import BATCH_WORDS, length_sorted
from concord.pipeline.parsing.spanning_tree import best_trees
from concord.pipeline.parsing.stanza_packages import ENCODER, LEMMAS_NAME
from concord.pipeline.parsing.stanza_parser import StanzaParser
from concord.pipeline.parsing.tokens import WordAnalysis
from concord.pipeline.resources import torch_threads

# Words whose states are in memory at once: 6 kB each.
_GROUP_WORDS = 4_000
_SURE = 0.8
"""Below this share of its words' probabilities, a sentence is of no language that the dictionaries know."""


class EncoderParser(StanzaParser):
    """The parser of the package ``parser_multi``.

    Raises:
        ModelError: when the package is damaged.
        ConfigError: when there is no such device.
    """

    def __init__(self, config: ParserConfig) -> None:
        super().__init__(config)
        self._config = config
        if not config.tags:
            return
        device = pick_device(config.device, key="parser.device")
        folder = self._package.folder
        try:
            self._network = read_network(folder, device=device)
            with gzip.open(folder / LEMMAS_NAME) as file:
                self._lemmas: Mapping[str, Mapping[str, str]] = json.load(file)
        except (OSError, EOFError, ValueError, RuntimeError, SafetensorError, zlib.error) as error:
            raise ModelError(
                f"parser.package: {config.package} cannot be read from {folder}: {error}; install Concord again"
            ) from error
        self._encoder = load_encoder(ENCODER, device)
        self._batch_words = BATCH_WORDS[torch.device(device).type]
        self._tags = _TagReader(self._network)

    @override
    def _with_passages(self, document: list[Sentence]) -> list[Sentence]:
        return with_passages(document, ENCODER.passage_words) if self._config.tags else document

    @override
    def _analyse(self, sentences: Sequence[Sentence], on_batch: OnBatch | None) -> list[list[WordAnalysis]]:
        if not self._config.tags:
            return super()._analyse(sentences, on_batch)
        found: list[list[WordAnalysis]] = []
        words = sum(len(sentence.words) for sentence in sentences)
        done = 0
        for group in _groups(list(map(_within_memory, sentences))):
            found += self._analyse_group(group)
            done += sum(len(sentence.words) for sentence in group)
            if on_batch is not None:
                on_batch(done, words)
        return found

    def _analyse_group(self, sentences: Sequence[Sentence]) -> list[list[WordAnalysis]]:
        passages = [sentence.passage or Passage(sentence.words) for sentence in sentences]
        distinct = list(dict.fromkeys(passages))
        with torch_threads(self._encoder_threads):
            read = dict(zip(distinct, self._encoder.read(distinct), strict=True))
        states = [
            read[passage][sentence.passage_start :][: len(sentence.words)]
            for passage, sentence in zip(passages, sentences, strict=True)
        ]
        analyses: list[list[WordAnalysis]] = [[] for _ in sentences]
        for batch in length_sorted([sentence.words for sentence in sentences], batch_words=self._batch_words):
            found = self._analyse_batch([sentences[index] for index in batch], [states[index] for index in batch])
            for index, analysis in zip(batch, found, strict=True):
                analyses[index] = analysis
        return analyses

    def _analyse_batch(self, sentences: Sequence[Sentence], states: Sequence[Tensor]) -> Iterator[list[WordAnalysis]]:
        lengths = [len(sentence.words) for sentence in sentences]
        rows = torch.cat(list(states))
        scores, contexts = self._network.read(rows, Words.of(lengths, rows.device), trees=self._config.trees)
        tags = self._tags.read(scores, lengths)
        arcs: list[list[tuple[int | None, str | None]]] = [[(None, None)] * length for length in lengths]
        if contexts is not None:
            arcs = [list(pairs) for pairs in self._attach(contexts, lengths)]
        for sentence, tag, arc in zip(sentences, tags, arcs, strict=True):
            yield [
                WordAnalysis(self._lemma(tag.language, word, upos), upos, xpos if tag.language else None, feats, *own)
                for word, (upos, xpos, feats), own in zip(sentence.words, tag.words, arc, strict=True)
            ]

    def _lemma(self, language: str | None, form: str, upos: str) -> str | None:
        """Return the lemma of a form that treebanks have; that of a word without letters is the word itself."""
        if not any(map(str.isalpha, form)):
            return form
        known = self._lemmas.get(language or "", {})
        return known.get(f"{form}\t{upos}") or known.get(f"{form.lower()}\t{upos}")

    def _attach(self, contexts: Tensor, lengths: Sequence[int]) -> Iterator[Iterator[tuple[int, str]]]:
        """Return head and relation of each word of each sentence."""
        scores = self._network.arc_scores(contexts).cpu().numpy()
        whole = np.zeros((len(scores), scores.shape[2], scores.shape[2]), dtype=scores.dtype)
        whole[:, 1:] = scores
        heads = best_trees(whole, [1 + length for length in lengths])[:, 1:]
        parents = torch.from_numpy(heads).to(contexts.device)
        found = self._network.relation_scores(contexts, parents)
        names = self._network.config.relations
        # The relation of the root is its alone.
        found[..., names.index("root")] = torch.where(parents == 0, math.inf, -math.inf)
        best = found.argmax(dim=2)
        for own_heads, own_best, length in zip(heads.tolist(), best.tolist(), lengths, strict=True):
            yield zip(own_heads[:length], (names[number] for number in own_best[:length]), strict=True)


def _within_memory(sentence: Sentence) -> Sentence:
    """Return a sentence without its passage, if that is one sentence of too many words, which is parsed in pieces."""
    if sentence.passage is None or len(sentence.passage.words) <= _GROUP_WORDS:
        return sentence
    return replace(sentence, passage=None, passage_start=0)


def _groups(sentences: Sequence[Sentence]) -> Iterator[list[Sentence]]:
    """Split sentences into groups of at most ``_GROUP_WORDS`` words, or of one passage; no passage is divided."""
    group: list[Sentence] = []
    words = 0
    for sentence in sentences:
        begins = not group or sentence.passage is None or sentence.passage is not group[-1].passage
        size = len(sentence.passage.words) if sentence.passage is not None else len(sentence.words)
        if begins and group and words + size > _GROUP_WORDS:
            yield group
            group, words = [], 0
        words += size if begins else 0
        group.append(sentence)
    if group:
        yield group


class _Tags(NamedTuple):
    """Of a sentence: its language, if it is sure, and upos, xpos and features of each word."""

    language: str | None
    words: Sequence[tuple[str, str | None, str | None]]


class _TagReader:
    """Reads names of tags from their scores."""

    def __init__(self, network: BiaffineNetwork) -> None:
        self._config = network.config
        self._sizes = network.config.tag_sizes()
        self._names_of = lru_cache(maxsize=1 << 16)(self._names)

    def read(self, scores: Tensor, lengths: Sequence[int]) -> Iterator[_Tags]:
        """Yield the tags of sentences, whose words are the rows of the scores, shape ``(N, tags)``."""
        upos, xpos, languages, *features = scores.split(self._sizes, dim=1)
        best = torch.stack([own.argmax(dim=1) for own in (upos, xpos, *features)], dim=1)
        numbers: NDArray[np.int16] = best.to(torch.int16).cpu().numpy()
        width, raw = numbers.itemsize * numbers.shape[1], numbers.tobytes()
        names = [self._names_of(raw[start : start + width]) for start in range(0, len(raw), width)]
        shares = [own.mean(dim=0).max(dim=0) for own in languages.softmax(dim=1).split(list(lengths))]
        found = torch.stack([share.values for share in shares]), torch.stack([share.indices for share in shares])
        start = 0
        for length, share, language in zip(lengths, *(one.tolist() for one in found), strict=True):
            known = self._config.languages[language] if share >= _SURE else None
            yield _Tags(known, names[start : start + length])
            start += length

    def _names(self, raw: bytes) -> tuple[str, str | None, str | None]:
        upos, xpos, *values = np.frombuffer(raw, dtype=np.int16).tolist()
        features = (
            f"{name}={own[value]}"
            for (name, own), value in zip(self._config.features.items(), values, strict=True)
            if value
        )
        name = self._config.xpos[xpos]
        return self._config.upos[upos], None if name == "_" else name, "|".join(features) or None
