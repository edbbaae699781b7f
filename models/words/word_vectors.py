"""Pretrained word vectors, read from a text file of GloVe, word2vec or fastText."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from concord.models.errors import ConfigError


@dataclass(frozen=True, slots=True)
class WordVectors:
    """Pretrained word vectors; ``matrix`` has one row per word, shape ``(words, dimensions)``, float32."""

    words: list[str]
    matrix: np.ndarray


def read_word_vectors(path: Path, *, limit: int | None = None) -> WordVectors:
    """Read a text file of GloVe, word2vec or fastText, with a word and its numbers on each line.

    A first line of two integers (word2vec, fastText) is a header. Of a repeated word the first vector is used. At most
    ``limit`` words are read.

    Raises:
        ConfigError: naming file and line, when numbers are missing, too few or not finite; if it cannot be read.
    """
    words: dict[str, int] = {}
    rows: list[np.ndarray] = []
    for number, word, values in _vector_lines(path):
        if limit is not None and len(rows) >= limit:
            break
        vector = _to_vector(values)
        if vector is None:
            raise ConfigError(f"{path}:{number}: expected numbers after the word {word!r}, got {values[:3]}")
        if rows and vector.shape != rows[0].shape:
            raise ConfigError(f"{path}:{number}: expected {rows[0].size} numbers for {word!r}, got {vector.size}")
        if word not in words:
            words[word] = len(rows)
            rows.append(vector)
    if not rows:
        raise ConfigError(f"{path}: expected a word and its numbers on each line, got no such line")
    return WordVectors(list(words), np.stack(rows))


def _vector_lines(path: Path) -> Iterator[tuple[int, str, list[str]]]:
    try:
        with path.open(encoding="utf-8", newline="\n") as lines:
            for number, line in enumerate(lines, start=1):
                fields = line.rstrip().split(" ")
                is_header = number == 1 and len(fields) == 2 and all(field.isdigit() for field in fields)
                if is_header or fields == [""]:
                    continue
                yield number, fields[0], fields[1:]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: expected a readable text file in UTF-8: {error}") from error


def _to_vector(values: list[str]) -> np.ndarray | None:
    try:
        vector = np.array(values, dtype=np.float32)
    except ValueError:
        return None
    return vector if vector.size and np.isfinite(vector).all() else None
