"""The numbers behind the figures of the papers, measured on a trained tagger and a gold corpus."""

import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from concord.models.evaluation import breakdown
from concord.models.evaluation.breakdown import sentence_length
from concord.models.evaluation.metrics import Scores, gold_sequences, grouped_scores
from concord.models.evaluation.threshold_sweep import REFINE_ALL, sweep_threshold
from concord.models.outputs import Prediction
from concord.models.tagger import Tagger
from concord.models.two_stage.tagger import TwoStageTagger
from concord.pipeline.saved_tagger import load_tagger
from concord.workflows.training.corpora import Documents, without_labels
from concord.workflows.training.evaluate import WARM_UP_DOCUMENTS, label_sequences

SAMPLES = (1, 2, 4, 8, 16, 32)
SLOTS = (0, 1, 2, 5, 10, 20)
UNCERTAINTY_STEP = 0.1
TIMED_SECONDS = 0.5

Values = dict[str, Any]


class FigureData:
    """Measures a tagger on gold documents; what several figures need is computed once.

    ``samples`` and ``length`` measure speed, so they must come first: the others let an encoder keep its features.
    """

    def __init__(self, tagger: Tagger, documents: Documents, *, folder: Path, device: str, batch_words: int) -> None:
        """Take a tagger with the folder and device it was loaded from and to, and documents with gold labels."""
        self.tagger, self.scheme = tagger, tagger.vocabulary.scheme
        self.documents, self.plain, self.gold = documents, without_labels(documents), gold_sequences(documents)
        self.places = [(document, place) for document in self.plain for place in range(len(document))]
        """The document of each sentence, and the sentence's index there."""
        self._folder, self._device, self._batch_words = folder, device, batch_words

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
        """Measure score and share of refined words for each threshold."""
        table = self.tagger.tabulate(self.plain, batch_words=self._batch_words, threshold=REFINE_ALL)
        curve = sweep_threshold(table, self.documents, self.tagger.vocabulary)
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
        return {"score": self.scheme.measure, "draft_f1": draft, "own": self.tagger.threshold, "points": points}

    def memory(self) -> Values:
        """Measure the scores of all and of recurring names for each number of slots of the document memory."""
        # Another copy of the tagger, since the other figures show it as it is.
        tagger = load_tagger(self._folder, device=self._device)
        if not isinstance(tagger, TwoStageTagger):
            raise TypeError(f"expected a tagger of two stages, got {tagger.name}")
        own, points = tagger.memory_slots, []
        for slots in SLOTS:
            tagger.set_memory_slots(slots)
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

    def _predict(self, tagger: Tagger) -> list[Prediction]:
        """Return a prediction for each sentence; an encoder computes its features once for all that is not timed."""
        tagger.keep_features(self.plain)
        found = tagger.predict_documents(self.plain, batch_words=self._batch_words)
        return [prediction for document in found for prediction in document]

    def _predict_timed(self, documents: Documents, *, samples: int | None = None) -> tuple[list[Prediction], float]:
        """Return a prediction for each sentence, and words a second over `TIMED_SECONDS` or more."""
        words = sum(len(sentence.words) for document in documents for sentence in document)
        self.tagger.predict_documents(documents[:WARM_UP_DOCUMENTS], samples=samples)
        started, rounds, seconds = time.perf_counter(), 0, 0.0
        while seconds < TIMED_SECONDS:
            found = self.tagger.predict_documents(documents, batch_words=self._batch_words, samples=samples)
            rounds += 1
            seconds = time.perf_counter() - started
        return [prediction for document in found for prediction in document], words * rounds / seconds

    def _f1(self, labels: Sequence[Sequence[str]]) -> float:
        """Return the F1 in percent, which is the accuracy of word labels."""
        return sum(grouped_scores(self.gold, labels, lambda *_: "all", scheme=self.scheme).values(), Scores()).f1
