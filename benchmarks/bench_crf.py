"""Time our CRF against pytorch-crf, in turns: the likelihood with its gradient, and the best label sequence.

The work "messages" times the scan against the tree reduction, which is never used on a CPU; its ratio is of the tree
over the scan. Batches have sentences of 10, 40 or 100 words, of 10 to 100, or one of 100 and otherwise of 5.

Command: python benchmarks/bench_crf.py

One thread, random scores. Times are processor times, since the machine may be shared. A ratio is the time of
pytorch-crf over ours in the same turn: above 1 ours is faster. The order alternates, and the median over turns is what
counts; the ratio of the minimum times, which other processes disturb least, is reported too.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version

import torch
from environment import environment, spread
from torchcrf import CRF

from concord.models.decoders.crf import Crf
from concord.models.decoders.crf_messages import Factors, Packing, scan_messages, tree_messages
from concord.models.labels import BIO

WORKS = ("gradient", "mode", "messages")
WARM_UPS = 2


class Pair:
    """Our CRF and pytorch-crf with the same scores, on the same batch."""

    def __init__(self, labels: int, words: torch.Tensor) -> None:
        """Draw scores and a batch with these numbers of words, shape ``(B,)``."""
        torch.manual_seed(0)
        self.ours = Crf(BIO.label_set([f"T{number}" for number in range(labels)])[:labels], BIO, legal_mode=False)
        self.theirs = CRF(labels, batch_first=True)
        with torch.no_grad():
            self.ours.transitions.copy_(self.theirs.transitions.normal_())
            self.ours.start.copy_(self.theirs.start_transitions)
            self.ours.end.copy_(self.theirs.end_transitions)
        self.mask = torch.arange(int(words.max())) < words[torch.randperm(len(words))][:, None]
        self.gold = torch.randint(labels, self.mask.shape)
        self.emissions = torch.randn(*self.mask.shape, labels).mul_(3).requires_grad_()

    def our_gradient(self) -> object:
        """Compute the mean log-likelihood and its gradient."""
        self.ours(self.emissions, self.mask).log_prob(self.gold).mean().backward()
        return self._take_gradient(self.ours.transitions)

    def their_gradient(self) -> object:
        """Compute the same with pytorch-crf."""
        self.theirs(self.emissions, self.gold, mask=self.mask, reduction="mean").backward()
        return self._take_gradient(self.theirs.transitions)

    def our_mode(self) -> object:
        """Find the best label sequences."""
        with torch.inference_mode():
            mode: list[list[int]] = self.ours(self.emissions, self.mask).mode().tolist()
        return mode

    def their_mode(self) -> object:
        """Find the same with pytorch-crf."""
        with torch.inference_mode():
            return self.theirs.decode(self.emissions, mask=self.mask)

    def factors(self) -> Factors:
        """Return the factors that scan and tree multiply."""
        ours = self.ours
        with torch.no_grad():
            found = Factors.of(self.emissions, ours.transitions, ours.start, ours.end, Packing.of(self.mask))
        if found is None:
            raise ValueError("the scores lie too far apart")
        return found

    def check(self) -> None:
        """Raise where the two differ."""
        for ours, theirs in zip(self.our_gradient(), self.their_gradient(), strict=True):  # type: ignore[call-overload]
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-3)
        lengths = self.mask.sum(dim=1).tolist()
        ours = [path[:length] for path, length in zip(self.our_mode(), lengths, strict=True)]  # type: ignore[call-overload]
        if ours != self.their_mode():
            raise ValueError("the two CRFs find different label sequences")

    def _take_gradient(self, transitions: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        found = self.emissions.grad, transitions.grad
        self.emissions.grad = transitions.grad = None
        return found


def lengths(sentences: int) -> dict[str, torch.Tensor]:
    """Return the words of each sentence of the batches, by name."""
    even = {str(words): torch.full((sentences,), words) for words in (10, 40, 100)}
    uneven = torch.full((sentences,), 5)
    uneven[0] = 100
    return {**even, "10-100": torch.linspace(10, 100, sentences).round().long(), "one 100, else 5": uneven}


def measure(works: dict[str, Callable[[], object]], *, seconds: float) -> dict[str, object]:
    """Time two functions in turns for `seconds`, at least three turns; ratios are second over first."""
    times: dict[str, list[float]] = {name: [] for name in works}
    first, second = works
    ends = time.process_time() + seconds
    while time.process_time() < ends or len(times[first]) < WARM_UPS + 3:
        for name in (first, second) if len(times[first]) % 2 == 0 else (second, first):
            started = time.process_time()
            works[name]()
            times[name].append(time.process_time() - started)
    counted = {name: taken[WARM_UPS:] for name, taken in times.items()}
    ratios = [slow / fast for fast, slow in zip(counted[first], counted[second], strict=True)]
    quartiles = statistics.quantiles(ratios, n=4)
    return {
        **{f"{name}_median_ms": round(1e3 * statistics.median(taken), 3) for name, taken in counted.items()},
        "turns": len(ratios),
        "ratio_of_least": round(min(counted[second]) / min(counted[first]), 2),
        "ratio_median": round(statistics.median(ratios), 2),
        "ratio_quartiles": [round(quartiles[0], 2), round(quartiles[2], 2)],
        "ratio": spread(ratios, digits=2),
    }


def main() -> None:
    """Measure and print."""
    arguments_of = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments_of.add_argument("--labels", type=int, nargs="+", default=[9, 17, 50, 73, 400])
    arguments_of.add_argument("--sentences", type=int, default=32, help="of a batch")
    arguments_of.add_argument("--works", nargs="+", choices=WORKS, default=WORKS)
    arguments_of.add_argument("--seconds", type=float, default=4.0, help="of the processor, for each size and work")
    arguments = arguments_of.parse_args()
    torch.set_num_threads(1)
    found = []
    for labels in arguments.labels:
        for name, words in lengths(arguments.sentences).items():
            pair = Pair(labels, words)
            pair.check()
            works: dict[str, dict[str, Callable[[], object]]] = {
                "gradient": {"ours": pair.our_gradient, "pytorch_crf": pair.their_gradient},
                "mode": {"ours": pair.our_mode, "pytorch_crf": pair.their_mode},
            }
            if labels < 100:
                works["messages"] = {
                    "scan": partial(scan_messages, pair.factors()),
                    "tree": partial(tree_messages, pair.factors()),
                }
            figures = {
                work: measure(two, seconds=arguments.seconds) for work, two in works.items() if work in arguments.works
            }
            found.append({"labels": labels, "words": name, **figures})
    report = {
        **environment("bench_crf.py"),
        "pytorch_crf": version("pytorch-crf"),
        "config": {"sentences": arguments.sentences, "threads": 1, "dtype": "float32"},
        "sizes": found,
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
