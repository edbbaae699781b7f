"""One annotation job, from its configuration to a finished output folder.

The same call starts a run, resumes it, or finds it finished.
"""

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial

import orjson
import yaml

from concord.pipeline.config import AnnotateConfig
from concord.pipeline.documents import STAGES
from concord.pipeline.errors import StoreError
from concord.pipeline.executors.base import BuildParseWorker, BuildWorker, Executor
from concord.pipeline.executors.local import LocalExecutor
from concord.pipeline.executors.ray_auth import resolve_auth_mode
from concord.pipeline.identity import ComponentIdentity, ResolvedTagger
from concord.pipeline.output.dead_letters import DeadLetterFilter
from concord.pipeline.output.manifest import ShardReport, sum_outcomes
from concord.pipeline.output.output_folder import STATS_NAME, OutputFolder
from concord.pipeline.plan import Changes, Plan, Shard
from concord.pipeline.planning.inputs import absolute, absolute_input, absolute_output
from concord.pipeline.planning.planner import Planner
from concord.pipeline.report.html import write_report
from concord.pipeline.storage.atomic_writes import store_errors, write_atomically
from concord.pipeline.storage.output_paths import OutputPath, output_path
from concord.pipeline.worker.shard_worker import Timings, build_parse_worker, build_worker


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
        shards: to be worked on in this generation; done_before of them were committed before this call.
        changes: how the input differs from what stood.
        reasons: why documents that stood are done again, if they are.
        seconds: by stage, summed over the shards and workers of this call.
        wall_seconds: of this call's work on shards.
        words: annotated by this call.
        replaced: workers of this call that others took the place of, by cause; see Executor.
        report: the HTML report, if there is one.
        exit_code: 0, or 3 when more records ended as dead letters than the configuration allows.
    """

    output: OutputPath
    read: int
    annotated: int
    unchanged: int
    dead_letters: int
    shards: int
    done_before: int
    changes: Changes = field(default_factory=Changes)
    reasons: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    wall_seconds: float = 0.0
    words: int = 0
    replaced: Mapping[str, int] = field(default_factory=dict)
    report: OutputPath | None = None
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
    build_parse: BuildParseWorker = build_parse_worker,
) -> RunReport:
    """Annotate what the output folder does not hold yet, and finish the run.

    A run that is finished is left as it is: nothing is loaded, started or written.

    Args:
        progress: called in this process.
        parser: which parser ``build`` loads; that of the configuration if None.
        build, build_parse: make the worker, and one that parses for others, in the process where it works.

    Raises:
        PlanError, InputError, ModelError, ConfigError: when the job cannot run as it is.
        ReconciliationError, ShardError, IntegrityError: when it fails; what is committed stays.
        StoreError: when there is no space.
        StoppedError: after SIGTERM or SIGINT.
    """
    config = _absolute(config)
    folder = OutputFolder(config.output)
    planner = Planner(config, folder, tagger=tagger, parser=parser)
    plan = planner.resolve()
    folder.write_plan(plan)
    planner.hashes.save(staging=folder.staging)
    executor = partial(_executor, config, build, build_parse)
    return _carry_out(config, plan, folder=folder, progress=progress, executor=executor)


def retry(
    config: AnnotateConfig,
    *,
    choice: DeadLetterFilter,
    tagger: ResolvedTagger,
    progress: Callable[[Progress], None] | None = None,
    parser: ComponentIdentity | None = None,
    build: BuildWorker = build_worker,
    build_parse: BuildParseWorker = build_parse_worker,
) -> RunReport:
    """Try dead letters of a finished run again, and leave everything else as it is.

    A letter that fails again stands again, with one more in ``attempts``.

    Args:
        config: that of the run's plan; another executor is fine, another recipe is not.
        choice: which of them; with none to try nothing is loaded, started or written.

    Raises:
        PlanError: when the run is not finished, or the other documents would have to be done again as well.
        InputError: when a file that holds such a letter is gone.
        ConcordError: as ``annotate`` does.
    """
    config = _absolute(config)
    folder = OutputFolder(config.output)
    plan = Planner(config, folder, tagger=tagger, parser=parser).retry(choice)
    folder.write_plan(plan)
    executor = partial(_executor, config, build, build_parse)
    return _carry_out(config, plan, folder=folder, progress=progress, executor=executor)


def _carry_out(
    config: AnnotateConfig,
    plan: Plan,
    *,
    folder: OutputFolder,
    progress: Callable[[Progress], None] | None,
    executor: Callable[[], Executor],
) -> RunReport:
    """Have the shards of a frozen plan done that are not, and finish the run."""
    kept, done = folder.reused_shards(plan), folder.committed_shards(plan)
    left = [shard for shard in plan.shards if shard.index not in done]
    tally = _Tally(plan, [*kept.values(), *done.values()], progress)
    finished = folder.is_finished(plan)
    if not finished:
        _write(folder, "config.resolved.yaml", _yaml(config))
        tally.tell()
        if left:
            folder.remove_broken_commits(left, generation=plan.generation)
            _work(plan, left, folder=folder, executor=executor(), tally=tally)
        folder.finish(plan)
    report = folder.run / "report.html"
    if config.report and not (finished and report.exists()):
        write_report(folder.output)
    return _run_report(
        config, plan, [*kept.values(), *folder.committed_shards(plan).values()], done_before=len(done), tally=tally
    )


def dry_run(config: AnnotateConfig, *, tagger: ResolvedTagger, parser: ComponentIdentity | None = None) -> RunReport:
    """Say what ``annotate`` would find to do, and write nothing.

    Returns:
        the counts of what earlier calls have committed; ``read``, ``shards`` and ``plan`` are those of the run to come.

    Raises:
        PlanError, InputError, ModelError: as ``annotate`` would.
    """
    config = _absolute(config)
    folder = OutputFolder(config.output)
    plan = Planner(config, folder, tagger=tagger, parser=parser).resolve()
    done = folder.committed_shards(plan)
    reports = [*folder.reused_shards(plan).values(), *done.values()]
    return _run_report(config, plan, reports, done_before=len(done), tally=_Tally(plan, reports, None))


def _absolute(config: AnnotateConfig) -> AnnotateConfig:
    """Make paths absolute: a worker has another working folder."""
    parser = config.parser
    if parser.directory is not None:
        parser = parser.model_copy(update={"directory": absolute(parser.directory)})
    paths = {"input": absolute_input(config.input), "output": absolute_output(config.output)}
    return config.model_copy(update={**paths, "parser": parser})


def _executor(config: AnnotateConfig, build: BuildWorker, build_parse: BuildParseWorker) -> Executor:
    if config.executor.kind == "local":
        return LocalExecutor(build=build)
    resolve_auth_mode(os.environ.get("RAY_ADDRESS"))
    # Importing Ray takes seconds, and a finished run needs none.
    from concord.pipeline.executors.ray_cluster import RayExecutor

    return RayExecutor(config.executor, build=build, build_parse=build_parse)


class _Tally:
    """What this call has done so far, and whom to tell."""

    def __init__(self, plan: Plan, done: Iterable[ShardReport], progress: Callable[[Progress], None] | None) -> None:
        reports = list(done)
        self.shards = 0
        self.words = 0
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self.wall_seconds = 0.0
        self.replaced: Mapping[str, int] = {}
        self._plan = plan
        self._shards_done = len(reports)
        self._read_done = sum(report.read for report in reports)
        self._progress = progress

    def take(self, report: ShardReport, timings: Timings) -> None:
        self.shards += 1
        self.words += timings.words
        for stage in STAGES:
            self.seconds[stage] += getattr(timings, stage)
        self._shards_done += 1
        self._read_done += report.read
        self.tell()

    def tell(self) -> None:
        if self._progress is not None:
            self._progress(
                Progress(
                    shards_done=self._shards_done,
                    shards=len(self._plan.shards) + len(self._plan.kept),
                    read_done=self._read_done,
                    read=self._plan.read,
                )
            )


def _work(plan: Plan, left: Sequence[Shard], *, folder: OutputFolder, executor: Executor, tally: _Tally) -> None:
    start = time.perf_counter()
    try:
        tally.replaced = executor.run(plan, left, tally.take)
    finally:
        tally.wall_seconds = time.perf_counter() - start
        # Times are worth no error, least of all one that hides another.
        with suppress(StoreError):
            _write_stats(folder, tally)


def _write_stats(folder: OutputFolder, tally: _Tally) -> None:
    """Add this call's times to ``stats.json``; what a killed call took is not in there.

    The file holds ``shards`` and ``words`` that were timed, ``wall_seconds`` of all calls together, ``seconds`` by
    stage summed over workers, and ``words_per_second`` by stage (of one worker) and of the whole ``run``.
    """
    earlier = folder.stats()
    earlier_seconds = earlier.get("seconds", {})
    seconds = {stage: earlier_seconds.get(stage, 0.0) + tally.seconds[stage] for stage in STAGES}
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
    _write(folder, STATS_NAME, orjson.dumps(stats, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def _write(folder: OutputFolder, name: str, content: bytes) -> None:
    path = folder.run / name
    with store_errors(path):
        write_atomically(path, content, staging=folder.staging)


def _yaml(config: AnnotateConfig) -> bytes:
    text: str = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    return text.encode()


def _run_report(
    config: AnnotateConfig, plan: Plan, reports: Sequence[ShardReport], *, done_before: int, tally: _Tally
) -> RunReport:
    outcome = sum_outcomes(reports, generation=plan.generation)
    output = output_path(config.output)
    html = output / "_run" / "report.html"
    return RunReport(
        output=output,
        read=plan.read,
        **asdict(outcome),
        shards=len(plan.shards),
        done_before=done_before,
        changes=plan.changes,
        reasons=plan.reasons,
        seconds=tally.seconds,
        wall_seconds=tally.wall_seconds,
        words=tally.words,
        replaced=tally.replaced,
        report=html if html.exists() else None,
        exit_code=3 if outcome.dead_letters > config.max_dead_letters * plan.read else 0,
    )
