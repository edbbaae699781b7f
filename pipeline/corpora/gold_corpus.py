"""Gold corpora: read in every format into documents of sentences with BIO2 or token labels, written in two.

Every fault in a file is reported with its line. What is written is what taggers use: documents, words, labels, trees
and parts of speech; no comments, and no lemmas or features but those of a parser.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Any, Literal

from concord.models.data.sentence import Sentence
from concord.models.errors import ConfigError
from concord.models.labels import OUTSIDE
from concord.pipeline.corpora import conll
from concord.pipeline.corpora.corpus_format import (
    EMPTY,
    TAG_COLUMNS,
    UNKNOWN_LABEL,
    CorpusScheme,
    FaultReporter,
    FormatName,
    GoldFormat,
    OnFault,
    SentenceRows,
    detect_scheme,
    numbered_lines,
    raise_fault,
    to_bio2,
)
from concord.pipeline.errors import InputError
from concord.pipeline.parsing.tokens import WordAnalysis
from concord.pipeline.storage.atomic_writes import write_compressed

GoldForm = Literal["conll", "conllu"]

PARSED_SUFFIXES = (".conllu", ".conllu.gz", ".conllu.zst")
"""Names of corpora with the trees of a parser."""
SUFFIXES: dict[str, FormatName] = {".conllu": "conllu", ".conll": "conll", "gold_conll": "conll2012"}
_READERS: dict[FormatName, Callable[[Iterable[tuple[int, str]], GoldFormat, FaultReporter], Iterator[SentenceRows]]] = {
    "conll": conll.read_conll,
    "conllu": conll.read_conllu,
    "conll2012": conll.read_conll2012,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class GoldDocument:
    """A document of a corpus.

    Attributes:
        name: empty if the corpus names none; None for a sentence outside of any document.
        lines: line of the first word of each sentence.
        metadata: the comments at its start, by key, such as ``genre``.
    """

    name: str | None
    sentences: tuple[Sentence, ...]
    lines: tuple[int, ...]
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class GoldCorpus:
    """A corpus, with the scheme of the labels in its file."""

    documents: tuple[GoldDocument, ...]
    label_scheme: CorpusScheme


def read_gold(path: Path, form: GoldFormat | None = None) -> list[list[Sentence]]:
    """Read the sentences of a gold corpus by document; arguments and errors are those of ``read_corpus``."""
    return [list(document.sentences) for document in read_corpus(path, form).documents]


def read_corpus(path: Path, form: GoldFormat | None = None, on_fault: OnFault = raise_fault) -> GoldCorpus:
    """Read a gold corpus; sentences with an unreadable row are left out.

    Tags, heads and relations are None for a sentence in which one of them is missing; tags also if the labels are parts
    of speech, which tags would reveal.

    Args:
        on_fault: called with every fault; by default the first one is raised.

    Raises:
        ConfigError: when the format has no such column.
        InputError: when the file cannot be opened, its format is unknown, or ``on_fault`` raises.
    """
    form = form or GoldFormat()
    kind = detect_format(path, form)
    _check_columns(kind, form)
    report = FaultReporter(path, on_fault)
    sentences = list(_READERS[kind](numbered_lines(path, on_fault), form, report))
    scheme = form.label_scheme
    if kind == "conll2012" and form.read_scheme.has_entities:
        scheme = "BIO2"  # their reader converts the brackets
    elif scheme == "auto":
        scheme = detect_scheme(rows.labels for rows in sentences)
    heads: list[tuple[SentenceRows, list[Sentence], list[int]]] = []
    in_document = False
    for rows in sentences:
        in_document = in_document or rows.document is not None
        if rows.document is not None or not in_document:
            heads.append((rows, [], []))
        if not rows.broken:
            heads[-1][1].append(_to_sentence(rows, scheme, form, report))
            heads[-1][2].append(rows.numbers[0])
    documents = tuple(
        GoldDocument(name=head.document, sentences=tuple(group), lines=tuple(lines), metadata=head.metadata)
        for head, group, lines in heads
        if group
    )
    return GoldCorpus(documents=documents, label_scheme=scheme)


def detect_format(path: Path, form: GoldFormat) -> FormatName:
    """Return the format of a file; InputError if neither the options nor the file name determine it."""
    if form.format is not None:
        return form.format
    name = path.name.removesuffix(".gz").removesuffix(".zst")
    for suffix, format in SUFFIXES.items():
        if name.endswith(suffix):
            return format
    raise InputError(
        f"{path}: expected a gold corpus named .conllu, .conll or gold_conll (.gz or .zst may follow), "
        f"got {path.name!r}; for another name set the format (train: --set data.format, prepare: --format)"
    )


def write_gold(
    path: Path,
    documents: Iterable[GoldDocument],
    *,
    form: GoldForm,
    label_column: str | None = None,
    header: Mapping[str, str] | None = None,
    analyses: Iterable[Sequence[WordAnalysis]] | None = None,
) -> None:
    """Atomically write a corpus, replacing any existing file; ``.gz`` and ``.zst`` are compressed.

    Args:
        label_column: for CoNLL-U: ``upos``, ``xpos`` or a key of MISC, where every word's label is written; None for
            entities, which are written as ``NER=`` only for their own words.
        header: for CoNLL-U: comments at the start of the file, by key; those of ``conll.read_header`` say whose trees
            it has, so that it is not parsed twice and a tagger records whose trees it was trained on.
        analyses: for CoNLL-U: the output of a parser for each sentence of all documents, in order, which replaces
            their trees and parts of speech; None keeps these.
    """
    if form == "conll":
        lines = _columns(documents)
    else:
        lines = _conllu(documents, label_column, header or {}, iter(repeat(None) if analyses is None else analyses))
    write_compressed(path, (f"{line}\n" for line in lines))


def _check_columns(kind: FormatName, form: GoldFormat) -> None:
    column = form.label_column
    if column is None:
        return
    if kind == "conll" and not (isinstance(column, int) and column > 0):
        raise ConfigError(f"label_column: expected the number of a column for {kind}, from 1, got {column!r}")
    if kind == "conllu" and not isinstance(column, str):
        raise ConfigError(f"label_column: expected upos, xpos or a key of MISC for {kind}, got {column!r}")
    if kind == "conll2012" and column != "xpos":
        raise ConfigError(f"label_column: expected xpos for {kind}, or null to read the entities, got {column!r}")


def _to_sentence(rows: SentenceRows, scheme: CorpusScheme, form: GoldFormat, report: FaultReporter) -> Sentence:
    entities = form.read_scheme.has_entities
    labels = _entities(rows, scheme, report) if entities else _token_labels(rows, form, report)
    heads = _read_heads(rows, report) if _is_complete(rows.heads) and _is_complete(rows.relations) else None
    known = tuple(label != UNKNOWN_LABEL for label in rows.labels)
    return Sentence(
        words=tuple(rows.words),
        labels=labels,
        known=known if entities and not all(known) else None,
        tags=tuple(rows.tags) if _is_complete(rows.tags) and form.label_column not in TAG_COLUMNS else None,
        heads=heads,
        relations=tuple(rows.relations) if heads is not None else None,
    )


def _entities(rows: SentenceRows, scheme: CorpusScheme, report: FaultReporter) -> tuple[str, ...]:
    if scheme not in ("BIO2", "IOB1", "BIOES"):
        raise ValueError(f"expected an entity scheme, got {scheme!r}")
    labels = [OUTSIDE if label == UNKNOWN_LABEL else label for label in rows.labels]
    return to_bio2(labels, scheme, lambda position, *fault: report(rows.numbers[position], *fault))


def _token_labels(rows: SentenceRows, form: GoldFormat, report: FaultReporter) -> tuple[str, ...]:
    for label, number in zip(rows.labels, rows.numbers, strict=True):
        if not label:
            column = form.label_column or "NER"
            report(number, f"expected a label of the word ({column}), got none; set label_column for another")
    return tuple(rows.labels)


def _is_complete(column: Sequence[str]) -> bool:
    return bool(column) and EMPTY not in column


def _read_heads(rows: SentenceRows, report: FaultReporter) -> tuple[int, ...] | None:
    """Return the heads, or None if one of them is invalid."""
    length = len(rows.words)
    for head, number in zip(rows.heads, rows.numbers, strict=True):
        if not (head.isascii() and head.isdigit() and int(head) <= length):
            report(number, f"expected a head within 0..{length}, got {head!r}", repaired="no tree")
            return None
    return tuple(map(int, rows.heads))


def _columns(documents: Iterable[GoldDocument]) -> Iterator[str]:
    for document in documents:
        if document.name is not None:
            yield f"{conll.DOCUMENT_START}\t{document.name}" if document.name else conll.DOCUMENT_START
            yield ""
        for sentence in document.sentences:
            yield from (f"{word}\t{label}" for word, label in zip(sentence.words, _labels(sentence), strict=True))
            yield ""


def _conllu(
    documents: Iterable[GoldDocument],
    label_column: str | None,
    header: Mapping[str, str],
    analyses: Iterator[Sequence[WordAnalysis] | None],
) -> Iterator[str]:
    yield from (f"# {key} = {value}" for key, value in header.items())
    for document in documents:
        if document.name is not None:
            yield f"# newdoc id = {document.name}" if document.name else "# newdoc"
        for sentence in document.sentences:
            yield from _rows(sentence, label_column, next(analyses))
            yield ""


def _rows(sentence: Sentence, label_column: str | None, analyses: Sequence[WordAnalysis] | None) -> Iterator[str]:
    cells: list[dict[str, Any]]
    if analyses is None:
        absent = (None,) * len(sentence.words)
        gold = zip(sentence.tags or absent, sentence.heads or absent, sentence.relations or absent, strict=True)
        cells = [{"upos": tag, "head": head, "deprel": relation} for tag, head, relation in gold]
    else:
        cells = [analysis._asdict() | {"upos": analysis.upos or "X"} for analysis in analyses]
    rows = zip(sentence.words, _labels(sentence), cells, strict=True)
    for number, (word, label, fields) in enumerate(rows, start=1):
        if label_column in TAG_COLUMNS:
            fields[label_column] = label
        elif label_column is not None or label != OUTSIDE:
            fields["misc"] = f"{label_column or conll.ENTITY_KEY}={label}"
        yield conll.conllu_row(number, word, **fields)


def _labels(sentence: Sentence) -> Sequence[str]:
    """Return the gold labels of a sentence as they are written."""
    labels = sentence.labels or ()
    if sentence.known is None:
        return labels
    return [label if known else UNKNOWN_LABEL for label, known in zip(labels, sentence.known, strict=True)]
