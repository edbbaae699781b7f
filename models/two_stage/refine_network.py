"""Stage two: two-stream attention refines uncertain drafts (Ye et al., 2021, sections III-C and III-E)."""

import torch
from torch import Tensor, nn

from concord.models.data.batch import Batch
from concord.models.data.vocabulary import Vocabulary
from concord.models.decoders.distribution import LabelDistribution
from concord.models.decoders.softmax_or_crf import SoftmaxOrCrf
from concord.models.layers.relative_transformer import RelativeTransformer, TwoStreamEncoder
from concord.models.two_stage.config import MemoryConfig, TwoStageConfig
from concord.models.two_stage.document_memory import MemoryContents
from concord.models.two_stage.memory_reader import MemoryReader
from concord.models.words.representation import WordRepresentation


class RefineNetwork(nn.Module):
    """Its own word representation, draft labels, two streams, softmax or CRF.

    If it reads draft labels neither from the sentence nor from the memory, it has one stream and no label embedding.
    """

    def __init__(
        self, config: TwoStageConfig, vocabulary: Vocabulary, encoder_width: int | None, memory: MemoryConfig | None
    ) -> None:
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
        self.decoder = SoftmaxOrCrf(config.decoder, vocabulary.labels, vocabulary.scheme)

    def forward(
        self, batch: Batch, features: Tensor | None, probabilities: Tensor, memory: MemoryContents | None
    ) -> Tensor:
        """Return logits of shape ``(B, T, L)``.

        Args:
            features: the encoder's, shape ``(B, T, E)``; None without an encoder.
            probabilities: stage one's, shape ``(B, T, L)``.
            memory: what the words may read; None for a tagger without a memory.
        """
        words = self.words_in(self.representation(batch, features))
        words = self.encoder.read_words(words, batch.mask)
        labels = self.embed_drafts(probabilities) * batch.mask[:, :, None] if self._config.sentence_labels else None
        if self.reader is not None and memory is not None:
            drafts = self.embed_drafts(memory.probabilities) if self.reader.reads_labels else None
            context, remembered = self.reader(words, memory.hidden.detach(), drafts, memory.slots)
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

    def embed_drafts(self, probabilities: Tensor) -> Tensor:
        """Embed drafts, given by their probabilities; ``(..., L)`` to ``(..., width)``.

        The probabilities are detached: gradient reaches the embeddings, never stage one.
        """
        drafts = probabilities.detach()
        if self._config.label_embedding == "hard":
            drafts = nn.functional.one_hot(drafts.argmax(dim=-1), drafts.shape[-1]).to(drafts)
        embedded: Tensor = self.labels_in(drafts @ self.label_embedding)
        return embedded

    def distribution(self, logits: Tensor, mask: Tensor) -> LabelDistribution:
        """Return the distribution over label sequences; logits of shape ``(B, T, L)``, mask of shape ``(B, T)``."""
        distribution: LabelDistribution = self.decoder(logits, mask)
        return distribution

    def attentions(self) -> dict[str, nn.Module]:
        """Return the modules that output attention weights; those of the memory have shape ``(known words, S)``."""
        return self.encoder.attentions() | ({"memory": self.reader.dropout} if self.reader is not None else {})
