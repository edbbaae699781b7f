"""Damage files of every format and compression, 10,000 of each format, and read them.

Command: python benchmarks/bench_broken_files.py > benchmarks/results/broken_files_cpu_202611.json

Three in four files have one to eight bits flipped, the others are truncated. Each sample is read in a process of its
own. ``failures`` counts the files of which a reader raised an error, ended the process, took longer than the limit, or
lost a record without a dead letter. Of a file without compression whose format does not say where it ends, a cut
between two records cannot be seen; ``cut`` counts these. Seconds are processor time.

With ``--hostile 10``, a folder of one good file of each format and of files that end, stall or fill the process that
reads them is annotated instead, in one process and on Ray, each with the bytes of the other. ``most_bytes`` is the
memory of all processes of a run together (PSS, which counts shared pages once); seconds are wall time.
"""

import argparse
import json
import math
import multiprocessing
import signal
import subprocess
import tempfile
import time
from collections import Counter
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from concord_runs import command_environment, command_line, part_hashes, read_table
from concord_testing.broken_files import Sample, damage_and_read, hostile_files, samples
from concord_testing.processes import descendants
from environment import environment

LIMIT_SECONDS = 20


def main() -> None:
    """Run all samples and print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10_000, help="damaged files of each format")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hostile", type=int, metavar="SCALE", help="annotate hostile files, 10 for default limits")
    parser.add_argument("--set", action="append", default=[], help="a setting of such a run")
    options = parser.parse_args()
    if options.hostile:
        found_hostile = _annotate_hostile(options.hostile, options.set)
        print(json.dumps({**environment("bench_broken_files.py"), **found_hostile}, indent=1))
        return
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


def _annotate_hostile(scale: int, settings: list[str]) -> dict[str, Any]:
    measured = "Annotate a folder of good, damaged and hostile files of every format in one process and on Ray."
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "in")
        source.mkdir()
        for name, content in hostile_files(scale).items():
            (source / name).write_bytes(content)
        files = sorted(source.iterdir())
        sizes = {"files": len(files), "bytes": sum(path.stat().st_size for path in files)}
        runs = [_annotate(source, Path(folder, executor), executor, settings) for executor in ("local", "ray")]
        local, ray = (part_hashes(Path(folder, executor)) for executor in ("local", "ray"))
    return {"measured": measured, **sizes, "equal_bytes": local == ray, "parts": len(local), "runs": runs}


def _annotate(source: Path, output: Path, executor: str, settings: list[str]) -> dict[str, Any]:
    always = ("max_dead_letters=1", "max_lost_files=99", "reader.id_field=key", "planning.shard_bytes=50000")
    options = ["--model", "entities_en_small", "--threads", "1", "--executor", executor, "--actors", "1"]
    options += [part for setting in (*always, *settings) for part in ("--set", setting)]
    started, most = time.monotonic(), 0
    process = subprocess.Popen(
        command_line("annotate", str(source), "-o", str(output), *options),
        env=command_environment(),
        stdout=subprocess.DEVNULL,
    )
    while process.poll() is None:
        most = max(most, sum(map(_own_bytes, (process.pid, *descendants(process.pid)))))
        time.sleep(0.05)
    errors = read_table(output, "errors", ("source_uri", "error")).to_pylist()
    return {
        "executor": executor,
        "exit_code": process.returncode,
        "seconds": round(time.monotonic() - started, 1),
        "most_bytes": most,
        "documents": read_table(output, "documents", ("doc_id",)).num_rows,
        "errors": Counter(row["error"] for row in errors),
        "of": {
            Path(row["source_uri"]).name: row["error"]
            for row in errors
            if row["error"] in ("extraction_died", "took_too_long", "took_too_much_memory")
        },
    }


def _own_bytes(pid: int) -> int:
    """Return the memory of a process, with its share of that of others; 0 if it has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    return 0


if __name__ == "__main__":
    main()
