"""Train the bundled entities_en, step by step.

\b
    python -m research.entities_en.guideline CORPORA --without btc:signs --output MENDED
    python -m research.entities_en.prepare WORK --corpora MENDED --sentences SOFT
    python -m research.entities_en features WORK
    python -m research.entities_en teacher WORK tuned 1      (and others: tuned 2, tuned 3, frozen 4, frozen 5)
    python -m research.entities_en labels WORK
    python -m research.entities_en stage-one WORK
    python -m research.entities_en small WORK
    python -m research.entities_en stage-two WORK 1 (and other seeds)
    concord cascade, concord calibrate (conf/train/entities_en.yaml)

WORK is a folder of what was made. SOFT is a soft corpus that `concord distil` wrote, by any tagger, of which only the
sentences are read. All steps but the first two read nothing but WORK, the bundled tagger and the encoder, on a CPU or a
GPU.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from torch import Tensor, nn

from concord.models.bundles.checkpoint import load_tagger
from concord.models.bundles.manifest import read_saved
from concord.models.data.options import PredictOptions
from concord.models.data.sentence import Sentence
from concord.models.data.soft_labels import SoftLabels
from concord.models.data.vocabulary import Vocabulary
from concord.models.evaluation.threshold_sweep import REFINE_ALL, label_sequences, labels_at
from concord.models.labels.spans import decode_spans, encode_spans
from concord.models.taggers.base import Tagger
from concord.models.taggers.doc_uanet import DocUaNetConfig
from concord.models.taggers.two_stage.tagger import TwoStageTagger
from concord.models.training.fit import FitConfig, fit
from concord.models.words.frozen_encoder import load_encoder
from research.entities_en import student
from research.entities_en.features import Features, encoder_states
from research.entities_en.learning import by_document, f1, repeated, score, span_counts
from research.entities_en.prepared import Prepared, flat
from research.entities_en.silver import GOLD_TYPES, TYPES, mend
from research.entities_en.teachers import FrozenTeacher, TunedTeacher, predict, train

_PRETRAINED = Path(__file__).resolve().parents[2] / "models" / "pretrained"
EARLIER, EARLIER_SMALL = _PRETRAINED / "entities_en", _PRETRAINED / "entities_en_small"
_TIMES = {"ewt_uner": 1.5, "wikigold": 2.0, "btc": 1.5}
"""How often an epoch reads a corpus."""
_STAGE_ONE_EPOCHS = 2.0
"""How often stage one reads the gold corpora, while it reads the labelled texts once."""
_KEPT_PROBABILITY = 0.01
_TEACHERS = {"tuned": (TunedTeacher, 3), "frozen": (FrozenTeacher, 5)}
"""The kinds of teachers and how many epochs they train."""

_SMALL = {
    "epochs": 1,
    "batch_sentences": 128,
    "clip_norm": 5.0,
    "optimizers": {"tagger": {"kind": "adam", "learning_rate": 2e-3, "schedule": "linear", "warmup": 0.05}},
}

WORK = click.argument("work", type=click.Path(path_type=Path, file_okay=False, exists=True))
DEVICE = click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)


@click.group(help=__doc__)
def main() -> None:
    """Read the command line."""
    torch.set_num_threads(1)


@main.command("features")
@WORK
@DEVICE
def compute_features(work: Path, device: str) -> None:
    """Compute the encoder's states of all words."""
    prepared = Prepared.read(work)
    for part in prepared.seen:
        words = [sentence.words for sentence in prepared.sentences(part)]
        torch.save(encoder_states(words, device), work / f"encoder-{part}.pt")


@main.command("teacher")
@WORK
@click.argument("kind", type=click.Choice(list(_TEACHERS)))
@click.argument("seed", type=int)
@DEVICE
def train_teacher(work: Path, kind: str, seed: int, device: str) -> None:
    """Train a teacher, and have it label the dev parts and the texts."""
    prepared = Prepared.read(work)
    vocabulary = wide_vocabulary()
    features = {}
    for part, seen in prepared.seen.items():
        rows = nn.functional.one_hot(seen.to(device).long(), prepared.labels).half()
        if kind == "frozen":
            rows = torch.cat([_load(work / f"encoder-{part}.pt").to(device), rows], dim=1)
        features[part] = Features(prepared.sentences(part), rows)
    torch.manual_seed(seed)
    maker, epochs = _TEACHERS[kind]
    width = features["train"].rows.shape[1]
    teacher = maker(vocabulary, width).to(device)
    targets = gold_targets(features["train"].sentences, vocabulary, device)
    train(
        teacher,
        repeated(prepared.train, _TIMES),
        targets,
        features["train"],
        epochs=epochs,
        seed=seed,
        name=f"{kind} {seed}",
    )
    for part in ("dev", "texts"):
        probabilities = predict(teacher, features[part].sentences, features[part])
        torch.save(probabilities, work / f"teacher-{kind}-{seed}-{part}.pt")
        if part == "dev":
            click.echo(json.dumps({f"{kind} {seed}": score(probabilities.float(), prepared.dev, vocabulary)}))


@main.command("labels")
@WORK
def average_labels(work: Path) -> None:
    """Average the teachers' probabilities, mend those of the texts, and keep the large ones."""
    prepared, vocabulary = Prepared.read(work), wide_vocabulary()
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


@main.command("stage-one")
@WORK
@DEVICE
def train_stage_one(work: Path, device: str) -> None:
    """Train stage one on gold documents and labelled texts, from the weights of the bundled tagger on."""
    prepared, tagger = Prepared.read(work), wide_tagger(device)
    targets, features = _to_learn(work, prepared, tagger, device)
    torch.manual_seed(1)
    times = {name: _STAGE_ONE_EPOCHS * _TIMES.get(name, 1.0) for name in prepared.train}
    student.train_stage_one(
        tagger.draft_network,
        tagger,
        [*repeated(prepared.train, times), *flat(prepared.texts)],
        targets,
        features,
        rate=1.5e-3,
        seed="1",
        name="stage one",
    )
    torch.save({name: value.cpu() for name, value in tagger.draft_network.state_dict().items()}, work / "stage-one.pt")


@main.command("small")
@WORK
@DEVICE
def train_small(work: Path, device: str) -> None:
    """Train entities_en_small on gold documents and labelled texts; write WORK/small/bundle."""
    prepared, tagger = Prepared.read(work), widened(EARLIER_SMALL, device)
    times = {name: _STAGE_ONE_EPOCHS * _TIMES.get(name, 1.0) for name in prepared.train}
    texts = with_soft_labels(flat(prepared.texts), _load(work / "labels.pt"))
    documents = [[sentence] for sentence in [*repeated(prepared.train, times), *texts]]
    result = fit(tagger, documents, list(prepared.dev.values()), FitConfig.from_mapping(_SMALL), work / "small")
    click.echo(json.dumps({"small": result.best.dev_f1}))


@main.command("stage-two")
@WORK
@click.argument("seed", type=int)
@DEVICE
def train_stage_two(work: Path, seed: int, device: str) -> None:
    """Train stage two on gold documents; write WORK/stage-two-SEED/bundle and result.json."""
    prepared = Prepared.read(work)
    started = time.monotonic()
    tagger = wide_tagger(device)
    tagger.draft_network.load_state_dict(_load(work / "stage-one.pt"))
    tagger.draft_network.requires_grad_(False)
    _keep_states(work, prepared, tagger)
    documents = [
        document for name, corpus in prepared.train.items() for document in [*corpus] * int(_TIMES.get(name, 1))
    ]
    config = stage_two_config(seed, rate=6e-4)
    folder = work / f"stage-two-{seed}"
    fit(tagger, documents, list(prepared.dev.values()), config, folder)
    result = _dev_results(load_tagger(folder / "bundle", device=device), prepared)
    result |= {"seed": seed, "seconds": round(time.monotonic() - started, 1)}
    (folder / "result.json").write_text(json.dumps(result))
    click.echo(json.dumps({key: value for key, value in result.items() if key != "counts"}))


def _dev_results(tagger: Any, prepared: Prepared) -> dict[str, Any]:
    """Return F1 on the dev parts of drafts, of final labels, and without slots, with counts by document."""
    f1s: dict[str, dict[str, float]] = {}
    counts: dict[str, dict[str, Any]] = {}
    slots = tagger.memory_slots
    for form, used in (("final", slots), ("no_slots", 0)):
        tagger.set_memory_slots(used)
        for name, documents in prepared.dev.items():
            table = tagger.tabulate(documents, PredictOptions(threshold=REFINE_ALL))
            columns = {form: labels_at(table, tagger.threshold)} | ({"drafts": table.draft} if used else {})
            for column, numbers in columns.items():
                guessed = by_document(label_sequences(numbers, documents, tagger.vocabulary), documents)
                found = span_counts(guessed, documents, (*GOLD_TYPES, *TYPES))
                f1s.setdefault(column, {})[name] = round(f1(torch.stack([found[kind] for kind in GOLD_TYPES])), 2)
                counts.setdefault(column, {})[name] = {
                    kind: (rows if kind in GOLD_TYPES else rows.sum(dim=0)).tolist() for kind, rows in found.items()
                }
    for scores in f1s.values():
        scores["mean"] = round(sum(scores.values()) / len(scores), 2)
    return {"threshold": tagger.threshold, **f1s, "counts": counts}


def _to_learn(work: Path, prepared: Prepared, tagger: TwoStageTagger, device: str) -> tuple[Features, Features]:
    """Return what is to be learned and what is read of all words, those of the texts last."""
    gold, texts = prepared.sentences("train"), flat(prepared.texts)
    soft = soft_targets(texts, tagger.vocabulary, _load(work / "labels.pt"), device)
    targets = torch.cat([gold_targets(gold, tagger.vocabulary, device).rows, soft])
    rows = torch.cat([_load(work / f"encoder-{part}.pt").to(device) for part in ("train", "texts")])
    return Features([*gold, *texts], targets), Features([*gold, *texts], rows)


def _keep_states(work: Path, prepared: Prepared, tagger: TwoStageTagger) -> None:
    """Keep the encoder's states of gold sentences, which the training and its scores read."""
    if tagger.config.encoder is None:
        raise TypeError("expected a tagger with an encoder")
    kept = load_encoder(tagger.config.encoder, tagger.device.type).kept
    for part in ("train", "dev"):
        states = Features(prepared.sentences(part), _load(work / f"encoder-{part}.pt").float())
        kept.update((sentence.words, states.of(sentence)) for sentence in states.sentences)


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


def wide_vocabulary(earlier: Path = EARLIER) -> Vocabulary:
    """Return a bundled tagger's vocabulary with the labels of all types."""
    vocabulary = Vocabulary.from_mapping(read_saved(earlier).vocabulary)
    return replace(vocabulary, labels=vocabulary.scheme.label_set({*GOLD_TYPES, *TYPES}))


def wide_tagger(device: str) -> TwoStageTagger:
    """Return the bundled tagger with the labels of all types."""
    tagger = widened(EARLIER, device)
    if not isinstance(tagger, TwoStageTagger):
        raise TypeError(f"{EARLIER}: expected a tagger of two stages, got {type(tagger)}")
    return tagger


def widened(earlier: Path, device: str) -> Tagger:
    """Return a bundled tagger with the labels of all types, without its first pass and its calibration.

    What it has learned of a label stays; the weights of new labels are new.
    """
    bundled, vocabulary = load_tagger(earlier), wide_vocabulary(earlier)
    config = bundled.config
    if isinstance(config, DocUaNetConfig):
        config = config.model_copy(update={"first_pass": None})
    torch.manual_seed(36)
    tagger = type(bundled)(config, vocabulary)
    places = torch.tensor([vocabulary.labels.index(label) for label in bundled.vocabulary.labels])
    state, known = tagger.state_dict(), bundled.state_dict()
    tagger.load_state_dict({name: _widened(value, known.get(name), places) for name, value in state.items()})
    tagger.eval().move_to(device)
    return tagger


def _widened(own: Tensor, earlier: Tensor | None, places: Tensor) -> Tensor:
    """Return earlier weights; where there are more labels now, their rows are put in their places."""
    if earlier is None or len(own) <= len(earlier):
        return own if earlier is None else earlier
    own = own.clone()
    own[places] = earlier
    return own


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


def stage_two_config(seed: int, *, rate: float) -> FitConfig:
    """Return how stage two is trained on the drafts of stage one, which stays all but the same."""
    return FitConfig.from_mapping(
        {
            "epochs": 2,
            "seed": seed,
            "batch_sentences": 32,
            "document_sentences": 64,
            "clip_norm": 5.0,
            "optimizers": {
                "stage_one": {"kind": "adam", "learning_rate": 1e-6},
                "stage_two": {"kind": "adam", "learning_rate": rate, "schedule": "linear", "warmup": 0.05},
            },
        }
    )


def _load(path: Path) -> Any:
    return torch.load(path, weights_only=True)


if __name__ == "__main__":
    main()
