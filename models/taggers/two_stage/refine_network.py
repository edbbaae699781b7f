"""Stage two: two-stream attention refines uncertain drafts and reads the document memory.

Ye et al. (2021), sections III-B and III-C.
"""

from typing import cast

import torch
from torch import Tensor, nn

from concord.models.data.batch import Batch
from concord.models.data.vocabulary import Vocabulary
from concord.models.decoders.softmax import SoftmaxOrCrf
from concord.models.layers.relative_transformer import (
    LayeredTwoStreamEncoder,
    RelativeTransformer,
    TwoStreamEncoder,
)
from concord.models.taggers.two_stage.config import TwoStageConfig
from concord.models.taggers.two_stage.document_memory import MemoryContents
from concord.models.words.representation import WordRepresentation


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
            self.reader = MemoryReader(
                width=width,
                hidden=2 * config.lstm.hidden,
                dropout=memory.dropout,
                contexts=memory.contexts,
                labels=memory.labels,
            )
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
        if labels is not None and isinstance(self.encoder, TwoStreamEncoder):
            return torch.cat(self.encoder.read_labels(words, labels, mask), dim=-1)
        return self.encoder.last(words, mask)

    def _run_as_in_the_paper(
        self, words: Tensor, labels: Tensor | None, mask: Tensor, memory: MemoryContents | None
    ) -> Tensor:
        context, remembered = self._recall(words, memory)
        labels = remembered if labels is None else labels

        def join(layer: int, streams: list[Tensor]) -> list[Tensor]:
            words, *labels = streams
            if context is not None:
                words = self.join_words[layer](torch.cat([words, context], dim=-1))
            if remembered is not None and self._config.sentence_labels:
                labels = [self.join_labels[layer](torch.cat([*labels, remembered], dim=-1))]
            return [words, *labels]

        streams = [words] if labels is None else [words, labels]
        return torch.cat(cast(LayeredTwoStreamEncoder, self.encoder).run(streams, mask, join), dim=-1)

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

    def __init__(self, *, width: int, hidden: int, dropout: float, contexts: bool = True, labels: bool = True) -> None:
        """Build the projections from stage one's states, ``hidden`` wide, to streams and drafts, ``width`` wide."""
        super().__init__()
        self.reads_contexts, self.reads_labels = contexts, labels
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(hidden, width)
        if labels:
            self.value = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)
        if contexts:
            self.default_context = nn.Parameter(torch.randn(width))
        if labels:
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
