"""What all readers of gold corpora share: options, faults, numbered lines, columns of a sentence, and label schemes.

IOB1 (Ramshaw and Marcus, 1995; the original CoNLL-2003 files) starts an entity with ``I-`` and uses ``B-`` only to
separate it from an entity of the same type just before it. BIO2, also called IOB2, starts every entity with ``B-``.
BIOES has other names for the same labels: BILOU (spaCy, AllenNLP) ends entities with ``L-`` and writes those of one
word with ``U-``; BMES and BMEWO have ``M-`` inside, and ``S-`` or ``W-`` for one word.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Literal, TypeAlias

import pyarrow as pa

from concord.models.config import Config
from concord.models.labels import (
    BIO,
    BIOES_PREFIXES,
    OUTSIDE,
    TOKENS,
    LabelScheme,
    convert_labels,
    is_legal_transition,
    split_label,
)
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


NO_ENTITY = {"", OUTSIDE, EMPTY}
_LABEL = re.compile(r"(\S*:)?[BIESLUMW]-(?!(ADJP|ADVP|CONJP|INTJ|LST|NP|PP|PRT|SBAR|UCP|VP)$)\S+")  # no syntactic chunk
_NAME = re.compile(r"ner([-_]?tags?)?|ne|ent|(named[-_]?)?entit(y|ies)|names?", re.IGNORECASE)


def looks_like_label(name: str, value: str) -> bool:
    """Return whether the value of a column, or of a key of MISC, says that a word is in an entity."""
    return value not in NO_ENTITY and (_LABEL.fullmatch(value) or _NAME.fullmatch(name)) is not None


class LabelPlaces:
    """The columns and keys of a file in which all values look like labels."""

    def __init__(self, column: str, form: GoldFormat) -> None:
        """Take the name of the column or key where labels are read."""
        self._column = column
        self._form = form
        self._has_labels = False
        self._lines: dict[str, int] = {}
        self._others: set[str] = set()

    def add(self, line: int, label: str, values: Iterable[tuple[str, str]]) -> None:
        """Add the label of a word, and its other values with the names of their columns or keys."""
        is_entity = label not in NO_ENTITY
        self._has_labels = self._has_labels or is_entity
        for name, value in values:
            if value not in NO_ENTITY and name not in self._others:
                self._lines.setdefault(name, line)
                # A word with two labels has two layers of them, of which one is meant.
                if is_entity or not looks_like_label(name, value):
                    self._others.add(name)

    def report(self, report: FaultReporter) -> None:
        """Report labels that would be lost, unless a person has chosen the column and it has some."""
        strays = [
            name for name in self._lines if name not in self._others and (not self._has_labels or _NAME.fullmatch(name))
        ]
        is_chosen = self._has_labels and self._form.label_column is not None
        if not strays or is_chosen or not self._form.read_scheme.has_entities:
            return
        found = f"{' and '.join(map(_shown, strays))} {'looks' if len(strays) == 1 else 'look'} like labels"
        if self._has_labels:
            message = f"{found}, as does {_shown(self._column)}: write all in one place, or choose by --label-column"
        else:
            name = strays[0]
            option = f"--label-column {name} (train: --set data.label_column={name})"
            remedy = "write them there" if name in ("", *TAG_COLUMNS) else option
            message = f"no word has an entity in {_shown(self._column)}; {found}: {remedy}"
        report(self._lines[strays[0]], message)


def _shown(name: str) -> str:
    if name.isdigit():
        return f"column {name}"
    return name if name in TAG_COLUMNS or " " in name else f"{name}=" if name else "MISC without a key"


EntityScheme = Literal["BIO2", "IOB1", "BIOES"]
OnLabelFault = Callable[[int, str, str | None], None]
"""Takes the position of a label, a message, and the repaired label if that is certain."""
_OF_BIOES = {"E", "S", *BIOES_PREFIXES}


def detect_scheme(sentences: Iterable[Sequence[str]]) -> EntityScheme:
    """Detect the scheme of a corpus from its label sequences.

    ``E-``, ``S-`` and what other names of BIOES have in their place occur only there. Otherwise it is IOB1 if entities
    start with ``I-``, and with ``B-`` only after another of their type; a corpus with both is BIO2 with faults.
    """
    begins_inside = begins_properly = False
    for labels in sentences:
        for previous, label in pairwise((OUTSIDE, *labels)):
            prefix, _, kind = label.partition("-")
            if prefix in _OF_BIOES and kind:
                return "BIOES"
            follows_its_type = previous.partition("-")[2] == kind
            begins_inside = begins_inside or (prefix == "I" and not follows_its_type)
            begins_properly = begins_properly or (prefix == "B" and not follows_its_type)
    return "IOB1" if begins_inside and not begins_properly else "BIO2"


def to_bio2(labels: Sequence[str], scheme: EntityScheme, on_fault: OnLabelFault) -> tuple[str, ...]:
    """Convert the labels of one sentence to BIO2 and report those that are invalid.

    An entity that wrongly starts with ``I-`` is repaired to start with ``B-``, as conlleval reads it. Any other invalid
    label becomes ``O``. ``BIOES`` stands for all of its names.
    """
    valid = [_validate(label, position, scheme, on_fault) for position, label in enumerate(labels)]
    if scheme == "BIOES":
        return _from_bioes(valid, labels, on_fault)
    converted: list[str] = []
    for position, label in enumerate(valid):
        previous = converted[-1] if converted else None
        if is_legal_transition(previous, label, "BIO"):
            converted.append(label)
            continue
        converted.append(f"B-{label[2:]}")
        if scheme == "BIO2":
            before = previous or "the start of the sentence"
            message = (
                f"{label!r} cannot follow {before}; in BIO2 every entity starts with B-; use label_scheme=IOB1, or "
                "convert the corpus with concord prepare"
            )
            on_fault(position, message, converted[-1])
    return tuple(converted)


def _validate(label: str, position: int, scheme: EntityScheme, on_fault: OnLabelFault) -> str:
    prefix, dash, kind = label.partition("-")
    if scheme != "BIOES" and prefix in _OF_BIOES and kind:
        message = (
            f"expected {scheme} labels (O, B-, I-), got {label!r}; use label_scheme=BIOES, which also stands for BILOU "
            "and BMES, or convert the corpus with concord prepare"
        )
        on_fault(position, message, None)
        return OUTSIDE
    renamed = f"{BIOES_PREFIXES.get(prefix, prefix)}{dash}{kind}"
    try:
        split_label(renamed)
    except ValueError as error:
        on_fault(position, str(error), None)
        return OUTSIDE
    return renamed


def _from_bioes(labels: Sequence[str], written: Sequence[str], on_fault: OnLabelFault) -> tuple[str, ...]:
    for position, (left, right) in enumerate(pairwise((None, *labels, None))):
        if not is_legal_transition(left, right, "BIOES"):
            before = repr(written[position - 1]) if left is not None else "the start of the sentence"
            after = repr(written[position]) if right is not None else "the end of the sentence"
            on_fault(min(position, len(labels) - 1), f"{after} cannot follow {before} in BIOES", None)
    return convert_labels(labels, source="BIOES", target="BIO")
