"""Train the bundled entities_en, step by step.

\b
    python -m research.entities_en.guideline CORPORA --without btc:signs --output MENDED
    python -m research.entities_en.prepare WORK --corpora MENDED --text TEXTS.jsonl (and others)
    python -m research.entities_en features WORK
    python -m research.entities_en features WORK --blocks
    python -m research.entities_en teacher WORK 2
    python -m research.entities_en tagger WORK FOLDER (a tagger of the same labels, such as the bundled one before)
    python -m research.entities_en labels WORK
    python -m research.entities_en start WORK FOLDER SMALL (the bundled taggers before)
    python -m research.entities_en stage-one WORK
    python -m research.entities_en small WORK
    python -m research.entities_en stage-two WORK 1 (and other seeds)
    concord cascade, concord calibrate (conf/train/entities_en.yaml)

WORK is a folder of what was made. All steps but the first two read nothing but WORK and the bundled encoder, on a CPU
or a GPU.
"""

import json
import random
import shutil
import time
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
from concord.models.data.options import PredictOptions
from concord.models.data.sentence import Sentence
from concord.models.data.soft_labels import SoftLabels
from concord.models.data.vocabulary import Vocabulary
from concord.models.evaluation.threshold_sweep import REFINE_ALL, label_sequences, labels_at
from concord.models.labels.schemes import BIOES
from concord.models.labels.spans import decode_spans, encode_spans
from concord.models.taggers.bilstm_softmax import BiLstmSoftmax
from concord.models.taggers.doc_uanet import DocUaNet
from concord.models.taggers.two_stage.tagger import TwoStageTagger
from concord.models.training.fit import FitConfig, fit
from concord.models.words.frozen_encoder import load_encoder
from concord.workflows.corpora.provenance import PROVENANCE_NAME, read_provenance, write_provenance
from research.entities_en import student
from research.entities_en.features import Features, blocks, encoder_states
from research.entities_en.learning import by_document, f1, repeated, score, span_counts
from research.entities_en.moved import move_small, move_tagger
from research.entities_en.prepared import Prepared, flat
from research.entities_en.silver import GOLD_TYPES, TYPES, mend
from research.entities_en.teachers import FrozenTeacher, predict, train

_TIMES = {"ewt_uner": 1.5, "wikigold": 2.0, "btc": 1.5, "litbank_prop": 1.5}
"""How often an epoch reads a corpus."""
_STUDENT_EPOCHS = 2
"""How often stage one and the small tagger read the labelled texts."""
_GOLD_TIMES = 1.0
"""How often they read the gold corpora meanwhile."""
_KEPT_PROBABILITY = 0.01
_TEACHER_EPOCHS = 4
_MAP_SENTENCES = 15_000

_STAGE_TWO = {
    "epochs": 2,
    "batch_sentences": 32,
    "document_sentences": 64,
    "clip_norm": 5.0,
    "optimizers": {
        "stage_one": {"kind": "adam", "learning_rate": 1e-6},
        "stage_two": {"kind": "adam", "learning_rate": 6e-4, "schedule": "linear", "warmup": 0.05},
    },
}

_SMALL = {
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


@main.command("start")
@WORK
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False, exists=True))
@click.argument("small", type=click.Path(path_type=Path, file_okay=False, exists=True))
def move_taggers(work: Path, folder: Path, small: Path) -> None:
    """Have two taggers read the bundled encoder instead of theirs; write WORK/start and WORK/start-small."""
    prepared = Prepared.read(work)
    earlier, earlier_small = load_tagger(folder), load_tagger(small)
    if not isinstance(earlier, DocUaNet) or earlier.config.encoder is None:
        raise click.ClickException(f"{folder}: expected a Doc-UANet over an encoder")
    if not isinstance(earlier_small, BiLstmSoftmax):
        raise click.ClickException(f"{small}: expected a BiLSTM-softmax")
    states = Features(prepared.sentences("train"), _load(work / "encoder-train.pt"))
    drawn = random.Random(7).sample(states.sentences, _MAP_SENTENCES)
    targets = encoder_states([sentence.words for sentence in drawn], "cpu", earlier.config.encoder)
    tagger, explained = move_tagger(earlier, torch.cat([states.of(sentence) for sentence in drawn]), targets)
    save_tagger(tagger, work / "start")
    words = [word for part in ("train", "texts") for sentence in prepared.sentences(part) for word in sentence.words]
    moved, of_forms = move_small(earlier_small, words)
    save_tagger(moved, work / "start-small")
    click.echo(json.dumps({"explained": {"states": round(explained, 3), "form vectors": round(of_forms, 3)}}))
    _keep_states(work, prepared, tagger)
    click.echo(json.dumps({"started": _without_counts(_dev_results(tagger, prepared))}))


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


@main.command("stage-one")
@WORK
@DEVICE
def train_stage_one(work: Path, device: str) -> None:
    """Train stage one on gold documents and labelled texts."""
    prepared = Prepared.read(work)
    tagger = started(work, device)
    targets, features = _to_learn(work, prepared, tagger, device)
    torch.manual_seed(1)
    times = {name: _GOLD_TIMES * _TIMES.get(name, 1.0) for name in prepared.train}
    student.train_stage_one(
        tagger.draft_network,
        tagger,
        [*repeated(prepared.train, times), *flat(prepared.texts)],
        targets,
        features,
        rate=1.5e-3,
        seed="1",
        name="stage one",
        epochs=_STUDENT_EPOCHS,
    )
    torch.save({name: value.cpu() for name, value in tagger.draft_network.state_dict().items()}, work / "stage-one.pt")
    _keep_states(work, prepared, tagger)
    tagger.eval()
    click.echo(json.dumps(_without_counts(_dev_results(tagger, prepared))))


@main.command("small")
@WORK
@DEVICE
def train_small(work: Path, device: str) -> None:
    """Train entities_en_small on gold documents and labelled texts; write WORK/small/bundle."""
    prepared = Prepared.read(work)
    tagger = load_tagger(work / "start-small").move_to(device)
    times = {name: _GOLD_TIMES * _TIMES.get(name, 1.0) for name in prepared.train}
    texts = _with_soft_labels(flat(prepared.texts), _load(work / "labels.pt"))
    documents = [[sentence] for sentence in [*repeated(prepared.train, times), *texts]]
    folder = work / "small"
    config = FitConfig.from_mapping({**_SMALL, "epochs": _STUDENT_EPOCHS, "seed": 1})
    result = fit(tagger, documents, list(prepared.dev.values()), config, folder)
    _finish(folder / "bundle", work)
    click.echo(json.dumps({"small": result.best.dev_f1}))


@main.command("stage-two")
@WORK
@click.argument("seed", type=int)
@click.option("--texts", "words", default=0, show_default=True, help="Words of labelled texts to learn from besides.")
@DEVICE
def train_stage_two(work: Path, seed: int, words: int, device: str) -> None:
    """Train stage two on gold documents and its own drafts; write WORK/stage-two-SEED/bundle and result.json."""
    prepared = Prepared.read(work)
    start = time.monotonic()
    tagger = started(work, device, seed=seed)
    tagger.draft_network.load_state_dict(_load(work / "stage-one.pt"))
    tagger.draft_network.requires_grad_(False)
    _keep_states(work, prepared, tagger)
    labelled = _draw_labelled(work, prepared, tagger, words) if words else []
    documents = [
        document for name, corpus in prepared.train.items() for document in [*corpus] * int(_TIMES.get(name, 1))
    ]
    config = FitConfig.from_mapping({**_STAGE_TWO, "seed": seed})
    folder = work / f"stage-two-{seed}"
    fit(tagger, [*documents, *labelled], list(prepared.dev.values()), config, folder)
    _finish(folder / "bundle", work)
    result = _dev_results(load_tagger(folder / "bundle", device=device), prepared)
    result |= {"seed": seed, "seconds": round(time.monotonic() - start, 1)}
    (folder / "result.json").write_text(json.dumps(result))
    click.echo(json.dumps(_without_counts(result)))


def _finish(bundle: Path, work: Path) -> None:
    """Store a bundle's weights in 16 bits, with its provenance."""
    save_tagger(load_tagger(bundle), bundle, half=True)
    shutil.copy(work / PROVENANCE_NAME, bundle)


def _without_counts(result: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in result.items() if key != "counts"}


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
    labels = _load(work / "labels.pt")
    size = sum(len(sentence.words) for sentence in texts)
    soft = torch.zeros(size, len(tagger.vocabulary.labels), dtype=torch.half, device=device)
    soft[labels["words"].long().to(device), labels["labels"].long().to(device)] = labels["probabilities"].to(device)
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


def _draw_labelled(work: Path, prepared: Prepared, tagger: TwoStageTagger, words: int) -> list[list[Sentence]]:
    """Return documents of labelled texts with about so many words, drawn at random, and keep the encoder's states."""
    if tagger.config.encoder is None:
        raise TypeError("expected a tagger with an encoder")
    kept = load_encoder(tagger.config.encoder, tagger.device.type).kept
    states = Features(prepared.sentences("texts"), _load(work / "encoder-texts.pt"))
    sentences = iter(_with_soft_labels(states.sentences, _load(work / "labels.pt")))
    labelled = [[next(sentences) for _ in document] for document in prepared.texts]
    found: list[list[Sentence]] = []
    for place in random.Random(3).sample(range(len(labelled)), len(labelled)):
        if words <= 0:
            break
        found.append(labelled[place])
        kept.update((sentence.words, states.of(sentence).float()) for sentence in prepared.texts[place])
        words -= sum(len(sentence.words) for sentence in labelled[place])
    return found


def _with_soft_labels(sentences: Sequence[Sentence], labels: Mapping[str, Any]) -> list[Sentence]:
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


def started(work: Path, device: str, *, seed: int = 1) -> TwoStageTagger:
    """Return the tagger of WORK/start, which trainings begin from."""
    tagger = load_tagger(work / "start")
    if not isinstance(tagger, TwoStageTagger):
        raise click.ClickException(f"{work / 'start'}: expected a tagger of two stages")
    tagger.move_to(device)
    torch.manual_seed(seed)
    return tagger


def gold_targets(sentences: Sequence[Sentence], vocabulary: Vocabulary, device: str) -> Features:
    """Return one-hot rows of the labels of sentences, fp16."""
    numbers = {label: number for number, label in enumerate(vocabulary.labels)}
    gold = [numbers[label] for one in sentences for label in vocabulary.scheme.from_gold(one.labels or ())]
    rows = nn.functional.one_hot(torch.tensor(gold, device=device), len(numbers)).half()
    return Features(sentences, rows)


def _load(path: Path) -> Any:
    return torch.load(path, weights_only=True)


if __name__ == "__main__":
    main()
