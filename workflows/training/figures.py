"""What the papers draw, drawn from a trained tagger and a gold corpus, with the numbers as one JSON file beside it.

A figure that makes no sense for the tagger is left out, and the answer says why.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from concord.models.checkpoint import tagger_digest
from concord.models.data.sentence import Sentence
from concord.models.evaluation.breakdown import (
    SENTENCE_LENGTHS,
    recurring_scores,
    scores_by_sentence_length,
    sentence_length,
    uncertainty_by_outcome,
)
from concord.models.evaluation.metrics import Scores, gold_sequences, grouped_scores
from concord.models.evaluation.threshold_sweep import REFINE_ALL, sweep_threshold
from concord.models.labels import OUTSIDE
from concord.models.outputs import AttentionMap, Prediction
from concord.models.schemes import LabelScheme
from concord.models.tagger import Tagger
from concord.models.two_stage.tagger import TwoStageTagger
from concord.pipeline.corpora.corpus_format import GoldFormat
from concord.pipeline.errors import InputError
from concord.workflows.console import Answer, info, table
from concord.workflows.training import plots
from concord.workflows.training.corpora import Documents, read_gold_for, without_labels
from concord.workflows.training.evaluate import WARM_UP_DOCUMENTS, load

NUMBERS_NAME = "figures.json"
SAMPLES = (1, 2, 4, 8, 16, 32)
SLOTS = (0, 1, 2, 5, 10, 20)
UNCERTAINTY_STEP = 0.1
UNCERTAIN_SENTENCES = 2
LONGEST_DRAWN = 60
LONGEST_WORD = 24
MOST_COLUMNS = 80
# Attention over a document takes memory by its sentences and the square of the longest one.
MOST_CELLS = 4_000_000
TIMED_SECONDS = 0.5

Values = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class FiguresJob:
    """What to draw from what.

    Attributes:
        folder: of the bundle.
        output: takes the pictures and the numbers.
        labels, form: as in EvaluateJob.
        sentences: 1-based numbers, in the order of the corpus, of sentences whose attention is drawn; the most
            uncertain ones if empty.
    """

    folder: Path
    data: Sequence[str]
    output: Path
    labels: Mapping[str, str | None] = field(default_factory=dict)
    form: GoldFormat = field(default_factory=GoldFormat)
    sentences: Sequence[int] = ()
    picture: Literal["png", "svg"] = "png"
    device: str = "cpu"
    batch_words: int = 4096


def run(job: FiguresJob) -> Answer:
    """Draw every figure that makes sense for the tagger.

    Raises:
        ConfigError: when the corpora have no labels for this tagger.
        ModelError: when the tagger does not load.
        InputError: when a corpus cannot be read, holds no word, or has no sentence of a number asked for.
    """
    tagger = load(job.folder, device=job.device)
    material = _Material(job, tagger, read_gold_for(tagger, job.data, labels=job.labels, form=job.form))
    last = len(material.gold)
    strange = [number for number in job.sentences if not 1 <= number <= last]
    if strange:
        raise InputError(f"--sentence: expected a number from 1 to {last:,}, got {strange[0]}")
    digest = tagger_digest(job.folder)
    title = f"{tagger.name} {digest[:12]} on {_short(job.data)}"
    job.output.mkdir(parents=True, exist_ok=True)
    drawn: Values = {}
    left_out: dict[str, str] = {}
    for figure in FIGURES:
        reason = figure.reason_against(tagger)
        if reason is not None:
            left_out[figure.name] = reason
            continue
        info(f"{figure.name} ...")
        path = job.output / f"{figure.name}.{job.picture}"
        values = figure.measure(material)
        figure.draw(values, path, title=title)
        drawn[figure.name] = {"file": path.name, **values}
    info("attention ...")
    attention, against = _draw_attention(material, title=title)
    drawn |= {"attention": attention} if attention else {}
    left_out |= against
    values = {
        "tagger": tagger.name,
        "digest": digest,
        "data": list(job.data),
        "device": job.device,
        "folder": str(job.output.absolute()),
        "figures": drawn,
        "left_out": left_out,
    }
    numbers = json.dumps(values, ensure_ascii=False, indent=1) + "\n"
    (job.output / NUMBERS_NAME).write_text(numbers, encoding="utf-8")
    return Answer(values=values, text=_describe(values))


class _Material:
    """A tagger with gold documents, and what several figures ask of them, computed once."""

    def __init__(self, job: FiguresJob, tagger: Tagger, documents: Documents) -> None:
        self.job = job
        self.tagger = tagger
        self.documents = documents
        self.plain = without_labels(documents)
        self.gold = gold_sequences(documents)

    @cached_property
    def predicted(self) -> list[Prediction]:
        """One a sentence, as the tagger is."""
        return self.predict(self.tagger)

    def predict(self, tagger: Tagger) -> list[Prediction]:
        """Give one a sentence; an encoder computes its features once for all figures that are not timed."""
        tagger.keep_features(self.plain)
        found = tagger.predict_documents(self.plain, batch_words=self.job.batch_words)
        return [prediction for document in found for prediction in document]

    @property
    def scheme(self) -> LabelScheme:
        return self.tagger.vocabulary.scheme

    def f1(self, labels: Sequence[Sequence[str]]) -> float:
        return sum(grouped_scores(self.gold, labels, lambda *_: "all", scheme=self.scheme).values(), Scores()).f1

    def timed(self, documents: Documents, *, samples: int | None = None) -> tuple[list[Prediction], float]:
        """Give one a sentence, and words a second; the clock runs until it can be believed."""
        words = sum(len(sentence.words) for document in documents for sentence in document)
        self.tagger.predict_documents(documents[:WARM_UP_DOCUMENTS], samples=samples)
        started, rounds, seconds = time.perf_counter(), 0, 0.0
        while seconds < TIMED_SECONDS:
            found = self.tagger.predict_documents(documents, batch_words=self.job.batch_words, samples=samples)
            rounds += 1
            seconds = time.perf_counter() - started
        return [prediction for document in found for prediction in document], words * rounds / seconds


def _measure_samples(material: _Material) -> Values:
    points = []
    for samples in SAMPLES:
        predicted, speed = material.timed(material.plain, samples=samples)
        points.append(
            {
                "samples": samples,
                "f1": material.f1([prediction.labels for prediction in predicted]),
                "draft_f1": material.f1([prediction.draft_labels for prediction in predicted]),
                "words_per_second": speed,
            }
        )
    return {"score": material.scheme.measure, "device": material.job.device, "points": points}


def _measure_length(material: _Material) -> Values:
    """Score the bins within the whole corpus; time each bin's sentences by themselves."""
    timed: dict[str, tuple[int, float]] = {}
    for name in SENTENCE_LENGTHS:
        documents = [
            [sentence for sentence in document if sentence.words and sentence_length(len(sentence.words)) == name]
            for document in material.plain
        ]
        documents = [document for document in documents if document]
        if documents:
            timed[name] = sum(map(len, documents)), material.timed(documents)[1]
    # Last, since this keeps an encoder's features, after which nothing can be timed.
    labels = [prediction.labels for prediction in material.predicted]
    scores = scores_by_sentence_length(material.gold, labels, scheme=material.scheme)
    bins = [
        {
            "words": name,
            "sentences": sentences,
            "gold": scores[name].gold,
            "f1": scores[name].f1 if scores[name].gold else None,
            "words_per_second": speed,
        }
        for name, (sentences, speed) in timed.items()
    ]
    return {"score": material.scheme.measure, "device": material.job.device, "bins": bins}


def _measure_threshold(material: _Material) -> Values:
    tagger = material.tagger
    table = tagger.tabulate(material.plain, batch_words=material.job.batch_words, threshold=REFINE_ALL)
    curve = sweep_threshold(table, material.documents, tagger.vocabulary)
    draft = curve[-1].score
    points = [
        {
            "threshold": entry.threshold,
            "f1": entry.score,
            "f1_change": entry.score - draft,
            "refined_share": float((table.uncertainty > entry.threshold).float().mean()),
        }
        for entry in curve
    ]
    return {"score": material.scheme.measure, "draft_f1": draft, "own": tagger.threshold, "points": points}


def _measure_memory(material: _Material) -> Values:
    # A tagger of its own: the other figures are of the tagger as it is.
    tagger = load(material.job.folder, device=material.job.device)
    if not isinstance(tagger, TwoStageTagger):
        raise TypeError(f"expected a tagger of two stages, got {tagger.name}")
    points = []
    for slots in SLOTS:
        tagger.set_memory_slots(slots)
        labels = [prediction.labels for prediction in material.predict(tagger)]
        recurring = recurring_scores(material.documents, labels, scheme=material.scheme)
        points.append({"slots": slots, "f1": material.f1(labels), "recurring": recurring.recall})
    own = material.tagger.memory_slots if isinstance(material.tagger, TwoStageTagger) else None
    return {"score": material.scheme.measure, "own": own, "points": points}


def _measure_uncertainty(material: _Material) -> Values:
    predicted = material.predicted
    parted = uncertainty_by_outcome(
        material.gold,
        [prediction.draft_labels for prediction in predicted],
        [prediction.uncertainty for prediction in predicted],
    )
    most = max((*parted.right, *parted.wrong))
    edges = UNCERTAINTY_STEP * np.arange(int(most / UNCERTAINTY_STEP) + 2)
    return {
        "edges": [round(float(edge), 2) for edge in edges],
        "right": np.histogram(parted.right, edges)[0].tolist(),
        "wrong": np.histogram(parted.wrong, edges)[0].tolist(),
        "mean_right": parted.mean_right,
        "mean_wrong": parted.mean_wrong,
        "ratio": parted.ratio,
    }


def _always(_: Tagger) -> str | None:
    return None


def _without_stages(tagger: Tagger) -> str | None:
    return None if isinstance(tagger, TwoStageTagger) else f"{tagger.name} has one stage and no threshold"


def _without_samples(tagger: Tagger) -> str | None:
    return None if hasattr(tagger.config, "samples") else f"{tagger.name} draws no weight samples"


def _without_memory(tagger: Tagger) -> str | None:
    remembers = isinstance(tagger, TwoStageTagger) and tagger.memory_slots is not None
    return None if remembers else f"{tagger.name} has no document memory"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Figure:
    name: str
    reason_against: Callable[[Tagger], str | None]
    measure: Callable[[_Material], Values]
    draw: Callable[..., None]


# Those that are timed come first: the others have an encoder keep its features.
FIGURES = (
    _Figure(name="samples", reason_against=_without_samples, measure=_measure_samples, draw=plots.draw_samples),
    _Figure(name="length", reason_against=_always, measure=_measure_length, draw=plots.draw_length),
    _Figure(name="threshold", reason_against=_without_stages, measure=_measure_threshold, draw=plots.draw_threshold),
    _Figure(name="memory", reason_against=_without_memory, measure=_measure_memory, draw=plots.draw_memory),
    _Figure(name="uncertainty", reason_against=_always, measure=_measure_uncertainty, draw=plots.draw_uncertainty),
)


def _draw_attention(material: _Material, *, title: str) -> tuple[list[Values], dict[str, str]]:
    """Draw every attention map of the chosen sentences; give the numbers, and reasons for what is left out."""
    drawn: list[Values] = []
    left_out: dict[str, str] = {}
    for number in material.job.sentences or _most_uncertain(material):
        place = f"attention in sentence {number:,}"
        document, own = _find(material.plain, number)
        sentence = document[own]
        if not material.tagger.learns_from_documents:
            document, own = [sentence], 0
        if len(sentence.words) > LONGEST_DRAWN:
            left_out[place] = f"it has {len(sentence.words):,} words, of which {LONGEST_DRAWN} at most can be drawn"
        elif _cells(document) > MOST_CELLS:
            left_out[place] = "its document is too large to be held at once"
        else:
            maps = material.tagger.attention_maps(document)[own]
            if not maps:
                return [], {"attention": f"{material.tagger.name} has no attention that looks at words or labels"}
            drawn.append(_draw_maps(material, number, maps, title=title))
    return drawn, left_out


def _draw_maps(material: _Material, number: int, maps: Mapping[str, AttentionMap], *, title: str) -> Values:
    prediction = material.predicted[number - 1]
    document, place = _find(material.plain, number)
    words = document[place].words
    rows = [_row_name(*columns) for columns in zip(words, prediction.labels, prediction.draft_labels, strict=True)]
    numbers = {}
    for name, found in maps.items():
        weights, columns = _looked_at(found)
        path = material.job.output / f"attention-{number}-{'-'.join(name.split())}.{material.job.picture}"
        heads = len(found.weights)
        name_and_place = f"attention: {name}; sentence {number:,}"
        plots.draw_attention(
            weights,
            path,
            rows=rows,
            columns=[_shown(column) for column in columns],
            heads=heads,
            title=f"{name_and_place}\n{title}",
        )
        numbers[name] = {"file": path.name, "heads": heads, "columns": columns, "weights": weights}
    return {
        "sentence": number,
        "words": list(words),
        "draft_labels": list(prediction.draft_labels),
        "labels": list(prediction.labels),
        "uncertainty": list(prediction.uncertainty),
        "maps": numbers,
    }


def _looked_at(found: AttentionMap) -> tuple[list[list[float]], list[str]]:
    """Average the heads; leave out columns that no word looks at, and of many those that get the least weight."""
    weights = found.weights.mean(dim=0)
    totals = weights.sum(dim=0)
    ordered = totals.argsort(descending=True, stable=True)[:MOST_COLUMNS].tolist()
    # One column stays where no word looks at anything: a lone word has no other to look at.
    chosen = sorted(ordered[: max(1, int((totals > 0).sum()))])
    kept = [[round(value, 4) for value in row] for row in weights[:, chosen].tolist()]
    return kept, [found.columns[column] for column in chosen]


def _row_name(word: str, label: str, draft: str) -> str:
    if label == draft:
        return _shown(word) if label == OUTSIDE else f"{_shown(word)}  {label}"
    return f"{_shown(word)}  {draft} > {label}"


def _shown(word: str) -> str:
    return word if len(word) <= LONGEST_WORD else f"{word[: LONGEST_WORD - 3]}..."


def _most_uncertain(material: _Material) -> list[int]:
    """Give the 1-based numbers of the sentences with the most uncertain word, of those that can be drawn."""
    sizes = {
        number: max(prediction.uncertainty)
        for number, prediction in enumerate(material.predicted, start=1)
        if 1 < len(prediction.labels) <= LONGEST_DRAWN
    }
    return sorted(sizes, key=lambda number: (-sizes[number], number))[:UNCERTAIN_SENTENCES]


def _find(documents: Documents, number: int) -> tuple[Sequence[Sentence], int]:
    """Give the document of a sentence, by its 1-based number in the corpus, and its 0-based place there."""
    rest = number - 1
    for document in documents:
        if rest < len(document):
            return document, rest
        rest -= len(document)
    raise IndexError(f"sentence {number}: the corpus has no such sentence")


def _cells(document: Sequence[Sentence]) -> int:
    longest: int = max(len(sentence.words) for sentence in document)
    return len(document) * longest**2


def _short(paths: Sequence[str]) -> str:
    """Name corpora by folder and file."""
    return ", ".join("/".join(Path(path).parts[-2:]) for path in paths)


def _describe(values: Mapping[str, Any]) -> str:
    figures = dict(values["figures"])
    attention = figures.pop("attention", [])
    rows = [(name, found["file"]) for name, found in figures.items()]
    rows += [(f"attention, {name}", entry["file"]) for found in attention for name, entry in found["maps"].items()]
    left_out = [f"{name} left out: {reason}" for name, reason in values["left_out"].items()]
    return "\n".join([values["folder"], table([*rows, ("numbers", NUMBERS_NAME)]), *left_out])
