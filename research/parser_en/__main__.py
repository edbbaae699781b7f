"""Train the bundled parser_en, step by step; each step may be stopped and repeated.

\b
    python -m research.parser_en tokenizer WORK --treebank EWT --tokens LITBANK --tokens WIKIGOLD
    python -m research.parser_en teacher WORK --treebank EWT
    python -m research.parser_en silver WORK --treebank EWT --tokens LITBANK --text TEXTS.jsonl
    python -m research.parser_en student WORK --treebank EWT
    python -m research.parser_en pack WORK -o models/pretrained/parser_en
    python -m research.parser_en score EWT/test.conllu
    python -m research.parser_en faults GUM/dev.conllu

WORK is a folder of what was made. EWT is a folder with train.conllu and dev.conllu, compressed or not; --tokens names a
file of sentences of tokens, one a line with its label.
"""

import json
import random
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import click
import torch
from stanza.models.common.pretrain import Pretrain
from stanza.models.depparse.transition.model import SubtreeCombination
from stanza.models.lemma.trainer import Trainer as Lemmatizer
from stanza.models.pos.vocab import MultiVocab

from concord.pipeline.config import ParserConfig
from concord.pipeline.documents import Document
from concord.pipeline.parsing.stanza_parser import StanzaParser
from concord.workflows.corpora import read_corpora
from research.parser_en import raw_text, silver, student, teacher, tokenizer
from research.parser_en.conllu import ConlluSentence, read_sentences
from research.parser_en.faults import count_faults
from research.parser_en.forms import make_pretrain
from research.parser_en.pack import pack as write_package
from research.parser_en.score import score as score_package
from research.texts import split_texts

EARLIER = Path(__file__).resolve().parents[2] / "models" / "pretrained" / "parser_en"
_TEXTS_AT_ONCE = 8
_LONGEST = 100
_FORMS, _DIMENSION = 25_000, 128
_TAGGER = {"hidden_dim": 160, "deep_biaff_hidden_dim": 128, "transformed_dim": 100, "dropout": 0.25}
_PARSER = {"hidden_dim": 128, "deep_biaff_hidden_dim": 80, "transformed_dim": 100, "dropout": 0.2}
_BOTH = {"word_emb_dim": 50, "pretrain": True, "word_dropout": 0.05}

WORK = click.argument("work", type=click.Path(path_type=Path, file_okay=False))
TREEBANK = click.option("--treebank", type=click.Path(path_type=Path, exists=True, file_okay=False), required=True)
TOKENS = click.option("--tokens", type=click.Path(path_type=Path, exists=True, dir_okay=False), multiple=True)

PACKAGE = click.option(
    "--package", type=click.Path(exists=True, file_okay=False), help="Folder of a package; else the bundled one."
)


@click.group(help=__doc__)
def main() -> None:
    """Read the command line."""
    torch.set_num_threads(1)


@main.command("tokenizer")
@WORK
@TREEBANK
@TOKENS
@click.option("--hidden", default=32, show_default=True, help="Units of each LSTM in each direction.")
@click.option("--steps", default=2_500, show_default=True)
def train_tokenizer(work: Path, treebank: Path, tokens: Sequence[Path], hidden: int, steps: int) -> None:
    """Train the tokenizer on paragraphs of the treebank and on text made of tokens."""
    draw = random.Random(1)
    paragraphs = list(raw_text.read_paragraphs(_part(treebank, "train")))
    made = [one for document in _documents(tokens) for one in raw_text.joined(document, draw)]
    # Texts whose paragraphs are not marked are one paragraph.
    runs = list(raw_text.merged(raw_text.read_documents(_part(treebank, "train")), draw))
    raw_text.write(work, "train", [*paragraphs, *paragraphs, *runs, *made])
    raw_text.write(work, "dev", raw_text.read_paragraphs(_part(treebank, "dev")))
    tokenizer.train(work, tokenizer.Settings(hidden, steps), work / "tokenize.pt")


@main.command("teacher")
@WORK
@TREEBANK
def train_teacher(work: Path, treebank: Path) -> None:
    """Train the teacher on the treebank."""
    trained = teacher.train(_sentences(treebank, "train"), _sentences(treebank, "dev"), teacher.Settings())
    work.mkdir(parents=True, exist_ok=True)
    torch.save({"names": trained.names, "shapes": trained.shapes, "model": trained.state_dict()}, work / "teacher.pt")


@main.command("silver")
@WORK
@TREEBANK
@TOKENS
@click.option("--text", type=click.Path(path_type=Path, exists=True, dir_okay=False), multiple=True)
@click.option("--words", default=350_000, show_default=True, help="Words of each file of texts.")
def label(work: Path, treebank: Path, tokens: Sequence[Path], text: Sequence[Path], words: int) -> None:
    """Let the teacher label sentences of tokens and of texts, and make the form vectors."""
    sentences = chain(
        (raw_text.split_compounds(sentence) for document in _documents(tokens) for sentence in document),
        chain.from_iterable(_split(path, words) for path in text),
    )
    distinct = [sentence for sentence in dict.fromkeys(sentences) if 0 < len(sentence) <= _LONGEST]
    treebank_words = [word for sentence in _sentences(treebank, "train") for word in sentence.words]
    pretrain = make_pretrain([*treebank_words * 3, *chain.from_iterable(distinct)], dimension=_DIMENSION, forms=_FORMS)
    pretrain.save(str(work / "pretrain.pt"))
    saved = torch.load(work / "teacher.pt", weights_only=True)
    trained = teacher.Teacher(saved["names"], saved["shapes"])
    trained.load_state_dict(saved["model"])
    labelled = list(silver.label(trained, distinct, _vocabularies()["depparse"], _lemmatizer()))
    student.write_labelled(work / "silver.npz", labelled)


@main.command("student")
@WORK
@TREEBANK
@click.option("--epochs", default=student.Settings().epochs, show_default=True)
def train_student(work: Path, treebank: Path, epochs: int) -> None:
    """Train tagger and parser on the treebank and on what the teacher labelled."""
    pretrain = Pretrain(str(work / "pretrain.pt"))
    vocabularies = _vocabularies()
    trainers = student.build(
        vocabularies, {"pos": _config("pos", _TAGGER), "depparse": _config("depparse", _PARSER)}, pretrain
    )
    labelled = student.read_labelled(work / "silver.npz")
    parts = [
        [student.gold(each, vocabularies["depparse"]) for each in _sentences(treebank, n)] for n in ("train", "dev")
    ]
    student.train(trainers, pretrain, (parts[0], labelled, parts[1]), student.Settings(epochs=epochs), work)


@main.command("pack")
@WORK
@click.option("--output", "-o", type=click.Path(path_type=Path, file_okay=False), required=True)
def pack(work: Path, output: Path) -> None:
    """Write the Stanza package."""
    write_package(work, EARLIER, output)


@main.command("score")
@click.argument("treebanks", type=click.Path(path_type=Path, exists=True, dir_okay=False), nargs=-1)
@PACKAGE
def score(treebanks: Sequence[Path], package: str | None) -> None:
    """Print the scores of a package on the raw text of treebanks."""
    click.echo(json.dumps(score_package(_parser(package), treebanks), indent=1))


@main.command("faults")
@click.argument("treebank", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@PACKAGE
def faults(treebank: Path, package: str | None) -> None:
    """Print the faults of a package's sentence ends on the raw text of a treebank."""
    click.echo(json.dumps(count_faults(_parser(package), treebank), indent=1))


def _parser(package: str | None) -> ParserConfig:
    return ParserConfig() if package is None else ParserConfig(package="compact", directory=package)


def _documents(tokens: Sequence[Path]) -> list[list[Sequence[str]]]:
    """Read sentences of words by document, whatever their labels."""
    return [[sentence.words for sentence in found] for found in read_corpora(map(str, tokens), labels={})]


def _part(treebank: Path, part: str) -> Path:
    return next(treebank.glob(f"{part}.conllu*"))


def _sentences(treebank: Path, part: str) -> list[ConlluSentence]:
    return list(read_sentences(_part(treebank, part)))


def _split(path: Path, words: int) -> Iterator[tuple[str, ...]]:
    """Split texts, drawn at random, into sentences of words, until there are so many words."""
    parser = StanzaParser(ParserConfig(trees=False, tags=False))
    texts = [json.loads(line)["text"] for line in path.read_text(encoding="utf-8").splitlines()]
    random.Random(1).shuffle(texts)
    found = 0
    for start in range(0, len(texts), _TEXTS_AT_ONCE):
        part = texts[start : start + _TEXTS_AT_ONCE]
        documents = [
            Document(doc_id=str(n), text=t, source_uri=str(path), source_position=n) for n, t in enumerate(part)
        ]
        for sentences in split_texts(parser, documents):
            yield from sentences
            found += sum(map(len, sentences))
        if found >= words:
            return


def _saved(processor: str) -> dict[str, Any]:
    saved: dict[str, Any] = torch.load(next((EARLIER / "en" / processor).glob("*.pt")), weights_only=True)
    return saved


def _vocabularies() -> dict[str, Any]:
    """Return the vocabularies of the earlier package; the parser's tags are numbered as the tagger's."""
    found = {processor: MultiVocab.load_state_dict(_saved(processor)["vocab"]) for processor in ("pos", "depparse")}
    for name in ("upos", "xpos", "feats"):
        found["depparse"][name] = found["pos"][name]
    return found


def _lemmatizer() -> Lemmatizer:
    return Lemmatizer(model_file=str(next((EARLIER / "en" / "lemma").glob("*.pt"))))


def _config(processor: str, changed: dict[str, Any]) -> dict[str, Any]:
    stanza = {"enable_gradient_checkpointing": False, "transition_subtree_combination": SubtreeCombination.NONE}
    return {**_saved(processor)["config"], **_BOTH, **changed, **(stanza if processor == "depparse" else {})}


if __name__ == "__main__":
    main()
