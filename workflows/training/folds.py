"""Trainings that leave a part of the documents out, to choose epoch and threshold where there is no dev corpus."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from concord.models.bundles.checkpoint import load_tagger
from concord.models.data.outputs import PredictOptions
from concord.models.data.sentence import Sentence
from concord.models.errors import ConfigError
from concord.models.taggers.base import Tagger
from concord.models.training.fit import SCORE_NAMES, EpochProgress, EpochResult, FitConfig, fit
from concord.models.training.fit_calibration import REFINE_ALL, best_threshold, mean_curve, sweep_threshold
from concord.workflows.console import info
from concord.workflows.corpora.corpora import Documents

FOLDS_NAME = "folds"
"""The folder of the trainings that are scored on the part they leave out, in that of a training."""

_Words = tuple[tuple[str, ...], ...]
"""The words of a document, by sentence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FoldChoice:
    """What cross-validation chose."""

    epoch: int
    """1-based, with the best mean score of the parts."""
    threshold: float | None
    """With the best mean score of the parts' best taggers, in nats; None for a tagger of one stage."""
    scores: Mapping[str, Any]
    """Means of the parts' scores in that epoch, in percent, by their names in EpochResult."""


def choose_by_folds(
    build: Callable[[Documents], Tagger],
    documents: Documents,
    config: FitConfig,
    folder: Path,
    *,
    folds: int,
    resume: bool = True,
    on_batch: Callable[[EpochProgress], None] | None = None,
) -> FoldChoice:
    """Train once without each part of the documents and score the training on that part; errors as in ``cut_folds``.

    Args:
        build: makes an untrained tagger for training documents.
        folder: takes one folder for each part; with ``resume`` what is in them is continued.
    """
    histories, curves = [], []
    for number, (train, held_out) in enumerate(cut_folds(documents, folds, seed=config.seed), 1):
        part = folder / f"{number}"
        result = fit(build(train), train, [held_out], config, part, resume=resume, on_batch=on_batch)
        best = result.best
        info(f"part {number} of {folds}: epoch {best.epoch}, {best.measure} {best.dev_score:.2f}")
        histories.append(result.epochs)
        tagger = load_tagger(result.bundle)
        if tagger.threshold is not None:
            table = tagger.tabulate(held_out, PredictOptions(threshold=REFINE_ALL))
            curves.append(sweep_threshold(table, held_out, tagger.vocabulary))
    epoch, scores = best_epoch(histories)
    threshold = best_threshold(mean_curve(curves)).threshold if curves else None
    return FoldChoice(epoch=epoch, threshold=threshold, scores=scores)


def cut_folds(documents: Documents, folds: int, *, seed: int) -> list[tuple[Documents, Documents]]:
    """Return for each part the documents of the others, to train on, and its own, to score on.

    A document that is read several times, which a weight asks for, is in one part with all its copies and scored once.
    Documents without gold labels, or with incomplete ones, are in no part: every training reads them.

    Raises:
        ConfigError: when there are fewer different documents with gold labels than parts.
    """
    whole = {_words(document): document for document in documents if _is_gold(document)}
    if len(whole) < folds:
        raise ConfigError(
            f"data.folds: expected {folds} or more different training documents with gold labels, got {len(whole)}"
        )
    keys = list(whole)
    random.Random(seed).shuffle(keys)
    part_of = {key: number % folds for number, key in enumerate(keys)}
    return [
        (
            [document for document in documents if not _is_gold(document) or part_of[_words(document)] != part],
            [document for key, document in whole.items() if part_of[key] == part],
        )
        for part in range(folds)
    ]


def best_epoch(histories: Sequence[Sequence[EpochResult]]) -> tuple[int, dict[str, float]]:
    """Return the epoch with the best mean score, from 1, and its mean scores; only epochs that every part has count."""
    epochs = list(zip(*histories, strict=False))
    means = [fmean(entry.dev_score for entry in entries) for entries in epochs]
    best = means.index(max(means))
    scores = {name: [getattr(entry, name) for entry in epochs[best]] for name in SCORE_NAMES}
    return best + 1, {name: fmean(values) for name, values in scores.items() if None not in values}


def _words(document: Sequence[Sentence]) -> _Words:
    return tuple(sentence.words for sentence in document)


def _is_gold(document: Sequence[Sentence]) -> bool:
    return any(sentence.words for sentence in document) and all(
        sentence.labels is not None and sentence.soft is None for sentence in document
    )
