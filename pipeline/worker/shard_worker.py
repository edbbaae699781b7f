"""The worker that executors run: it reads, parses, tags and commits shards.

Nothing of torch, Stanza or spaCy is imported before ``build_worker`` is called in the process of a worker.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from concord.models.bundles.manifest import tagger_digest
from concord.models.errors import ConcordError, ModelError
from concord.pipeline.documents import AnnotatedDocument, DeadLetter, Document, ParsedDocument
from concord.pipeline.errors import ShardError
from concord.pipeline.identity import component_signature
from concord.pipeline.output.manifest import CommitRecord
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.schema import UNCALIBRATED, Signature
from concord.pipeline.plan import Plan, Shard
from concord.pipeline.resources import bound_caches, trim_heap
from concord.pipeline.worker.commit_stage import CommitStage, Outcome
from concord.pipeline.worker.corrected_documents import correct_documents
from concord.pipeline.worker.shard_progress import OnShardProgress, ShardProgress, Timings, timed
from concord.pipeline.worker.stages import DocumentParser, DocumentTagger, ParseStage, ReadStage, TagStage

if TYPE_CHECKING:
    from concord.models.terms import TermMatcher

Record = Document | ParsedDocument | DeadLetter


class ShardWorker:
    """Runs shards through the stages read, parse, tag and commit; built once for each process."""

    def __init__(
        self, plan: Plan, *, parser: DocumentParser, tagger: DocumentTagger, terms: "TermMatcher | None" = None
    ) -> None:
        """Build the stages of a plan.

        Args:
            terms: the list that the plan names.
        """
        config, folder = plan.config, OutputFolder(plan.config.output.path)
        self._folder, self._generation, self._timings = folder, plan.generation, Timings()
        self.read_stage = ReadStage(plan, folder)
        self.parse_stage = ParseStage(parser, batch_documents=config.parser.batch_documents)
        self.tag_stage = TagStage(tagger, config.tagger, terms=terms, candidates=config.output.candidates)
        self.commit_stage = CommitStage(
            plan,
            folder,
            signature=Signature(
                parser=component_signature(plan.parser),
                tagger=component_signature(plan.tagger),
                calibration=UNCALIBRATED
                if tagger.calibration is None
                else tagger.calibration.summary(candidates=config.output.candidates),
            ),
            threshold=self.tag_stage.threshold,
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
        committed = self._folder.find_commit(shard.index, generation=self._generation)
        if committed is not None:
            return committed, Timings()
        seconds: dict[str, Any] = {}
        with timed(seconds, "read"):
            records = self.read_stage.run(shard)
        if annotate is not None:
            with timed(seconds, "tag"):
                outcomes = annotate(records)
        else:
            report = on_progress and partial(self._report, shard, on_progress)
            with timed(seconds, "parse"):
                parsed = self.parse_stage.run(records, on_batch=report and partial(report, "parse"))
            with timed(seconds, "tag"):
                outcomes = self.tag_stage.run(parsed, on_batch=report and partial(report, "tag"))
            del parsed
            self._timings += Timings(**seconds)
        outcomes = correct_documents(outcomes, shard.corrections)
        annotated = [outcome for outcome in outcomes if isinstance(outcome, AnnotatedDocument)]
        words = sum(len(prediction.labels) for document in annotated for prediction in document.predictions)
        with timed(seconds, "write"):
            committed = self.commit_stage.run(shard, outcomes)
            del records, outcomes, annotated
            trim_heap()
        return committed, Timings(**seconds, words=words)

    def _report(
        self, shard: Shard, on_progress: OnShardProgress, stage: Literal["parse", "tag"], done: int, words: int
    ) -> None:
        """Report how many of a shard's words a stage has done; the shards before tell what part of the work it is."""
        parse, tag = self._timings.parse, self._timings.tag
        first = parse / (parse + tag) if parse and tag else 0.5
        begin, end = (0.0, first) if stage == "parse" else (first, 1.0)
        share = begin + (end - begin) * done / max(1, words)
        try:
            on_progress(ShardProgress(shard=shard.index, stage=stage, share=share, words=round(share * words)))
        except ConcordError:
            raise
        except Exception as error:
            # The stages would take any other error for the fault of a document.
            raise ShardError(
                f"shard {shard.name}: its progress cannot be shown ({type(error).__name__}: {error}); run the command "
                "again"
            ) from error


BuildWorker = Callable[[Plan], ShardWorker]


def build_worker(plan: Plan) -> ShardWorker:
    """Load a plan's parser and tagger and build the worker; sets threads and caches of the process.

    Raises:
        ModelError: when one cannot be loaded or the tagger is not the one of the plan.
        InputError: when the list of terms cannot be read or is not the one of the plan.
    """
    bound_caches()
    import torch

    from concord.models.bundles.checkpoint import load_tagger
    from concord.pipeline.corpora.read_terms import read_terms_for
    from concord.pipeline.parsing.resolve_parser import load_parser

    torch.set_num_threads(plan.threads)
    folder = Path(plan.tagger_folder)
    if tagger_digest(folder) != plan.tagger.digest:
        raise ModelError(f"{folder}: not the tagger that the plan names: SHA-256 differs")
    tagger = load_tagger(folder, device=plan.config.tagger.device)
    terms = read_terms_for(tagger, plan.config.tagger.terms, digest=plan.tagger.terms)
    return ShardWorker(plan, parser=load_parser(plan.config.parser), tagger=tagger, terms=terms)
