"""Sentences with tags and trees, read from CoNLL-U and written to it."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa


class Sentence(NamedTuple):
    """The words of a sentence, and the columns of CoNLL-U for them."""

    words: Sequence[str]
    upos: Sequence[str]
    xpos: Sequence[str]
    feats: Sequence[str]
    heads: Sequence[int]
    relations: Sequence[str]
    lemmas: Sequence[str] = ()


def read_sentences(path: Path) -> Iterator[Sentence]:
    """Read the syntactic words of a file, compressed or not; multi-word tokens and empty nodes are left out."""
    rows: list[list[str]] = []
    for line in [*pa.input_stream(str(path)).read().decode().splitlines(), ""]:
        if line and not line.startswith("#"):
            fields = line.split("\t")
            if fields[0].isdigit():
                rows.append(fields)
        elif not line and rows:
            columns = list(zip(*rows, strict=True))
            yield Sentence(
                columns[1], columns[3], columns[4], columns[5], list(map(int, columns[6])), columns[7], columns[2]
            )
            rows = []


def write_sentences(path: Path, sentences: Iterable[Sentence]) -> None:
    """Write sentences as CoNLL-U."""
    with path.open("w", encoding="utf-8") as file:
        for sentence in sentences:
            lemmas = sentence.lemmas or sentence.words
            columns = zip(
                sentence.words,
                lemmas,
                sentence.upos,
                sentence.xpos,
                sentence.feats,
                sentence.heads,
                sentence.relations,
                strict=True,
            )
            for number, (word, lemma, upos, xpos, feats, head, relation) in enumerate(columns, start=1):
                file.write(f"{number}\t{word}\t{lemma}\t{upos}\t{xpos}\t{feats}\t{head}\t{relation}\t_\t_\n")
            file.write("\n")
