"""The networks of a tagger of two stages, and the memory that stage two reads.

Stage one: a variational LSTM drafts labels with an uncertainty (Ye et al., 2021, section III-A). Stage two: two-stream
attention refines uncertain drafts and reads the document memory (sections III-B and III-C): stage one's results at the
other occurrences of each word. Words of a document that share a key read each other: hidden states serve as keys,
embeddings of drafts as values. No word reads its own slot or another document.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from concord.models.config import Config
from concord.models.data.batch import Batch, Work, fetch, send
from concord.models.data.outputs import Draft
from concord.models.data.vocabulary import Vocabulary, normalize_digits
from concord.models.decoders.crf import DecoderName, SoftmaxOrCrf
from concord.models.decoders.distribution import entropy
from concord.models.layers.attention import (
    LayeredTwoStreamEncoder,
    RelativeTransformer,
    TwoStreamConfig,
    TwoStreamEncoder,
)
from concord.models.layers.variational_lstm import LstmSample, VariationalLstm, VariationalLstmConfig, run_samples
from concord.models.taggers.base import TaggerConfig
from concord.models.words.representation import WordRepresentation, WordRepresentationConfig

MemoryKey = Literal["lower", "exact"]
Form = Literal["released", "paper"]
"""Where the released code and the text of Ye et al. (2021) differ: the one or the other."""


class MemoryConfig(Config):
    """The document memory."""

    key: MemoryKey = "lower"
    """What makes two words the same: `lower` (lower-cased, digits as 0) or `exact`."""
    slots: int = Field(default=10, ge=0)
    """How many other occurrences a word reads, the first in document order; with 0 no word reads another."""
    contexts: bool = True
    """Whether a word reads stage one's states of these. False is "- document context" of Ye et al. (2021), Table IV."""
    labels: bool = True
    """Whether a word reads the drafts of these. False is "- document label"; with both off there is no memory."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout on the reading weights."""
    value_gradient: Form = "paper"
    """Whether training reaches the label embedding through the drafts in memory, as in the `paper`; in the `released`
    code the memory holds them detached, so that only the sentence's own drafts train it. Labels are the same."""


class TwoStageConfig(TaggerConfig):
    """The configuration that UANet and Doc-UANet share."""

    draft_representation: WordRepresentationConfig = WordRepresentationConfig(unit_variance=True)
    lstm: VariationalLstmConfig = VariationalLstmConfig()
    samples: int = Field(default=8, ge=1)
    """Number M of Monte-Carlo weight samples at inference."""
    sample_seed: int = 20210823
    """Seed of the weight samples, which are drawn once per model."""
    samples_above: float | None = Field(default=None, ge=0)
    """Nats; weight samples are drawn only for sentences in which the mean weights leave a word more uncertain than
    this, and the mean weights draft the others. None draws them for every sentence, as does a call that sets their
    number."""
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
    label_stream: Form = "released"
    """Where stage two attends to labels: `released`, in the last layer alone, before which the memory is read; `paper`,
    in every layer, which updates them like words (Ye et al., 2021, eq. 9). The words' representations then read the
    memory (eq. 10), and what they read is joined to both streams before every layer (eq. 12 and 13). How the memory is
    addressed and drafts are embedded stays the released code's, except for `label_embedding`; that a word skips its own
    slot is of the code, and nothing that the paper asks for."""
    decoder: DecoderName = "softmax"
    """The decoder of stage two. A CRF decodes the whole sentence, and uncertain words take its labels."""
    draft_share: float = Field(default=0.0, ge=0, lt=1)
    """Share of the draft's probabilities in those of a refined word; 0, as in the paper, leaves all to stage two."""
    threshold: float = 0.35
    """Nats; a word of higher uncertainty takes stage two's label. Training chooses the value on the dev set."""

    @property
    def document_memory(self) -> MemoryConfig | None:
        """The document memory; None for a tagger without one."""
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryContents:
    """The part of a memory that a batch of words may read."""

    hidden: Tensor
    """Stage one's states, shape ``(N, H)``."""
    probabilities: Tensor
    """Stage one's mean probabilities, shape ``(N, L)``."""
    slots: Tensor
    """The rows of these two that each of K words reads, shape ``(K, S)``, int64, -1 for an empty slot."""
    cells: Tensor
    """The cell of each of these words among all ``B * T``, shape ``(K,)``, int64; the others read nothing."""

    @classmethod
    def of(cls, hidden: Tensor, probabilities: Tensor, slots: Tensor) -> "MemoryContents":
        """Return contents from the rows that each word reads, shape ``(B, T, S)``, int64, -1 if none, on the CPU."""
        slots = slots.flatten(0, 1)
        cells = (slots >= 0).any(dim=1).nonzero()[:, 0]
        slots, cells = send(hidden.device, slots[cells], cells)
        return cls(hidden=hidden, probabilities=probabilities, slots=slots, cells=cells)


class DocumentMemory:
    """Stage one's states and mean probabilities of all words of some documents.

    Words are addressed by row: their number counted through all documents.
    """

    def __init__(self, groups: Tensor, *, slots: int, hidden: int, labels: int, device: torch.device) -> None:
        """Index words, given by their ``number_words``, and allocate memory for states of ``hidden`` dimensions.

        ``labels`` is the number of labels.
        """
        self.index = occurrence_index(groups, slots=slots)
        # Only words that another word can read are stored.
        readable = torch.zeros(len(self.index), dtype=torch.bool)
        readable[self.index[self.index >= 0]] = True
        self._places = torch.where(readable, readable.cumsum(0) - 1, -1)
        stored = int(readable.sum())
        self._hidden = torch.zeros(stored, hidden, device=device)
        self._probabilities = torch.zeros(stored, labels, device=device)

    def write(self, rows: Tensor, cells: Tensor, hidden: Tensor, probabilities: Tensor) -> None:
        """Store words of a batch, given by row and by cell, ``(K,)``, int64, on the CPU.

        The states of all cells have shape ``(B, T, H)``, their probabilities ``(B, T, L)``.
        """
        places = self._places[rows]
        places, cells = send(hidden.device, places[places >= 0], cells[places >= 0])
        self._hidden.index_copy_(0, places, hidden.detach().flatten(0, 1).index_select(0, cells))
        self._probabilities.index_copy_(0, places, probabilities.detach().flatten(0, 1).index_select(0, cells))

    def slots(self, rows: Tensor) -> Tensor:
        """Return the rows that words read; shape ``(B, T)`` to ``(B, T, S)``, int64, -1 for padding and empty slots."""
        return self.index[rows.clamp(min=0)].masked_fill(rows[..., None] < 0, -1)

    def read(self, rows: Tensor) -> MemoryContents:
        """Return what a batch of words may read; rows ``(B, T)``, int64, -1 where padded, on the CPU."""
        slots = self.slots(rows)
        read, compact = torch.unique(slots[slots >= 0], return_inverse=True)
        slots[slots >= 0] = compact
        (places,) = send(self._hidden.device, self._places[read])
        return MemoryContents.of(
            self._hidden.index_select(0, places), self._probabilities.index_select(0, places), slots
        )


def occurrence_index(groups: Tensor, *, slots: int) -> Tensor:
    """Find the other occurrences of each word within its document, at most ``slots``, the first in document order.

    Words, ``(N,)``, are given by their ``number_words``. The result has shape ``(N, slots)``, int64: rows of other
    words, filled from the left, then -1.
    """
    order = groups.argsort(stable=True)
    counts = groups.bincount()
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    # The first occurrences of each word; one more than there are slots, since a word skips itself.
    heads = torch.full((len(counts), slots + 1), -1, dtype=torch.int64)
    early = (places <= slots).nonzero()[:, 0]
    heads[groups[early], places[early]] = early
    columns = torch.arange(slots)
    return heads[groups[:, None], columns + (columns >= places[:, None])]


def number_words(documents: Sequence[Sequence[str]], key: MemoryKey) -> Tensor:
    """Number all words so that two have the same number if they are the same word of the same document; ``(N,)``.

    Words are the same if their ``key`` is: ``lower``, lower-cased with digits as 0 (released code), or ``exact``.
    """
    words = list(chain.from_iterable(documents))
    forms: dict[str, int] = {}
    numbers: dict[str, int] = {}
    for word in dict.fromkeys(words):
        form = normalize_digits(word).lower() if key == "lower" else word
        numbers[word] = forms.setdefault(form, len(forms))
    owners = torch.arange(len(documents)).repeat_interleave(torch.tensor(list(map(len, documents)), dtype=torch.int64))
    own = torch.tensor(list(map(numbers.__getitem__, words)), dtype=torch.int64)
    found: tuple[Tensor, Tensor] = torch.unique(owners * len(forms) + own, return_inverse=True)
    return found[1]


class DraftNetwork(nn.Module):
    """Word representation, variational LSTM, linear layer."""

    def __init__(
        self,
        representation: WordRepresentationConfig,
        lstm: VariationalLstmConfig,
        vocabulary: Vocabulary,
        *,
        encoder_width: int | None,
    ) -> None:
        super().__init__()
        self.representation = WordRepresentation(representation, vocabulary, encoder_width=encoder_width)
        self.lstm = VariationalLstm(lstm, self.representation.output_dimension)
        self.output = nn.Linear(self.lstm.output_dimension, len(vocabulary.labels))
        self._has_entities = vocabulary.scheme.has_entities

    def forward(self, batch: Batch, features: Tensor | None) -> tuple[Tensor, Tensor]:
        """Make one stochastic pass; return logits ``(B, T, L)`` and hidden states ``(B, T, H)`` before z_out."""
        hidden, masked = self.lstm(self.representation(batch, features), batch.lengths)
        return self.output(masked), hidden

    def drafting(
        self,
        batch: Batch,
        features: Tensor | None,
        samples: Sequence[LstmSample],
        *,
        samples_above: float | None = None,
        computing: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> Work[Draft]:
        """Average the softmax and the states over the weight samples; the entropy of the mean is the uncertainty.

        With ``samples_above``, in nats, the samples are drawn only for sentences in which the mean weights leave a word
        more uncertain than this. All of the draft of another sentence is that of the mean weights, which stand for each
        of its samples, so that the probability of a span there is the product over its words. ``computing`` makes the
        context in which the network computes.
        """
        with computing():
            words = self.representation(batch, features)
            if samples_above is None:
                return self._average(words, batch.lengths, samples)
            draft = self._average(words, batch.lengths, [self.lstm.mean_weights()])
        draft = replace(draft, samples=draft.samples.repeat_interleave(len(samples), dim=0))
        unsure = fetch(((draft.uncertainty > samples_above) & batch.mask).any(dim=1))
        yield
        rows = unsure().nonzero()[:, 0]
        if len(rows):
            (chosen,) = send(words.device, rows)
            with computing():
                sampled = self._average(words[chosen], batch.lengths[rows], samples)
            for name in ("probabilities", "labels", "uncertainty", "hidden"):
                getattr(draft, name)[chosen] = getattr(sampled, name)
            draft.samples[:, chosen] = sampled.samples
        return draft

    def read(self, words: Tensor, lengths: Tensor, samples: Sequence[LstmSample]) -> tuple[Tensor, Tensor]:
        """Return the logits of each weight sample, ``(M, B, T, L)``, and the mean of their states, ``(B, T, H)``.

        They are float32, and no sample's states are kept. The words are given by their representations, ``(B, T, D)``.
        """
        sentences, width = words.shape[:2]
        masks = torch.stack([sample.output_mask for sample in samples])
        # Both halves of a state, of the two directions, come apart: (2, M, H, L).
        weights = (self.output.weight * masks[:, None]).unflatten(2, (2, -1)).permute(2, 0, 3, 1)
        logits = self.output.bias.float().repeat(len(samples), sentences * width, 1)
        hidden = logits.new_zeros(sentences * width, self.lstm.output_dimension)
        for chosen, *sides in run_samples(samples, words, lengths):
            for cells, states, weight, own in zip(*sides, weights, hidden.chunk(2, 1), strict=True):
                logits[chosen].index_add_(1, cells, (states @ weight[chosen]).float())
                own.index_add_(0, cells, states.float().sum(dim=0))
        shape = (sentences, width)
        return logits.unflatten(1, shape), (hidden / len(samples)).unflatten(0, shape)

    def _average(self, words: Tensor, lengths: Tensor, samples: Sequence[LstmSample]) -> Draft:
        logits, hidden = self.read(words, lengths, samples)
        sampled = logits.softmax(dim=-1)
        probabilities = sampled.mean(dim=0)
        return Draft(
            probabilities=probabilities,
            labels=probabilities.argmax(dim=-1),
            uncertainty=entropy(probabilities),
            hidden=hidden,
            samples=sampled if self._has_entities else probabilities.new_empty(0, *probabilities.shape),
        )


class RefineNetwork(nn.Module):
    """Its own word representation, draft labels, two streams, softmax or CRF.

    If it reads draft labels neither from the sentence nor from the memory, it has one stream and no label embedding.
    What the memory returns joins both streams before the last layer, as in the released code. In the form of the paper
    it joins them before every layer, each of which has a join of its own (eq. 12 and 13).
    """

    def __init__(self, config: TwoStageConfig, vocabulary: Vocabulary, encoder_width: int | None) -> None:
        super().__init__()
        self._config = config
        memory = config.document_memory
        width, labels = config.two_stream.width, len(vocabulary.labels)
        reads_labels = config.sentence_labels or (memory is not None and memory.labels)
        self.representation = WordRepresentation(config.refine_representation, vocabulary, encoder_width=encoder_width)
        self.words_in = nn.Linear(self.representation.output_dimension, width)
        self.encoder: RelativeTransformer
        if reads_labels:
            self.label_embedding = nn.Parameter(torch.empty(labels, config.label_dimension))
            nn.init.uniform_(self.label_embedding, -1.0, 1.0)
            self.labels_in = nn.Linear(config.label_dimension, width)
        if config.label_stream == "paper":
            self.encoder = LayeredTwoStreamEncoder(config.two_stream, labelled=reads_labels)
        else:
            self.encoder = (TwoStreamEncoder if reads_labels else RelativeTransformer)(config.two_stream)
        self.dropout = nn.Dropout(config.two_stream.dropout)
        self.output = nn.Linear((1 + reads_labels) * width, labels)
        self.reader: MemoryReader | None = None
        if memory is not None:
            self._detaches_values = memory.value_gradient == "released"
            self.reader = MemoryReader(memory, width=width, hidden=2 * config.lstm.hidden)
            joins_labels = memory.labels and config.sentence_labels
            if config.label_stream == "paper":
                layers = range(config.two_stream.layers)
                self.join_words = nn.ModuleList(nn.Linear(2 * width, width) for _ in layers if memory.contexts)
                self.join_labels = nn.ModuleList(nn.Linear(2 * width, width) for _ in layers if joins_labels)
            else:
                if memory.contexts:
                    self.merge_words = nn.Linear(2 * width, width)
                if joins_labels:
                    self.merge_labels = nn.Linear(2 * width, width)
        self.decoder = SoftmaxOrCrf(config.decoder, vocabulary.labels, vocabulary.scheme)

    def forward(
        self, batch: Batch, features: Tensor | None, probabilities: Tensor, memory: MemoryContents | None
    ) -> Tensor:
        """Return logits, ``(B, T, L)``, like stage one's probabilities; the encoder's features are ``(B, T, E)``."""
        words = self.words_in(self.representation(batch, features))
        labels = self.embed_drafts(probabilities) * batch.mask[:, :, None] if self._config.sentence_labels else None
        run = self._run_as_in_the_paper if self._config.label_stream == "paper" else self._run_as_released
        return cast(Tensor, self.output(self.dropout(run(words, labels, batch.mask, memory))))

    def _run_as_released(
        self, words: Tensor, labels: Tensor | None, mask: Tensor, memory: MemoryContents | None
    ) -> Tensor:
        words = self.encoder.read_words(words, mask)
        context, remembered = self._recall(words, memory)
        if context is not None:
            words = self.merge_words(torch.cat([words, context], dim=-1))
        if labels is None:
            labels = remembered
        elif remembered is not None:
            labels = self.merge_labels(torch.cat([labels, remembered], dim=-1))
        found = self.encoder.last(words, mask)
        if labels is not None and isinstance(self.encoder, TwoStreamEncoder):
            found = torch.cat([found, self.encoder.label_attention(words, labels, mask)], dim=-1)
        return found

    def _run_as_in_the_paper(
        self, words: Tensor, labels: Tensor | None, mask: Tensor, memory: MemoryContents | None
    ) -> Tensor:
        encoder = cast(LayeredTwoStreamEncoder, self.encoder)
        context, remembered = self._recall(words, memory)
        labels = remembered if labels is None else labels
        streams = [words] if labels is None else [words, labels]
        for number in range(self._config.two_stream.layers):
            if context is not None:
                streams[0] = self.join_words[number](torch.cat([streams[0], context], dim=-1))
            if remembered is not None and self._config.sentence_labels:
                streams[1] = self.join_labels[number](torch.cat([streams[1], remembered], dim=-1))
            streams = encoder.run_layer(number, streams, mask)
        return torch.cat(streams, dim=-1)

    def _recall(self, words: Tensor, memory: MemoryContents | None) -> tuple[Tensor | None, Tensor | None]:
        """Return what words read in the memory: contexts and labels, each None where it is not read."""
        if self.reader is None or memory is None:
            return None, None
        drafts = self.embed_drafts(memory.probabilities) if self.reader.reads_labels else None
        if drafts is not None and self._detaches_values:
            drafts = drafts.detach()
        found: tuple[Tensor | None, Tensor | None] = self.reader(words, memory, drafts)
        return found

    def embed_drafts(self, probabilities: Tensor) -> Tensor:
        """Embed drafts, given by their probabilities; ``(..., L)`` to ``(..., width)``.

        The probabilities are detached: gradient reaches the embeddings, never stage one.
        """
        drafts = probabilities.detach()
        if self._config.label_embedding == "hard":
            drafts = nn.functional.one_hot(drafts.argmax(dim=-1), drafts.shape[-1]).to(drafts)
        return cast(Tensor, self.labels_in(drafts @ self.label_embedding))

    def attentions(self) -> dict[str, nn.Module]:
        """Return the modules that output attention weights; those of the memory have shape ``(known words, S)``."""
        return self.encoder.attentions() | ({"memory": self.reader.dropout} if self.reader is not None else {})


class MemoryReader(nn.Module):
    """Attends from a word's current state to the slots of its other occurrences (Ye et al., 2021, section III-C).

    There is one head, scaled by the root of the width. The same weights sum up contexts (projected keys) and labels
    (projected values). Either of the two may be switched off; the keys address the slots all the same. A word without
    a slot reads learned vectors instead, ``default_context`` and ``default_label``. Eq. 10 has neither the scale nor
    the projections of query and value, and sums the states themselves; here they are those of the released code,
    whichever the label stream.
    """

    def __init__(self, config: MemoryConfig, *, width: int, hidden: int) -> None:
        """Build the projections from stage one's states, ``hidden`` wide, to streams and drafts, ``width`` wide."""
        super().__init__()
        self.reads_contexts, self.reads_labels = config.contexts, config.labels
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(hidden, width)
        if config.labels:
            self.value = nn.Linear(width, width)
        self.dropout = nn.Dropout(config.dropout)
        if config.contexts:
            self.default_context = nn.Parameter(torch.randn(width))
        if config.labels:
            self.default_label = nn.Parameter(torch.randn(width))
        self._scale = width**0.5

    def forward(
        self, states: Tensor, memory: MemoryContents, drafts: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """Read the memory of N words; return contexts and labels, ``(B, T, width)``, or None where it is not read.

        Args:
            states: the words of the batch, shape ``(B, T, width)``.
            drafts: the embedded drafts in memory, shape ``(N, width)``; None if labels are not read.
        """
        keys, values = self.key(memory.hidden.detach()), self.value(drafts) if drafts is not None else None
        context = self.default_context.expand_as(states) if self.reads_contexts else None
        label = self.default_label.expand_as(states) if self.reads_labels else None
        if len(memory.cells):
            rows = memory.slots.clamp(min=0)
            slot_keys = keys[rows]
            query = self.query(states.flatten(0, 1).index_select(0, memory.cells))
            scores = (slot_keys @ query[:, :, None])[:, :, 0] / self._scale
            weights = self.dropout(scores.masked_fill(memory.slots < 0, float("-inf")).softmax(dim=-1))
            if context is not None:
                context = _replace(context, memory.cells, (weights[:, None, :] @ slot_keys)[:, 0])
            if label is not None and values is not None:
                label = _replace(label, memory.cells, (weights[:, None, :] @ values[rows])[:, 0])
        return context, label


def _replace(values: Tensor, cells: Tensor, others: Tensor) -> Tensor:
    """Return values ``(B, T, D)`` with others, ``(K, D)``, in some of the cells."""
    return values.flatten(0, 1).index_copy(0, cells, others.to(values.dtype)).view(values.shape)
