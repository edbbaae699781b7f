"""The two stages of UANet and Doc-UANet: draft labels with an uncertainty, then refine the uncertain ones.

Stage one (Ye et al., 2021, section III-B) is a variational LSTM with a softmax; M weight samples give a mean
probability whose entropy, in nats, is the uncertainty. Stage two (section III-C) has word representations of its own
and reads the draft labels as the expected label embedding under the detached mean probability. A draft is replaced
only where its uncertainty exceeds the threshold, so a sentence without such a word needs no stage two: leaving it
out changes nothing. Doc-UANet adds the document memory, read once before the last layer.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from typing_extensions import override

from concord.models.config import Config
from concord.models.data.sentence import IGNORED_LABEL, Batch, Sentence, Vocabulary
from concord.models.decoders.chosen import ChosenDecoder, DecoderName
from concord.models.decoders.distribution import AskedSpans, LabelDistribution
from concord.models.decoders.softmax import joint_probability
from concord.models.layers.two_stream import RelativeTransformer, TwoStreamConfig, TwoStreamEncoder
from concord.models.layers.variational_lstm import VariationalLstmConfig
from concord.models.layers.watch import watch_outputs
from concord.models.outputs import AttentionWeights, Draft, Refined
from concord.models.tagger import (
    CallSettings,
    Tagger,
    TaggerConfig,
    TokenTable,
    Window,
    gold_labels,
    kept_cells,
    top_two_margin,
)
from concord.models.two_stage.document_memory import MemoryKey, MemoryReader, occurrence_index
from concord.models.two_stage.draft_network import DraftNetwork
from concord.models.words.embedding import WordRepresentation, WordRepresentationConfig


class MemoryConfig(Config):
    """The document memory."""

    key: MemoryKey = "lower"
    """What makes two words the same: `lower` (lower-cased, digits as 0) or `exact`."""
    slots: int = Field(default=10, ge=0)
    """Other occurrences that a word reads, the first in document order; with 0 no word reads another."""
    contexts: bool = True
    """Whether a word reads stage one's states there. False is "- document context" of Ye et al. (2021), Table IV."""
    labels: bool = True
    """Whether a word reads the drafts there. False is "- document label"; without both nothing is remembered."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout on the reading weights."""


class TwoStageConfig(TaggerConfig):
    """What UANet and Doc-UANet share."""

    draft_representation: WordRepresentationConfig = WordRepresentationConfig(unit_variance=True)
    lstm: VariationalLstmConfig = VariationalLstmConfig()
    samples: int = Field(default=8, ge=1)
    """Monte-Carlo weight samples M of inference."""
    sample_seed: int = 20210823
    """Seed from which the weight samples are drawn, once a model."""
    refine_representation: WordRepresentationConfig = WordRepresentationConfig(unit_variance=True)
    sentence_labels: bool = True
    """Whether stage two reads the sentence's drafts. False is "- label" of Ye et al. (2021), Table IV ("- sentence
    label" where a memory's labels are still read)."""
    label_embedding: Literal["expected", "hard"] = "expected"
    """How a draft is embedded: `expected`, the mean embedding under its probabilities (released code), or `hard`, the
    embedding of its label (paper)."""
    label_dimension: int = Field(default=400, ge=1)
    """Dimensions of a label embedding."""
    two_stream: TwoStreamConfig = TwoStreamConfig()
    decoder: DecoderName = "softmax"
    """What decides stage two. A CRF decodes the whole sentence, and uncertain words take its labels."""
    threshold: float = 0.35
    """Nats; a word with a larger uncertainty takes stage two's label. Training sweeps it on the dev set."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryContents:
    """What the words of a call's documents may read.

    Attributes:
        hidden: stage one's states, shape ``(N, H)``.
        probabilities: stage one's mean probabilities, shape ``(N, L)``.
        slots: rows that a word reads, shape ``(B, T, S)``, int64, -1 where there is none.
    """

    hidden: Tensor
    probabilities: Tensor
    slots: Tensor


class RefineNetwork(nn.Module):
    """Stage two: its own word representation, draft labels, two streams, softmax or CRF.

    Without a source of draft labels it has one stream and no label embedding.
    """

    def __init__(
        self,
        config: TwoStageConfig,
        vocabulary: Vocabulary,
        encoder_width: int | None,
        memory: MemoryConfig | None,
    ) -> None:
        """Build the network, with a memory reader where a memory is configured."""
        super().__init__()
        self._config = config
        width, labels = config.two_stream.width, len(vocabulary.labels)
        reads_labels = config.sentence_labels or (memory is not None and memory.labels)
        self.representation = WordRepresentation(config.refine_representation, vocabulary, encoder_width=encoder_width)
        self.words_in = nn.Linear(self.representation.output_dimension, width)
        self.encoder: RelativeTransformer
        if reads_labels:
            self.label_embedding = nn.Parameter(torch.empty(labels, config.label_dimension))
            nn.init.uniform_(self.label_embedding, -1.0, 1.0)
            self.labels_in = nn.Linear(config.label_dimension, width)
            self.encoder = TwoStreamEncoder(config.two_stream)
        else:
            self.encoder = RelativeTransformer(config.two_stream)
        self.dropout = nn.Dropout(config.two_stream.dropout)
        self.output = nn.Linear((1 + reads_labels) * width, labels)
        self.reader: MemoryReader | None = None
        if memory is not None:
            hidden = 2 * config.lstm.hidden
            self.reader = MemoryReader(
                width=width, hidden=hidden, dropout=memory.dropout, contexts=memory.contexts, labels=memory.labels
            )
            if memory.contexts:
                self.merge_words = nn.Linear(2 * width, width)
            if memory.labels and config.sentence_labels:
                self.merge_labels = nn.Linear(2 * width, width)
        self.decoder = ChosenDecoder(config.decoder, vocabulary.labels, vocabulary.scheme)

    def embed_drafts(self, probabilities: Tensor) -> Tensor:
        """Embed drafts, given by their probabilities; ``(..., L)`` to ``(..., width)``.

        The probabilities are detached: gradient reaches the embeddings, never stage one.
        """
        drafts = probabilities.detach()
        if self._config.label_embedding == "hard":
            drafts = nn.functional.one_hot(drafts.argmax(dim=-1), drafts.shape[-1]).to(drafts)
        result: Tensor = self.labels_in(drafts @ self.label_embedding)
        return result

    def forward(
        self, batch: Batch, features: Tensor | None, probabilities: Tensor, memory: MemoryContents | None
    ) -> Tensor:
        """Read words, draft labels and memory.

        Args:
            probabilities: stage one's, shape ``(B, T, L)``.
            memory: what the words may read; None for a tagger without a memory.

        Returns:
            Logits of shape ``(B, T, L)``.
        """
        words = self.words_in(self.representation(batch, features))
        words = self.encoder.read_words(words, batch.mask)
        labels = self.embed_drafts(probabilities) * batch.mask[:, :, None] if self._config.sentence_labels else None
        if self.reader is not None and memory is not None:
            context, remembered = self._remember(self.reader, words, memory)
            if context is not None:
                words = self.merge_words(torch.cat([words, context], dim=-1))
            if labels is None:
                labels = remembered
            elif remembered is not None:
                labels = self.merge_labels(torch.cat([labels, remembered], dim=-1))
        if labels is not None and isinstance(self.encoder, TwoStreamEncoder):
            streams = torch.cat(self.encoder.read_labels(words, labels, batch.mask), dim=-1)
        else:
            streams = self.encoder.last(words, batch.mask)
        logits: Tensor = self.output(self.dropout(streams))
        return logits

    def loss(self, logits: Tensor, gold: Tensor, mask: Tensor) -> Tensor:
        """Give the negative log-likelihood of gold labels ``(B, T)`` in nats, summed over words and sentences."""
        loss: Tensor = -self.decoder(logits, mask).log_prob(gold).sum()
        return loss

    def decide(self, logits: Tensor, mask: Tensor) -> LabelDistribution:
        """Give the distribution over the label sequences of logits ``(B, T, L)``."""
        distribution: LabelDistribution = self.decoder(logits, mask)
        return distribution

    def attentions(self) -> dict[str, nn.Module]:
        """Give the modules whose outputs are attention weights; those of the memory are of shape ``(known, S)``."""
        return self.encoder.attentions() | ({"memory": self.reader.dropout} if self.reader is not None else {})

    def _remember(
        self, reader: MemoryReader, words: Tensor, memory: MemoryContents
    ) -> tuple[Tensor | None, Tensor | None]:
        drafts = self.embed_drafts(memory.probabilities) if reader.reads_labels else None
        keys, values = reader.project(memory.hidden.detach(), drafts)
        found: tuple[Tensor | None, Tensor | None] = reader(words, keys, values, memory.slots)
        return found


@dataclass(kw_only=True, slots=True)
class _Pending:
    """An uncertain window that waits for stage two, with what stage one computed for it."""

    window: Window
    probabilities: Tensor
    uncertainty: Tensor
    samples: Tensor
    features: Tensor | None


class TwoStageTagger(Tagger):
    """Drafts every sentence, refines those that hold an uncertain word."""

    def __init__(self, config: TwoStageConfig, vocabulary: Vocabulary, memory: MemoryConfig | None) -> None:
        """Build both stages; their word representations are separate."""
        super().__init__(config, vocabulary)
        self._two_stage = config
        self._memory = memory
        self.draft_network = DraftNetwork(
            config.draft_representation, config.lstm, vocabulary, encoder_width=self.encoder_width
        )
        self.refine_network = RefineNetwork(config, vocabulary, self.encoder_width, memory)

    @property
    @override
    def threshold(self) -> float:
        return self._two_stage.threshold

    def set_threshold(self, threshold: float) -> None:
        """Make another threshold, in nats, the tagger's own; it is saved with the tagger."""
        self.config = self._two_stage = self._two_stage.model_copy(update={"threshold": threshold})

    @property
    def memory_slots(self) -> int | None:
        """Other occurrences that a word reads at most; None for a tagger without a document memory."""
        return None if self._memory is None else self._memory.slots

    def set_memory_slots(self, slots: int) -> None:
        """Let words read at most so many other occurrences; with 0 of them every word reads what a lone one does.

        Raises:
            ValueError: for a tagger without a document memory, or fewer than 0.
        """
        if self._memory is None or slots < 0:
            raise ValueError(f"set_memory_slots: expected 0 or more and a tagger with a memory, got {slots}")
        self._memory = self._memory.model_copy(update={"slots": slots})
        self.config = self._two_stage = self._two_stage.model_copy(update={"memory": self._memory})

    @override
    def parameter_groups(self) -> Mapping[str, list[nn.Parameter]]:
        return {
            "stage_one": list(self.draft_network.parameters()),
            "stage_two": list(self.refine_network.parameters()),
            **self.encoder_group(),
        }

    @override
    def loss(self, batch: Batch) -> Tensor:
        """Give the negative log-likelihoods of both stages, summed over words, divided by the number of sentences.

        A tuned encoder learns from stage one alone; stage two reads what it gives.
        """
        gold = gold_labels(batch)
        features = self.encoder_features(batch)
        logits, hidden = self.draft_network(batch, features)
        total = _summed_cross_entropy(logits, gold)
        probabilities = logits.detach().softmax(dim=-1)
        memory = self._batch_memory(batch, hidden, probabilities)
        for rows in _rows_by_length(batch.lengths):
            part, width = _take_rows(batch, rows), int(batch.lengths[rows].max())
            part_memory = replace(memory, slots=memory.slots[rows, :width]) if memory is not None else None
            part_features = features[rows, :width].detach() if features is not None else None
            refined = self.refine_network(part, part_features, probabilities[rows, :width], part_memory)
            total = total + self.refine_network.loss(refined, gold[rows, :width], part.mask)
        return total / len(batch.sentences)

    @override
    def attend(self, batch: Batch) -> Mapping[str, AttentionWeights]:
        """Give stage two's attention: ``words_1`` and up over words, ``drafts`` over their drafts, ``memory``."""
        config, features = self._two_stage, self.encoder_features(batch)
        samples = self.draft_network.lstm.draw_samples(config.samples, config.sample_seed)
        draft = self.draft_network.draft(batch, features, samples)
        memory = self._batch_memory(batch, draft.hidden, draft.probabilities)
        with watch_outputs(self.refine_network.attentions()) as seen:
            self.refine_network(batch, features, draft.probabilities, memory)
        found = {
            name: AttentionWeights(weights=seen[name], over="words")
            for name in self.refine_network.encoder.attentions()
        }
        if memory is not None:
            none = draft.probabilities.new_zeros(0, memory.slots.shape[-1])
            weights = spread_memory(seen.get("memory", none), memory, batch.mask)
            found["memory"] = AttentionWeights(weights=weights, over="document")
        return found

    @override
    def fill(self, table: TokenTable, settings: CallSettings) -> None:
        threshold = self._two_stage.threshold if settings.threshold is None else settings.threshold
        store = self._new_store(table)
        pending = self._draft_all(table, settings, threshold, store)
        self._refine_all(table, settings, threshold, store, pending)

    def _draft_all(
        self, table: TokenTable, settings: CallSettings, threshold: float, store: "_Store | None"
    ) -> list[_Pending]:
        config = self._two_stage
        samples = self.draft_network.lstm.draw_samples(settings.samples or config.samples, config.sample_seed)
        pending: list[_Pending] = []
        for windows, batch in self.batches(settings.windows, batch_words=settings.batch_words):
            features = self.encoder_features(batch)
            with self.autocast(settings.precision):
                draft = self.draft_network.draft(batch, features, samples)
            rows, cells = kept_cells(windows, batch.mask.shape[1])
            for column, values in (
                (table.draft, draft.labels),
                (table.label, draft.labels),
                (table.margin, top_two_margin(draft.probabilities)),
                (table.uncertainty, draft.uncertainty),
            ):
                column[rows] = values.flatten().cpu()[cells]
            table.write_probabilities(rows, cells, draft.probabilities, draft.labels)
            if store is not None:
                store.write(rows, draft, cells)
            uncertain = ((draft.uncertainty > threshold) & batch.mask).any(dim=1).tolist()
            table.write_spans(
                windows,
                draft.labels,
                self.vocabulary,
                partial(_drafted_probability, draft.samples),
                sentences=[number for number, wanted in enumerate(uncertain) if not wanted],
            )
            for number in (number for number, wanted in enumerate(uncertain) if wanted):
                length = len(windows[number].sentence.words)
                pending.append(
                    _Pending(
                        window=windows[number],
                        probabilities=draft.probabilities[number, :length].clone(),
                        uncertainty=draft.uncertainty[number, :length].clone(),
                        samples=draft.samples[:, number, :length].transpose(0, 1).clone(),
                        features=features[number, :length].clone() if features is not None else None,
                    )
                )
        return pending

    def _refine_all(
        self,
        table: TokenTable,
        settings: CallSettings,
        threshold: float,
        store: "_Store | None",
        pending: Sequence[_Pending],
    ) -> None:
        waiting = {id(item.window): item for item in pending}
        ordered = sorted((item.window for item in pending), key=lambda window: window.first)
        for windows, batch in self.batches(ordered, batch_words=settings.batch_words):
            items = [waiting[id(window)] for window in windows]
            probabilities = nn.utils.rnn.pad_sequence([item.probabilities for item in items], batch_first=True)
            uncertainty = nn.utils.rnn.pad_sequence([item.uncertainty for item in items], batch_first=True)
            samples = nn.utils.rnn.pad_sequence([item.samples for item in items], batch_first=True).movedim(2, 0)
            kept = [item.features for item in items if item.features is not None]
            features = nn.utils.rnn.pad_sequence(kept, batch_first=True) if kept else None
            memory = store.read(windows, batch.mask.shape[1]) if store is not None else None
            with self.autocast(settings.precision):
                logits = self.refine_network(batch, features, probabilities, memory)
            decided = self.refine_network.decide(logits, batch.mask)
            refined = merge_stages(probabilities, uncertainty, decided, threshold)
            table.write_spans(
                windows, refined.labels, self.vocabulary, partial(span_probability, samples, decided, refined.refined)
            )
            rows, cells = kept_cells(windows, batch.mask.shape[1])
            chosen = refined.refined.flatten().cpu()[cells]
            rows, cells = rows[chosen], cells[chosen]
            table.label[rows] = refined.labels.flatten().cpu()[cells]
            table.write_probabilities(rows, cells, refined.probabilities, refined.labels)
            margin = top_two_margin(refined.probabilities).flatten().cpu()[cells]
            table.margin[rows] = torch.minimum(table.margin[rows], margin)
            table.refined[rows] = True

    def _new_store(self, table: TokenTable) -> "_Store | None":
        if self._memory is None:
            return None
        config = self._two_stage
        return _Store(
            table.documents, self._memory, hidden=2 * config.lstm.hidden, labels=len(self.vocabulary.labels),
            device=self.device,
        )  # fmt: skip

    def _batch_memory(self, batch: Batch, hidden: Tensor, probabilities: Tensor) -> MemoryContents | None:
        """Give what the words of a batch that holds all of its documents may read: cells of the flattened batch."""
        if self._memory is None:
            return None
        documents: dict[int, list[str]] = {}
        for sentence, document in zip(batch.sentences, batch.documents.tolist(), strict=True):
            documents.setdefault(document, []).extend(sentence.words)
        index = occurrence_index(list(documents.values()), key=self._memory.key, slots=self._memory.slots)
        cells = batch.mask.flatten().cpu().nonzero()[:, 0]
        slots = torch.full((batch.mask.numel(), self._memory.slots), -1, dtype=torch.int64)
        slots[cells] = torch.where(index >= 0, cells[index.clamp(min=0)], -1)
        return MemoryContents(
            hidden=hidden.flatten(0, 1),
            probabilities=probabilities.flatten(0, 1),
            slots=slots.view(*batch.mask.shape, self._memory.slots).to(self.device),
        )


class _Store:
    """The document memories of one call, side by side; slots never point into another document."""

    def __init__(
        self,
        documents: Sequence[Sequence[Sentence]],
        config: MemoryConfig,
        *,
        hidden: int,
        labels: int,
        device: torch.device,
    ) -> None:
        words = [[word for sentence in document for word in sentence.words] for document in documents]
        self._index = occurrence_index(words, key=config.key, slots=config.slots)
        self._slots = config.slots
        self._device = device
        # Only words that another word can read are stored.
        readable = torch.zeros(len(self._index), dtype=torch.bool)
        readable[self._index[self._index >= 0]] = True
        self._place = torch.where(readable, readable.cumsum(0) - 1, -1)
        stored = int(readable.sum())
        self._hidden = torch.zeros(stored, hidden, device=device)
        self._probabilities = torch.zeros(stored, labels, device=device)

    def write(self, rows: Tensor, draft: Draft, cells: Tensor) -> None:
        """Store what stage one says of the words ``rows``, which stand in ``cells`` of the flattened batch."""
        places = self._place[rows]
        chosen = places >= 0
        places, cells = places[chosen].to(self._device), cells[chosen].to(self._device)
        self._hidden[places] = draft.hidden.flatten(0, 1)[cells]
        self._probabilities[places] = draft.probabilities.flatten(0, 1)[cells]

    def read(self, windows: Sequence[Window], width: int) -> MemoryContents:
        """Give what the words of a batch may read, with nothing that they do not."""
        slots = torch.full((len(windows), width, self._slots), -1, dtype=torch.int64)
        for number, window in enumerate(windows):
            length = len(window.sentence.words)
            slots[number, :length] = self._index[window.first : window.first + length]
        numbers, compact = torch.unique(slots[slots >= 0], return_inverse=True)
        slots[slots >= 0] = compact
        places = self._place[numbers].to(self._device)
        return MemoryContents(
            hidden=self._hidden[places],
            probabilities=self._probabilities[places],
            slots=slots.to(self._device),
        )


def merge_stages(
    draft_probabilities: Tensor, uncertainty: Tensor, decided: LabelDistribution, threshold: float
) -> Refined:
    """Keep a draft where its uncertainty is at most the threshold; take stage two's label elsewhere.

    Stage two labels every word before its labels are chosen from, a CRF too: what it says of a word depends neither on
    the threshold nor on which drafts stay. The mixture need not be well formed; the span decoder drops what is not.

    Args:
        draft_probabilities: shape ``(B, T, L)``.
        uncertainty: nats, shape ``(B, T)``.
        decided: what stage two says.
    """
    refined = uncertainty > threshold
    labels = torch.where(refined, decided.mode(), draft_probabilities.argmax(dim=-1))
    return Refined(probabilities=decided.marginals(), labels=labels, refined=refined)


def span_probability(samples: Tensor, decided: LabelDistribution, refined: Tensor, asked: AskedSpans) -> Tensor:
    """Give the probability of spans whose words have their labels from either stage, shape ``(K,)``.

    The drafted words of a span hang together through the weight samples, so that their product is taken within each
    sample; stage two reads the mean of the samples and says the same of its words in all of them.

    Args:
        samples: stage one's probabilities in each weight sample, shape ``(M, B, T, L)``.
        decided: what stage two says.
        refined: true where the label is stage two's, shape ``(B, T)``, bool.
    """
    return _drafted_probability(samples, asked.only(~refined)) * decided.span_probability(asked.only(refined))


def _drafted_probability(samples: Tensor, asked: AskedSpans) -> Tensor:
    return joint_probability(samples, asked).mean(dim=0)


def spread_memory(weights: Tensor, memory: MemoryContents, mask: Tensor) -> Tensor:
    """Turn reading weights by slot into weights by word of the batch.

    Args:
        weights: of the words that have another occurrence, in order, shape ``(known, S)``.
        memory: its slots are cells of the flattened batch.
        mask: shape ``(B, T)``, bool, with N words.

    Returns:
        Shape ``(B, 1, T, N)``.
    """
    known = (memory.slots >= 0).any(dim=-1)
    spread = weights.new_zeros(*mask.shape, mask.numel())
    # An empty slot has no weight to add.
    spread[known] = spread[known].scatter_add(1, memory.slots[known].clamp(min=0), weights)
    return spread[:, None, :, mask.flatten()]


def _summed_cross_entropy(logits: Tensor, gold: Tensor) -> Tensor:
    return nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), gold.flatten(), ignore_index=IGNORED_LABEL, reduction="sum"
    )


def _rows_by_length(lengths: Tensor, *, most_waste: float = 0.25) -> Iterator[Tensor]:
    """Group a batch's sentences by length, so that padding stays below a share of each group's cells.

    Sentences meet only in the memory, which stage one has filled, so stage two may take them group by group.
    """
    order = lengths.argsort(descending=True)
    start = 0
    while start < len(order):
        longest, total, end = int(lengths[order[start]]), 0, start
        while end < len(order):
            total += int(lengths[order[end]])
            if end - start >= 16 and total < (1 - most_waste) * longest * (end + 1 - start):
                break
            end += 1
        yield order[start:end]
        start = end


def _take_rows(batch: Batch, rows: Tensor) -> Batch:
    """Give a batch of some of the sentences, cut to the longest of them."""
    width = int(batch.lengths[rows].max())
    forms, form_index = torch.unique(batch.form_index[rows, :width], return_inverse=True)
    return Batch(
        sentences=tuple(batch.sentences[row] for row in rows.tolist()),
        words=batch.words[rows, :width],
        forms=batch.forms[forms],
        form_cases=batch.form_cases[forms],
        form_index=form_index,
        lengths=batch.lengths[rows],
        mask=batch.mask[rows, :width],
        labels=batch.labels[rows, :width] if batch.labels is not None else None,
        tags=batch.tags[rows, :width] if batch.tags is not None else None,
        relations=batch.relations[rows, :width] if batch.relations is not None else None,
        documents=batch.documents[rows],
    )
