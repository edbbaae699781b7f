"""An LSTM over the characters of a word (Lample et al., 2016; as in NCRF++)."""

from typing import Literal

from pydantic import Field
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from concord.models.config import Config
from concord.models.data.batch import PADDING


class CharLstmConfig(Config):
    """Sizes of the character LSTM."""

    kind: Literal["lstm"] = "lstm"
    embedding_dimension: int = Field(default=30, ge=1)
    hidden: int = Field(default=25, ge=1)
    """Units per direction; the word's vector has twice as many dimensions."""
    dropout: float = Field(default=0.5, ge=0, lt=1)
    """Dropout on the character embeddings."""


class CharLstm(nn.Module):
    """A bidirectional LSTM over a word's own characters; its two last hidden states are concatenated."""

    def __init__(self, config: CharLstmConfig, characters: int) -> None:
        """Build the network for an alphabet of this size, which includes padding and the unknown character."""
        super().__init__()
        self.embedding = nn.Embedding(characters, config.embedding_dimension, padding_idx=PADDING)
        self.dropout = nn.Dropout(config.dropout)
        self.lstm = nn.LSTM(config.embedding_dimension, config.hidden, batch_first=True, bidirectional=True)
        self.output_dimension = 2 * config.hidden

    def forward(self, forms: Tensor) -> Tensor:
        """Embed words.

        Args:
            forms: characters of each word, shape ``(F, C)``, int64, 0 where padded.

        Returns:
            Shape ``(F, output_dimension)``, float: the forward state after the last character, then the backward
            state after the first; zeros for a row without characters.
        """
        embedded = self.dropout(self.embedding(forms))
        lengths = (forms != PADDING).sum(dim=1)
        # Packing needs one character per row: an empty row reads its first padding and is set to zero below.
        packed = pack_padded_sequence(embedded, lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False)
        _, (hidden, _) = self.lstm(packed)
        words: Tensor = hidden.transpose(0, 1).flatten(1)
        return words.masked_fill(lengths[:, None] == 0, 0.0)
