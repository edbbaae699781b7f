"""Train the bundled entities_multi on English and six more languages, step by step, over the bundled encoder.

\b
    python -m research.entities_multi corpora WORK ../shared/data/labelled
    python -m research.entities_multi features WORK
    python -m research.entities_multi stage-one WORK START
    python -m research.entities_multi stage-two WORK SEED

WORK is the folder of ``research.entities_en``: ``prepared.pt`` has the English corpora and texts, ``labels.pt`` what
its teachers say of the texts. START is a tagger over the bundled encoder from which stage one goes on. The other
languages have PER, LOC and ORG alone: what is in none of these may be of the further types, so a word outside of names
teaches nothing about them.

The encoder reads passages of documents. Stage one reads a third of the documents sentence by sentence, so that a tagger
of single sentences is as good.
"""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor

from concord.models.bundles.checkpoint import load_tagger, save_tagger
from concord.models.data.sentence import Sentence, allowed_labels, with_passages
from concord.models.data.vocabulary import Vocabulary
from concord.models.taggers.doc_uanet import DocUaNet
from concord.models.taggers.two_stage import TwoStageTagger
from concord.models.training.fit import FitConfig, fit
from concord.models.words.encoder import FrozenEncoder, load_encoder
from concord.models.words.encoder_config import BUNDLED_NAME, EncoderConfig
from concord.workflows.corpora import read_documents
from research.entities_en.__main__ import gold_targets, soft_targets, with_soft_labels
from research.entities_en.features import Features
from research.entities_en.learning import Documents, learn, like_lengths, repeated
from research.entities_en.prepared import Prepared, flat
from research.entities_en.silver import GOLD_TYPES
from research.parser_multi import contraction

LANGUAGES = ("pt", "hr", "sr", "da", "sk", "sv")
PASSAGE_WORDS = 190
_TIMES = {"ewt_uner": 1.5, "wikigold": 2.0, "btc": 1.5, "litbank_prop": 2.0, "sr": 1.5, "da": 1.5, "sk": 1.5, "sv": 1.5}
"""How often an epoch of stage one reads a corpus."""
_TIMES_TWO = {"wikigold": 2, "litbank_prop": 2}
"""How often an epoch of stage two does."""
_TEXT_WORDS = 150_000
"""Words of labelled English texts that stage two learns from."""
_LONGEST = 256
_IN_PASSAGES = 0.67
_RATE, _EPOCHS, _SENTENCES = 8e-4, 3, 64
_STAGE_TWO = {
    "epochs": 2,
    "batch_sentences": 32,
    "document_sentences": 64,
    "clip_norm": 5.0,
    "optimizers": {
        # Its drafts stay all but the same.
        "stage_one": {"kind": "adam", "learning_rate": 1e-6},
        "stage_two": {"kind": "adam", "learning_rate": _RATE, "schedule": "linear", "warmup": 0.05},
    },
}
WORK = click.argument("work", type=click.Path(path_type=Path, exists=True, file_okay=False))


@click.group(help=__doc__)
def main() -> None:
    """Read the command line."""
    torch.set_num_threads(1)


@main.command("corpora")
@WORK
@click.argument("corpora", type=click.Path(path_type=Path, exists=True, file_okay=False))
def read_corpora(work: Path, corpora: Path) -> None:
    """Write WORK/languages.pt; every second Portuguese document has its contractions in one word."""
    found: dict[str, dict[str, Any]] = {"train": {}, "dev": {}}
    for part, by_language in found.items():
        for language in LANGUAGES:
            documents = [
                [
                    Sentence(words=one.words, labels=one.labels)
                    for one in document.sentences
                    if 0 < len(one.words) <= _LONGEST
                ]
                for document in read_documents([str(next((corpora / f"uner_{language}").glob(f"{part}.*")))], labels={})
            ]
            if language == "pt" and part == "train":
                documents[1::2] = [list(map(_contracted, document)) for document in documents[1::2]]
            by_language[language] = [
                [(one.words, one.labels) for one in document] for document in documents if document
            ]
            click.echo(f"{language} {part}: {sum(len(one.words) for one in flat(documents)):,} words")
    torch.save(found, work / "languages.pt")


def _contracted(sentence: Sentence) -> Sentence:
    words: list[str] = []
    labels: list[str] = []
    for word, label in zip(sentence.words, sentence.labels or (), strict=True):
        is_one = words and not label.startswith("B-") and (label == "O") == (labels[-1] == "O")
        written = contraction(words[-1], word) if is_one else None
        if written is None:
            words.append(word)
            labels.append(label)
        else:
            words[-1] = written
    return Sentence(words=tuple(words), labels=tuple(labels))


@main.command("features")
@WORK
def compute_features(work: Path) -> None:
    """Compute the encoder's states of all words, in passages and in sentences: WORK/passages.pt and sentences.pt."""
    everything = [document for documents in _corpora(work, "train").values() for document in documents]
    everything += [*Prepared.read(work).texts]
    encoder = FrozenEncoder(EncoderConfig(source=BUNDLED_NAME), pass_subwords=512)
    for name, words in (("sentences", 0), ("passages", PASSAGE_WORDS)):
        read = [words_of for document in everything for words_of in _read_at_once(document, words)]
        states = [torch.cat(encoder.features(read[start : start + 256])).half() for start in range(0, len(read), 256)]
        torch.save(torch.cat(states), work / f"{name}.pt")


def _read_at_once(document: Sequence[Sentence], words: int) -> Iterator[tuple[str, ...]]:
    if not words:
        yield from (sentence.words for sentence in document)
        return
    passages = (sentence.passage for sentence in with_passages(document, words))
    yield from (passage.words for passage in dict.fromkeys(passages) if passage is not None)


@main.command("stage-one")
@WORK
@click.argument("start", type=click.Path(path_type=Path, exists=True, file_okay=False))
def train_stage_one(work: Path, start: Path) -> None:
    """Train stage one on all languages and the labelled texts; write WORK/stage-one."""
    corpora, texts = _corpora(work, "train"), Prepared.read(work).texts
    tagger = _with_characters(load_tagger(start), flat(_documents(corpora)))
    sentences = flat([*_documents(corpora), *texts])
    wanted = [_gold_targets(name, flat(documents), tagger.vocabulary) for name, documents in corpora.items()]
    targets = Features(
        sentences, torch.cat([*wanted, soft_targets(flat(texts), tagger.vocabulary, _labels(work), "cpu")])
    )
    features = Features(sentences, _mixed(work, [*_documents(corpora), *texts]))
    network = tagger.draft_network

    def loss_of(batch: Sequence[Sentence]) -> Tensor:
        logits, _ = network(tagger.encode(batch), features.batch(batch))
        scores, wanted = logits.log_softmax(dim=-1), targets.batch(batch)
        certain = -(scores * wanted).sum(-1)
        allowed = -scores.masked_fill(wanted == 0, -1e4).logsumexp(-1)
        # A word with several labels of weight 1 may have any of them.
        loss: Tensor = torch.where(wanted.sum(-1) > 1.5, allowed, certain).sum() / _SENTENCES
        return loss

    torch.manual_seed(1)
    read = [*repeated(corpora, _TIMES), *flat(texts)]
    batches = [like_lengths(read, random.Random(f"m/{epoch}")) for epoch in range(_EPOCHS)]
    learn(
        network, [{"params": list(network.parameters()), "lr": _RATE}], batches, loss_of, name="stage one", warmup=0.05
    )
    save_tagger(tagger, work / "stage-one")


@main.command("stage-two")
@WORK
@click.argument("seed", type=int)
def train_stage_two(work: Path, seed: int) -> None:
    """Train stage two on the drafts of stage one; write WORK/stage-two-SEED."""
    tagger = load_tagger(work / "stage-one")
    prepared, corpora = Prepared.read(work), _corpora(work, "train")
    every = [*_documents(corpora), *prepared.texts]
    kept = load_encoder(tagger.config.encoder or EncoderConfig(), "cpu").kept
    for words, rows in zip(*_passages(work, every), strict=True):
        kept[words] = rows.float()
    names, lacks = tagger.vocabulary.labels, _further(tagger.vocabulary)
    taught: list[list[Sentence]] = []
    for name, documents in corpora.items():
        for document in documents:
            soft = [
                allowed_labels(one.labels or (), names, lacks=lacks, scheme=tagger.vocabulary.scheme)
                if name in LANGUAGES
                else None
                for one in document
            ]
            taught += [[replace(one, soft=it) for one, it in zip(document, soft, strict=True)]] * _TIMES_TWO.get(
                name, 1
            )
    tagger.draft_network.requires_grad_(False)
    config = FitConfig.from_mapping({**_STAGE_TWO, "seed": seed})
    dev = [*prepared.dev.values()]
    fit(tagger, [*taught, *_labelled(work, prepared.texts)], dev, config, work / f"stage-two-{seed}")


def _corpora(work: Path, part: str) -> dict[str, Documents]:
    """Return the English corpora and those of the other languages."""
    others = torch.load(work / "languages.pt", weights_only=True)[part]
    read = {
        name: [[Sentence(words=words, labels=labels) for words, labels in document] for document in documents]
        for name, documents in others.items()
    }
    return {**getattr(Prepared.read(work), part), **read}


def _documents(corpora: Mapping[str, Documents]) -> list[Sequence[Sentence]]:
    return [document for documents in corpora.values() for document in documents]


def _with_characters(tagger: Any, sentences: Iterable[Sentence]) -> TwoStageTagger:
    """Return a tagger over passages that knows all characters of the sentences, new ones as the unknown one."""
    vocabulary = tagger.vocabulary
    seen = {one for sentence in sentences for word in sentence.words for one in vocabulary.spelling(word)}
    new = sorted(seen - set(vocabulary.characters))
    encoder = tagger.config.encoder.model_copy(update={"passage_words": PASSAGE_WORDS})
    config = tagger.config.model_copy(update={"encoder": encoder})
    wider = DocUaNet(config, replace(vocabulary, characters=(*vocabulary.characters, *new)))
    state = tagger.state_dict()
    for name, value in state.items():
        if name.endswith("characters.embedding.weight"):
            state[name] = torch.cat([value, value[1:2].expand(len(new), -1)])
    wider.load_state_dict(state)
    return wider


def _further(vocabulary: Vocabulary) -> list[str]:
    return [kind for kind in vocabulary.entity_types if kind not in GOLD_TYPES]


def _gold_targets(corpus: str, sentences: Sequence[Sentence], vocabulary: Vocabulary) -> Tensor:
    """Return 1 for each label that a word may have, shape ``(N, L)``, fp16."""
    rows = gold_targets(sentences, vocabulary, "cpu").rows
    if corpus in LANGUAGES:
        numbers = {name: number for number, name in enumerate(vocabulary.labels)}
        allowed = [numbers[one] for one in vocabulary.scheme.label_set(_further(vocabulary))]
        rows[rows[:, numbers["O"]].nonzero(), torch.tensor(allowed)] = 1
    return rows


def _labels(work: Path) -> Mapping[str, Any]:
    labels: Mapping[str, Any] = torch.load(work / "labels.pt", weights_only=True)
    return labels


def _mixed(work: Path, documents: Documents) -> Tensor:
    """Return the states of documents, of most in passages, of the others in sentences."""
    rows: Tensor = torch.load(work / "passages.pt", weights_only=True)
    alone: Tensor = torch.load(work / "sentences.pt", weights_only=True)
    draw, place = random.Random(1), 0
    for document in documents:
        words = sum(len(sentence.words) for sentence in document)
        if draw.random() >= _IN_PASSAGES:
            rows[place : place + words] = alone[place : place + words]
        place += words
    return rows


def _passages(work: Path, documents: Documents) -> tuple[list[tuple[str, ...]], tuple[Tensor, ...]]:
    """Return the words of all passages and their states."""
    words = [passage for document in documents for passage in _read_at_once(document, PASSAGE_WORDS)]
    rows = torch.load(work / "passages.pt", weights_only=True, mmap=True)
    return words, rows.split([len(one) for one in words])


def _labelled(work: Path, texts: Documents) -> list[list[Sentence]]:
    """Return texts of about ``_TEXT_WORDS`` words, drawn at random, with the probabilities of their labels."""
    soft = iter(with_soft_labels(flat(texts), _labels(work)))
    taught = [[next(soft) for _ in document] for document in texts]
    found: list[list[Sentence]] = []
    left = _TEXT_WORDS
    for document in random.Random(3).sample(taught, len(taught)):
        if left <= 0:
            break
        found.append(document)
        left -= sum(len(sentence.words) for sentence in document)
    return found


if __name__ == "__main__":
    main()
