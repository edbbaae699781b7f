"""The conditions of the gate that a candidate must meet, each with what was found and how much is missing."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from concord.models.data.sentence import Sentence
from concord.models.tagger import Tagger
from concord.workflows.comparison.paired_tests import Line
from concord.workflows.console import table
from concord.workflows.jobs import GateConfig
from concord.workflows.training.corpora import Documents, without_labels
from concord.workflows.training.provenance import Overlap

TIMED_WORDS = 5000


@dataclass(frozen=True, kw_only=True, slots=True)
class Condition:
    """One condition of a gate.

    Attributes:
        found, wanted: as text.
        short_by: how much is missing, in the unit of what was found; 0 if it holds, None if it cannot be measured.
    """

    name: str
    holds: bool
    found: str
    wanted: str
    short_by: float | None = None


def describe_conditions(conditions: Sequence[Condition]) -> str:
    """Format conditions as a table; those that fail show how much is missing."""
    rows = [
        (
            condition.name,
            condition.found,
            condition.wanted,
            "yes" if condition.holds else "NO",
            "" if condition.holds or condition.short_by is None else f"{condition.short_by:.4g}",
        )
        for condition in conditions
    ]
    return table(rows, header=("condition", "found", "wanted", "holds", "short by"), right={4})


def digest_condition(digest: str | None, *, fault: str | None = None) -> Condition:
    """Check the files of the bundle.

    Args:
        digest: of the version in the registry, in hex.
        fault: how the files differ from what was registered; None if they do not.
    """
    found = fault or f"{(digest or '')[:12]}, as registered"
    return Condition(name="digest", holds=fault is None, found=found, wanted="the files that were registered")


def provenance_condition(gate: GateConfig, overlap: Overlap | None) -> Condition:
    """Check that the candidate has seen no document of the promotion set; an overlap of None is unknown."""
    wanted = "no document of the promotion set seen before"
    if overlap is None:
        allowed = gate.unknown_provenance == "allow"
        found = "the bundle does not record its training data" + (", which the gate allows" if allowed else "")
        return Condition(name="provenance", holds=allowed, found=found, wanted=wanted)
    seen = max(overlap.seen.values(), default=0)
    return Condition(name="provenance", holds=not seen, found=str(overlap), wanted=wanted, short_by=float(seen))


def comparison_conditions(gate: GateConfig, lines: Sequence[Line]) -> list[Condition]:
    """Check a comparison of the champion (A) with the candidate (B), whose first line is the overall one."""
    overall = lines[0]
    gain, least = overall.difference.mean, gate.minimum_gain
    conditions = [
        Condition(
            name="p",
            holds=overall.p < gate.alpha,
            found=f"{overall.p:.4f}",
            wanted=f"below {gate.alpha:g}",
            short_by=max(0.0, overall.p - gate.alpha),
        ),
        Condition(
            name="gain",
            holds=gain > 0 and gain >= least,
            found=f"{gain:+.2f} ({overall.difference.low:+.2f} to {overall.difference.high:+.2f})",
            wanted=f"{least:g} or more" if least > 0 else "above 0",
            short_by=max(0.0, max(least, 0.0) - gain),
        ),
    ]
    for line in lines:
        if line.kind == "slice":
            low = line.difference.low
            conditions.append(
                Condition(
                    name=f"slice {line.name}",
                    holds=low >= -gate.slice_tolerance,
                    found=f"{line.difference.mean:+.2f} ({low:+.2f} to {line.difference.high:+.2f})",
                    wanted=f"from {-gate.slice_tolerance:g} up",
                    short_by=max(0.0, -gate.slice_tolerance - low),
                )
            )
    return conditions


def throughput_condition(gate: GateConfig, ratio: float) -> Condition:
    """Check the candidate's speed as a fraction of the champion's."""
    return _at_least("throughput", ratio, gate.throughput_ratio, found=f"{ratio:.2f} of the champion's")


def first_condition(gate: GateConfig, score: float) -> Condition:
    """Check the score in percent of a first champion, which cannot be compared with another."""
    return _at_least("min_f1", score, gate.min_f1, found=f"{score:.2f}")


def speed_ratio(
    champion: Tagger, candidate: Tagger, documents: Sequence[Sequence[Sentence]], *, turns: int
) -> dict[str, Any]:
    """Time two taggers alternately on the first documents, of ``TIMED_WORDS`` words in total.

    Returns:
        ``ratio``, the median over the turns of the candidate's speed as a fraction of the champion's, and the
        ``seconds`` of both in each turn.
    """
    plain = _first_words(without_labels(documents), TIMED_WORDS)

    def seconds(tagger: Tagger) -> float:
        started = time.perf_counter()
        tagger.predict_documents(plain)
        return time.perf_counter() - started

    seconds(champion), seconds(candidate)  # warm up caches and lazily created tensors
    pairs: list[tuple[float, float]] = []
    for turn in range(turns):
        # Alternate the order: the second one runs on a warmer, or throttled, machine.
        if turn % 2:
            second, first = seconds(candidate), seconds(champion)
        else:
            first, second = seconds(champion), seconds(candidate)
        pairs.append((first, second))
    ratio = statistics.median(first / second for first, second in pairs)
    return {"ratio": ratio, "seconds": [{"champion": first, "candidate": second} for first, second in pairs]}


def _at_least(name: str, value: float, least: float, *, found: str) -> Condition:
    short_by = max(0.0, least - value)
    return Condition(name=name, holds=value >= least, found=found, wanted=f"{least:g} or more", short_by=short_by)


def _first_words(documents: Documents, words: int) -> Documents:
    """Return the first documents that have so many words together, or all."""
    counts = accumulate(sum(len(sentence.words) for sentence in document) for document in documents)
    return documents[: 1 + sum(count < words for count in counts)]
