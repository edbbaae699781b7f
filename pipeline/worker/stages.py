"""The stages read, parse and tag: a shard's pieces to documents, to parsed documents, to annotated ones."""

import math
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from concord.models.data.outputs import OnBatch, Prediction, PredictOptions, Source, known_numbers
from concord.models.data.sentence import Sentence, visible
from concord.models.errors import ConcordError
from concord.models.labels import Span, decode_spans
from concord.pipeline.corrections.correction import text_digest
from concord.pipeline.documents import (
    AnnotatedDocument,
    DeadLetter,
    Document,
    ParsedDocument,
    ParsedSentence,
    ParsedWord,
    join_pieces,
)
from concord.pipeline.errors import DeviceError, InputError, PlanError, ShortageError
from concord.pipeline.output.collection import SentenceRow, read_shard, tagger_input
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.plan import Plan, Shard
from concord.pipeline.readers.read_file import libraries_of, read_piece
from concord.pipeline.resources import shortage_errors
from concord.pipeline.storage.files import file_state

if TYPE_CHECKING:
    from concord.models.confidence import Calibration
    from concord.models.terms import TermMatcher

OUT_OF_MEMORY = "out_of_memory"
"""The code of a text's dead letter for which this process has no memory."""

Item = TypeVar("Item", bound=Document | ParsedDocument | AnnotatedDocument)
Result = TypeVar("Result")


def run_batch(
    records: Sequence[Item | DeadLetter],
    run: Callable[[Sequence[Item]], Sequence[Result | DeadLetter]],
    *,
    stage: str,
    on_shortage: Callable[[], None] | None = None,
) -> list[Result | DeadLetter]:
    """Run a batch in one call; when that raises, run each record alone.

    Those at fault become dead letters with the code ``<stage>_failed`` or ``out_of_memory``, in place of their results.
    Dead letters among the records stay.

    Args:
        on_shortage: called after a call that finds no memory; if None, that raises ShortageError.

    Raises:
        ConcordError: no document is at fault; the store, the model or the device is broken.
    """
    items = [record for record in records if not isinstance(record, DeadLetter)]
    try:
        results = iter(run(items) if items else ())
        return [record if isinstance(record, DeadLetter) else next(results) for record in records]
    except ShortageError as error:
        if on_shortage is None:
            raise
        on_shortage()
        code, message = OUT_OF_MEMORY, str(error)
    except ConcordError:
        raise
    except Exception as error:
        if _is_of_the_device(error):
            raise DeviceError(f"{stage}: the device is lost: {type(error).__name__}: {error}") from error
        # The worker's edge: whatever a document raises is its dead letter.
        code, message = f"{stage}_failed", f"{type(error).__name__}: {error}"
    if len(items) > 1:
        alone = (run_batch([record], run, stage=stage, on_shortage=on_shortage) for record in records)
        return list(chain.from_iterable(alone))
    fault = DeadLetter.for_document(items[0], stage=stage, error=code, message=message)
    return [record if isinstance(record, DeadLetter) else fault for record in records]


def _is_of_the_device(error: Exception) -> bool:
    # Where torch raised it, it is imported; a worker whose parser and tagger need no torch starts without it.
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(error, torch.AcceleratorError)


class ReadStage:
    """Reads the shards of a plan, and attaches the parses that committed ones hold to their documents."""

    def __init__(self, plan: Plan, folder: OutputFolder) -> None:
        if (here := libraries_of(plan.libraries)) != plan.libraries:
            raise PlanError(
                f"expected the libraries with which the input was planned, {plan.libraries}, got {here} on this "
                "worker: their texts may differ; install the same releases on all machines, or run the command again"
            )
        self._config = plan.config.reader
        self._folder = folder
        self._etags = plan.etags

    def run(self, shard: Shard) -> list[Document | ParsedDocument | DeadLetter]:
        """Read a shard, in input order; documents with a stored parse come parsed.

        Raises:
            InputError: when a file cannot be opened, or has visibly changed since the plan was made.
        """
        for uri in dict.fromkeys(piece.uri for piece in shard.pieces if piece.uri in self._etags):
            if str(file_state(uri).changed) != self._etags[uri]:
                raise InputError(f"{uri}: has changed since the plan was made; run the command again")
        records = [record for piece in shard.pieces for record in read_piece(piece, self._config)]
        parses = self._stored_parses(shard, [record for record in records if isinstance(record, Document)])
        return [parses.get(record.doc_id, record) if isinstance(record, Document) else record for record in records]

    def _stored_parses(self, shard: Shard, documents: Sequence[Document]) -> dict[str, ParsedDocument]:
        """Return the parses of documents that committed shards hold, by id; those of another text are left out."""
        parses: dict[str, ParsedDocument] = {}
        wanted = {document.doc_id: document for document in documents}
        for source in shard.parses:
            report = self._folder.require_commit(source.shard, generation=source.generation)
            parts = {name: self._folder.part(report, name) for name in report.files}
            for found in read_shard(parts, wanted.__contains__):
                document = wanted[found.row.doc_id]
                if found.row.text_sha256 == text_digest(document.text):
                    sentences = tuple(map(_parsed_sentence, found.sentences))
                    parses.setdefault(document.doc_id, ParsedDocument(document=document, sentences=sentences))
        return parses


def _parsed_sentence(row: SentenceRow) -> ParsedSentence:
    # Those of a ParsedWord are all fields between the number of the word and its labels.
    return ParsedSentence(words=tuple(ParsedWord(*word[1:11]) for word in row.tokens), continues=row.continues)


class DocumentParser(Protocol):
    """What the parse stage needs of a parser; see ``concord.pipeline.parsing.parser.Parser``."""

    def parse(
        self, documents: Sequence[Document], *, on_batch: OnBatch | None = None
    ) -> list[ParsedDocument | DeadLetter]:
        """Return one result for each document, in order."""


class ParseStage:
    """Parses documents in batches; records that are parsed already and dead letters pass through."""

    def __init__(self, parser: DocumentParser, *, batch_documents: int) -> None:
        self._parser = parser
        self._batch_documents = batch_documents

    def run(
        self, records: Sequence[Document | ParsedDocument | DeadLetter], *, on_batch: OnBatch | None = None
    ) -> list[ParsedDocument | DeadLetter]:
        """Parse records, in order; ShortageError if memory runs out.

        Args:
            on_batch: called after each batch of a network; how many words there are goes by the share of the text.
        """
        documents = [record for record in records if isinstance(record, Document)]
        sizes = [*accumulate((len(document.text) for document in documents), initial=0)]
        shares = [size / max(1, sizes[-1]) for size in sizes]
        results: list[ParsedDocument | DeadLetter] = []
        words = 0
        for start in range(0, len(documents), self._batch_documents):
            batch = documents[start : start + self._batch_documents]
            inner = on_batch and partial(_report, on_batch, shares[start], shares[start + len(batch)], words)
            parsed = run_batch(batch, partial(self._parse, on_batch=inner), stage="parse")
            words += sum(result.words for result in parsed if isinstance(result, ParsedDocument))
            results += parsed
        outcomes = iter(results)
        return [_checked(next(outcomes) if isinstance(record, Document) else record) for record in records]

    def _parse(self, batch: Sequence[Document], *, on_batch: OnBatch | None) -> list[ParsedDocument | DeadLetter]:
        with shortage_errors():
            return self._parser.parse(batch, on_batch=on_batch)


def _report(on_batch: OnBatch, first: float, last: float, before: int, done: int, words: int) -> None:
    """Report that words of a batch are done, which takes the stage from one share to another."""
    share = first + (last - first) * done / max(1, words)
    on_batch(before + done, round((before + done) / share) if share else 0)


def _checked(result: ParsedDocument | DeadLetter) -> ParsedDocument | DeadLetter:
    if isinstance(result, ParsedDocument) and (fault := find_offset_fault(result)) is not None:
        return DeadLetter.for_document(result, stage="parse", error="offsets", message=fault)
    return result


def find_offset_fault(parsed: ParsedDocument) -> str | None:
    """Describe the first fault in a document's offsets; None if there is none.

    Words must be ordered and disjoint (only words of one multi-word token may share an interval), each must equal its
    slice of the raw text, together they must cover every code point that is neither white space nor invisible,
    and no sentence may be empty.
    """
    text = parsed.document.text
    begin = end = 0
    for number, sentence in enumerate(parsed.sentences):
        if not sentence.words:
            return f"sentence {number}: expected a word or more, got none"
        for word in sentence.words:
            start, stop = word.start_char, word.end_char
            shares_token = begin < end and (start, stop) == (begin, end)
            if not shares_token and not end <= start < stop <= len(text):
                return f"{word.text!r}: expected offsets within {end}..{len(text)}, got {start}..{stop}"
            if text[start:stop] != word.text:
                return f"characters {start}..{stop}: expected {text[start:stop]!r}, got {word.text!r}"
            if visible(text[end:start]).strip():
                return f"characters {end}..{start}: {text[end:start][:80]!r} is in no word"
            begin, end = start, stop
    if visible(text[end:]).strip():
        return f"characters {end}..{len(text)}: {text[end:][:80]!r} is in no word"
    return None


_COMPARED_WORDS = 2_000
"""Words of a shard, at most a tenth of them, that a bf16 run also labels in fp32, to report how many labels differ."""


class DocumentTagger(Protocol):
    """What the tag stage needs of a tagger; see concord.models.taggers.base.Tagger."""

    @property
    def calibration(self) -> "Calibration | None":
        """How its probabilities were calibrated; None if they are the network's own."""

    @property
    def threshold(self) -> float | None:
        """Nats above which stage two decides; None for a tagger of one stage."""

    def predict_documents(
        self,
        documents: Sequence[Sequence[Sentence]],
        options: PredictOptions,
        *,
        candidates: bool = False,
        on_batch: OnBatch | None = None,
    ) -> list[list[Prediction]]:
        """Return one prediction for each sentence, by document."""


class TagStage:
    """Tags all documents of a shard in one call of the tagger.

    The pieces of an over-long sentence are joined for the tagger, so that it sees across the cuts, and its predictions
    are cut in the same places again. An entity that runs across a cut belongs to the piece in which it starts; its
    span then ends past that piece's words.
    """

    def __init__(
        self,
        tagger: DocumentTagger,
        options: PredictOptions,
        *,
        terms: "TermMatcher | None" = None,
        candidates: bool = False,
    ) -> None:
        self._tagger = tagger
        self._options = options
        self._terms = terms
        self._candidates = candidates

    @property
    def threshold(self) -> float | None:
        """Nats above which stage two decides in this run; None for a tagger of one stage."""
        if self._tagger.threshold is None or self._options.threshold is None:
            return self._tagger.threshold
        return self._options.threshold

    def run(
        self, records: Sequence[ParsedDocument | DeadLetter], *, on_batch: OnBatch | None = None
    ) -> list[AnnotatedDocument | DeadLetter]:
        """Tag records, in order; ShortageError if memory runs out."""
        return run_batch(records, partial(self._tag, on_batch=on_batch), stage="tag")

    def _tag(self, documents: Sequence[ParsedDocument], *, on_batch: OnBatch | None) -> list[AnnotatedDocument]:
        annotated = [
            # What the encoder has read is of no more use.
            AnnotatedDocument(parsed=replace(document, passages=()), predictions=predictions)
            for document, predictions in zip(documents, self._predict(documents, self._options, on_batch), strict=True)
        ]
        if self._options.precision == "fp32":
            return annotated
        words = list(accumulate(document.words for document in documents))
        # As many documents as it takes, one at least.
        compared = 1 + bisect_left(words, min(_COMPARED_WORDS, words[-1] // 10))
        fp32 = self._options.model_copy(update={"precision": "fp32"})
        references = self._predict(documents[:compared], fp32, on_batch)
        return [
            *(replace(document, in_fp32=reference) for document, reference in zip(annotated, references, strict=False)),
            *annotated[compared:],
        ]

    def _predict(
        self, documents: Sequence[ParsedDocument], options: PredictOptions, on_batch: OnBatch | None
    ) -> list[tuple[Prediction, ...]]:
        """Return one prediction for each ParsedSentence, by document."""
        joined = [join_pieces(document.sentences, attrgetter("continues")) for document in documents]
        sentences = [
            [self._with_terms(tagger_input([piece.words for piece in pieces])) for pieces in document]
            for document in joined
        ]
        with shortage_errors():
            predicted = self._tagger.predict_documents(
                sentences, options, candidates=self._candidates, on_batch=on_batch
            )
        return [
            tuple(
                piece
                for prediction, pieces, sentence in zip(predictions, document, joined_sentences, strict=True)
                for piece in cut_prediction(_with_sources(prediction, sentence), [len(piece.words) for piece in pieces])
            )
            for document, joined_sentences, predictions in zip(joined, sentences, predicted, strict=True)
        ]

    def _with_terms(self, sentence: Sentence) -> Sentence:
        return sentence if self._terms is None else self._terms.mark(sentence)


def _with_sources(prediction: Prediction, sentence: Sentence) -> Prediction:
    """Say which entities are matches of the list of terms."""
    if sentence.terms is None:
        return prediction
    matches = set(decode_spans(sentence.terms, "BIO"))
    sources: tuple[Source, ...] = tuple("terms" if span in matches else "model" for span in prediction.spans)
    return replace(prediction, sources=sources)


_OF_WORDS = ("labels", "draft_labels", "probabilities", "margins", "uncertainty", "refined")


def cut_prediction(prediction: Prediction, lengths: Sequence[int]) -> Iterator[Prediction]:
    """Cut a prediction into pieces, given their lengths in words; ValueError if it is no valid one.

    An entity belongs to the piece in which it starts.
    """
    if len(prediction.labels) != sum(lengths):
        raise ValueError(f"labels: expected one for each of {sum(lengths)} words, got {len(prediction.labels)}")
    numbers = chain(prediction.probabilities, prediction.uncertainty, prediction.confidences)
    if not all(map(math.isfinite, known_numbers(numbers))):
        raise ValueError("expected finite probabilities and uncertainties, got others")
    ends = [*accumulate(lengths)]
    entities: list[list[tuple[Span, float | None, Source]]] = [[] for _ in lengths]
    for entity in prediction.entities:
        entities[bisect_right(ends, entity[0].start)].append(entity)
    for start, end, entities_here in zip([0, *ends], ends, entities, strict=False):
        of_words: dict[str, Any] = {name: getattr(prediction, name)[start:end] for name in _OF_WORDS}
        yield Prediction(
            **of_words,
            spans=tuple(Span(span.start - start, span.end - start, span.label) for span, _, _ in entities_here),
            confidences=tuple(confidence for _, confidence, _ in entities_here),
            sources=tuple(source for _, _, source in entities_here) if prediction.sources else (),
        )


def join_predictions(predictions: Sequence[Prediction]) -> Prediction:
    """Return the predictions of pieces as one, which ``cut_prediction`` cuts again."""
    of_words: dict[str, Any] = {
        name: tuple(chain.from_iterable(getattr(prediction, name) for prediction in predictions)) for name in _OF_WORDS
    }
    starts = accumulate((len(prediction.labels) for prediction in predictions), initial=0)
    return Prediction(
        **of_words,
        spans=tuple(
            Span(start + span.start, start + span.end, span.label)
            for start, prediction in zip(starts, predictions, strict=False)
            for span in prediction.spans
        ),
        confidences=tuple(chain.from_iterable(prediction.confidences for prediction in predictions)),
        sources=tuple(source for prediction in predictions for _, _, source in prediction.entities),
    )
