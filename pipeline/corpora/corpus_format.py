"""What all readers of gold corpora share: options, faults, numbered lines, and the columns of a sentence."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

import pyarrow as pa

from concord.models.config import Config
from concord.models.labels import BIO, TOKENS, LabelScheme
from concord.models.regular_files import check_regular
from concord.pipeline.errors import InputError

EMPTY = "_"
UNKNOWN_LABEL = "?"
"""The label of a word that nobody has decided; a training leaves it open."""
TAG_COLUMNS = ("upos", "xpos")
_BLANKS = re.compile("[ \t]+")
_DOUBLED_END = re.compile(rb"\r{2,}\n")

FormatName = Literal["conll", "conllu", "conll2012"]
CorpusScheme = Literal["BIO2", "IOB1", "BIOES", "auto", "TOKENS"]


class GoldFormat(Config):
    """How a gold corpus is written; entities of any scheme are read as BIO2."""

    format: FormatName | None = None
    """`conll`: one word per line in columns; `conllu`; `conll2012`: OntoNotes. If null, by the end of the
    file name: .conll, .conllu or gold_conll, each optionally followed by .gz or .zst."""
    word_column: int = 1
    """Column of the words, from 1; for `conll` only."""
    tag_column: int | None = None
    """Column of the parts of speech, from 1, for the taggers that use them; for `conll` only."""
    label_column: int | str | None = None
    """Column of the labels. `conll`: its number, from 1; the last if null. `conllu`: `upos`, `xpos` or a key of MISC;
    `NER` if null. `conll2012`: `xpos`; the entities if null."""
    label_scheme: CorpusScheme = "BIO2"
    """`BIO2`, `IOB1` and `BIOES`, also under its names BILOU and BMES: entities; `auto`: detects which of them;
    `TOKENS`: one label per word."""

    @property
    def read_scheme(self) -> LabelScheme:
        """The scheme of the labels as they are read: TOKENS, or BIO for entities of any scheme."""
        return TOKENS if self.label_scheme == "TOKENS" else BIO


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """An error in a corpus.

    Attributes:
        line: 1-based.
        repaired: what it was replaced by, if that is certain; None if a person must decide.
    """

    path: Path
    line: int
    message: str
    repaired: str | None = None

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


OnFault: TypeAlias = Callable[[Fault], None]


def raise_fault(fault: Fault) -> None:
    """Raise a fault as an InputError."""
    raise InputError(str(fault))


@dataclass(frozen=True, slots=True)
class FaultReporter:
    """Reports the faults of one file to a handler."""

    path: Path
    on_fault: OnFault

    def __call__(self, line: int, message: str, repaired: str | None = None) -> None:
        """Report a fault; see ``Fault`` for the arguments."""
        self.on_fault(Fault(path=self.path, line=line, message=message, repaired=repaired))


@dataclass(slots=True)
class SentenceRows:
    """The rows of one sentence as written in the file, column by column.

    Attributes:
        document: name of the document that starts here, empty if it has none; None if no document starts here.
        metadata: the comments before the sentence by key, without the prefix ``meta::``.
        labels: an empty string for a word without a label.
        tags, heads, relations: ``_`` for a word without a value; empty lists if the file has no such column.
        numbers: the line of each word.
        wordless: line and label of what is no word, such as the range ``1-2`` of a multi-word token.
        broken: whether a row is missing because of a fault.
    """

    document: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    relations: list[str] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    wordless: dict[str, tuple[int, str]] = field(default_factory=dict)
    broken: bool = False

    @property
    def has_rows(self) -> bool:
        """Whether any row was read, valid or not."""
        return bool(self.numbers) or self.broken


def numbered_lines(path: Path, on_fault: OnFault = raise_fault) -> Iterator[tuple[int, str]]:
    """Yield the 1-based number and the text of each line; ``.gz`` and ``.zst`` files are decompressed.

    Lines end with LF, CR LF or CR, not with other Unicode line separators. Where a program has converted line ends
    twice, CR CR LF ends one line, and so does LF CR if each LF has a CR after it.

    Raises:
        InputError: when the file cannot be opened or decompressed.
    """
    if not path.exists():
        raise InputError(f"{path}: expected a readable corpus file, found no such file")
    try:
        # A gold corpus is small; reading all of it detects a truncated archive before anything is returned.
        with pa.input_stream(str(check_regular(path))) as stream:
            content = stream.read()
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: expected a readable corpus file: {error}") from error
    if content.count(b"\n\r") == content.count(b"\n"):
        content = content.replace(b"\n\r", b"\n")
    content = _DOUBLED_END.sub(b"\n", content.removeprefix(b"\xef\xbb\xbf"))
    for number, raw in enumerate(content.splitlines(), start=1):
        try:
            line = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            byte, column = raw[error.start], error.start + 1
            FaultReporter(path, on_fault)(number, f"expected UTF-8, got byte 0x{byte:02x} at column {column}")
            line = raw.decode("utf-8", errors="replace")
        yield number, line.rstrip(" ")


def split_columns(line: str) -> list[str]:
    """Split a line at tabs, or at spaces without tabs; other white space is part of a column. A blank line has none."""
    columns = line.split("\t") if "\t" in line else _BLANKS.split(line.strip(" "))
    return [column.strip(" ") for column in columns] if line.strip() else []
