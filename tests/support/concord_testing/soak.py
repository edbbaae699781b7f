"""The soak test: runs with faults drawn from a seed, compared with the same runs without faults.

A round is the life of one collection: it is annotated, its archive is edited, it is annotated again. Each of these runs
suffers the faults of the round's schedule, one after the other, and is then run to its end. After each, the output is
compared byte for byte with that of the same runs without faults, and its ids with those in the archive. Meanwhile
readers read the collection in every way; each read has to be exactly one generation. A hostile copy of the collection
as it is then has something else in place of one of its files: every command on it has to end in a named error, or well,
and to touch nothing outside.
"""

import csv
import errno
import html
import io
import json
import os
import random
import shutil
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

import pyarrow.parquet as pq

from concord.pipeline.config import AnnotateConfig
from concord.pipeline.identity import ComponentIdentity, ResolvedTagger
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.run_stats import read_stats
from concord.pipeline.output.verify import verify
from concord.pipeline.plan import Plan
from concord.pipeline.worker.shard_worker import BuildWorker, ShardWorker
from concord_testing import fakes, hostile, readers, runs
from concord_testing.heads import Head
from concord_testing.processes import ray_workers

Kind = Literal[
    "kill_driver", "term_driver", "crash", "no_space", "second_driver", "kill_worker", "term_worker", "hostile"
]


_ENDING: tuple[Kind, ...] = ("kill_driver", "kill_driver", "term_driver", "crash", "no_space", "hostile")
_SURVIVED: dict[str, tuple[Kind, ...]] = {
    "local": ("second_driver",),
    "ray": ("second_driver", "kill_worker", "kill_worker", "term_worker"),
}
# The steps at which a driver can be killed, and how often a run of a few shards reaches each at most. With Ray, workers
# do the steps of a shard.
_STEPS: dict[str, dict[str, int]] = {
    "local": {
        "plan": 1,
        "write": 12,
        "fsync": 12,
        "rename": 8,
        "commit": 3,
        "link": 6,
        "publish": 1,
        "swap": 1,
        "sweep": 1,
    },
    "ray": {"plan": 1, "write": 3, "fsync": 3, "publish": 1, "swap": 1, "sweep": 1},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """A fault of a run, and when it happens.

    Attributes:
        after: share of the remaining shards that are committed before it.
        delay: further wait, as a share of the mean time of a shard.
        step: of a crash: the value of CONCORD_CRASH_AT.
        writes: of no space: the number of the file that fails, from 1.
        attack: of a hostile copy: decides what is in place of which of its files (concord_testing.hostile.ATTACKS).
    """

    kind: Kind
    after: float = 0.0
    delay: float = 0.0
    step: str = ""
    writes: int | None = None
    attack: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Edit:
    """A change of the archive; the number decides which record."""

    kind: Literal["change", "add", "remove", "rename", "tear"]
    number: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduledRun:
    """Edits of the archive, and the faults of the run that follows."""

    edits: tuple[Edit, ...]
    faults: tuple[Fault, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """Everything that happens in a round."""

    seed: int
    number: int
    executor: Literal["local", "ray"]
    runs: tuple[ScheduledRun, ...]


def draw(seed: int, number: int, *, ray: bool) -> Schedule:
    """Draw the schedule of a round; equal seeds and numbers give equal schedules.

    Args:
        ray: draw rounds on Ray as well, one in four.
    """
    chance = random.Random(f"{seed}/{number}")
    executor: Literal["local", "ray"] = "ray" if chance.random() < 0.25 and ray else "local"
    runs = []
    for run in range(chance.randint(1, 3)):
        # A fault that a run survives comes last, because the run ends with it.
        kinds = [*chance.choices(_ENDING, k=chance.randint(0, 3)), chance.choice(_ENDING + _SURVIVED[executor])]
        edits = [_draw_edit(chance) for _ in range(chance.randint(3, 12) if run else 0)]
        faults = [_draw_fault(chance, kind, executor) for kind in kinds]
        runs.append(ScheduledRun(edits=tuple(edits), faults=tuple(faults)))
    return Schedule(seed=seed, number=number, executor=executor, runs=tuple(runs))


def _draw_edit(chance: random.Random) -> Edit:
    return Edit(
        kind=chance.choice(("change", "change", "add", "remove", "rename", "tear")), number=chance.randrange(10_000)
    )


def _draw_fault(chance: random.Random, kind: Kind, executor: str) -> Fault:
    if kind == "crash":
        step, most = chance.choice(list(_STEPS[executor].items()))
        return Fault(kind=kind, step=f"{step}:{chance.randint(1, most)}")
    if kind == "no_space":
        return Fault(kind=kind, writes=chance.randint(1, 12))
    if kind == "hostile":
        return Fault(kind=kind, attack=chance.randrange(10_000))
    return Fault(kind=kind, after=round(chance.random(), 3), delay=round(chance.random(), 3))


class Archive:
    """JSON Lines, CSV, HTML and text files whose content is known."""

    def __init__(self, folder: Path, documents: Sequence[tuple[str, str]], *, files: int = 6) -> None:
        """Spread documents over files: every seventh is a text file, every eleventh a page, every fifth in a table.

        Every JSON Lines file has one broken line.
        """
        self.folder = folder
        self._files: dict[str, dict[str, str | None]] = {}
        for number, (doc_id, text) in enumerate(documents):
            if number % 7 == 0:
                self._files[f"{number:04d}.txt"] = {f"{number:04d}.txt": text}
            elif number % 11 == 0:
                self._files[f"{number:04d}.html"] = {f"{number:04d}.html": text}
            elif number % 5 == 0:
                self._files.setdefault("table.csv", {})[doc_id] = text
            else:
                self._files.setdefault(f"lines{number % files}.jsonl", {})[doc_id] = text
        for name, records in self._files.items():
            if name.endswith(".jsonl"):
                records[f"torn {name}"] = None

    @property
    def ids(self) -> list[str]:
        """The ids of all documents, in order."""
        return sorted(doc_id for _, doc_id, text in self._records() if text is not None)

    @property
    def broken_records(self) -> int:
        """How many records become dead letters."""
        return sum(text is None for _, _, text in self._records())

    def write(self) -> None:
        """Make the folder hold exactly these files."""
        self.folder.mkdir(parents=True, exist_ok=True)
        contents = {name: _content(name, records) for name, records in self._files.items()}
        for path in self.folder.iterdir():
            if path.name not in contents:
                path.unlink()
        for name, content in contents.items():
            path = self.folder / name
            if not path.exists() or path.read_bytes() != content:
                path.write_bytes(content)

    def edit(self, edit: Edit) -> None:
        """Change one record."""
        records = list(self._records())
        name, doc_id, text = records[edit.number % len(records)]
        in_lines, holds_many = name.endswith(".jsonl"), name.endswith((".jsonl", ".csv"))
        match edit.kind:
            case "change" if text is not None:
                self._files[name][doc_id] = f"{text} Number {edit.number} was added."
            case "add":
                lines = [each for each in sorted(self._files) if each.endswith(".jsonl")]
                added = f"new {edit.number} {len(records)}"
                self._files[lines[edit.number % len(lines)]][added] = f"New is {edit.number}. {text}"
            case "remove" if holds_many:
                del self._files[name][doc_id]
            case "rename" if not holds_many:
                del self._files[name]
                self._files[f"{edit.number} {name}"] = {f"{edit.number} {name}": text}
            case "tear" if in_lines:
                self._files[name][doc_id] = None

    def _records(self) -> Iterator[tuple[str, str, str | None]]:
        for name in sorted(self._files):
            for doc_id, text in self._files[name].items():
                yield name, doc_id, text


def _content(name: str, records: Mapping[str, str | None]) -> bytes:
    if name.endswith(".txt"):
        return "".join(text or "" for text in records.values()).encode()
    if name.endswith(".html"):
        paragraphs = "".join(f"<p>{html.escape(text or '')}</p>" for text in records.values())
        return f"<!DOCTYPE html><html><body><main>{paragraphs}</main></body></html>".encode()
    if name.endswith(".csv"):
        table = io.StringIO(newline="")
        csv.writer(table).writerows([("id", "text"), *((doc_id, text or "") for doc_id, text in records.items())])
        return table.getvalue().encode()
    lines = [
        json.dumps({"id": doc_id, "text": text} if text is not None else {"id": doc_id})
        for doc_id, text in records.items()
    ]
    return "".join(f"{line}\n" for line in lines).encode()


POLL_SECONDS = 0.01
PATIENCE_SECONDS = 600.0
# A signal that comes before or after the run handles signals ends the process at once; a run that was over before its
# fault came ends well.
_EXPECTED: dict[Kind, set[int]] = {
    "kill_driver": {0, -signal.SIGKILL},
    "term_driver": {0, 128 + signal.SIGTERM, -signal.SIGTERM},
    "crash": {0, -signal.SIGKILL},
    "no_space": {0, 75},
    "second_driver": {0},
    "kill_worker": {0},
    "term_worker": {0},
    "hostile": {0},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class SoakSetup:
    """The documents, configuration and workers of all rounds.

    Attributes:
        documents: of the archive at the start of every round.
        folder: of the archive and the outputs.
        settings: of every job, as in a job file, except input, output and executor.
        build: makes the worker of a local run.
        build_on_ray: makes a worker on Ray, without access to this process.
        head: of the Ray cluster, for rounds on it.
    """

    documents: Sequence[tuple[str, str]]
    folder: Path
    settings: Mapping[str, Any]
    tagger: ResolvedTagger = runs.TAGGER
    parser: ComponentIdentity | None = fakes.PARSER
    build: BuildWorker = fakes.build_fake_worker
    build_on_ray: BuildWorker = fakes.build_fake_worker
    head: Head | None = None

    def job(self, output: Path, executor: str) -> AnnotateConfig:
        """Return the configuration of a job over the archive."""
        values = {
            "max_dead_letters": 1.0,
            "max_removed": 1.0,
            "report": False,
            **self.settings,
            "input": str(self.folder / "archive"),
            "output": {"path": str(output)},
            "executor": {"kind": executor, "threads": 1, "actors": 2},
        }
        return AnnotateConfig.from_mapping(values)

    def start(self, config: AnnotateConfig, *, log: Path, writes: int | None = None, crash_at: str = "") -> BaseProcess:
        """Start a driver in a process of its own, with its output in the log.

        Args:
            writes: a worker finds no space for this file, counted from 1.
        """
        build = self.build if config.executor.kind == "local" else self.build_on_ray
        if writes is not None:
            mark = self.folder / "no_space"
            mark.unlink(missing_ok=True)
            build = partial(build_without_space, build, writes, str(mark))
        address = {"RAY_ADDRESS": self.head.address} if self.head is not None else {}
        environment = {"RAY_AUTH_MODE": "disabled", "PYTHONPATH": str(Path(fakes.__file__).parents[1]), **address}

        def work() -> None:
            with log.open("a") as stream:
                os.dup2(stream.fileno(), sys.stderr.fileno())
                os.dup2(stream.fileno(), sys.stdout.fileno())
            runs.run_job(config, tagger=self.tagger, parser=self.parser, build=build)

        return runs.in_child(work, crash_at=crash_at, **environment)


@dataclass(kw_only=True, slots=True)
class Event:
    """What a fault did: whether the run was still there to be hit, and how its drivers ended."""

    run: int
    kind: Kind
    hit: bool
    exit_codes: list[int]
    seconds: float


class Round:
    """Carries out one schedule.

    Attributes:
        events: one per fault.
        findings: what is wrong; empty when all is well.
        reads: of the collection while it was written.
    """

    def __init__(self, schedule: Schedule, setup: SoakSetup) -> None:
        self.schedule = schedule
        self.events: list[Event] = []
        self.findings: list[str] = []
        self.shards_compared = 0
        self.reads = 0
        self._setup = setup
        self._archive = Archive(setup.folder / "archive", setup.documents)
        self._log = setup.folder / "log.txt"
        self._output = setup.folder / "disturbed"
        self._reference = setup.folder / "undisturbed"
        self._generation = 0
        self._shards = 0
        self._shard_seconds = 0.0

    def run(self) -> None:
        """Carry out the schedule up to its end or the first finding."""
        for folder in (self._output, self._reference):
            shutil.rmtree(folder, ignore_errors=True)
        self._log.unlink(missing_ok=True)
        reader = readers.ReaderProcess(self._output, seed=self.schedule.seed)
        try:
            self._carry_out()
        finally:
            self._check_reads(readers.summarize([reader.stop()], readers.kept_generations(self._output)))

    def _carry_out(self) -> None:
        for number, run in enumerate(self.schedule.runs):
            for edit in run.edits:
                self._archive.edit(edit)
            self._archive.write()
            self._run_undisturbed(number)
            if self.findings:
                return
            for fault in run.faults:
                if fault.attack is not None:
                    self._attack_copy(number, fault.attack)
                elif self._suffer(number, fault):
                    break
            self._finish(number)
            self._compare(number)
            if self.findings:
                return

    def _check_reads(self, found: Mapping[str, Mapping[str, Any]]) -> None:
        for name, counts in found.items():
            self.reads += counts["reads"]
            if counts["wrong"] or counts["failed"]:
                self.findings.append(
                    f"{name}: {counts['wrong']} wrong and {counts['failed']} failed reads: {counts['errors']}"
                )

    def _run_undisturbed(self, run: int) -> None:
        """Make the reference output. That of the first run is the same in every round."""
        first = self._setup.folder / "first"
        started = time.monotonic()
        if run == 0 and first.exists():
            shutil.copytree(first, self._reference, symlinks=True)
        else:
            driver = self._setup.start(self._setup.job(self._reference, "local"), log=self._log)
            self._end(driver, {0}, f"run {run}, undisturbed")
            if run == 0:
                shutil.copytree(self._reference, first, symlinks=True)
        plan = OutputFolder(self._reference).plan()
        self._generation = plan.generation
        self._shards = len(plan.shards)
        timed = read_stats(OutputFolder(self._reference))
        self._shard_seconds = timed.wall_seconds / timed.shards if timed.shards else time.monotonic() - started

    def _suffer(self, run: int, fault: Fault) -> bool:
        """Start a run, let the fault happen, and return whether the run finished all the same."""
        started = time.monotonic()
        config = self._setup.job(self._output, self.schedule.executor)
        before = self._commits()
        drivers = [self._setup.start(config, log=self._log, writes=fault.writes, crash_at=fault.step)]
        hit = False
        if fault.kind not in ("crash", "no_space"):
            self._wait(drivers[0], fault, before)
            hit = drivers[0].is_alive()
        match fault.kind:
            case "kill_driver" | "term_driver" if hit:
                os.kill(drivers[0].pid or 0, signal.SIGKILL if fault.kind == "kill_driver" else signal.SIGTERM)
            case "kill_worker" | "term_worker":
                hit = self._strike_worker(fault)
            case "second_driver":
                drivers.append(self._setup.start(config, log=self._log))
            case _:
                pass
        # A second driver finds the first one writing, or nothing left to do.
        exit_codes = [
            self._end(driver, {0, 75} if number else _EXPECTED[fault.kind], f"run {run}, {fault.kind}")
            for number, driver in enumerate(drivers)
        ]
        if fault.kind in ("crash", "no_space"):
            hit = exit_codes != [0]
        seconds = round(time.monotonic() - started, 2)
        self.events.append(Event(run=run, kind=fault.kind, hit=hit, exit_codes=exit_codes, seconds=seconds))
        return 0 in exit_codes

    def _attack_copy(self, run: int, attack: int) -> None:
        """Run every command on a hostile copy of the collection, in a process of its own."""
        started, folder = time.monotonic(), self._setup.folder / "hostile"
        name, kind = hostile.ATTACKS[attack % len(hostile.ATTACKS)]
        shutil.rmtree(folder, ignore_errors=True)
        output, log = folder / "out", self._log
        source, hit = self._archive.folder, self._output.exists()
        shutil.copytree(self._output if hit else source, output, symlinks=True)
        victim = hostile.make_victim(folder / "victim")
        hostile.replace(output / name, kind, victim)

        def work() -> None:
            with log.open("a") as stream:
                os.dup2(stream.fileno(), sys.stderr.fileno())
                os.dup2(stream.fileno(), sys.stdout.fileno())
            hostile.suffer(output, source, victim, folder)

        code = self._end(runs.in_child(work), _EXPECTED["hostile"], f"run {run}, hostile copy with {kind} at {name}")
        seconds = round(time.monotonic() - started, 2)
        self.events.append(Event(run=run, kind="hostile", hit=hit, exit_codes=[code], seconds=seconds))

    def _commits(self) -> int:
        return len(list((self._output / "_run" / "commits" / str(self._generation)).glob("*.json")))

    def _wait(self, driver: BaseProcess, fault: Fault, before: int) -> None:
        """Wait for the moment of a fault, or the end of the run."""
        wanted = before + int(fault.after * (self._shards - before))
        deadline = time.monotonic() + PATIENCE_SECONDS
        while driver.is_alive() and self._commits() < wanted and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        driver.join(timeout=fault.delay * self._shard_seconds)

    def _strike_worker(self, fault: Fault) -> bool:
        workers = ray_workers(self._setup.head.pid) if self._setup.head is not None else []
        if not workers:
            return False
        victim = workers[int(fault.delay * len(workers))]
        os.kill(victim, signal.SIGKILL if fault.kind == "kill_worker" else signal.SIGTERM)
        return True

    def _finish(self, run: int) -> None:
        driver = self._setup.start(self._setup.job(self._output, self.schedule.executor), log=self._log)
        self._end(driver, {0}, f"run {run}, the run after all faults")

    def _end(self, driver: BaseProcess, expected: set[int], what: str) -> int:
        """Wait for a driver to end and return its exit code; an unexpected one is a finding."""
        driver.join(timeout=PATIENCE_SECONDS)
        if driver.exitcode is None:
            driver.kill()
            driver.join()
            self.findings.append(f"{what}: still running after {PATIENCE_SECONDS:.0f} s")
        elif driver.exitcode not in expected:
            self.findings.append(f"{what}: exit code {driver.exitcode}, expected one of {sorted(expected)}")
        return driver.exitcode if driver.exitcode is not None else -signal.SIGKILL

    def _compare(self, run: int) -> None:
        for finding in verify(self._output, deep=True):
            self.findings.append(f"run {run}, verify: {finding.place}: {finding.problem}")
        ours, theirs = runs.committed_bytes(self._output), runs.committed_bytes(self._reference)
        for name in sorted(ours.keys() ^ theirs.keys()):
            self.findings.append(f"run {run}: {name} is in only one of the two outputs")
        for name in sorted(ours.keys() & theirs.keys()):
            if ours[name] != theirs[name]:
                self.findings.append(f"run {run}: {name} has other bytes than without faults")
        ids = sorted(pq.read_table(self._output / "documents", columns=["doc_id"])["doc_id"].to_pylist())
        dead_letters = pq.read_table(self._output / "errors").num_rows
        if ids != self._archive.ids or dead_letters != self._archive.broken_records:
            self.findings.append(
                f"run {run}: the archive has {len(self._archive.ids)} documents and {self._archive.broken_records} "
                f"broken lines, the output {len(ids)} ({len(set(ids))} different) and {dead_letters}"
            )
        self.shards_compared += len(list(self._output.glob("_run/commits/*/*.json")))


def soak(
    setup: SoakSetup, schedules: Iterator[Schedule], *, seconds: float, on_round: Callable[[Round, float], None]
) -> list[Round]:
    """Carry out schedules for this time or until one has a finding; the last round is finished.

    Args:
        on_round: called with each round and the seconds it took.
    """
    rounds: list[Round] = []
    deadline = time.monotonic() + seconds
    for schedule in schedules:
        if time.monotonic() >= deadline:
            break
        started = time.monotonic()
        rounds.append(Round(schedule, setup))
        rounds[-1].run()
        on_round(rounds[-1], time.monotonic() - started)
        if rounds[-1].findings:
            break
    return rounds


def build_without_space(build: BuildWorker, writes: int, mark: str, plan: Plan) -> ShardWorker:
    """Build a worker whose process finds no space for its n-th file, once.

    Args:
        mark: a file that exists once this has happened; workers built later have space.
    """
    worker = build(plan)
    left = [writes]
    flush = os.fsync

    def flush_or_fail(descriptor: int) -> None:
        left[0] -= stat.S_ISREG(os.fstat(descriptor).st_mode)
        if left[0] == 0 and not Path(mark).exists():
            Path(mark).touch()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        flush(descriptor)

    os.fsync = flush_or_fail  # type: ignore[assignment]
    return worker
