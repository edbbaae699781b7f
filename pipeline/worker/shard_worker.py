"""The workers that executors run: one parses, tags and commits shards, the other only parses for it."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import pyarrow as pa

from concord.models.terms.term_matcher import TermMatcher
from concord.pipeline.documents import STAGES, AnnotatedDocument, DeadLetter, Document, ParsedDocument
from concord.pipeline.errors import IntegrityError, ShortageError
from concord.pipeline.identity import component_signature
from concord.pipeline.output.manifest import ShardReport
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.schema import UNCALIBRATED, Signature
from concord.pipeline.output.shard_stats import BackOffStep
from concord.pipeline.plan import Plan, Shard
from concord.pipeline.worker.bisect import OUT_OF_MEMORY
from concord.pipeline.worker.commit_stage import CommitStage, Outcome
from concord.pipeline.worker.corrected_documents import correct_documents
from concord.pipeline.worker.crash_log import CrashLog, ShardAttempts, Suspect, WorkPlace
from concord.pipeline.worker.memory import free_memory, trim_heap
from concord.pipeline.worker.parse_stage import DocumentParser, ParseStage
from concord.pipeline.worker.read_stage import ReadStage
from concord.pipeline.worker.shard_progress import OnShardProgress, ShardTracker, Timings
from concord.pipeline.worker.stored_parses import Parses, parse_tables
from concord.pipeline.worker.tag_stage import DocumentTagger, TagStage

logger = logging.getLogger(__name__)

Record = Document | ParsedDocument | DeadLetter
OnCpu = Callable[[], AbstractContextManager[tuple[DocumentParser, DocumentTagger]]]

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
        self.read_stage = ReadStage(plan.config.reader, folder, etags=plan.etags)
        self._config = plan.config
        self._terms = terms
        self._tracker = ShardTracker()
        self.parse_stage, self.tag_stage = self._stages(parser, tagger, step=BackOffStep.AS_PLANNED)
        self.commit_stage = CommitStage(
            folder,
            generation=plan.generation,
            signature=Signature(
                parser=component_signature(plan.parser),
                tagger=component_signature(plan.tagger),
                calibration=UNCALIBRATED if tagger.calibration is None else tagger.calibration.summary,
            ),
            threshold=self.tag_stage.threshold,
            keep_text=plan.config.output.keep_text,
        )
        self._parser = parser
        self._tagger = tagger
        self._on_cpu = on_cpu
        self._crash_log = CrashLog(plan)

    def run(
        self, shard: Shard, *, parses: Parses | None = None, on_progress: OnShardProgress | None = None
    ) -> tuple[ShardReport, Timings]:
        """Annotate and commit one shard, unless an earlier attempt or another driver has done so.

        Args:
            parses: what another worker has parsed of the shard; the rest is parsed here.
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
                return self._run(shard, parses)
        except IntegrityError:
            # Another driver that finished first has removed the earlier parts that rows or parses were to come from.
            winner = self.commit_stage.find_commit(shard)
            if winner is None:
                raise
            return winner, Timings()

    def _run(self, shard: Shard, parses: Parses | None) -> tuple[ShardReport, Timings]:
        clock = _Clock()
        attempts = self._crash_log.read(shard)
        if attempts.suspects:
            # They were made in batches with documents that may be left out.
            parses = None
        with clock.timing("read"):
            records = self.read_stage.run(shard, parses=parses)
        step, outcomes = self._annotate(shard, records, attempts, clock)
        outcomes = correct_documents(outcomes, shard.corrections)
        annotated = [outcome for outcome in outcomes if isinstance(outcome, AnnotatedDocument)]
        words = sum(len(prediction.labels) for document in annotated for prediction in document.predictions)
        with clock.timing("write"):
            report = self.commit_stage.run(shard, outcomes, step=step)
            del records, outcomes, annotated
            trim_heap()
        self._tracker.add_seconds(parse=clock.seconds["parse"], tag=clock.seconds["tag"])
        return report, Timings(**clock.seconds, words=words)

    def _annotate(
        self, shard: Shard, records: Sequence[Record], attempts: ShardAttempts, clock: "_Clock"
    ) -> tuple[BackOffStep, list[Outcome]]:
        """Parse and tag as planned, or in the first back-off step that has memory for it."""
        if self._crash_log.needs_probe(attempts):
            attempts = self._probe(shard, records, attempts, clock)
        records = [_left_out(record, attempts.quarantined.get(number)) for number, record in enumerate(records)]
        if not self._crash_log.needs_isolation(attempts):
            for step in _BATCHED_STEPS:
                outcomes = self._annotate_batched(shard, records, step, clock)
                if outcomes is not None:
                    return step, outcomes
                free_memory()
        return BackOffStep.ALONE, self._annotate_one_by_one(shard, records, clock)

    def _probe(
        self, shard: Shard, records: Sequence[Record], attempts: ShardAttempts, clock: "_Clock"
    ) -> ShardAttempts:
        """Do each document alone to see which of them kills, and drop the results: their batches are not the planned.

        A probe that was killed continues with the document that was in progress.
        """
        with self._alone() as stages:
            for number, record in enumerate(records[attempts.probed :], start=attempts.probed):
                self._tracker.begin_part(number, len(records))
                if not isinstance(record, DeadLetter) and number not in attempts.quarantined:
                    self._annotate_alone(shard, number, record, *stages, clock)
                self._crash_log.record_probed(shard, number + 1)
        self._tracker.begin_part(0, 1)
        return self._crash_log.record_probed(shard, len(records), is_done=True)

    def _annotate_batched(
        self, shard: Shard, records: Sequence[Record], step: BackOffStep, clock: "_Clock"
    ) -> list[Outcome] | None:
        """Parse and tag a shard in batches; None if there is no memory for them."""
        parse_stage, tag_stage = self.parse_stage, self.tag_stage
        if step is not BackOffStep.AS_PLANNED:
            parse_stage, tag_stage = self._stages(self._parser, self._tagger, step=step)
        try:
            with clock.timing("parse"):
                parsed = parse_stage.run(records)
            self._tracker.words = _count_words(parsed)
            with clock.timing("tag"):
                return tag_stage.run(parsed)
        except ShortageError as error:
            logger.warning("shard %s: no memory to do it %s: %s", shard.name, step.description, error)
            return None

    @contextmanager
    def _alone(self) -> Iterator[tuple[ParseStage, TagStage]]:
        """Provide the stages that do one document at a time, on the CPU."""
        with self._on_cpu() if self._on_cpu is not None else nullcontext((self._parser, self._tagger)) as models:
            yield self._stages(*models, step=BackOffStep.ALONE)

    def _annotate_one_by_one(self, shard: Shard, records: Sequence[Record], clock: "_Clock") -> list[Outcome]:
        """Parse and tag each document alone.

        Raises:
            ShortageError: when there is no memory for so many that their size is hardly the cause.
        """
        outcomes: list[Outcome] = []
        out_of_memory = 0
        with self._alone() as stages:
            for number, record in enumerate(records):
                self._tracker.begin_part(number, len(records))
                if isinstance(record, DeadLetter):
                    outcomes.append(record)
                    continue
                done = self._annotate_alone(shard, number, record, *stages, clock)
                out_of_memory += sum(isinstance(one, DeadLetter) and one.error == OUT_OF_MEMORY for one in done)
                if self._crash_log.is_implausible(out_of_memory, shard):
                    raise ShortageError(
                        f"shard {shard.name}: no memory for {out_of_memory} documents, each alone: that is the "
                        "machine rather than the documents; give workers more memory and run the command again, or "
                        "leave them all out with --set max_dead_letters=1"
                    )
                outcomes += done
        return outcomes

    def _stages(
        self, parser: DocumentParser, tagger: DocumentTagger, *, step: BackOffStep
    ) -> tuple[ParseStage, TagStage]:
        """Build the stages that parse and tag in a back-off step."""
        config, tracker = self._config, self._tracker
        batch_words = max(1, config.tagger.batch_words // step.divisor)
        batch_documents = max(1, config.parser.batch_documents // step.divisor)
        return (
            ParseStage(parser, batch_documents=batch_documents, on_share=tracker.on_parse),
            TagStage(
                tagger,
                config.tagger.model_copy(update={"batch_words": batch_words}),
                terms=self._terms,
                on_share=tracker.on_tag,
            ),
        )

    def _annotate_alone(
        self,
        shard: Shard,
        number: int,
        record: Document | ParsedDocument,
        parse_stage: ParseStage,
        tag_stage: TagStage,
        clock: "_Clock",
    ) -> list[Outcome]:
        mark = self._crash_log.mark_in_progress
        stage = "parse"
        try:
            with mark(shard, WorkPlace(number=number, stage="parse")), clock.timing("parse"):
                parsed = parse_stage.run([record])
            stage = "tag"
            with mark(shard, WorkPlace(number=number, stage="tag")), clock.timing("tag"):
                return tag_stage.run(parsed)
        except ShortageError as error:
            message = f"{error}; no memory for it even alone; fix or remove the document, or give workers more memory"
            return [DeadLetter.for_document(record, stage=stage, error=OUT_OF_MEMORY, message=message)]


class ParseWorker:
    """Parses shards for workers that tag them, and never backs off: what it cannot do is left to the one that tags."""

    def __init__(self, plan: Plan, *, parser: DocumentParser) -> None:
        self._read_stage = ReadStage(plan.config.reader, OutputFolder(plan.config.output.path), etags=plan.etags)
        self._parse_stage = ParseStage(parser, batch_documents=plan.config.parser.batch_documents)

    def run(self, shard: Shard) -> tuple[dict[str, pa.Table], Timings]:
        """Return the parses of a shard's documents as tables (see ``concord.pipeline.worker.stored_parses``)."""
        clock = _Clock()
        with clock.timing("read"):
            records = [record for record in self._read_stage.run(shard) if isinstance(record, Document)]
        with clock.timing("parse"):
            parsed = [result for result in self._parse_stage.run(records) if isinstance(result, ParsedDocument)]
            tables = parse_tables(parsed)
            del records, parsed
            trim_heap()
        return tables, Timings(read=clock.seconds["read"], parse=clock.seconds["parse"])


def _left_out(record: Record, suspect: Suspect | None) -> Record:
    """Return the dead letter of a document that workers have died of, any other record as it is."""
    if suspect is None or isinstance(record, DeadLetter):
        return record
    message = _QUARANTINE_MESSAGES[suspect.cause]
    return DeadLetter.for_document(record, stage=suspect.stage, error=suspect.cause, message=message)


def _count_words(records: Sequence[ParsedDocument | DeadLetter]) -> int:
    documents = (record for record in records if isinstance(record, ParsedDocument))
    return sum(len(sentence.words) for document in documents for sentence in document.sentences)


class _Clock:
    """Seconds by stage."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)

    @contextmanager
    def timing(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] += time.perf_counter() - start
