"""Finding which spans must be shown besides the entities, so that few names of a document are missed.

Conformal risk control (Angelopoulos, Bates, Fisch, Lei and Schuster, 2022, "Conformal Risk Control"): the risk of a
document is the share of its gold entities that are neither predicted nor shown. It is at most 1, and falls as the
threshold falls. With the highest threshold at which the risks of n documents satisfy (sum + 1) / (n + 1) <= 1 - recall,
the expected risk of the next document is at most 1 - recall, whatever the tagger, if the n + 1 are exchangeable.
"""

import math
from collections.abc import Sequence

import numpy as np

from concord.models.confidence.calibration import Guarantee
from concord.models.errors import ConfigError

LEAST = 0.001
"""Spans of a lower score are never shown: there would be more of them than anybody reads."""


def find_guarantee(scores: Sequence[np.ndarray], recall: float) -> Guarantee:
    """Return the guarantee that shows the fewest spans.

    Args:
        scores: of each document the score of each gold entity: infinite if it is predicted, 0 below ``LEAST``.
        recall: above 0, below 1.

    Raises:
        ConfigError: when there are too few documents, or too many entities that would never be shown.
    """
    documents, allowed = len(scores), round(1 - recall, 9)
    needed = math.ceil(round(1 / allowed, 6)) - 1
    if documents < needed:
        raise ConfigError(
            f"--recall {recall:g}: expected {needed:,} documents or more, got {documents:,}: with fewer, not even a "
            "tagger that misses nothing there could promise it"
        )
    of_names = np.concatenate([[], *scores])
    order = np.argsort(of_names)
    weights = np.concatenate([[], *(np.full(len(names), 1 / len(names)) for names in scores if len(names))])
    # Rounded down, so that the last bit of a score hides nothing.
    thresholds = np.append(np.floor(of_names[(of_names >= LEAST) & (of_names <= 1)] * 1e6) / 1e6, [LEAST, 1.0])
    missed = np.concatenate([[0.0], np.cumsum(weights[order])])[np.searchsorted(of_names[order], thresholds)]
    risks = (missed + 1) / (documents + 1)
    enough = thresholds[risks <= allowed + 1e-9]
    if len(enough):
        return Guarantee(recall=recall, threshold=float(enough.max()), documents=documents)
    raise ConfigError(
        f"--recall {recall:g}: expected a tagger that gives the words of enough names there a probability of {LEAST:g} "
        f"or more; with all of these shown, {math.floor(1000 * (1 - risks.min())) / 1000:g} is the most to be promised"
    )


def mean_recall(scores: Sequence[np.ndarray], threshold: float) -> float:
    """Return the mean share of a document's gold entities that are shown; a document without any counts as 1."""
    return float(np.mean([np.mean(names >= threshold) if len(names) else 1.0 for names in scores]))
