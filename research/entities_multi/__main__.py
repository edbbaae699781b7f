"""Train the bundled entities_multi on English and eleven further languages, step by step, over the bundled encoder.

\b
    python -m research.entities_en.guideline CORPORA --without btc:signs --output MENDED
    python -m research.entities_en.prepare WORK --corpora MENDED --text TEXTS.jsonl (and others)
    python -m research.entities_multi corpora WORK CORPORA TREEBANKS
    python -m research.entities_multi features WORK
    python -m research.entities_multi shipped WORK START
    python -m research.entities_multi teacher WORK en
    python -m research.entities_multi teacher WORK multi
    python -m research.entities_multi silver WORK
    python -m research.entities_multi stage-one WORK START
    python -m research.entities_multi stage-two WORK
    python -m research.entities_multi mix WORK START
    python -m research.entities_multi reach WORK
    concord calibrate WORK/bundle --data WORK/corpora/NAME/dev.conll (and others) --labels DATE=,TIME= (and others)
    python -m research.entities_multi score WORK START WORK/bundle -o SCORES.json

WORK is a folder of what was made, START the bundled tagger before, from which the training goes on. CORPORA has those
of English, uner_* and europeana_*; TREEBANKS the NorNE of both written forms of Norwegian. A long step is skipped once
its result is there, the others are repeated, and a training goes on from where it was interrupted.

START and two BiLSTMs, one of English and one of all languages, are the teachers: the mean of their probabilities labels
the open texts, and is a share of what the train parts of the further languages teach. These have PER, LOC and ORG
alone: what is in none of these may be of the further types, as the teachers say.

The weights that draft are between those of START and those that were trained (Wortsman et al., 2022): trained ones
alone are better in newspapers and worse in English.

The encoder reads passages of documents. Stage one reads a third of the documents sentence by sentence, so that a tagger
of single sentences is as good.
"""

import json
import random
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor, nn

from concord.models.bundles.checkpoint import load_tagger, save_tagger
from concord.models.bundles.manifest import tagger_digest
from concord.models.data.sentence import Sentence
from concord.models.data.vocabulary import Vocabulary
from concord.models.labels import BIOES
from concord.models.taggers.base import Tagger
from concord.models.taggers.doc_uanet import DocUaNet
from concord.models.taggers.two_stage import TwoStageTagger
from concord.models.training.fit import Unit, document_batches
from concord.models.words.encoder import load_encoder
from concord.models.words.encoder_config import EncoderConfig
from concord.workflows.corpora import (
    PROVENANCE_NAME,
    Provenance,
    read_provenance,
    write_provenance,
)
from research.entities_en.__main__ import large_ones, mend_labels, soft_targets, with_soft_labels
from research.entities_en.features import Features, encoder_states
from research.entities_en.learning import Documents, learn, like_lengths, repeated, score
from research.entities_en.prepared import flat
from research.entities_en.silver import GOLD_TYPES, TYPES
from research.entities_en.teachers import FrozenTeacher, predict, train
from research.entities_multi.corpora import (
    LANGUAGES,
    PARTS,
    PASSAGE_WORDS,
    Corpora,
    Part,
    alone,
    gold_and_silver,
    gold_rows,
    load,
    mixed_states,
    read_at_once,
    save,
    write_language,
)
from research.entities_multi.reach import (
    SHARES,
    SLOTS,
    Reach,
    choose,
    figures,
    measure,
    set_draft_share,
    set_slots,
)

_TIMES = {"ewt_uner": 1.5, "wikigold": 2.0, "btc": 1.5, "litbank_prop": 2.0, "sr": 1.5, "da": 1.5, "sk": 1.5, "sv": 1.5}
_TIMES |= {"no": 1.5, "nl": 1.0, "fr": 1.0, "de_lft": 1.5, "de_onb": 1.5, "de_sbb": 1.5}
"""How often an epoch of stage one reads a corpus."""
_TIMES_TWO = {"wikigold": 2, "litbank_prop": 2}
"""How often an epoch of stage two does."""
_GOLD_SHARE = 0.7
"""Of what a word of a further language teaches; the rest is silver."""
_TEXT_WORDS = 150_000
"""Words of labelled English texts that stage two learns from."""
_TAUGHT: Mapping[str, tuple[Part, ...]] = {"en": ("english",), "multi": ("english", "languages")}
_LABELLED: Mapping[str, tuple[Part, ...]] = {
    "en": ("texts", "english-dev"),
    "multi": ("languages", "texts", "english-dev", "languages-dev"),
    "shipped": ("languages", "texts", "english-dev", "languages-dev"),
}
"""What each teacher learns from, and what it labels."""
_TIMES_TEACHER = {"ewt_uner": 1.5, "wikigold": 2.0, "btc": 1.5, "litbank_prop": 1.5}
_TEACHER_EPOCHS = {"en": 3, "multi": 2}
_RATE, _EPOCHS, _SENTENCES, _WARMUP = 8e-4, 2, 64, 0.05
_BATCH_TWO, _DOCUMENT_TWO = 32, 64
_KEPT = 0.6
"""The share of START's weights in those that draft."""
_SEED = 1
_DEV: tuple[Part, ...] = ("english-dev", "languages-dev")
_AT_ONCE = 64
"""Documents that are labelled at once."""
WORK = click.argument("work", type=click.Path(path_type=Path, exists=True, file_okay=False))
FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)


@click.group(help=__doc__)
def main() -> None:
    """Read the command line."""
    torch.set_num_threads(1)


def _is_there(path: Path) -> bool:
    """Say and return whether the result of a step is there."""
    if path.exists():
        click.echo(f"{path}: is there")
    return path.exists()


@main.command("corpora")
@WORK
@click.argument("labelled", type=FOLDER)
@click.argument("treebanks", type=FOLDER)
def write_corpora(work: Path, labelled: Path, treebanks: Path) -> None:
    """Write the further languages beside English in WORK/corpora, and what they have to the provenance."""
    provenance = _provenance(work)
    for name in LANGUAGES:
        for part in ("train", "dev"):
            provenance = provenance.merged_with(write_language(name, part, labelled, treebanks, work))
        click.echo(f"{name}: written")
    write_provenance(work, provenance)


def _provenance(work: Path) -> Provenance:
    provenance = read_provenance(work)
    if provenance is None:
        raise click.ClickException(f"expected {work / PROVENANCE_NAME}, which prepare writes")
    return provenance


@main.command("features")
@WORK
def compute_features(work: Path) -> None:
    """Compute the encoder's states of all words in passages, and in sentences where stage one reads these."""
    corpora = Corpora.read(work)
    for part in PARTS:
        documents = corpora.documents(part)
        single = [one for one, is_alone in zip(documents, alone(documents), strict=True) if is_alone]
        forms = {"passages": (documents, PASSAGE_WORDS), "sentences": (single, 0)}
        for name, (read, words) in forms.items():
            path = work / f"{name}-{part}.pt"
            if not _is_there(path) and (words or not part.endswith("dev")):
                save(encoder_states([each for one in read for each in read_at_once(one, words)], "cpu"), path)
                click.echo(f"{path}: written")


@main.command("shipped")
@WORK
@click.argument("start", type=FOLDER)
def ask_shipped(work: Path, start: Path) -> None:
    """Have the tagger before label what teachers label; what it was trained on is recorded."""
    write_provenance(work, _provenance(work).taught_by(start.name, tagger_digest(start), read_provenance(start)))
    corpora, tagger = Corpora.read(work), load_tagger(start)
    for part in _LABELLED["shipped"]:
        if _is_there(path := work / f"shipped-{part}.pt"):
            continue
        documents, found = corpora.documents(part), []
        with _states_of(tagger, work, corpora, part):
            for first in range(0, len(documents), _AT_ONCE):
                some = documents[first : first + _AT_ONCE]
                rows = tagger.tabulate(some, keep="distributions", calibrated=False).distributions
                found.append(torch.empty(0) if rows is None else rows.half())
        save(torch.cat(found), path)


@contextmanager
def _states_of(tagger: Tagger, work: Path, corpora: Corpora, *parts: Part) -> Iterator[None]:
    """Have the tagger's encoder keep the states of the passages of parts."""
    kept = load_encoder(tagger.config.encoder or EncoderConfig(), "cpu").kept
    for part in parts:
        passages = [words for document in corpora.documents(part) for words in read_at_once(document, PASSAGE_WORDS)]
        rows = load(work, f"passages-{part}.pt").split([len(words) for words in passages])
        kept.update(zip(passages, (own.float() for own in rows), strict=True))
    yield
    kept.clear()


@main.command("teacher")
@WORK
@click.argument("name", type=click.Choice(list(_TAUGHT)))
def train_teacher(work: Path, name: str) -> None:
    """Train a teacher over the states of passages, that of English over spaCy's labels too, and have it label."""
    if all(_is_there(work / f"{name}-{part}.pt") for part in _LABELLED[name]):
        return
    corpora = Corpora.read(work)
    corpora_of = {key: own for part in _TAUGHT[name] for key, own in corpora.of(part).items()}
    sentences = corpora.sentences(*_TAUGHT[name])
    vocabulary = Vocabulary.from_sentences(sentences, scheme=BIOES, lowercase=True, entity_types={*GOLD_TYPES, *TYPES})
    wanted = [gold_rows(corpora.sentences("english"), vocabulary)]
    if "languages" in _TAUGHT[name]:
        others = corpora.sentences("languages")
        wanted.append(gold_and_silver(others, load(work, "shipped-languages.pt"), vocabulary, gold=1.0))
    states = torch.cat([_read_by_teacher(work, name, corpora, part) for part in _TAUGHT[name]])
    torch.manual_seed(_SEED)
    teacher = FrozenTeacher(vocabulary, states.shape[1])
    train(
        teacher,
        repeated(corpora_of, _TIMES_TEACHER),
        Features(sentences, torch.cat(wanted)),
        Features(sentences, states),
        epochs=_TEACHER_EPOCHS[name],
        seed=_SEED,
        name=f"teacher {name}",
        state=work / f"teacher-{name}.state",
    )
    for part in _LABELLED[name]:
        own = corpora.sentences(part)
        save(
            predict(teacher, own, Features(own, _read_by_teacher(work, name, corpora, part))),
            work / f"{name}-{part}.pt",
        )


def _read_by_teacher(work: Path, name: str, corpora: Corpora, part: Part) -> Tensor:
    rows: Tensor = load(work, f"passages-{part}.pt")
    if name == "multi":
        return rows
    prepared = corpora.prepared
    seen = prepared.seen[{"english": "train", "english-dev": "dev"}.get(part, part)]
    return torch.cat([rows, nn.functional.one_hot(seen.long(), prepared.labels).half()], dim=1)


@main.command("silver")
@WORK
def average_teachers(work: Path) -> None:
    """Write WORK/silver.pt: what the texts and the further languages teach; print the teachers' scores."""
    corpora = Corpora.read(work)
    vocabulary = Vocabulary.from_sentences([], scheme=BIOES, entity_types={*GOLD_TYPES, *TYPES})

    def mean(part: Part) -> Tensor:
        rows = {name: load(work, f"{name}-{part}.pt").float() for name, own in _LABELLED.items() if part in own}
        total = torch.stack(list(rows.values())).mean(dim=0)
        if part in _DEV:
            for name, own in {**rows, "mean": total}.items():
                click.echo(json.dumps({name: score(own, corpora.of(part), vocabulary)}))
        return total

    for part in _DEV:
        mean(part)
    texts = mean("texts")
    mend_labels(texts, corpora.sentences("texts"), vocabulary)
    others = gold_and_silver(corpora.sentences("languages"), mean("languages"), vocabulary, gold=_GOLD_SHARE)
    found = {"texts": large_ones(texts, vocabulary), "languages": large_ones(others.float(), vocabulary)}
    save(found, work / "silver.pt")


@main.command("stage-one")
@WORK
@click.argument("start", type=FOLDER)
def train_stage_one(work: Path, start: Path) -> None:
    """Train stage one on all languages and the labelled texts; write WORK/stage-one."""
    if _is_there(work / "stage-one"):
        return
    corpora, silver = Corpora.read(work), torch.load(work / "silver.pt", weights_only=True)
    parts: tuple[Part, ...] = ("english", "languages", "texts")
    sentences = corpora.sentences(*parts)
    tagger = _with_characters(load_tagger(start), sentences)
    wanted = [gold_rows(corpora.sentences("english"), tagger.vocabulary)]
    wanted += [soft_targets(corpora.sentences(part), tagger.vocabulary, silver[part], "cpu") for part in parts[1:]]
    targets, features = Features(sentences, torch.cat(wanted)), Features(sentences, mixed_states(work, corpora, parts))
    network = tagger.draft_network

    def loss_of(batch: Sequence[Sentence]) -> Tensor:
        logits, _ = network(tagger.encode(batch), features.batch(batch))
        loss: Tensor = -(logits.log_softmax(dim=-1) * targets.batch(batch)).sum() / _SENTENCES
        return loss

    torch.manual_seed(_SEED)
    read = repeated({**corpora.of("english"), **corpora.of("languages"), **corpora.of("texts")}, _TIMES)
    batches = [like_lengths(read, random.Random(f"m/{epoch}")) for epoch in range(_EPOCHS)]
    groups = [{"params": list(network.parameters()), "lr": _RATE}]
    learn(network, groups, batches, loss_of, name="stage one", warmup=_WARMUP, state=work / "stage-one.state")
    _finish(tagger, work / "stage-one")


def _finish(tagger: Tagger, folder: Path, *, half: bool = False) -> None:
    """Write a tagger to a folder, which is there only once it is whole."""
    partial = folder.with_name(f"{folder.name}.partial")
    save_tagger(tagger, partial, half=half)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def _with_characters(tagger: Any, sentences: Iterable[Sentence]) -> TwoStageTagger:
    """Return a tagger over passages that knows all characters of the sentences, new ones as the unknown one."""
    vocabulary = tagger.vocabulary
    seen = {one for sentence in sentences for word in sentence.words for one in vocabulary.spelling(word)}
    new = sorted(seen - set(vocabulary.characters))
    encoder = tagger.config.encoder.model_copy(update={"passage_words": PASSAGE_WORDS})
    config = tagger.config.model_copy(update={"encoder": encoder})
    wider = DocUaNet(config, vocabulary.model_copy(update={"characters": (*vocabulary.characters, *new)}))
    state = tagger.state_dict()
    for name, value in state.items():
        if name.endswith("characters.embedding.weight"):
            state[name] = torch.cat([value, value[1:2].expand(len(new), -1)])
    wider.load_state_dict(state)
    wider.parser = tagger.parser
    return wider


@main.command("stage-two")
@WORK
def train_stage_two(work: Path) -> None:
    """Train stage two on the drafts of stage one; write WORK/stage-two."""
    if _is_there(work / "stage-two"):
        return
    tagger: Any = load_tagger(work / "stage-one")
    corpora, silver = Corpora.read(work), torch.load(work / "silver.pt", weights_only=True)
    texts = _some(_with_soft(corpora.documents("texts"), silver["texts"]))
    others = iter(_with_soft(corpora.documents("languages"), silver["languages"]))
    taught = {"texts": texts, **corpora.of("english")}
    taught |= {name: [next(others) for _ in documents] for name, documents in corpora.of("languages").items()}
    taught = {name: tagger.with_passages(documents) for name, documents in taught.items()}

    def batches_of(epoch: int) -> list[list[Unit]]:
        read: list[Sequence[Sentence]] = []
        for name, documents in taught.items():
            # Corpora without documents, from which nobody learns to remember, are read by halves.
            is_single = max(map(len, documents)) == 1
            read += documents[epoch % 2 :: 2] if is_single else [*documents] * _TIMES_TWO.get(name, 1)
        draw = random.Random(f"{_SEED}/{epoch}")
        return document_batches(read, draw, batch_sentences=_BATCH_TWO, document_sentences=_DOCUMENT_TWO)

    def loss_of(units: Sequence[Unit]) -> Tensor:
        numbers = [number for number, unit in enumerate(units) for _ in unit]
        loss: Tensor = tagger.loss(tagger.encode(flat(units), documents=numbers))
        return loss

    torch.manual_seed(_SEED)
    tagger.draft_network.requires_grad_(False)
    groups = [{"params": list(tagger.refine_network.parameters()), "lr": _RATE}]
    batches = [batches_of(epoch) for epoch in range(_EPOCHS)]
    with _states_of(tagger, work, corpora, "english", "languages"):
        tagger.keep_features(texts)
        learn(tagger, groups, batches, loss_of, name="stage two", warmup=_WARMUP, state=work / "stage-two.state")
    _finish(tagger, work / "stage-two")


def _with_soft(documents: Documents, labels: Mapping[str, Any]) -> list[list[Sentence]]:
    soft = iter(with_soft_labels(flat(documents), labels))
    return [[next(soft) for _ in document] for document in documents]


def _some(documents: Documents) -> list[Sequence[Sentence]]:
    """Return documents of about ``_TEXT_WORDS`` words, drawn at random."""
    found: list[Sequence[Sentence]] = []
    left = _TEXT_WORDS
    for document in random.Random(3).sample(documents, len(documents)):
        if left <= 0:
            break
        found.append(document)
        left -= sum(len(sentence.words) for sentence in document)
    return found


@main.command("mix")
@WORK
@click.argument("start", type=FOLDER)
def mix_with_start(work: Path, start: Path) -> None:
    """Write WORK/mixed: of the weights that draft a share is START's."""
    sentences = Corpora.read(work).sentences("english", "languages", "texts")
    tagger: Any = load_tagger(work / "stage-two")
    before = _with_characters(load_tagger(start), sentences).draft_network.state_dict()
    trained = tagger.draft_network.state_dict()
    tagger.draft_network.load_state_dict({name: value.lerp(before[name], _KEPT) for name, value in trained.items()})
    _finish(tagger, work / "mixed")


@main.command("reach")
@WORK
@click.option("--tolerance", default=0.0, show_default=True, help="F1 by which a part may be below its drafts.")
def choose_reach(work: Path, tolerance: float) -> None:
    """Choose share of drafts, memory and threshold on the dev parts; write WORK/bundle and WORK/reach.json."""
    tagger: Any = load_tagger(work / "mixed")
    measured: list[Reach] = []
    corpora = Corpora.read(work)
    dev = {name: documents for part in _DEV for name, documents in corpora.of(part).items()}
    with _states_of(tagger, work, corpora, *_DEV):
        for slots, share in product(SLOTS, SHARES):
            set_slots(tagger, slots)
            set_draft_share(tagger, share)
            measured += measure(tagger, dev)
            click.echo(f"{slots} slots, {share} of the drafts: measured")
    chosen = choose(measured, tolerance=tolerance)
    set_slots(tagger, chosen.slots)
    set_draft_share(tagger, chosen.share)
    tagger.set_threshold(chosen.threshold)
    report = {"chosen": chosen._asdict(), "measured": [one._asdict() for one in measured]}
    (work / "reach.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    _finish(tagger, work / "bundle", half=True)
    shutil.copy(work / PROVENANCE_NAME, work / "bundle")
    click.echo(json.dumps(report["chosen"]))


@main.command("score")
@WORK
@click.argument("folders", nargs=-1, required=True, type=FOLDER)
@click.option("--output", "-o", required=True, type=click.Path(path_type=Path, dir_okay=False))
def score_taggers(work: Path, folders: Sequence[Path], output: Path) -> None:
    """Write the strict F1 of taggers on the dev parts, that of their drafts, and the means over both kinds of parts."""
    corpora = Corpora.read(work)
    found: dict[str, Any] = {}
    for folder in folders:
        tagger: Any = load_tagger(folder)
        with _states_of(tagger, work, corpora, *_DEV):
            scores = {part: figures(tagger, corpora.of(part)) for part in _DEV}
        found[str(folder)] = {"digest": tagger_digest(folder), **scores}
        click.echo(json.dumps(found))
    output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
