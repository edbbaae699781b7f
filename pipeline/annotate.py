"""One annotation job, from its configuration to a finished output folder.

The same call starts a run, resumes it, or finds it finished.
"""

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import orjson
import yaml

from pipeline.commits import RunFolder
from pipeline.config import AnnotateConfig
from pipeline.durable import file_sha256, store_faults, write_over
from pipeline.errors import ModelError, StoreError
from pipeline.executors.auth import settle_auth_mode
from pipeline.executors.base import BuildWorker, Executor
from pipeline.executors.local import LocalExecutor
from pipeline.inputs import absolute
from pipeline.parsing.parser import parser_identity
from pipeline.planning import Plan, make_plan
from pipeline.records import Shard, ShardReport
from pipeline.report import write_report
from pipeline.schema import component_signature
from pipeline.signatures import ComponentIdentity
from pipeline.stages import Timings, build_worker

_MOST_LOCAL_THREADS = 4
_STAGES = ("read", "parse", "tag", "write")


@dataclass(frozen=True, kw_only=True, slots=True)
class ResolvedTagger:
    """The tagger a run uses, settled once before it starts.

    Attributes:
        version: of the registry, if it comes from there.
        digest: SHA-256 in hex over its files (models.checkpoint.tagger_digest).
        folder: where the bundle lies; every worker must be able to read it there.
        trees: where the trees came from that it learned from (models.base.Tagger.trees).
    """

    name: str
    version: str | None
    digest: str
    folder: Path
    trees: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far a run is: once before the first shard, then after each."""

    shards_done: int
    shards: int
    read_done: int
    read: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RunReport:
    """What became of a job.

    Attributes:
        read: records the planner counted.
        shards: in the plan; done_before of them were committed before this call.
        seconds: by stage, summed over the shards and workers of this call.
        wall_seconds: of this call's work on shards.
        words: annotated by this call.
        report: the HTML report, if there is one.
        exit_code: 0, or 3 when more records ended as dead letters than the configuration allows.
    """

    output: Path
    read: int
    annotated: int
    unchanged: int
    dead_letters: int
    shards: int
    done_before: int
    seconds: Mapping[str, float] = field(default_factory=dict)
    wall_seconds: float = 0.0
    words: int = 0
    report: Path | None = None
    exit_code: int = 0

    @property
    def words_per_second(self) -> float:
        """Words annotated by this call in each second of its work; 0 when there was none."""
        return self.words / self.wall_seconds if self.wall_seconds else 0.0


def annotate(
    config: AnnotateConfig,
    *,
    tagger: ResolvedTagger,
    progress: Callable[[Progress], None] | None = None,
    parser: ComponentIdentity | None = None,
    build: BuildWorker = build_worker,
) -> RunReport:
    """Annotate what the output folder does not hold yet, and finish the run.

    A run that is finished is left as it is: nothing is loaded, started or written.

    Args:
        progress: called in this process.
        parser: which parser ``build`` loads; that of the configuration if None.
        build: makes the worker, in the process where it works.

    Raises:
        PlanError, InputError, ModelError, ConfigError: when the job cannot run as it is.
        ReconciliationError, ShardError, IntegrityError: when it fails; what is committed stays.
        StoreError: when there is no space.
        StoppedError: after SIGTERM or SIGINT.
    """
    config = _absolute(config)
    folder = RunFolder(Path(config.output))
    plan = _plan(config, folder, tagger=tagger, parser=parser)
    folder.freeze(plan)
    done = folder.done(plan)
    left = [shard for shard in plan.shards if shard.index not in done]
    tally = _Tally(plan, done.values(), progress)
    finished = folder.is_finished(plan)
    if not finished:
        _write(folder, "config.resolved.yaml", _yaml(config))
        tally.tell()
        if left:
            folder.withdraw(left, generation=plan.generation)
            _work(plan, left, folder=folder, executor=_executor(config, build), tally=tally)
        folder.finish(plan)
    report = folder.run / "report.html"
    if config.report and not (finished and report.exists()):
        write_report(folder.output)
    return _run_report(config, plan, folder.done(plan), done_before=len(done), tally=tally)


def dry_run(config: AnnotateConfig, *, tagger: ResolvedTagger, parser: ComponentIdentity | None = None) -> RunReport:
    """Say what ``annotate`` would find to do, and write nothing.

    Returns:
        the counts of what earlier calls have committed; ``read`` and ``shards`` are the plan's.

    Raises:
        PlanError, InputError, ModelError: as ``annotate`` would.
    """
    config = _absolute(config)
    folder = RunFolder(Path(config.output))
    plan = _plan(config, folder, tagger=tagger, parser=parser)
    if folder.plan_path.exists():
        folder.freeze(plan)
    done = folder.done(plan)
    return _run_report(config, plan, done, done_before=len(done), tally=_Tally(plan, done.values(), None))


def check_trees(name: str, trees: str | None, *, parser: str) -> None:
    """Refuse a tagger that learned from other trees than it would be given.

    Args:
        name, trees: of the tagger (models.base.Tagger.trees).
        parser: the signature of the parser that it would work with.

    Raises:
        ModelError: when these are not the same.
    """
    if trees not in (None, parser):
        raise ModelError(
            f"tagger.model: {name} learned from trees of {trees!r}, this run's are of {parser!r}; its labels would "
            "suffer. Choose the same parser under 'parser', or give the training corpora this parser's trees "
            "(concord parse) and train anew; --set tagger.accept_parser=true goes on all the same"
        )


def _absolute(config: AnnotateConfig) -> AnnotateConfig:
    """Make paths absolute: a worker has another working folder."""
    parser = config.parser
    if parser.directory is not None:
        parser = parser.model_copy(update={"directory": absolute(parser.directory)})
    paths = {"input": absolute(config.input), "output": absolute(config.output)}
    return config.model_copy(update={**paths, "parser": parser})


def _plan(
    config: AnnotateConfig, folder: RunFolder, *, tagger: ResolvedTagger, parser: ComponentIdentity | None
) -> Plan:
    parser = parser or parser_identity(config.parser)
    if not config.tagger.accept_parser:
        check_trees(tagger.name, tagger.trees, parser=component_signature(parser))
    return make_plan(
        config,
        parser=parser,
        tagger=ComponentIdentity(name=tagger.name, version=tagger.version, digest=tagger.digest),
        tagger_folder=tagger.folder.absolute(),
        threads=_threads(config, folder),
        hash_file=partial(_hash_files, config) if config.executor.kind == "ray" else None,
    )


def _threads(config: AnnotateConfig, folder: RunFolder) -> int:
    """Settle the threads of a worker: as configured, else as the standing plan has them, else by the executor."""
    if config.executor.threads is not None:
        return config.executor.threads
    if folder.plan_path.exists():
        return folder.plan().threads
    if config.executor.kind == "ray":
        return 1
    return min(_MOST_LOCAL_THREADS, len(os.sched_getaffinity(0)))


def _hash_files(config: AnnotateConfig, paths: Sequence[str]) -> list[str]:
    if sum(Path(path).stat().st_size for path in paths) <= config.planning.hash_with_ray_bytes:
        return [file_sha256(Path(path)) for path in paths]
    settle_auth_mode(os.environ.get("RAY_ADDRESS"))
    from pipeline.executors.ray_cluster import hash_files

    return hash_files(paths)


def _executor(config: AnnotateConfig, build: BuildWorker) -> Executor:
    if config.executor.kind == "local":
        return LocalExecutor(build=build)
    settle_auth_mode(os.environ.get("RAY_ADDRESS"))
    # Importing Ray takes seconds, and a finished run needs none.
    from pipeline.executors.ray_cluster import RayExecutor

    return RayExecutor(config.executor, build=build)


class _Tally:
    """What this call has done so far, and whom to tell."""

    def __init__(self, plan: Plan, done: Iterable[ShardReport], progress: Callable[[Progress], None] | None) -> None:
        reports = list(done)
        self.shards = 0
        self.words = 0
        self.seconds = dict.fromkeys(_STAGES, 0.0)
        self.wall_seconds = 0.0
        self._plan = plan
        self._shards_done = len(reports)
        self._read_done = sum(report.read for report in reports)
        self._progress = progress

    def take(self, report: ShardReport, timings: Timings) -> None:
        self.shards += 1
        self.words += timings.words
        for stage in _STAGES:
            self.seconds[stage] += getattr(timings, stage)
        self._shards_done += 1
        self._read_done += report.read
        self.tell()

    def tell(self) -> None:
        if self._progress is not None:
            self._progress(
                Progress(
                    shards_done=self._shards_done,
                    shards=len(self._plan.shards),
                    read_done=self._read_done,
                    read=self._plan.read,
                )
            )


def _work(plan: Plan, left: Sequence[Shard], *, folder: RunFolder, executor: Executor, tally: _Tally) -> None:
    start = time.perf_counter()
    try:
        executor.run(plan, left, tally.take)
    finally:
        tally.wall_seconds = time.perf_counter() - start
        # Times are worth no error, least of all one that hides another.
        with suppress(StoreError):
            _write_stats(folder, tally)


def _write_stats(folder: RunFolder, tally: _Tally) -> None:
    """Add this call's times to ``stats.json``; what a killed call took is not in there.

    The file holds ``shards`` and ``words`` that were timed, ``wall_seconds`` of all calls together, ``seconds`` by
    stage summed over workers, and ``words_per_second`` by stage (of one worker) and of the whole ``run``.
    """
    path = folder.run / "stats.json"
    earlier = orjson.loads(path.read_bytes()) if path.exists() else {}
    earlier_seconds = earlier.get("seconds", {})
    seconds = {stage: earlier_seconds.get(stage, 0.0) + tally.seconds[stage] for stage in _STAGES}
    wall_seconds = earlier.get("wall_seconds", 0.0) + tally.wall_seconds
    words = earlier.get("words", 0) + tally.words
    rates = {stage: words / taken for stage, taken in (*seconds.items(), ("run", wall_seconds)) if taken > 0}
    stats = {
        "shards": earlier.get("shards", 0) + tally.shards,
        "words": words,
        "wall_seconds": wall_seconds,
        "seconds": seconds,
        "words_per_second": rates,
    }
    _write(folder, path.name, orjson.dumps(stats, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def _write(folder: RunFolder, name: str, content: bytes) -> None:
    path = folder.run / name
    with store_faults(path):
        write_over(path, content, staging=folder.staging)


def _yaml(config: AnnotateConfig) -> bytes:
    text: str = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    return text.encode()


def _run_report(
    config: AnnotateConfig, plan: Plan, done: Mapping[int, ShardReport], *, done_before: int, tally: _Tally
) -> RunReport:
    reports = list(done.values())
    dead_letters = sum(report.dead_letters for report in reports)
    html = Path(config.output) / "_run" / "report.html"
    return RunReport(
        output=Path(config.output),
        read=plan.read,
        annotated=sum(report.annotated for report in reports),
        unchanged=sum(report.unchanged for report in reports),
        dead_letters=dead_letters,
        shards=len(plan.shards),
        done_before=done_before,
        seconds=tally.seconds,
        wall_seconds=tally.wall_seconds,
        words=tally.words,
        report=html if html.exists() else None,
        exit_code=3 if dead_letters > config.max_dead_letters * plan.read else 0,
    )
