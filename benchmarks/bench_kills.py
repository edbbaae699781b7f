"""Kill runs at seeded moments, run the same command again, and compare the bytes with those of an undisturbed run.

Command: python benchmarks/bench_kills.py --input ../shared/data/text/us_presidents.jsonl.zst

A run goes through steps that are visible from outside: its plan is written, each shard is committed, its manifest is
written. A moment is a step and a share of the time that the undisturbed run took from there to the next, both drawn
from the seed. SIGKILL goes to the driver of a local run or of one on Ray, or to one of two busy actors.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Literal

from concord_runs import command_environment, command_line, concord, model_options, part_hashes
from corpora import write_chunks
from environment import environment

from concord.pipeline.output.verify import verify

POLL_SECONDS = 0.005
PATIENCE_SECONDS = 600.0
ACTOR = b"ray::ShardActor"


@dataclass(frozen=True, kw_only=True, slots=True)
class Kill:
    """When to kill what; ``delay`` is a share of the time to the next step."""

    executor: Literal["local", "ray"]
    victim: Literal["driver", "actor"]
    step: int
    delay: float


@dataclass(frozen=True, slots=True)
class Process:
    """A process, identified by its number, which may be used again, and its start in clock ticks."""

    pid: int
    started: str


class Bench:
    """The collection, the command, and the bytes and times of an undisturbed run."""

    def __init__(self, source: Path, folder: Path, *, model: str, shard_bytes: int) -> None:
        self._source = source
        self._folder = folder
        self._options = [
            *model_options(model),
            *("--set", "executor.threads=1"),
            *("--set", f"planning.shard_bytes={shard_bytes}"),
        ]
        self.gaps: list[float] = []
        self.expected: dict[str, str] = {}

    def run_undisturbed(self) -> None:
        """Record the expected bytes and how long each step takes."""
        output = self._folder / "undisturbed"
        started = [time.monotonic()]
        process = self._start(output, "local")
        while process.poll() is None:
            while steps_done(output) >= len(started):
                started.append(time.monotonic())
            time.sleep(POLL_SECONDS)
        if process.returncode != 0:
            raise RuntimeError(f"the undisturbed run ended with exit code {process.returncode}")
        started.append(time.monotonic())
        self.gaps = [after - before for before, after in pairwise(started)]
        self.expected = all_hashes(output)

    @property
    def steps(self) -> int:
        """The number of steps of a run: plan, shards, manifest."""
        return len(self.gaps) - 1

    def kill(self, trial: Kill, *, number: int, choice: random.Random) -> dict[str, object]:
        """Kill a run, run the command again and compare."""
        output = self._folder / f"killed{number}"
        process = self._start(output, trial.executor)
        wait_for(lambda: steps_done(output) >= trial.step or process.poll() is not None)
        time.sleep(trial.delay * self.gaps[trial.step])
        family = list(descendants(process.pid))
        steps = steps_done(output)
        if trial.victim == "driver":
            was_alive = process.poll() is None
            process.kill()
        else:
            actors = [child for child in family if command_of(child.pid).startswith(ACTOR)]
            was_alive = bool(actors)
            if actors:
                os.kill(choice.choice(actors).pid, signal.SIGKILL)
        exit_code = process.wait(timeout=PATIENCE_SECONDS)
        again = concord("annotate", str(self._source), "--output", str(output), *self._arguments(trial.executor))
        end_all(family)
        return {
            "executor": trial.executor,
            "victim": trial.victim,
            "after_step": trial.step,
            "delay_seconds": round(trial.delay * self.gaps[trial.step], 3),
            "hit": was_alive,
            "steps_done_when_hit": steps,
            "exit_code": exit_code,
            "rerun_exit_code": again.exit_code,
            "shards_found_done_by_the_rerun": again.values.get("done_before"),
            "findings_of_verify": len(verify(output, deep=True)),
            "equal_bytes": all_hashes(output) == self.expected,
        }

    def _start(self, output: Path, executor: str) -> subprocess.Popen[bytes]:
        command = command_line("annotate", str(self._source), "--output", str(output), *self._arguments(executor))
        return subprocess.Popen(command, env=command_environment(), stdout=subprocess.DEVNULL)

    def _arguments(self, executor: str) -> list[str]:
        return [*self._options, "--executor", executor, "--actors", "2"]


def steps_done(output: Path) -> int:
    """Count the finished steps that are visible in the output folder."""
    run = output / "_run"
    commits = len(list((run / "commits").glob("*/*.json")))
    return (run / "plans" / "0.json").exists() + commits + (output / "current").exists()


def all_hashes(output: Path) -> dict[str, str]:
    """Return the sha256 of every part, commit record and the manifest; the plan differs, since it names the folder."""
    run = output / "_run"
    records = [output / "current" / "manifest.json", *sorted((run / "commits").glob("*/*.json"))]
    return part_hashes(output) | {
        record.relative_to(output).as_posix(): sha256(record.read_bytes()).hexdigest()
        for record in records
        if record.exists()
    }


def draw_trials(seed: int, *, steps: int, local: int, ray: int, actors: int) -> list[Kill]:
    """Draw the kills: of drivers between plan and end, of actors while shards are left."""
    draw = random.Random(seed)
    locally: list[Literal["local", "ray"]] = ["local"] * local
    on_ray: list[Literal["local", "ray"]] = ["ray"] * ray
    drivers = [
        Kill(executor=executor, victim="driver", step=draw.randint(1, steps), delay=draw.random())
        for executor in (*locally, *on_ray)
    ]
    return drivers + [
        Kill(executor="ray", victim="actor", step=draw.randint(2, steps - 2), delay=draw.random())
        for _ in range(actors)
    ]


def wait_for(happened: Callable[[], bool]) -> None:
    """Wait until a condition holds.

    Raises:
        TimeoutError: when it does not in time.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not happened():
        if time.monotonic() > deadline:
            raise TimeoutError("a run makes no progress")
        time.sleep(POLL_SECONDS)


def descendants(pid: int) -> Iterator[Process]:
    """Yield all descendants of a process."""
    for number in _children(pid):
        with suppress(OSError):
            yield Process(number, start_of(number))
        yield from descendants(number)


def command_of(pid: int) -> bytes:
    """Return a process's command line; empty when it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def start_of(pid: int) -> str:
    """Return when a process started, in clock ticks since boot."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def end_all(family: list[Process]) -> None:
    """Kill the processes that a killed driver left behind, unless their numbers belong to others by now."""
    for member in family:
        with suppress(OSError):
            if start_of(member.pid) == member.started:
                os.kill(member.pid, signal.SIGKILL)


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        threads = Path(f"/proc/{pid}/task").iterdir()
        return [int(child) for thread in threads for child in (thread / "children").read_text().split()]
    return []


def main() -> None:
    """Run, kill, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", type=Path, nargs="+", required=True)
    parser.add_argument("--model", default="entities_en_small")
    parser.add_argument("--documents", type=int, default=60)
    parser.add_argument("--words", type=int, default=150, help="words of a document")
    parser.add_argument("--shard-bytes", type=int, default=3_000)
    parser.add_argument("--seed", type=int, default=20261121)
    parser.add_argument("--local-drivers", type=int, default=7)
    parser.add_argument("--ray-drivers", type=int, default=3)
    parser.add_argument("--actors", type=int, default=3)
    arguments = parser.parse_args()
    # A killed driver cannot remove its Ray's files; the paths of sockets in there must stay short.
    with tempfile.TemporaryDirectory(prefix="r") as ray_folder, tempfile.TemporaryDirectory() as folder:
        os.environ["RAY_TMPDIR"] = ray_folder
        source = Path(folder, "documents.jsonl")
        documents = write_chunks(arguments.input, source, words=arguments.words, count=arguments.documents)
        bench = Bench(source, Path(folder), model=arguments.model, shard_bytes=arguments.shard_bytes)
        bench.run_undisturbed()
        trials = draw_trials(
            arguments.seed,
            steps=bench.steps,
            local=arguments.local_drivers,
            ray=arguments.ray_drivers,
            actors=arguments.actors,
        )
        choice = random.Random(arguments.seed)
        results = []
        for number, trial in enumerate(trials):
            results.append(bench.kill(trial, number=number, choice=choice))
            print(json.dumps(results[-1]), file=sys.stderr, flush=True)
    report = {
        **environment("bench_kills.py"),
        "config": {
            "input": [path.name for path in arguments.input],
            "documents": documents,
            "words_a_document": arguments.words,
            "model": arguments.model,
            "seed": arguments.seed,
            "steps": bench.steps,
        },
        "undisturbed_seconds": round(sum(bench.gaps), 2),
        "files_compared": len(bench.expected),
        "kills": len(results),
        "hits": sum(bool(result["hit"]) for result in results),
        "equal_bytes": sum(bool(result["equal_bytes"]) for result in results),
        "trials": results,
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
