"""What a shard's report counts. Equal plans give equal counts: no times in here, and only whole numbers."""

import math
from collections import Counter
from collections.abc import Sequence

from models.outputs import Prediction
from pipeline.records import AnnotatedDocument, DeadLetter

UNCERTAINTY_BINS = 40
UNCERTAINTY_BIN_WIDTH = 0.05
"""Nats. Bin ``uncertainty.07`` counts words from 0.35 to 0.40; the last takes everything above."""
NEAR_TIE = 1e-5
"""Words this near to another label or to the threshold may differ on other batch sizes or processors."""


def count_outcomes(
    documents: Sequence[AnnotatedDocument], letters: Sequence[DeadLetter], *, threshold: float | None
) -> dict[str, float]:
    """Count what became of a shard's records.

    Args:
        threshold: nats above which stage two decides; None for a tagger of one stage.

    Returns:
        Name to number: documents, sentences, tokens, entities and ``entities.<type>``; tokens that are uncertain
        (above the threshold), refined (stage two gave the label), changed (and gave another than stage one), or near
        ties; sentences with a refined token; ``uncertainty.<bin>``; ``dead_letters.<stage>.<error>``; for a bf16 run
        ``bf16.compared_tokens`` and ``bf16.changed_tokens``, whose labels differ from those of fp32. All but the bins,
        types, reasons and bf16 counts are there even when 0.
    """
    counts: Counter[str] = Counter(dict.fromkeys(_ALWAYS, 0))
    counts["documents"] = len(documents)
    for document in documents:
        counts["sentences"] += len(document.predictions)
        for prediction in document.predictions:
            _count_prediction(counts, prediction, threshold)
        for prediction, reference in zip(document.predictions, document.in_fp32 or (), strict=False):
            counts["bf16.compared_tokens"] += len(prediction.labels)
            counts["bf16.changed_tokens"] += sum(
                label != other for label, other in zip(prediction.labels, reference.labels, strict=True)
            )
    counts.update(f"dead_letters.{letter.stage}.{letter.error}" for letter in letters)
    return dict(sorted(counts.items()))


_ALWAYS = (
    "documents",
    "sentences",
    "tokens",
    "entities",
    "uncertain_tokens",
    "refined_tokens",
    "changed_tokens",
    "refined_sentences",
    "near_ties",
)


def _count_prediction(counts: Counter[str], prediction: Prediction, threshold: float | None) -> None:
    counts["tokens"] += len(prediction.labels)
    counts["entities"] += len(prediction.spans)
    counts.update(f"entities.{span.label}" for span in prediction.spans)
    counts.update(f"uncertainty.{_bin(value):02d}" for value in prediction.uncertainty)
    counts["refined_tokens"] += sum(prediction.refined)
    counts["refined_sentences"] += any(prediction.refined)
    counts["changed_tokens"] += sum(
        label != draft for label, draft in zip(prediction.labels, prediction.draft_labels, strict=True)
    )
    limit = math.inf if threshold is None else threshold
    counts["uncertain_tokens"] += sum(value > limit for value in prediction.uncertainty)
    counts["near_ties"] += sum(
        margin < NEAR_TIE or abs(value - limit) < NEAR_TIE
        for margin, value in zip(prediction.margins, prediction.uncertainty, strict=True)
    )


def _bin(uncertainty: float) -> int:
    return min(UNCERTAINTY_BINS - 1, int(uncertainty / UNCERTAINTY_BIN_WIDTH))
