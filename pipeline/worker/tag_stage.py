"""Tag stage: parsed documents to annotated ones."""

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, chain
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol

from concord.models.data.options import OnBatch, PredictOptions
from concord.models.data.outputs import Prediction, Source, known_numbers
from concord.models.data.sentence import Sentence
from concord.models.labels.spans import Span, decode_spans
from concord.models.terms import TermMatcher
from concord.pipeline.documents import AnnotatedDocument, DeadLetter, ParsedDocument, join_pieces
from concord.pipeline.output.document_rows import tagger_input
from concord.pipeline.worker.bisect import run_bisecting
from concord.pipeline.worker.memory import shortage_errors
from concord.pipeline.worker.shard_progress import OnShare

if TYPE_CHECKING:
    from concord.models.confidence.calibration import Calibration

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
        tagged = iter(run_bisecting(parsed, self._tag, stage="tag"))
        return [next(tagged) if isinstance(record, ParsedDocument) else record for record in records]

    def _tag(self, documents: Sequence[ParsedDocument]) -> list[AnnotatedDocument]:
        annotated = [
            AnnotatedDocument(parsed=document, predictions=predictions)
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
