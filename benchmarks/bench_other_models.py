"""Score and time spaCy's en_core_web_sm as a tagger of Concord, and by itself.

Command: python benchmarks/bench_other_models.py --pipeline en_core_web_sm --corpora ../shared/data/labelled
    --input ../shared/data/text/us_presidents.jsonl.zst --input ../shared/data/text/gutenberg_chapters.jsonl.zst
    --input ../shared/data/text/factbook.jsonl.zst --summary benchmarks/results/other_models_cpu_202611.json

``--pipeline`` is an installed one or its folder, as after ``spacy:``. Both label the gold words of five dev parts: by
itself the pipeline reads a document at once, in Concord sentence by sentence. Its types count as those that Concord's
taggers know, as in ``bench_peers.py``.

Both read the same words of the same passages, in turns, in one process and thread, and no passage comes twice. By
itself it is ``nlp.pipe`` over documents of these words, with only the components that entities depend on. In Concord it
is a whole run of ``concord annotate`` but for loading and parsing: planning, reading, tagging, Parquet tables, manifest
and, unless ``report`` is false, the HTML report. All seconds are of processor time.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any, cast
from unittest.mock import patch

import spacy
import torch
from bench_peers import PARTS, kind_of, line, write_rounds
from corpora import read_texts
from english_types import TYPES, scored
from environment import environment, quartiles
from peers import bio_labels
from spacy.tokens import Doc

from concord.models.adapters.libraries import find_spacy_pipeline
from concord.models.bundles.checkpoint import load_tagger
from concord.models.data.outputs import OnBatch
from concord.models.evaluation.metrics import gold_sequences, span_scores
from concord.pipeline.annotate import annotate
from concord.pipeline.config import ParserConfig
from concord.pipeline.documents import Document, ParsedDocument
from concord.pipeline.job import ResolvedJob
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.parsing.parser import Parser
from concord.pipeline.parsing.resolve_parser import load_parser
from concord.pipeline.plan import Plan
from concord.pipeline.resources import bound_caches
from concord.pipeline.worker.shard_worker import ShardWorker
from concord.workflows.annotation.job import read_annotate_job
from concord.workflows.corpora import read_corpora
from concord.workflows.registry import find_entity_tagger

IN_CONCORD = ("parse", "tag", "without_report", "concord")
Words = Sequence[Sequence[Sequence[str]]]
"""By document and sentence."""


class Alone:
    """The pipeline by itself, with only the components that entities depend on."""

    def __init__(self, folder: Path) -> None:
        self._nlp = spacy.load(folder)
        self._nlp.select_pipes(enable="ner")
        self.vocab = self._nlp.vocab

    def docs(self, documents: Words) -> list[Any]:
        """Return documents of the words, with their sentences."""
        return [
            Doc(
                self._nlp.vocab,
                words=[word for sentence in document for word in sentence],
                sent_starts=[place == 0 for sentence in document for place in range(len(sentence))],
            )
            for document in documents
        ]

    def read(self, docs: Sequence[Any]) -> list[Any]:
        """Find the entities of documents."""
        return list(self._nlp.pipe(docs))


class StoredParses:
    """A parser that returns what another has found."""

    def __init__(self, parses: Sequence[ParsedDocument]) -> None:
        self._parses = {parsed.document.doc_id: parsed for parsed in parses}

    def parse(self, documents: Sequence[Document], *, on_batch: OnBatch | None = None) -> list[Any]:
        """Return the parses of documents by their names."""
        del on_batch
        return [replace(self._parses[document.doc_id], document=document) for document in documents]


class InConcord:
    """The pipeline as a tagger."""

    def __init__(self, model: str) -> None:
        self._settings = {"input": "", "output": "", "executor.threads": 1, "tagger.model": model}
        self._found = find_entity_tagger(model)
        self.tagger = load_tagger(self._found.folder)

    def annotate(self, source: Path, parses: Sequence[ParsedDocument], output: str, *, report: bool) -> None:
        """Annotate a file as ``concord annotate`` does."""

        def build(plan: Plan) -> ShardWorker:
            return ShardWorker(plan, parser=StoredParses(parses), tagger=self.tagger)

        values = {**self._settings, "input": str(source), "output": output, "report": report}
        job = ResolvedJob.of(read_annotate_job(None, values=values), OutputFolder(output), self._found)
        done = annotate(job, build=build)
        assert (done.dead_letters, done.words) == (0, sum(parsed.words for parsed in parses))


def seconds_of(call: Callable[[], Any]) -> float:
    """Return the processor time of a call."""
    started = time.process_time()
    call()
    return time.process_time() - started


def measure(source: Path, parser: Parser, alone: Alone, inside: InConcord, *, first: int) -> dict[str, float]:
    """Return words, and seconds of the pipeline alone, of runs in Concord, of their tagging, and of parsing before.

    Args:
        first: which of the calls comes first.
    """
    documents = [
        Document(doc_id=doc_id, text=text, source_uri=str(source), source_position=number)
        for number, (doc_id, text) in enumerate(read_texts(source))
    ]
    parses: list[ParsedDocument] = []
    parse = seconds_of(lambda: parses.extend(cast("list[ParsedDocument]", parser.parse(documents))))
    words = [[[word.word for word in sentence.words] for sentence in parsed.sentences] for parsed in parses]
    seconds = {"words": float(sum(parsed.words for parsed in parses)), "parse": parse, "tag": 0.0}

    def read_alone() -> None:
        docs = alone.docs(words)
        seconds["alone"] = seconds_of(lambda: alone.read(docs))

    fill = inside.tagger.fill

    def timed_fill(*arguments: Any) -> None:
        seconds["tag"] += seconds_of(lambda: fill(*arguments)) / 2  # in two runs

    def read_inside(name: str, *, report: bool) -> None:
        with TemporaryDirectory() as output, patch.object(inside.tagger, "fill", timed_fill):
            seconds[name] = seconds_of(lambda: inside.annotate(source, parses, output, report=report))

    calls: list[Callable[[], object]] = [
        read_alone,
        partial(read_inside, "concord", report=True),
        partial(read_inside, "without_report", report=False),
    ]
    for call in (*calls[first:], *calls[:first]):
        call()
    return seconds


def score(corpora: Path, alone: Alone, inside: InConcord) -> dict[str, dict[str, float]]:
    """Return by part the F1 of the pipeline by itself and in Concord."""
    scores: dict[str, dict[str, float]] = {"alone": {}, "concord": {}}
    for part in PARTS:
        gold = read_corpora([str(path) for path in (corpora / part).glob("dev.*")], labels=TYPES)
        words = [[sentence.words for sentence in document] for document in gold]
        docs = alone.read(alone.docs(words))
        predicted = inside.tagger.predict_documents(gold)
        labelled = [
            Doc(alone.vocab, words=list(prediction_words), ents=list(prediction.labels))
            for document, predictions in zip(words, predicted, strict=True)
            for prediction_words, prediction in zip(document, predictions, strict=True)
        ]
        found = {
            "alone": [bio_labels(sentence) for doc in docs for sentence in doc.sents],
            "concord": [bio_labels(doc[:]) for doc in labelled],
        }
        for system, labels in found.items():
            scores[system][part] = round(span_scores(gold_sequences(gold), scored(labels))["all"].f1, 1)
    return scores


def speeds(rows: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Return words a second, and what Concord takes beyond the parse, as a share of what the pipeline takes alone."""
    return {
        **{name: quartiles([row["words"] / row[name] for row in rows], digits=0) for name in ("alone", *IN_CONCORD)},
        "overhead_percent": {
            name: quartiles([100 * (row[name] / row["alone"] - 1) for row in rows], digits=1) for name in IN_CONCORD[1:]
        },
    }


def tables(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the rows of two tables in Markdown: scores, and speed."""
    yield line("F1", *PARTS.values(), "mean")
    yield line(*["---"] * (len(PARTS) + 2))
    for system, scores in report["f1"].items():
        yield line(system, *scores.values(), round(mean(scores.values()), 1))
    yield "\n" + line("words/s (more time than alone)", "alone", "tagging", "run without report", "run", "parsing")
    yield line(*["---"] * 6)
    for kind, row in report["texts"].items():
        inside = [f"{row[name]['median']:,.0f} ({more['median']} %)" for name, more in row["overhead_percent"].items()]
        yield line(kind, f"{row['alone']['median']:,.0f}", *inside, f"{row['parse']['median']:,.0f}")


def main() -> None:
    """Measure, write the JSON and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pipeline", default="en_core_web_sm")
    parser.add_argument("--corpora", type=Path, required=True)
    parser.add_argument("--input", type=Path, required=True, action="append")
    parser.add_argument("--summary", type=Path, required=True)
    parser.add_argument("--words", type=int, default=20_000, help="of each kind of text in each round")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()

    bound_caches()
    torch.set_num_threads(1)
    model = f"spacy:{options.pipeline}"
    alone, inside = Alone(find_spacy_pipeline(options.pipeline)), InConcord(model)
    concord_parser = load_parser(ParserConfig())
    found: dict[str, list[dict[str, float]]] = {}
    with TemporaryDirectory() as folder:
        for source in options.input:
            files = write_rounds(source, Path(folder), words=options.words, rounds=options.rounds)
            found[kind_of(source)] = [
                measure(path, concord_parser, alone, inside, first=number % 3) for number, path in enumerate(files)
            ][1:]  # the first is the warm-up
    report = {
        **environment("bench_other_models.py"),
        "spacy": spacy.__version__,
        "config": {"threads": 1, "rounds": options.rounds, "words": options.words},
        "f1": score(options.corpora, alone, inside),
        "texts": {
            kind: speeds(rows) for kind, rows in [*found.items(), ("all", [*chain.from_iterable(found.values())])]
        },
    }
    options.summary.write_text(json.dumps(report, indent=1) + "\n")
    print(*tables(report), sep="\n")


if __name__ == "__main__":
    main()
