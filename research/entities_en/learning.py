"""What the trainings share: batches of equal or like lengths, the loop over them, and scores on the dev parts."""

import random
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

import click
import torch
from torch import Tensor, nn

from concord.models.data.sentence import Sentence
from concord.models.data.vocabulary import Vocabulary
from concord.models.labels import decode_spans
from concord.models.training.fit_calibration import label_sequences
from research.entities_en.silver import GOLD_TYPES

Documents = Sequence[Sequence[Sentence]]
Batch = Sequence[Sentence]
BatchT = TypeVar("BatchT")
_LONGEST_BATCH = 48
_BATCH_WORDS, _BATCH_SENTENCES, _SHUFFLED = 2000, 64, 8192
_SAVE_SECONDS = 180


def equal_lengths(sentences: Sequence[Sentence], *, words: int, draw: random.Random | None = None) -> list[Batch]:
    """Return sentences in batches of one length, at most so many words each; for training small ones, and shuffled."""
    by_length: dict[int, list[Sentence]] = {}
    for sentence in sentences:
        by_length.setdefault(len(sentence.words), []).append(sentence)
    batches: list[Batch] = []
    for length, group in by_length.items():
        if draw is not None:
            draw.shuffle(group)
        size = max(1, min(len(group) if draw is None else _LONGEST_BATCH, words // length))
        batches += [group[start : start + size] for start in range(0, len(group), size)]
    if draw is not None:
        draw.shuffle(batches)
    return batches


def like_lengths(sentences: Sequence[Sentence], draw: random.Random) -> list[Batch]:
    """Return shuffled batches of sentences of like lengths."""
    shuffled = draw.sample(sentences, len(sentences))
    batches: list[Batch] = []
    for start in range(0, len(shuffled), _SHUFFLED):
        batch: list[Sentence] = []
        for sentence in sorted(shuffled[start : start + _SHUFFLED], key=lambda sentence: len(sentence.words)):
            if len(batch) == _BATCH_SENTENCES or (len(batch) + 1) * len(sentence.words) > _BATCH_WORDS:
                batches.append(batch)
                batch = []
            batch.append(sentence)
        batches.append(batch)
    draw.shuffle(batches)
    return [batch for batch in batches if batch]


def repeated(corpora: Mapping[str, Documents], times: Mapping[str, float]) -> list[Sentence]:
    """Return all sentences, those of a corpus so many times; of 1.5 times, the half is the same in every epoch."""
    found: list[Sentence] = []
    for name, documents in corpora.items():
        sentences = [sentence for document in documents for sentence in document]
        whole, part = divmod(times.get(name, 1.0), 1)
        found += sentences * int(whole) + random.Random(5).sample(sentences, int(part * len(sentences)))
    return found


def learn(
    network: nn.Module,
    groups: Sequence[Mapping[str, object]],
    epochs: Sequence[Sequence[BatchT]],
    loss_of: Callable[[BatchT], Tensor],
    *,
    name: str,
    warmup: float = 0.1,
    clip_norm: float = 5.0,
    weight_decay: float = 0.0,
    state: Path | None = None,
) -> None:
    """Train a network; the learning rates of its groups rise for a share of all steps, then fall to 0.

    With a file ``state``, written every three minutes and after each epoch, a training that was interrupted goes on;
    the result is that of an uninterrupted one.
    """
    batches, ends = [batch for epoch in epochs for batch in epoch], list(accumulate(map(len, epochs)))
    steps, step, total, started = len(batches), 0, 0.0, time.monotonic()
    optimizer = torch.optim.AdamW([dict(group) for group in groups], weight_decay=weight_decay)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda done: min((done + 1) / (warmup * steps), (steps - done) / ((1 - warmup) * steps))
    )
    stateful: dict[str, Any] = {"network": network, "optimizer": optimizer, "schedule": schedule}
    if state is not None and state.exists():
        kept = torch.load(state, weights_only=True)
        for key, part in stateful.items():
            part.load_state_dict(kept[key])
        torch.set_rng_state(kept["random"])
        step, total = kept["step"], kept["total"]
        click.echo(f"{name}: goes on after step {step}/{steps}")
    saved = time.monotonic()
    network.train()
    for batch in batches[step:]:
        loss = loss_of(batch)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), clip_norm)
        optimizer.step()
        schedule.step()
        total += float(loss.detach())
        step += 1
        if step not in ends and time.monotonic() - saved < _SAVE_SECONDS:
            continue
        number = bisect_left(ends, step)
        mean = total / (step - [0, *ends][number])
        spent = time.monotonic() - started
        click.echo(f"{name}: epoch {number + 1}/{len(epochs)}, step {step}/{steps}, loss {mean:.3f}, {spent:.0f} s")
        total = 0.0 if step in ends else total
        if state is not None:
            content = {key: part.state_dict() for key, part in stateful.items()}
            torch.save({**content, "random": torch.get_rng_state(), "step": step, "total": total}, f"{state}.partial")
            Path(f"{state}.partial").replace(state)
        saved = time.monotonic()
    network.eval()


def span_counts(
    labels: Sequence[Sequence[Sequence[str]]], documents: Documents, types: Collection[str]
) -> dict[str, Tensor]:
    """Return how many names of each type are gold, predicted, and both, for each document, shape ``(D, 3)``, int64.

    Labels are in BIO2, of each sentence of each document.
    """
    counts = {kind: torch.zeros(len(documents), 3, dtype=torch.int64) for kind in types}
    for number, (document, predicted) in enumerate(zip(documents, labels, strict=True)):
        for sentence, guess in zip(document, predicted, strict=True):
            gold, found = set(decode_spans(sentence.labels or (), "BIO")), set(decode_spans(guess, "BIO"))
            for column, spans in enumerate((gold, found, gold & found)):
                for span in spans:
                    if span.label in counts:
                        counts[span.label][number, column] += 1
    return counts


def f1(counts: Tensor) -> float:
    """Return the F1 of counts of any shape ``(..., 3)``, in percent."""
    gold, found, right = map(int, counts.reshape(-1, 3).sum(dim=0))
    return 200 * right / max(1, gold + found)


def score(probabilities: Tensor, corpora: Mapping[str, Documents], vocabulary: Vocabulary) -> dict[str, float]:
    """Return the strict F1 of each corpus, of the types that gold sets have, and their mean.

    The words of the corpora have the rows of the probabilities in order.
    """
    counts = counts_by_corpus(probabilities.argmax(dim=-1).cpu(), corpora, vocabulary)
    found = {name: round(f1(torch.stack(list(by_type.values()))), 2) for name, by_type in counts.items()}
    return {**found, "mean": round(sum(found.values()) / len(found), 2)}


def counts_by_corpus(
    labels: Tensor, corpora: Mapping[str, Documents], vocabulary: Vocabulary
) -> dict[str, dict[str, Tensor]]:
    """Return ``span_counts`` of each corpus for the numbers of the labels of all words in order, ``(N,)``."""
    found, row = {}, 0
    for name, documents in corpora.items():
        words = sum(len(sentence.words) for document in documents for sentence in document)
        guessed = label_sequences(labels[row : row + words], documents, vocabulary)
        found[name] = span_counts(by_document(guessed, documents), documents, GOLD_TYPES)
        row += words
    return found


def by_document(labels: Sequence[Sequence[str]], documents: Documents) -> list[list[Sequence[str]]]:
    """Return the labels of sentences, one after the other, by document."""
    rest = iter(labels)
    return [[next(rest) for _ in document] for document in documents]
