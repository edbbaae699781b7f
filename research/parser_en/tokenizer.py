"""Training of the tokenizer of ``parser_en``: Stanza's network on paragraphs as they stand in the corpora.

Stanza's own training joins sentences drawn from everywhere; a paragraph as it is shows what follows an abbreviation or
a closing quotation mark.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import torch
from numpy.typing import NDArray
from stanza.models import tokenizer as stanza_tokenizer
from stanza.models.tokenization.data import TokenizationDataset
from stanza.models.tokenization.trainer import Trainer
from stanza.models.tokenization.vocab import Vocab
from torch import Tensor
from torch.nn import functional

from research.parser_en.learning import descend

_FEATURES = "space_before,capitalized,numeric,end_of_para,start_of_para,labeled_field,phone_id,date_pattern,currency"
_END_OF_PARAGRAPH = _FEATURES.split(",").index("end_of_para")
_UNKNOWN = 1
_BATCH_CHARACTERS = 24_000
_WINDOW = 360
_KINDS = {"tokens": [1, 2, 3, 4], "multi-word": [3, 4], "sentences": [2, 4]}
"""The labels of characters that end each kind of stretch."""


class Settings(NamedTuple):
    """Size and training of a tokenizer.

    Attributes:
        unit_dropout: probability that a character is replaced by the unknown one.
        cut: probability that the last mark of a text is dropped.
    """

    hidden: int
    steps: int
    rate: float = 4e-3
    seed: int = 1
    unit_dropout: float = 0.05
    cut: float = 0.1


class _Text(NamedTuple):
    """Numbers of characters, labels and features of a paragraph, or a part of one."""

    units: NDArray[np.int64]
    labels: NDArray[np.int64]
    features: NDArray[np.float32]


def train(folder: Path, settings: Settings, output: Path) -> Trainer:
    """Train on ``train.txt`` and ``train.lab`` of a folder, report scores on ``dev`` and save."""
    arguments = stanza_tokenizer.parse_args(
        ["--lang=en", "--cpu", "--use_mwt", "--dropout=0.2", f"--hidden_dim={settings.hidden}"]
    )
    arguments["feat_funcs"] = _FEATURES.split(",")
    arguments["feat_dim"] = len(arguments["feat_funcs"])
    arguments["num_dict_feat"] = 0
    torch.manual_seed(settings.seed)
    draw = np.random.default_rng(settings.seed)
    texts = _read(arguments, folder, "train", None)
    arguments["vocab_size"] = len(texts.vocab)
    trainer = Trainer(args=arguments, vocab=texts.vocab)
    model = trainer.model
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.rate, betas=(0.9, 0.98), weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (1 + step) / 200) * 0.5 * (1 + math.cos(math.pi * step / settings.steps))
    )
    total = 0.0
    for step, batch in zip(range(1, 1 + settings.steps), _batches(texts.paragraphs, settings, draw), strict=False):
        model.train()
        units, labels, features, lengths = batch
        scores = model(units, features, lengths)
        loss = functional.cross_entropy(scores.flatten(0, 1), labels.flatten(), ignore_index=-1)
        total += descend(loss, optimizer, schedule, clip_norm=1.0)
        if step % 250 == 0 or step == settings.steps:
            click.echo(f"step {step}: loss {total / 250:.4f}, {scores_of(trainer, folder, 'dev')}")
            total = 0.0
            trainer.save(str(output))
    return trainer


class _Texts(NamedTuple):
    vocab: Vocab
    paragraphs: Sequence[_Text]


def _read(arguments: dict[str, Any], folder: Path, part: str, vocabulary: Vocab | None) -> _Texts:
    files = {"txt": str(folder / f"{part}.txt"), "label": str(folder / f"{part}.lab")}
    data = TokenizationDataset(arguments, input_files=files, vocab=vocabulary, evaluation=True)
    if data.vocab is None:
        data.vocab = Vocab(data.data, arguments["lang"])
    paragraphs = []
    for paragraph in data.data:
        [(units, labels, features, _)] = data.para_to_sentences(paragraph)
        labels[-1] = max(2, labels[-1])
        paragraphs.append(_Text(units, labels, features.astype(np.float32)))
    return _Texts(data.vocab, paragraphs)


_Batch = tuple[Tensor, Tensor, Tensor, list[int]]


def _batches(texts: Sequence[_Text], settings: Settings, draw: np.random.Generator) -> Iterator[_Batch]:
    """Yield batches of windows of about the same length, for ever.

    The longer ones lose their first characters, so that all have one length: where it varies, the gradient of a packed
    LSTM takes time that grows with its square.
    """
    while True:
        windows = [_window(texts[number], settings, draw) for number in draw.permutation(len(texts))]
        windows.sort(key=lambda text: -len(text.units))
        batches: list[list[_Text]] = [[]]
        for window in windows:
            if batches[-1] and (1 + len(batches[-1])) * len(batches[-1][0].units) > _BATCH_CHARACTERS:
                batches.append([])
            batches[-1].append(window)
        for number in draw.permutation(len(batches)):
            length = len(batches[number][-1].units)
            equal = [_cut(text, slice(-length, None)) for text in batches[number]]
            yield _padded(equal, settings.unit_dropout, draw)


def _window(text: _Text, settings: Settings, draw: np.random.Generator) -> _Text:
    """Return a paragraph, or a part of a long one that begins with a sentence; at times without its last mark."""
    if len(text.units) > _WINDOW:
        ends = np.flatnonzero((text.labels == 2) | (text.labels == 4))
        starts = np.concatenate([[0], 1 + ends[ends < len(text.units) - _WINDOW // 2]])
        first = int(draw.choice(starts))
        text = _cut(text, slice(first, first + _WINDOW))
    if draw.random() < settings.cut and len(text.labels) > 2 and text.labels[-1] == 2 and text.labels[-2] in {1, 3}:
        text = _Text(text.units[:-1], text.labels[:-1].copy(), text.features[:-1].copy())
        text.labels[-1] += 1
        text.features[-1, _END_OF_PARAGRAPH] = 1
    return text


def _cut(text: _Text, part: slice) -> _Text:
    return _Text(text.units[part], text.labels[part], text.features[part])


def _padded(texts: Sequence[_Text], dropout: float, draw: np.random.Generator) -> _Batch:
    texts = sorted(texts, key=lambda text: -len(text.units))
    shape = len(texts), len(texts[0].units)
    units, labels = np.zeros(shape, dtype=np.int64), np.full(shape, -1, dtype=np.int64)
    features = np.zeros((*shape, texts[0].features.shape[1]), dtype=np.float32)
    for row, text in enumerate(texts):
        length = len(text.units)
        units[row, :length] = np.where(draw.random(length) < dropout, _UNKNOWN, text.units)
        labels[row, :length] = text.labels
        features[row, :length] = text.features
    lengths = [len(text.units) for text in texts]
    return torch.from_numpy(units), torch.from_numpy(labels), torch.from_numpy(features), lengths


def scores_of(trainer: Trainer, folder: Path, part: str) -> dict[str, float]:
    """Return F1 of tokens, of multi-word tokens and of sentences on a part, in percent."""
    texts = sorted(_read(trainer.args, folder, part, trainer.vocab).paragraphs, key=lambda text: -len(text.units))
    counts = np.zeros((3, 3), dtype=int)
    trainer.model.eval()
    for start in range(0, len(texts), 16):
        units, labels, features, lengths = _padded(texts[start : start + 16], 0.0, np.random.default_rng())
        with torch.no_grad():
            best = trainer.model(units, features, lengths).argmax(-1).numpy()
        for marks, gold, length in zip(best, labels.numpy(), lengths, strict=True):
            found, expected = marks[:length], gold[:length]
            found[-1] = max(2, found[-1])
            for kind, labels_of_kind in enumerate(_KINDS.values()):
                ends = [np.isin(row, labels_of_kind) for row in (found, expected)]
                counts[kind] += _spans(ends[0], ends[1], whole=kind != 1)
    return {
        name: round(float(200 * right / (given + wanted)), 2)
        for name, (right, given, wanted) in zip(_KINDS, counts, strict=True)
    }


def _spans(found: np.ndarray, gold: np.ndarray, *, whole: bool) -> tuple[int, int, int]:
    """Return how many stretches that end at marks are right, given and wanted; single marks if not ``whole``."""
    if not whole:
        return int((found & gold).sum()), int(found.sum()), int(gold.sum())
    ends = [np.flatnonzero(each) for each in (found, gold)]
    pairs = [set(zip(np.concatenate([[-1], each[:-1]]).tolist(), each.tolist(), strict=True)) for each in ends]
    return len(pairs[0] & pairs[1]), len(pairs[0]), len(pairs[1])
