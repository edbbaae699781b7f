"""The stages a shard passes: read, parse, tag, commit.

A stage takes and gives records in the order of the input. A document that a stage cannot do becomes a dead letter
there; dead letters pass through every further stage.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, chain
from typing import Literal, Protocol, TypeVar

import pyarrow as pa
import torch

from concord.models.calibration import Calibration
from concord.models.data.sentence import Sentence
from concord.models.labels import Span
from concord.models.outputs import Prediction
from concord.pipeline.back_off import Step
from concord.pipeline.config import ReaderConfig, TaggerRunConfig
from concord.pipeline.documents import (
    AnnotatedDocument,
    DeadLetter,
    Document,
    ParsedDocument,
    ParsedSentence,
    Shard,
    ShardReport,
)
from concord.pipeline.errors import ConcordError, InputError
from concord.pipeline.output.dead_letters import with_attempts
from concord.pipeline.output.output_folder import RunFolder, check_equation
from concord.pipeline.output.schema import (
    SCHEMAS,
    annotated_tables,
    error_table,
    offset_fault,
    signed_schema,
)
from concord.pipeline.output.shard_stats import count_margins, count_rows, count_step
from concord.pipeline.readers.read_file import read_piece
from concord.pipeline.storage.files import state_of
from concord.pipeline.worker.copied_rows import carry_rows
from concord.pipeline.worker.memory import shortages
from concord.pipeline.worker.stored_parses import StoredParses
from concord.pipeline.writers.parquet import write_part

Read = Callable[[Shard], list[Document | ParsedDocument | DeadLetter]]
Parse = Callable[[Sequence[Document | ParsedDocument | DeadLetter]], list[ParsedDocument | DeadLetter]]
Tag = Callable[[Sequence[ParsedDocument | DeadLetter]], list[AnnotatedDocument | DeadLetter]]

# Words of a shard that a bf16 run labels in fp32 as well, to report how many labels differ.
_COMPARED_WORDS = 2_000

Item = TypeVar("Item")
Result = TypeVar("Result")


class DocumentParser(Protocol):
    """What the parse stage needs of a parser; see concord.pipeline.parsing.stanza_parser.DependencyParser."""

    def parse(self, documents: Sequence[Document]) -> list[ParsedDocument | DeadLetter]:
        """Give one result a document, in order."""


class DocumentTagger(Protocol):
    """What the tag stage needs of a tagger; see concord.models.tagger.Tagger."""

    @property
    def calibration(self) -> Calibration | None:
        """Of the probabilities that it gives; None where they are its own."""

    @property
    def threshold(self) -> float | None:
        """Nats above which stage two decides; None for a tagger of one stage."""

    def predict_documents(
        self,
        documents: Sequence[Sequence[Sentence]],
        *,
        batch_words: int,
        samples: int | None,
        threshold: float | None,
        precision: Literal["fp32", "bf16"],
    ) -> list[list[Prediction]]:
        """Give one prediction a sentence."""


class ReadStage:
    """A shard's pieces to documents; those whose parse stands already come parsed."""

    def __init__(self, config: ReaderConfig, folder: RunFolder, *, marks: Mapping[str, str]) -> None:
        """Take how to read, where parses stand, and how files behind URLs were marked when they were planned."""
        self._config = config
        self._folder = folder
        self._marks = marks

    def __call__(self, shard: Shard) -> list[Document | ParsedDocument | DeadLetter]:
        """Read a shard.

        Raises:
            InputError: when a file cannot be opened, or has visibly changed since the plan was made.
            IntegrityError: when the parses that should stand cannot be read.
            StoreError: when a store fails.
        """
        self._check_marks(shard)
        records = [record for piece in shard.pieces for record in read_piece(piece, self._config)]
        if not shard.parses:
            return [*records]
        return with_parses(records, StoredParses(self._folder, shard.parses).find)

    def _check_marks(self, shard: Shard) -> None:
        """Refuse files behind URLs that are no longer the ones that were planned."""
        for uri in dict.fromkeys(piece.uri for piece in shard.pieces if piece.uri in self._marks):
            if str(state_of(uri).changed) != self._marks[uri]:
                raise InputError(f"{uri}: has changed since the plan was made; run the command again")


def with_parses(
    records: Sequence[Document | ParsedDocument | DeadLetter], find: Callable[[Document], ParsedDocument | None]
) -> list[Document | ParsedDocument | DeadLetter]:
    """Put parses in the place of the documents for which there is one."""
    return [(find(record) or record) if isinstance(record, Document) else record for record in records]


class ParseStage:
    """Documents to parsed documents, in groups; those that are parsed already pass through."""

    def __init__(self, parser: DocumentParser, *, batch_documents: int) -> None:
        """Take the parser and how many documents one of its calls gets."""
        self._parser = parser
        self._batch_documents = batch_documents

    def __call__(self, records: Sequence[Document | ParsedDocument | DeadLetter]) -> list[ParsedDocument | DeadLetter]:
        """Parse.

        Raises:
            ShortageError: when memory runs out.
        """
        documents = [record for record in records if isinstance(record, Document)]
        parsed: list[ParsedDocument | DeadLetter] = []
        for start in range(0, len(documents), self._batch_documents):
            group = documents[start : start + self._batch_documents]
            parsed.extend(_in_bulk(group, self._parse, _parse_letter))
        fresh = iter(parsed)
        results = [next(fresh) if isinstance(record, Document) else record for record in records]
        return [_checked(result) for result in results]

    def _parse(self, documents: Sequence[Document]) -> list[ParsedDocument | DeadLetter]:
        with shortages():
            return self._parser.parse(documents)


class TagStage:
    """Parsed documents to annotated ones, all documents of a shard at once.

    The pieces of an over-long sentence are put together for the tagger, so that it sees across the seams, and its
    labels are cut at the seams again. An entity that runs across a seam belongs to the piece in which it begins; its
    span then ends past that piece's words.
    """

    def __init__(self, tagger: DocumentTagger, config: TaggerRunConfig) -> None:
        """Take the tagger and how it is to work."""
        self._tagger = tagger
        self._config = config

    @property
    def threshold(self) -> float | None:
        """Nats above which stage two decides in this run; None for a tagger of one stage."""
        if self._tagger.threshold is None or self._config.threshold is None:
            return self._tagger.threshold
        return self._config.threshold

    def __call__(self, records: Sequence[ParsedDocument | DeadLetter]) -> list[AnnotatedDocument | DeadLetter]:
        """Tag; the dead letters come first.

        Raises:
            ShortageError: when memory runs out.
        """
        parsed = [record for record in records if isinstance(record, ParsedDocument)]
        return [*_letters(records), *_in_bulk(parsed, self._tag, _tag_letter)]

    def _tag(self, documents: Sequence[ParsedDocument]) -> list[AnnotatedDocument]:
        annotated = [
            AnnotatedDocument(parsed=document, predictions=predictions)
            for document, predictions in zip(documents, self._predict(documents, self._config.precision), strict=True)
        ]
        if self._config.precision == "fp32":
            return annotated
        compared = _first_words(documents, _COMPARED_WORDS)
        references = self._predict(documents[:compared], "fp32")
        return [
            *(replace(document, in_fp32=reference) for document, reference in zip(annotated, references, strict=False)),
            *annotated[compared:],
        ]

    def _predict(
        self, documents: Sequence[ParsedDocument], precision: Literal["fp32", "bf16"]
    ) -> list[tuple[Prediction, ...]]:
        """Give one prediction a piece for each document."""
        wholes = [_whole_sentences(document.sentences) for document in documents]
        with shortages():
            answers = self._tagger.predict_documents(
                [[_sentence(pieces) for pieces in document] for document in wholes],
                batch_words=self._config.batch_words,
                samples=self._config.samples,
                threshold=self._config.threshold,
                precision=precision,
            )
        return [
            tuple(
                chain.from_iterable(
                    _cut(answer, [len(piece.words) for piece in pieces])
                    for answer, pieces in zip(predictions, whole, strict=True)
                )
            )
            for whole, predictions in zip(wholes, answers, strict=True)
        ]


class CommitStage:
    """Outcomes of a shard to committed parts. Nothing is written unless every record is accounted for."""

    def __init__(
        self,
        folder: RunFolder,
        *,
        generation: int,
        parser: str,
        tagger: str,
        calibration: str,
        threshold: float | None,
    ) -> None:
        """Take where to write and what to sign with.

        Args:
            parser, tagger: their signatures.
            calibration: as in ``concord.pipeline.output.schema.signed_schema``.
            threshold: nats above which stage two decides, for the counts.
        """
        self._folder = folder
        self._generation = generation
        self._signed = {"parser": parser, "tagger": tagger, "calibration": calibration}
        self._threshold = threshold

    def __call__(
        self, shard: Shard, outcomes: Sequence[AnnotatedDocument | DeadLetter], *, step: Step = Step.AS_PLANNED
    ) -> ShardReport:
        """Write and commit, with the rows that the shard takes over before those of its outcomes.

        Args:
            step: how the outcomes came about, for the counts.

        Returns:
            the record that counts: this one, or that of another worker who was first.

        Raises:
            ReconciliationError: when a record of the shard is missing or came twice; nothing is written then.
            StoreError: when there is no space; nothing is committed then.
            ShortageError: when memory runs out.
        """
        documents = [outcome for outcome in outcomes if isinstance(outcome, AnnotatedDocument)]
        tables, annotated, refused = self._tabulate(documents)
        letters = with_attempts(shard, _in_input_order(shard, [*_letters(outcomes), *refused]))
        if letters:
            tables["errors"] = error_table(letters, **self._signed)
        tables, unchanged = self._with_carried(shard, tables)
        stats = count_rows(tables, threshold=self._threshold) | count_margins(annotated, threshold=self._threshold)
        stats |= count_step(step)
        report = ShardReport(
            shard=shard.index,
            generation=self._generation,
            read=shard.records,
            annotated=len(annotated),
            unchanged=unchanged,
            dead_letters=tables["errors"].num_rows if "errors" in tables else 0,
            stats=dict(sorted(stats.items())),
        )
        check_equation(report, place=f"shard {shard.name}")
        return self._commit(report, tables, shard)

    def _with_carried(self, shard: Shard, tables: dict[str, pa.Table]) -> tuple[dict[str, pa.Table], int]:
        """Put the rows that a shard takes over before its own; give the documents among them as well."""
        sources = []
        for carry in shard.carries:
            report = self._folder.built_on(carry.shard, generation=carry.generation)
            sources.append(carry_rows(self._folder.output, report, carry))
        unchanged = sum(source["documents"].num_rows for source in sources)
        joined = {
            name: pa.concat_tables(
                signed.cast(signed_schema(name, **self._signed))
                for source in (*sources, tables)
                if (signed := source.get(name)) is not None
            )
            for name in SCHEMAS
            if any(name in source for source in (*sources, tables))
        }
        return joined, unchanged

    def _tabulate(
        self, documents: Sequence[AnnotatedDocument]
    ) -> tuple[dict[str, pa.Table], list[AnnotatedDocument], list[DeadLetter]]:
        """Give the tables, the documents in them, and a dead letter for each that the schema cannot hold."""
        pieces = [annotated_tables([], **self._signed)]

        def tabulate(group: Sequence[AnnotatedDocument]) -> Sequence[AnnotatedDocument]:
            with shortages():
                pieces.append(annotated_tables(group, **self._signed))
            return group

        results = _in_bulk(documents, tabulate, _write_letter)
        tables = {name: pa.concat_tables([piece[name] for piece in pieces]) for name in pieces[0]}
        return tables, [result for result in results if isinstance(result, AnnotatedDocument)], _letters(results)

    def _commit(self, report: ShardReport, tables: dict[str, pa.Table], shard: Shard) -> ShardReport:
        folder = self._folder
        try:
            files = {
                name: write_part(
                    table,
                    output=folder.output,
                    staging=folder.staging,
                    name=name,
                    shard=shard.name,
                    generation=self._generation,
                )
                for name, table in tables.items()
            }
            return folder.commit(replace(report, files=files))
        except FileNotFoundError:
            # A second driver that finished first has swept the staging folder under us; its record counts.
            winner = folder.committed(shard.index, generation=self._generation)
            if winner is None:
                raise
            return winner


def _in_bulk(
    items: Sequence[Item],
    work: Callable[[Sequence[Item]], Sequence[Result]],
    letter: Callable[[Item, Exception], DeadLetter],
) -> list[Result | DeadLetter]:
    """Do all items in one call; where it raises, halve until only the items that raise are left out."""
    if not items:
        return []
    try:
        return list(work(items))
    except (ConcordError, torch.AcceleratorError):
        # No fault of any document: the store, the model or the device is broken for all of them.
        raise
    except Exception as error:  # noqa: BLE001 - the worker's edge: whatever a document raises is its dead letter
        if len(items) == 1:
            return [letter(items[0], error)]
    middle = len(items) // 2
    return [*_in_bulk(items[:middle], work, letter), *_in_bulk(items[middle:], work, letter)]


def _words(document: AnnotatedDocument) -> int:
    return sum(len(prediction.labels) for prediction in document.predictions)


def _letters(records: Iterable[object]) -> list[DeadLetter]:
    return [record for record in records if isinstance(record, DeadLetter)]


def _in_input_order(shard: Shard, letters: Sequence[DeadLetter]) -> list[DeadLetter]:
    places = {piece.uri: number for number, piece in reversed(list(enumerate(shard.pieces)))}
    return sorted(letters, key=lambda letter: (places.get(letter.source_uri, len(places)), letter.position))


def _checked(result: ParsedDocument | DeadLetter) -> ParsedDocument | DeadLetter:
    fault = offset_fault(result) if isinstance(result, ParsedDocument) else None
    if fault is None or isinstance(result, DeadLetter):
        return result
    return _letter(result.document, stage="parse", error="offsets", message=fault)


def left_out(record: Document | ParsedDocument, *, stage: str, error: str, message: str) -> DeadLetter:
    """Give the dead letter of a record that stages did not, or not to the end, see."""
    document = record.document if isinstance(record, ParsedDocument) else record
    return _letter(document, stage=stage, error=error, message=message)


def _parse_letter(document: Document, error: Exception) -> DeadLetter:
    return _letter(document, stage="parse", error="parse_failed", message=_told(error))


def _tag_letter(parsed: ParsedDocument, error: Exception) -> DeadLetter:
    return _letter(parsed.document, stage="tag", error="tag_failed", message=_told(error))


def _write_letter(annotated: AnnotatedDocument, error: Exception) -> DeadLetter:
    return _letter(annotated.parsed.document, stage="write", error="write_failed", message=_told(error))


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _letter(document: Document, *, stage: str, error: str, message: str) -> DeadLetter:
    return DeadLetter(
        doc_id=document.doc_id,
        source_uri=document.source_uri,
        position=document.source_position,
        stage=stage,
        error=error,
        message=f"document {document.doc_id!r}: {message}",
    )


def _first_words(documents: Sequence[ParsedDocument], words: int) -> int:
    """Give how many documents, from the first on, hold so many words; at least one document, if there is one."""
    total = 0
    for number, document in enumerate(documents):
        total += sum(len(sentence.words) for sentence in document.sentences)
        if total >= words:
            return number + 1
    return len(documents)


def _whole_sentences(pieces: Sequence[ParsedSentence]) -> list[list[ParsedSentence]]:
    """Put each sentence together with the pieces that continue it."""
    wholes: list[list[ParsedSentence]] = []
    for piece in pieces:
        if piece.continues and wholes:
            wholes[-1].append(piece)
        else:
            wholes.append([piece])
    return wholes


def _sentence(pieces: Sequence[ParsedSentence]) -> Sentence:
    """Give the tagger's view of a sentence; each piece keeps its own root."""
    words = [word for piece in pieces for word in piece.words]
    shifts = accumulate((len(piece.words) for piece in pieces[:-1]), initial=0)
    tags = tuple(word.upos or "X" for word in words)
    return Sentence(
        words=tuple(word.word for word in words),
        tags=tags,
        heads=tuple(
            word.head and word.head + shift for piece, shift in zip(pieces, shifts, strict=True) for word in piece.words
        ),
        relations=tuple(word.deprel for word in words),
    )


def _cut(answer: Prediction, lengths: Sequence[int]) -> Iterator[Prediction]:
    """Cut a sentence's prediction at the seams of its pieces.

    Raises:
        ValueError: when it has not one label a word, or a number that is not finite.
    """
    if len(answer.labels) != sum(lengths):
        raise ValueError(f"labels: expected one for each of {sum(lengths)} words, got {len(answer.labels)}")
    if not all(map(math.isfinite, chain(answer.probabilities, answer.uncertainty, answer.confidences))):
        raise ValueError("expected finite probabilities and uncertainties, got others")
    entities = list(zip(answer.spans, answer.confidences, strict=True))
    start = 0
    for length in lengths:
        end = start + length
        own = [(span, confidence) for span, confidence in entities if start <= span.start < end]
        yield Prediction(
            labels=answer.labels[start:end],
            draft_labels=answer.draft_labels[start:end],
            probabilities=answer.probabilities[start:end],
            margins=answer.margins[start:end],
            uncertainty=answer.uncertainty[start:end],
            refined=answer.refined[start:end],
            spans=tuple(Span(span.start - start, span.end - start, span.label) for span, _ in own),
            confidences=tuple(confidence for _, confidence in own),
        )
        start = end
