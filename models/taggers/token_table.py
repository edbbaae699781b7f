"""The result table that a call of a tagger fills, one row per word, and the probabilities of entities it asks for."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, repeat
from math import prod

import torch
from torch import Tensor

from concord.models.confidence import Calibration, chosen_probability, find_spans, with_candidates
from concord.models.data.batch import Batch, Work, fetch
from concord.models.data.outputs import Prediction, Refined
from concord.models.data.sentence import Sentence, Window
from concord.models.data.vocabulary import Vocabulary
from concord.models.decoders.distribution import LabelDistribution, SpanQuery, entropy
from concord.models.labels import Span
from concord.models.terms import find_contradictions, overrule_unsure


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptWords:
    """The words of a batch of windows whose results count."""

    rows: Tensor
    """Their rows in the token table, shape ``(K,)``, int64."""
    cells: Tensor
    """Their cells in the flattened batch, shape ``(K,)``, int64."""

    @classmethod
    def of(cls, windows: Sequence[Window], width: int) -> "KeptWords":
        """Locate the kept words of a batch whose sentences are padded to ``width``."""
        firsts = torch.tensor([window.first for window in windows])[:, None]
        begins, stops = torch.tensor([window.keep for window in windows])[:, :, None].unbind(dim=1)
        words = torch.arange(width)[None, :]
        kept = (begins <= words) & (words < stops)
        return cls(rows=(firsts + words)[kept], cells=kept.flatten().nonzero()[:, 0])

    def take(self, values: Tensor) -> Tensor:
        """Select these words from a batch of values on the CPU; shape ``(B, T, ...)`` to ``(K, ...)``."""
        return values.flatten(0, 1)[self.cells]

    def where(self, chosen: Tensor) -> "KeptWords":
        """Return the words for which a mask of shape ``(B, T)``, bool, on the CPU, is true."""
        kept = self.take(chosen)
        return KeptWords(rows=self.rows[kept], cells=self.cells[kept])


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenTable:
    """The results of a call, one row per word, on the CPU."""

    documents: Sequence[Sequence[Sentence]]
    draft: Tensor
    label: Tensor
    """Draft and label: numbers of stage one's label and of the final one, shape ``(N,)``, int64."""
    probability: Tensor
    """Probability of the label, by the deciding stage and as calibrated, shape ``(N,)``, float32, 0..1."""
    margin: Tensor
    """The smallest margin of the stages that labelled the word, shape ``(N,)``, float32, 0..1."""
    uncertainty: Tensor
    """Nats, shape ``(N,)``, float32."""
    refined: Tensor
    """True where stage two decided, shape ``(N,)``, bool."""
    span: Tensor
    """At the first word of an entity, and of each part of an entity that crosses the seam of two windows, the
    probability of that part; 1 elsewhere. The probability of an entity is the product over its words. Shape ``(N,)``,
    float32, 0..1, not calibrated."""
    calibration: Calibration | None = None
    """Calibration of the probabilities; None leaves them as they are."""
    scored: bool = True
    """False for a tagger without probabilities; the columns of numbers then stay as they were created."""
    distributions: Tensor | None = None
    """Label probabilities of the deciding stage, not calibrated, shape ``(N, L)``, float32; None unless requested."""

    @classmethod
    def empty(
        cls,
        documents: Sequence[Sequence[Sentence]],
        *,
        calibration: Calibration | None,
        labels: int | None,
        scored: bool = True,
    ) -> "TokenTable":
        """Create a table with a row for every word, which stores distributions over ``labels`` labels unless None."""
        words = sum(len(sentence.words) for document in documents for sentence in document)
        return cls(
            documents=documents,
            draft=torch.zeros(words, dtype=torch.int64),
            label=torch.zeros(words, dtype=torch.int64),
            probability=torch.zeros(words),
            margin=torch.zeros(words),
            uncertainty=torch.zeros(words),
            refined=torch.zeros(words, dtype=torch.bool),
            span=torch.ones(words),
            calibration=calibration,
            scored=scored,
            distributions=None if labels is None else torch.zeros(words, labels),
        )

    def write(
        self, windows: Sequence[Window], batch: Batch, distribution: LabelDistribution, vocabulary: Vocabulary
    ) -> Work[None]:
        """Write the results of a one-stage tagger; the uncertainty is the entropy of a word's marginals."""
        labels, marginals = distribution.mode(), distribution.marginals()
        labels = overrule_unsure(labels, marginals, find_contradictions(batch, labels, vocabulary))
        words = KeptWords.of(windows, batch.mask.shape[1])
        found = yield from self.write_labels(words, labels, probabilities=marginals, uncertainty=entropy(marginals))
        yield from self.write_spans(windows, found.labels, vocabulary, distribution.span_probability, batch.mask.device)

    def write_unscored(self, window: Window, labels: Sequence[int]) -> None:
        """Write the labels of all words of a window, by a tagger without probabilities."""
        begin, stop = window.keep
        rows = slice(window.first + begin, window.first + stop)
        self.draft[rows] = self.label[rows] = torch.tensor(labels[begin:stop], dtype=torch.int64)

    def write_labels(
        self, words: KeptWords, labels: Tensor, *, probabilities: Tensor, uncertainty: Tensor
    ) -> Work["WordResults"]:
        """Write the labels, ``(B, T)``, int64, of stage one, or of a tagger's only stage; return what was written.

        The probabilities are those of all labels, ``(B, T, L)``; the uncertainty, ``(B, T)``, is in nats.
        """
        found = yield from self._fetched(labels, probabilities, uncertainty)
        self.draft[words.rows] = self.label[words.rows] = words.take(found.labels)
        self.margin[words.rows] = words.take(found.margins)
        self.uncertainty[words.rows] = words.take(found.other)
        self._write_probabilities(words, found)
        return found

    def write_refined(self, words: KeptWords, stage_two: Refined) -> Work["WordResults"]:
        """Overwrite the labels that stage two replaced; the margin becomes the smaller one of both stages."""
        found = yield from self._fetched(stage_two.labels, stage_two.probabilities, stage_two.refined)
        refined = words.where(found.other > 0)
        self.label[refined.rows] = refined.take(found.labels)
        self.margin[refined.rows] = torch.minimum(self.margin[refined.rows], refined.take(found.margins))
        self.refined[refined.rows] = True
        self._write_probabilities(refined, found)
        return found

    def write_spans(
        self,
        windows: Sequence[Window],
        labels: Tensor,
        vocabulary: Vocabulary,
        probability: Callable[[SpanQuery], Tensor],
        device: torch.device,
        *,
        sentences: Iterable[int] | None = None,
    ) -> Work[None]:
        """Write the probabilities of the entities in a batch, whose final labels are ``(B, T)``, int64, on the CPU.

        Sentences are chosen by number; None chooses all. The probability is asked for on the device.
        """
        kept = [window.keep for window in windows]
        query = span_query(labels, kept, range(len(windows)) if sentences is None else sentences, vocabulary)
        if query is not None:
            copied = fetch(probability(query.to(device)).float())
            yield
            firsts = torch.tensor([window.first for window in windows])
            self.span[firsts[query.sentences] + query.starts] = copied()

    def predictions(self, vocabulary: Vocabulary, *, candidates_from: float | None = None) -> list[list[Prediction]]:
        """Convert the rows to text: strict spans, labels in BIO2; or plain labels of the words.

        With ``candidates_from``, other spans of at least this score become candidates; it needs distributions.
        """
        columns = (self.draft, self.label, self.refined, self.span)
        draft, label, refined, span = (tuple(column.tolist()) for column in columns)
        probability, margin, uncertainty = map(self._scores, (self.probability, self.margin, self.uncertainty))
        lengths = [len(sentence.words) for document in self.documents for sentence in document]
        rows = [slice(stop - length, stop) for length, stop in zip(lengths, accumulate(lengths), strict=True)]
        decoded = [_decode(label[words], vocabulary) for words in rows]
        confidences = [
            prod(span[words.start + found.start : words.start + found.end])
            for words, (_, spans) in zip(rows, decoded, strict=True)
            for found in spans
        ]
        if self.calibration is not None:
            confidences = self.calibration.entity_confidences(confidences)
        remaining = iter(confidences if self.scored else repeat(None))
        predictions = (
            Prediction(
                labels=labels,
                draft_labels=labels if draft[words] == label[words] else _decode(draft[words], vocabulary)[0],
                probabilities=probability[words],
                margins=margin[words],
                uncertainty=uncertainty[words],
                refined=refined[words],
                spans=spans,
                confidences=tuple(islice(remaining, len(spans))),
            )
            for words, (labels, spans) in zip(rows, decoded, strict=True)
        )
        if candidates_from is not None:
            found = self.find_spans(vocabulary, least=candidates_from)
            predictions = (
                with_candidates(prediction, spans) for prediction, spans in zip(predictions, found, strict=True)
            )
        return [list(islice(predictions, len(document))) for document in self.documents]

    def find_spans(self, vocabulary: Vocabulary, *, least: float) -> list[dict[Span, float]]:
        """Return the spans of each sentence with their scores, as ``candidates.find_spans`` does."""
        if self.distributions is None:
            raise ValueError("find_spans: expected a table with distributions")
        lengths = [len(sentence.words) for document in self.documents for sentence in document]
        return find_spans(self.distributions.double().numpy(), lengths, vocabulary, least=least)

    def _scores(self, column: Tensor) -> tuple[float | None, ...]:
        return tuple(column.tolist()) if self.scored else (None,) * len(column)

    def _fetched(self, labels: Tensor, probabilities: Tensor, other: Tensor) -> Work["WordResults"]:
        """Copy the results of a batch to the CPU."""
        temperature = 1.0 if self.calibration is None else self.calibration.tokens.temperature
        chosen = chosen_probability(probabilities, labels, temperature)
        # All numbers of labels are exact in float32.
        copied = fetch(torch.stack([labels.float(), top_two_margin(probabilities), chosen, other.float()]))
        distributions = None if self.distributions is None else fetch(probabilities)
        yield
        numbers, margins, chosen, other = copied()
        return WordResults(
            labels=numbers.long(),
            margins=margins,
            chosen=chosen,
            other=other,
            distributions=None if distributions is None else distributions(),
        )

    def _write_probabilities(self, words: KeptWords, found: "WordResults") -> None:
        chosen = words.take(found.chosen)
        self.probability[words.rows] = chosen if self.calibration is None else self.calibration.tokens.finish(chosen)
        if self.distributions is not None and found.distributions is not None:
            self.distributions[words.rows] = words.take(found.distributions)


@dataclass(frozen=True, kw_only=True, slots=True)
class WordResults:
    """What a batch says of its words, on the CPU."""

    labels: Tensor
    """Shape ``(B, T)``, int64."""
    margins: Tensor
    chosen: Tensor
    """Probability of the label, calibrated by temperature alone, shape ``(B, T)``, as the margins and the others."""
    other: Tensor
    """The uncertainty of drafts, in nats; of refined labels 1 where they are stage two's."""
    distributions: Tensor | None
    """Shape ``(B, T, L)``; None unless the table keeps them."""


def _decode(numbers: tuple[int, ...], vocabulary: Vocabulary) -> tuple[tuple[str, ...], tuple[Span, ...]]:
    """Return labels in the form of gold labels, and the entities, from the numbers of a sentence's labels."""
    names = vocabulary.labels
    # Label 0 is O: most sentences have no other.
    if vocabulary.scheme.has_entities and not any(numbers):
        return names[:1] * len(numbers), ()
    return vocabulary.scheme.decode([names[number] for number in numbers])


def top_two_margin(probabilities: Tensor) -> Tensor:
    """Return the best probability less the second best; shape ``(..., L)`` to ``(...)``; 1 for a single label."""
    if probabilities.shape[-1] == 1:
        return torch.ones_like(probabilities[..., 0])
    # On a CPU several times as fast as ``topk``.
    best = probabilities.argmax(dim=-1, keepdim=True)
    second = probabilities.scatter(-1, best, -1.0).amax(dim=-1)
    return probabilities.gather(-1, best)[..., 0] - second


def span_query(
    labels: Tensor, kept: Sequence[tuple[int, int]], sentences: Iterable[int], vocabulary: Vocabulary
) -> SpanQuery | None:
    """Build the query for the entities among the kept words of some sentences; None if there is no entity.

    A label sequence contains an entity exactly where the span decoder finds it: the words have its labels and, under
    BIO, the next word does not continue it; under BIOES the label of the last word ends it. Each window of a longer
    sentence is queried for the part of an entity among the words that it keeps, and the probability of the entity is
    the product over its parts. If an entity ends at a seam, the next word, which another window keeps, is not checked
    for continuing it.

    Args:
        labels: shape ``(B, T)``, int64, on the CPU, as the query is.
        kept: the kept words of each sentence of the batch, half-open.
        sentences: numbers of the sentences to query.
    """
    if not vocabulary.scheme.has_entities:
        return None
    # Label 0 is O: most sentences have no other.
    named = labels.any(dim=1).nonzero()[:, 0]
    numbers = dict(zip(named.tolist(), labels[named].tolist(), strict=True))
    names, scheme = vocabulary.labels, vocabulary.scheme
    found: list[tuple[int, Span, list[int], str | None]] = []
    for number in sentences:
        if number not in numbers:
            continue
        begin, stop = kept[number]
        own = numbers[number][begin:stop]
        for span in scheme.entity_pieces([names[label] for label in own]):
            forbidden = scheme.continuation(span.label) if span.end < len(own) else None
            found.append((number, span, own[span.start : span.end], forbidden))
    if not found:
        return None
    # The longest first: the next word is part of a span that it must not continue.
    found.sort(key=lambda entry: -len(entry[2]) - (entry[3] is not None))
    lengths = [len(own) + (forbidden is not None) for _, _, own, forbidden in found]
    allowed = torch.zeros(len(found), max(lengths), len(names), dtype=torch.bool)
    cells = [(entry, step, label) for entry, (_, _, own, _) in enumerate(found) for step, label in enumerate(own)]
    allowed[torch.tensor(cells).unbind(dim=1)] = True
    for entry, (_, _, own, forbidden) in zip(allowed, found, strict=True):
        if forbidden is not None:
            entry[len(own)] = True
            entry[len(own), names.index(forbidden)] = False
    return SpanQuery(
        sentences=torch.tensor([number for number, *_ in found]),
        starts=torch.tensor([kept[number][0] + span.start for number, span, *_ in found]),
        lengths=torch.tensor(lengths),
        allowed=allowed,
    )
