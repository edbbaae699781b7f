"""The worker that executors run: it parses, tags and commits shards.

A shard is annotated as planned, in smaller batches where memory runs out, or without documents that kill.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from concord.models.terms import TermMatcher
from concord.pipeline.documents import AnnotatedDocument, DeadLetter, Document, ParsedDocument
from concord.pipeline.errors import IntegrityError, ShortageError
from concord.pipeline.identity import component_signature
from concord.pipeline.output.manifest import CommitRecord
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.schema import UNCALIBRATED, Signature
from concord.pipeline.output.shard_stats import BackOffStep
from concord.pipeline.plan import Plan, Shard
from concord.pipeline.resources import free_memory, trim_heap
from concord.pipeline.worker.commit_stage import CommitStage, Outcome
from concord.pipeline.worker.corrected_documents import correct_documents
from concord.pipeline.worker.crash_log import CrashLog, ShardAttempts, Suspect, WorkPlace
from concord.pipeline.worker.shard_progress import OnShardProgress, ShardTracker, StageClock, Timings
from concord.pipeline.worker.source_texts import SourceTexts
from concord.pipeline.worker.stages import (
    OUT_OF_MEMORY,
    DocumentParser,
    DocumentTagger,
    ParseStage,
    ReadStage,
    TagStage,
)

logger = logging.getLogger(__name__)

OnCpu = Callable[[], AbstractContextManager[tuple[DocumentParser, DocumentTagger]]]
Record = Document | ParsedDocument | DeadLetter
Stages = tuple[ParseStage, TagStage]

_BATCHED_STEPS = (BackOffStep.AS_PLANNED, BackOffStep.HALF, BackOffStep.QUARTER, BackOffStep.EIGHTH)
_QUARANTINE_MESSAGES = {
    "worker_died": "its worker died each time it was done alone; fix or remove the document, or give workers more "
    "memory",
    "time_limit": "alone it took longer than executor.shard_seconds each time; fix or remove the document, or raise "
    "the limit",
}


class ShardWorker:
    """Runs shards through the stages read, parse, tag and commit; built once for each process.

    A shard that finds no memory is done again in smaller steps (see BackOffStep). One whose workers have died is done
    again without the documents that kill (see ``concord.pipeline.worker.crash_log``).
    """

    def __init__(
        self,
        plan: Plan,
        *,
        parser: DocumentParser,
        tagger: DocumentTagger,
        terms: TermMatcher | None = None,
        on_cpu: OnCpu | None = None,
    ) -> None:
        """Build the stages of a plan.

        Args:
            terms: the list that the plan names.
            on_cpu: provides both models on the CPU, for the last step; None if they are there already.
        """
        folder = OutputFolder(plan.config.output.path)
        self.read_stage = ReadStage(plan.config.reader, folder, etags=plan.etags, libraries=plan.libraries)
        self._config = plan.config
        self._terms = terms
        self._tracker = ShardTracker()
        self.parse_stage, self.tag_stage = self._build_stages(parser, tagger, BackOffStep.AS_PLANNED)
        self.commit_stage = CommitStage(
            folder,
            generation=plan.generation,
            signature=Signature(
                parser=component_signature(plan.parser),
                tagger=component_signature(plan.tagger),
                calibration=UNCALIBRATED
                if tagger.calibration is None
                else tagger.calibration.summary(candidates=plan.config.output.candidates),
            ),
            threshold=self.tag_stage.threshold,
            keep_text=plan.config.output.keep_text,
            texts=SourceTexts.of(plan) if plan.config.output.keep_text else None,
        )
        self._parser = parser
        self._tagger = tagger
        self._on_cpu = on_cpu
        self._crash_log = CrashLog(plan)

    def run(self, shard: Shard, *, on_progress: OnShardProgress | None = None) -> tuple[CommitRecord, Timings]:
        """Annotate and commit one shard, unless an earlier attempt or another driver has done so.

        Args:
            on_progress: called between batches; what it raises ends the work, and nothing is committed.

        Raises:
            ReconciliationError: when a record is missing or came twice.
            StoreError: when there is no space.
            ShortageError: when there is no memory, even for single documents.
        """
        committed = self.commit_stage.find_commit(shard)
        if committed is not None:
            return committed, Timings()
        try:
            with self._tracker.listening(shard.index, on_progress):
                return self._run(shard)
        except IntegrityError:
            # Another driver that finished first has removed the earlier parts that rows or parses were to come from.
            winner = self.commit_stage.find_commit(shard)
            if winner is None:
                raise
            return winner, Timings()

    def _run(self, shard: Shard) -> tuple[CommitRecord, Timings]:
        clock = StageClock()
        attempts = self._crash_log.read(shard)
        with clock.timing("read"):
            records = self.read_stage.run(shard)
        back_off = BackOff(
            shard=shard, stages=self._stages, crash_log=self._crash_log, tracker=self._tracker, clock=clock
        )
        step, outcomes = back_off.annotate(records, attempts)
        outcomes = correct_documents(outcomes, shard.corrections)
        annotated = [outcome for outcome in outcomes if isinstance(outcome, AnnotatedDocument)]
        words = sum(len(prediction.labels) for document in annotated for prediction in document.predictions)
        with clock.timing("write"):
            report = self.commit_stage.run(shard, outcomes, step=step)
            del records, outcomes, annotated
            trim_heap()
        self._tracker.add_seconds(parse=clock.seconds["parse"], tag=clock.seconds["tag"])
        return report, Timings(**clock.seconds, words=words)

    @contextmanager
    def _stages(self, step: BackOffStep) -> Iterator[Stages]:
        """Provide the stages that parse and tag in a step; those for single documents compute on the CPU."""
        if step is BackOffStep.AS_PLANNED:
            yield self.parse_stage, self.tag_stage
            return
        on_cpu = self._on_cpu if step is BackOffStep.ALONE else None
        with nullcontext((self._parser, self._tagger)) if on_cpu is None else on_cpu() as (parser, tagger):
            yield self._build_stages(parser, tagger, step)

    def _build_stages(self, parser: DocumentParser, tagger: DocumentTagger, step: BackOffStep) -> Stages:
        config, tracker = self._config, self._tracker
        batch_words = max(1, config.tagger.batch_words // step.divisor)
        batch_documents = max(1, config.parser.batch_documents // step.divisor)
        return (
            ParseStage(parser, batch_documents=batch_documents, on_share=tracker.on_parse),
            TagStage(
                tagger,
                config.tagger.model_copy(update={"batch_words": batch_words}),
                terms=self._terms,
                candidates=config.output.candidates,
                on_share=tracker.on_tag,
            ),
        )


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
