"""What the readers of gold corpora share: numbered lines of a file, and labels checked in their place."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from models.labels import is_legal_transition, split_label
from pipeline.errors import InputError


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


def check_labels(labels: Sequence[str], numbers: Sequence[int], path: Path) -> None:
    """Check that the labels of one sentence are well-formed BIO2.

    Args:
        numbers: the line of each label.

    Raises:
        InputError: naming the first line whose label cannot stand there.
    """
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
