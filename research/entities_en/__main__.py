"""Train the bundled entities_en, step by step.

\b
    python -m research.entities_en.guideline CORPORA --without btc:signs --output MENDED
    python -m research.entities_en teachers WORK --corpora MENDED --sentences SOFT
    python -m research.entities_en drafts WORK --corpora MENDED
    python -m research.entities_en stage-one WORK --corpora MENDED
    python -m research.entities_en stage-two WORK --corpora MENDED
    concord cascade, concord calibrate (conf/train/entities_en.yaml)

WORK is a folder of what was made; features of words are kept there. SOFT is a soft corpus that `concord distil` wrote,
by any tagger, of which only the sentences are read. The teachers' labels are WORK/labels, one more such corpus.
"""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import click
import numpy as np
import torch
from torch import Tensor, nn

from concord.models.checkpoint import load_tagger
from concord.models.data.sentence import Sentence
from concord.models.decoders.distribution import entropy
from concord.models.training.batches import split_long
from concord.models.training.fit import FitConfig, fit
from concord.models.two_stage.tagger import TwoStageTagger
from concord.pipeline.corpora.soft_corpus import (
    Labelling,
    read_labelling,
    read_soft_corpus,
    write_labelling,
    write_shard,
)
from concord.pipeline.identity import ComponentIdentity
from concord.workflows.corpora.corpora import read_corpora
from research.entities_en import student
from research.entities_en.features import Features, encoder_states, spacy_states
from research.entities_en.guideline import CORPORA, LABELS
from research.entities_en.learning import Documents, repeated, score
from research.entities_en.teachers import FrozenTeacher, TunedTeacher, predict, train

EARLIER = Path(__file__).resolve().parents[2] / "models" / "pretrained" / "entities_en"
_LONGEST = 256
_LONGEST_DOCUMENT = 60_000
_TIMES = {"ewt_uner": 1.5, "wikigold": 2.0}
"""How often an epoch reads a corpus."""
_STAGE_TWO = {
    "epochs": 2,
    "seed": 1,
    "batch_sentences": 32,
    "document_sentences": 64,
    "clip_norm": 5.0,
    "optimizers": {
        "stage_one": {"kind": "adam", "learning_rate": 1e-6},
        "stage_two": {"kind": "adam", "learning_rate": 6e-4, "schedule": "linear", "warmup": 0.05},
    },
}

WORK = click.argument("work", type=click.Path(path_type=Path, file_okay=False))
MENDED = click.option("--corpora", type=click.Path(path_type=Path, exists=True, file_okay=False), required=True)


@click.group(help=__doc__)
def main() -> None:
    """Read the command line."""
    torch.set_num_threads(1)


@main.command("teachers")
@WORK
@MENDED
@click.option("--sentences", type=click.Path(path_type=Path, exists=True, file_okay=False), required=True)
@click.option("--words", default=900_000, show_default=True, help="Words to label.")
def train_teachers(work: Path, corpora: Path, sentences: Path, words: int) -> None:
    """Train both teachers, and label open texts by the mean of their probabilities."""
    work.mkdir(parents=True, exist_ok=True)
    tagger = _earlier()
    vocabulary = tagger.vocabulary
    gold, dev = _read(corpora, "train", tagger), _read(corpora, "dev", tagger)
    texts = _draw(read_soft_corpus(sentences), words)
    parts = {"train": _sentences(gold), "dev": _sentences(dev), "texts": [one for text in texts for one in text]}
    seen = {part: _kept(work / f"spacy-{part}.pt", spacy_states, found) for part, found in parts.items()}
    states = {part: _kept(work / f"encoder-{part}.pt", encoder_states, found) for part, found in parts.items()}
    both = {part: Features(parts[part], torch.cat([states[part].rows, seen[part].rows], dim=1)) for part in parts}
    targets = _targets(parts["train"], tagger)
    found: dict[str, list[Tensor]] = {"dev": [], "texts": []}
    for seed, kind, features, epochs, times in (
        (2, FrozenTeacher, both, 4, _TIMES),
        (1, TunedTeacher, seen, 2, {"wikigold": 2.0}),
    ):
        torch.manual_seed(seed)
        teacher = kind(vocabulary, features["train"].rows.shape[1])
        chosen = repeated(gold, times)
        train(teacher, chosen, targets, features["train"], epochs=epochs, seed=seed, name=kind.__name__)
        for part, predicted in found.items():
            predicted.append(predict(teacher, parts[part], features[part]))
        click.echo(json.dumps({kind.__name__: score(found["dev"][-1].float(), dev, vocabulary)}))
    click.echo(json.dumps({"both": score(_mean(found["dev"]), dev, vocabulary)}))
    _write_labels(work / "labels", read_labelling(sentences), texts, _mean(found["texts"]))


@main.command("drafts")
@WORK
@MENDED
@click.option("--folds", default=3, show_default=True)
def make_drafts(work: Path, corpora: Path, folds: int) -> None:
    """Draft the gold documents by stage ones that have not read them."""
    tagger = _earlier()
    gold, labelled, targets, features = _to_learn(work, corpora, tagger)
    drafts = student.held_out_drafts(tagger, gold, labelled, targets, features, folds=folds, times=_TIMES)
    torch.save(drafts, work / "drafts.pt")
    right = (drafts.argmax(dim=-1) == targets.rows[: len(drafts)].argmax(dim=-1)).float()
    in_names = targets.rows[: len(drafts), 0] == 0
    click.echo(json.dumps({"right words of names": round(float(right[in_names].mean()), 4)}))


@main.command("stage-one")
@WORK
@MENDED
def train_stage_one(work: Path, corpora: Path) -> None:
    """Train stage one on gold documents and labelled texts, from the weights of the bundled tagger on."""
    tagger = _earlier()
    gold, labelled, targets, features = _to_learn(work, corpora, tagger)
    torch.manual_seed(1)
    student.train_stage_one(
        tagger.draft_network,
        tagger,
        [*repeated(gold, _TIMES), *labelled],
        targets,
        features,
        rate=1e-3,
        seed="1",
        name="stage one",
    )
    torch.save(tagger.draft_network.state_dict(), work / "stage-one.pt")


@main.command("stage-two")
@WORK
@MENDED
@click.option("--held-out/--own", default=True, show_default=True, help="The drafts that stage two learns from.")
def train_stage_two(work: Path, corpora: Path, *, held_out: bool) -> None:
    """Train stage two on gold documents and their drafts, and write WORK/student/bundle."""
    tagger = _earlier()
    gold, dev = _read(corpora, "train", tagger), _read(corpora, "dev", tagger)
    tagger.draft_network.load_state_dict(torch.load(work / "stage-one.pt", weights_only=True))
    tagger.draft_network.requires_grad_(False)
    drafts = Features(_sentences(gold), torch.load(work / "drafts.pt", weights_only=True))
    documents = [
        [replace(sentence, drafts=drafts.of(sentence).numpy() if held_out else None) for sentence in document]
        for name, corpus in gold.items()
        for document in [*corpus] * int(_TIMES.get(name, 1))
    ]
    result = fit(tagger, documents, list(dev.values()), FitConfig.from_mapping(_STAGE_TWO), work / "student")
    click.echo(json.dumps({"dev F1": result.best.dev_f1, "drafts": result.best.draft_f1}))


def _to_learn(
    work: Path, corpora: Path, tagger: TwoStageTagger
) -> tuple[dict[str, Documents], list[Sentence], Features, Features]:
    """Return gold documents, labelled sentences, and what is to be learned and read of all their words."""
    gold = _read(corpora, "train", tagger)
    labelled = [sentence for text in read_soft_corpus(work / "labels") for sentence in text]
    parts = {"train": _sentences(gold), "texts": labelled}
    rows = [_kept(work / f"encoder-{part}.pt", encoder_states, found).rows for part, found in parts.items()]
    everything = [*parts["train"], *labelled]
    return gold, labelled, _targets(everything, tagger), Features(everything, torch.cat(rows))


def _earlier() -> TwoStageTagger:
    """Return the bundled tagger without its first pass and its calibration."""
    bundled = load_tagger(EARLIER)
    if not isinstance(bundled, TwoStageTagger):
        raise TypeError(f"{EARLIER}: expected a tagger of two stages")
    if bundled.config.document_memory is None:
        raise ValueError(f"{EARLIER}: expected a tagger with a document memory")
    memory = bundled.config.document_memory.model_copy(update={"certain_slots": 0.5, "hidden_drafts": 0.4})
    config = bundled.config.model_copy(update={"first_pass": None, "memory": memory})
    tagger = type(bundled)(config, bundled.vocabulary)
    state = {name: value for name, value in bundled.state_dict().items() if not name.startswith("first_pass.")}
    tagger.load_state_dict(state)
    return tagger.eval()


def _read(folder: Path, part: str, tagger: TwoStageTagger) -> dict[str, Documents]:
    """Return the documents of each corpus, without empty and without very long sentences."""
    scheme = tagger.vocabulary.scheme
    found: dict[str, Documents] = {}
    for name in CORPORA:
        (path,) = (folder / name).glob(f"{part}.con*")
        documents = [
            [part for sentence in document if sentence.words for part in split_long(sentence, _LONGEST, scheme)]
            for document in read_corpora([str(path)], labels=LABELS)
        ]
        found[name] = [document for document in documents if document]
    return found


def _sentences(corpora: Mapping[str, Documents]) -> list[Sentence]:
    return [sentence for documents in corpora.values() for document in documents for sentence in document]


def _draw(texts: Sequence[Sequence[Sentence]], words: int) -> list[list[Sentence]]:
    """Return texts of so many words, none of them a very long one."""
    found: list[list[Sentence]] = []
    for text in random.Random(35).sample(texts, len(texts)):
        kept = [sentence for sentence in text if 0 < len(sentence.words) <= _LONGEST]
        size = sum(len(sentence.words) for sentence in kept)
        if size <= _LONGEST_DOCUMENT and words > 0:
            found.append(kept)
            words -= size
    return found


def _kept(path: Path, read: Callable[[Sequence[Sentence]], Tensor], sentences: Sequence[Sentence]) -> Features:
    """Return features that are read once and kept in a file."""
    if not path.exists():
        torch.save(read(sentences), path)
    return Features(sentences, torch.load(path, weights_only=True))


def _targets(sentences: Sequence[Sentence], tagger: TwoStageTagger) -> Features:
    """Return the label probabilities that are to be learned, of gold labels or of teachers."""
    names = tagger.vocabulary.labels
    rows = []
    for sentence in sentences:
        if sentence.soft is None:
            gold = [names.index(label) for label in tagger.vocabulary.scheme.from_gold(sentence.labels or ())]
            rows.append(nn.functional.one_hot(torch.tensor(gold), len(names)).half())
        else:
            soft = sentence.soft
            numbers = np.array([names.index(name) for name in soft.names])
            row = np.zeros((len(sentence.words), len(names)), dtype=np.float16)
            row[soft.words, numbers[soft.labels]] = soft.probabilities
            rows.append(torch.from_numpy(row))
    return Features(sentences, torch.cat(rows))


def _mean(probabilities: Sequence[Tensor]) -> Tensor:
    return torch.stack([one.float() for one in probabilities]).mean(dim=0)


def _write_labels(folder: Path, like: Labelling, texts: Sequence[Sequence[Sentence]], probabilities: Tensor) -> None:
    """Write a soft corpus of one shard, of texts that were split as those of another."""
    folder.mkdir(exist_ok=True)
    rows = probabilities.numpy()
    write_shard(folder, 0, texts, probabilities=rows, uncertainty=entropy(probabilities).numpy())
    teachers = [ComponentIdentity(name="research.entities_en", version=None, digest=sha256(rows.tobytes()).hexdigest())]
    size = {"shards": 1, "documents": len(texts), "words": len(rows)}
    write_labelling(folder, like.model_copy(update={"teachers": teachers, **size}))


if __name__ == "__main__":
    main()
