"""Tag with two threads that spin or sleep while they wait, at rest and on a machine whose cores are busy.

Command: python benchmarks/bench_waiting.py

Each measurement is a process of its own, since OpenMP reads ``OMP_WAIT_POLICY`` once: ``spinning`` leaves it unset, as
torch would find it, ``sleeping`` sets what Concord sets, ``one_thread`` tags with one thread. The three take turns. On
the busy machine one process per core computes endlessly. A ratio compares words per second, turn by turn.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from bench_threads import busy_cores
from environment import environment, spread

from concord.pipeline.threads import WAIT_POLICY

NEWS = Path("examples/news/news.jsonl")
VARIANTS: dict[str, tuple[int, dict[str, str]]] = {
    "spinning": (2, {}),
    "sleeping": (2, WAIT_POLICY),
    "one_thread": (1, {}),
}


def words_per_second(threads: int, model: str, *, documents: int) -> float:
    """Tag the sample collection once to warm up and once for the clock."""
    import torch

    from concord.models.checkpoint import load_tagger
    from concord.pipeline.config import ParserConfig, TaggerRunConfig
    from concord.pipeline.documents import Document, ParsedDocument
    from concord.pipeline.parsing.stanza_parser import StanzaParser
    from concord.pipeline.worker.tag_stage import TagStage
    from concord.workflows.registry.resolve_tagger import find_tagger

    torch.set_num_threads(threads)
    read = [
        Document(doc_id=doc_id, text=text, source_uri=NEWS.name, source_position=number)
        for number, (doc_id, text) in enumerate(islice(_texts(), documents))
    ]
    parsed = StanzaParser(ParserConfig()).parse(read)
    sentences = [sentence for item in parsed if isinstance(item, ParsedDocument) for sentence in item.sentences]
    words = sum(len(sentence.words) for sentence in sentences)
    stage = TagStage(load_tagger(find_tagger(model).folder), TaggerRunConfig())
    stage.run(parsed[:1])
    started = time.monotonic()
    stage.run(parsed)
    return words / (time.monotonic() - started)


def _texts() -> Iterator[tuple[str, str]]:
    for line in NEWS.read_bytes().splitlines():
        with suppress(ValueError):  # one line of the sample is broken on purpose
            record = json.loads(line)
            yield record["id"], record["text"]


def measure(model: str, *, documents: int, turns: int) -> dict[str, object]:
    """Run the variants in turns, each in a process of its own."""
    found: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for _ in range(turns):
        for name, (threads, policy) in VARIANTS.items():
            inherited = {key: value for key, value in os.environ.items() if key not in WAIT_POLICY}
            command = [
                sys.executable,
                __file__,
                "--model",
                model,
                "--documents",
                str(documents),
                "--child",
                str(threads),
            ]
            done = subprocess.run(command, env=inherited | policy, capture_output=True, text=True, check=True)
            found[name].append(round(float(done.stdout), 1))
    ratios = [sleeping / spinning for sleeping, spinning in zip(found["sleeping"], found["spinning"], strict=True)]
    return {"words_per_second": found, "sleeping_over_spinning": spread(ratios, digits=2)}


def main() -> None:
    """Measure and print."""
    arguments_of = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments_of.add_argument("--model", default="entities_en")
    arguments_of.add_argument("--documents", type=int, default=13)
    arguments_of.add_argument("--turns", type=int, default=3)
    arguments_of.add_argument("--busy-only", action="store_true", help="where the machine cannot be at rest")
    arguments_of.add_argument("--child", type=int, help=argparse.SUPPRESS)
    arguments = arguments_of.parse_args()
    if arguments.child:
        print(words_per_second(arguments.child, arguments.model, documents=arguments.documents))
        return
    found: dict[str, object] = {}
    cores = len(os.sched_getaffinity(0))
    for state, processes in (("at_rest", 0), ("busy", cores))[arguments.busy_only :]:
        with busy_cores(processes):
            found[state] = measure(arguments.model, documents=arguments.documents, turns=arguments.turns)
    config = {"input": str(NEWS), "documents": arguments.documents, "model": arguments.model}
    print(json.dumps({**environment("bench_waiting.py"), "config": config, **found}, indent=1))


if __name__ == "__main__":
    main()
