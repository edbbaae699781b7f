"""Train the bundled entities_en_small on English corpora, and on texts that teachers labelled, step by step.

\b
    python -m research.entities_en.guideline CORPORA --without btc:signs --output MENDED
    python -m research.entities_en.prepare WORK --corpora MENDED --text TEXTS.jsonl (and others)
    python -m research.entities_multi (its steps up to silver)
    python -m research.entities_en small WORK START (a small tagger of the same labels, such as the bundled one before)

WORK is the folder of ``research.entities_multi``, whose teachers label the texts.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from torch import Tensor

from concord.models.bundles.checkpoint import load_tagger, save_tagger
from concord.models.data.sentence import Sentence, SoftLabels
from concord.models.data.vocabulary import Vocabulary
from concord.models.labels import decode_spans, encode_spans
from concord.models.training.fit import FitConfig, fit
from concord.workflows.corpora import PROVENANCE_NAME
from research.entities_en.learning import repeated
from research.entities_en.prepared import Prepared, flat
from research.entities_en.silver import mend

_TIMES = {"ewt_uner": 1.5, "wikigold": 2.0, "btc": 1.5, "litbank_prop": 1.5}
"""How often an epoch reads a corpus."""
_KEPT_PROBABILITY = 0.01

_SMALL = {
    "epochs": 1,
    "seed": 1,
    "batch_sentences": 128,
    "clip_norm": 5.0,
    "optimizers": {"tagger": {"kind": "adam", "learning_rate": 5e-4, "schedule": "linear", "warmup": 0.02}},
}

WORK = click.argument("work", type=click.Path(path_type=Path, file_okay=False, exists=True))
DEVICE = click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)


@click.group(help=__doc__)
def main() -> None:
    """Read the command line."""
    torch.set_num_threads(1)


def large_ones(probabilities: Tensor, vocabulary: Vocabulary) -> dict[str, Any]:
    """Return the large probabilities, ``(N, L)``, as ``soft_targets`` and ``with_soft_labels`` read them; in place."""
    probabilities[probabilities < _KEPT_PROBABILITY] = 0
    probabilities /= probabilities.sum(dim=1, keepdim=True)
    words, labels = (probabilities > 0).nonzero(as_tuple=True)
    return {
        "words": words.int(),
        "labels": labels.to(torch.uint8),
        "probabilities": probabilities[words, labels].half(),
        "names": list(vocabulary.labels),
    }


def mend_labels(probabilities: Tensor, sentences: Sequence[Sentence], vocabulary: Vocabulary) -> None:
    """Make the most probable labels certain where the rules of silver names change them; in place, ``(N, L)``."""
    numbers = {label: number for number, label in enumerate(vocabulary.labels)}
    row, best = 0, probabilities.argmax(dim=1).tolist()
    for sentence in sentences:
        own = [vocabulary.labels[number] for number in best[row : row + len(sentence.words)]]
        spans, _ = mend(sentence.words, decode_spans(own, "BIOES"))
        for place, label in enumerate(encode_spans(spans, len(own), "BIOES")):
            if label != own[place]:
                probabilities[row + place] = 0
                probabilities[row + place, numbers[label]] = 1
        row += len(own)


@main.command("small")
@WORK
@click.argument("start", type=click.Path(path_type=Path, file_okay=False, exists=True))
@DEVICE
def train_small(work: Path, start: Path, device: str) -> None:
    """Train a small tagger further on gold documents and labelled texts; write WORK/small/bundle."""
    prepared, tagger = Prepared.read(work), load_tagger(start).move_to(device)
    texts = with_soft_labels(flat(prepared.texts), torch.load(work / "silver.pt", weights_only=True)["texts"])
    documents = [[sentence] for sentence in [*repeated(prepared.train, _TIMES), *texts]]
    result = fit(tagger, documents, list(prepared.dev.values()), FitConfig.from_mapping(_SMALL), work / "small")
    _finish(work / "small" / "bundle", work)
    click.echo(json.dumps({"small": result.best.dev_f1}))


def _finish(bundle: Path, work: Path) -> None:
    """Store a bundle's weights in 16 bits, with its provenance."""
    save_tagger(load_tagger(bundle), bundle, half=True)
    shutil.copy(work / PROVENANCE_NAME, bundle)


def with_soft_labels(sentences: Sequence[Sentence], labels: Mapping[str, Any]) -> list[Sentence]:
    """Return sentences with the labels of their words, which are numbered through all of them."""
    names, words = tuple(labels["names"]), labels["words"].numpy()
    numbers, probabilities = labels["labels"].numpy().astype(np.int16), labels["probabilities"].float().numpy()
    starts = np.cumsum([0, *(len(sentence.words) for sentence in sentences)])
    cuts = np.searchsorted(words, starts)
    return [
        replace(
            sentence,
            soft=SoftLabels(
                names=names,
                words=(words[a:b] - start).astype(np.int32),
                labels=numbers[a:b],
                probabilities=probabilities[a:b],
            ),
        )
        for sentence, start, a, b in zip(sentences, starts, cuts, cuts[1:], strict=False)
    ]


def soft_targets(
    sentences: Sequence[Sentence], vocabulary: Vocabulary, labels: Mapping[str, Any], device: str
) -> Tensor:
    """Return the probabilities of the labels of sentences, whose words are numbered through, shape ``(N, L)``, fp16."""
    size = sum(len(sentence.words) for sentence in sentences)
    rows = torch.zeros(size, len(vocabulary.labels), dtype=torch.half, device=device)
    rows[labels["words"].long().to(device), labels["labels"].long().to(device)] = labels["probabilities"].to(device)
    return rows


if __name__ == "__main__":
    main()
