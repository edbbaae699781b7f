"""What the readers of gold corpora share: options, numbered lines of a file, and labels checked in their place."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import pyarrow as pa

from models.config import Config
from models.labels import is_legal_transition, split_label
from pipeline.errors import InputError


class GoldFormat(Config):
    """Where the labels of a gold corpus stand and what they are."""

    label_column: str | None = None
    """CoNLL-U: `upos`, `xpos`, or the key in MISC, `NER` if none. CoNLL: the last column, always."""
    label_scheme: Literal["BIO2", "TOKENS"] = "BIO2"
    """`BIO2` for entities, `TOKENS` for labels of single words."""


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Give each line without its end, with its 1-based number; ``.gz`` and ``.zst`` are unpacked by name.

    Raises:
        InputError: when the file cannot be opened or unpacked, or a line is no UTF-8.
    """
    try:
        # A gold corpus is small beside a model; read whole, a cut archive fails here and not midway.
        with pa.input_stream(str(path)) as stream:
            content = stream.read()
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: expected a readable corpus file: {error}") from error
    for number, raw in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        try:
            yield number, raw.removesuffix(b"\r").decode("utf-8")
        except UnicodeDecodeError as error:
            byte, column = raw[error.start], error.start + 1
            raise InputError(f"{path}:{number}: expected UTF-8, got byte 0x{byte:02x} at column {column}") from error


def check_labels(labels: Sequence[str], numbers: Sequence[int], path: Path, form: GoldFormat) -> None:
    """Check that the labels of one sentence are well-formed BIO2; any will do for token labels.

    Args:
        numbers: the line of each label.

    Raises:
        InputError: naming the first line whose label cannot stand there.
    """
    if form.label_scheme == "TOKENS":
        return
    previous: str | None = None
    for label, number in zip(labels, numbers, strict=True):
        try:
            prefix, _ = split_label(label)
        except ValueError as error:
            raise InputError(f"{path}:{number}: {error}") from error
        if prefix in {"E", "S"}:
            raise InputError(f"{path}:{number}: expected BIO2 labels (O, B-, I-), got {label!r}")
        if not is_legal_transition(previous, label, "BIO"):
            before = previous or "the sentence's start"
            raise InputError(f"{path}:{number}: {label!r} cannot follow {before}; BIO2 begins every name with B-")
        previous = label
