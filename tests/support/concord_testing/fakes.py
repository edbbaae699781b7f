"""A parser and a tagger that need no weights, and a worker made of them.

Words of the text steer them. ``PARSERFAULT`` and ``TAGGERFAULT`` raise, ``LOSTTEXT`` gives wrong offsets, ``SURROGATE``
a lemma that cannot be written, ``GREEDY`` finds no memory; ``KILLER`` kills the process while it parses and
``TAGKILLER`` while it tags, ``STOPPER`` stops it, ``SLOWPOKE`` takes a minute to parse.

A file ``fakes.json`` beside the input, which workers of every executor can read, may hold the settings of Steering.
"""

import json
import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from concord.models.data.sentence import Sentence
from concord.models.labels import decode_spans
from concord.models.outputs import Prediction
from concord.pipeline.documents import (
    DeadLetter,
    Document,
    ParsedDocument,
    ParsedSentence,
    ParsedWord,
)
from concord.pipeline.errors import StoreError
from concord.pipeline.identity import ComponentIdentity
from concord.pipeline.output.manifest import ShardReport
from concord.pipeline.plan import Plan, Shard
from concord.pipeline.worker.shard_worker import ParseWorker, ShardWorker

PARSER = ComponentIdentity(name="fake_parser", version="1", digest="1" * 64)
LONGEST_PIECE = 8


@dataclass(frozen=True, kw_only=True)
class Steering:
    """How the fakes behave.

    Attributes:
        seconds: that the parser sleeps for each document.
        once: a file; KILLER, TAGKILLER, STOPPER and SLOWPOKE do harm only until it is there, and make it.
        documents: more than so many at once find no memory in the parser.
        batch_words: larger batches find no memory in the tagger.
    """

    seconds: float = 0.0
    once: str | None = None
    documents: int | None = None
    batch_words: int | None = None

    def is_due(self) -> bool:
        """Say whether harm is to be done."""
        if self.once is None:
            return True
        if Path(self.once).exists():
            return False
        Path(self.once).touch()
        return True


class FakeParser:
    """White space parts words, a full stop ends a sentence, each word hangs on the one before it."""

    def __init__(self, steering: Steering | None = None) -> None:
        self._steering = steering or Steering()

    def parse(self, documents: Sequence[Document]) -> list[ParsedDocument | DeadLetter]:
        steering = self._steering
        if steering.documents is not None and len(documents) > steering.documents:
            raise MemoryError(f"{len(documents)} documents")
        for document in documents:
            self._harm(document.text.split())
        time.sleep(steering.seconds * len(documents))
        return [parsed_document(document) for document in documents]

    def _harm(self, words: Sequence[str]) -> None:
        if "PARSERFAULT" in words:
            raise RuntimeError("the parser cannot do this")
        if "GREEDY" in words:
            raise torch.OutOfMemoryError("a document too large")
        if "KILLER" in words and self._steering.is_due():
            os.kill(os.getpid(), signal.SIGKILL)
        if "STOPPER" in words and self._steering.is_due():
            os.kill(os.getpid(), signal.SIGSTOP)
        if "SLOWPOKE" in words and self._steering.is_due():
            time.sleep(60)


class FakeTagger:
    """Runs of capitalised words are persons; the uncertainty goes by the word's length."""

    threshold = 0.35
    calibration = None

    def __init__(self, steering: Steering | None = None) -> None:
        self.calls: list[list[list[Sentence]]] = []
        self._steering = steering or Steering()

    def predict_documents(self, documents: Sequence[Sequence[Sentence]], **settings: Any) -> list[list[Prediction]]:
        self.calls.append([list(document) for document in documents])
        words = {word for document in documents for sentence in document for word in sentence.words}
        if "TAGGERFAULT" in words:
            raise ValueError("the tagger cannot do this")
        if "TAGKILLER" in words and self._steering.is_due():
            os.kill(os.getpid(), signal.SIGKILL)
        if self._steering.batch_words is not None and settings["batch_words"] > self._steering.batch_words:
            raise torch.OutOfMemoryError(f"{settings['batch_words']} words")
        return [[_predict(sentence, settings["threshold"] or self.threshold) for sentence in doc] for doc in documents]


class NoParser:
    """Parses nothing."""

    def parse(self, documents: Sequence[Document]) -> list[ParsedDocument | DeadLetter]:
        raise RuntimeError(f"{len(documents)} documents were to come parsed")


def _steering(plan: Plan) -> Steering:
    settings = Path(plan.config.input).with_name("fakes.json")
    return Steering(**json.loads(settings.read_text())) if settings.exists() else Steering()


def build_fake_worker(plan: Plan) -> ShardWorker:
    """Build a worker around the fakes."""
    steering = _steering(plan)
    return ShardWorker(plan, parser=FakeParser(steering), tagger=FakeTagger(steering))


def build_fake_parse_worker(plan: Plan) -> ParseWorker:
    """Build a worker around the fake parser."""
    return ParseWorker(plan, parser=FakeParser(_steering(plan)))


def build_worker_that_only_tags(plan: Plan) -> ShardWorker:
    """Build a worker whose parser refuses every document."""
    return ShardWorker(plan, parser=NoParser(), tagger=FakeTagger(_steering(plan)))


def build_worker_that_loses(plan: Plan) -> ShardWorker:
    """Build a worker one of whose stages drops the last document of every shard."""
    worker = build_fake_worker(plan)
    wrap_stage(worker.tag_stage, lambda run, records: run(records)[:-1])
    return worker


def wrap_stage(stage: Any, around: Callable[..., Any]) -> None:
    """Replace a stage's ``run`` by a function that is given the original and its arguments."""
    stage.run = partial(around, stage.run)


def build_worker_without_room(plan: Plan) -> ShardWorker:
    """Build a worker that finds no space."""
    worker = build_fake_worker(plan)
    wrap_stage(worker.commit_stage, _find_no_space)
    return worker


def _find_no_space(_run: Callable[..., ShardReport], shard: Shard, *_: Any, **_named: Any) -> ShardReport:
    raise StoreError(f"shard {shard.name}: no space")


def build_worker_that_dies_reading(plan: Plan) -> ShardWorker:
    """Build a worker that is killed when it reads the last shard."""
    worker = build_fake_worker(plan)

    def die_at_last(run: Callable[..., Any], shard: Shard, **parses: Any) -> Any:
        if shard == plan.shards[-1]:
            os.kill(os.getpid(), signal.SIGKILL)
        return run(shard, **parses)

    wrap_stage(worker.read_stage, die_at_last)
    return worker


def build_no_worker(plan: Plan) -> ShardWorker:
    """Fail as a model that cannot be loaded does."""
    raise OSError(f"no weights for {plan.tagger.name}")


def parsed_document(document: Document) -> ParsedDocument:
    """Parse one document as FakeParser does."""
    sentences: list[ParsedSentence] = []
    words: list[ParsedWord] = []
    continues = False
    for match in re.finditer(r"\S+", document.text):
        words.append(_word(match.start(), match.group(), len(words)))
        ends = match.group().endswith(".")
        if ends or len(words) == LONGEST_PIECE:
            sentences.append(ParsedSentence(words=tuple(words), continues=continues))
            words, continues = [], not ends
    if words:
        sentences.append(ParsedSentence(words=tuple(words), continues=continues))
    return ParsedDocument(document=document, sentences=tuple(sentences))


def _word(start: int, text: str, number: int) -> ParsedWord:
    return ParsedWord(
        start_char=start + (text == "LOSTTEXT"),
        end_char=start + len(text),
        text=text,
        word=text,
        lemma="\ud800" if text == "SURROGATE" else text.lower(),
        upos="X",
        xpos=None,
        feats=None,
        head=number,
        deprel="root" if number == 0 else "dep",
    )


def _predict(sentence: Sentence, threshold: float) -> Prediction:
    labels: list[str] = []
    for word in sentence.words:
        inside = labels and labels[-1] != "O"
        labels.append(("I-PER" if inside else "B-PER") if word[0].isupper() else "O")
    uncertainty = tuple(len(word) % 8 / 10 for word in sentence.words)
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
