"""Training of the network of ``parser_multi`` on the encoder's states, on gold trees and what the teacher labelled."""

import json
import math
import random
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from concord.pipeline.parsing.biaffine import BiaffineConfig, BiaffineNetwork, Words
from research.parser_en.learning import batches, best_heads, descend
from research.parser_multi.labels import HEADS, MOST_WORDS, TAGS, Labels
from research.parser_multi.states import write_states

_BATCH_WORDS = 1_500
_READ_WORDS = 4_000


class Settings(NamedTuple):
    """How the network is trained.

    Attributes:
        times: how often an epoch reads a corpus, by its name, if not once.
    """

    epochs: int
    rate: float = 2e-3
    dropout: float = 0.33
    seed: int = 1
    times: Mapping[str, int] = {}


class Corpus(NamedTuple):
    """Sentences with labels and the states of their words, which are on disk."""

    name: str
    labels: Labels
    states: NDArray[np.float16]

    @classmethod
    def read(cls, path: Path) -> "Corpus":
        """Read ``NAME.npz`` and ``NAME.npy``."""
        with np.load(path) as arrays:
            return cls(path.stem, Labels(**arrays), np.load(path.with_suffix(".npy"), mmap_mode="r"))


def write(path: Path, labels: Labels, documents: Sequence[Sequence[Sequence[str]]]) -> None:
    """Write what ``Corpus.read`` reads: labels, and the states of the words of documents."""
    np.savez(path.with_name(f"{path.name}.npz"), **labels._asdict())
    write_states(path.with_name(f"{path.name}.npy"), documents)


class _Sentence(NamedTuple):
    corpus: Corpus
    start: int
    length: int


def _sentences(corpus: Corpus) -> list[_Sentence]:
    ends = corpus.labels.lengths.cumsum()
    return [
        _Sentence(corpus, int(end - length), int(length))
        for end, length in zip(ends, corpus.labels.lengths, strict=True)
    ]


class _Batch(NamedTuple):
    states: Tensor
    words: Words
    labels: Mapping[str, Tensor]

    @classmethod
    def of(cls, sentences: Sequence[_Sentence]) -> "_Batch":
        def rows(name: str) -> Tensor:
            read = attrgetter(name)
            found = np.concatenate([read(one.corpus)[one.start : one.start + one.length] for one in sentences])
            return torch.from_numpy(found.astype(np.float32 if found.dtype == np.float16 else np.int64))

        labels = {name: rows(f"labels.{name}") for name in Labels._fields if name != "lengths"}
        return cls(rows("states"), Words.of([one.length for one in sentences]), labels)


def loss(network: BiaffineNetwork, batch: _Batch) -> Tensor:
    """Return the sum of the mean losses of tags, heads and relations."""
    scores, contexts = _read(network, batch.states, batch.words)
    labels = batch.labels
    upos, xpos, languages, *features = scores.split(network.config.tag_sizes(), dim=1)
    total = _soft(upos, labels["upos"], labels["upos_chances"]) + _soft(xpos, labels["xpos"], labels["xpos_chances"])
    total = total + functional.cross_entropy(languages, labels["languages"])
    for column, own in enumerate(features):
        total = total + functional.cross_entropy(own, labels["features"][:, column])
    arcs = _masked(network.arc_scores(contexts), batch.words)
    total = total + _soft(batch.words.rows(arcs), labels["heads"], labels["head_chances"])
    heads = batch.words.pad(labels["heads"][:, 0])
    relations = batch.words.rows(network.relation_scores(contexts, heads))
    return total + functional.cross_entropy(relations, labels["relations"], ignore_index=-1)


def _read(network: BiaffineNetwork, states: Tensor, words: Words) -> tuple[Tensor, Tensor]:
    tags, contexts = network.read(states, words)
    if contexts is None:
        raise TypeError("expected what the trees are read from")
    return tags, contexts


def _soft(scores: Tensor, numbers: Tensor, chances: Tensor) -> Tensor:
    """Return the mean cross-entropy with the given chances, which are made to add up to one."""
    chances = chances * (numbers >= 0)
    known = scores.log_softmax(-1).gather(1, numbers.clamp(min=0)) * chances
    # Where a head cannot be, its score is -inf; so is that of no head, whose chance is 0.
    known = torch.where(chances > 0, known, 0.0)
    return -(known.sum(1) / chances.sum(1).clamp(min=1e-6)).mean()


def _masked(arcs: Tensor, words: Words) -> Tensor:
    """Give no chance to heads in padding, and to words as their own heads."""
    places = torch.arange(arcs.shape[2])
    outside = places > words.lengths[:, None, None]
    return arcs.masked_fill(outside | (places[1:, None] == places), -1e4)


def train(
    config: BiaffineConfig,
    corpora: Sequence[Corpus],
    dev: Sequence[Corpus],
    settings: Settings,
    output: Path,
    start: BiaffineNetwork | None = None,
) -> BiaffineNetwork:
    """Train on corpora, report scores on others after each epoch, and save the state in a file."""
    torch.manual_seed(settings.seed)
    draw = random.Random(settings.seed)
    network = BiaffineNetwork(config, dropout=settings.dropout)
    if start is None:
        network.scale.copy_(1 / _deviation(corpora))
    else:
        network.load_state_dict(start.state_dict())
    sentences = [(settings.times.get(corpus.name, 1), _sentences(corpus)) for corpus in corpora]
    optimizer = torch.optim.AdamW(network.parameters(), lr=settings.rate, betas=(0.9, 0.95), weight_decay=0.01)
    steps = settings.epochs * len(_epoch(sentences, random.Random(0)))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min(1.0, (1 + step) / (0.05 * steps)) * 0.5 * (1 + math.cos(math.pi * min(1, step / steps))),
    )
    for epoch in range(1, 1 + settings.epochs):
        network.train()
        parts = _epoch(sentences, draw)
        total = sum(descend(loss(network, _Batch.of(part)), optimizer, schedule, clip_norm=5.0) for part in parts)
        found = {one.name: scores(network, one) for one in dev}
        click.echo(f"epoch {epoch}: loss {total / len(parts):.3f}, {json.dumps(found)}")
        torch.save(network.state_dict(), output)
    return network


def load(config: BiaffineConfig, path: Path) -> BiaffineNetwork:
    """Read a trained network."""
    network = BiaffineNetwork(config)
    network.load_state_dict(torch.load(path, weights_only=True))
    return network


def _epoch(sets: Sequence[tuple[int, list[_Sentence]]], draw: random.Random) -> list[list[_Sentence]]:
    chosen = [one for times, sentences in sets for one in sentences * times if one.length <= MOST_WORDS]
    draw.shuffle(chosen)
    parts = batches(chosen, lambda one: one.length, words=_BATCH_WORDS)
    draw.shuffle(parts)
    return parts


def _deviation(corpora: Sequence[Corpus]) -> Tensor:
    """Return the standard deviation of each dimension of the states, of every tenth word."""
    states = np.concatenate([corpus.states[::10] for corpus in corpora]).astype(np.float32)
    return torch.from_numpy(states.std(axis=0)).clamp(min=1e-4)


@torch.inference_mode()
def label(
    teachers: Sequence[BiaffineNetwork], states: NDArray[np.float16], lengths: Sequence[int], language: str
) -> Labels:
    """Return what the mean of networks says of sentences of one language, whose words have these states."""
    config, words = teachers[0].config, sum(lengths)
    ranked = [np.zeros((words, kinds), dtype=kind) for kinds in (TAGS, TAGS, HEADS) for kind in (np.int16, np.float16)]
    languages = np.full(words, config.languages.index(language), dtype=np.int16)
    features = np.zeros((words, len(config.features)), dtype=np.int8)
    found = Labels._make((*ranked, languages, np.zeros_like(languages), features, np.array(lengths, dtype=np.int32)))
    ends = np.cumsum(lengths)
    for part in batches(range(len(lengths)), lambda number: lengths[number], words=_READ_WORDS):
        rows = np.concatenate([np.arange(ends[number] - lengths[number], ends[number]) for number in part])
        places = Words.of([lengths[number] for number in part])
        inputs = torch.from_numpy(states[rows]).float()
        read = [_read(own.eval(), inputs, places) for own in teachers]
        kinds = zip(*(tags.split(config.tag_sizes(), dim=1) for tags, _ in read), strict=True)
        upos, xpos, _, *values = (_mean(own) for own in kinds)
        contexts = [context for _, context in read]
        arcs = _mean([_masked(own.arc_scores(one), places) for own, one in zip(teachers, contexts, strict=True)])
        heads = best_heads(arcs.log().masked_fill(arcs == 0, -math.inf), [lengths[number] for number in part])
        relations = _mean([own.relation_scores(one, heads) for own, one in zip(teachers, contexts, strict=True)])
        for name, chances in (("upos", upos), ("xpos", xpos)):
            best = chances.topk(TAGS)
            getattr(found, name)[rows], getattr(found, f"{name}_chances")[rows] = best.indices, best.values
        chosen, chances = _best_heads(places.rows(heads[..., None]), places.rows(arcs))
        found.heads[rows], found.head_chances[rows] = chosen, chances
        found.relations[rows] = places.rows(relations).argmax(1)
        found.features[rows] = torch.stack([own.argmax(1) for own in values], 1)
    return found


def _mean(scores: Sequence[Tensor]) -> Tensor:
    return torch.stack([own.softmax(-1) for own in scores]).mean(0)


def _best_heads(heads: Tensor, chances: Tensor) -> tuple[Tensor, Tensor]:
    """Return the head of the tree, whether or not it is the most probable one, and the best others."""
    # Short sentences have fewer heads to choose from.
    chances = functional.pad(chances, (0, HEADS))
    others = chances.scatter(1, heads, -1.0).topk(HEADS - 1)
    kept = torch.cat([chances.gather(1, heads).clamp(min=1e-4), others.values.clamp(min=0)], 1)
    return torch.cat([heads, others.indices], 1).masked_fill(kept == 0, 0), kept


@torch.inference_mode()
def scores(network: BiaffineNetwork, corpus: Corpus) -> dict[str, float]:
    """Return the accuracy of tags and the attachment scores without subtypes, in percent, on given words."""
    network.eval()
    right = dict.fromkeys(("upos", "xpos", "feats", "languages", "uas", "las"), 0)
    plain = [name.split(":")[0] for name in network.config.relations]
    number_of = torch.tensor([plain.index(name) for name in plain])
    parts = batches(_sentences(corpus), lambda one: one.length, words=_READ_WORDS)
    for part in parts:
        batch = _Batch.of(part)
        labels = batch.labels
        found, contexts = _read(network, batch.states, batch.words)
        upos, xpos, languages, *features = found.split(network.config.tag_sizes(), dim=1)
        right["upos"] += int((upos.argmax(1) == labels["upos"][:, 0]).sum())
        right["xpos"] += int((xpos.argmax(1) == labels["xpos"][:, 0]).sum())
        right["languages"] += int((languages.argmax(1) == labels["languages"]).sum())
        best = torch.stack([own.argmax(1) for own in features], 1)
        right["feats"] += int((best == labels["features"]).all(1).sum())
        arcs = _masked(network.arc_scores(contexts), batch.words).log_softmax(-1)
        heads = best_heads(arcs.masked_fill(arcs < -1e3, -math.inf), [one.length for one in part])
        relations = batch.words.rows(network.relation_scores(contexts, heads)).argmax(1)
        attached = batch.words.rows(heads[..., None])[:, 0] == labels["heads"][:, 0]
        right["uas"] += int(attached.sum())
        right["las"] += int((attached & (number_of[relations] == number_of[labels["relations"].clamp(min=0)])).sum())
    words = int(corpus.labels.lengths.sum())
    return {name: round(100 * count / words, 2) for name, count in right.items()}
