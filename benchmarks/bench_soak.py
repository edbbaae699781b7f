"""Disturb runs by seeded random faults and compare them with undisturbed ones; see concord_testing/soak.py.

Command: make soak SECONDS=1800 SEED=1 INPUT='../shared/data/text/*.jsonl.zst'

Without --input the archive is made of invented words. With --workers fake, parser and tagger have no weights. A round
with findings ends the soak with exit code 1; its schedule is printed as JSON and its outputs are kept. --seed and
--round repeat it.
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

from concord_testing.heads import ray_head
from concord_testing.soak import Round, Schedule, SoakSetup, draw, soak
from corpora import read_texts, write_chunks
from environment import environment

from concord.pipeline.worker.shard_worker import build_worker
from concord.workflows.registry import find_entity_tagger

_WORDS = ("Anna", "Bob", "Geneva", "New", "Smith", "York", "cat", "quickly", "walking", "the", "on", "and", "a")


def main() -> None:
    """Draw, disturb, compare, print."""
    arguments = _arguments()
    folder = Path(tempfile.mkdtemp(prefix="soak"))
    started = time.monotonic()
    with ExitStack() as stack:
        head = stack.enter_context(ray_head()) if arguments.executors == "both" else None
        documents = _documents(arguments, folder)
        real: dict[str, Any] = {}
        if arguments.workers == "real":
            real = _real_workers(arguments.model)
        setup = SoakSetup(
            documents=documents,
            folder=folder,
            settings={
                "planning": {"shard_bytes": arguments.shard_bytes},
                "tagger": {"model": arguments.model},
            },
            head=head,
            **real,
        )
        rounds = soak(
            setup, _schedules(arguments, ray=head is not None), seconds=arguments.seconds, on_round=_report_round
        )
    failed = [done for done in rounds if done.findings]
    for done in failed:
        print(json.dumps(asdict(done.schedule)), file=sys.stderr)
        print(f"archive, outputs and log are in {folder}", file=sys.stderr)
    if not failed:
        shutil.rmtree(folder)
    report = _report(arguments, rounds, documents=len(documents), seconds=time.monotonic() - started)
    print(json.dumps(report, indent=1))
    raise SystemExit(1 if failed else 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1800, help="the last round is finished")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--round", type=int, help="only this round of the seed")
    parser.add_argument(
        "--input", type=Path, action="append", default=[], help="JSON Lines files to cut documents from"
    )
    parser.add_argument("--documents", type=int, default=60)
    parser.add_argument("--words", type=int, default=60, help="words of a document")
    parser.add_argument("--shard-bytes", type=int, default=2_000)
    parser.add_argument("--workers", choices=["real", "fake"], default="real")
    parser.add_argument("--model", default="entities_en_small")
    parser.add_argument("--executors", choices=["both", "local"], default="both")
    return parser.parse_args()


def _real_workers(model: str) -> dict[str, Any]:
    """Return the workers, which load parser and tagger as those of any run do."""
    return {"tagger": find_entity_tagger(model), "parser": None, "build": build_worker, "build_on_ray": build_worker}


def _documents(arguments: argparse.Namespace, folder: Path) -> list[tuple[str, str]]:
    if not arguments.input:
        chance = random.Random(arguments.seed)
        return [
            (f"d{number}", " ".join(chance.choices(_WORDS, k=arguments.words)) + ".")
            for number in range(arguments.documents)
        ]
    chunks = folder / "chunks.jsonl"
    write_chunks(arguments.input, chunks, words=arguments.words, count=arguments.documents)
    return list(read_texts(chunks))


def _schedules(arguments: argparse.Namespace, *, ray: bool) -> Iterator[Schedule]:
    if arguments.round is not None:
        yield draw(arguments.seed, arguments.round, ray=ray)
    else:
        yield from (draw(arguments.seed, number, ray=ray) for number in count())


def _report_round(done: Round, seconds: float) -> None:
    faults = ", ".join(f"{event.kind}{'' if event.hit else ' (missed)'}" for event in done.events)
    print(f"round {done.schedule.number}, {done.schedule.executor}, {seconds:.0f} s: {faults}", file=sys.stderr)
    for finding in done.findings:
        print(f"  {finding}", file=sys.stderr, flush=True)


def _report(arguments: argparse.Namespace, rounds: list[Round], *, documents: int, seconds: float) -> dict[str, object]:
    events = [event for done in rounds for event in done.events]
    hits = Counter(event.kind for event in events if event.hit)
    return {
        **environment("bench_soak.py"),
        "config": {
            "input": [path.name for path in arguments.input],
            "documents": documents,
            "words_a_document": arguments.words,
            "shard_bytes": arguments.shard_bytes,
            "workers": arguments.workers,
            "model": arguments.model if arguments.workers == "real" else None,
            "seed": arguments.seed,
        },
        "seconds": round(seconds),
        "rounds": len(rounds),
        "rounds_by_executor": dict(Counter(done.schedule.executor for done in rounds)),
        "runs": sum(len(done.schedule.runs) for done in rounds),
        "edits": sum(len(run.edits) for done in rounds for run in done.schedule.runs),
        "faults": dict(sorted(Counter(event.kind for event in events).items())),
        "faults_that_hit": dict(sorted(hits.items())),
        "shards_compared": sum(done.shards_compared for done in rounds),
        "reads": sum(done.reads for done in rounds),
        "rounds_with_findings": sum(bool(done.findings) for done in rounds),
        "trials": [
            {
                "round": done.schedule.number,
                "executor": done.schedule.executor,
                "events": [asdict(event) for event in done.events],
                "findings": done.findings,
            }
            for done in rounds
        ],
    }


if __name__ == "__main__":
    main()
