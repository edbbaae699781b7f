"""What the readers of gold corpora share: options, faults, numbered lines, and the rows of a sentence."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

import pyarrow as pa

from concord.models.config import Config
from concord.models.schemes import BIO, TOKENS, LabelScheme
from concord.pipeline.errors import InputError

EMPTY = "_"
TAG_COLUMNS = ("upos", "xpos")
_BLANKS = re.compile("[ \t]+")

FormatName = Literal["conll", "conllu", "conll2012", "semeval2010"]
CorpusScheme = Literal["BIO2", "IOB1", "BIOES", "auto", "TOKENS"]


class GoldFormat(Config):
    """How a gold corpus is written; what is read is BIO2 whatever the file has, or token labels."""

    format: FormatName | None = None
    """`conll`: columns; `conllu`; `conll2012`: OntoNotes; `semeval2010`: its task 1. If null it goes by the file's
    name: .conll, .conllu or gold_conll, each also with .gz or .zst behind."""
    word_column: int = 1
    """Of `conll`, counted from 1."""
    tag_column: int | None = None
    """Of `conll`, counted from 1: parts of speech, for the taggers that read them."""
    label_column: int | str | None = None
    """Of `conll`, counted from 1: the last if null. Of `conllu`: `upos`, `xpos`, or a key in MISC, `NER` if null. Of
    the others: the entities if null, or `xpos`."""
    label_scheme: CorpusScheme = "BIO2"
    """`BIO2`, `IOB1` and `BIOES` are for entities, `auto` tells them apart; `TOKENS`: labels of single words."""

    @property
    def read_scheme(self) -> LabelScheme:
        """The scheme of the labels as they are read: TOKENS, or BIO for entities of any scheme."""
        return TOKENS if self.label_scheme == "TOKENS" else BIO


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """Something wrong in a corpus.

    Attributes:
        line: 1-based.
        repaired: what was made of it, where that is sure; None where a person must look.
    """

    path: Path
    line: int
    message: str
    repaired: str | None = None

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


OnFault: TypeAlias = Callable[[Fault], None]


def refuse(fault: Fault) -> None:
    """Make a fault an error.

    Raises:
        InputError: always.
    """
    raise InputError(str(fault))


@dataclass(slots=True)
class Rows:
    """The words of one sentence as they stand in the file, column by column.

    Attributes:
        document: name of the document that begins here, empty if it has none; None where none begins.
        metadata: what comments before the sentence say, by key; a key is written without ``meta::``.
        labels: empty where a word has none.
        tags, heads, relations: ``_`` where a word has none; empty lists where the file has no such column.
        numbers: the line of each word.
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
    broken: bool = False


def numbered_lines(path: Path, on_fault: OnFault = refuse) -> Iterator[tuple[int, str]]:
    """Give each line without its end, with its 1-based number; ``.gz`` and ``.zst`` are unpacked by name.

    Lines end with LF, CR LF or CR, and with no other character that Unicode calls a line separator.

    Raises:
        InputError: when the file cannot be opened or unpacked.
    """
    try:
        # A gold corpus is small beside a model; read whole, a cut archive fails here and not midway.
        with pa.input_stream(str(path)) as stream:
            content = stream.read()
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: expected a readable corpus file: {error}") from error
    for number, raw in enumerate(content.removeprefix(b"\xef\xbb\xbf").splitlines(), start=1):
        try:
            line = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            byte, column = raw[error.start], error.start + 1
            message = f"expected UTF-8, got byte 0x{byte:02x} at column {column}"
            on_fault(Fault(path=path, line=number, message=message))
            line = raw.decode("utf-8", errors="replace")
        yield number, line.rstrip(" ")


def split_columns(line: str) -> list[str]:
    """Split a line at tabs where it has one, else at blanks; no other white space parts columns."""
    if "\t" in line:
        return [column.strip(" ") for column in line.split("\t")]
    return _BLANKS.split(line.strip(" ")) if line.strip() else []
