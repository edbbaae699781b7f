"""What the trainings share: batches of one length, the loop over them, and scores on the dev parts."""

import random
import time
from collections.abc import Callable, Mapping, Sequence

import click
import torch
from torch import Tensor, nn

from concord.models.data.sentence import Sentence
from concord.models.data.vocabulary import Vocabulary
from concord.models.evaluation.metrics import gold_sequences, span_scores
from concord.models.evaluation.threshold_sweep import label_sequences

Documents = Sequence[Sequence[Sentence]]
Batch = Sequence[Sentence]
_LONGEST_BATCH = 48


def equal_lengths(sentences: Sequence[Sentence], *, words: int, draw: random.Random | None = None) -> list[Batch]:
    """Return sentences in batches of one length, at most so many words each; shuffled if there is something to draw."""
    by_length: dict[int, list[Sentence]] = {}
    for sentence in sentences:
        by_length.setdefault(len(sentence.words), []).append(sentence)
    batches: list[Batch] = []
    for length, group in by_length.items():
        if draw is not None:
            draw.shuffle(group)
        size = max(1, min(_LONGEST_BATCH, words // length))
        batches += [group[start : start + size] for start in range(0, len(group), size)]
    if draw is not None:
        draw.shuffle(batches)
    return batches


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
    epochs: Sequence[Sequence[Batch]],
    loss_of: Callable[[Batch], Tensor],
    *,
    name: str,
    warmup: float = 0.1,
    clip_norm: float = 5.0,
    weight_decay: float = 0.0,
) -> None:
    """Train a network; the learning rates of its groups rise for a share of all steps, then fall to 0."""
    steps, step, started = sum(map(len, epochs)), 0, time.monotonic()
    optimizer = torch.optim.AdamW([dict(group) for group in groups], weight_decay=weight_decay)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda done: min((done + 1) / (warmup * steps), (steps - done) / ((1 - warmup) * steps))
    )
    for number, batches in enumerate(epochs, 1):
        network.train()
        total = 0.0
        for batch in batches:
            loss = loss_of(batch)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), clip_norm)
            optimizer.step()
            schedule.step()
            total += float(loss.detach())
            step += 1
        spent = time.monotonic() - started
        click.echo(
            f"{name}: epoch {number}/{len(epochs)}, {steps} steps, loss {total / len(batches):.3f}, {spent:.0f} s"
        )
    network.eval()


def score(probabilities: Tensor, corpora: Mapping[str, Documents], vocabulary: Vocabulary) -> dict[str, float]:
    """Return the strict F1 of each corpus, whose words have the rows of the probabilities in order, and their mean."""
    labels, found, row = probabilities.argmax(dim=-1), {}, 0
    for name, documents in corpora.items():
        words = sum(len(sentence.words) for document in documents for sentence in document)
        guessed = label_sequences(labels[row : row + words], documents, vocabulary)
        found[name] = round(span_scores(gold_sequences(documents), guessed)["all"].f1, 2)
        row += words
    return {**found, "mean": round(sum(found.values()) / len(found), 2)}
