"""Label English texts by teachers, and train the bundled entities_en_small on them, step by step.

\b
    python -m research.entities_en.guideline CORPORA --without btc:signs --output MENDED
    python -m research.entities_en.prepare WORK --corpora MENDED --text TEXTS.jsonl (and others)
    python -m research.entities_en features WORK
    python -m research.entities_en features WORK --blocks
    python -m research.entities_en teacher WORK 2
    python -m research.entities_en tagger WORK FOLDER (a tagger of the same labels, such as the bundled one before)
    python -m research.entities_en labels WORK
    python -m research.entities_en small WORK START (a small tagger of the same labels, such as the bundled one before)

WORK is a folder of what was made; ``research.entities_multi`` goes on from it. All steps but the first two read nothing
but WORK and the bundled encoder, on a CPU or a GPU.
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
from torch import Tensor, nn

from concord.models.bundles.checkpoint import load_tagger, save_tagger
from concord.models.bundles.manifest import tagger_digest
from concord.models.data.sentence import Sentence, SoftLabels
from concord.models.data.vocabulary import Vocabulary
from concord.models.labels import BIOES, decode_spans, encode_spans
from concord.models.training.fit import FitConfig, fit
from concord.workflows.corpora import PROVENANCE_NAME, read_provenance, write_provenance
from research.entities_en.features import Features, blocks, encoder_states
from research.entities_en.learning import repeated, score
from research.entities_en.prepared import Prepared, flat
from research.entities_en.silver import GOLD_TYPES, TYPES, mend
from research.entities_en.teachers import FrozenTeacher, predict, train

_TIMES = {"ewt_uner": 1.5, "wikigold": 2.0, "btc": 1.5, "litbank_prop": 1.5}
"""How often an epoch reads a corpus."""
_KEPT_PROBABILITY = 0.01
_TEACHER_EPOCHS = 4

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


@main.command("features")
@WORK
@click.option("--part", "parts", type=click.Choice(["train", "dev", "texts"]), multiple=True, help="Else all.")
@click.option("--blocks", "in_blocks", is_flag=True, help="The encoder reads blocks of a document's sentences at once.")
@DEVICE
def compute_features(work: Path, parts: Sequence[str], in_blocks: bool, device: str) -> None:
    """Compute the encoder's states of all words."""
    prepared = Prepared.read(work)
    for part in parts or prepared.seen:
        if in_blocks:
            words = [block for document in prepared.documents(part) for block in blocks(document)]
        else:
            words = [sentence.words for sentence in prepared.sentences(part)]
        torch.save(encoder_states(words, device), work / f"{'blocks' if in_blocks else 'encoder'}-{part}.pt")


@main.command("teacher")
@WORK
@click.argument("seed", type=int)
@DEVICE
def train_teacher(work: Path, seed: int, device: str) -> None:
    """Train a teacher over the states of blocks, and have it label the dev parts and the texts."""
    prepared = Prepared.read(work)
    vocabulary = vocabulary_of(prepared)
    features = {}
    for part, seen in prepared.seen.items():
        rows = nn.functional.one_hot(seen.to(device).long(), prepared.labels).half()
        rows = torch.cat([_load(work / f"blocks-{part}.pt").to(device), rows], dim=1)
        features[part] = Features(prepared.sentences(part), rows)
    torch.manual_seed(seed)
    width = features["train"].rows.shape[1]
    teacher = FrozenTeacher(vocabulary, width).to(device)
    train(
        teacher,
        repeated(prepared.train, _TIMES),
        gold_targets(features["train"].sentences, vocabulary, device),
        features["train"],
        epochs=_TEACHER_EPOCHS,
        seed=seed,
        name=f"blocks {seed}",
    )
    _keep_opinion(
        work,
        f"blocks-{seed}",
        {part: predict(teacher, features[part].sentences, features[part]) for part in ("dev", "texts")},
        prepared,
    )


@main.command("tagger")
@WORK
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False, exists=True))
def ask_tagger(work: Path, folder: Path) -> None:
    """Have a tagger, as another teacher, label the dev parts and the texts; what it was trained on is recorded."""
    prepared = Prepared.read(work)
    provenance = read_provenance(work)
    if provenance is None:
        raise click.ClickException(f"expected {work / PROVENANCE_NAME}, which prepare writes")
    write_provenance(work, provenance.taught_by(folder.name, tagger_digest(folder), read_provenance(folder)))
    tagger = load_tagger(folder)
    order = [tagger.vocabulary.labels.index(label) for label in vocabulary_of(prepared).labels]
    found: dict[str, Tensor] = {}
    for part in ("dev", "texts"):
        tables = (
            tagger.tabulate([document], keep="distributions", calibrated=False) for document in prepared.documents(part)
        )
        found[part] = torch.cat(
            [table.distributions[:, order].half() for table in tables if table.distributions is not None]
        )
    _keep_opinion(work, folder.name, found, prepared)


def _keep_opinion(work: Path, name: str, found: Mapping[str, Tensor], prepared: Prepared) -> None:
    """Write a teacher's probabilities by part, and print its scores."""
    for part, probabilities in found.items():
        torch.save(probabilities, work / f"teacher-{name}-{part}.pt")
    click.echo(json.dumps({name: score(found["dev"].float(), prepared.dev, vocabulary_of(prepared))}))


@main.command("labels")
@WORK
def average_labels(work: Path) -> None:
    """Average the teachers' probabilities, mend those of the texts, and keep the large ones."""
    prepared = Prepared.read(work)
    vocabulary = vocabulary_of(prepared)
    names = [path.name.removesuffix("-dev.pt") for path in sorted(work.glob("teacher-*-dev.pt"))]
    dev = sum(_load(work / f"{name}-dev.pt").float() for name in names) / len(names)
    click.echo(json.dumps({"teachers": names, "mean": score(dev, prepared.dev, vocabulary)}))
    mean = _load(work / f"{names[0]}-texts.pt").float()
    for name in names[1:]:
        mean += _load(work / f"{name}-texts.pt").float()
    mean /= len(names)
    mend_labels(mean, flat(prepared.texts), vocabulary)
    mean[mean < _KEPT_PROBABILITY] = 0
    mean /= mean.sum(dim=1, keepdim=True)
    words, labels = (mean > 0).nonzero(as_tuple=True)
    kept = {
        "words": words.int(),
        "labels": labels.to(torch.uint8),
        "probabilities": mean[words, labels].half(),
        "names": list(vocabulary.labels),
    }
    torch.save(kept, work / "labels.pt")


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
    texts = with_soft_labels(flat(prepared.texts), _load(work / "labels.pt"))
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


def vocabulary_of(prepared: Prepared) -> Vocabulary:
    """Return the vocabulary of the gold corpora."""
    return Vocabulary.from_sentences(
        prepared.sentences("train"), scheme=BIOES, lowercase=True, entity_types={*GOLD_TYPES, *TYPES}
    )


def gold_targets(sentences: Sequence[Sentence], vocabulary: Vocabulary, device: str) -> Features:
    """Return one-hot rows of the labels of sentences, fp16."""
    numbers = {label: number for number, label in enumerate(vocabulary.labels)}
    gold = [numbers[label] for one in sentences for label in vocabulary.scheme.from_gold(one.labels or ())]
    rows = nn.functional.one_hot(torch.tensor(gold, device=device), len(numbers)).half()
    return Features(sentences, rows)


def soft_targets(
    sentences: Sequence[Sentence], vocabulary: Vocabulary, labels: Mapping[str, Any], device: str
) -> Tensor:
    """Return the probabilities of the labels of sentences, whose words are numbered through, shape ``(N, L)``, fp16."""
    size = sum(len(sentence.words) for sentence in sentences)
    rows = torch.zeros(size, len(vocabulary.labels), dtype=torch.half, device=device)
    rows[labels["words"].long().to(device), labels["labels"].long().to(device)] = labels["probabilities"].to(device)
    return rows


def _load(path: Path) -> Any:
    return torch.load(path, weights_only=True)


if __name__ == "__main__":
    main()
