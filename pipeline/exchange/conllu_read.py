"""Read the entities of CoNLL-U (https://universaldependencies.org/format.html), the inverse of the export to it.

MISC must have the offsets that the export writes. Its ``NER`` is read; an edited file may have other labels, in BIO2,
but no other words.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

from concord.pipeline.corpora.conllu import COLUMNS, ENTITY_KEY
from concord.pipeline.corpora.corpus_format import numbered_lines
from concord.pipeline.errors import InputError
from concord.pipeline.exchange.passage import AnnotatedPassage, AnnotatedSpan

_NEW_DOCUMENT = "# newdoc id ="
_CONTINUES = "# continues = yes"
_OUTSIDE = "O"


@dataclass
class _Document:
    """A document as far as it is read.

    Attributes:
        is_open: whether the next word may continue the last entity.
        shared: the words of a range, which have its offsets.
    """

    doc_id: str
    number: int
    spans: list[AnnotatedSpan] = field(default_factory=list)
    is_open: bool = False
    shared: range = range(0)
    offsets: tuple[int, int] = (0, 0)


def read_conllu(path: Path) -> Iterator[AnnotatedPassage]:
    """Yield the documents of a file; ``.gz`` and ``.zst`` files are decompressed.

    Raises:
        InputError: when the file cannot be read or a line has another form; the message says which.
    """
    document: _Document | None = None
    is_first = continues = False
    for number, line in numbered_lines(path):
        if line.startswith(_NEW_DOCUMENT):
            if document is not None:
                yield _passage(document, path)
            document = _Document(unquote(line.removeprefix(_NEW_DOCUMENT).removeprefix(" ")), number)
        elif not line:
            is_first, continues = True, False
        elif line.startswith("#"):
            continues = continues or line == _CONTINUES
        elif document is None:
            raise InputError(f"{path}: line {number}: expected '{_NEW_DOCUMENT}...' before the first word")
        else:
            if is_first:
                document.is_open = document.is_open and continues
                document.shared = range(0)
            is_first = False
            _read_word(document, line, f"{path}: line {number}")
    if document is not None:
        yield _passage(document, path)


def _passage(document: _Document, path: Path) -> AnnotatedPassage:
    return AnnotatedPassage(
        where=f"{path}: line {document.number}", doc_id=document.doc_id, spans=tuple(document.spans)
    )


def _read_word(document: _Document, line: str, where: str) -> None:
    columns = line.split("\t")
    if len(columns) != COLUMNS:
        raise InputError(f"{where}: expected {COLUMNS} columns separated by tabs, got {len(columns)}")
    misc = dict(item.partition("=")[::2] for item in columns[-1].split("|"))
    first, dash, last = columns[0].partition("-")
    if not (first.isdecimal() and (last.isdecimal() or not dash)):
        raise InputError(f"{where}: expected the number of a word, or a range of numbers, got {columns[0]!r}")
    if int(first) not in document.shared:
        try:
            document.offsets = int(misc["start_char"]), int(misc["end_char"])
        except (KeyError, ValueError):
            raise InputError(
                f"{where}: expected start_char and end_char in MISC, as 'concord export --to conllu' writes them"
            ) from None
    if dash:
        document.shared = range(int(first), int(last) + 1)
        return
    _add_label(document, misc.get(ENTITY_KEY, _OUTSIDE), where, continues=f"{ENTITY_KEY}Continues" in misc)


def _add_label(document: _Document, label: str, where: str, *, continues: bool) -> None:
    prefix, _, kind = label.partition("-")
    goes_on = prefix == "I" or continues
    if label == _OUTSIDE:
        document.is_open = False
    elif goes_on and document.is_open and document.spans[-1].type == kind:
        document.spans[-1] = document.spans[-1]._replace(end=document.offsets[1])
    elif prefix == "B" and kind:
        document.spans.append(AnnotatedSpan(*document.offsets, kind))
        document.is_open = True
    else:
        raise InputError(f"{where}: expected O, B- with a type, or I- after the same type, got {ENTITY_KEY}={label}")
