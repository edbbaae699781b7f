"""Attempts at shards: one that ends its process each time is annotated in another, one document at a time.

A process that dies takes its memory with it, so how many have died on a shard is in a small file below
``_run/attempts``, which each attempt writes before it begins and removes at its end. The file outlives the process, not
the machine, so it is not flushed to disk.

After two deaths, or without memory, a shard is annotated in the sister of the process that extracts texts
(``concord.pipeline.readers.extraction``), under the same limits. Each document is tried alone, to see which of them end
it; the others are then annotated there as planned, as if those had never been in the input. So it does no harm that a
kill from outside is counted as well: the shard has the same bytes.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from concord.pipeline.documents import DeadLetter, ParsedDocument
from concord.pipeline.errors import DeviceError, ShardError, ShortageError
from concord.pipeline.output.manifest import CommitRecord
from concord.pipeline.plan import Plan, Shard
from concord.pipeline.readers.extraction import Isolation
from concord.pipeline.readers.records import RecordError
from concord.pipeline.resources import free_memory
from concord.pipeline.storage.atomic_writes import store_errors, write_unsynced
from concord.pipeline.storage.output_paths import OutputPath, output_path, read_bytes, remove
from concord.pipeline.worker.commit_stage import Outcome
from concord.pipeline.worker.shard_progress import OnShardProgress, ShardProgress, Timings
from concord.pipeline.worker.shard_worker import BuildWorker, Record, ShardWorker

logger = logging.getLogger(__name__)

Stage = Literal["parse", "tag"]

_PLAIN_ATTEMPTS = 2
_ALONE = " alone"
"""What the file says in addition while documents are annotated one by one, for which a driver has no limit of time."""
_ALWAYS_PLAUSIBLE = 5
"""Documents of a shard that may end their process without being implausibly many."""
# A tenth of what the slowest parsers do, and ten times what parsers take.
_CHARACTERS_A_SECOND = 50
_BYTES_A_CHARACTER = 10_000


class ShardRunner:
    """Runs shards in this process, whose worker it holds.

    Args:
        build: builds a worker from a plan; another process imports it by its name.
    """

    def __init__(self, plan: Plan, build: BuildWorker) -> None:
        self._plan = plan.for_workers()
        self._build = build
        self._worker = build(plan)

    def run(
        self, shard: Shard, *, on_progress: OnShardProgress = lambda _progress: None
    ) -> tuple[CommitRecord, Timings]:
        """Annotate and commit a shard.

        Args:
            on_progress: called from time to time; what it raises ends the work, and nothing is committed.

        Raises:
            ReconciliationError: when a record is missing or came twice.
            StoreError: when there is no space.
            ShardError: when so many documents end their process that they are hardly the cause.
            ShortageError: when there is no memory to read or write the shard.
        """
        with self._counted(shard) as earlier:
            plan = self._plan
            if earlier < _PLAIN_ATTEMPTS:
                try:
                    return self._worker.run(shard, on_progress=on_progress)
                except ShortageError as error:
                    reason, plan = str(error), _on_cpu(plan)
                free_memory()
            else:
                reason = f"{earlier} processes have died on it"
            _write(attempts_path(plan, shard), f"{earlier + 1}{_ALONE}")
            logger.warning(
                "shard %s, %d records of %s: %s; its documents are annotated one by one, in a process of their own",
                *(shard.name, shard.records, ", ".join(piece.uri for piece in shard.pieces[:3]), reason),
            )
            prepare = partial(_prepare, self._build, plan)
            with closing(Isolation(prepare=prepare, verb="annotates", died="annotation_died")) as process:
                isolated = _IsolatedShard(shard, plan, process, on_progress)
                return self._worker.run(shard, annotate=isolated.annotate)

    @contextmanager
    def _counted(self, shard: Shard) -> Iterator[int]:
        """Count the attempt while the block runs; yields how many there were before it.

        One that loses the device, or exits, stays counted, since a document may be the cause.
        """
        path = attempts_path(self._plan, shard)
        earlier = _read(path)
        _write(path, str(earlier + 1))
        try:
            yield earlier
        except (DeviceError, SystemExit):
            raise
        except BaseException:
            forget_attempts(self._plan, shard)
            raise
        forget_attempts(self._plan, shard)


def attempts_path(plan: Plan, shard: Shard) -> OutputPath:
    """Return the path of the file that counts the attempts at a shard which have not ended."""
    return output_path(plan.config.output.path) / "_run" / "attempts" / str(plan.generation) / shard.name


def forget_attempts(plan: Plan, shard: Shard) -> None:
    """Have attempts at a shard no longer counted."""
    path = attempts_path(plan, shard)
    with store_errors(path):
        remove(path)


def is_annotated_alone(plan: Plan, shard: Shard) -> bool:
    """Tell whether a worker has begun to annotate the documents of a shard one by one."""
    with suppress(FileNotFoundError):
        return read_bytes(attempts_path(plan, shard)).endswith(_ALONE.encode())
    return False


def _read(path: OutputPath) -> int:
    """Return the number in a file; 0 if there is none, or one that was cut off when its machine went down."""
    try:
        return int(read_bytes(path).removesuffix(_ALONE.encode()))
    except (FileNotFoundError, ValueError):
        return 0


def _write(path: OutputPath, content: str) -> None:
    with store_errors(path):
        write_unsynced(path, content.encode())


def _on_cpu(plan: Plan) -> Plan:
    """Return a plan whose models compute on the CPU, which has more memory."""
    config = plan.config
    on_cpu = {name: getattr(config, name).model_copy(update={"device": "cpu"}) for name in ("parser", "tagger")}
    return plan.model_copy(update={"config": config.model_copy(update=on_cpu)})


@dataclass(slots=True)
class _IsolatedShard:
    """The records of a shard, and the process that annotates them."""

    shard: Shard
    plan: Plan
    process: Isolation
    on_progress: OnShardProgress
    share: float = 0.0
    fatal: dict[int, DeadLetter] = field(default_factory=dict)

    def annotate(self, records: Sequence[Record]) -> list[Outcome]:
        """Annotate each document alone, and then all that do not end the process as planned.

        Where those end it together, the outcomes are those of each alone.
        """
        alone = []
        for number, record in enumerate(records):
            self.share = number / (len(records) + 1)
            self._report()
            alone.append(self._annotate_alone(number, record))
            self._check_plausible()
        left = [self.fatal.get(number, record) for number, record in enumerate(records)]
        together = self._call(("parse", "tag"), left)
        return alone if isinstance(together, RecordError) else together

    def _annotate_alone(self, number: int, record: Any) -> Outcome:
        stages: tuple[Stage, ...] = ("parse", "tag")
        for stage in stages:
            if isinstance(record, DeadLetter):
                break
            found = self._call((stage,), [record])
            if isinstance(found, RecordError):
                fault = DeadLetter.for_document(record, stage=stage, error=found.code, message=str(found))
                self.fatal[number] = fault
                return fault
            [record] = found
        outcome: Outcome = record
        return outcome

    def _check_plausible(self) -> None:
        if len(self.fatal) > max(_ALWAYS_PLAUSIBLE, self.plan.config.max_dead_letters * self.shard.records):
            raise ShardError(
                f"shard {self.shard.name}: {len(self.fatal)} of its documents ended the process that annotates them, "
                f"each alone: that is the machine, the model or reader.extraction_memory_bytes rather than the "
                "documents; --set max_dead_letters=1 continues regardless"
            )

    def _call(self, stages: tuple[Stage, ...], records: Sequence[Any]) -> list[Any] | RecordError:
        """Return what stages make of records, or why the process has ended."""
        reader = self.plan.config.reader
        characters = sum(_characters(record) for record in records)
        seconds = len(records) * reader.extraction_seconds + characters / _CHARACTERS_A_SECOND
        memory = reader.extraction_memory_bytes + characters * _BYTES_A_CHARACTER
        update = {"extraction_seconds": seconds * self.plan.threads, "extraction_memory_bytes": memory}
        limits = reader.model_copy(update=update)
        [found] = self.process.each(_run_stages, [(stages, records)], config=limits, on_wait=self._report)
        return found

    def _report(self) -> None:
        self.on_progress(ShardProgress(shard=self.shard.index, share=self.share))


def _characters(record: Record) -> int:
    if isinstance(record, DeadLetter):
        return 0
    return len(record.document.text if isinstance(record, ParsedDocument) else record.text)


_workers: list[ShardWorker] = []
"""The worker of a process of its own."""


def _prepare(build: BuildWorker, plan: Plan) -> None:
    _workers.append(build(plan))


def _run_stages(stages: Sequence[Stage], records: Sequence[Any]) -> list[Any]:
    """Return what stages make of records, without what the encoder has read, which is not sent."""
    [worker] = _workers
    for stage in stages:
        records = getattr(worker, f"{stage}_stage").run(records)
    return [replace(record, passages=()) if isinstance(record, ParsedDocument) else record for record in records]
