"""The stages read, parse and tag: a shard's pieces to documents, to parsed documents, to annotated ones.

Parses of earlier generations come as tables.
"""

import math
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, chain
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, TypeVar

import pyarrow as pa

from concord.models.data.outputs import OnBatch, Prediction, PredictOptions, Source, known_numbers
from concord.models.data.sentence import Sentence, visible
from concord.models.errors import ConcordError
from concord.models.labels import Span, decode_spans
from concord.models.terms import TermMatcher
from concord.pipeline.config import ReaderConfig
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
from concord.pipeline.output.collection import tagger_input
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.parquet_parts import read_part
from concord.pipeline.plan import Shard, ShardRef
from concord.pipeline.readers.read_file import libraries_of, read_piece
from concord.pipeline.resources import shortage_errors
from concord.pipeline.storage.files import file_state
from concord.pipeline.worker.shard_progress import OnShare

if TYPE_CHECKING:
    from concord.models.confidence import Calibration

OUT_OF_MEMORY = "out_of_memory"
"""The code of a text's dead letter for which this process has no memory."""

Item = TypeVar("Item", bound=Document | ParsedDocument | AnnotatedDocument)
Result = TypeVar("Result")


def run_batch(
    items: Sequence[Item],
    run: Callable[[Sequence[Item]], Sequence[Result]],
    *,
    stage: str,
    on_shortage: Callable[[], None] | None = None,
) -> list[Result | DeadLetter]:
    """Run a batch in one call; when that raises, run each item alone.

    Those at fault become dead letters with the code ``<stage>_failed`` or ``out_of_memory``, in place of their results.

    Args:
        on_shortage: called after a call that finds no memory; if None, that raises ShortageError.

    Raises:
        ConcordError: no document is at fault; the store, the model or the device is broken.
    """
    if not items:
        return []
    try:
        return list(run(items))
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
    if len(items) == 1:
        return [DeadLetter.for_document(items[0], stage=stage, error=code, message=message)]
    return [result for item in items for result in run_batch([item], run, stage=stage, on_shortage=on_shortage)]


def _is_of_the_device(error: Exception) -> bool:
    # Where torch raised it, it is imported; a worker whose parser and tagger need no torch starts without it.
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(error, torch.AcceleratorError)


_COLUMNS = {
    "documents": ("doc_id", "text_sha256", "n_sentences", "n_tokens"),
    "sentences": ("n_tokens", "continues"),
    "tokens": ("start_char", "end_char", "text", "word", "lemma", "upos", "xpos", "feats", "head", "deprel"),
}


@dataclass(frozen=True, slots=True)
class _Rows:
    """A document's rows in the tables of sentences and tokens."""

    text_sha256: str
    sentences: slice
    tokens: slice


class Parses:
    """Parses of documents, looked up in the tables that hold them."""

    def __init__(self, tables: Mapping[str, pa.Table]) -> None:
        documents, sentences, tokens = (
            [tables[name].column(column).to_pylist() for column in columns] for name, columns in _COLUMNS.items()
        )
        self._sentences = list(zip(*sentences, strict=True))
        self._words = tokens
        self._rows: dict[str, _Rows] = {}
        sentence = token = 0
        for doc_id, digest, n_sentences, n_tokens in zip(*documents, strict=True):
            self._rows[doc_id] = _Rows(digest, slice(sentence, sentence + n_sentences), slice(token, token + n_tokens))
            sentence, token = sentence + n_sentences, token + n_tokens

    def find(self, document: Document) -> ParsedDocument | None:
        """Return a document's parse; None if there is none, or only of another text."""
        rows = self._rows.get(document.doc_id)
        if rows is None or rows.text_sha256 != text_digest(document.text):
            return None
        words = zip(*(column[rows.tokens] for column in self._words), strict=True)
        sentences = tuple(
            ParsedSentence(words=tuple(ParsedWord(*next(words)) for _ in range(length)), continues=continues)
            for length, continues in self._sentences[rows.sentences]
        )
        return ParsedDocument(document=document, sentences=sentences)


def read_stored_parses(folder: OutputFolder, shards: Sequence[ShardRef]) -> list[Parses]:
    """Read the parses that committed shards hold; IntegrityError if a commit record or part cannot be read."""
    parses = []
    for shard in shards:
        report = folder.require_commit(shard.shard, generation=shard.generation)
        tables = {name: read_part(folder.part(report, name), columns) for name, columns in _COLUMNS.items()}
        parses.append(Parses(tables))
    return parses


class ReadStage:
    """Reads shards, and attaches existing parses to their documents.

    Args:
        folder: where committed shards hold parses.
        etags: etag or time of each input behind a URL when it was planned.
        libraries: see Plan.libraries.
    """

    def __init__(
        self,
        config: ReaderConfig,
        folder: OutputFolder,
        *,
        etags: Mapping[str, str],
        libraries: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        if (here := libraries_of(libraries)) != libraries:
            raise PlanError(
                f"expected the libraries with which the input was planned, {dict(libraries)}, got {here} on this "
                "worker: their texts may differ; install the same releases on all machines, or run the command again"
            )
        self._config = config
        self._folder = folder
        self._etags = etags

    def run(self, shard: Shard) -> list[Document | ParsedDocument | DeadLetter]:
        """Read a shard, in input order; documents with a stored parse come parsed.

        Raises:
            InputError: when a file cannot be opened, or has visibly changed since the plan was made.
        """
        for uri in dict.fromkeys(piece.uri for piece in shard.pieces if piece.uri in self._etags):
            if str(file_state(uri).changed) != self._etags[uri]:
                raise InputError(f"{uri}: has changed since the plan was made; run the command again")
        records = [record for piece in shard.pieces for record in read_piece(piece, self._config)]
        sources = read_stored_parses(self._folder, shard.parses)
        return [_parse_from(sources, record) if isinstance(record, Document) else record for record in records]


def _parse_from(sources: Sequence[Parses], document: Document) -> Document | ParsedDocument:
    """Return the document's first parse in the sources; the document itself where none has it."""
    return next((parsed for parses in sources if (parsed := parses.find(document)) is not None), document)


class DocumentParser(Protocol):
    """What the parse stage needs of a parser; see ``concord.pipeline.parsing.parser.Parser``."""

    def parse(
        self, documents: Sequence[Document], *, on_batch: OnBatch | None = None
    ) -> list[ParsedDocument | DeadLetter]:
        """Return one result for each document, in order."""


class ParseStage:
    """Parses documents in batches; records that are parsed already and dead letters pass through."""

    def __init__(self, parser: DocumentParser, *, batch_documents: int, on_share: OnShare | None = None) -> None:
        self._parser = parser
        self._batch_documents = batch_documents
        self._on_share = on_share

    def run(self, records: Sequence[Document | ParsedDocument | DeadLetter]) -> list[ParsedDocument | DeadLetter]:
        """Parse records, in order; ShortageError if memory runs out."""
        documents = [record for record in records if isinstance(record, Document)]
        sizes = [*accumulate((len(document.text) for document in documents), initial=0)]
        shares = [size / max(1, sizes[-1]) for size in sizes]
        results: list[ParsedDocument | DeadLetter] = []
        words = 0
        for start in range(0, len(documents), self._batch_documents):
            batch = documents[start : start + self._batch_documents]
            on_batch = partial(self._report, shares[start], shares[start + len(batch)], words)
            parsed = run_batch(batch, partial(self._parse, on_batch=on_batch), stage="parse")
            words += sum(result.words for result in parsed if isinstance(result, ParsedDocument))
            results += parsed
        outcomes = iter(results)
        return [_checked(next(outcomes) if isinstance(record, Document) else record) for record in records]

    def _parse(self, batch: Sequence[Document], *, on_batch: OnBatch) -> list[ParsedDocument | DeadLetter]:
        with shortage_errors():
            return self._parser.parse(batch, on_batch=on_batch)

    def _report(self, first: float, last: float, before: int, done: int, words: int) -> None:
        """Report that words of a batch are done, which takes the stage from one share to another."""
        if self._on_share is not None:
            self._on_share(first + (last - first) * done / max(1, words), before + done)


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
        terms: TermMatcher | None = None,
        candidates: bool = False,
        on_share: OnShare | None = None,
    ) -> None:
        self._tagger = tagger
        self._options = options
        self._terms = terms
        self._candidates = candidates
        self._on_share = on_share

    @property
    def threshold(self) -> float | None:
        """Nats above which stage two decides in this run; None for a tagger of one stage."""
        if self._tagger.threshold is None or self._options.threshold is None:
            return self._tagger.threshold
        return self._options.threshold

    def run(self, records: Sequence[ParsedDocument | DeadLetter]) -> list[AnnotatedDocument | DeadLetter]:
        """Tag records, in order; ShortageError if memory runs out."""
        parsed = [record for record in records if isinstance(record, ParsedDocument)]
        tagged = iter(run_batch(parsed, self._tag, stage="tag"))
        return [next(tagged) if isinstance(record, ParsedDocument) else record for record in records]

    def _tag(self, documents: Sequence[ParsedDocument]) -> list[AnnotatedDocument]:
        annotated = [
            # What the encoder has read is of no more use.
            AnnotatedDocument(parsed=replace(document, passages=()), predictions=predictions)
            for document, predictions in zip(documents, self._predict(documents, self._options), strict=True)
        ]
        if self._options.precision == "fp32":
            return annotated
        words = list(accumulate(document.words for document in documents))
        # As many documents as it takes, one at least.
        compared = 1 + bisect_left(words, min(_COMPARED_WORDS, words[-1] // 10))
        references = self._predict(documents[:compared], self._options.model_copy(update={"precision": "fp32"}))
        return [
            *(replace(document, in_fp32=reference) for document, reference in zip(annotated, references, strict=False)),
            *annotated[compared:],
        ]

    def _predict(self, documents: Sequence[ParsedDocument], options: PredictOptions) -> list[tuple[Prediction, ...]]:
        """Return one prediction for each ParsedSentence, by document."""
        joined = [join_pieces(document.sentences, attrgetter("continues")) for document in documents]
        sentences = [
            [self._with_terms(tagger_input([piece.words for piece in pieces])) for pieces in document]
            for document in joined
        ]
        with shortage_errors():
            predicted = self._tagger.predict_documents(
                sentences, options, candidates=self._candidates, on_batch=self._on_batch
            )
        return [
            tuple(
                piece
                for prediction, pieces, sentence in zip(predictions, document, joined_sentences, strict=True)
                for piece in _cut(_with_sources(prediction, sentence), [len(piece.words) for piece in pieces])
            )
            for document, joined_sentences, predictions in zip(joined, sentences, predicted, strict=True)
        ]

    def _with_terms(self, sentence: Sentence) -> Sentence:
        return sentence if self._terms is None else self._terms.mark(sentence)

    def _on_batch(self, done: int, words: int) -> None:
        if self._on_share is not None:
            self._on_share(done / max(1, words), done)


def _with_sources(prediction: Prediction, sentence: Sentence) -> Prediction:
    """Say which entities are matches of the list of terms."""
    if sentence.terms is None:
        return prediction
    matches = set(decode_spans(sentence.terms, "BIO"))
    sources: tuple[Source, ...] = tuple("terms" if span in matches else "model" for span in prediction.spans)
    return replace(prediction, sources=sources)


def _cut(prediction: Prediction, lengths: Sequence[int]) -> Iterator[Prediction]:
    """Cut a sentence's prediction into its pieces, given their lengths in words; ValueError if it is no valid one."""
    if len(prediction.labels) != sum(lengths):
        raise ValueError(f"labels: expected one for each of {sum(lengths)} words, got {len(prediction.labels)}")
    numbers = chain(prediction.probabilities, prediction.uncertainty, prediction.confidences)
    if not all(map(math.isfinite, known_numbers(numbers))):
        raise ValueError("expected finite probabilities and uncertainties, got others")
    start = 0
    for length in lengths:
        end = start + length
        entities_here = [entity for entity in prediction.entities if start <= entity[0].start < end]
        yield Prediction(
            labels=prediction.labels[start:end],
            draft_labels=prediction.draft_labels[start:end],
            probabilities=prediction.probabilities[start:end],
            margins=prediction.margins[start:end],
            uncertainty=prediction.uncertainty[start:end],
            refined=prediction.refined[start:end],
            spans=tuple(Span(span.start - start, span.end - start, span.label) for span, _, _ in entities_here),
            confidences=tuple(confidence for _, confidence, _ in entities_here),
            sources=tuple(source for _, _, source in entities_here) if prediction.sources else (),
        )
        start = end
