"""Parse and tag a shard: as planned, in smaller batches where memory runs out, or without documents that kill."""

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from concord.pipeline.documents import DeadLetter, Document, ParsedDocument
from concord.pipeline.errors import ShortageError
from concord.pipeline.output.shard_stats import BackOffStep
from concord.pipeline.plan import Shard
from concord.pipeline.worker.commit_stage import Outcome
from concord.pipeline.worker.crash_log import CrashLog, ShardAttempts, Suspect, WorkPlace
from concord.pipeline.worker.memory import free_memory
from concord.pipeline.worker.shard_progress import ShardTracker, StageClock
from concord.pipeline.worker.stages import OUT_OF_MEMORY, ParseStage, TagStage

logger = logging.getLogger(__name__)

Record = Document | ParsedDocument | DeadLetter
Stages = tuple[ParseStage, TagStage]

_BATCHED_STEPS = (BackOffStep.AS_PLANNED, BackOffStep.HALF, BackOffStep.QUARTER, BackOffStep.EIGHTH)
_QUARANTINE_MESSAGES = {
    "worker_died": "its worker died each time it was done alone; fix or remove the document, or give workers more "
    "memory",
    "time_limit": "alone it took longer than executor.shard_seconds each time; fix or remove the document, or raise "
    "the limit",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class BackOff:
    """Parses and tags the records of one shard.

    Attributes:
        stages: provides the stages that parse and tag in a step.
    """

    shard: Shard
    stages: Callable[[BackOffStep], AbstractContextManager[Stages]]
    crash_log: CrashLog
    tracker: ShardTracker
    clock: StageClock

    def annotate(self, records: Sequence[Record], attempts: ShardAttempts) -> tuple[BackOffStep, list[Outcome]]:
        """Parse and tag as planned, or in the first step that has memory for it.

        Args:
            attempts: those that a worker has died of.

        Raises:
            ShortageError: when there is no memory for so many single documents that their size is hardly the cause.
        """
        if self.crash_log.needs_probe(attempts):
            attempts = self._probe(records, attempts)
        records = [_left_out(record, attempts.quarantined.get(number)) for number, record in enumerate(records)]
        if not self.crash_log.needs_isolation(attempts):
            for step in _BATCHED_STEPS:
                outcomes = self._annotate_batched(records, step)
                if outcomes is not None:
                    return step, outcomes
                free_memory()
        return BackOffStep.ALONE, self._annotate_one_by_one(records)

    def _probe(self, records: Sequence[Record], attempts: ShardAttempts) -> ShardAttempts:
        """Do each document alone to see which of them kills, and drop the results: the batches differ from the planned.

        A probe that was killed continues with the document that was in progress.
        """
        with self.stages(BackOffStep.ALONE) as stages:
            for number, record in enumerate(records[attempts.probed :], start=attempts.probed):
                self.tracker.begin_part(number, len(records))
                if not isinstance(record, DeadLetter) and number not in attempts.quarantined:
                    self._annotate_alone(number, record, *stages)
                self.crash_log.record_probed(self.shard, number + 1)
        self.tracker.begin_part(0, 1)
        return self.crash_log.record_probed(self.shard, len(records), is_done=True)

    def _annotate_batched(self, records: Sequence[Record], step: BackOffStep) -> list[Outcome] | None:
        """Parse and tag in batches; None if there is no memory for them."""
        try:
            with self.stages(step) as (parse_stage, tag_stage):
                with self.clock.timing("parse"):
                    parsed = parse_stage.run(records)
                with self.clock.timing("tag"):
                    return tag_stage.run(parsed)
        except ShortageError as error:
            logger.warning("shard %s: no memory to do it %s: %s", self.shard.name, step.description, error)
            return None

    def _annotate_one_by_one(self, records: Sequence[Record]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        out_of_memory = 0
        with self.stages(BackOffStep.ALONE) as stages:
            for number, record in enumerate(records):
                self.tracker.begin_part(number, len(records))
                outcome = record if isinstance(record, DeadLetter) else self._annotate_alone(number, record, *stages)
                outcomes.append(outcome)
                if outcome is not record and isinstance(outcome, DeadLetter):
                    out_of_memory += outcome.error == OUT_OF_MEMORY
                if self.crash_log.is_implausible(out_of_memory, self.shard):
                    raise ShortageError(
                        f"shard {self.shard.name}: no memory for {out_of_memory} documents, each alone: that is the "
                        "machine rather than the documents; give workers more memory and run the command again, or "
                        "leave them all out with --set max_dead_letters=1"
                    )
        return outcomes

    def _annotate_alone(
        self, number: int, record: Document | ParsedDocument, parse_stage: ParseStage, tag_stage: TagStage
    ) -> Outcome:
        """Annotate one document; while it is parsed and tagged, the crash log says so."""
        in_progress, stage = self.crash_log.mark_in_progress, "parse"
        try:
            with in_progress(self.shard, WorkPlace(number=number, stage="parse")), self.clock.timing("parse"):
                parsed = parse_stage.run([record])
            stage = "tag"
            with in_progress(self.shard, WorkPlace(number=number, stage="tag")), self.clock.timing("tag"):
                [outcome] = tag_stage.run(parsed)
                return outcome
        except ShortageError as error:
            message = f"{error}; no memory for it even alone; fix or remove the document, or give workers more memory"
            return DeadLetter.for_document(record, stage=stage, error=OUT_OF_MEMORY, message=message)


def _left_out(record: Record, suspect: Suspect | None) -> Record:
    """Return the dead letter of a document that workers have died of, any other record as it is."""
    if suspect is None or isinstance(record, DeadLetter):
        return record
    message = _QUARANTINE_MESSAGES[suspect.cause]
    return DeadLetter.for_document(record, stage=suspect.stage, error=suspect.cause, message=message)
