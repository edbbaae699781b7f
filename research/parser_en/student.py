"""The student: tagger and parser of ``parser_en``, trained together on gold trees and on what the teacher labelled.

Both are networks of Stanza, read in batches of our own. Words are form vectors and, in the tagger, spellings. The
parser reads the tags that the tagger finds in the same step, as it will when they run, not gold ones. From the
teacher they learn the probabilities of its best few tags and heads.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import torch
from numpy.typing import NDArray
from stanza.models.common.pretrain import Pretrain
from stanza.models.common.utils import simplify_punct
from stanza.models.common.vocab import ROOT_ID, UNK_ID, VOCAB_PREFIX_SIZE
from stanza.models.depparse.trainer import GraphTrainer
from stanza.models.pos.trainer import Trainer as TagTrainer
from torch import Tensor, nn
from torch.nn import functional

from research.parser_en.conllu import ConlluSentence
from research.parser_en.learning import batches, best_heads, descend
from research.precision import trains_in_bf16

_BATCH_WORDS = 1_500
_READ_WORDS = 3_000
_PAD = -1


class Labelled(NamedTuple):
    """A sentence of T words with the best K values of each label and their probabilities, best first.

    Attributes:
        upos, xpos, heads: numbers and probabilities, both ``(T, K)``; a head counts from the root, 0.
        feats: the numbers of the parts of the features, ``(T, parts)``.
        relations: numbers of the relations to the best heads, ``(T,)``.
        lemmas: numbers of the lemmas, ``(T,)``.
    """

    words: Sequence[str]
    upos: tuple[NDArray[np.int16], NDArray[np.float32]]
    xpos: tuple[NDArray[np.int16], NDArray[np.float32]]
    feats: NDArray[np.int16]
    heads: tuple[NDArray[np.int16], NDArray[np.float32]]
    relations: NDArray[np.int16]
    lemmas: NDArray[np.int16]


class Settings(NamedTuple):
    """How the student is trained.

    Attributes:
        unknown: probability that a word's form vector is hidden.
        gold_weight: how often an epoch reads each gold sentence.
    """

    epochs: int = 6
    rate: float = 3e-3
    seed: int = 1
    unknown: float = 0.03
    gold_weight: int = 2


def gold(sentence: ConlluSentence, vocabulary: Any) -> Labelled:
    """Return a gold sentence with all probability on its labels."""

    def numbers(name: str, values: Sequence[Any]) -> NDArray[np.int16]:
        return np.array(vocabulary[name].map(values), dtype=np.int16)

    def certain(values: NDArray[np.int16]) -> tuple[NDArray[np.int16], NDArray[np.float32]]:
        return values[:, None], np.ones((len(values), 1), dtype=np.float32)

    return Labelled(
        sentence.words,
        certain(numbers("upos", sentence.upos)),
        certain(numbers("xpos", sentence.xpos)),
        numbers("feats", sentence.feats),
        certain(np.array(sentence.heads, dtype=np.int16)),
        numbers("deprel", sentence.relations),
        numbers("lemma", sentence.lemmas),
    )


def write_labelled(path: Path, sentences: Sequence[Labelled]) -> None:
    """Write sentences whose labels have K values each, those of all sentences in one array a column."""
    columns = zip(*(_columns(sentence) for sentence in sentences), strict=True)
    words = "\n".join(word for sentence in sentences for word in sentence.words)
    np.savez(
        path,
        *map(np.concatenate, columns),
        lengths=[len(sentence.words) for sentence in sentences],
        words=np.frombuffer(words.encode(), dtype=np.uint8),
    )


def read_labelled(path: Path) -> list[Labelled]:
    """Read what ``write_labelled`` wrote."""
    with np.load(path) as saved:
        ends = np.cumsum(saved["lengths"])[:-1]
        words = np.split(np.array(saved["words"].tobytes().decode().split("\n"), dtype=object), ends)
        names = [name for name in saved.files if name.startswith("arr_")]
        rows = zip(words, *(np.split(saved[name], ends) for name in names), strict=True)
        return [Labelled(tuple(row[0]), row[1:3], row[3:5], row[5], row[6:8], *row[8:]) for row in rows]


def _columns(sentence: Labelled) -> tuple[NDArray[Any], ...]:
    return (*sentence.upos, *sentence.xpos, sentence.feats, *sentence.heads, sentence.relations, sentence.lemmas)


class Batch(NamedTuple):
    """Sentences of one length T and their labels; where some have fewer values than others, the rest are -1.

    Attributes:
        rows: the place of each word among the forms, shape ``(B, T)``.
    """

    forms: list[str]
    rows: Tensor
    upos: tuple[Tensor, Tensor]
    xpos: tuple[Tensor, Tensor]
    feats: Tensor
    heads: tuple[Tensor, Tensor]
    relations: Tensor
    lemmas: Tensor


def _batch(sentences: Sequence[Labelled]) -> Batch:
    numbers: dict[str, int] = {}
    rows = torch.tensor([[numbers.setdefault(word, len(numbers)) for word in s.words] for s in sentences])

    def stacked(columns: Sequence[NDArray[Any]], value: float = _PAD) -> Tensor:
        width = max(column.shape[-1] for column in columns)
        padded = [functional.pad(torch.from_numpy(c), (0, width - c.shape[-1]), value=value) for c in columns]
        values = torch.stack(padded)
        return values if values.is_floating_point() else values.long()

    def soft(name: str) -> tuple[Tensor, Tensor]:
        columns = [getattr(sentence, name) for sentence in sentences]
        return stacked([column[0] for column in columns]), stacked([column[1] for column in columns], 0.0)

    return Batch(
        [form for [[form]] in simplify_punct([[[form]] for form in numbers])],
        rows,
        soft("upos"),
        soft("xpos"),
        stacked([sentence.feats for sentence in sentences]),
        soft("heads"),
        stacked([sentence.relations for sentence in sentences]),
        stacked([sentence.lemmas for sentence in sentences]),
    )


class Student(nn.Module):
    """The networks of a tagger and a parser of Stanza, read together."""

    def __init__(self, tagger: Any, parser: Any, pretrain: Pretrain, *, unknown: float = 0.0) -> None:
        super().__init__()
        self.tagger, self.parser = tagger, parser
        self._pretrain = pretrain
        self._unknown = unknown

    def forward(self, batch: Batch) -> tuple[dict[str, Tensor], list[Tensor], Tensor]:
        """Return the scores of upos and xpos and of the features' parts, ``(B, T, values)``, and the parser's states.

        The states are those of the root and the words, ``(B, 1 + T, 2H)``.
        """
        tagger, parser = self.tagger, self.parser
        vectors = self._form_numbers(batch.forms)
        characters = self._characters(batch.forms)
        rows = batch.rows
        words = torch.tensor(tagger.vocab["word"].map(batch.forms))
        inputs = torch.cat(
            [tagger.word_emb(words), tagger.trans_pretrained(tagger.pretrained_emb(vectors)), characters], 1
        )
        states = self._run(tagger, "tagger", inputs[rows])
        hidden = torch.relu(tagger.upos_hid(tagger.drop(states)))
        dropped = tagger.drop(hidden)
        scores = {"upos": tagger.upos_clf(dropped), "xpos": tagger.tag_clf["xpos"](dropped)}
        parts = [part(dropped) for part in tagger.tag_clf["feats"]]
        found = {name: each.detach().argmax(-1) for name, each in scores.items()}
        tags = sum(
            getattr(parser, f"{name}_emb")(functional.pad(each, (1, 0), value=ROOT_ID)) for name, each in found.items()
        )
        root = torch.tensor([ROOT_ID])
        read = parser.trans_pretrained(parser.pretrained_emb(torch.cat([root, vectors])))
        read = torch.cat([read, parser.word_emb(torch.cat([root, words]))], 1)[functional.pad(rows + 1, (1, 0))]
        lemmas = parser.lemma_emb(functional.pad(batch.lemmas, (1, 0), value=ROOT_ID))
        return scores, parts, self._run(parser, "parser", torch.cat([read, lemmas, tags], 2))

    def _form_numbers(self, forms: Sequence[str]) -> Tensor:
        numbers = torch.tensor(self._pretrain.vocab.map([form.lower() for form in forms]))
        if self.training:
            numbers[torch.rand(len(numbers)) < self._unknown] = UNK_ID
        return numbers

    def _characters(self, forms: Sequence[str]) -> Tensor:
        tagger = self.tagger
        spelled = [torch.tensor(tagger.vocab["char"].map(form)) for form in forms]
        # Forms of one length at a time: where it varies, the gradient takes time that grows with its square.
        order = sorted(range(len(forms)), key=lambda number: len(spelled[number]))
        parts = []
        for length, group in groupby(order, key=lambda number: len(spelled[number])):
            rows = torch.stack([spelled[number] for number in group])
            read = tagger.charmodel(rows, None, list(range(len(rows))), [len(rows)], [length] * len(rows))
            parts.append(read.data)
        found = torch.cat(parts)[torch.tensor(order).argsort()]
        vectors: Tensor = tagger.trans_char(tagger.drop(found))
        return vectors

    def _run(self, network: Any, name: str, inputs: Tensor) -> Tensor:
        rows = network.drop(network.worddrop(inputs, network.drop_replacement))
        start = tuple(
            getattr(network, f"{name}lstm_{part}_init").expand(-1, len(inputs), -1).contiguous() for part in "hc"
        )
        # Half the time in training, where the processor multiplies matrices of bfloat16; others may not be able to.
        with torch.autocast("cpu", torch.bfloat16, enabled=self.training and trains_in_bf16("cpu")):
            return _run_highway(getattr(network, f"{name}lstm"), rows, start).float()

    def arc_scores(self, states: Tensor) -> Tensor:
        """Return the score of each head for each word, shape ``(B, T, 1 + T)``; -inf for the word itself."""
        parser = self.parser
        scores = parser.unlabeled(parser.drop(states), parser.drop(states)).squeeze(3)[:, 1:]
        places = torch.arange(states.shape[1])
        found: Tensor = scores.masked_fill(places[1:, None] == places, -math.inf)
        return found

    def relation_scores(self, states: Tensor, heads: Tensor) -> Tensor:
        """Return the scores of the relations to given heads, shape ``(B, T, relations)``."""
        parser = self.parser
        scorer = parser.deprel
        dropped = parser.drop(states), parser.drop(states)
        words = scorer.dropout(scorer.hidden_func(scorer.W1(dropped[0][:, 1:])))
        parents = scorer.dropout(scorer.hidden_func(scorer.W2(dropped[1])))
        words, parents = functional.pad(words, (0, 1), value=1.0), functional.pad(parents, (0, 1), value=1.0)
        chosen = parents.gather(1, heads[..., None].expand(-1, -1, parents.shape[2]))
        bilinear = scorer.scorer.W_bilin
        products = torch.einsum("bti,ijr,btj->btr", words, bilinear.weight, chosen)
        scores: Tensor = products + bilinear.bias
        return scores

    def loss(self, batch: Batch) -> Tensor:
        """Return the sum of the mean losses of tags, features, heads and relations."""
        scores, parts, states = self(batch)
        losses = [_soft_loss(scores[name], *each) for name, each in (("upos", batch.upos), ("xpos", batch.xpos))]
        losses += [0.25 * _hard_loss(part, batch.feats[..., n]) for n, part in enumerate(parts)]
        losses.append(_soft_loss(self.arc_scores(states), *batch.heads))
        relations = self.relation_scores(states, batch.heads[0][..., 0])
        losses.append(_hard_loss(relations, batch.relations - VOCAB_PREFIX_SIZE))
        return torch.stack(losses).sum()

    @torch.inference_mode()
    def accuracy(self, sentences: Sequence[Labelled]) -> dict[str, float]:
        """Return the accuracy of tags and the attachment scores on sentences with gold labels, in percent."""
        self.eval()
        right = dict.fromkeys(("upos", "xpos", "feats", "uas", "las"), 0)
        words = 0
        for group in _batches(sentences, words=_READ_WORDS):
            batch = _batch(group)
            scores, parts, states = self(batch)
            words += batch.rows.numel()
            for name, each in (("upos", batch.upos), ("xpos", batch.xpos)):
                right[name] += int((scores[name].argmax(-1) == each[0][..., 0]).sum())
            feats = torch.stack([part.argmax(-1) for part in parts], -1)
            right["feats"] += int((feats == batch.feats).all(-1).sum())
            heads = best_heads(self.arc_scores(states), [batch.rows.shape[1]] * len(group))
            same = heads == batch.heads[0][..., 0]
            relations = self.relation_scores(states, heads).argmax(-1) + VOCAB_PREFIX_SIZE
            right["uas"] += int(same.sum())
            right["las"] += int((same & (relations == batch.relations)).sum())
        return {name: round(100 * count / words, 2) for name, count in right.items()}


def _run_highway(lstm: Any, rows: Tensor, start: tuple[Tensor, ...]) -> Tensor:
    """Run a highway LSTM of Stanza over sentences of one length, without packing; both ``(B, T, D)``."""
    directions = lstm.num_directions
    for number, layer in enumerate(lstm.lstm):
        if number:
            rows = functional.dropout(rows, lstm.drop.p, lstm.training)
        own = slice(number * directions, (number + 1) * directions)
        states, _ = layer.lstm(rows, (start[0][own], start[1][own]))
        carried = lstm.highway[number](rows)
        if lstm.highway_func is not None:
            carried = lstm.highway_func(carried)
        rows = states + torch.sigmoid(lstm.gate[number](rows)) * carried
    return rows


def _soft_loss(scores: Tensor, numbers: Tensor, probabilities: Tensor) -> Tensor:
    """Return the mean cross entropy with distributions that are given by their largest values."""
    logs = scores.log_softmax(-1).gather(-1, numbers.clamp(min=0))
    weights = probabilities / probabilities.sum(-1, keepdim=True)
    return -(weights * logs.masked_fill(weights == 0, 0.0)).sum(-1).mean()


def _hard_loss(scores: Tensor, numbers: Tensor) -> Tensor:
    """Return the mean cross entropy with one value for each word."""
    return functional.cross_entropy(scores.flatten(0, 1), numbers.flatten())


def _batches(sentences: Sequence[Labelled], *, words: int = _BATCH_WORDS) -> list[list[Labelled]]:
    return batches(sentences, lambda sentence: len(sentence.words), words=words)


def build(
    vocabularies: Mapping[str, Any], configs: Mapping[str, dict[str, Any]], pretrain: Pretrain
) -> tuple[Any, Any]:
    """Return Stanza's trainers of a new tagger and a new parser."""
    tagger = TagTrainer(args=configs["pos"], vocab=vocabularies["pos"], pretrain=pretrain, device="cpu")
    parser = GraphTrainer(args=configs["depparse"], vocab=vocabularies["depparse"], pretrain=pretrain, device="cpu")
    return tagger, parser


def train(
    trainers: tuple[Any, Any],
    pretrain: Pretrain,
    sentences: tuple[Sequence[Labelled], Sequence[Labelled], Sequence[Labelled]],
    settings: Settings,
    output: Path,
) -> Student:
    """Train on gold and silver sentences, report the accuracy on the dev ones and save after each epoch; resumable."""
    gold_part, silver, dev = sentences
    torch.manual_seed(settings.seed)
    tagger, parser = trainers
    student = Student(tagger.model, parser.model, pretrain, unknown=settings.unknown)
    parameters = [each for each in student.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=settings.rate, betas=(0.9, 0.95), weight_decay=1e-5)
    every = [*silver, *(list(gold_part) * settings.gold_weight)]
    steps = settings.epochs * len(_batches(every))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (1 + step) / 300) * 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps)))
    )
    first, state = 1, output / "state.pt"
    if state.exists():
        saved = torch.load(state, weights_only=True)
        student.load_state_dict(saved["student"])
        optimizer.load_state_dict(saved["optimizer"])
        schedule.load_state_dict(saved["schedule"])
        first = 1 + saved["epoch"]
    for epoch in range(first, 1 + settings.epochs):
        draw = np.random.default_rng((settings.seed, epoch))
        total = 0.0
        student.train()
        for number, group in enumerate(_shuffled(every, draw), start=1):
            total += descend(student.loss(_batch(group)), optimizer, schedule, clip_norm=1.0)
            if number % 200 == 0:
                click.echo(f"epoch {epoch}, batch {number}: loss {total / 200:.3f}")
                total = 0.0
        click.echo(f"epoch {epoch}: {student.accuracy(dev)}")
        torch.save(
            {
                "student": student.state_dict(),
                "optimizer": optimizer.state_dict(),
                "schedule": schedule.state_dict(),
                "epoch": epoch,
            },
            state,
        )
        tagger.save(str(output / "pos.pt"))
        parser.save(str(output / "depparse.pt"))
    return student


def _shuffled(sentences: Sequence[Labelled], draw: np.random.Generator) -> Iterator[list[Labelled]]:
    order = [sentences[number] for number in draw.permutation(len(sentences))]
    groups = _batches(order)
    for number in draw.permutation(len(groups)):
        yield groups[number]
