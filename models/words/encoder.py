"""Contextual features of words from a pretrained encoder, frozen or fine-tuned with its tagger.

It is the bundled one or a Hugging Face folder: safetensors, JSON and a vocabulary. It is found without running the code
of the package that contains it, and its weights are checked against the digest that the tagger was trained with.
"""

import importlib.util
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import embedding_bag
from torch.utils.checkpoint import checkpoint
from typing_extensions import override

from concord.models.data.batch import send
from concord.models.data.sentence import Passage
from concord.models.errors import ConfigError, EncoderMissingError, ModelError
from concord.models.regular_files import file_digest
from concord.models.words.bert import Bert, read_bert
from concord.models.words.bundled_encoder import read_bundled_encoder
from concord.models.words.encoder_config import (
    BUNDLED_ENCODER,
    BUNDLED_NAME,
    DIFFERENCE_NAME,
    ENCODER_NAME,
    WEIGHTS_NAME,
    EncoderConfig,
    find_encoder,
)
from concord.models.words.subwords import (
    PADDED_PASS,
    SPECIAL_TOKENS,
    SubwordReader,
    SubwordTokenizer,
    SubwordWindow,
    adapt_tokenizer,
    cut_passes,
    pack_passes,
    used_subwords,
)

NetworkStates = Callable[[Sequence[list[int]]], Sequence[Tensor]]
"""Returns the states of every layer, each of shape ``(N, width)``, for rows of N subword numbers in all."""


def read_encoder(config: EncoderConfig, **options: Any) -> tuple[Any, SubwordReader]:
    """Read an encoder's folder by transformers; the options are passed to ``AutoModel.from_pretrained``.

    Return the network in evaluation mode, and the reader that splits words for it.

    Raises:
        EncoderMissingError: when it or transformers is missing, its digest differs, or it cannot be loaded.
    """
    folder = _checked_folder(config)
    from transformers import AutoModel, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # of a missing layer that pools the states of a sentence, which nothing reads
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        network: Any = AutoModel.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, use_safetensors=True, **options
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise _unreadable(folder, error) from error
    finally:
        logging.set_verbosity(verbosity)
    capacity = int(network.config.max_position_embeddings) - SPECIAL_TOKENS
    reader = SubwordReader(adapt_tokenizer(tokenizer), capacity=capacity, overlap_words=config.overlap_words)
    return network.eval(), reader


class FrozenNetwork(NamedTuple):
    """An encoder for inference, and the reader that splits words for it."""

    states: NetworkStates
    reader: SubwordReader
    width: int
    """Dimensions of the states."""
    scale: Tensor | None = None
    """What features are multiplied by, shape ``(width,)``."""
    is_exact: bool = False
    """Whether a window's states are the same bits whatever is read with it, even where autocast is on."""


def read_frozen_encoder(config: EncoderConfig, *, device: str) -> FrozenNetwork:
    """Read an encoder's folder for inference.

    The bundled encoder, and any other BERT, is read without transformers, and computes several times as fast. Errors
    are as those of ``read_encoder``.
    """
    if config.source == BUNDLED_NAME:
        try:
            return _frozen_bert(config, *read_bundled_encoder(config, device=device), device=device)
        except (ModelError, OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
            raise EncoderMissingError(f"{BUNDLED_ENCODER}: the bundled encoder cannot be read: {error}") from error
    folder = _checked_folder(config)
    try:
        replaced = read_difference(config)
        bert = read_bert(
            folder, weights_name=WEIGHTS_NAME, precision=config.precision, device=device, replaced=replaced
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise _unreadable(folder, error) from error
    if bert is not None:
        return _frozen_bert(config, *bert, None, device=device)
    network, reader = read_encoder(config)
    network.load_state_dict(replaced, strict=False)
    frozen = network.requires_grad_(False).to(device)

    def states(rows: Sequence[list[int]]) -> Sequence[Tensor]:
        numbers, attention = (tensor.to(device) for tensor in reader.pad(rows))
        return [states[attention.bool()] for states in layer_states(frozen, numbers, attention)]

    return FrozenNetwork(states, reader, int(network.config.hidden_size))


def _frozen_bert(
    config: EncoderConfig, network: Bert, tokenizer: SubwordTokenizer, scale: Tensor | None, *, device: str
) -> FrozenNetwork:
    reader = SubwordReader(tokenizer, capacity=network.positions - SPECIAL_TOKENS, overlap_words=config.overlap_words)
    is_exact = config.precision == "int8" and device == "cpu"
    return FrozenNetwork(network.states, reader, network.width, scale, is_exact)


def read_difference(config: EncoderConfig) -> dict[str, Tensor]:
    """Return the weights that replace the source's, by their names there, float32 with the values of fp16.

    Raises:
        EncoderMissingError: when they cannot be read, or are not those of the source's network.
    """
    if config.weights is None:
        return {}
    folder = Path(config.weights) / ENCODER_NAME
    try:
        if (folder / DIFFERENCE_NAME).exists():
            return {name: value.float() for name, value in load_file(folder / DIFFERENCE_NAME).items()}
        tuned, source = load_file(folder / WEIGHTS_NAME), load_file(_checked_folder(config) / WEIGHTS_NAME)
    except (OSError, SafetensorError) as error:
        raise EncoderMissingError(
            f"encoder.weights: expected a saved tagger with an encoder of its own in {config.weights}: {error}"
        ) from error
    if unknown := [name for name, value in tuned.items() if name not in source or source[name].shape != value.shape]:
        raise EncoderMissingError(
            f"encoder.weights: expected weights of {config.source}, got {unknown[0]} in {folder / WEIGHTS_NAME}"
        )
    rounded = {name: value.half().float() for name, value in tuned.items()}
    return {name: value for name, value in rounded.items() if not torch.equal(value, source[name].half().float())}


def layer_states(network: Any, numbers: Tensor, attention: Tensor) -> Sequence[Tensor]:
    """Return the states of every layer of a network of transformers, shape ``(windows, subwords, width)``.

    Subword numbers and attention mask have shape ``(windows, subwords)``, int64.
    """
    states: Sequence[Tensor] = network(
        input_ids=numbers, attention_mask=attention, output_hidden_states=True
    ).hidden_states
    return states


def mean_states(states: Sequence[Tensor], *, last: int) -> Tensor:
    """Return the mean of the states of an encoder's last layers, float32, in the shape of one layer's states.

    The embeddings count as the first layer.

    Raises:
        ConfigError: when the encoder has fewer layers.
    """
    if last > len(states):
        raise ConfigError(f"encoder.last_layers: expected {len(states)} or less, got {last}")
    first, *others = states[-last:]
    # Added one by one: a sum over a dimension may add in an order that depends on the number of words.
    total = first.clone()
    for layer in others:
        total += layer
    return total.div_(last).float()


def _checked_folder(config: EncoderConfig) -> Path:
    folder = find_encoder(config.source)
    if config.sha256 is not None and (found := file_digest(folder / WEIGHTS_NAME).hex()) != config.sha256:
        raise EncoderMissingError(f"encoder: expected {folder / WEIGHTS_NAME} with sha256 {config.sha256}, got {found}")
    if importlib.util.find_spec("transformers") is None:
        raise EncoderMissingError("encoder: expected the library transformers; install it with the extra 'hf'")
    return folder


def _unreadable(folder: Path, error: Exception) -> EncoderMissingError:
    return EncoderMissingError(f"encoder: expected a Hugging Face model in {folder}: {error}")


# Subwords per pass. Small passes stay in a CPU's cache, and large ones make better use of its arithmetic; on a GPU they
# should be large.
_FROZEN_PASS = {"cpu": 512, "cuda": 32768}
# So many times as large in bfloat16, where a processor's matrix unit takes longer to begin than to multiply.
_ROUNDED_PASS = 4


_MIDDLE = (3, 4)
"""The layers whose states tell most about parts of speech and trees."""


class FrozenEncoder:
    """Computes features of words; its weights get no gradient and are in no checkpoint.

    Attributes:
        width: dimensions of a word's features.
        is_exact: whether these are the same bits whatever else is encoded with the sentence.
    """

    def __init__(self, config: EncoderConfig, *, device: str = "cpu", pass_subwords: int | None = None) -> None:
        self._config = config
        self._device = torch.device(device)
        self._pass_subwords = pass_subwords or _FROZEN_PASS[self._device.type]
        self._network = read_frozen_encoder(config, device=device)
        self.width = self._network.width
        self.is_exact = self._network.is_exact
        self.kept: dict[tuple[str, ...], Tensor] = {}
        """The features that ``cache`` keeps, by the words of their sentence."""
        self._passages: WeakValueDictionary[tuple[str, ...], Passage] = WeakValueDictionary()

    def features(self, sentences: Sequence[Sequence[str]]) -> list[Tensor]:
        """Encode sentences, each on its own; one tensor per sentence, shape ``(words, width)``, float32.

        Equal sentences are encoded once and share a tensor, as do passages that ``read`` has encoded. All are on the
        encoder's device or, if ``cache`` keeps some of them, on the CPU.
        """
        keys = [tuple(words) for words in sentences]
        known = {key: passage.features for key in keys if (passage := self._passages.get(key)) is not None}
        computed = {key: features for key, features in known.items() if features is not None and key not in self.kept}
        missing = list(dict.fromkeys(key for key in keys if key not in self.kept and key not in computed))
        computed |= zip(missing, self._encode(missing), strict=True)
        if any(key in self.kept for key in keys):
            computed = {key: features.cpu() for key, features in computed.items()}
        return [computed[key] if key in computed else self.kept[key] for key in keys]

    def cache(self, sentences: Sequence[Sequence[str]]) -> None:
        """Compute features and cache them in memory, for training on the same sentences in every epoch."""
        distinct = sorted({tuple(words) for words in sentences} - self.kept.keys())
        self.kept.update(zip(distinct, (features.cpu() for features in self._encode(distinct)), strict=True))

    def read(self, passages: Sequence[Passage]) -> list[Tensor]:
        """Encode passages, for a parser; one tensor per passage, shape ``(words, 4 * width)``, float32.

        The columns are a word's features; the mean of layers 3 and 4 over its subwords; the same of its last subword,
        which knows its ending; and the embedding of that subword. As long as a passage exists, it has its features, and
        ``features`` finds them there.
        """
        read = self._encode([passage.words for passage in passages], wide=True)
        for passage, states in zip(passages, read, strict=True):
            passage.features = states[:, : self.width].clone()
            self._passages[passage.words] = passage
        return read

    @torch.inference_mode()
    def _encode(self, sentences: Sequence[tuple[str, ...]], *, wide: bool = False) -> list[Tensor]:
        lengths = list(map(len, sentences))
        firsts = list(accumulate(lengths, initial=0))
        features = torch.empty(firsts[-1], self.width * (4 if wide else 1), device=self._device)
        is_rounded = self._device.type == "cpu" and torch.is_autocast_enabled("cpu") and not self.is_exact
        pass_subwords = self._pass_subwords * (_ROUNDED_PASS if is_rounded else 1)
        for windows in pack_passes(self._network.reader.windows(sentences), subwords=pass_subwords):
            layers = self._network.states(self._network.reader.rows(windows))
            states = mean_states(layers, last=self._config.last_layers)
            states = states if self._network.scale is None else states * self._network.scale
            begins, chosen, rows = send(self._device, *_word_places(windows, firsts))
            if wide:
                middle = mean_states([layers[number] for number in _MIDDLE], last=len(_MIDDLE))
                states = torch.cat([states, middle], dim=1)
            subwords = torch.arange(len(states), device=self._device)
            found = embedding_bag(subwords, states, begins, mode="mean").index_select(0, chosen)
            if wide:
                ends = torch.cat([begins[1:], torch.full((1,), len(states), device=self._device)])
                last = ends.index_select(0, chosen) - 1
                found = torch.cat([found, middle.index_select(0, last), layers[0].index_select(0, last)], dim=1)
            features.index_copy_(0, rows, found)
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


TOKENIZER_NAME = "tokenizer.json"
# Files of a folder besides its weights; not every folder has the last three.
_FILES = ("config.json", TOKENIZER_NAME, "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")
# Padded subwords of a training batch whose activations are kept; those of further passes are computed again in the
# backward pass, so that a batch of long documents fits into memory.
KEPT_SUBWORDS = 2048
_LAYER = re.compile(r"\blayers?\.(\d+)\.")


class TunedEncoder(nn.Module):
    """Computes the same features as ``FrozenEncoder``, with gradient."""

    __call__: Callable[..., Tensor]

    def __init__(self, config: EncoderConfig) -> None:
        """Load the pretrained weights; the folder must have a tokenizer.json, which a saved tagger needs."""
        super().__init__()
        self.network: Any
        self.network, self._reader = read_encoder(config, dtype=torch.float32)
        self.width = int(self.network.config.hidden_size)
        if hasattr(self.network, "pooler"):
            self.network.pooler = None  # its states of whole sentences are not read, so it would stay untrained
        self._last_layers = config.last_layers
        if config.tuned_layers is not None:
            for parameter, above in self.layers_above().items():
                parameter.requires_grad_(above < config.tuned_layers)
        self.files = _read_files(find_encoder(config.source))

    @override
    def forward(self, sentences: Sequence[Sequence[str]], length: int) -> Tensor:
        """Encode sentences, each on its own; shape ``(B, length, width)``, float32, zeros where padded.

        Equal sentences are encoded once, except in training, where each has a dropout of its own.
        """
        distinct = list(dict.fromkeys(map(tuple, sentences)))
        if self.training or len(distinct) == len(sentences):
            return self._encode(sentences, length)
        rows = {words: row for row, words in enumerate(distinct)}
        return self._encode(distinct, length)[[rows[tuple(words)] for words in sentences]]

    def _encode(self, sentences: Sequence[Sequence[str]], length: int) -> Tensor:
        device = next(self.network.parameters()).device
        features = torch.zeros(len(sentences) * length, self.width, device=device)
        vectors: list[Tensor] = []
        cells: list[int] = []
        subwords = 0
        for windows in cut_passes(self._reader.windows(sentences), subwords=PADDED_PASS[device.type]):
            numbers, attention = (tensor.to(device) for tensor in self._reader.pad(self._reader.rows(windows)))
            subwords += numbers.numel()
            if torch.is_grad_enabled() and subwords > KEPT_SUBWORDS:
                states = checkpoint(self._states, numbers, attention, use_reentrant=False)
            else:
                states = self._states(numbers, attention)
            places, own = used_subwords(windows, subwords=states.shape[1], words=length)
            chosen = torch.tensor(list(chain.from_iterable(places)), dtype=torch.int64, device=device)
            counts = torch.tensor(list(map(len, places)), dtype=torch.int64, device=device)
            # The order of additions is fixed on a GPU too, unlike that of index_add.
            vectors.append(torch.segment_reduce(states.flatten(0, 1).index_select(0, chosen), "mean", lengths=counts))
            cells += own
        if vectors:
            features = features.index_copy(0, torch.tensor(cells, dtype=torch.int64, device=device), torch.cat(vectors))
        return features.view(len(sentences), length, self.width)

    def layers_above(self) -> dict[nn.Parameter, int]:
        """Return for each parameter the number of layers above its own; embeddings are below the lowest layer."""
        layers = int(self.network.config.num_hidden_layers)
        return {
            parameter: layers - 1 - int(match[1]) if (match := _LAYER.search(name)) else layers
            for name, parameter in self.network.named_parameters()
        }

    def _states(self, numbers: Tensor, attention: Tensor) -> Tensor:
        return mean_states(layer_states(self.network, numbers, attention), last=self._last_layers)


def _read_files(folder: Path) -> Mapping[str, bytes]:
    if not (folder / TOKENIZER_NAME).is_file():
        raise EncoderMissingError(f"encoder: expected {folder / TOKENIZER_NAME}, got no such file")
    return {name: (folder / name).read_bytes() for name in _FILES if (folder / name).is_file()}
