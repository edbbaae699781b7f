"""Time whole taggers at the papers' sizes, in turns, where the papers have tables of speed; and weight samples.

Command: python benchmarks/bench_papers.py

Weights and words are random, since only speed counts: the taggers are the profiles `paper` of conf/train, untrained,
those of one table with LSTMs of equal width. On a CPU there is one thread, and times are processor times, since the
machine may be shared; with --device cuda they are those of a clock, after the device has finished. All systems of a
table run in each turn, in an order that rotates, and a ratio is a system's speed over the baseline's of the same turn.
"""

import argparse
import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from environment import environment, quartiles
from torch import Tensor, nn
from torchcrf import CRF

from concord.models.bundles.checkpoint import pick_device
from concord.models.bundles.registry import build_tagger
from concord.models.data.batch import Batch
from concord.models.data.outputs import PredictOptions
from concord.models.data.sentence import Sentence
from concord.models.data.vocabulary import Vocabulary
from concord.models.labels import label_scheme
from concord.models.layers.variational_lstm import LstmSample, VariationalLstm, VariationalLstmConfig, run_samples
from concord.models.taggers.base import Tagger
from concord.models.taggers.one_stage import OneStageTagger
from concord.workflows.training.job import read_train_job

Works = Mapping[str, Callable[[], object]]
LENGTHS = (13, 24, 40)
CONF = Path("conf/train")
TRAINING_SENTENCES = 10
DOCUMENT_SENTENCES = 15
# System / baseline of a table -> the paper's figures, in order.
PAPERS = {
    "uanet": {
        "UANet, M = 8 / BiLSTM-CRF": "1.03 on CoNLL-2003, 1.19 on OntoNotes, 1.30 on the WSJ (Ye et al., Table V)",
        "UANet, M = 1 / UANet, M = 8": "1.11, 1.12, 1.14 (the same)",
    },
    "doc_uanet": {"Doc-UANet / BiLSTM-CRF": "1.15 on CoNLL-2003 (Ye et al., Table VI: 5.48 of 4.76)"},
    "structured_refinement": {
        "BiLSTM-CRF, own CRF / pytorch-crf": "2.50 training, 1.77 decoding (Wang et al., Table 10)",
        "Structured Refinement, own CRF / pytorch-crf": "2.06 training, 1.35 decoding (the same)",
    },
    "lan": {"BiLSTM-LAN / BiLSTM-CRF": "1.03 with 45 labels, 1.19 with over 400 (Cui and Zhang, Table 4)"},
}


class OtherCrf(nn.Module):
    """pytorch-crf in the place of our CRF."""

    def __init__(self, own: Any) -> None:
        """Take over the scores of our CRF."""
        super().__init__()
        self.chain = CRF(len(own.start), batch_first=True)
        with torch.no_grad():
            self.chain.transitions.copy_(own.transitions)
            self.chain.start_transitions.copy_(own.start)
            self.chain.end_transitions.copy_(own.end)

    def forward(self, emissions: Tensor, mask: Tensor) -> "OtherDistribution":
        """Build the distribution."""
        return OtherDistribution(self.chain, emissions, mask)


class OtherDistribution:
    """What taggers and structured attention ask of a distribution, from pytorch-crf's own functions."""

    def __init__(self, chain: Any, emissions: Tensor, mask: Tensor) -> None:
        self._chain, self._emissions, self._mask = chain, emissions, mask

    def log_prob(self, labels: Tensor) -> Tensor:
        """Return the log-likelihood of label sequences, shape ``(B,)``."""
        found: Tensor = self._chain(self._emissions, labels.clamp(min=0), mask=self._mask, reduction="none")
        return found

    def log_likelihood(self, batch: Batch) -> Tensor:
        """Return the log-likelihood of a batch's gold labels, shape ``(B,)``."""
        return self.log_prob(batch.gold)

    def mode(self) -> Tensor:
        """Return the best label sequences; all sentences have the same length."""
        return torch.tensor(self._chain.decode(self._emissions, mask=self._mask))

    def marginals(self) -> Tensor:
        """Return the marginals as a gradient: pytorch-crf has no function for them."""
        differentiated_again = torch.is_grad_enabled()
        with torch.enable_grad():
            emissions = self._emissions if differentiated_again else self._emissions.detach().requires_grad_()
            labels = torch.zeros(self._mask.shape, dtype=torch.int64, device=emissions.device)
            likelihood = self._chain(emissions, labels, mask=self._mask, reduction="sum")
            (gradient,) = torch.autograd.grad(likelihood, emissions, create_graph=differentiated_again)
        first = nn.functional.one_hot(labels, emissions.shape[2])
        return first - gradient


class Text:
    """Random words, few of them frequent and most of them rare, in sentences of one length."""

    def __init__(self, words: int = 20_000) -> None:
        """Make up a vocabulary."""
        self._chance = random.Random(1)
        letters = "etaoinshrdlucmfw"
        forms = {"".join(self._chance.choices(letters, k=self._chance.randint(2, 10))) for _ in range(words)}
        self.words = tuple(sorted(forms))
        self._shares = [1 / (rank + 3) for rank in range(len(self.words))]

    def sentences(self, number: int, length: int) -> list[Sentence]:
        """Draw sentences."""
        return [Sentence(words=tuple(self._chance.choices(self.words, self._shares, k=length))) for _ in range(number)]

    def build(self, name: str, labels: int, device: str, **changes: Any) -> Tagger:
        """Build a paper's tagger with random weights; labels are BIOES tags up to 100, else labels of single words."""
        scheme = "TOKENS" if labels in (45, 400) else "BIOES"
        values = dict(read_train_job(CONF / f"{name}.yaml", profile="paper").model) | {"scheme": scheme}
        for key, change in changes.items():
            values[key] = {**values[key], **change} if isinstance(change, dict) else change
        rules = label_scheme(scheme)
        types = [f"T{number:03}" for number in range(labels if scheme == "TOKENS" else (labels - 1) // 4)]
        vocabulary = Vocabulary(
            words=self.words,
            characters=tuple(sorted(set("".join(self.words)))),
            labels=tuple(types) if scheme == "TOKENS" else tuple(rules.label_set(types)),
            scheme=rules,
        )
        torch.manual_seed(0)
        tagger = build_tagger(name, values, vocabulary).eval()
        return tagger.move_to(device)


class Bench:
    """The settings of all measurements, and the way of measuring."""

    def __init__(self, *, words: int, turns: int, device: str) -> None:
        """Take the words of a call, the turns, and the device."""
        self.text, self.words, self.turns, self.device = Text(), words, turns, device

    def uanet(self, length: int) -> dict[str, Any]:
        """Label sentences of 17 labels by UANet, M = 1 and 8, of which 0, 15 % or all are refined."""
        crf = self.text.build("bilstm_crf", 17, self.device, lstm={"hidden": 200})
        uanet = self.text.build("uanet", 17, self.device)
        documents = [self.text.sentences(self.words // length, length)]
        works: dict[str, Callable[[], object]] = {"BiLSTM-CRF": lambda: crf.tabulate(documents)}
        works |= self._with_pytorch_crf(17, documents[0])
        for samples in (1, 8):
            for name, threshold in self._thresholds(uanet, documents, samples).items():
                works[f"UANet, M = {samples}, {name}"] = _tabulate(uanet, documents, samples, threshold)
        return self._measure(works, sentences=len(documents[0]))

    def doc_uanet(self, length: int) -> dict[str, Any]:
        """Label documents of 15 sentences by Doc-UANet with the 8 samples of UANet and the 32 of its paper."""
        crf = self.text.build("bilstm_crf", 17, self.device, lstm={"hidden": 200})
        tagger = self.text.build("doc_uanet", 17, self.device)
        sentences = self.text.sentences(self.words // length, length)
        documents = [
            sentences[start : start + DOCUMENT_SENTENCES] for start in range(0, len(sentences), DOCUMENT_SENTENCES)
        ]
        works: dict[str, Callable[[], object]] = {"BiLSTM-CRF": lambda: crf.tabulate(documents)}
        works |= self._with_pytorch_crf(17, sentences)
        for samples in (8, 32):
            threshold = self._thresholds(tagger, documents, samples)["15 % refined"]
            works[f"Doc-UANet, M = {samples}, 15 % refined"] = _tabulate(tagger, documents, samples, threshold)
        return self._measure(works, sentences=len(sentences))

    def structured_refinement(self, length: int) -> dict[str, Any]:
        """Train and decode with our CRF and with pytorch-crf, 73 labels; ratios are ours over theirs."""
        found = {}
        for name, title in (("bilstm_crf", "BiLSTM-CRF"), ("structured_refinement", "Structured Refinement")):
            changes: dict[str, Any] = {"lstm": {"hidden": 300}, "legal_mode": False}
            own, other = (self._crf_tagger(name, changes, theirs=theirs) for theirs in (False, True))
            drawn = self.text.sentences(TRAINING_SENTENCES, length)
            batch = [replace(sentence, labels=("O",) * length) for sentence in drawn]
            check_equal(own, other, batch)
            works = {
                f"{title}, pytorch-crf": _training_step(other, batch),
                f"{title}, own CRF": _training_step(own, batch),
            }
            found[f"{title}, training step"] = self._measure(works, sentences=len(batch))
            sentences = self.text.sentences(self.words // length, length)
            works = {
                f"{title}, pytorch-crf": _decoding(other, sentences),
                f"{title}, own CRF": _decoding(own, sentences),
            }
            found[f"{title}, decoding"] = self._measure(works, sentences=len(sentences))
        return found

    def lan(self, length: int) -> dict[str, Any]:
        """Label sentences by LAN, 3 layers of 400 units, and by a CRF over 1 layer of 400, with 45 and 400 labels."""
        found = {}
        for labels in (45, 400):
            crf = self.text.build("bilstm_crf", labels, self.device, lstm={"hidden": 200})
            lan = self.text.build("bilstm_lan", labels, self.device)
            sentences = self.text.sentences(self.words // length, length)
            works = {
                "BiLSTM-CRF": _decoding(crf, sentences),
                **self._with_pytorch_crf(labels, sentences),
                "BiLSTM-LAN": _decoding(lan, sentences),
            }
            found[f"{labels} labels"] = self._measure(works, sentences=len(sentences))
        return found

    def samples(self, length: int) -> dict[str, Any]:
        """Run the LSTM of UANet with M weight samples, one after the other and together, on few and many sentences."""
        torch.manual_seed(0)
        lstm, found = VariationalLstm(VariationalLstmConfig(hidden=200), 150).to(self.device), {}
        for count in (4, 8):
            samples = lstm.draw_samples(count, seed=1)
            for sentences in (1, 8, 16):
                inputs = torch.randn(sentences, length, 150, device=self.device)
                lengths = torch.full((sentences,), length)
                works = {
                    "one by one": _run(list(samples), inputs, lengths),
                    "together": _run(samples, inputs, lengths),
                }
                found[f"M = {count}, {sentences} sentences"] = self._measure(works, sentences=sentences)
        return found

    def _with_pytorch_crf(self, labels: int, sentences: Sequence[Sentence]) -> dict[str, Callable[[], object]]:
        """Label sentences, without probabilities, by a BiLSTM and pytorch-crf, as the papers' baselines do."""
        tagger: Any = self.text.build("bilstm_crf", labels, self.device, lstm={"hidden": 200})
        tagger.crf = OtherCrf(tagger.crf).to(self.device)
        return {"BiLSTM-CRF, pytorch-crf, labels alone": _decoding(tagger, sentences)}

    def _crf_tagger(self, name: str, changes: Mapping[str, Any], *, theirs: bool) -> OneStageTagger:
        tagger: Any = self.text.build(name, 73, self.device, **changes)
        if theirs and name == "bilstm_crf":
            tagger.crf = OtherCrf(tagger.crf).to(self.device)
        elif theirs:
            tagger.crfs[0] = OtherCrf(tagger.crfs[0]).to(self.device)
        assert isinstance(tagger, OneStageTagger)
        return tagger

    def _thresholds(self, tagger: Tagger, documents: list[list[Sentence]], samples: int) -> dict[str, float]:
        """Return the thresholds above which no sentence, 15 % of them and all have an uncertain word."""
        uncertainty = tagger.tabulate(documents, PredictOptions(samples=samples, threshold=99.0)).uncertainty
        length = len(documents[0][0].words)
        most = uncertainty.view(-1, length).amax(dim=1).float()
        return {"drafts": 99.0, "15 % refined": float(most.quantile(0.85)), "all refined": -1.0}

    def _measure(self, works: Works, *, sentences: int) -> dict[str, Any]:
        """Run all works in each turn; the first is the baseline."""
        names, speeds = list(works), {name: list[float]() for name in works}
        for turn in range(self.turns + 1):
            for name in (*names[turn % len(names) :], *names[: turn % len(names)]):
                seconds = self._time(works[name])
                if turn:  # the first turn warms up
                    speeds[name].append(sentences / seconds)
        baseline = speeds[names[0]]
        return {
            name: {
                "sentences_per_second": quartiles(values, digits=1),
                "ratio": quartiles([one / base for one, base in zip(values, baseline, strict=True)], digits=3),
            }
            for name, values in speeds.items()
        }

    def _time(self, work: Callable[[], object]) -> float:
        if self.device == "cpu":
            started = time.process_time()
            work()
            return time.process_time() - started
        torch.cuda.synchronize()
        started = time.perf_counter()
        work()
        torch.cuda.synchronize()
        return time.perf_counter() - started


def check_equal(own: OneStageTagger, other: OneStageTagger, sentences: Sequence[Sentence]) -> None:
    """Raise where two taggers that differ in their CRF alone have other losses or labels."""
    batch = own.encode(sentences)
    torch.testing.assert_close(own.loss(batch), other.loss(batch), atol=1e-3, rtol=1e-4)
    with torch.no_grad():
        ours, theirs = (tagger.distribution(batch).mode().cpu() for tagger in (own, other))
    if float((ours != theirs).float().mean()) > 0.01:
        raise ValueError("the two CRFs find different label sequences")


def _tabulate(tagger: Tagger, documents: list[list[Sentence]], samples: int, threshold: float) -> Callable[[], object]:
    return lambda: tagger.tabulate(documents, PredictOptions(samples=samples, threshold=threshold))


def _training_step(tagger: OneStageTagger, sentences: Sequence[Sentence]) -> Callable[[], object]:
    optimizer = torch.optim.SGD(tagger.parameters(), lr=1e-4)

    def step() -> None:
        tagger.train()
        optimizer.zero_grad()
        tagger.loss(tagger.encode(sentences)).backward()
        optimizer.step()

    return step


def _decoding(tagger: Any, sentences: Sequence[Sentence]) -> Callable[[], object]:
    def decode() -> object:
        tagger.eval()
        with torch.no_grad():
            labels: Tensor = tagger.distribution(tagger.encode(sentences)).mode()
        return labels.tolist()

    return decode


def _run(samples: Sequence[LstmSample], inputs: Tensor, lengths: Tensor) -> Callable[[], object]:
    def run() -> None:
        with torch.inference_mode():
            for _ in run_samples(samples, inputs, lengths):
                pass

    return run


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tables = ("uanet", "doc_uanet", "structured_refinement", "lan", "samples")
    parser.add_argument("--tables", nargs="+", choices=tables, default=tables)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="words of a sentence")
    parser.add_argument("--words", type=int, default=2048, help="of a call, which is one batch")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    device = pick_device(arguments.device)
    bench = Bench(words=arguments.words, turns=arguments.turns, device=device)
    report = {
        **environment("bench_papers.py"),
        "pytorch_crf": version("pytorch-crf"),
        "config": {
            "device": torch.cuda.get_device_name() if device == "cuda" else "cpu, one thread",
            "clock": "wall" if device == "cuda" else "processor",
            "turns": arguments.turns,
            "words_of_a_call": arguments.words,
            "sentences_of_a_training_step": TRAINING_SENTENCES,
        },
        "tables": {
            table: {
                "papers": PAPERS.get(table, {}),
                **{f"{length} words": getattr(bench, table)(length) for length in arguments.lengths},
            }
            for table in arguments.tables
        },
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
