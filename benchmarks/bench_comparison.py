"""Measure the test of `concord compare`: how often it reports a difference by chance, and which gains it finds.

Command: python benchmarks/bench_comparison.py --data ../shared/data/labelled/ewt_uner/dev.conllu.zst \
    --summary benchmarks/results/comparison_cpu_202611.json

Null: the outputs of two different taggers are swapped at random, document by document, so neither side is better; p
must be uniform. Power: A's output against a copy of it with decisions of B, sentence by sentence: half of those that
break something and as many of those that fix something as the wanted gain needs. Each trial draws these again, and for
`resampled` also the documents, with replacement.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from environment import environment
from scipy.stats import binom, binomtest, kstest

from concord.models.evaluation.metrics import group_counts_by_document
from concord.models.evaluation.significance import detectable_difference, f1, randomisation_test
from concord.pipeline.storage.files import file_sha256
from concord.workflows.evaluation import CompareJob, DocumentLabels, compare
from concord.workflows.registry import find_tagger

GAINS = (0.5, 1.0, 2.0, 4.0)
BROKEN_SHARE = 0.5
SIZES = {"dev": None, "dev resampled": 1, "three times dev resampled": 3}


@dataclass(frozen=True, kw_only=True, slots=True)
class Sentences:
    """Counts of every sentence by A's labels, and the changes by B's labels; each of shape ``(sentences, 3)``."""

    document: np.ndarray
    base: np.ndarray
    change: np.ndarray

    @property
    def net(self) -> np.ndarray:
        """More than 0 where B has fewer names wrong or missed, less than 0 where it has more."""
        return np.asarray(2 * self.change[:, 2] - self.change[:, 0] - self.change[:, 1])


def main() -> None:
    """Measure both and write one JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--summary", type=Path, required=True)
    parser.add_argument("--first", default="entities_en_small")
    parser.add_argument("--second", default="entities_multi")
    parser.add_argument(
        "--null-trials",
        type=int,
        nargs="+",
        default=[500, 5000],
        help="report on the first trials",
    )
    parser.add_argument("--power-trials", type=int, default=500)
    parser.add_argument("--power-rounds", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    job = CompareJob(
        first=find_tagger(arguments.first), second=find_tagger(arguments.second), data=[str(arguments.data)]
    )
    comparison = compare(job)
    gold = [[sentence.labels or () for sentence in document.sentences] for document in comparison.documents]
    sides = (comparison.first, comparison.second)
    report = {
        **environment("bench_comparison.py"),
        "data": {"path": str(arguments.data), "sha256": file_sha256(arguments.data), "documents": len(gold)},
        "first": {"name": job.first.name, "digest": job.first.digest, "f1": comparison.lines[0].first},
        "second": {"name": job.second.name, "digest": job.second.digest, "f1": comparison.lines[0].second},
        "null": null(gold, *sides, trials=arguments.null_trials, seed=arguments.seed),
        "power": power(
            sentence_counts(gold, *sides),
            trials=arguments.power_trials,
            rounds=arguments.power_rounds,
            seed=arguments.seed,
        ),
    }
    arguments.summary.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))


def null(
    gold: DocumentLabels, first: DocumentLabels, second: DocumentLabels, *, trials: Sequence[int], seed: int
) -> dict[str, object]:
    """Return the spread of p-values where neither side is better, for all names and for each type."""
    counts = [
        group_counts_by_document(gold, labels, lambda *place: ("all", place[2].label)) for labels in (first, second)
    ]
    chance = np.random.default_rng(seed)
    found: dict[str, object] = {"rounds": 10_000}
    for group in ("all", *sorted(counts[0].keys() - {"all"})):
        own = [side[group] for side in counts]
        p_values = []
        for trial in range(max(trials)):
            swapped = chance.integers(0, 2, (len(gold), 1))
            pair = np.where(swapped, own[1], own[0]), np.where(swapped, own[0], own[1])
            p_values.append(randomisation_test(*pair, seed=trial))
        found[group] = {
            "documents_that_differ": int((own[0] != own[1]).any(axis=1).sum()),
            "trials": [spread_of(p_values[:number]) for number in trials],
        }
    return found


def spread_of(p_values: Sequence[float]) -> dict[str, object]:
    """Test p-values for being uniform."""
    uniform = kstest(p_values, "uniform")
    return {
        "trials": len(p_values),
        "kolmogorov_smirnov": {"statistic": float(uniform.statistic), "p": float(uniform.pvalue)},
        "rejected_at_0.05": sum(p <= 0.05 for p in p_values),
        "binomial_interval_95": [int(end) for end in binom.interval(0.95, len(p_values), 0.05)],
        "rejected_at_0.01": sum(p <= 0.01 for p in p_values),
        "deciles": np.histogram(p_values, bins=10, range=(0, 1))[0].tolist(),
    }


def sentence_counts(gold: DocumentLabels, first: DocumentLabels, second: DocumentLabels) -> Sentences:
    """Count each sentence by itself, with the number of its document."""
    single = [[[sentence] for document in side for sentence in document] for side in (gold, first, second)]
    base, other = (group_counts_by_document(single[0], side, lambda *_: ("all",))["all"] for side in single[1:])
    lengths = [len(document) for document in gold]
    return Sentences(document=np.repeat(np.arange(len(gold)), lengths), base=base, change=other - base)


def power(sentences: Sentences, *, trials: int, rounds: int, seed: int) -> list[dict[str, object]]:
    """Return how often each gain is found."""
    return [
        gain_found(sentences, gain, size, times, trials=trials, rounds=rounds, seed=seed)
        for gain in GAINS
        for size, times in SIZES.items()
    ]


def gain_found(
    sentences: Sentences, gain: float, size: str, times: int | None, *, trials: int, rounds: int, seed: int
) -> dict[str, object]:
    """Draw trials of one gain on the documents as they are, or on `times` as many drawn with replacement."""
    fixed_share = share_of_fixes(sentences, gain)
    taken = np.select([sentences.net > 0, sentences.net < 0], [fixed_share, BROKEN_SHARE], BROKEN_SHARE)
    chance = np.random.default_rng(seed)
    documents = int(sentences.document.max()) + 1
    members = [np.flatnonzero(sentences.document == number) for number in range(documents)]
    p_values, gains, shown, fixes, breaks = [], [], [], [], []
    for trial in range(trials):
        drawn = np.arange(documents) if times is None else chance.integers(0, documents, times * documents)
        rows = np.concatenate([members[number] for number in drawn])
        unit = np.repeat(np.arange(len(drawn)), [len(members[number]) for number in drawn])
        change = sentences.change[rows] * (chance.random(len(rows)) < taken[rows])[:, None]
        first, delta = (by_unit(values, unit, len(drawn)) for values in (sentences.base[rows], change))
        second = first + delta
        p_values.append(randomisation_test(first, second, rounds=rounds, seed=trial))
        gains.append(float(f1(second.sum(axis=0)) - f1(first.sum(axis=0))))
        shown.append(detectable_difference(first, second) or 0.0)
        net = 2 * change[:, 2] - change[:, 0] - change[:, 1]
        fixes.append(int((net > 0).sum()))
        breaks.append(int((net < 0).sum()))
    found = sum(p <= 0.05 and difference > 0 for p, difference in zip(p_values, gains, strict=True))
    interval = binomtest(found, trials).proportion_ci()
    return {
        "gain": gain,
        "documents": size,
        "found": found / trials,
        "interval_95": [round(interval.low, 3), round(interval.high, 3)],
        "found_the_wrong_way": sum(p <= 0.05 and d < 0 for p, d in zip(p_values, gains, strict=True)) / trials,
        "mean_gain": round(float(np.mean(gains)), 3),
        "could_show": round(float(np.mean(shown)), 3),
        "sentences_fixed": round(float(np.mean(fixes)), 1),
        "sentences_broken": round(float(np.mean(breaks)), 1),
        "trials": trials,
        "rounds": rounds,
    }


def share_of_fixes(sentences: Sentences, gain: float) -> float:
    """Find the share of B's fixes that gives this gain on average."""
    fixes = sentences.change[sentences.net > 0].sum(axis=0)
    rest = BROKEN_SHARE * sentences.change[sentences.net <= 0].sum(axis=0)
    base = sentences.base.sum(axis=0)
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        if f1(base + rest + middle * fixes) - f1(base) < gain:
            low = middle
        else:
            high = middle
    return low


def by_unit(values: np.ndarray, unit: np.ndarray, units: int) -> np.ndarray:
    """Sum the counts of sentences by unit."""
    return np.stack([np.bincount(unit, weights=column, minlength=units) for column in values.T], axis=-1).astype(int)


if __name__ == "__main__":
    main()
