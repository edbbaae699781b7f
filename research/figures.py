"""Measure and draw the figures of the papers for a trained tagger and a gold corpus; the numbers go to one JSON file.

A figure that does not apply to the tagger is left out, and the answer says why.
"""

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import click
import numpy as np
import torch

from concord.models.bundles.checkpoint import load_tagger
from concord.models.bundles.manifest import tagger_digest
from concord.models.data.outputs import AttentionMap, Prediction, PredictOptions, known_numbers
from concord.models.evaluation.metrics import Scores, gold_sequences, grouped_scores
from concord.models.labels import OUTSIDE
from concord.models.taggers.att_bilstm_cnn import AttBiLstmCnn
from concord.models.taggers.base import Tagger
from concord.models.taggers.dependency_aware import DependencyAware
from concord.models.taggers.token_table import TokenTable
from concord.models.taggers.two_stage import TwoStageTagger
from concord.models.training.fit_calibration import REFINE_ALL, labels_at, sweep_threshold
from concord.pipeline.corpora.corpus_format import GoldFormat
from concord.pipeline.errors import InputError
from concord.workflows.cli.options import FOLDER, POSITIVE, compute_options, gold_options, verb
from concord.workflows.console import Answer, info, table
from concord.workflows.corpora import Documents, read_gold_for, short_names, without_labels
from concord.workflows.evaluation import WARM_UP_DOCUMENTS
from concord.workflows.registry import find_tagger
from research import breakdown, plots
from research.attended import count_attended
from research.breakdown import label_sequences, sentence_length
from research.entities_multi.reach import set_slots, slots_of

NUMBERS_NAME = "figures.json"
ATTENTION = "attention"
UNCERTAIN_SENTENCES = 2
LONGEST_DRAWN = 60
LONGEST_WORD = 24
MOST_COLUMNS = 80
# Attention over a document needs memory by its sentences times the square of the longest one.
MOST_CELLS = 4_000_000
SAMPLES = (1, 2, 4, 8, 16, 32)
SLOTS = (0, 1, 2, 5, 10, 20)
UNCERTAINTY_STEP = 0.1
TIMED_SECONDS = 0.5

Values = dict[str, Any]
Part = Literal["hidden", "contexts"]
"""What the output layer of Att-BiLSTM-CNN reads."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FiguresJob:
    """A tagger, gold corpora, and the figures to draw.

    Attributes:
        folder: of the bundle.
        output: takes the pictures and the numbers.
        labels, form: as in EvaluateJob.
        sentences: 1-based numbers, in the order of the corpus, of sentences whose attention is drawn; the most
            uncertain ones if empty.
        only: names of figures, or "attention"; all that apply if empty.
    """

    folder: Path
    data: Sequence[str]
    output: Path
    labels: Mapping[str, str | None] = field(default_factory=dict)
    form: GoldFormat = field(default_factory=GoldFormat)
    sentences: Sequence[int] = ()
    only: Sequence[str] = ()
    picture: Literal["png", "svg"] = "png"
    device: str = "cpu"
    batch_words: int = 4096


def draw_figures(job: FiguresJob) -> Answer:
    """Draw every figure that applies to the tagger.

    Raises:
        ConfigError: when the corpora have no labels for this tagger.
        ModelError: when the tagger does not load.
        InputError: when a corpus cannot be read, has no sentence, or not one of a requested number.
    """
    tagger = load_tagger(job.folder, device=job.device)
    documents = read_gold_for(tagger, job.data, labels=job.labels, form=job.form)
    left_out_types = {name for name, new in job.labels.items() if new is None}
    data = FigureData(
        tagger,
        documents,
        folder=job.folder,
        device=job.device,
        batch_words=job.batch_words,
        left_out_types=left_out_types,
    )
    for number in job.sentences:
        if not 1 <= number <= len(data.places):
            raise InputError(f"--sentence: expected a number from 1 to {len(data.places):,}, got {number}")
    digest = tagger_digest(job.folder)
    title = f"{tagger.name} {digest[:12]} on {short_names(job.data)}"
    job.output.mkdir(parents=True, exist_ok=True)
    drawn: Values = {}
    left_out = _inapplicable(tagger)
    for name, (measure, draw) in FIGURES.items():
        if name not in left_out and (not job.only or name in job.only):
            info(f"{name} ...")
            path = job.output / f"{name}.{job.picture}"
            values = measure(data)
            draw(values, path, title=title)
            drawn[name] = {"file": path.name, **values}
    attention: list[Values] = []
    reasons: dict[str, str] = {}
    if not job.only or ATTENTION in job.only:
        info(f"{ATTENTION} ...")
        attention, reasons = _draw_attention(job, data, title=title)
    drawn |= {ATTENTION: attention} if attention else {}
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


class FigureData:
    """Measures a tagger on gold documents; what several figures need is computed once.

    ``samples`` and ``length`` measure speed, so they must come first: the others let an encoder keep its features.
    """

    def __init__(
        self,
        tagger: Tagger,
        documents: Documents,
        *,
        folder: Path,
        device: str,
        batch_words: int,
        left_out_types: Collection[str] = (),
    ) -> None:
        """Take a tagger with the folder and device it was loaded from and to, and documents with gold labels.

        ``threshold`` counts names of the ``left_out_types`` as no names.
        """
        self.tagger, self.scheme = tagger, tagger.vocabulary.scheme
        self.documents, self.plain, self.gold = documents, without_labels(documents), gold_sequences(documents)
        self.places = [(document, place) for document in self.plain for place in range(len(document))]
        """The document of each sentence, and the sentence's index there."""
        self._folder, self._device, self._batch_words = folder, device, batch_words
        self._left_out_types = left_out_types

    @cached_property
    def predicted(self) -> list[Prediction]:
        """The tagger's prediction for each sentence."""
        return self._predict(self.tagger)

    def samples(self) -> Values:
        """Measure score and speed for each number of weight samples."""
        points = []
        for samples in SAMPLES:
            predicted, speed = self._predict_timed(self.plain, samples=samples)
            final, draft = label_sequences(predicted)
            f1, draft_f1 = self._f1(final), self._f1(draft)
            points.append({"samples": samples, "f1": f1, "draft_f1": draft_f1, "words_per_second": speed})
        return {"score": self.scheme.measure, "device": self._device, "points": points}

    def length(self) -> Values:
        """Measure score and speed by length of sentences; the scores are of the whole corpus, the speed of each bin."""
        timed: dict[str, tuple[int, float]] = {}
        for name in breakdown.SENTENCE_LENGTHS:
            chosen = (
                [sentence for sentence in document if sentence.words and sentence_length(len(sentence.words)) == name]
                for document in self.plain
            )
            if documents := list(filter(None, chosen)):
                timed[name] = sum(map(len, documents)), self._predict_timed(documents)[1]
        # Last, since it lets an encoder keep its features.
        scores = breakdown.scores_by_sentence_length(self.gold, label_sequences(self.predicted)[0], scheme=self.scheme)
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
        return {"score": self.scheme.measure, "device": self._device, "bins": bins}

    def threshold(self) -> Values:
        """Measure score and share of refined words for each threshold, and count the words that become right or wrong.

        A word's label is right when its position in a name is, too.
        """
        options = PredictOptions(batch_words=self._batch_words, threshold=REFINE_ALL)
        numbers = {label: number for number, label in enumerate(self.tagger.vocabulary.labels)}
        scored = torch.tensor([numbers[self._scored(label)] for label in numbers])
        table = self.tagger.tabulate(self.plain, options)
        table = replace(table, draft=scored[table.draft], label=scored[table.label])
        curve = sweep_threshold(table, self.documents, self.tagger.vocabulary)
        draft = curve[max(curve)]
        gold = torch.tensor([numbers.get(name, -1) for labels in self.gold for name in self.scheme.from_gold(labels)])
        points = [
            {
                "threshold": threshold,
                "f1": score,
                "f1_change": score - draft,
                "refined_share": float((table.uncertainty > threshold).float().mean()),
                **count_changes(table, gold, threshold=threshold),
            }
            for threshold, score in curve.items()
        ]
        return {
            "score": self.scheme.measure,
            "words": len(gold),
            "draft_f1": draft,
            "wrong_drafts": int((table.draft != gold).sum()),
            "own": self.tagger.threshold,
            "points": points,
        }

    def _scored(self, label: str) -> str:
        return OUTSIDE if label.partition("-")[2] in self._left_out_types else label

    def memory(self) -> Values:
        """Measure the scores of all and of recurring names for each number of slots of the document memory."""
        # Another copy of the tagger, since the other figures show it as it is.
        tagger = load_tagger(self._folder, device=self._device)
        if not isinstance(tagger, TwoStageTagger):
            raise TypeError(f"expected a tagger of two stages, got {tagger.name}")
        own, points = slots_of(tagger), []
        for slots in SLOTS:
            set_slots(tagger, slots)
            labels, _ = label_sequences(self._predict(tagger))
            recurring = breakdown.recurring_scores(self.documents, labels, scheme=self.scheme)
            points.append({"slots": slots, "f1": self._f1(labels), "recurring": recurring.recall})
        return {"score": self.scheme.measure, "own": own, "points": points}

    def uncertainty(self) -> Values:
        """Count right and wrong drafts by their uncertainty in nats."""
        nats = [prediction.uncertainty for prediction in self.predicted]
        found = breakdown.uncertainty_by_outcome(self.gold, label_sequences(self.predicted)[1], nats)
        most = max((*found.right, *found.wrong))
        edges = UNCERTAINTY_STEP * np.arange(int(most / UNCERTAINTY_STEP) + 2)
        return {
            "edges": [round(float(edge), 2) for edge in edges],
            "right": np.histogram(found.right, edges)[0].tolist(),
            "wrong": np.histogram(found.wrong, edges)[0].tolist(),
            "mean_right": found.mean_right,
            "mean_wrong": found.mean_wrong,
            "ratio": found.ratio,
        }

    def parts(self) -> Values:
        """Measure the recall of each position in a mention, with either part of the output layer's input zeroed."""
        recalls = {"nothing": self._recall_by_position(self.predicted)}
        for part in get_args(Part):
            # Another copy of the tagger, as for the memory.
            tagger = load_tagger(self._folder, device=self._device)
            if not isinstance(tagger, AttBiLstmCnn):
                raise TypeError(f"expected {AttBiLstmCnn.name}, got {tagger.name}")
            zero(tagger, part)
            recalls[part] = self._recall_by_position(self._predict(tagger))
        return {"zeroed": recalls}

    def attended(self) -> Values:
        """Count what words of names attend to most by the relative attention, and how many hops away it is."""
        sentences = [
            (sentence, spans)
            for document in self.documents
            for sentence in document
            if (spans := self.scheme.scored_spans(sentence.labels or ()))
        ]
        return count_attended(
            (sentence, spans, self.tagger.attention_maps([sentence])[0]["relative"].weights[0].numpy())
            for sentence, spans in sentences
        )

    def _recall_by_position(self, predicted: Sequence[Prediction]) -> dict[str, float]:
        scores = breakdown.scores_by_position(self.gold, label_sequences(predicted)[0])
        return {position: found.recall for position, found in scores.items()}

    def _predict(self, tagger: Tagger) -> list[Prediction]:
        """Return a prediction for each sentence; an encoder computes its features once for all that is not timed."""
        tagger.keep_features(self.plain)
        found = tagger.predict_documents(self.plain, PredictOptions(batch_words=self._batch_words))
        return [prediction for document in found for prediction in document]

    def _predict_timed(self, documents: Documents, *, samples: int | None = None) -> tuple[list[Prediction], float]:
        """Return a prediction for each sentence, and words a second over `TIMED_SECONDS` or more."""
        words = sum(len(sentence.words) for document in documents for sentence in document)
        options = PredictOptions(batch_words=self._batch_words, samples=samples)
        self.tagger.predict_documents(documents[:WARM_UP_DOCUMENTS], options)
        started, rounds, seconds = time.perf_counter(), 0, 0.0
        while seconds < TIMED_SECONDS:
            found = self.tagger.predict_documents(documents, options)
            rounds += 1
            seconds = time.perf_counter() - started
        return [prediction for document in found for prediction in document], words * rounds / seconds

    def _f1(self, labels: Sequence[Sequence[str]]) -> float:
        """Return the F1 in percent, which is the accuracy of word labels."""
        return sum(grouped_scores(self.gold, labels, lambda *_: "all", scheme=self.scheme).values(), Scores()).f1


def count_changes(table: TokenTable, gold: torch.Tensor, *, threshold: float) -> dict[str, int]:
    """Count wrong drafts that refinement of the words above a threshold mends, and right ones that it breaks.

    Args:
        table: of a call in which stage two refined every word.
        gold: the number of each word's gold label, shape ``(N,)``, int64.
    """
    was_right, is_right = table.draft == gold, labels_at(table, threshold) == gold
    return {"mended": int((is_right & ~was_right).sum()), "broken": int((was_right & ~is_right).sum())}


# In the order that FigureData asks for.
FIGURES: dict[str, tuple[Callable[[FigureData], Values], Callable[..., None]]] = {
    "samples": (FigureData.samples, plots.draw_samples),
    "length": (FigureData.length, plots.draw_length),
    "threshold": (FigureData.threshold, plots.draw_threshold),
    "memory": (FigureData.memory, plots.draw_memory),
    "uncertainty": (FigureData.uncertainty, plots.draw_uncertainty),
    "parts": (FigureData.parts, plots.draw_parts),
    "attended": (FigureData.attended, plots.draw_attended),
}


def zero(tagger: AttBiLstmCnn, part: Part) -> None:
    """Make the output layer read zeros in place of the hidden states or the contexts (Li et al., 2020, table 5)."""
    width = tagger.lstm.output_dimension
    columns = slice(width) if part == "hidden" else slice(width, None)
    with torch.no_grad():
        tagger.output.weight[:, columns] = 0.0


def _inapplicable(tagger: Tagger) -> dict[str, str]:
    """Return the figures that do not apply to a tagger, with reasons."""
    reasons = {}
    if not hasattr(tagger.config, "samples"):
        reasons["samples"] = f"{tagger.name} draws no weight samples"
    if not isinstance(tagger, TwoStageTagger):
        reasons["threshold"] = f"{tagger.name} has one stage and no threshold"
    if not isinstance(tagger, TwoStageTagger) or slots_of(tagger) is None:
        reasons["memory"] = f"{tagger.name} has no document memory"
    if not isinstance(tagger, AttBiLstmCnn):
        reasons["parts"] = f"{tagger.name} does not label words from hidden states and contexts side by side"
    elif not tagger.vocabulary.scheme.has_entities:
        reasons["parts"] = "positions are those of words in entities, and the tagger labels single words"
    is_relative = isinstance(tagger, DependencyAware) and tagger.config.relative_attention
    if not is_relative or not tagger.vocabulary.scheme.has_entities:
        reasons["attended"] = f"{tagger.name} does not find names by relative attention in trees"
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
            drawn.append(_draw_maps(job, data, number, maps, title=title))
    return drawn, left_out


def _draw_maps(
    job: FiguresJob, data: FigureData, number: int, maps: Mapping[str, AttentionMap], *, title: str
) -> Values:
    document, place = data.places[number - 1]
    words, prediction = document[place].words, data.predicted[number - 1]
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
    return sorted(found, key=lambda number: -max(known_numbers(data.predicted[number - 1].uncertainty)))[
        :UNCERTAIN_SENTENCES
    ]


def _describe(values: Mapping[str, Any]) -> str:
    figures = dict(values["figures"])
    attention = figures.pop("attention", [])
    rows = [(name, found["file"]) for name, found in figures.items()]
    rows += [(f"attention, {name}", entry["file"]) for found in attention for name, entry in found["maps"].items()]
    left_out = [f"{name} left out: {reason}" for name, reason in values["left_out"].items()]
    return "\n".join([values["folder"], table([*rows, ("numbers", NUMBERS_NAME)]), *left_out])


@verb(example="python -m research.figures entities_multi --data examples/train/dev.conllu --output out/figures")
@click.argument("model")
@gold_options
@click.option("--output", "-o", required=True, type=FOLDER, help="Folder for the pictures and figures.json.")
@click.option(
    "--sentence",
    "sentences",
    multiple=True,
    type=POSITIVE,
    help="Number of a sentence whose attention is drawn.  [default: the two most uncertain]",
)
@click.option(
    "--figure",
    "only",
    multiple=True,
    type=click.Choice([*FIGURES, ATTENTION]),
    help="Draw only this figure; may be repeated.",
)
@click.option("--picture", type=click.Choice(["png", "svg"]), default="png", show_default=True, help="Format.")
@compute_options
def main(model: str, **options: Any) -> Answer:
    """Draw the figures of the papers for a tagger.

    MODEL is a folder, a bundled tagger, or models:/NAME@ALIAS.

    F1 against threshold, weight samples and memory; F1 and speed against sentence length; uncertainty of correct and
    wrong drafts; recall by position in a mention, with either input of Att-BiLSTM-CNN's output layer zeroed; attention,
    and for the dependency-aware tagger what words of names attend to most, how many hops away. Figures that do not
    apply to the tagger are skipped and named.
    """
    return draw_figures(FiguresJob(folder=find_tagger(model).folder, **options))


if __name__ == "__main__":
    main()
