"""Load and time one of the systems that ``bench_peers.py`` compares, in the environment that holds its packages.

A peer is one function below ``@peer``, which loads it and returns what to call. This file runs in environments without
Concord, so it imports nothing but the standard library before a peer is chosen.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

Task = Literal["whole", "parse", "tag"]
"""From raw text to trees and entities, from raw text to trees, from given sentences of words to entities."""
Documents = Sequence[Sequence[Sequence[str]]]
"""Words by document and sentence."""

ENCODING = "utf-8"
PARSER_PROCESSORS = "pos,lemma,depparse"
BATCH_TEXTS = 64


class Loaded(NamedTuple):
    """What to call of a peer that is loaded.

    Attributes:
        run: annotates a list of texts and returns the number of words; for the task ``tag``: labels documents.
        gold: returns a row for each sentence of documents: BIO labels, or for the task ``parse`` a list of tag, head
            (1-based, 0 for the root) and relation of each word. None if another peer of the same model tells it.
    """

    run: Callable[[Any], Any]
    gold: Callable[[Documents], list[Any]] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Peer:
    """One system that does one task.

    Attributes:
        home: the environment that holds it.
        model: what it loads: the name of a bundled model, or of a training below the folder of the benchmark.
        also: another training that it loads.
    """

    name: str
    task: Task
    home: str
    model: str
    also: str | None
    load: Callable[[Path], Loaded]

    @property
    def key(self) -> str:
        """What it is called in a run."""
        return f"{self.name}/{self.task}"

    @property
    def needs(self) -> set[str]:
        """The environment and the models without which it cannot run."""
        return {name for name in (self.home, self.model, self.also) if name is not None}

    @property
    def source(self) -> str:
        """What its scores depend on: peers of one model share them."""
        return f"{self.home}/{self.model}"


PEERS: dict[str, Peer] = {}


def peer(
    name: str, *, task: Task, home: str, model: str, also: str | None = None
) -> Callable[[Callable[[Path], Loaded]], Any]:
    """Register a function that loads a peer from a path; several registrations may share one function."""

    def register(load: Callable[[Path], Loaded]) -> Callable[[Path], Loaded]:
        entry = Peer(name=name, task=task, home=home, model=model, also=also, load=load)
        PEERS[entry.key] = entry
        return load

    return register


@peer("Concord entities_en", task="whole", home="concord", model="entities_en")
@peer("Concord entities_en_small", task="whole", home="concord", model="entities_en_small")
def concord_whole(model: Path) -> Loaded:
    """Load parser and tagger; ``pipe`` is the batch call of the Python interface."""
    import concord

    nlp = concord.load(model)

    def run(texts: Sequence[str]) -> int:
        words = 0
        for doc in nlp.pipe(texts, batch_size=BATCH_TEXTS):
            if doc.error is not None:
                raise ValueError(doc.error.message)
            words += sum(len(sentence.tokens) for sentence in doc.sentences)
        return words

    return Loaded(run)


@peer("Concord parser_en", task="parse", home="concord", model="parser_en")
def concord_parse(model: Path) -> Loaded:
    """Load the parser that every run uses."""
    from concord.pipeline.config import ParserConfig
    from concord.pipeline.documents import Document, ParsedDocument
    from concord.pipeline.parsing.stanza_parser import StanzaParser

    parser = StanzaParser(ParserConfig(package=model.name))

    def run(texts: Sequence[str]) -> int:
        documents = [
            Document(doc_id=str(number), text=text, source_uri="memory", source_position=number)
            for number, text in enumerate(texts)
        ]
        parsed = [outcome for outcome in parser.parse(documents) if isinstance(outcome, ParsedDocument)]
        if len(parsed) < len(texts):
            raise ValueError(f"{len(texts) - len(parsed)} texts could not be parsed")
        return sum(len(sentence.words) for document in parsed for sentence in document.sentences)

    def gold(documents: Documents) -> list[Any]:
        trees = parser.parse_words(list(_sentences(documents)))
        return [[(word.upos, word.head, word.deprel) for word in tree] for tree in trees]

    return Loaded(run, gold)


@peer("Concord entities_en", task="tag", home="concord", model="entities_en")
@peer("Concord entities_en_small", task="tag", home="concord", model="entities_en_small")
def concord_tag(model: Path) -> Loaded:
    """Load the tagger alone."""
    from concord.models.checkpoint import load_tagger
    from concord.models.data.sentence import Sentence

    tagger = load_tagger(model)

    def run(documents: Documents) -> list[Any]:
        sentences = [[Sentence(words=tuple(words)) for words in document] for document in documents]
        predicted = tagger.predict_documents(sentences)
        return [prediction.labels for document in predicted for prediction in document]

    return Loaded(run, run)


@peer("Stanza", task="parse", home="stanza", model="parser_en")
def stanza_parse(model: Path) -> Loaded:
    """Load Stanza's own pipeline with the weights of Concord's parser; ``bulk_process`` is its batch call."""
    import stanza
    import torch

    torch.set_num_threads(1)
    options = {"dir": str(model), "package": "default", "download_method": None, "use_gpu": False, "verbose": False}
    nlp = stanza.Pipeline("en", processors=f"tokenize,mwt,{PARSER_PROCESSORS}", **options)

    def run(texts: Sequence[str]) -> int:
        return sum(document.num_words for document in nlp.bulk_process(list(texts)))

    def gold(documents: Documents) -> list[Any]:
        pretokenized = stanza.Pipeline(
            "en", processors=f"tokenize,{PARSER_PROCESSORS}", tokenize_pretokenized=True, **options
        )
        found = pretokenized([list(words) for words in _sentences(documents)])
        return [[(word.upos, word.head, word.deprel) for word in sentence.words] for sentence in found.sentences]

    return Loaded(run, gold)


@peer("spaCy", task="whole", home="spacy", model="spacy_entities", also="spacy_trees")
def spacy_whole(model: Path) -> Loaded:
    """Load tagger and parser, and add the entity recognizer with vectors of its own, as spaCy's small pipelines do."""
    import spacy

    nlp = spacy.load(model.with_name("spacy_trees") / "model-best")
    entities = spacy.load(model / "model-best")
    entities.replace_listeners("tok2vec", "ner", ["model.tok2vec"])
    nlp.add_pipe("ner", source=entities)
    return Loaded(_spacy_texts(nlp))


@peer("spaCy", task="parse", home="spacy", model="spacy_trees")
def spacy_parse(model: Path) -> Loaded:
    """Load tagger and parser."""
    import spacy

    nlp = spacy.load(model / "model-best")

    def gold(documents: Documents) -> list[Any]:
        docs = nlp.pipe(_spacy_docs(nlp, documents))
        return [tree for doc, document in zip(docs, documents, strict=True) for tree in _trees(doc, document)]

    return Loaded(_spacy_texts(nlp), gold)


@peer("spaCy", task="tag", home="spacy", model="spacy_entities")
@peer("spaCy, more sets", task="tag", home="spacy", model="spacy_entities_more")
def spacy_tag(model: Path) -> Loaded:
    """Load the entity recognizer."""
    import spacy

    nlp = spacy.load(model / "model-best")

    def run(documents: Documents) -> list[Any]:
        docs = nlp.pipe(_spacy_docs(nlp, documents), batch_size=BATCH_TEXTS)
        return [labels for doc, document in zip(docs, documents, strict=True) for labels in _bio(doc, document)]

    return Loaded(run, run)


@peer("Flair", task="tag", home="flair", model="flair_entities")
def flair_tag(model: Path) -> Loaded:
    """Load the sequence tagger; ``predict`` of a list is its batch call."""
    import torch
    from flair.data import Sentence
    from flair.models import SequenceTagger

    torch.set_num_threads(1)
    tagger = SequenceTagger.load(str(model / "final-model.pt"))

    def run(documents: Documents) -> list[Any]:
        sentences = [Sentence(list(words)) for words in _sentences(documents)]
        tagger.predict(sentences, mini_batch_size=32)
        rows = []
        for sentence in sentences:
            labels = ["O"] * len(sentence)
            for span in sentence.get_spans("ner"):
                _fill(labels, span.tokens[0].idx - 1, span.tokens[-1].idx, span.tag)
            rows.append(labels)
        return rows

    return Loaded(run, run)


def _sentences(documents: Documents) -> Iterator[Sequence[str]]:
    return (words for document in documents for words in document)


def _fill(labels: list[str], start: int, end: int, kind: str) -> None:
    labels[start] = f"B-{kind}"
    labels[start + 1 : end] = [f"I-{kind}"] * (end - start - 1)


def _spacy_texts(nlp: Any) -> Callable[[Sequence[str]], int]:
    def run(texts: Sequence[str]) -> int:
        docs = nlp.pipe(texts, batch_size=BATCH_TEXTS)
        return sum(not token.is_space for doc in docs for token in doc)

    return run


def _spacy_docs(nlp: Any, documents: Documents) -> Iterator[Any]:
    """Yield documents whose words and sentences are those given."""
    from spacy.tokens import Doc

    for document in documents:
        words = [word for sentence in document for word in sentence]
        starts = [place == 0 for sentence in document for place in range(len(sentence))]
        yield Doc(nlp.vocab, words=words, sent_starts=starts)


def _bio(doc: Any, document: Sequence[Sequence[str]]) -> Iterator[list[str]]:
    """Yield the BIO labels of each sentence; an entity never crosses the given sentences."""
    labels = ["O"] * len(doc)
    for entity in doc.ents:
        _fill(labels, entity.start, entity.end, entity.label_)
    yield from (labels[start:end] for start, end in _bounds(document))


def _trees(doc: Any, document: Sequence[Sequence[str]]) -> Iterator[list[tuple[str, int, str]]]:
    for start, end in _bounds(document):
        heads = [0 if token.head.i == token.i else token.head.i - start + 1 for token in doc[start:end]]
        yield [(token.tag_, head, token.dep_) for token, head in zip(doc[start:end], heads, strict=True)]


def _bounds(document: Sequence[Sequence[str]]) -> Iterator[tuple[int, int]]:
    end = 0
    for words in document:
        start, end = end, end + len(words)
        yield start, end


def _peak_mb() -> float:
    """Return the most memory that this program had resident; ``ru_maxrss`` would include that of its parent."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) / 1024


def _timed(call: Callable[[], Any]) -> tuple[dict[str, float], Any]:
    started, used = time.perf_counter(), time.process_time()
    found = call()
    return {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - used}, found


def serve(chosen: Peer, model: Path, requests: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Load a peer and yield an answer, then yield one for each request, a line of JSON.

    A request names a file of inputs, and whether they are gold documents to be returned with what was found in them.
    """
    started, loaded = _timed(partial(chosen.load, model))
    yield {**started, "peak_mb": _peak_mb()}
    for line in requests:
        request = json.loads(line)
        inputs = json.loads(Path(request["inputs"]).read_text(encoding=ENCODING))
        if request["gold"]:
            yield {"rows": loaded.gold(inputs) if loaded.gold else None}
            continue
        inputs = inputs["words" if chosen.task == "tag" else "texts"]
        times, found = _timed(partial(loaded.run, inputs))
        yield {**times, "found": found if isinstance(found, int) else None, "peak_mb": _peak_mb()}


def main() -> None:
    """Serve the peer of the command line, KEY MODEL CORE: requests from the input, answers to the output."""
    key, model, core = sys.argv[1:]
    # Libraries print to the standard output, which is kept for answers.
    answers = os.fdopen(os.dup(1), "w", encoding=ENCODING)
    os.dup2(2, 1)
    os.sched_setaffinity(0, {int(core)})
    for answer in serve(PEERS[key], Path(model), sys.stdin):
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
