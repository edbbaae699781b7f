"""Seeded random faults against runs, and whether what comes out is what undisturbed runs give.

A round is the life of one collection: it is annotated, its archive is edited, it is annotated again. Each of these runs
suffers the faults that the round's schedule names, one after the other, and is then run to its end. After each the
output is compared, byte for byte, with that of the same runs undisturbed, and the ids in it with those in the archive.
"""

import errno
import filecmp
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
from multiprocessing import Process
from pathlib import Path
from typing import Any, Literal

import pyarrow.parquet as pq

from concord.pipeline.config import AnnotateConfig
from concord.pipeline.executors.base import BuildWorker
from concord.pipeline.identity import ComponentIdentity, ResolvedTagger
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.verify import verify
from concord.pipeline.plan import Plan
from concord.pipeline.worker.shard_worker import ShardWorker
from concord_testing import fakes, runs
from concord_testing.heads import Head
from concord_testing.processes import ray_workers

Kind = Literal["kill_driver", "term_driver", "crash", "no_space", "two_drivers", "kill_worker", "term_worker"]

POLL_SECONDS = 0.01
PATIENCE_SECONDS = 600.0
ATTEMPTS = 10
"""More than a schedule has kills for one shard: a shard whose workers die that often is done otherwise."""
_ENDING: tuple[Kind, ...] = ("kill_driver", "kill_driver", "term_driver", "crash", "no_space")
_BORNE: dict[str, tuple[Kind, ...]] = {
    "local": ("two_drivers",),
    "ray": ("two_drivers", "kill_worker", "kill_worker", "term_worker"),
}
# Where a driver can be killed, and how often it comes there at most in a run of a few shards; with Ray, workers do the
# steps of a shard.
_STEPS: dict[str, dict[str, int]] = {
    "local": {"plan": 1, "write": 12, "fsync": 12, "rename": 8, "commit": 3, "swap": 1, "sweep": 1},
    "ray": {"plan": 1, "write": 3, "fsync": 3, "swap": 1, "sweep": 1},
}
# A signal that comes before or after the run listens ends the process as the system does; a run that was over before
# its fault came ends well.
_EXPECTED: dict[Kind, set[int]] = {
    "kill_driver": {0, -signal.SIGKILL},
    "term_driver": {0, 128 + signal.SIGTERM, -signal.SIGTERM},
    "crash": {0, -signal.SIGKILL},
    "no_space": {0, 75},
    "two_drivers": {0},
    "kill_worker": {0},
    "term_worker": {0},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """What happens to a run, and when.

    Attributes:
        after: share of the shards left that are committed before it; 0 is from the start on.
        delay: further wait, as a share of the mean time of a shard.
        step: for a crash: the step and how many times it is reached, as CONCORD_CRASH_AT takes it.
        writes: for no space: which file it is, counted from one.
    """

    kind: Kind
    after: float = 0.0
    delay: float = 0.0
    step: str = ""
    writes: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Edit:
    """A change of the archive; of what, goes by the number."""

    kind: Literal["change", "add", "remove", "rename", "tear"]
    number: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Night:
    """Edits of the archive, and the faults of the run that takes them in."""

    edits: tuple[Edit, ...]
    faults: tuple[Fault, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """All that happens in a round."""

    seed: int
    number: int
    executor: Literal["local", "ray"]
    nights: tuple[Night, ...]

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "Schedule":
        """Read a schedule back from its JSON."""
        nights = tuple(
            Night(
                edits=tuple(Edit(**edit) for edit in night["edits"]),
                faults=tuple(Fault(**fault) for fault in night["faults"]),
            )
            for night in values["nights"]
        )
        return cls(seed=values["seed"], number=values["number"], executor=values["executor"], nights=nights)


def draw(seed: int, number: int, *, ray: bool) -> Schedule:
    """Draw the schedule of a round; equal seeds and numbers give equal ones.

    Args:
        ray: draw rounds on Ray as well, one of four.
    """
    chance = random.Random(f"{seed}/{number}")
    executor: Literal["local", "ray"] = "ray" if chance.random() < 0.25 and ray else "local"
    nights = []
    for night in range(chance.randint(1, 3)):
        # What a run bears comes last: the run ends with it.
        kinds = [*chance.choices(_ENDING, k=chance.randint(0, 3)), chance.choice(_ENDING + _BORNE[executor])]
        edits = [_draw_edit(chance) for _ in range(chance.randint(3, 12) if night else 0)]
        faults = [_draw_fault(chance, kind, executor) for kind in kinds]
        nights.append(Night(edits=tuple(edits), faults=tuple(faults)))
    return Schedule(seed=seed, number=number, executor=executor, nights=tuple(nights))


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
    return Fault(kind=kind, after=round(chance.random(), 3), delay=round(chance.random(), 3))


class Archive:
    """A folder of JSON Lines and text files whose content is known."""

    def __init__(self, folder: Path, documents: Sequence[tuple[str, str]], *, files: int = 6) -> None:
        """Take documents; every seventh gets a text file of its own, and every file of lines one that is no record."""
        self.folder = folder
        self._files: dict[str, dict[str, str | None]] = {}
        for number, (doc_id, text) in enumerate(documents):
            if number % 7 == 0:
                self._files[f"{number:04d}.txt"] = {f"{number:04d}.txt": text}
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
    def letters(self) -> int:
        """How many records are none."""
        return sum(text is None for _, _, text in self._records())

    def write(self) -> None:
        """Make the folder hold just this."""
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
        """Change something."""
        records = list(self._records())
        name, doc_id, text = records[edit.number % len(records)]
        in_lines = name.endswith(".jsonl")
        match edit.kind:
            case "change" if text is not None:
                self._files[name][doc_id] = f"{text} Number {edit.number} was added."
            case "add":
                lines = [each for each in sorted(self._files) if each.endswith(".jsonl")]
                added = f"new {edit.number} {len(records)}"
                self._files[lines[edit.number % len(lines)]][added] = f"New is {edit.number}. {text}"
            case "remove" if in_lines:
                del self._files[name][doc_id]
            case "rename" if not in_lines:
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
    lines = [
        json.dumps({"id": doc_id, "text": text} if text is not None else {"id": doc_id})
        for doc_id, text in records.items()
    ]
    return "".join(f"{line}\n" for line in lines).encode()


@dataclass(frozen=True, kw_only=True, slots=True)
class Workshop:
    """What runs work with.

    Attributes:
        documents: of the archive at the beginning of every round.
        folder: where archive and outputs go.
        settings: of every job, as in a job file, but input, output and executor.
        build: makes the worker of a local run.
        build_on_ray: makes a worker on Ray, which gets nothing from this process.
        head: of the Ray cluster for rounds on it.
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
        """Give a job over the archive."""
        values = {
            "max_dead_letters": 1.0,
            "max_removed": 1.0,
            "report": False,
            **self.settings,
            "input": str(self.folder / "archive"),
            "output": str(output),
            "executor": {"kind": executor, "threads": 1, "actors": 2, "attempts": ATTEMPTS},
        }
        return AnnotateConfig.from_mapping(values)

    def start(self, config: AnnotateConfig, *, log: Path, writes: int | None = None, crash_at: str = "") -> Process:
        """Start a driver in a process of its own; what it says goes to the log.

        Args:
            writes: a worker finds no space for this file, counted from one.
        """
        build = self.build if config.executor.kind == "local" else self.build_on_ray
        if writes is not None:
            mark = self.folder / "no_space"
            mark.unlink(missing_ok=True)
            build = partial(build_in_little_room, build, writes, str(mark))
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
    """What a fault did: whether the run was there to be hit, and how its drivers ended."""

    night: int
    kind: Kind
    hit: bool
    exit_codes: list[int]
    seconds: float


class Round:
    """One schedule carried out.

    Attributes:
        events: one for each fault.
        findings: what is not as it should be; nothing when all is well.
    """

    def __init__(self, schedule: Schedule, shop: Workshop) -> None:
        self.schedule = schedule
        self.events: list[Event] = []
        self.findings: list[str] = []
        self.shards_compared = 0
        self._shop = shop
        self._archive = Archive(shop.folder / "archive", shop.documents)
        self._log = shop.folder / "log.txt"
        self._output = shop.folder / "disturbed"
        self._reference = shop.folder / "undisturbed"
        self._generation = 0
        self._shards = 0
        self._shard_seconds = 0.0

    def run(self) -> None:
        """Carry the schedule out, until something is found or all is done."""
        for folder in (self._output, self._reference):
            shutil.rmtree(folder, ignore_errors=True)
        self._log.unlink(missing_ok=True)
        for number, night in enumerate(self.schedule.nights):
            for edit in night.edits:
                self._archive.edit(edit)
            self._archive.write()
            self._run_undisturbed(number)
            if self.findings:
                return
            for fault in night.faults:
                if self._suffer(number, fault):
                    break
            self._finish(number)
            self._compare(number)
            if self.findings:
                return

    def _run_undisturbed(self, night: int) -> None:
        """Learn what to expect. What the first night gives is the same in every round."""
        first = self._shop.folder / "first"
        started = time.monotonic()
        if night == 0 and first.exists():
            shutil.copytree(first, self._reference)
        else:
            driver = self._shop.start(self._shop.job(self._reference, "local"), log=self._log)
            self._end(driver, {0}, f"night {night}, undisturbed")
            if night == 0:
                shutil.copytree(self._reference, first)
        plan = OutputFolder(self._reference).plan()
        self._generation = plan.generation
        self._shards = len(plan.shards)
        timed = OutputFolder(self._reference).stats()
        self._shard_seconds = timed["wall_seconds"] / max(timed["shards"], 1) if timed else time.monotonic() - started

    def _suffer(self, night: int, fault: Fault) -> bool:
        """Disturb a run, and say whether it ended well all the same."""
        started = time.monotonic()
        config = self._shop.job(self._output, self.schedule.executor)
        before = self._commits()
        drivers = [self._shop.start(config, log=self._log, writes=fault.writes, crash_at=fault.step)]
        hit = False
        if fault.kind not in ("crash", "no_space"):
            self._wait(drivers[0], fault, before)
            hit = drivers[0].is_alive()
        match fault.kind:
            case "kill_driver" | "term_driver" if hit:
                os.kill(drivers[0].pid or 0, signal.SIGKILL if fault.kind == "kill_driver" else signal.SIGTERM)
            case "kill_worker" | "term_worker":
                hit = self._strike_worker(fault)
            case "two_drivers":
                drivers.append(self._shop.start(config, log=self._log))
            case _:
                pass
        exit_codes = [self._end(driver, _EXPECTED[fault.kind], f"night {night}, {fault.kind}") for driver in drivers]
        if fault.kind in ("crash", "no_space"):
            hit = exit_codes != [0]
        seconds = round(time.monotonic() - started, 2)
        self.events.append(Event(night=night, kind=fault.kind, hit=hit, exit_codes=exit_codes, seconds=seconds))
        return 0 in exit_codes

    def _commits(self) -> int:
        return len(list((self._output / "_run" / "commits" / str(self._generation)).glob("*.json")))

    def _wait(self, driver: Process, fault: Fault, before: int) -> None:
        """Wait for the moment of a fault, or the end of the run."""
        wanted = before + int(fault.after * (self._shards - before))
        deadline = time.monotonic() + PATIENCE_SECONDS
        while driver.is_alive() and self._commits() < wanted and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        driver.join(timeout=fault.delay * self._shard_seconds)

    def _strike_worker(self, fault: Fault) -> bool:
        workers = ray_workers(self._shop.head.pid) if self._shop.head is not None else []
        if not workers:
            return False
        victim = workers[int(fault.delay * len(workers))]
        os.kill(victim, signal.SIGKILL if fault.kind == "kill_worker" else signal.SIGTERM)
        return True

    def _finish(self, night: int) -> None:
        driver = self._shop.start(self._shop.job(self._output, self.schedule.executor), log=self._log)
        self._end(driver, {0}, f"night {night}, the run after all faults")

    def _end(self, driver: Process, expected: set[int], what: str) -> int:
        """Wait for a driver's end and give its exit code; one that is not expected is a finding."""
        driver.join(timeout=PATIENCE_SECONDS)
        if driver.exitcode is None:
            driver.kill()
            driver.join()
            self.findings.append(f"{what}: no end after {PATIENCE_SECONDS:.0f} s")
        elif driver.exitcode not in expected:
            self.findings.append(f"{what}: exit code {driver.exitcode}, expected one of {sorted(expected)}")
        return driver.exitcode if driver.exitcode is not None else -signal.SIGKILL

    def _compare(self, night: int) -> None:
        for finding in verify(self._output, deep=True):
            self.findings.append(f"night {night}, verify: {finding.place}: {finding.problem}")
        ours, theirs = _promised(self._output), _promised(self._reference)
        for name in sorted(ours ^ theirs):
            self.findings.append(f"night {night}: {name} is in one of both outputs only")
        _, different, unread = filecmp.cmpfiles(self._output, self._reference, sorted(ours & theirs), shallow=False)
        for name in (*different, *unread):
            self.findings.append(f"night {night}: {name} has other bytes than after undisturbed runs")
        found, letters = _ids(self._output), _rows(self._output, "errors")
        if found != self._archive.ids or letters != self._archive.letters:
            self.findings.append(
                f"night {night}: the archive has {len(self._archive.ids)} documents and {self._archive.letters} torn "
                f"lines, the output {len(found)} ({len(set(found))} different) and {letters}"
            )
        self.shards_compared += len(list(self._output.glob("_run/commits/*/*.json")))


def build_in_little_room(build: BuildWorker, writes: int, mark: str, plan: Plan) -> ShardWorker:
    """Build a worker in a process that, once, finds no space for its n-th file.

    Args:
        mark: a file that stands when it has happened; a worker that is built later has room.
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

    os.fsync = flush_or_fail
    return worker


def _promised(output: Path) -> set[str]:
    """Give the files that the promise of equal bytes covers."""
    paths = [*output.glob("*/*.parquet"), *output.glob("_run/commits/*/*"), output / "_run" / "manifest.json"]
    return {path.relative_to(output).as_posix() for path in paths}


def _rows(output: Path, table: str) -> int:
    return sum(pq.read_metadata(path).num_rows for path in output.glob(f"{table}/*.parquet"))


def _ids(output: Path) -> list[str]:
    return sorted(
        doc_id
        for path in output.glob("documents/*.parquet")
        for doc_id in pq.read_table(path, columns=["doc_id"]).column("doc_id").to_pylist()
    )


def soak(
    shop: Workshop, schedules: Iterator[Schedule], *, seconds: float, told: Callable[[Round, float], None]
) -> list[Round]:
    """Carry out schedules for so long, or until one finds something; the round begun last is finished.

    Args:
        told: called with each round and how many seconds it took.
    """
    rounds: list[Round] = []
    deadline = time.monotonic() + seconds
    for schedule in schedules:
        if time.monotonic() >= deadline:
            break
        started = time.monotonic()
        rounds.append(Round(schedule, shop))
        rounds[-1].run()
        told(rounds[-1], time.monotonic() - started)
        if rounds[-1].findings:
            break
    return rounds
