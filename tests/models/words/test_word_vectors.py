"""Files of pretrained word vectors: common formats are read, and errors name the line."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from concord.models.errors import ConfigError
from concord.models.words.form_vectors import read_word_vectors


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    def to_file(text: str) -> Path:
        path = tmp_path / "vectors.txt"
        path.write_bytes(text.encode())
        return path

    return to_file


@pytest.mark.parametrize(
    "text",
    [
        "the 0.5 -1\nParis 2 3e-1\n",
        "2 2\nthe 0.5 -1\nParis 2 3e-1\n",
        "2 2\nthe 0.5 -1 \nParis 2 3e-1 \n",
        "the 0.5 -1\r\nParis 2 3e-1\r\n",
        "the 0.5 -1\nParis 2 3e-1\nthe 9 9",
        "the 0.5 -1\n\nParis 2 3e-1\n\n",
    ],
    ids=["glove", "word2vec", "fasttext", "line-ends", "twice", "blank"],
)
def test_vectors_are_read_from_every_text_format(write: Callable[[str], Path], text: str) -> None:
    vectors = read_word_vectors(write(text))
    assert vectors.words == ["the", "Paris"]
    assert vectors.matrix.dtype == np.float32
    assert vectors.matrix.tolist() == [[0.5, -1.0], [2.0, pytest.approx(0.3)]]


def test_vectors_of_unusual_words_are_read(write: Callable[[str], Path]) -> None:
    vectors = read_word_vectors(write("\u00a0 1 2\n\u2028 3 4\n7 5 6\n\x85 7 8\n"))
    assert vectors.words == ["\u00a0", "\u2028", "7", "\x85"]


def test_vectors_are_limited_to_the_first_words(write: Callable[[str], Path]) -> None:
    assert read_word_vectors(write("a 1\nb 2\nc 3\n"), limit=2).words == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a 1 2\nb 1\n", r"vectors\.txt:2: expected 2 numbers for 'b', got 1"),
        ("a 1 2\nb 1 x\n", r"vectors\.txt:2: expected numbers after the word 'b', got \['1', 'x'\]"),
        ("2 2\na 1 2\nb\n", r"vectors\.txt:3: expected numbers after the word 'b', got \[\]"),
        ("a\n", r"vectors\.txt:1: expected numbers after the word 'a'"),
        ("a nan 1\n", r"vectors\.txt:1: expected numbers after the word 'a', got \['nan', '1'\]"),
        ("", r"vectors\.txt: expected a word and its numbers on each line"),
        ("10 300\n", r"vectors\.txt: expected a word and its numbers on each line"),
    ],
)
def test_malformed_vectors_error_names_file_and_line(write: Callable[[str], Path], text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_word_vectors(write(text))


@pytest.mark.parametrize("content", [b"a 1\n\xff 2\n", None])
def test_unreadable_vectors_raise_a_config_error(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "vectors.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"vectors\.txt"):
        read_word_vectors(path)
