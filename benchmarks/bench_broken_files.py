"""Damage files of every format and compression, 10,000 of each format, and read them.

Command: python benchmarks/bench_broken_files.py > benchmarks/results/broken_files_cpu_202611.json

Three in four files have one to eight bits flipped, the others are truncated. Each sample is read in a process of its
own. ``failures`` counts the files of which a reader raised an error, ended the process, took longer than the limit, or
lost a record without a dead letter. Of a file without compression whose format does not say where it ends, a cut
between two records cannot be seen; ``cut`` counts these. Seconds are processor time.
"""

import argparse
import json
import math
import multiprocessing
import signal
import tempfile
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from concord_testing.broken_files import Sample, damage_and_read, samples
from environment import environment

LIMIT_SECONDS = 20


def main() -> None:
    """Run all samples and print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10_000, help="damaged files of each format")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    found = samples()
    of_format = Counter(sample.format for sample in found.values())
    rows = [
        {
            "sample": name,
            "format": sample.format,
            "bytes": len(sample.content),
            **_run(sample, rounds=math.ceil(options.rounds / of_format[sample.format]), seed=options.seed),
        }
        for name, sample in found.items()
    ]
    total: Counter[str] = Counter()
    for row in rows:
        total.update({key: row[key] for key in ("files", "failures", "dead letters", "changed", "same", "cut")})
    result = {**environment("bench_broken_files.py"), "seed": options.seed, "total": total, "samples": rows}
    print(json.dumps(result, indent=1))


def _run(sample: Sample, *, rounds: int, seed: int) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_read, args=(sample, rounds, seed, sender))
    process.start()
    sender.close()
    try:
        found: dict[str, Any] = receiver.recv()
    except EOFError:
        found = {"fault": "the process ended"}
    process.join()
    names = ("same", "changed", "dead letters", "cut")
    return {"files": rounds, "failures": int("fault" in found), **dict.fromkeys(names, 0), **found}


def _read(sample: Sample, rounds: int, seed: int, sender: Connection) -> None:
    """Send the outcomes of a sample, or its first fault."""
    slowest = 0.0
    since = time.process_time()

    def on_read() -> None:
        nonlocal slowest, since
        now = time.process_time()
        slowest, since = max(slowest, now - since), now
        signal.alarm(LIMIT_SECONDS)

    # Its default is to end the process, also within a library that never returns.
    signal.alarm(LIMIT_SECONDS)
    with tempfile.TemporaryDirectory() as folder:
        try:
            outcomes = damage_and_read(sample, Path(folder) / sample.name, rounds=rounds, seed=seed, on_read=on_read)
        except Exception as error:
            sender.send({"fault": f"{type(error).__name__}: {error}"})
            return
    signal.alarm(0)
    seconds = round(time.process_time(), 1)
    sender.send({**outcomes, "seconds": seconds, "slowest_file_seconds": round(slowest, 3)})


if __name__ == "__main__":
    main()
