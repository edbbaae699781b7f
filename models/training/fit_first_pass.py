"""Fitting a first pass to the tagger of two stages that it belongs to, and scoring its gate."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from concord.models.data.options import PredictOptions
from concord.models.data.sentence import Sentence
from concord.models.evaluation.metrics import gold_sequences, span_scores
from concord.models.taggers.two_stage.first_pass import FirstPass
from concord.models.taggers.two_stage.tagger import TwoStageTagger

GATES = (0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7)
"""Nats."""
_BATCH_WORDS = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class GateScore:
    """What a tagger reaches with a gate."""

    gate: float
    """Nats; 0 for both stages on every sentence."""
    f1: float
    """Strict, in percent."""
    encoded: float
    """Share of the words that both stages read, 0..1."""


def fit_map(tagger: TwoStageTagger, first: FirstPass, documents: Sequence[Sequence[Sentence]]) -> float:
    """Fit the map from the states of a first pass to those of stage one; return the share of variance explained."""
    windows = tagger.windows(documents, overlap=0)
    inputs, outputs = [], []
    with torch.inference_mode():
        for _, batch in tagger.batches(windows, batch_words=_BATCH_WORDS):
            encoded = first.tagger.encode(batch.sentences)
            inputs.append(first(encoded).states[encoded.mask].cpu())
            outputs.append(tagger.draft_states(batch)[batch.mask].cpu())
    return first.fit_map(torch.cat(inputs), torch.cat(outputs))


def score_gates(
    tagger: TwoStageTagger,
    documents: Sequence[Sequence[Sentence]],
    *,
    gates: Sequence[float] = (0.0, *GATES),
    rename: Callable[[Sequence[str]], Sequence[str]] = tuple,
) -> list[GateScore]:
    """Score gates on gold documents by renamed labels; the encoder's features are kept in memory meanwhile."""
    tagger.keep_features(documents)
    gold = gold_sequences(documents)
    scores = []
    for gate in gates:
        table = tagger.tabulate(documents, PredictOptions(gate=gate))
        labels = [rename(found.labels) for document in table.predictions(tagger.vocabulary) for found in document]
        encoded = 1 - float(table.first.float().mean()) if len(table.first) else 0.0
        scores.append(GateScore(gate=gate, f1=span_scores(gold, labels)["all"].f1, encoded=encoded))
    return scores


def choose_gate(curves: Sequence[Sequence[GateScore]], *, tolerance: float) -> float:
    """Return the largest gate that costs at most ``tolerance`` points of F1 on each corpus; 0 if none does.

    Each curve is that of a corpus, at the same gates, the first of them 0.
    """
    allowed = [
        scores[0].gate
        for scores in zip(*curves, strict=True)
        if all(score.f1 >= curve[0].f1 - tolerance for score, curve in zip(scores, curves, strict=True))
    ]
    return max(allowed, default=0.0)
