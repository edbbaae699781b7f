"""Train the tokenizer of the bundled parser_multi: sentences and words of several languages that write spaces.

\b
    python -m research.parser_multi train WORK -t EWT -t UNER_PT -t UNER_HR ...
    python -m research.parser_multi pack WORK -o models/pretrained/parser_multi
    python -m research.parser_multi score UNER_PT/dev.conllu UNER_HR/dev.conllu ...

A treebank is a folder with train.conllu and dev.conllu, compressed or not, with ``SpaceAfter``. The network is that of
``parser_en``, trained likewise. A multi-word token whose words are its parts, such as "don't", is as many tokens here;
the others stay whole.
"""

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import torch

from concord.pipeline.config import ParserConfig
from concord.pipeline.documents import DeadLetter, Document
from concord.pipeline.parsing.stanza_parser import StanzaParser
from research.parser_en import raw_text, tokenizer
from research.parser_en.pack import pack_tokenizer
from research.parser_en.raw_text import Paragraph, Token

_AFTER_DE = (
    "o a os as ele ela eles elas este esta estes estas esse essa esses essas aquele aquela isto isso aquilo um uma"
)
_CONTRACTIONS = {"de": _AFTER_DE, "em": _AFTER_DE, "a": "o a os as", "por": "o a os as"}
_STEMS = {"de": "d", "em": "n", "a": "a", "por": "pel"}
_SIZE = 300_000
"""About so many words of each treebank are read in an epoch; smaller ones up to three times."""


def contraction(first: str, second: str) -> str | None:
    """Return what Portuguese writes for two words; None where they stay two."""
    if second not in _CONTRACTIONS.get(first.lower(), "").split():
        return None
    if first.lower() == "a":
        written = {"o": "ao", "os": "aos", "a": "à", "as": "às"}[second]
    else:
        written = _STEMS[first.lower()] + second
    return written.capitalize() if first[0].isupper() else written


def contracted(paragraph: Paragraph) -> Paragraph:
    """Return a Portuguese paragraph as people write it, where the treebank has "de o" for "do"."""
    found = []
    for sentence in paragraph:
        tokens: list[Token] = []
        for token in sentence:
            written = contraction(tokens[-1].text, token.text) if tokens and tokens[-1].space_after else None
            if written is None:
                tokens.append(token)
            else:
                tokens[-1] = Token(written, 1, token.space_after)
        found.append(tokens)
    return found


def runs(path: Path, draw: random.Random) -> Iterator[Paragraph]:
    """Yield the sentences of a treebank in runs of one to nine, each ending with a space but the last."""
    sentences: list[Sequence[Token]] = []
    left = draw.randint(1, 9)
    for paragraph in raw_text.read_paragraphs(path, split=True):
        for number, sentence in enumerate(paragraph, start=1):
            sentences.append([*sentence[:-1], sentence[-1]._replace(space_after=True)])
            left -= 1
            if not left or (number == len(paragraph) and draw.random() < 0.5):
                yield sentences
                sentences, left = [], draw.randint(1, 9)
    if sentences:
        yield sentences


@click.group(help=__doc__)
def main() -> None:
    """Read the command line."""
    torch.set_num_threads(1)


@main.command("train")
@click.argument("work", type=click.Path(path_type=Path, file_okay=False))
@click.option("-t", "--treebank", "treebanks", type=click.Path(path_type=Path, exists=True), multiple=True)
@click.option("--hidden", default=48, show_default=True, help="Units of each LSTM in each direction.")
@click.option("--steps", default=4_000, show_default=True)
def train(work: Path, treebanks: Sequence[Path], hidden: int, steps: int) -> None:
    """Train on the train parts; report scores on the dev parts meanwhile."""
    draw = random.Random(1)
    read: dict[str, list[Paragraph]] = {"train": [], "dev": []}
    for folder in treebanks:
        for part, paragraphs in read.items():
            own = list(runs(next(folder.glob(f"{part}.con*")), draw))
            if part == "train":
                words = sum(len(sentence) for paragraph in own for sentence in paragraph)
                own *= min(3, max(1, round(_SIZE / words)))
            if "pt" in folder.name.split("_"):
                own = [contracted(one) if draw.random() < 0.6 else one for one in own]
            paragraphs += own
    for part, paragraphs in read.items():
        raw_text.write(work, part, paragraphs)
    settings = tokenizer.Settings(hidden, steps, unit_dropout=0.03)
    tokenizer.train(work, settings, work / "tokenize.pt")


@main.command("pack")
@click.argument("work", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("-o", "--output", type=click.Path(path_type=Path, file_okay=False), required=True)
def pack(work: Path, output: Path) -> None:
    """Write the package that Stanza reads."""
    pack_tokenizer(work / "tokenize.pt", output)


@main.command("score")
@click.argument("files", type=click.Path(path_type=Path, exists=True, dir_okay=False), nargs=-1)
@click.option("--package", default="parser_multi", show_default=True)
def score(files: Sequence[Path], package: str) -> None:
    """Print F1 of words and of sentences from raw text, in percent, by file."""
    parser = StanzaParser(ParserConfig(package=package, trees=False, tags=False))
    for path in files:
        counts = [[0, 0, 0], [0, 0, 0]]
        for number, paragraph in enumerate(runs(path, random.Random(1))):
            text, _ = raw_text.labelled(paragraph)
            document = Document(doc_id=str(number), text=text, source_uri=path.name, source_position=0)
            (found,) = parser.parse([document])
            gold = _spans(paragraph)
            if isinstance(found, DeadLetter):
                raise click.ClickException(f"{path}: {found.message}")
            words = [[(word.start_char, word.end_char) for word in one.words] for one in found.sentences]
            guessed = [word for one in words for word in one], [(one[0][0], one[-1][1]) for one in words]
            for row, (wanted, given) in enumerate(zip(gold, guessed, strict=True)):
                for column, amount in enumerate((len(set(wanted) & set(given)), len(given), len(wanted))):
                    counts[row][column] += amount
        f1s = [round(200 * right / (given + wanted), 2) for right, given, wanted in counts]
        click.echo(json.dumps({"file": str(path.parent.name), "words": f1s[0], "sentences": f1s[1]}))


def _spans(paragraph: Paragraph) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    words, sentences, place = [], [], 0
    for sentence in paragraph:
        start = place
        for token in sentence:
            words.append((place, place + len(token.text)))
            place += len(token.text) + token.space_after
        sentences.append((start, words[-1][1]))
    return words, sentences


if __name__ == "__main__":
    main()
