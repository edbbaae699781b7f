"""Sentences with all columns of CoNLL-U, of which Concord's own reader keeps what a tagger needs."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa


class ConlluSentence(NamedTuple):
    """The words of a sentence, and the columns of CoNLL-U for them."""

    words: Sequence[str]
    upos: Sequence[str]
    xpos: Sequence[str]
    feats: Sequence[str]
    heads: Sequence[int]
    relations: Sequence[str]
    lemmas: Sequence[str]
    languages: Sequence[str] = ()
    """Of each word, where a corpus has several."""


def read_sentences(path: Path) -> Iterator[ConlluSentence]:
    """Read the syntactic words of a file, compressed or not; multi-word tokens and empty nodes are left out."""
    rows: list[list[str]] = []
    for line in [*pa.input_stream(str(path)).read().decode().splitlines(), ""]:
        if line and not line.startswith("#"):
            fields = line.split("\t")
            if fields[0].isdigit():
                rows.append(fields)
        elif not line and rows:
            columns = list(zip(*rows, strict=True))
            yield ConlluSentence(
                columns[1], columns[3], columns[4], columns[5], list(map(int, columns[6])), columns[7], columns[2]
            )
            rows = []
