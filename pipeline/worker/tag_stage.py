"""Tag parsed documents."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, chain
from typing import Literal, Protocol

from concord.models.calibration import Calibration
from concord.models.data.sentence import Sentence
from concord.models.labels import Span
from concord.models.outputs import Prediction
from concord.pipeline.config import TaggerRunConfig
from concord.pipeline.documents import AnnotatedDocument, DeadLetter, ParsedDocument, ParsedSentence
from concord.pipeline.worker.bisect import dead_letters_in, describe_error, in_bulk, make_dead_letter
from concord.pipeline.worker.memory import shortages

Tag = Callable[[Sequence[ParsedDocument | DeadLetter]], list[AnnotatedDocument | DeadLetter]]

# Words of a shard that a bf16 run labels in fp32 as well, to report how many labels differ.
_COMPARED_WORDS = 2_000


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
        return [*dead_letters_in(records), *in_bulk(parsed, self._tag, _tag_letter)]

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


def _words(document: AnnotatedDocument) -> int:
    return sum(len(prediction.labels) for prediction in document.predictions)


def _tag_letter(parsed: ParsedDocument, error: Exception) -> DeadLetter:
    return make_dead_letter(parsed.document, stage="tag", error="tag_failed", message=describe_error(error))


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
