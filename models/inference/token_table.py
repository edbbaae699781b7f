"""The table of results that a call of a tagger fills: one row per word."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from concord.models.calibration import Calibration, chosen_probability
from concord.models.data.batch import Batch
from concord.models.data.sentence import Sentence
from concord.models.data.vocabulary import Vocabulary
from concord.models.decoders.distribution import AskedSpans, LabelDistribution, entropy
from concord.models.inference.span_probabilities import ask_for_spans
from concord.models.inference.windows import Window
from concord.models.outputs import Prediction


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenTable:
    """Results of one call, one row a word; on the CPU.

    Attributes:
        documents: the call's documents.
        draft, label: numbers of stage one's and of the final label, shape ``(N,)``, int64.
        draft_probability, draft_margin: of stage one, shape ``(N,)``, float32, 0..1.
        probability, margin: of the deciding stage, shape ``(N,)``, float32, 0..1; the probability as calibrated.
        uncertainty: nats, shape ``(N,)``, float32.
        refined: shape ``(N,)``, bool.
        span: at the first word of an entity, and of each part of one that runs over the seam of two windows, the
            probability of that part; 1 elsewhere. An entity has the product over its words. Shape ``(N,)``, float32,
            0..1.
        temperature: by which probabilities are sharpened as they are entered.
        distributions: label probabilities of the deciding stage, uncalibrated, shape ``(N, L)``, float32; None where
            nobody asked for them.
    """

    documents: Sequence[Sequence[Sentence]]
    draft: Tensor
    label: Tensor
    probability: Tensor
    margin: Tensor
    uncertainty: Tensor
    refined: Tensor
    span: Tensor
    temperature: float = 1.0
    distributions: Tensor | None = None

    @classmethod
    def empty(
        cls, documents: Sequence[Sequence[Sentence]], *, temperature: float = 1.0, labels: int | None = None
    ) -> "TokenTable":
        """Make a table with a row for every word, and with distributions over so many labels, if a number is given."""
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
            temperature=temperature,
            distributions=None if labels is None else torch.zeros(words, labels),
        )

    def write(
        self, windows: Sequence[Window], batch: Batch, distribution: LabelDistribution, vocabulary: Vocabulary
    ) -> None:
        """Enter what a tagger of one stage says of a batch; the uncertainty is the entropy of a word's marginal."""
        labels, marginals = distribution.mode(), distribution.marginals()
        rows, cells = kept_cells(windows, batch.mask.shape[1])
        for column, values in (
            (self.draft, labels),
            (self.label, labels),
            (self.margin, top_two_margin(marginals)),
            (self.uncertainty, entropy(marginals)),
        ):
            column[rows] = values.flatten().cpu()[cells]
        self.write_probabilities(rows, cells, marginals, labels)
        self.write_spans(windows, labels, vocabulary, distribution.span_probability)

    def write_probabilities(self, rows: Tensor, cells: Tensor, probabilities: Tensor, labels: Tensor) -> None:
        """Enter how probable the labels ``(B, T)`` of a batch are among all ``(B, T, L)``, as the deciding stage says.

        Args:
            rows, cells: of the words that are meant, as ``kept_cells`` gives them.
        """
        self.probability[rows] = chosen_probability(probabilities, labels, self.temperature).flatten().cpu()[cells]
        if self.distributions is not None:
            self.distributions[rows] = probabilities.flatten(0, 1).cpu()[cells]

    def write_spans(
        self,
        windows: Sequence[Window],
        labels: Tensor,
        vocabulary: Vocabulary,
        probability: Callable[[AskedSpans], Tensor],
        *,
        sentences: Iterable[int] | None = None,
    ) -> None:
        """Enter the probabilities of the entities in a batch.

        Args:
            labels: the final ones, shape ``(B, T)``, int64.
            probability: as ``LabelDistribution.span_probability``.
            sentences: those of the batch that are meant; all if None.
        """
        kept = [window.keep for window in windows]
        asked = ask_for_spans(labels, kept, range(len(windows)) if sentences is None else sentences, vocabulary)
        if asked is not None:
            firsts = torch.tensor([window.first for window in windows])
            self.span[firsts[asked.sentences.cpu()] + asked.starts.cpu()] = probability(asked).float().cpu()

    def predictions(self, vocabulary: Vocabulary, calibration: Calibration | None = None) -> list[list[Prediction]]:
        """Turn rows into text: strict spans, labels in BIO2; or plain labels of the words.

        Args:
            calibration: of the entities; the words' probabilities are calibrated already.
        """
        names = vocabulary.labels
        columns = (self.draft, self.label, self.probability, self.margin, self.uncertainty, self.refined, self.span)
        draft, label, probability, margin, uncertainty, refined, span = (column.tolist() for column in columns)
        results: list[list[Prediction]] = []
        first = 0
        for document in self.documents:
            predictions = []
            for sentence in document:
                rows = slice(first, first + len(sentence.words))
                first = rows.stop
                final = [names[number] for number in label[rows]]
                drafted = [names[number] for number in draft[rows]]
                spans = vocabulary.scheme.entities(final)
                parts = span[rows]
                confidences = [prod(parts[found.start : found.end]) for found in spans]
                if calibration is not None:
                    confidences = calibration.map_entities(confidences)
                predictions.append(
                    Prediction(
                        labels=vocabulary.scheme.to_gold(final),
                        draft_labels=vocabulary.scheme.to_gold(drafted),
                        probabilities=tuple(probability[rows]),
                        margins=tuple(margin[rows]),
                        uncertainty=tuple(uncertainty[rows]),
                        refined=tuple(refined[rows]),
                        spans=spans,
                        confidences=tuple(confidences),
                    )
                )
            results.append(predictions)
        return results


def kept_cells(windows: Sequence[Window], width: int) -> tuple[Tensor, Tensor]:
    """Give, for the kept words of a batch, their rows in the token table and their cells in the flattened batch."""
    rows, cells = [], []
    for number, window in enumerate(windows):
        begin, stop = window.keep
        rows.append(torch.arange(window.first + begin, window.first + stop))
        cells.append(torch.arange(number * width + begin, number * width + stop))
    return torch.cat(rows), torch.cat(cells)


def top_two_margin(probabilities: Tensor) -> Tensor:
    """Give the best probability less the second best; shape ``(..., L)`` to ``(...)``; 1 for a single label."""
    if probabilities.shape[-1] == 1:
        return torch.ones_like(probabilities[..., 0])
    best = probabilities.topk(2, dim=-1).values
    return best[..., 0] - best[..., 1]
