"""How far stage two reaches, chosen on dev parts so that final labels are below the drafts on none of them."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from concord.models.data.outputs import PredictOptions
from concord.models.taggers.two_stage import TwoStageTagger
from concord.models.training.fit_calibration import REFINE_ALL, labels_at, threshold_grid
from research.entities_en.learning import Documents, counts_by_corpus, f1

SHARES, SLOTS = (0.0, 0.2, 0.4, 0.6), (10, 0)
_THRESHOLDS = (0.3, 0.5, 0.7, 0.9, 1.1, 1.3)


class Reach(NamedTuple):
    """Share of the drafts, slots of the memory, threshold in nats, and the strict F1 of dev parts in percent."""

    share: float
    slots: int
    threshold: float
    final: Mapping[str, float]
    drafts: Mapping[str, float]


def slots_of(tagger: TwoStageTagger) -> int | None:
    """Return the most other occurrences that a word reads; None for a tagger without a document memory."""
    memory = tagger.config.document_memory
    return None if memory is None else memory.slots


def set_slots(tagger: TwoStageTagger, slots: int) -> None:
    """Set how many other occurrences a word reads at most; with 0 every word is read as if it occurred once."""
    memory = tagger.config.document_memory
    if memory is None:
        raise ValueError(f"expected a tagger with a document memory, got {tagger.name}")
    changed = memory.model_copy(update={"slots": slots})
    tagger.config = tagger.config.model_copy(update={"memory": changed})


def set_draft_share(tagger: TwoStageTagger, share: float) -> None:
    """Set the share of the draft's probabilities in those of a refined word."""
    tagger.config = tagger.config.model_copy(update={"draft_share": share})


def measure(tagger: TwoStageTagger, dev: Mapping[str, Documents]) -> list[Reach]:
    """Return what a tagger scores with each threshold, from one pass in which stage two refines every word."""
    options = PredictOptions(threshold=REFINE_ALL)
    tables = {name: tagger.tabulate(documents, options) for name, documents in dev.items()}

    def scores(labels: Mapping[str, Tensor]) -> dict[str, float]:
        return {name: _f1s(tagger, dev[name], own)["all"] for name, own in labels.items()}

    drafts = scores({name: table.draft for name, table in tables.items()})
    *_, none = threshold_grid(len(tagger.vocabulary.labels))
    found = []
    for threshold in (*_THRESHOLDS, none):
        final = scores({name: labels_at(table, threshold) for name, table in tables.items()})
        found.append(Reach(tagger.config.draft_share, slots_of(tagger) or 0, threshold, final, drafts))
    return found


def choose(measured: Sequence[Reach], *, tolerance: float = 0.0) -> Reach:
    """Return the best on the mean of those that are nowhere below the drafts by more than ``tolerance``.

    Of equals it is that which refines the fewest words.
    """
    safe = [one for one in measured if all(one.final[name] >= own - tolerance for name, own in one.drafts.items())]
    return max(safe, key=lambda one: (sum(one.final.values()), one.threshold, one.slots))


def figures(tagger: TwoStageTagger, dev: Mapping[str, Documents]) -> dict[str, dict[str, float]]:
    """Return the F1 of final labels, of all types and of each, and of drafts, by part and on the mean."""
    found = {}
    for name, documents in dev.items():
        table = tagger.tabulate(documents)
        found[name] = {**_f1s(tagger, documents, table.label), "drafts": _f1s(tagger, documents, table.draft)["all"]}
    kinds = {
        kind: [own[kind] for own in found.values() if kind in own] for kind in ("all", "drafts", "LOC", "ORG", "PER")
    }
    return {**found, "mean": {kind: round(sum(own) / len(own), 2) for kind, own in kinds.items()}}


def _f1s(tagger: TwoStageTagger, documents: Documents, labels: Tensor) -> dict[str, float]:
    """Return the F1 of all types, and of each that there is."""
    counts = counts_by_corpus(labels, {"": documents}, tagger.vocabulary)[""]
    every = {"all": torch.stack(list(counts.values())), **counts}
    return {kind: round(f1(own), 2) for kind, own in every.items() if own[..., 0].any()}
