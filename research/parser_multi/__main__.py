"""Train the bundled parser_multi, step by step; each step may be repeated.

\b
    python -m research.parser_multi tokenizer WORK CORPORA
    python -m research.parser_multi states WORK CORPORA
    python -m research.parser_multi teacher WORK
    python -m research.parser_multi silver WORK CORPORA
    python -m research.parser_multi network WORK
    python -m research.parser_multi pack WORK CORPORA -o models/pretrained/parser_multi
    python -m research.parser_multi score CORPORA --summary benchmarks/results/parser_multi_cpu_202611.json

WORK is a folder of what was made, CORPORA one as ``corpora.py`` describes. The teacher is two networks of the form of
the one that is trained, whose chances are averaged.
"""

import json
import random
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

import click
import numpy as np
import torch

from concord.pipeline.config import ParserConfig
from concord.pipeline.parsing.biaffine import BiaffineConfig
from concord.pipeline.parsing.stanza_packages import NETWORK_NAME
from research.parser_en import raw_text, tokenizer
from research.parser_en.conllu import ConlluSentence
from research.parser_en.score import score as score_package
from research.parser_en.score import score_name, score_words
from research.parser_multi import network, texts
from research.parser_multi.corpora import EWT, documents_to_label, labelled, tokenizer_texts, treebanks
from research.parser_multi.labels import Labels, Numbers, language_of, names_of, read_treebank
from research.parser_multi.pack import pack as write_package
from research.parser_multi.states import WIDTH, write_states

_TOKENIZER = tokenizer.Settings(hidden=48, steps=5_000, unit_dropout=0.03)
_SMALL = dict.fromkeys(("da", "de", "fi", "nl", "sk", "sv"), 2)
_TEACHER = network.Settings(epochs=5, times=_SMALL)
_SEEDS = (1, 2)
_FIRST = network.Settings(epochs=2, rate=1.5e-3, times={**_SMALL, "en": 3})
_ROUNDS = (_FIRST, _FIRST._replace(rate=1e-3, seed=3))
_CYRILLIC, _DEV = "sr_cyrillic", "en_dev"

FOLDER = click.Path(path_type=Path, file_okay=False)
WORK = click.argument("work", type=FOLDER)
CORPORA = click.argument("corpora", type=click.Path(path_type=Path, exists=True, file_okay=False))


@click.group(help=__doc__)
def main() -> None:
    """Read the command line."""
    torch.set_num_threads(1)


@main.command("tokenizer")
@WORK
@CORPORA
def train_tokenizer(work: Path, corpora: Path) -> None:
    """Train the tokenizer: WORK/tokenize.pt."""
    expanded = texts.expansions(_train_parts(corpora))
    for part in ("train", "dev"):
        paragraphs = tokenizer_texts(corpora, part, random.Random(1))
        raw_text.write(work, part, (texts.marked(one, expanded) for one in paragraphs))
    tokenizer.train(work, _TOKENIZER, work / "tokenize.pt")


@main.command("states")
@WORK
@CORPORA
def compute_states(work: Path, corpora: Path) -> None:
    """Number the labels of the treebanks, and compute the states of their words: WORK/network.json, WORK/gold."""
    (work / "gold").mkdir(parents=True, exist_ok=True)
    config = names_of((one for path in _train_parts(corpora) for one in _sentences(path)), WIDTH)
    (work / NETWORK_NAME).write_text(config.model_dump_json() + "\n", encoding="utf-8")
    numbers = Numbers(config)
    for path in [labelled(corpora, EWT, "dev"), *_train_parts(corpora)]:
        documents = read_treebank(path)
        words = [[one.words for one in document] for document in documents]
        labels = Labels.joined([numbers.gold(one) for document in documents for one in document])
        name = _DEV if path == labelled(corpora, EWT, "dev") else language_of(path)
        network.write(work / "gold" / name, labels, words)
        if name == "sr":
            network.write(work / "gold" / _CYRILLIC, labels, [texts.document_in_cyrillic(one) for one in words])


@main.command("teacher")
@WORK
def train_teacher(work: Path) -> None:
    """Train the networks of the teacher on the treebanks: WORK/teacher-1.pt and WORK/teacher-2.pt."""
    gold, dev = _gold(work)
    for seed in _SEEDS:
        settings = _TEACHER._replace(seed=seed)
        network.train(_config(work), gold, [dev], settings, work / f"teacher-{seed}.pt")


@main.command("silver")
@WORK
@CORPORA
def make_silver(work: Path, corpora: Path) -> None:
    """Compute the states of further texts, and let the teacher label them: WORK/silver."""
    (work / "silver").mkdir(parents=True, exist_ok=True)
    teachers = [network.load(_config(work), work / f"teacher-{seed}.pt") for seed in _SEEDS]
    for name, language, documents in documents_to_label(corpora):
        if language == "sr":
            documents[1::2] = map(texts.document_in_cyrillic, documents[1::2])
        path = work / "silver" / f"{name}.npy"
        write_states(path, documents)
        lengths = [len(words) for document in documents for words in document]
        found = network.label(teachers, np.load(path, mmap_mode="r"), lengths, language)
        np.savez(path.with_suffix(".npz"), **found._asdict())


@main.command("network")
@WORK
def train_network(work: Path) -> None:
    """Train the network on treebanks and texts, from the first of the teacher's: WORK/network.pt."""
    gold, dev = _gold(work)
    silver = [network.Corpus.read(path) for path in sorted((work / "silver").glob("*.npz"))]
    start = network.load(_config(work), work / f"teacher-{_SEEDS[0]}.pt")
    for settings in _ROUNDS:
        start = network.train(_config(work), [*gold, *silver], [dev], settings, work / "network.pt", start=start)


@main.command("pack")
@WORK
@CORPORA
@click.option("--output", "-o", type=FOLDER, required=True)
def pack(work: Path, corpora: Path, output: Path) -> None:
    """Write the package."""
    paths = _train_parts(corpora)
    write_package(work, output, [one for path in paths for one in _sentences(path)], texts.expansions(paths))


@main.command("score")
@CORPORA
@click.option("--summary", type=click.Path(path_type=Path, dir_okay=False), required=True)
def score(corpora: Path, summary: Path) -> None:
    """Write the scores of the package on test parts, from raw text and on gold words."""
    paths = [*treebanks(corpora, "test"), *(labelled(corpora, name, "test") for name in (EWT, "gum_ne_open"))]
    config = ParserConfig(package="parser_multi")
    report = {
        "measured": "Scores of parser_multi on test parts, in percent, by the scorer of the CoNLL 2018 shared task.",
        "command": shlex.join(["python", "-m", "research.parser_multi", *sys.argv[1:]]),
        "raw_text": (raw := score_package(config, paths)),
        "means": _means({language_of(path): raw[score_name(path)] for path in treebanks(corpora, "test")}),
        "gold_words": score_words(config, paths),
    }
    summary.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def _means(scores: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each metric over languages; both of Norwegian count as one."""
    shares = {language: 0.5 if language in {"nb", "nn"} else 1.0 for language in scores}
    metrics = next(iter(scores.values()))
    return {
        name: round(sum(shares[one] * own[name] for one, own in scores.items()) / sum(shares.values()), 2)
        for name in metrics
    }


def _gold(work: Path) -> tuple[list[network.Corpus], network.Corpus]:
    """Return the treebanks, and the one that is kept for scores meanwhile."""
    *corpora, dev = sorted(
        (network.Corpus.read(path) for path in (work / "gold").glob("*.npz")),
        key=lambda one: (one.name == _DEV, one.name),
    )
    return corpora, dev


def _train_parts(corpora: Path) -> list[Path]:
    return [*treebanks(corpora), labelled(corpora, EWT)]


def _sentences(path: Path) -> list[ConlluSentence]:
    return [sentence for document in read_treebank(path) for sentence in document]


def _config(work: Path) -> BiaffineConfig:
    return BiaffineConfig.model_validate_json((work / NETWORK_NAME).read_bytes())


if __name__ == "__main__":
    main()
