"""A parser and a tagger that need no weights, and a worker made of them.

Words in the text control them. ``PARSERFAULT`` and ``TAGGERFAULT`` raise, ``LOSTTEXT`` returns wrong offsets,
``SURROGATE`` a lemma that cannot be written, ``GREEDY`` runs out of memory; ``KILLER`` kills the process while it
parses and ``TAGKILLER`` while it tags, ``CROWDKILLER`` unless it is parsed alone, ``STALLER`` never ends,
``DEVICELOSS`` loses the device of the tagger.

A file ``fakes.json`` beside the input, which workers of every executor can read, may hold FakeSettings.
"""

import json
import os
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from concord.models.data.outputs import DEFAULT_OPTIONS, AttentionMap, OnBatch, Prediction, PredictOptions
from concord.models.data.sentence import Sentence
from concord.models.labels import decode_spans
from concord.pipeline.documents import DeadLetter, Document, ParsedDocument, ParsedSentence, ParsedWord
from concord.pipeline.errors import StoreError
from concord.pipeline.identity import ComponentIdentity
from concord.pipeline.output.manifest import CommitRecord
from concord.pipeline.plan import Plan, Shard
from concord.pipeline.worker.shard_worker import ShardWorker

PARSER = ComponentIdentity(name="fake_parser", version="1", digest="1" * 64)
LONGEST_PIECE = 8


@dataclass(frozen=True, kw_only=True)
class FakeSettings:
    """How the fakes behave.

    Attributes:
        seconds: for which the parser sleeps per document.
        once: a file that KILLER, TAGKILLER, STALLER and DEVICELOSS create; they do nothing if it exists.
        documents: most documents that the parser has memory for.
        batch_words: most words that the tagger has memory for.
        batch_noise: by which the uncertainty of each word rises with each document of its batch, as rounding does.
    """

    seconds: float = 0.0
    once: str | None = None
    documents: int | None = None
    batch_words: int | None = None
    batch_noise: float = 0.0

    def is_due(self) -> bool:
        """Return whether a destructive word takes effect."""
        if self.once is None:
            return True
        if Path(self.once).exists():
            return False
        Path(self.once).touch()
        return True


class FakeParser:
    """Splits at white space and full stops, unless ``parse_one`` does; a word's head is the word before it."""

    def __init__(
        self, settings: FakeSettings | None = None, *, parse_one: Callable[[Document], ParsedDocument] | None = None
    ) -> None:
        self._settings = settings or FakeSettings()
        self._parse_one = parse_one or parsed_document

    def parse(
        self, documents: Sequence[Document], *, on_batch: OnBatch | None = None
    ) -> list[ParsedDocument | DeadLetter]:
        settings = self._settings
        if settings.documents is not None and len(documents) > settings.documents:
            raise MemoryError(f"{len(documents)} documents")
        for document in documents:
            self._act_on(document.text.split())
            if "CROWDKILLER" in document.text and len(documents) > 1:
                os.kill(os.getpid(), signal.SIGKILL)
        for done in range(len(documents)):
            time.sleep(settings.seconds)
            if on_batch is not None:
                on_batch(done + 1, len(documents))
        return [self._parse_one(document) for document in documents]

    def _act_on(self, words: Sequence[str]) -> None:
        if "PARSERFAULT" in words:
            raise RuntimeError("the parser cannot do this")
        if "GREEDY" in words:
            raise _out_of_memory("a document too large")
        if "KILLER" in words and self._settings.is_due():
            os.kill(os.getpid(), signal.SIGKILL)
        while "STALLER" in words and self._settings.is_due():
            time.sleep(1)


class FakeTagger:
    """Labels runs of capitalized words as persons, with an uncertainty that depends on the length of the word."""

    threshold = 0.35
    calibration = None

    def __init__(self, settings: FakeSettings | None = None) -> None:
        self.calls: list[list[list[Sentence]]] = []
        self._settings = settings or FakeSettings()

    def predict_documents(
        self, documents: Sequence[Sequence[Sentence]], options: PredictOptions = DEFAULT_OPTIONS, **call: Any
    ) -> list[list[Prediction]]:
        self.calls.append([list(document) for document in documents])
        words = {word for document in documents for sentence in document for word in sentence.words}
        if "TAGGERFAULT" in words:
            raise ValueError("the tagger cannot do this")
        if "TAGKILLER" in words and self._settings.is_due():
            os.kill(os.getpid(), signal.SIGKILL)
        if "DEVICELOSS" in words and self._settings.is_due():
            import torch

            raise torch.AcceleratorError("CUDA error: unspecified launch failure")
        if self._settings.batch_words is not None and options.batch_words > self._settings.batch_words:
            raise _out_of_memory(f"{options.batch_words} words")
        noise = self._settings.batch_noise * len(documents)
        threshold = options.threshold or self.threshold
        return [[_predict(sentence, threshold, noise=noise) for sentence in document] for document in documents]


class AttentiveTagger(FakeTagger):
    """Attends from each word to the first word of the document with 0.7 and to the last with 0.3."""

    def attention_maps(self, document: Sequence[Sentence]) -> list[dict[str, AttentionMap]]:
        words = tuple(word for sentence in document for word in sentence.words)
        import torch

        weights = torch.zeros(len(words))
        weights[0], weights[-1] = 0.7, 0.3
        return [
            {"memory": AttentionMap(weights=weights.expand(1, len(sentence.words), -1), columns=words)}
            for sentence in document
        ]


def _out_of_memory(message: str) -> Exception:
    # The workers of most tests need no torch, which takes seconds to import.
    import torch

    return torch.OutOfMemoryError(message)


def _settings(plan: Plan) -> FakeSettings:
    settings = Path(plan.config.input).with_name("fakes.json")
    return FakeSettings(**json.loads(settings.read_text())) if settings.exists() else FakeSettings()


def build_fake_worker(plan: Plan) -> ShardWorker:
    """Build a worker around the fakes."""
    settings = _settings(plan)
    return ShardWorker(plan, parser=FakeParser(settings), tagger=FakeTagger(settings))


def build_worker_without_memory_on_its_device(plan: Plan) -> ShardWorker:
    """Build a worker whose parser has no memory for any document unless all is computed on the CPU."""
    is_on_cpu = plan.config.parser.device == plan.config.tagger.device == "cpu"
    return ShardWorker(plan, parser=FakeParser(FakeSettings(documents=None if is_on_cpu else 0)), tagger=FakeTagger())


def build_worker_that_only_tags(plan: Plan) -> ShardWorker:
    """Build a worker whose parser fails on every document."""

    def fail(_document: Document) -> ParsedDocument:
        raise RuntimeError("the parser cannot do this")

    return ShardWorker(plan, parser=FakeParser(parse_one=fail), tagger=FakeTagger(_settings(plan)))


def build_worker_that_loses(plan: Plan) -> ShardWorker:
    """Build a worker whose tag stage drops the last document of every shard."""
    worker = build_fake_worker(plan)
    wrap_stage(worker.tag_stage, lambda run, records, **call: run(records, **call)[:-1])
    return worker


def wrap_stage(stage: Any, around: Callable[..., Any]) -> None:
    """Replace a stage's ``run`` by a function that is called with the original and its arguments."""
    stage.run = partial(around, stage.run)


def build_worker_without_room(plan: Plan, *, shards: int = 0) -> ShardWorker:
    """Build a worker that finds no space to write to after some shards."""
    worker = build_fake_worker(plan)
    committed: list[Shard] = []

    def commit_some(commit: Callable[..., CommitRecord], shard: Shard, *outcomes: Any, **step: Any) -> CommitRecord:
        if len(committed) == shards:
            raise StoreError(f"shard {shard.name}: no space")
        committed.append(shard)
        return commit(shard, *outcomes, **step)

    wrap_stage(worker.commit_stage, commit_some)
    return worker


def build_no_worker(plan: Plan) -> ShardWorker:
    """Raise as for a model that cannot be loaded."""
    raise OSError(f"no weights for {plan.tagger.name}")


def parsed_document(
    document: Document,
    *,
    token: str = r"\S+",
    forms: Mapping[str, Sequence[str]] = MappingProxyType({}),
    fields: Mapping[str, Any] = MappingProxyType({}),
) -> ParsedDocument:
    """Parse a document as FakeParser does.

    Args:
        token: the pattern of a token.
        forms: the words of multi-word tokens.
        fields: other values for fields of every word.
    """
    sentences: list[ParsedSentence] = []
    words: list[ParsedWord] = []
    continues = False
    for match in re.finditer(token, document.text):
        text = " ".join(match.group().split())
        for form in forms.get(text, (text,)):
            word = parsed_word(match.start(), match.group(), len(words), word=form, lemma=form.lower())
            words.append(word._replace(**_FAULTS.get(text, {}), **fields))
        ends = text.endswith(".")
        if ends or len(words) >= LONGEST_PIECE:
            sentences.append(ParsedSentence(words=tuple(words), continues=continues))
            words, continues = [], not ends
    if words:
        sentences.append(ParsedSentence(words=tuple(words), continues=continues))
    return ParsedDocument(document=document, sentences=tuple(sentences))


_FAULTS: Mapping[str, Mapping[str, Any]] = {"LOSTTEXT": {"text": "LOST"}, "SURROGATE": {"lemma": "\ud800"}}


def parsed_word(start: int, text: str, head: int, **fields: Any) -> ParsedWord:
    """Return a word at an offset; fields have other values than those that follow from its text and its head."""
    relation = "dep" if head else "root"
    word = ParsedWord(start, start + len(text), text, text, text.lower(), "X", None, None, head, relation)
    return word._replace(**fields)


def _predict(sentence: Sentence, threshold: float, *, noise: float = 0.0) -> Prediction:
    labels: list[str] = []
    for word in sentence.words:
        inside = labels and labels[-1] != "O"
        labels.append(("I-PER" if inside else "B-PER") if word[0].isupper() else "O")
    uncertainty = tuple(len(word) % 8 / 10 + noise for word in sentence.words)
    spans = decode_spans(labels, "BIO")
    return Prediction(
        labels=tuple(labels),
        draft_labels=("O",) * len(labels),
        probabilities=tuple(1 - value / 2 for value in uncertainty),
        margins=tuple(1 - value for value in uncertainty),
        uncertainty=uncertainty,
        refined=tuple(value > threshold for value in uncertainty),
        spans=spans,
        confidences=tuple(1 - max(uncertainty[span.start : span.end]) / 4 for span in spans),
    )
