"""The base of every tagger: documents in, one prediction per sentence out.

Text becomes tensors in ``batches`` and text again in ``TokenTable.predictions``; in between, a tagger fills the table.
Its rows number the words of all documents of a call in reading order, so a word's results have one place whichever
batch they come from.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar, Generic, Literal

import torch
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor, nn
from typing_extensions import TypeVar

from concord.models.confidence import Calibration
from concord.models.config import Config
from concord.models.data.batch import Batch, BatchEncoder, Forms
from concord.models.data.outputs import (
    DEFAULT_OPTIONS,
    AttentionMap,
    AttentionWeights,
    OnBatch,
    Precision,
    Prediction,
    PredictOptions,
)
from concord.models.data.sentence import (
    Passage,
    Sentence,
    Window,
    check_trees,
    cut_windows,
    unlabelled_part,
    with_passages,
)
from concord.models.data.vocabulary import DigitRule, Vocabulary
from concord.models.errors import ConfigError
from concord.models.labels import SchemeName
from concord.models.taggers.token_table import TokenTable
from concord.models.words.encoder import TunedEncoder, load_encoder
from concord.models.words.encoder_config import EncoderConfig

UNKNOWN_TREES = "unknown"
# A GPU is busy with batches so many times as large as a CPU's cache has room for.
_LARGER_ON_GPU = 16
# A network reads the distinct words of this many words at once; what it computes of them is kept meanwhile (for the
# bundled small tagger 40 MB).
_SHARED_WORDS = 2**16


class TaggerConfig(Config):
    """The configuration that all taggers share."""

    scheme: SchemeName = "BIOES"
    """The label scheme inside the tagger. `BIO` and `BIOES` are for entities, which are output in BIO2; `TOKENS` is for
    labels of single words, such as parts of speech or supertags."""
    lowercase: bool = False
    """Whether words are looked up lower-cased."""
    digits: DigitRule = "each"
    """`each`: every digit of words and characters becomes 0; `runs`: a word's run of digits becomes one 0; `keep`:
    digits are kept."""
    most_words: int | None = Field(default=None, ge=1)
    """So many words of the training corpora, the most frequent ones, get a vector of their own; all if null."""
    encoder: EncoderConfig | None = None
    """Pretrained features in addition to words and characters."""
    window_words: int = Field(default=256, ge=8)
    """A longer sentence is tagged in windows of this many words."""
    window_overlap: int = Field(default=64, ge=0)
    """Words that two windows share, fewer than `window_words`; a word's label comes from the window in which it is
    farther from the edge."""

    @field_validator("window_overlap")
    @classmethod
    def _windows_advance(cls, overlap: int, info: ValidationInfo) -> int:
        words = info.data.get("window_words")
        if words is not None and overlap >= words:
            raise ValueError(f"expected less than window_words ({words})")
        return overlap


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """What one call of ``predict_documents`` asks for."""

    options: PredictOptions
    on_batch: OnBatch | None = None


ConfigT = TypeVar("ConfigT", bound=TaggerConfig, covariant=True, default=TaggerConfig)


class Tagger(nn.Module, ABC, Generic[ConfigT]):
    """A network that labels sentences.

    Attributes:
        name: the tagger's name, which is that of its module.
        learns_from_documents: whether training batches must contain whole documents.
        needs_trees: whether every sentence must have tags, heads and relations.
        has_scores: whether labels have probabilities; without them, tables have nulls in their place.
        trees: the source of the trees the tagger was trained on: the signature of a parser, ``gold`` or ``unknown``;
            None for a tagger that needs no trees.
        parser: the bundled parser that splits texts for it, where a job names none; None for the default one.
        calibration: of the probabilities; None if they are not calibrated.
    """

    name: ClassVar[str]
    config_class: ClassVar[type[TaggerConfig]]
    learns_from_documents: ClassVar[bool] = False
    needs_trees: ClassVar[bool] = False
    has_scores: ClassVar[bool] = True

    def __init__(self, config: ConfigT, vocabulary: Vocabulary) -> None:
        """Set up what all taggers share; raise EncoderMissingError if the configured encoder cannot be found."""
        super().__init__()
        self.config = config
        self.vocabulary = vocabulary
        self.batch_encoder = BatchEncoder(vocabulary, trees=self.needs_trees)
        self.trees: str | None = UNKNOWN_TREES if self.needs_trees else None
        self.parser: str | None = None
        self.calibration: Calibration | None = None
        self.device = torch.device("cpu")
        self.tuned_encoder: TunedEncoder | None = None
        self.encoder_width: int | None = None
        if config.encoder is not None and config.encoder.tuned:
            self.tuned_encoder = TunedEncoder(config.encoder)
            self.encoder_width = self.tuned_encoder.width
        elif config.encoder is not None:
            self.encoder_width = load_encoder(config.encoder, self.device.type).width

    @property
    def entity_types(self) -> tuple[str, ...]:
        """The entity types the tagger knows; none for a tagger of word labels."""
        return self.vocabulary.entity_types

    @property
    def threshold(self) -> float | None:
        """Nats above which stage two decides; None for a one-stage tagger."""
        return None

    def set_threshold(self, threshold: float) -> None:
        """Set the tagger's own threshold, in nats, which is saved with it; does nothing for a one-stage tagger."""

    @abstractmethod
    def loss(self, batch: Batch) -> Tensor:
        """Return the training loss of a batch with gold labels, a scalar."""

    @abstractmethod
    def fill(self, table: TokenTable, windows: Sequence[Window], call: Call) -> None:
        """Fill the table for windows of its documents; runs under ``torch.inference_mode``."""

    def parameter_groups(self) -> Mapping[str, list[nn.Parameter]]:
        """Return disjoint groups of all trainable parameters; each is trained by the optimizer of the same name."""
        encoder = self.encoder_group()
        tuned = {id(parameter) for group in encoder.values() for parameter in group}
        parameters = (parameter for parameter in self.parameters() if parameter.requires_grad)
        return {"tagger": [parameter for parameter in parameters if id(parameter) not in tuned], **encoder}

    def encoder_group(self) -> Mapping[str, list[nn.Parameter]]:
        """Return the group ``encoder`` with a tuned encoder's parameters; no group without a tuned encoder."""
        if self.tuned_encoder is None:
            return {}
        return {"encoder": [parameter for parameter in self.tuned_encoder.parameters() if parameter.requires_grad]}

    def move_to(self, device: str) -> "Tagger":
        """Move the tagger to a device, ``cpu`` or ``cuda``; on CUDA, TF32 is switched off for exact fp32 products."""
        if device != "cpu":
            torch.backends.cuda.matmul.allow_tf32 = False
            torch.backends.cudnn.allow_tf32 = False
        self.device = torch.device(device)
        return self.to(self.device)

    def predict_documents(
        self,
        documents: Sequence[Sequence[Sentence]],
        options: PredictOptions = DEFAULT_OPTIONS,
        *,
        candidates: bool = False,
        on_batch: OnBatch | None = None,
    ) -> list[list[Prediction]]:
        """Label documents, each a sequence of sentences of any length; return one prediction per sentence, by document.

        Args:
            candidates: whether to return the other spans that the calibration's guarantee says to show; ConfigError if
                it has none.
            on_batch: called before each batch and after the last; what it raises ends the call.
        """
        if not candidates:
            return self.tabulate(documents, options, on_batch=on_batch).predictions(self.vocabulary)
        if self.calibration is None or self.calibration.guarantee is None:
            raise ConfigError(f"{self.name}: expected a tagger with a guarantee (concord calibrate --recall)")
        table = self.tabulate(documents, options, keep="distributions", on_batch=on_batch)
        return table.predictions(self.vocabulary, candidates_from=self.calibration.guarantee.threshold)

    def tabulate(
        self,
        documents: Sequence[Sequence[Sentence]],
        options: PredictOptions = DEFAULT_OPTIONS,
        *,
        keep: Literal["labels", "distributions"] = "labels",
        calibrated: bool = True,
        on_batch: OnBatch | None = None,
    ) -> TokenTable:
        """Do the work of ``predict_documents`` and return the table, whose labels are in the tagger's own scheme.

        ``keep="distributions"`` also stores the whole label distribution of each word; ``calibrated=False`` leaves the
        tagger's calibration aside. A tagger in training mode raises ValueError; one without scores raises ConfigError
        where distributions are asked for.
        """
        self._check_mode("predict_documents")
        if keep == "distributions" and not self.has_scores:
            raise ConfigError(
                f"{self.name}: expected a tagger that gives its labels probabilities; this one gives none that could "
                "be calibrated, or that another tagger could learn from"
            )
        labels = len(self.vocabulary.labels) if keep == "distributions" else None
        calibration = self.calibration if calibrated else None
        table = TokenTable.empty(documents, calibration=calibration, labels=labels, scored=self.has_scores)
        with torch.inference_mode():
            self.fill(table, self.windows(documents), Call(options=options, on_batch=on_batch))
        return table

    def windows(self, documents: Sequence[Sequence[Sentence]]) -> list[Window]:
        """Return the windows of documents, with the passages that the encoder reads."""
        longest, overlap = self.config.window_words, self.config.window_overlap
        return cut_windows(self.with_passages(documents), longest=longest, overlap=overlap)

    def with_passages(self, documents: Sequence[Sequence[Sentence]]) -> Sequence[Sequence[Sentence]]:
        """Return documents with the passages that the encoder reads; the same ones where it reads sentences alone."""
        words = self.config.encoder.passage_words if self.config.encoder is not None else 0
        return [with_passages(document, words) for document in documents] if words else documents

    def attention_maps(self, document: Sequence[Sentence]) -> list[dict[str, AttentionMap]]:
        """Return the attention maps of a document, for figures; sentences are read in one piece, however long.

        There is one mapping per sentence, name of an attention -> map; it is empty for a sentence without words and for
        a tagger without attention. A tagger in training mode raises ValueError.
        """
        self._check_mode("attention_maps")
        sentences = [sentence for sentence in self.with_passages([document])[0] if sentence.words]
        if not sentences:
            return [{} for _ in document]
        with torch.inference_mode():
            unlabelled = [unlabelled_part(sentence, 0, len(sentence.words)) for sentence in sentences]
            attention = self.attend(self.encode(unlabelled, documents=[0] * len(unlabelled)))
        words = tuple(word for sentence in sentences for word in sentence.words)
        columns = {"labels": self.vocabulary.labels, "document": words}
        maps = []
        for row, sentence in enumerate(sentences):
            names, length = columns | {"words": sentence.words}, len(sentence.words)
            maps.append({name: _cut_map(entry, row, length, names[entry.over]) for name, entry in attention.items()})
        remaining = iter(maps)
        return [next(remaining) if sentence.words else {} for sentence in document]

    def attend(self, batch: Batch) -> Mapping[str, AttentionWeights]:
        """Return the attention weights of a batch that is one document; runs under ``torch.inference_mode``."""
        del batch
        return {}

    def batch_words(self, options: PredictOptions) -> int:
        """Return the most words in a batch on the tagger's device."""
        return options.batch_words * (1 if self.device.type == "cpu" else _LARGER_ON_GPU)

    def batches(
        self, windows: Sequence[Window], *, batch_words: int, on_batch: OnBatch | None = None
    ) -> Iterator[tuple[Sequence[Window], Batch]]:
        """Yield batches of windows by length, longest first; depends on windows and ``batch_words`` alone."""
        ordered = sorted(windows, key=lambda window: -len(window.sentence.words))
        words = sum(len(window.sentence.words) for window in windows)
        start = done = stop = 0
        forms: Forms | None = None
        while start < len(ordered):
            if on_batch is not None:
                on_batch(done, words)
            longest = len(ordered[start].sentence.words)
            chosen = ordered[start : start + max(1, batch_words // longest)]
            if start + len(chosen) > stop:
                shared = _first_sentences(ordered[start:], words=max(_SHARED_WORDS, batch_words))
                forms = self.batch_encoder.encode_forms(shared, device=self.device, shared=True)
                stop = start + len(shared)
            start += len(chosen)
            done += sum(len(window.sentence.words) for window in chosen)
            yield chosen, self.encode([window.sentence for window in chosen], forms=forms)
        if on_batch is not None:
            on_batch(done, words)

    def encode(
        self, sentences: Sequence[Sentence], *, documents: Sequence[int] | None = None, forms: Forms | None = None
    ) -> Batch:
        """Encode sentences as a batch on the tagger's device; raise TreeError if it needs trees that they lack.

        The forms, if given, contain all words of the sentences.
        """
        if self.needs_trees:
            check_trees(sentences)
        return self.batch_encoder.encode_batch(sentences, documents=documents, forms=forms, device=self.device)

    def encoder_features(self, batch: Batch) -> Tensor | None:
        """Return the encoder's features, shape ``(B, T, E)``, with gradient if tuned; None without an encoder."""
        if self.config.encoder is None:
            return None
        if self.tuned_encoder is not None:
            return self.tuned_encoder([sentence.words for sentence in batch.sentences], batch.mask.shape[1])
        passages = [sentence.passage or Passage(sentence.words) for sentence in batch.sentences]
        missing = [passage for passage in dict.fromkeys(passages) if passage.features is None]
        found = {passage: passage.features for passage in passages if passage.features is not None}
        encoder = load_encoder(self.config.encoder, self.device.type)
        for passage, features in zip(missing, encoder.features([passage.words for passage in missing]), strict=True):
            found[passage] = features
            # A training reads its sentences again and again: what it keeps, the encoder does (see keep_features).
            if not self.training:
                passage.features = features
        vectors = [
            found[passage][sentence.passage_start :][: len(sentence.words)]
            for sentence, passage in zip(batch.sentences, passages, strict=True)
        ]
        return batch.pad(torch.cat(vectors).to(self.device))

    def keep_features(self, documents: Sequence[Sequence[Sentence]]) -> None:
        """Compute a frozen encoder's features of these sentences once; does nothing without a frozen encoder."""
        if self.config.encoder is not None and self.tuned_encoder is None:
            sentences = [sentence for document in self.with_passages(documents) for sentence in document]
            read = [sentence.passage.words if sentence.passage else sentence.words for sentence in sentences]
            load_encoder(self.config.encoder, self.device.type).cache(read)

    def autocast(self, precision: Precision) -> AbstractContextManager[Any]:
        """Return the context in which networks compute."""
        if precision == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def _check_mode(self, method: str) -> None:
        if self.training:
            raise ValueError(f"{method}: expected a tagger in evaluation mode; call eval() first")


def _first_sentences(windows: Sequence[Window], *, words: int) -> list[Sentence]:
    """Return the sentences of the first windows, until they have this many words."""
    totals = accumulate((len(window.sentence.words) for window in windows), initial=0)
    return [window.sentence for window, total in zip(windows, totals, strict=False) if total < words]


def _cut_map(attention: AttentionWeights, row: int, length: int, columns: tuple[str, ...]) -> AttentionMap:
    """Return one sentence of a batch without its padding."""
    return AttentionMap(weights=attention.weights[row, :, :length, : len(columns)].float().cpu(), columns=columns)
