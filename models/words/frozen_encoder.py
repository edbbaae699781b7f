"""Contextual features of words from a pretrained encoder that is not trained."""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from concord.models.words.encoder import mean_states, read_frozen_encoder
from concord.models.words.encoder_config import EncoderConfig
from concord.models.words.subwords import SubwordWindow, pack_passes

# Subwords per pass. Small passes stay in a CPU's cache, and large ones make better use of its arithmetic.
_PASS_SUBWORDS = 512
# So many times as large in bfloat16, where a processor's matrix unit takes longer to begin than to multiply.
_ROUNDED_PASS = 4


class FrozenEncoder:
    """Computes features of words; its weights get no gradient and are in no checkpoint.

    Attributes:
        width: dimensions of a word's features.
        is_exact: whether these are the same bits whatever else is encoded with the sentence.
    """

    def __init__(self, config: EncoderConfig, *, device: str = "cpu", pass_subwords: int = _PASS_SUBWORDS) -> None:
        self._config = config
        self._device = device
        self._pass_subwords = pass_subwords
        self._network = read_frozen_encoder(config, device=device)
        self.width = self._network.width
        self.is_exact = self._network.is_exact
        self.kept: dict[tuple[str, ...], Tensor] = {}
        """The features that ``cache`` keeps, by the words of their sentence."""

    def features(self, sentences: Sequence[Sequence[str]]) -> list[Tensor]:
        """Encode sentences, each on its own; one tensor per sentence, shape ``(words, width)``, float32.

        Equal sentences are encoded once and share a tensor.
        """
        keys = [tuple(words) for words in sentences]
        missing = list(dict.fromkeys(key for key in keys if key not in self.kept))
        computed = dict(zip(missing, self._encode(missing), strict=True))
        return [computed[key] if key in computed else self.kept[key] for key in keys]

    def cache(self, sentences: Sequence[Sequence[str]]) -> None:
        """Compute features and cache them in memory, for training on the same sentences in every epoch."""
        distinct = sorted({tuple(words) for words in sentences} - self.kept.keys())
        self.kept.update(zip(distinct, self._encode(distinct), strict=True))

    @torch.inference_mode()
    def _encode(self, sentences: Sequence[tuple[str, ...]]) -> list[Tensor]:
        features = [torch.empty(len(words), self.width) for words in sentences]
        is_rounded = torch.is_autocast_enabled(self._device) and not self.is_exact
        subwords = self._pass_subwords * (_ROUNDED_PASS if is_rounded else 1)
        for windows in pack_passes(self._network.reader.windows(sentences), subwords=subwords):
            layers = self._network.states(self._network.reader.rows(windows))
            states = mean_states(layers, last=self._config.last_layers)
            states = (states if self._network.scale is None else states * self._network.scale).cpu()
            for window, vectors in zip(windows, _word_means(states, windows), strict=True):
                begin, end = window.keep
                features[window.sentence][window.first + begin : window.first + end] = vectors[begin:end]
        return features


@lru_cache(maxsize=4)
def load_encoder(config: EncoderConfig, device: str) -> FrozenEncoder:
    """Load an encoder; the taggers of a process share one."""
    return FrozenEncoder(config, device=device)


def _word_means(states: Tensor, windows: Sequence[SubwordWindow]) -> list[Tensor]:
    """Average the subwords of each word, ``(N, width)``; one tensor per window, shape ``(words, width)``."""
    # The special tokens at both ends of a window are words of one subword here, and are left out at the end.
    counts = torch.tensor([count for window in windows for count in (1, *map(len, window.words), 1)])
    means = embedding_bag(torch.arange(len(states)), states, counts.cumsum(0) - counts, mode="mean")
    return [part[1:-1] for part in means.split([len(window.words) + 2 for window in windows])]
