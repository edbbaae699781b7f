"""A finished run as readers see it: the parts that its manifest names, never a listing of files.

Its rows are read one document at a time, and its dead letters with their number of attempts.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, chain, groupby, islice, starmap
from typing import Any, NamedTuple, Self

import pyarrow as pa

from concord.models.data.sentence import Sentence
from concord.pipeline.corrections.correction import Mark
from concord.pipeline.documents import DeadLetter, ParsedWord, join_pieces
from concord.pipeline.errors import IntegrityError
from concord.pipeline.output.manifest import CommitRecord, DataFile, Manifest
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.parquet_parts import iter_batches, read_part
from concord.pipeline.output.schema import ERRORS, SCHEMAS, TableName
from concord.pipeline.output.tables import normalize_name, without_lost_pages
from concord.pipeline.plan import Plan, Shard
from concord.pipeline.storage.output_paths import OutputPath


@dataclass(frozen=True, kw_only=True, slots=True)
class Collection:
    """An annotated collection.

    Attributes:
        root: the folder below which the parts of this generation are; a later run leaves them for a while.
        plan: the plan of the manifest's generation.
    """

    folder: OutputFolder
    root: OutputPath
    manifest: Manifest
    plan: Plan

    @property
    def output(self) -> OutputPath:
        """The absolute path of its folder."""
        return self.folder.output

    def parts(self, table: str) -> list[OutputPath]:
        """Return the paths of a table's parts, in shard order."""
        return [self.path(part) for part in self.manifest.files(table)]

    def path(self, part: DataFile) -> OutputPath:
        """Return the path of a part."""
        return self.root / part.path

    def read_rows(
        self, report: CommitRecord, table: str, columns: Sequence[str], *, start: int = 0, stop: int | None = None
    ) -> pa.Table:
        """Read some rows of a table of a shard; see ``parquet_parts.read_part``. A shard without a part has no rows."""
        part = report.files.get(table)
        if part is None:
            return SCHEMAS[table].empty_table().select(columns)
        return read_part(self.path(part), columns, start=start, stop=stop)


def open_collection(
    output: OutputPath | OutputFolder, *, generation: int | None = None, version: str | None = None
) -> Collection:
    """Open the folder of a finished run; a newer generation in progress is ignored.

    Args:
        generation, version: an earlier generation that is still kept, by number or by the name that it was given.

    Raises:
        PlanError: when the folder contains no finished run, or not this generation.
        IntegrityError: when the manifest cannot be read.
    """
    folder = output if isinstance(output, OutputFolder) else OutputFolder(output)
    chosen = folder.find(generation=generation, version=version)
    return Collection(folder=folder, root=chosen.root, manifest=chosen.manifest(), plan=chosen.plan())


def read_dead_letters(folder: OutputFolder, reports: Iterable[CommitRecord]) -> Iterator[DeadLetter]:
    """Read the dead letters of committed shards, in shard order."""
    for report in reports:
        if "errors" in report.files:
            for batch in iter_batches(folder.part(report, "errors"), tuple(ERRORS.names)):
                columns = without_lost_pages(batch).drop_columns(["page"])
                yield from (DeadLetter(**row) for row in columns.to_pylist())


def with_attempts(shard: Shard, dead_letters: Sequence[DeadLetter]) -> list[DeadLetter]:
    """Return a shard's dead letters with the number of attempts recorded in its plan."""
    attempts = {(piece.uri, position): attempts for piece in shard.pieces for position, attempts in piece.retries}
    return [
        replace(dead, attempts=attempts.get((dead.source_uri, dead.position), dead.attempts)) for dead in dead_letters
    ]


class DocumentRow(NamedTuple):
    """A row of the table documents; its fields are columns of the table."""

    doc_id: str
    source_uri: str
    source_position: int
    text_sha256: str
    n_chars: int
    n_sentences: int
    n_tokens: int
    n_entities: int
    tagger: str
    meta: str | None
    raw_text: str | None = None
    encoding: str | None = None
    n_candidates: int = 0
    parts: Sequence[Mapping[str, Any]] | None = None
    lost: Sequence[Mapping[str, Any]] | None = None


class TokenRow(NamedTuple):
    """A word: a row of the table tokens, whose columns ``concord schema tokens`` describes.

    Offsets are code points of the raw text, half-open; ``token_id`` is 1-based and ``head`` 0 for the root, or None in
    a document without trees. ``ner`` is the final label in BIO2 with its probability, ``draft_ner`` that of stage one
    with its ``uncertainty`` in nats, and ``refined`` says whether stage two gave the label.
    """

    token_id: int
    start_char: int
    end_char: int
    text: str
    word: str
    lemma: str | None
    upos: str | None
    xpos: str | None
    feats: str | None
    head: int | None
    deprel: str | None
    draft_ner: str
    ner: str
    ner_prob: float | None
    uncertainty: float | None
    refined: bool

    @property
    def changed(self) -> bool:
        """Whether stage two gave it another label than stage one; a label that a person gave is not counted."""
        return self.refined and self.draft_ner != self.ner


class SentenceRow(NamedTuple):
    """A sentence: a row of the table sentences, whose columns ``concord schema sentences`` describes, with its words.

    Offsets are code points of the raw text, half-open, and ``sent_id`` counts from 0. ``continues`` marks a further
    piece of a sentence that was too long for the parser. ``text`` is the slice of the raw text, where that is at hand.
    """

    sent_id: int
    start_char: int
    end_char: int
    n_tokens: int
    continues: bool
    tokens: tuple[TokenRow, ...] = ()
    text: str = ""


class EntityRow(NamedTuple):
    """An entity: a row of the table entities, whose columns ``concord schema entities`` describes.

    Offsets are code points of the raw text, half-open; ``start_token`` and ``end_token`` number its first and last word
    within the sentence in which it begins. ``confidence`` is the probability that exactly these words are an entity of
    this label, ``uncertainty`` the largest of its words in nats. ``source`` is ``model``, ``terms`` where the words are
    a match of the run's list of terms with this label, or ``corrected`` where a person accepted, changed or added it; a
    ``candidate`` is no entity, but may be one that was missed. Entities with the same ``identity`` name the same
    person, place or organisation of the document, whose fullest name is ``canonical``. ``value`` is the normal form of
    a date, an amount of money or a number, where it is clear.
    """

    entity_id: int
    sent_id: int
    start_char: int
    end_char: int
    start_token: int
    end_token: int
    text: str
    label: str
    confidence: float | None
    uncertainty: float | None
    refined: bool
    source: str = "model"
    canonical: str = ""
    identity: int = 0
    value: str | None = None

    @property
    def name(self) -> str:
        """The text with every run of white space as one space."""
        return normalize_name(self.text)


ROW_COLUMNS: Mapping[TableName, tuple[str, ...]] = {
    "documents": DocumentRow._fields,
    "sentences": SentenceRow._fields[:5],
    "tokens": TokenRow._fields,
    "entities": EntityRow._fields,
}
"""The columns of which a document is built, by table."""


@dataclass(frozen=True, slots=True)
class CollectedDocument:
    """A document with its sentences, entities and candidates, in order."""

    row: DocumentRow
    sentences: tuple[SentenceRow, ...]
    entities: tuple[EntityRow, ...]
    candidates: tuple[EntityRow, ...] = ()

    @classmethod
    def of(
        cls,
        row: DocumentRow,
        sentences: Iterator[tuple[Any, ...]],
        words: Iterator[tuple[Any, ...]],
        entities: Iterator[tuple[Any, ...]],
    ) -> Self:
        """Build a document of its row and of the next rows of the other tables, with the columns ``ROW_COLUMNS``."""
        # A row has a value for every field, which _make would check again, in twice the time.
        tokens = map(partial(tuple.__new__, TokenRow), words)
        named = map(partial(tuple.__new__, EntityRow), entities)
        return cls(
            row=row,
            sentences=tuple(
                sentence._replace(tokens=tuple(islice(tokens, sentence.n_tokens)))
                for sentence in starmap(SentenceRow, islice(sentences, row.n_sentences))
            ),
            entities=tuple(islice(named, row.n_entities)),
            candidates=tuple(islice(named, row.n_candidates)),
        )


def read_collection(
    collection: Collection, *, wanted: Callable[[str], bool] = lambda doc_id: True
) -> Iterator[CollectedDocument]:
    """Read a collection's documents in the order of the manifest.

    Memory holds one document and one batch of rows of each table; of a part in a store, all its bytes.

    Args:
        wanted: decides by its id whether a document is read or skipped.

    Raises:
        IntegrityError: when a part is missing, damaged or too short.
    """
    for report in collection.manifest.shards:
        yield from read_shard({name: collection.path(part) for name, part in report.files.items()}, wanted)


def documents_of(columns: Mapping[str, Mapping[str, Sequence[Any]]]) -> Iterator[CollectedDocument]:
    """Build the documents of whole tables, each given by its columns."""
    documents, *others = (
        zip(*(columns[table][name] for name in names), strict=True) for table, names in ROW_COLUMNS.items()
    )
    for row in map(DocumentRow._make, documents):
        yield CollectedDocument.of(row, *others)


def entity_marks(document: CollectedDocument, text: str) -> list[Mark]:
    """Return the entities of a document with its raw text as marks, in order."""
    return [
        Mark(start=row.start_char, end=row.end_char, type=row.label, text=text[row.start_char : row.end_char])
        for row in document.entities
    ]


def whole_sentences(document: CollectedDocument) -> list[list[SentenceRow]]:
    """Return the sentences, over-long ones as the list of their pieces."""
    return join_pieces(document.sentences, lambda sentence: sentence.continues)


def tagger_input(pieces: Sequence[Sequence[ParsedWord | TokenRow]]) -> Sentence:
    """Return what a tagger reads of a sentence given as the words of its pieces; each piece keeps its own root."""
    words = [word for piece in pieces for word in piece]
    heads = relations = None
    if words[0].head is not None:
        shifts = accumulate(map(len, pieces[:-1]), initial=0)
        pairs = [(word, shift) for piece, shift in zip(pieces, shifts, strict=True) for word in piece]
        heads = tuple(word.head + shift if word.head else 0 for word, shift in pairs)
        relations = tuple(word.deprel or "" for word in words)
    return Sentence(
        words=tuple(word.word for word in words),
        tags=tuple(word.upos or "X" for word in words) if heads or any(word.upos for word in words) else None,
        heads=heads,
        relations=relations,
    )


def spaced_text(tokens: Iterable[TokenRow]) -> str:
    """Return the text of words, with one space for what is in no word between two of them."""
    pieces, end = list[str](), -1
    for token in tokens:
        if token.start_char >= end:  # words of one token may share its offsets
            pieces += (" " * (0 <= end < token.start_char), token.text)
            end = token.end_char
    return "".join(pieces)


def tagged_sentences(document: CollectedDocument) -> list[Sentence]:
    """Return what a tagger reads of a document; the pieces of an over-long sentence are one, each with its own root."""
    return [tagger_input([piece.tokens for piece in pieces]) for pieces in whole_sentences(document)]


def sentence_offsets(document: CollectedDocument) -> Iterator[list[tuple[int, int]]]:
    """Yield the offsets of the words of each sentence; the pieces of an over-long sentence are one."""
    for pieces in whole_sentences(document):
        yield [(token.start_char, token.end_char) for piece in pieces for token in piece.tokens]


def group_words(sentence: SentenceRow) -> list[tuple[TokenRow, ...]]:
    """Group the words of a sentence by token: those of a multi-word token have the same offsets."""
    return [tuple(words) for _, words in groupby(sentence.tokens, key=lambda word: (word.start_char, word.end_char))]


def read_shard(parts: Mapping[str, OutputPath], wanted: Callable[[str], bool]) -> Iterator[CollectedDocument]:
    """Read the documents of a shard from its parts, by table; otherwise as ``read_collection``."""
    sentences, words, entities = (
        _RowReader(parts[name], ROW_COLUMNS[name]) for name in ("sentences", "tokens", "entities")
    )
    for batch in iter_batches(parts["documents"], ROW_COLUMNS["documents"]):
        for row in map(DocumentRow._make, _rows_of(batch)):
            # Of a document that is skipped nothing is decoded.
            rows = (
                sentences.take(row.n_sentences),
                words.take(row.n_tokens),
                entities.take(row.n_entities + row.n_candidates),
            )
            if wanted(row.doc_id):
                yield CollectedDocument.of(row, *rows)


class _RowReader:
    """Reads a part's rows from first to last."""

    def __init__(self, part: OutputPath, columns: tuple[str, ...]) -> None:
        self._part = part
        self._batches = iter_batches(part, columns)
        self._batch: pa.RecordBatch | None = None
        self._next = 0

    def take(self, count: int) -> Iterator[tuple[Any, ...]]:
        """Return the next rows, which are decoded when they are asked for; IntegrityError if there are not so many."""
        pieces = []
        while count:
            if self._batch is None or self._next == len(self._batch):
                self._batch, self._next = next(self._batches, None), 0
                if self._batch is None:
                    raise IntegrityError(
                        f"{self._part}: ends before the last row that the table of documents counts; check the folder "
                        "with 'concord verify'"
                    )
            pieces.append(self._batch.slice(self._next, count))
            self._next += len(pieces[-1])
            count -= len(pieces[-1])
        return chain.from_iterable(map(_rows_of, pieces))


def _rows_of(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    return zip(*(column.to_pylist() for column in batch.columns), strict=True)
