"""What a run reports: its progress while it works, its result at the end, and its times in ``stats.json``."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import perf_counter

from concord.pipeline.documents import STAGES
from concord.pipeline.job import ResolvedJob
from concord.pipeline.output.manifest import CommitRecord
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.run_stats import RunStats, known_generations, read_stats, stats_errors, write_stats
from concord.pipeline.plan import Changes, Plan
from concord.pipeline.storage.output_paths import OutputPath
from concord.pipeline.worker.shard_progress import ShardProgress, Timings


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far a run is, in shards and in records.

    Attributes:
        words: that this call has annotated, those of shards in flight included.
        in_flight: the shards that are being done, by index.
        read_in_flight: their records, by the share of each shard that is done.
        share: of the work of this call that is done, by bytes of input, 0..1.
    """

    shards_done: int
    shards: int
    read_done: int
    read: int
    reasons: tuple[str, ...] = ()
    words: int = 0
    in_flight: tuple[ShardProgress, ...] = ()
    read_in_flight: float = 0.0
    share: float = 0.0


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunReport:
    """The result of a run.

    Attributes:
        read: records of the input.
        annotated, unchanged, dead_letters: what became of them, see ``Manifest``; documents that an earlier call
            annotated, one that was interrupted included, are unchanged.
        shards: of this generation's plan; done_before of them were committed before this call.
        formats: files of the input by their format, the most frequent first.
        ignored: see Plan.ignored.
        changes: how the input differs from what existed.
        named: of a dry run, the ids of the documents by field of ``changes``, in the order of the input.
        reasons: why unchanged documents are annotated again, if they are.
        seconds: by stage, summed over the shards and workers of this call.
        wall_seconds: of this call's work on shards.
        words: annotated by this call.
        report: the HTML report, if there is one.
        lost_files: see Plan.lost_files.
        exit_code: 0, or 3 when there are more dead letters, or lost files, than the configuration allows.
    """

    output: OutputPath
    read: int
    annotated: int
    unchanged: int
    dead_letters: int
    shards: int
    done_before: int
    formats: Mapping[str, int] = field(default_factory=dict)
    ignored: int = 0
    changes: Changes = field(default_factory=Changes)
    named: Mapping[str, Sequence[str]] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    wall_seconds: float = 0.0
    words: int = 0
    report: OutputPath | None = None
    lost_files: tuple[str, ...] = ()
    exit_code: int = 0

    def exceeds(self, max_dead_letters: float) -> bool:
        """Tell whether a greater share of the records than this are dead letters."""
        return self.dead_letters > max_dead_letters * self.read

    @property
    def words_per_second(self) -> float:
        """Words annotated by this call per second of its work; 0 when there was none."""
        return self.words / self.wall_seconds if self.wall_seconds else 0.0


class RunTally:
    """Counts and times the shards of one call, and reports its progress.

    Args:
        committed: the shards that need no work.

    Attributes:
        wall_seconds: that the work on shards took.
    """

    def __init__(self, plan: Plan, committed: Collection[CommitRecord], on_progress: OnProgress | None = None) -> None:
        self.wall_seconds = 0.0
        self._plan = plan
        self._on_progress = on_progress
        self._committed = len(committed)
        self._added: set[int] = set()
        self._read_done = sum(report.read for report in committed)
        self._timings = Timings()
        self._records = {shard.index: shard.records for shard in plan.shards}
        done = {report.shard for report in committed}
        self._work = {shard.index: shard.num_bytes + shard.records for shard in plan.shards if shard.index not in done}
        self._work_total, self._work_done = sum(self._work.values()), 0
        self._in_flight: dict[int, ShardProgress] = {}

    def report_progress(self) -> None:
        """Call back with the progress so far."""
        if self._on_progress is None:
            return
        in_flight = tuple(self._in_flight[index] for index in sorted(self._in_flight))
        self._on_progress(
            Progress(
                shards_done=self._committed + len(self._added),
                shards=len(self._plan.shards) + len(self._plan.reused),
                read_done=self._read_done,
                read=self._plan.read,
                reasons=self._plan.reasons,
                words=self._timings.words + sum(shard.words for shard in in_flight),
                in_flight=in_flight,
                read_in_flight=sum(shard.share * self._records[shard.shard] for shard in in_flight),
                share=self._share(in_flight),
            )
        )

    def _share(self, in_flight: Sequence[ShardProgress]) -> float:
        done = self._work_done + sum(shard.share * self._work[shard.shard] for shard in in_flight)
        return done / self._work_total if self._work_total else 1.0

    def update(self, progress: ShardProgress) -> None:
        """Note how far a shard in flight is."""
        self._in_flight[progress.shard] = progress
        self.report_progress()

    def add(self, report: CommitRecord, timings: Timings) -> None:
        """Count a shard that has just been committed."""
        self._added.add(report.shard)
        self._work_done += self._work[report.shard]
        self._read_done += report.read
        self._timings += timings
        self._in_flight.pop(report.shard, None)
        self.report_progress()

    @contextmanager
    def timed(self, folder: OutputFolder) -> Iterator[None]:
        """Time the work on shards, and add the times to those of earlier calls even if it fails."""
        start = perf_counter()
        try:
            yield
        finally:
            self.wall_seconds = perf_counter() - start
            with stats_errors(folder):
                self._add_times(folder)

    def _add_times(self, folder: OutputFolder) -> None:
        """Add this call's times to ``stats.json``, and the counts of earlier generations, which may soon be removed."""
        number, earlier = self._plan.generation, read_stats(folder)
        own = earlier.find(number)
        times = {"words": own.words + self._timings.words, "seconds": own.seconds + self.wall_seconds}
        past = (generation for generation in known_generations(folder) if generation.number < number)
        stats = RunStats(
            shards=earlier.shards + len(self._added),
            words=earlier.words + self._timings.words,
            wall_seconds=earlier.wall_seconds + self.wall_seconds,
            seconds={stage: earlier.seconds.get(stage, 0.0) + taken for stage, taken in self._seconds().items()},
            generations=earlier.generations,
        )
        write_stats(folder, stats.replace(*past, own.model_copy(update=times)))

    def confirm(self, folder: OutputFolder) -> None:
        """Record in ``stats.json`` that a run has found nothing to change since the plan's generation was finished.

        The first generation needs no record, since nothing is compared with it.
        """
        with stats_errors(folder):
            stats = read_stats(folder)
            own = stats.find(self._plan.generation)
            if own.number > 0 and not own.confirmed:
                write_stats(folder, stats.replace(own.model_copy(update={"confirmed": True})))

    def result(self, job: ResolvedJob, *, done_before: int) -> RunReport:
        """Return the result of the call, given how many of the plan's shards were committed before it."""
        plan, folder, config = self._plan, job.folder, job.config
        html = folder.metadata / "report.html"
        finished = folder.finished_shards(plan).values()
        documents = sum(report.annotated + report.unchanged for report in finished)
        annotated = sum(report.annotated for report in finished if report.shard in self._added)
        report = RunReport(
            output=folder.output,
            read=plan.read,
            annotated=annotated,
            unchanged=documents - annotated,
            dead_letters=sum(report.dead_letters for report in finished),
            shards=len(plan.shards),
            done_before=done_before,
            formats=dict(Counter(source.format for source in plan.sources).most_common()),
            ignored=plan.ignored,
            changes=plan.changes,
            reasons=plan.reasons,
            seconds=self._seconds(),
            wall_seconds=self.wall_seconds,
            words=self._timings.words,
            report=html if html.exists() else None,
            lost_files=plan.lost_files,
        )
        is_too_much = report.exceeds(config.max_dead_letters) or len(report.lost_files) > config.max_lost_files
        return replace(report, exit_code=3) if is_too_much else report

    def _seconds(self) -> dict[str, float]:
        return {stage: getattr(self._timings, stage) for stage in STAGES}
