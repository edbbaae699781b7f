"""Contextual features of words from a pretrained encoder that is not trained."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, chain

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from concord.models.devices import send
from concord.models.words.encoder import mean_states, read_frozen_encoder
from concord.models.words.encoder_config import EncoderConfig
from concord.models.words.subwords import SubwordWindow, pack_passes

# Subwords per pass. Small passes stay in a CPU's cache, and large ones make better use of its arithmetic; on a GPU they
# should be large.
_PASS_SUBWORDS = {"cpu": 512, "cuda": 32768}
# So many times as large in bfloat16, where a processor's matrix unit takes longer to begin than to multiply.
_ROUNDED_PASS = 4


class FrozenEncoder:
    """Computes features of words; its weights get no gradient and are in no checkpoint.

    Attributes:
        width: dimensions of a word's features.
        is_exact: whether these are the same bits whatever else is encoded with the sentence.
    """

    def __init__(self, config: EncoderConfig, *, device: str = "cpu", pass_subwords: int | None = None) -> None:
        self._config = config
        self._device = torch.device(device)
        self._pass_subwords = pass_subwords or _PASS_SUBWORDS[self._device.type]
        self._network = read_frozen_encoder(config, device=device)
        self.width = self._network.width
        self.is_exact = self._network.is_exact
        self.kept: dict[tuple[str, ...], Tensor] = {}
        """The features that ``cache`` keeps, by the words of their sentence."""

    def features(self, sentences: Sequence[Sequence[str]]) -> list[Tensor]:
        """Encode sentences, each on its own; one tensor per sentence, shape ``(words, width)``, float32.

        Equal sentences are encoded once and share a tensor. All are on the encoder's device or, if ``cache`` keeps some
        of them, on the CPU.
        """
        keys = [tuple(words) for words in sentences]
        missing = list(dict.fromkeys(key for key in keys if key not in self.kept))
        computed = dict(zip(missing, self._encode(missing), strict=True))
        if any(key in self.kept for key in keys):
            computed = {key: features.cpu() for key, features in computed.items()}
        return [computed[key] if key in computed else self.kept[key] for key in keys]

    def cache(self, sentences: Sequence[Sequence[str]]) -> None:
        """Compute features and cache them in memory, for training on the same sentences in every epoch."""
        distinct = sorted({tuple(words) for words in sentences} - self.kept.keys())
        self.kept.update(zip(distinct, (features.cpu() for features in self._encode(distinct)), strict=True))

    @torch.inference_mode()
    def _encode(self, sentences: Sequence[tuple[str, ...]]) -> list[Tensor]:
        lengths = list(map(len, sentences))
        firsts = list(accumulate(lengths, initial=0))
        features = torch.empty(firsts[-1], self.width, device=self._device)
        is_rounded = self._device.type == "cpu" and torch.is_autocast_enabled("cpu") and not self.is_exact
        subwords = self._pass_subwords * (_ROUNDED_PASS if is_rounded else 1)
        for windows in pack_passes(self._network.reader.windows(sentences), subwords=subwords):
            layers = self._network.states(self._network.reader.rows(windows))
            states = mean_states(layers, last=self._config.last_layers)
            states = states if self._network.scale is None else states * self._network.scale
            begins, chosen, rows = send(self._device, *_word_places(windows, firsts))
            bags = embedding_bag(torch.arange(len(states), device=self._device), states, begins, mode="mean")
            features.index_copy_(0, rows, bags.index_select(0, chosen))
        return list(features.split(lengths))


@lru_cache(maxsize=4)
def load_encoder(config: EncoderConfig, device: str) -> FrozenEncoder:
    """Load an encoder; the taggers of a process share one."""
    return FrozenEncoder(config, device=device)


def _word_places(windows: Sequence[SubwordWindow], firsts: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Return where words begin among the subwords of windows, which of them are used, and their rows; all int64.

    The special tokens at both ends of a window are words of one subword here, and are not used. The rows number the
    words of all sentences, whose first ones are given.
    """
    counts = torch.tensor([count for window in windows for count in (1, *map(len, window.words), 1)])
    begins = accumulate((len(window.words) + 2 for window in windows), initial=1)
    chosen = [
        range(begin + window.keep[0], begin + window.keep[1]) for window, begin in zip(windows, begins, strict=False)
    ]
    starts = [firsts[window.sentence] + window.first for window in windows]
    rows = [
        range(start + window.keep[0], start + window.keep[1]) for window, start in zip(windows, starts, strict=True)
    ]
    return (
        counts.cumsum(0) - counts,
        torch.tensor(list(chain.from_iterable(chosen)), dtype=torch.int64),
        torch.tensor(list(chain.from_iterable(rows)), dtype=torch.int64),
    )
