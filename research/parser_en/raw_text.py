"""Text with known ends of tokens and sentences, to train a tokenizer on: from CoNLL-U, and from tokens alone."""

import random
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

_CLITIC = re.compile(r"(?:n['’]t|['’](?:s|ll|re|ve|d|m))$", re.IGNORECASE)
_NO_SPACE_BEFORE = re.compile(r"^(?:[.,;:!?)\]}%…]+|'+|’+|”)$")
_NO_SPACE_AFTER = re.compile(r"^[(\[{$£€“‘`]+$")
_PREFIXES = frozenset(
    [
        *("anti", "co", "counter", "e", "ex", "inter", "intra", "micro", "mid", "multi", "neo", "non", "over", "post"),
        *("pre", "pro", "re", "semi", "sub", "un"),
    ]
)


class Token(NamedTuple):
    """A token as it stands in the text."""

    text: str
    words: int
    space_after: bool


Paragraph = Sequence[Sequence[Token]]


def labelled(paragraph: Paragraph) -> tuple[str, str]:
    """Return a paragraph's text and the label of each of its characters, as Stanza's tokenizer reads them."""
    text, labels = [], []
    for sentence in paragraph:
        for number, token in enumerate(sentence, start=1):
            is_last = number == len(sentence)
            end = str((1 + is_last) + 2 * (token.words > 1))
            text.append(token.text + " " * token.space_after)
            labels.append("0" * (len(token.text) - 1) + end + "0" * token.space_after)
    return "".join(text), "".join(labels)


def read_paragraphs(path: Path, *, split: bool = False) -> Iterator[Paragraph]:
    """Read the paragraphs of a treebank; a document without them is one paragraph.

    With ``split`` a multi-word token whose words are its parts, such as "don't", becomes as many tokens.
    """
    return (paragraph for _, paragraph in _marked_paragraphs(path, split=split))


def _marked_paragraphs(path: Path, *, split: bool = False) -> Iterator[tuple[bool, Paragraph]]:
    """Yield the paragraphs, and whether each starts a document."""
    starts = True
    sentences: list[list[Token]] = []
    tokens: list[Token] = []
    inside = 0
    parts: list[str] = []
    for line in [*pa.input_stream(str(path)).read().decode().splitlines(), ""]:
        if line.startswith(("# newpar", "# newdoc")):
            if sentences:
                yield starts, sentences
                sentences, starts = [], False
            starts = starts or line.startswith("# newdoc")
        elif line and not line.startswith("#"):
            number, form, *_, misc = line.split("\t")
            space = "SpaceAfter=No" not in misc.split("|")
            if "-" in number:
                first, last = map(int, number.split("-"))
                tokens.append(Token(form, 1 + last - first, space))
                inside, parts = last, []
            elif split and number.isdigit() and int(number) <= inside:
                parts.append(form)
                whole = tokens[-1]
                if int(number) == inside and "".join(parts) == whole.text:
                    cut = [Token(part, 1, space_after=False) for part in parts]
                    tokens[-1:] = [*cut[:-1], cut[-1]._replace(space_after=whole.space_after)]
            elif number.isdigit() and int(number) > inside:
                tokens.append(Token(form, 1, space))
        elif not line and tokens:
            sentences.append(tokens)
            tokens, inside = [], 0
    if sentences:
        yield starts, sentences


def read_documents(path: Path, *, split: bool = False) -> Iterator[list[Paragraph]]:
    """Read the paragraphs of each document of a treebank; ``split`` as in ``read_paragraphs``."""
    document: list[Paragraph] = []
    for starts, paragraph in _marked_paragraphs(path, split=split):
        if starts and document:
            yield document
            document = []
        document.append(paragraph)
    yield document


def merged(documents: Iterable[Sequence[Paragraph]], draw: random.Random) -> Iterator[Paragraph]:
    """Join two to five paragraphs of a document to one, by a space."""
    for document in documents:
        first = 0
        while first < len(document):
            last = first + draw.randint(2, 5)
            sentences = [list(sentence) for paragraph in document[first:last] for sentence in paragraph]
            if len(document[first:last]) > 1:
                for sentence in sentences:
                    sentence[-1] = sentence[-1]._replace(space_after=True)
                yield sentences
            first = last


def write(folder: Path, part: str, paragraphs: Iterable[Paragraph]) -> None:
    """Write paragraphs as Stanza's training reads them: ``PART.txt`` and the labels in ``PART.lab``."""
    folder.mkdir(parents=True, exist_ok=True)
    texts, labels = zip(*map(labelled, paragraphs), strict=True)
    for suffix, lines in (("txt", texts), ("lab", labels)):
        trimmed = (line[: len(text.rstrip())] for line, text in zip(lines, texts, strict=True))
        (folder / f"{part}.{suffix}").write_text("\n\n".join(trimmed) + "\n", encoding="utf-8")


def joined(sentences: Iterable[Sequence[str]], draw: random.Random) -> Iterator[Paragraph]:
    """Write tokens as text, in paragraphs of a few sentences; quotation marks go with what they enclose.

    What a clitic belongs to becomes one token of two words, as in UD.
    """
    paragraph: list[list[Token]] = []
    is_open = False
    curly = draw.random() < 0.3
    left = draw.randint(1, 9)
    for sentence in sentences:
        if any(" " in token or not token for token in sentence):
            continue
        tokens: list[Token] = []
        for number, token in enumerate(sentence):
            before = tokens[-1] if tokens else None
            if token in {"''", "``", '"'}:
                at_end = number + 1 == len(sentence)
                closes = token == "''" or (token == '"' and (is_open or at_end) and number > 0)
                if token == "``":
                    closes = False
                is_open = not closes
                mark = ("”" if closes else "“") if curly else '"'
                if closes and before is not None:
                    tokens[-1] = before._replace(space_after=False)
                tokens.append(Token(mark, 1, closes))
                continue
            token = _BRACKETS.get(token, token)
            if before is not None and _CLITIC.match(token) and before.text[-1].isalpha() and before.words == 1:
                tokens[-1] = Token(before.text + token, 2, True)
                continue
            if before is not None and _NO_SPACE_BEFORE.match(token):
                tokens[-1] = before._replace(space_after=False)
            parts = _hyphenated(token)
            tokens += [Token(part, 1, space_after=False) for part in parts[:-1]]
            tokens.append(Token(parts[-1], 1, not _NO_SPACE_AFTER.match(token)))
        tokens[-1] = tokens[-1]._replace(space_after=True)
        paragraph.append(tokens)
        left -= 1
        if not left:
            yield paragraph
            paragraph, left, is_open = [], draw.randint(1, 9), False
            curly = draw.random() < 0.3
    if paragraph:
        yield paragraph


_BRACKETS = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]"}
_MARKS = _BRACKETS | {"``": '"', "''": '"'}


def split_compounds(tokens: Sequence[str]) -> tuple[str, ...]:
    """Return tokens as EWT has them: compounds split at hyphens, brackets and quotation marks as in text."""
    return tuple(part for token in tokens for part in _hyphenated(_MARKS.get(token, token)))


def _hyphenated(token: str) -> list[str]:
    """Split a compound at its hyphens, as EWT does unless it begins with a prefix."""
    parts = re.split("(-)", token)
    words = parts[::2]
    if len(words) == 1 or not all(map(str.isalpha, words)) or words[0].lower() in _PREFIXES:
        return [token]
    return parts
