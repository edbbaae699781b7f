"""Parse and tag with one thread and with two in turns, on an idle machine and on one whose cores are busy.

Command: python benchmarks/bench_threads.py --input ../shared/data/text/us_presidents.jsonl.zst

On the busy machine one process a core computes endlessly. A ratio is the seconds of one thread over those of two,
pair by pair: above 1 the second thread is a gain. Our parser limits itself to one thread; here that is switched off.
"""

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from unittest.mock import patch

import torch
from corpora import read_texts, write_chunks
from environment import environment, spread

from concord.models.checkpoint import load_tagger
from concord.pipeline.config import ParserConfig, TaggerRunConfig
from concord.pipeline.documents import Document
from concord.pipeline.parsing import parser as every_parser
from concord.pipeline.parsing.stanza_parser import StanzaParser
from concord.pipeline.worker.tag_stage import TagStage
from concord.workflows.registry.resolve_tagger import find_tagger


def compute_without_end() -> None:
    """Keep a core busy."""
    while True:
        pass


@contextmanager
def busy_cores(count: int) -> Iterator[None]:
    """Keep `count` processes computing."""
    processes = [multiprocessing.Process(target=compute_without_end, daemon=True) for _ in range(count)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def measure(work: Callable[[], object], *, pairs: int) -> dict[str, object]:
    """Time a function with one thread and with two, in alternating order."""
    seconds: dict[int, list[float]] = {1: [], 2: []}
    for pair in range(pairs):
        for threads in (1, 2) if pair % 2 == 0 else (2, 1):
            torch.set_num_threads(threads)
            started = time.monotonic()
            work()
            seconds[threads].append(round(time.monotonic() - started, 2))
    ratios = [one / two for one, two in zip(seconds[1], seconds[2], strict=True)]
    return {
        "seconds_with_one": seconds[1],
        "seconds_with_two": seconds[2],
        "ratio": spread(ratios, digits=2),
    }


def main() -> None:
    """Measure and print."""
    arguments_of = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments_of.add_argument("--input", type=Path, required=True)
    arguments_of.add_argument("--model", default="entities_en")
    arguments_of.add_argument("--documents", type=int, default=40)
    arguments_of.add_argument("--words", type=int, default=300, help="words of a document")
    arguments_of.add_argument("--pairs", type=int, default=3)
    arguments = arguments_of.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "documents.jsonl")
        write_chunks([arguments.input], source, words=arguments.words, count=arguments.documents)
        documents = [
            Document(doc_id=doc_id, text=text, source_uri=source.name, source_position=position)
            for position, (doc_id, text) in enumerate(read_texts(source))
        ]
    parser = StanzaParser(ParserConfig())
    stage = TagStage(load_tagger(find_tagger(arguments.model).folder), TaggerRunConfig())
    with patch.object(every_parser, "torch_threads", nullcontext):
        parsed = parser.parse(documents)
        stage.run(parsed)
        cores = len(os.sched_getaffinity(0))
        found: dict[str, object] = {}
        for state, processes in (("at_rest", 0), ("busy", cores)):
            with busy_cores(processes):
                found[state] = {
                    "parse": measure(lambda: parser.parse(documents), pairs=arguments.pairs),
                    "tag": measure(lambda: stage.run(parsed), pairs=arguments.pairs),
                }
    report = {
        **environment("bench_threads.py"),
        "config": {
            "input": arguments.input.name,
            "documents": len(documents),
            "words_a_document": arguments.words,
            "model": arguments.model,
        },
        **found,
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
