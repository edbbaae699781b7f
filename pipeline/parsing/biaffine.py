"""Tags and trees from the states of an encoder: a hidden layer, two LSTMs over the words, biaffine arcs.

The arcs are those of Dozat and Manning (2017). Part of speech, features and language of a word are read from its own
state, which knows the sentence already; the trees from LSTMs, which know its order better.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from pydantic import Field
from safetensors.torch import load_file
from torch import Tensor, nn

from concord.models.config import Config
from concord.models.data.batch import word_rows
from concord.models.layers.lstm import DIRECTIONS, input_weights, lstm_states, scan
from concord.models.words.bert import Int8Linear
from concord.pipeline.parsing.stanza_packages import NETWORK_NAME, NETWORK_WEIGHTS_NAME


class BiaffineConfig(Config):
    """Sizes of the network, and the names of what it finds."""

    width: int = Field(ge=1)
    """Dimensions of a word's states."""
    hidden: int = Field(default=512, ge=1)
    lstm: int = Field(default=200, ge=1)
    """Units of each LSTM in each direction."""
    arcs: int = Field(default=200, ge=1)
    relation_units: int = Field(default=200, ge=1)
    upos: tuple[str, ...]
    xpos: tuple[str, ...]
    """With ``_`` for none."""
    languages: tuple[str, ...]
    """Of the treebanks, by their codes."""
    features: Mapping[str, tuple[str, ...]]
    """The values of each feature; the first one, ``_``, is for words without it."""
    relations: tuple[str, ...]

    def tag_sizes(self) -> list[int]:
        """Return how many tags there are of each kind: upos, xpos, languages, then each feature."""
        return list(map(len, (self.upos, self.xpos, self.languages, *self.features.values())))


@dataclass(frozen=True, slots=True)
class Words:
    """Where the N words of B sentences lie among ``B * T`` cells."""

    lengths: Tensor
    """Words of each sentence, at least one; shape ``(B,)``, int64, on the CPU."""
    index: Tensor
    """The row of each cell, 0 where padded; shape ``(B, T)``, int64."""
    cells: Tensor
    """The cell of each row, shape ``(N,)``, int64."""

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device | str = "cpu") -> Self:
        """Return the places of sentences whose words are in rows one after the other."""
        sizes = torch.tensor(lengths)
        rows = word_rows(sizes.cumsum(0) - sizes, sizes)
        return cls(sizes, rows.clamp(min=0).to(device), (rows >= 0).flatten().nonzero()[:, 0].to(device))

    def pad(self, rows: Tensor) -> Tensor:
        """Return rows, ``(N, D)``, by sentence, ``(B, T, D)``; what is in padding means nothing."""
        return rows[self.index]

    def rows(self, padded: Tensor) -> Tensor:
        """Return the rows, ``(N, D)``, of ``(B, T, D)``."""
        return padded.flatten(0, 1).index_select(0, self.cells)


class BiaffineNetwork(nn.Module):
    """The network. Without gradient on a CPU its LSTMs are scanned, and what they read is multiplied in int8.

    Args:
        dropout: probability that training drops a unit of states, hidden layer and LSTMs.
    """

    scale: Tensor

    def __init__(self, config: BiaffineConfig, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.config = config
        self.register_buffer("scale", torch.ones(config.width))
        self.dropout = nn.Dropout(dropout)
        self.hidden = nn.Linear(config.width, config.hidden)
        self.tags = nn.Linear(config.hidden, sum(config.tag_sizes()))
        both = 2 * config.lstm
        self.first, self.second = (
            nn.LSTM(inputs, config.lstm, batch_first=True, bidirectional=True) for inputs in (config.hidden, both)
        )
        self.root = nn.Parameter(torch.randn(both) / 2)
        self.arc_words, self.arc_heads = nn.Linear(both, config.arcs), nn.Linear(both, config.arcs)
        self.arcs = nn.Linear(config.arcs, config.arcs)
        self.relation_words = nn.Linear(both, config.relation_units)
        self.relation_heads = nn.Linear(both, config.relation_units, bias=False)
        self.relations = nn.Linear(config.relation_units, len(config.relations))
        self._products: list[Int8Linear] | None = None
        """The largest products in int8: that of the states, and those of what the LSTMs read."""

    def read(self, states: Tensor, words: Words, *, trees: bool = True) -> tuple[Tensor, Tensor | None]:
        """Return scores of tags, ``(N, tags)``, and what the trees are read from, ``(B, 1 + T, 2 * lstm)``.

        The states have the shape ``(N, width)``. In each sentence the root comes first. None without trees.
        """
        linear = self.hidden if self._products is None else self._products[0]
        hidden = self.dropout(linear(self.dropout(states * self.scale)).relu_())
        tags = self.tags(hidden)
        if not trees:
            return tags, None
        rows, padded = hidden, hidden
        for number, lstm in enumerate((self.first, self.second), start=1):
            if self._products is None:
                padded = lstm_states(lstm, words.pad(rows), words.lengths)
            else:
                projected = self._products[number](rows).unflatten(1, (len(DIRECTIONS), -1))
                padded = scan(lstm, projected, words.index, words.lengths)
            rows = self.dropout(words.rows(padded))
        return tags, torch.cat([self.root.expand(len(padded), 1, -1), words.pad(rows)], dim=1)

    def round_products(self) -> None:
        """Multiply in int8 from now on, for inference on a CPU."""
        products = (self.hidden.weight, self.hidden.bias), input_weights(self.first), input_weights(self.second)
        self._products = [Int8Linear(*weights) for weights in products]

    def arc_scores(self, contexts: Tensor) -> Tensor:
        """Score every word (row) with every head (column, the root first); ``(B, 1 + T, D)`` to ``(B, T, 1 + T)``."""
        words: Tensor = self.arcs(self.dropout(self.arc_words(contexts[:, 1:]).relu_()))
        heads: Tensor = self.dropout(self.arc_heads(contexts).relu_())
        return words @ heads.transpose(1, 2)

    def relation_scores(self, contexts: Tensor, heads: Tensor) -> Tensor:
        """Score relations, shape ``(B, T, relations)``, given heads of shape ``(B, T)``, 0 for the root."""
        own = self.relation_heads(contexts)
        parents = own.gather(1, heads[:, :, None].expand(-1, -1, own.shape[2]))
        scores: Tensor = self.relations(self.dropout((self.relation_words(contexts[:, 1:]) + parents).relu_()))
        return scores


def read_network(folder: Path, *, device: str) -> BiaffineNetwork:
    """Read a network for inference from its two files.

    Raises:
        OSError, ValueError, RuntimeError, SafetensorError: when these are damaged or missing.
    """
    config = BiaffineConfig.model_validate_json((folder / NETWORK_NAME).read_bytes())
    network = BiaffineNetwork(config)
    network.load_state_dict({name: value.float() for name, value in load_file(folder / NETWORK_WEIGHTS_NAME).items()})
    network.eval().requires_grad_(False).to(device)
    if device == "cpu":
        network.round_products()
    return network
