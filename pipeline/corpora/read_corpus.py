"""Gold corpora of every format: documents of sentences, labelled in BIO2 or with token labels.

Whatever is wrong in a file is reported with its line; ``read_gold`` makes the first fault an error.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from concord.models.config import ConfigError
from concord.models.data.sentence import Sentence
from concord.pipeline.corpora import bracketed, conll, conllu
from concord.pipeline.corpora.corpus_format import (
    EMPTY,
    TAG_COLUMNS,
    CorpusScheme,
    Fault,
    FormatName,
    GoldFormat,
    OnFault,
    Rows,
    refuse,
)
from concord.pipeline.corpora.label_schemes import recognise_scheme, to_bio2
from concord.pipeline.errors import InputError

SUFFIXES: dict[str, FormatName] = {".conllu": "conllu", ".conll": "conll", "gold_conll": "conll2012"}
_READERS: dict[FormatName, Callable[[Path, GoldFormat, OnFault], Iterator[Rows]]] = {
    "conll": conll.read_rows,
    "conllu": conllu.read_rows,
    "conll2012": partial(bracketed.read_rows, task="conll2012"),
    "semeval2010": partial(bracketed.read_rows, task="semeval2010"),
}
_BRACKETED = {"conll2012", "semeval2010"}


@dataclass(frozen=True, kw_only=True, slots=True)
class GoldDocument:
    """A document of a corpus.

    Attributes:
        name: empty if the corpus gives none; None for a sentence that stands in no document.
        lines: of the first word of each sentence.
        metadata: what the comments at its head say, by key: genre, say.
    """

    name: str | None
    sentences: tuple[Sentence, ...]
    lines: tuple[int, ...]
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class GoldCorpus:
    """A corpus as read, with the scheme that its labels were in."""

    documents: tuple[GoldDocument, ...]
    label_scheme: CorpusScheme


def read_gold(path: Path, form: GoldFormat | None = None) -> list[list[Sentence]]:
    """Read the documents of a gold corpus, each a list of sentences with BIO2 labels or token labels.

    Raises:
        ConfigError: when the format has no such column.
        InputError: with file and line, when the file cannot be read or holds a fault.
    """
    return [list(document.sentences) for document in read_corpus(path, form or GoldFormat(), refuse).documents]


def read_corpus(path: Path, form: GoldFormat, on_fault: OnFault) -> GoldCorpus:
    """Read a gold corpus and report every fault in it; a sentence with a row that cannot be read is left out.

    Tags, heads and relations are None for a sentence that leaves one of them open; tags also where the labels are parts
    of speech, which they would give away.

    Raises:
        ConfigError: when the format has no such column.
        InputError: when the file cannot be opened, or nothing says its format.
    """
    kind = format_of(path, form)
    _check_columns(kind, form)
    sentences = list(_READERS[kind](path, form, on_fault))
    scheme = form.label_scheme
    if kind in _BRACKETED and form.read_scheme.has_entities:
        scheme = "BIO2"  # which is what their reader makes of the brackets
    elif scheme == "auto":
        scheme = recognise_scheme(rows.labels for rows in sentences)
    documents: list[tuple[Rows, list[Sentence], list[int]]] = []
    in_document = False
    for rows in sentences:
        in_document = in_document or rows.document is not None
        if rows.document is not None or not in_document:
            documents.append((rows, [], []))
        if not rows.broken:
            documents[-1][1].append(_to_sentence(rows, scheme, path, form, on_fault))
            documents[-1][2].append(rows.numbers[0])
    return GoldCorpus(
        documents=tuple(
            GoldDocument(name=head.document, sentences=tuple(found), lines=tuple(lines), metadata=head.metadata)
            for head, found, lines in documents
            if found
        ),
        label_scheme=scheme,
    )


def format_of(path: Path, form: GoldFormat) -> FormatName:
    """Give the format of a file.

    Raises:
        InputError: when neither the options nor its name say it.
    """
    if form.format is not None:
        return form.format
    name = path.name.removesuffix(".gz").removesuffix(".zst")
    for suffix, found in SUFFIXES.items():
        if name.endswith(suffix):
            return found
    raise InputError(
        f"{path}: expected a gold corpus named .conllu, .conll or gold_conll (.gz or .zst may follow), "
        f"got {path.name!r}; for another name say its format (--set data.format of train, --format of prepare)"
    )


def _check_columns(kind: FormatName, form: GoldFormat) -> None:
    column = form.label_column
    if column is None:
        return
    if kind == "conll" and not (isinstance(column, int) and column > 0):
        raise ConfigError(f"label_column: expected the number of a column for {kind}, from 1 on, got {column!r}")
    if kind == "conllu" and not isinstance(column, str):
        raise ConfigError(f"label_column: expected upos, xpos or a key of MISC for {kind}, got {column!r}")
    if kind in _BRACKETED and column != "xpos":
        raise ConfigError(f"label_column: expected xpos for {kind}, or none for its entities, got {column!r}")


def _to_sentence(rows: Rows, scheme: CorpusScheme, path: Path, form: GoldFormat, on_fault: OnFault) -> Sentence:
    entities = form.read_scheme.has_entities
    labels = _entities(rows, scheme, path, on_fault) if entities else _token_labels(rows, path, form, on_fault)
    heads = _read_heads(rows, path, on_fault) if _whole(rows.heads) and _whole(rows.relations) else None
    return Sentence(
        words=tuple(rows.words),
        labels=labels,
        tags=tuple(rows.tags) if _whole(rows.tags) and form.label_column not in TAG_COLUMNS else None,
        heads=heads,
        relations=tuple(rows.relations) if heads is not None else None,
    )


def _entities(rows: Rows, scheme: CorpusScheme, path: Path, on_fault: OnFault) -> tuple[str, ...]:
    def report(position: int, message: str, repaired: str | None) -> None:
        on_fault(Fault(path=path, line=rows.numbers[position], message=message, repaired=repaired))

    if scheme not in ("BIO2", "IOB1", "BIOES"):
        raise ValueError(f"expected a scheme of entities, got {scheme!r}")
    return to_bio2(rows.labels, scheme, report)


def _token_labels(rows: Rows, path: Path, form: GoldFormat, on_fault: OnFault) -> tuple[str, ...]:
    for label, number in zip(rows.labels, rows.numbers, strict=True):
        if not label:
            message = (
                f"expected a label of the word ({form.label_column or 'NER'}), got none; label_column names another"
            )
            on_fault(Fault(path=path, line=number, message=message))
    return tuple(rows.labels)


def _whole(column: Sequence[str]) -> bool:
    return bool(column) and EMPTY not in column


def _read_heads(rows: Rows, path: Path, on_fault: OnFault) -> tuple[int, ...] | None:
    """Read the heads; a tree with a fault is left out."""
    length = len(rows.words)
    for head, number in zip(rows.heads, rows.numbers, strict=True):
        if not (head.isascii() and head.isdigit() and int(head) <= length):
            message = f"expected a head within 0..{length}, got {head!r}"
            on_fault(Fault(path=path, line=number, message=message, repaired="no tree"))
            return None
    return tuple(map(int, rows.heads))
