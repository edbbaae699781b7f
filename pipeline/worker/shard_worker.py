"""The worker that executors run: it reads, parses, tags and commits shards."""

from collections.abc import Callable, Sequence

from concord.models.terms import TermMatcher
from concord.pipeline.documents import AnnotatedDocument, DeadLetter, Document, ParsedDocument
from concord.pipeline.identity import component_signature
from concord.pipeline.output.manifest import CommitRecord
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.schema import UNCALIBRATED, Signature
from concord.pipeline.plan import Plan, Shard
from concord.pipeline.resources import trim_heap
from concord.pipeline.worker.commit_stage import CommitStage, Outcome
from concord.pipeline.worker.corrected_documents import correct_documents
from concord.pipeline.worker.shard_progress import OnShardProgress, ShardTracker, StageClock, Timings
from concord.pipeline.worker.source_texts import SourceTexts
from concord.pipeline.worker.stages import DocumentParser, DocumentTagger, ParseStage, ReadStage, TagStage

Record = Document | ParsedDocument | DeadLetter


class ShardWorker:
    """Runs shards through the stages read, parse, tag and commit; built once for each process."""

    def __init__(
        self, plan: Plan, *, parser: DocumentParser, tagger: DocumentTagger, terms: TermMatcher | None = None
    ) -> None:
        """Build the stages of a plan.

        Args:
            terms: the list that the plan names.
        """
        config, folder = plan.config, OutputFolder(plan.config.output.path)
        self._tracker = ShardTracker()
        self.read_stage = ReadStage(config.reader, folder, etags=plan.etags, libraries=plan.libraries)
        self.parse_stage = ParseStage(
            parser, batch_documents=config.parser.batch_documents, on_share=self._tracker.on_parse
        )
        self.tag_stage = TagStage(
            tagger, config.tagger, terms=terms, candidates=config.output.candidates, on_share=self._tracker.on_tag
        )
        self.commit_stage = CommitStage(
            folder,
            generation=plan.generation,
            signature=Signature(
                parser=component_signature(plan.parser),
                tagger=component_signature(plan.tagger),
                calibration=UNCALIBRATED
                if tagger.calibration is None
                else tagger.calibration.summary(candidates=config.output.candidates),
            ),
            threshold=self.tag_stage.threshold,
            keep_text=config.output.keep_text,
            texts=SourceTexts.of(plan) if config.output.keep_text else None,
        )

    def run(
        self,
        shard: Shard,
        *,
        annotate: Callable[[Sequence[Record]], list[Outcome]] | None = None,
        on_progress: OnShardProgress | None = None,
    ) -> tuple[CommitRecord, Timings]:
        """Annotate and commit one shard, unless an earlier attempt has done so.

        Args:
            annotate: parses and tags in place of this process.
            on_progress: called between batches; what it raises ends the work, and nothing is committed.

        Raises:
            ReconciliationError: when a record is missing or came twice.
            StoreError: when there is no space.
            ShortageError: when there is no memory.
        """
        committed = self.commit_stage.find_commit(shard)
        if committed is not None:
            return committed, Timings()
        with self._tracker.listening(shard.index, on_progress):
            return self._run(shard, annotate)

    def _run(
        self, shard: Shard, annotate: Callable[[Sequence[Record]], list[Outcome]] | None
    ) -> tuple[CommitRecord, Timings]:
        clock = StageClock()
        with clock.timing("read"):
            records = self.read_stage.run(shard)
        if annotate is None:
            with clock.timing("parse"):
                parsed = self.parse_stage.run(records)
            with clock.timing("tag"):
                outcomes = self.tag_stage.run(parsed)
            self._tracker.add_seconds(parse=clock.seconds["parse"], tag=clock.seconds["tag"])
            del parsed
        else:
            with clock.timing("tag"):
                outcomes = annotate(records)
        outcomes = correct_documents(outcomes, shard.corrections)
        annotated = [outcome for outcome in outcomes if isinstance(outcome, AnnotatedDocument)]
        words = sum(len(prediction.labels) for document in annotated for prediction in document.predictions)
        with clock.timing("write"):
            report = self.commit_stage.run(shard, outcomes)
            del records, outcomes, annotated
            trim_heap()
        return report, Timings(**clock.seconds, words=words)
