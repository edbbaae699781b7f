"""Draw the figures of the papers for a trained tagger and a gold corpus, with the numbers in one JSON file.

A figure that does not apply to the tagger is left out, and the answer says why.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from concord.models.labels import OUTSIDE
from concord.models.outputs import AttentionMap, Prediction
from concord.models.tagger import Tagger
from concord.models.two_stage.tagger import TwoStageTagger
from concord.pipeline.corpora.corpus_format import GoldFormat
from concord.pipeline.errors import InputError
from concord.pipeline.saved_tagger import load_tagger, tagger_digest
from concord.workflows.console import Answer, info, table
from concord.workflows.training import plots
from concord.workflows.training.corpora import read_gold_for, short_names
from concord.workflows.training.figure_data import FigureData, Values

NUMBERS_NAME = "figures.json"
UNCERTAIN_SENTENCES = 2
LONGEST_DRAWN = 60
LONGEST_WORD = 24
MOST_COLUMNS = 80
# Attention over a document needs memory by its sentences times the square of the longest one.
MOST_CELLS = 4_000_000
# In the order that FigureData asks for.
FIGURES: dict[str, tuple[Callable[[FigureData], Values], Callable[..., None]]] = {
    "samples": (FigureData.samples, plots.draw_samples),
    "length": (FigureData.length, plots.draw_length),
    "threshold": (FigureData.threshold, plots.draw_threshold),
    "memory": (FigureData.memory, plots.draw_memory),
    "uncertainty": (FigureData.uncertainty, plots.draw_uncertainty),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class FiguresJob:
    """A tagger, gold corpora, and the figures to draw.

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
    """Draw every figure that applies to the tagger.

    Raises:
        ConfigError: when the corpora have no labels for this tagger.
        ModelError: when the tagger does not load.
        InputError: when a corpus cannot be read, has no sentence, or not one of a requested number.
    """
    tagger = load_tagger(job.folder, device=job.device)
    documents = read_gold_for(tagger, job.data, labels=job.labels, form=job.form)
    data = FigureData(tagger, documents, folder=job.folder, device=job.device, batch_words=job.batch_words)
    for number in job.sentences:
        if not 1 <= number <= len(data.places):
            raise InputError(f"--sentence: expected a number from 1 to {len(data.places):,}, got {number}")
    digest = tagger_digest(job.folder)
    title = f"{tagger.name} {digest[:12]} on {short_names(job.data)}"
    job.output.mkdir(parents=True, exist_ok=True)
    drawn: Values = {}
    left_out = _inapplicable(tagger)
    for name, (measure, draw) in FIGURES.items():
        if name not in left_out:
            info(f"{name} ...")
            path = job.output / f"{name}.{job.picture}"
            values = measure(data)
            draw(values, path, title=title)
            drawn[name] = {"file": path.name, **values}
    info("attention ...")
    attention, reasons = _draw_attention(job, data, title=title)
    drawn |= {"attention": attention} if attention else {}
    values = {
        "tagger": tagger.name,
        "digest": digest,
        "data": list(job.data),
        "device": job.device,
        "folder": str(job.output.absolute()),
        "figures": drawn,
        "left_out": left_out | reasons,
    }
    numbers = json.dumps(values, ensure_ascii=False, indent=1) + "\n"
    (job.output / NUMBERS_NAME).write_text(numbers, encoding="utf-8")
    return Answer(values=values, text=_describe(values))


def _inapplicable(tagger: Tagger) -> dict[str, str]:
    """Return the figures that do not apply to a tagger, with reasons."""
    reasons = {}
    if not hasattr(tagger.config, "samples"):
        reasons["samples"] = f"{tagger.name} draws no weight samples"
    if not isinstance(tagger, TwoStageTagger):
        reasons["threshold"] = f"{tagger.name} has one stage and no threshold"
    if not isinstance(tagger, TwoStageTagger) or tagger.memory_slots is None:
        reasons["memory"] = f"{tagger.name} has no document memory"
    return reasons


def _draw_attention(job: FiguresJob, data: FigureData, *, title: str) -> tuple[list[Values], dict[str, str]]:
    """Draw every attention map of the chosen sentences; return the numbers, and reasons for what is left out."""
    drawn: list[Values] = []
    left_out: dict[str, str] = {}
    for number in job.sentences or _most_uncertain(data):
        place = f"attention in sentence {number:,}"
        document, own = data.places[number - 1]
        sentence = document[own]
        if not data.tagger.learns_from_documents:
            document, own = [sentence], 0
        if len(sentence.words) > LONGEST_DRAWN:
            left_out[place] = f"it has {len(sentence.words):,} words, at most {LONGEST_DRAWN} can be drawn"
        elif len(document) * max(len(sentence.words) for sentence in document) ** 2 > MOST_CELLS:
            left_out[place] = "its document is too large for the memory that its attention needs"
        else:
            maps = data.tagger.attention_maps(document)[own]
            if not maps:
                return [], {"attention": f"{data.tagger.name} has no attention over words or labels"}
            drawn.append(_draw_maps(job, number, sentence.words, data.predicted[number - 1], maps, title=title))
    return drawn, left_out


def _draw_maps(
    job: FiguresJob,
    number: int,
    words: Sequence[str],
    prediction: Prediction,
    maps: Mapping[str, AttentionMap],
    *,
    title: str,
) -> Values:
    rows = [_row_name(*columns) for columns in zip(words, prediction.labels, prediction.draft_labels, strict=True)]
    numbers = {}
    for name, found in maps.items():
        weights, columns = _weights(found)
        path = job.output / f"attention-{number}-{'-'.join(name.split())}.{job.picture}"
        heads, shown = len(found.weights), [_shown(column) for column in columns]
        own_title = f"attention: {name}; sentence {number:,}\n{title}"
        plots.draw_attention(weights, path, rows=rows, columns=shown, heads=heads, title=own_title)
        numbers[name] = {"file": path.name, "heads": heads, "columns": columns, "weights": weights}
    return {
        "sentence": number,
        "words": list(words),
        "draft_labels": list(prediction.draft_labels),
        "labels": list(prediction.labels),
        "uncertainty": list(prediction.uncertainty),
        "maps": numbers,
    }


def _weights(found: AttentionMap) -> tuple[list[list[float]], list[str]]:
    """Average the heads; leave out columns without weight, and those of least weight beyond `MOST_COLUMNS`."""
    weights = found.weights.mean(dim=0)
    totals = weights.sum(dim=0)
    ordered = totals.argsort(descending=True, stable=True)[:MOST_COLUMNS].tolist()
    # Keep one column where there is no weight at all, as for a sentence of one word.
    chosen = sorted(ordered[: max(1, int((totals > 0).sum()))])
    rows = [[round(value, 4) for value in row] for row in weights[:, chosen].tolist()]
    return rows, [found.columns[column] for column in chosen]


def _row_name(word: str, label: str, draft: str) -> str:
    if label == draft:
        return _shown(word) if label == OUTSIDE else f"{_shown(word)}  {label}"
    return f"{_shown(word)}  {draft} > {label}"


def _shown(word: str) -> str:
    return word if len(word) <= LONGEST_WORD else f"{word[: LONGEST_WORD - 3]}..."


def _most_uncertain(data: FigureData) -> list[int]:
    """Return the 1-based numbers of the sentences with the most uncertain words, among those that can be drawn."""
    found = [n for n, predicted in enumerate(data.predicted, 1) if 1 < len(predicted.labels) <= LONGEST_DRAWN]
    return sorted(found, key=lambda number: -max(data.predicted[number - 1].uncertainty))[:UNCERTAIN_SENTENCES]


def _describe(values: Mapping[str, Any]) -> str:
    figures = dict(values["figures"])
    attention = figures.pop("attention", [])
    rows = [(name, found["file"]) for name, found in figures.items()]
    rows += [(f"attention, {name}", entry["file"]) for found in attention for name, entry in found["maps"].items()]
    left_out = [f"{name} left out: {reason}" for name, reason in values["left_out"].items()]
    return "\n".join([values["folder"], table([*rows, ("numbers", NUMBERS_NAME)]), *left_out])
