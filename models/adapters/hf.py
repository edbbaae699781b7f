"""A token-classification model of transformers, read from its folder: ``--model hf:FOLDER``.

A word has the scores of its first subword. Its label is part of the best sequence that the scheme allows, and all
probabilities are those among such sequences.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from typing_extensions import override

from concord.models.adapters.base import AdaptedConfig, AdaptedTagger, LabelMap
from concord.models.adapters.libraries import require_library
from concord.models.data.batch import Batch
from concord.models.data.vocabulary import Vocabulary
from concord.models.decoders.crf import Crf
from concord.models.decoders.distribution import LabelDistribution, SoftmaxDistribution
from concord.models.errors import ModelError
from concord.models.labels import split_label
from concord.models.regular_files import read_regular
from concord.models.taggers.base import TaggerConfig
from concord.models.taggers.one_stage import OneStageTagger
from concord.models.words.subwords import (
    PADDED_PASS,
    SPECIAL_TOKENS,
    SubwordReader,
    adapt_tokenizer,
    cut_passes,
    used_subwords,
)

# Nats: more than trained scores are apart, and few enough for the fast sums of a CRF.
_FORBIDDEN = -60.0
_TOKENIZER_CONFIG = "tokenizer_config.json"
_SETTINGS = ("config.json", _TOKENIZER_CONFIG, "special_tokens_map.json", "added_tokens.json")


class HfConfig(AdaptedConfig):
    """How a model of transformers is read."""

    overlap_words: int = 32
    """Words shared by neighbouring windows of a sentence that has more subwords than the model takes."""


class HfTagger(OneStageTagger[HfConfig], AdaptedTagger[HfConfig]):
    """The network, and a CRF that knows nothing but which labels may follow each other."""

    name: ClassVar[str] = "hf"
    config_class: ClassVar[type[TaggerConfig]] = HfConfig
    library: ClassVar[str] = "transformers"

    def __init__(self, config: HfConfig, vocabulary: Vocabulary) -> None:
        super().__init__(config, vocabulary)
        folder = Path(config.source)
        model_config = _read(folder, "AutoConfig")
        self._labels = _label_map(model_config)
        self.network: Any = _library("AutoModelForTokenClassification").from_config(model_config)
        self._reader = _read_tokenizer(folder, self.network, overlap_words=config.overlap_words)
        self.crf = _legal_sequences(self._labels) if vocabulary.scheme.has_entities else None

    @override
    @classmethod
    def find(cls, source: str) -> Path:
        require_library(cls.library, extra="hf")
        folder = Path(source).expanduser().absolute()
        if not (folder / "config.json").is_file():
            raise ModelError(f"{folder}: expected the folder of a model of transformers, with config.json")
        return folder

    @override
    @classmethod
    def adapt(cls, source: str) -> Self:
        folder = cls.find(source)
        # In fp32 whatever the weights are saved in, as all taggers.
        network, report = _read(
            *(folder, "AutoModelForTokenClassification"),
            use_safetensors=True, dtype=torch.float32, output_loading_info=True,
        )  # fmt: skip
        if missing := sorted(report["missing_keys"]):
            raise ModelError(
                f"{folder}: expected a model of token classification, got none of its weights {missing[0]}"
            )
        labels = _label_map(network.config)
        vocabulary = Vocabulary(words=(), characters=(), labels=labels.labels, scheme=labels.scheme)
        tagger = cls(HfConfig(source=str(folder), scheme=labels.scheme.name), vocabulary)
        tagger.network = network
        return tagger.eval()

    @override
    @classmethod
    def source_files(cls, folder: Path) -> Sequence[Path]:
        # Which files a tokenizer reads, only its own class knows. tokenizer.json may be one for a range of versions.
        own = [*type(_tokenizer(folder)).vocab_files_names.values()]
        versions = [path.name for path in folder.glob("tokenizer.*.json")]
        return [folder / name for name in dict.fromkeys([*_SETTINGS, *own, *versions]) if (folder / name).is_file()]

    @override
    def distribution(self, batch: Batch) -> LabelDistribution:
        emissions = self._emissions(batch)
        return self.crf(emissions, batch.mask) if self.crf is not None else SoftmaxDistribution(emissions, batch.mask)

    def _emissions(self, batch: Batch) -> Tensor:
        """Return the log-probabilities that the model gives the tagger's labels, shape ``(B, T, L)``; 0 if padded."""
        cells: list[int] = []
        scores: list[Tensor] = []
        sentences = [sentence.words for sentence in batch.sentences]
        width = batch.mask.shape[1]
        for windows in cut_passes(self._reader.windows(sentences), subwords=PADDED_PASS[self.device.type]):
            numbers, attention = (tensor.to(self.device) for tensor in self._reader.pad(self._reader.rows(windows)))
            logits = self.network(input_ids=numbers, attention_mask=attention).logits
            places, own = used_subwords(windows, subwords=numbers.shape[1], words=width)
            scores.append(logits.flatten(0, 1)[[place.start for place in places]].float().log_softmax(dim=-1))
            cells += own
        found = torch.cat(scores)
        known = [0 if number is None else number for number in self._labels.numbers]
        absent = torch.tensor([number is None for number in self._labels.numbers], device=self.device)
        emissions = found[:, known].masked_fill(absent, _FORBIDDEN)
        padded = emissions.new_zeros(batch.mask.numel(), emissions.shape[1])
        return padded.index_copy(0, torch.tensor(cells, device=self.device), emissions).view(*batch.mask.shape, -1)


def _library(name: str) -> Any:
    require_library("transformers", extra="hf")
    import transformers

    return getattr(transformers, name)


def _read(folder: Path, auto_class: str, **options: Any) -> Any:
    """Read something of a folder by a class of transformers, which runs no code of the folder and downloads nothing."""
    reader = _library(auto_class)
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        return reader.from_pretrained(folder, local_files_only=True, trust_remote_code=False, **options)
    except (OSError, ValueError, LookupError, RuntimeError, ImportError, SafetensorError, TypeError) as error:
        raise ModelError(f"{folder}: expected a token-classification model with safetensors: {error}") from error


def _label_map(model_config: Any) -> LabelMap:
    """Return the labels of a model, which config.json must name for each of its outputs."""
    names = model_config.id2label
    for number in range(len(names)):
        if not isinstance(names.get(number), str):
            raise ModelError(
                f"id2label of config.json: expected a name for each number from 0 to {len(names) - 1}, got "
                f"{names.get(number, 'none')!r} for {number}; give it the names that the model was trained with"
            )
    return LabelMap.of([names[number] for number in range(len(names))])


def _tokenizer(folder: Path) -> Any:
    """Read the tokenizer of a folder; a ModelError says which of its files the folder lacks."""
    try:
        # Words are split one by one: those of a byte-level BPE then begin as they do within a text.
        return _read(folder, "AutoTokenizer", add_prefix_space=True)
    except ModelError as error:
        try:
            kind = json.loads(read_regular(folder / _TOKENIZER_CONFIG))["tokenizer_class"]
            files = _library(kind).vocab_files_names
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise error from None
        lacking = [name for name in files.values() if not (folder / name).is_file()]
        if not lacking:
            raise
        raise ModelError(
            f"{folder}: expected {', '.join(files.values())}, the files of a {kind}, found no {', '.join(lacking)}"
        ) from error


def _read_tokenizer(folder: Path, network: Any, *, overlap_words: int) -> SubwordReader:
    tokenizer = _tokenizer(folder)
    start, end = tokenizer.cls_token_id, tokenizer.sep_token_id
    numbers = tokenizer(["a"])["input_ids"][0]
    if start is None or end is None or (numbers[0], numbers[-1]) != (start, end):
        raise ModelError(f"{folder}: expected a tokenizer that puts a text between two special tokens")
    return SubwordReader(
        adapt_tokenizer(tokenizer),
        capacity=min(_positions(network), tokenizer.model_max_length) - SPECIAL_TOKENS,
        overlap_words=overlap_words,
    )


def _positions(network: Any) -> int:
    """Return how many subwords a network takes, which numbers them from behind the padding's number if it has one."""
    positions = getattr(network.config, "max_position_embeddings", None) or 512
    for name, module in network.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding) and module.padding_idx is not None:
            return int(positions) - module.padding_idx - 1
    return int(positions)


def _legal_sequences(labels: LabelMap) -> Crf:
    """Return a CRF of which sequences the scheme allows; the model of an IO scheme begins no entity within another."""
    crf = Crf(labels.labels, labels.scheme, legal_mode=True)
    if labels.inside_alone:
        kinds = [split_label(label) for label in labels.labels]
        again = [[right[0] == "B" and left[1] == right[1] for right in kinds] for left in kinds]
        crf.illegal |= torch.tensor(again)
    illegals = {"transitions": crf.illegal, "start": crf.illegal_start, "end": crf.illegal_end}
    for name, illegal in illegals.items():
        # They follow from the labels, and are neither trained nor saved.
        delattr(crf, name)
        crf.register_buffer(name, torch.zeros(illegal.shape).masked_fill(illegal, _FORBIDDEN), persistent=False)
    return crf
