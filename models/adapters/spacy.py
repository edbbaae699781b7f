"""A spaCy pipeline, whose entities are those of its NER over Concord's words: ``--model spacy:NAME_OR_FOLDER``.

Each sentence is a document of the pipeline, whose words are joined by single spaces. The pipeline reads the sentences
of a document in one call, apart from other documents, since its arithmetic may depend on what it reads at once. It
computes on the CPU, and its labels have no probabilities.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar, Self

from torch import Tensor
from typing_extensions import override

from concord.models.adapters.base import AdaptedConfig, AdaptedTagger
from concord.models.adapters.libraries import find_spacy_pipeline, load_spacy_pipeline
from concord.models.data.batch import Batch
from concord.models.data.sentence import Window
from concord.models.data.vocabulary import Vocabulary
from concord.models.errors import ConfigError, ModelError
from concord.models.labels import BIO, Span, encode_spans
from concord.models.taggers.base import Call, TaggerConfig
from concord.models.taggers.token_table import TokenTable

# What no entity depends on, unless a component with rules may look at it.
_UNNEEDED = {"tagger", "morphologizer", "parser", "senter", "lemmatizer", "trainable_lemmatizer", "attribute_ruler"}
_RULES = {"entity_ruler", "span_ruler"}


class SpacyTagger(AdaptedTagger[AdaptedConfig]):
    """The components of a pipeline that its entities depend on."""

    name: ClassVar[str] = "spacy"
    config_class: ClassVar[type[TaggerConfig]] = AdaptedConfig
    library: ClassVar[str] = "spacy"
    has_scores: ClassVar[bool] = False

    def __init__(self, config: AdaptedConfig, vocabulary: Vocabulary) -> None:
        super().__init__(config, vocabulary)
        self._pipeline = _load(Path(config.source))
        self._numbers = {label: number for number, label in enumerate(vocabulary.labels)}

    @override
    @classmethod
    def find(cls, source: str) -> Path:
        return find_spacy_pipeline(source)

    @override
    @classmethod
    def adapt(cls, source: str) -> Self:
        folder = cls.find(source)
        pipeline = _load(folder)
        kinds = {kind for name in _writers(pipeline) for kind in pipeline.pipe_labels.get(name, ())}
        if not kinds:
            raise ModelError(
                f"{folder}: expected a pipeline with an NER, got {', '.join(pipeline.pipe_names) or 'none'}"
            )
        vocabulary = Vocabulary(words=(), characters=(), labels=BIO.label_set(kinds), scheme=BIO)
        return cls(AdaptedConfig(source=str(folder), scheme=BIO.name), vocabulary).eval()

    @override
    @classmethod
    def source_files(cls, folder: Path) -> Sequence[Path]:
        return sorted(path for path in folder.rglob("*") if path.is_file())

    @override
    def loss(self, batch: Batch) -> Tensor:
        raise ConfigError("tagger: a spaCy pipeline is trained by spaCy; Concord only runs it")

    @override
    def fill(self, table: TokenTable, windows: Sequence[Window], call: Call) -> None:
        words, done = sum(len(window.sentence.words) for window in windows), 0
        for _, group in groupby(windows, key=lambda window: window.document):
            document = list(group)
            if call.on_batch is not None:
                call.on_batch(done, words)
            for window, labels in zip(document, self._read(document), strict=True):
                table.write_unscored(window, [self._numbers[label] for label in labels])
                done += len(labels)
        if call.on_batch is not None:
            call.on_batch(done, words)

    def _read(self, windows: Sequence[Window]) -> Iterator[tuple[str, ...]]:
        """Yield the labels of the words of each window."""
        from spacy.tokens import Doc

        # It does not accept half a surrogate pair.
        texts = [[word.encode(errors="replace").decode() for word in window.sentence.words] for window in windows]
        docs = [Doc(self._pipeline.vocab, words=words) for words in texts]
        for doc in self._pipeline.pipe(docs):
            spans = [Span(entity.start, entity.end, entity.label_) for entity in doc.ents]
            yield encode_spans(spans, len(doc), "BIO")


def _load(folder: Path) -> Any:
    """Load what the entities of a pipeline depend on."""
    pipeline = load_spacy_pipeline(folder)
    if not any(pipeline.get_pipe_meta(name).factory in _RULES for name in pipeline.pipe_names):
        for name in pipeline.pipe_names:
            if pipeline.get_pipe_meta(name).factory in _UNNEEDED:
                pipeline.disable_pipe(name)
        # Nor is an embedding that only these share.
        for name, component in pipeline.pipeline:
            listening = getattr(component, "listening_components", None)
            if listening is not None and not set(listening) & set(pipeline.pipe_names):
                pipeline.disable_pipe(name)
    return pipeline


def _writers(pipeline: Any) -> Iterator[str]:
    """Yield the components that set entities."""
    for name in pipeline.pipe_names:
        meta = pipeline.get_pipe_meta(name)
        if "doc.ents" in meta.assigns or meta.factory in _RULES:
            yield name
