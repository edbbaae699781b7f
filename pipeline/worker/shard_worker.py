"""The worker: what one process runs shards with."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

import pyarrow as pa
import torch

from concord.models.checkpoint import ModelLoadError, load_tagger, tagger_digest
from concord.models.tagger import Tagger
from concord.pipeline.config import AnnotateConfig, ParserConfig
from concord.pipeline.documents import STAGES, AnnotatedDocument, DeadLetter, Document, ParsedDocument
from concord.pipeline.errors import IntegrityError, ModelError, ShortageError
from concord.pipeline.identity import component_signature
from concord.pipeline.output.manifest import ShardReport
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.schema import UNCALIBRATED
from concord.pipeline.output.shard_stats import BackOffStep
from concord.pipeline.parsing.stanza_parser import build_parser
from concord.pipeline.plan import Plan, Shard
from concord.pipeline.worker.bisect import left_out
from concord.pipeline.worker.commit_stage import CommitStage
from concord.pipeline.worker.crash_log import CrashLog, ShardAttempts, Suspect, WorkPlace
from concord.pipeline.worker.memory import bound_caches, free_all, return_freed
from concord.pipeline.worker.parse_stage import DocumentParser, Parse, ParseStage
from concord.pipeline.worker.read_stage import Read, ReadStage, with_parses
from concord.pipeline.worker.stored_parses import Parses, parse_tables
from concord.pipeline.worker.tag_stage import DocumentTagger, Tag, TagStage

logger = logging.getLogger(__name__)

Record = Document | ParsedDocument | DeadLetter
Outcome = AnnotatedDocument | DeadLetter
Committed = Callable[[Shard], ShardReport | None]
Lend = Callable[[], AbstractContextManager[tuple[DocumentParser, DocumentTagger]]]
BackOff = Callable[[BackOffStep], AbstractContextManager[tuple[Parse, Tag]]]

_OUT_OF_MEMORY = "out_of_memory"
_LEFT_OUT = {
    "worker_died": "its worker died each time it was alone at work; mend or leave out the document, or give workers "
    "more memory",
    "time_limit": "alone it took longer than executor.shard_seconds each time; mend or leave out the document, or "
    "raise the limit",
}


class Commit(Protocol):
    """What commits a shard; see CommitStage."""

    def __call__(self, shard: Shard, outcomes: Sequence[Outcome], *, step: BackOffStep) -> ShardReport:
        """Write and commit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Timings:
    """How long a shard took in each stage, in seconds, and its words. Not part of any output."""

    read: float = 0.0
    parse: float = 0.0
    tag: float = 0.0
    write: float = 0.0
    words: int = 0

    def __add__(self, other: "Timings") -> "Timings":
        """Put together what two workers took for one shard."""
        return Timings(**{name: getattr(self, name) + getattr(other, name) for name in self.__slots__})


class ShardWorker:
    """What one process runs shards with: built once, then one shard after the other. The stages are its attributes."""

    def __init__(
        self,
        *,
        committed: Committed,
        read: Read,
        parse: Parse,
        tag: Tag,
        commit: Commit,
        back_off: BackOff,
        trials: CrashLog,
    ) -> None:
        """Take the stages.

        Args:
            committed: gives the record of a shard that is done already.
            parse, tag: as planned.
            back_off: lends the two stages of a later step.
        """
        self.committed = committed
        self.read = read
        self.parse = parse
        self.tag = tag
        self.commit = commit
        self.back_off = back_off
        self._trials = trials

    @classmethod
    def assemble(
        cls, plan: Plan, *, parser: DocumentParser, tagger: DocumentTagger, on_cpu: Lend | None = None
    ) -> Self:
        """Build the stages of a plan around a parser and a tagger that are loaded.

        Args:
            on_cpu: lends the two for work on the CPU; None where they work there anyway.
        """
        parse, tag = _stages(plan.config, parser, tagger, step=BackOffStep.AS_PLANNED)
        folder = OutputFolder(plan.config.output)

        @contextmanager
        def back_off(step: BackOffStep) -> Iterator[tuple[Parse, Tag]]:
            if step is BackOffStep.ALONE and on_cpu is not None:
                with on_cpu() as (parser_there, tagger_there):
                    yield _stages(plan.config, parser_there, tagger_there, step=step)
            else:
                yield _stages(plan.config, parser, tagger, step=step)

        return cls(
            committed=lambda shard: folder.find_commit(shard.index, generation=plan.generation),
            read=ReadStage(plan.config.reader, folder, marks=plan.marks),
            parse=parse,
            tag=tag,
            commit=CommitStage(
                folder,
                generation=plan.generation,
                parser=component_signature(plan.parser),
                tagger=component_signature(plan.tagger),
                calibration=UNCALIBRATED if tagger.calibration is None else tagger.calibration.summary,
                threshold=tag.threshold,
            ),
            back_off=back_off,
            trials=CrashLog(plan),
        )

    def run(self, shard: Shard, *, parses: Parses | None = None) -> tuple[ShardReport, Timings]:
        """Annotate and commit one shard, unless an earlier try or another driver has done so.

        Args:
            parses: what another worker has parsed of the shard; the rest is parsed here.

        Raises:
            ReconciliationError: when a record is missing or came twice.
            StoreError: when there is no space.
            ShortageError: when there is no memory, even for single documents.
        """
        standing = self.committed(shard)
        if standing is not None:
            return standing, Timings()
        try:
            return self._run(shard, parses)
        except IntegrityError:
            # Another driver that finished first has removed the earlier parts that rows or parses were to come from.
            winner = self.committed(shard)
            if winner is None:
                raise
            return winner, Timings()

    def _run(self, shard: Shard, parses: Parses | None) -> tuple[ShardReport, Timings]:
        clock = _Clock()
        with clock.timing("read"):
            records = self.read(shard)
            if parses is not None:
                records = with_parses(records, parses.find)
        step, outcomes = self._annotate(shard, records, clock)
        words = sum(_words(outcome) for outcome in outcomes if isinstance(outcome, AnnotatedDocument))
        with clock.timing("write"):
            report = self.commit(shard, outcomes, step=step)
            del records, outcomes
            return_freed()
        return report, Timings(**clock.seconds, words=words)

    def _annotate(self, shard: Shard, records: Sequence[Record], clock: "_Clock") -> tuple[BackOffStep, list[Outcome]]:
        """Parse and tag as planned, or in the first step that has memory for it."""
        trial = self._trials.read(shard)
        if not self._trials.is_suspicious(trial):
            for step in (BackOffStep.AS_PLANNED, BackOffStep.HALF, BackOffStep.QUARTER, BackOffStep.EIGHTH):
                outcomes = self._together(shard, records, step, clock)
                if outcomes is not None:
                    return step, outcomes
                free_all()
        return BackOffStep.ALONE, self._one_by_one(shard, records, trial, clock)

    def _together(
        self, shard: Shard, records: Sequence[Record], step: BackOffStep, clock: "_Clock"
    ) -> list[Outcome] | None:
        """Do a shard in large batches; None where there is no memory for them."""
        with self._stages_of(step) as (parse, tag):
            try:
                with clock.timing("parse"):
                    parsed = parse(records)
                with clock.timing("tag"):
                    return tag(parsed)
            except ShortageError as error:
                logger.warning("shard %s: no memory to do it %s: %s", shard.name, step.description, error)
                return None

    @contextmanager
    def _stages_of(self, step: BackOffStep) -> Iterator[tuple[Parse, Tag]]:
        if step is BackOffStep.AS_PLANNED:
            yield self.parse, self.tag
        else:
            with self.back_off(step) as stages:
                yield stages

    def _one_by_one(
        self, shard: Shard, records: Sequence[Record], trial: ShardAttempts, clock: "_Clock"
    ) -> list[Outcome]:
        """Do each document alone, but for those that workers have died of.

        Raises:
            ShortageError: when there is no memory for so many that it is hardly they that are too large.
        """
        outcomes: list[Outcome] = []
        short = 0
        with self.back_off(BackOffStep.ALONE) as (parse, tag):
            for number, record in enumerate(records):
                suspect = trial.quarantined.get(number)
                if isinstance(record, DeadLetter):
                    outcomes.append(record)
                elif suspect is not None:
                    outcomes.append(_quarantined(record, suspect))
                else:
                    done = self._alone(shard, number, record, parse=parse, tag=tag, clock=clock)
                    short += sum(isinstance(one, DeadLetter) and one.error == _OUT_OF_MEMORY for one in done)
                    self._check_memory(shard, short)
                    outcomes += done
        return outcomes

    def _check_memory(self, shard: Shard, short: int) -> None:
        if self._trials.are_too_many(short, shard):
            raise ShortageError(
                f"shard {shard.name}: no memory for {short} documents, each alone: that is the machine rather than the "
                "documents; give workers more memory and run the command again, or leave them all out by "
                "--set max_dead_letters=1"
            )

    def _alone(
        self, shard: Shard, number: int, record: Document | ParsedDocument, *, parse: Parse, tag: Tag, clock: "_Clock"
    ) -> list[Outcome]:
        stage = "parse"
        try:
            with self._trials.mark_in_progress(shard, WorkPlace(number=number, stage="parse")), clock.timing("parse"):
                parsed = parse([record])
            stage = "tag"
            with self._trials.mark_in_progress(shard, WorkPlace(number=number, stage="tag")), clock.timing("tag"):
                return tag(parsed)
        except ShortageError as error:
            message = f"{error}; alone it found no memory; mend or leave out the document, or give workers more memory"
            return [left_out(record, stage=stage, error=_OUT_OF_MEMORY, message=message)]


class ParseWorker:
    """What one process parses shards with for workers that tag them.

    It backs off from nothing: what it cannot do is left to the worker that tags.
    """

    def __init__(self, *, read: Read, parse: Parse) -> None:
        """Take the stages."""
        self.read = read
        self.parse = parse

    @classmethod
    def assemble(cls, plan: Plan, *, parser: DocumentParser) -> Self:
        """Build the stages of a plan around a parser that is loaded."""
        return cls(
            read=ReadStage(plan.config.reader, OutputFolder(plan.config.output), marks=plan.marks),
            parse=ParseStage(parser, batch_documents=plan.config.parser.batch_documents),
        )

    def run(self, shard: Shard) -> tuple[dict[str, pa.Table], Timings]:
        """Give the parses of a shard's documents as tables (see ``concord.pipeline.worker.stored_parses``).

        Raises:
            ConcordError: when the shard cannot be read, or memory runs out.
            ValueError: when a parse cannot be written.
        """
        clock = _Clock()
        with clock.timing("read"):
            records = [record for record in self.read(shard) if isinstance(record, Document)]
        with clock.timing("parse"):
            parsed = [result for result in self.parse(records) if isinstance(result, ParsedDocument)]
            tables = parse_tables(parsed)
            del records, parsed
            return_freed()
        return tables, Timings(read=clock.seconds["read"], parse=clock.seconds["parse"])


def build_parse_worker(plan: Plan) -> ParseWorker:
    """Load a plan's parser alone and build the worker around it; sets threads and caches of the process.

    Raises:
        ModelError: when it cannot be loaded.
    """
    bound_caches()
    torch.set_num_threads(plan.threads)
    return ParseWorker.assemble(plan, parser=build_parser(plan.config.parser))


def build_worker(plan: Plan) -> ShardWorker:
    """Load a plan's parser and tagger and build the worker; sets threads and caches of the process.

    Raises:
        ModelError: when one cannot be loaded or the tagger is not the one of the plan.
    """
    bound_caches()
    torch.set_num_threads(plan.threads)
    folder = Path(plan.tagger_folder)
    try:
        if tagger_digest(folder) != plan.tagger.digest:
            raise ModelError(f"{folder}: not the tagger that the plan names: SHA-256 differs")
        tagger = load_tagger(folder, device=plan.config.tagger.device)
    except ModelLoadError as error:
        raise ModelError(str(error)) from error
    parser = build_parser(plan.config.parser)
    return ShardWorker.assemble(
        plan, parser=parser, tagger=tagger, on_cpu=lambda: _on_cpu(plan.config.parser, parser, tagger)
    )


def _stages(
    config: AnnotateConfig, parser: DocumentParser, tagger: DocumentTagger, *, step: BackOffStep
) -> tuple[ParseStage, TagStage]:
    """Give the stages of a step."""
    batch_words = max(1, config.tagger.batch_words // step.divisor)
    return (
        ParseStage(parser, batch_documents=max(1, config.parser.batch_documents // step.divisor)),
        TagStage(tagger, config.tagger.model_copy(update={"batch_words": batch_words})),
    )


@contextmanager
def _on_cpu(
    config: ParserConfig, parser: DocumentParser, tagger: Tagger
) -> Iterator[tuple[DocumentParser, DocumentTagger]]:
    """Lend parser and tagger for work on the CPU; the tagger is put back where it was."""
    device = str(tagger.device)
    there = parser if config.device == "cpu" else build_parser(config.model_copy(update={"device": "cpu"}))
    try:
        yield there, tagger.move_to("cpu")
    finally:
        tagger.move_to(device)


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


def _quarantined(record: Document | ParsedDocument, suspect: Suspect) -> DeadLetter:
    return left_out(record, stage=suspect.stage, error=suspect.cause, message=_LEFT_OUT[suspect.cause])


def _words(document: AnnotatedDocument) -> int:
    return sum(len(prediction.labels) for prediction in document.predictions)
