"""Which plan a job works on: the one that was begun, the finished one, or that of the next generation."""

import os
from collections.abc import Mapping, Sequence
from functools import partial

from concord.pipeline.config import AnnotateConfig
from concord.pipeline.errors import IntegrityError, ModelError, PlanError
from concord.pipeline.executors.ray_auth import resolve_auth_mode
from concord.pipeline.identity import ComponentIdentity, Recipe, ResolvedTagger, component_signature, row_config
from concord.pipeline.output.dead_letters import DeadLetterFilter
from concord.pipeline.output.manifest import Manifest, ShardReport, shard_ref
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.schema import SCHEMA_VERSION
from concord.pipeline.parsing.stanza_parser import parser_identity
from concord.pipeline.plan import Plan, ShardRef
from concord.pipeline.planning.build_plan import make_plan, retry_plan
from concord.pipeline.planning.existing_output import ExistingFile, ExistingOutput, scan_existing
from concord.pipeline.planning.file_hashes import FileHashes, hash_here
from concord.pipeline.storage.files import file_state

_MOST_LOCAL_THREADS = 4


class Planner:
    """Finds out what a job has to do in its output folder; writes nothing.

    Attributes:
        hashes: of the input's files, to be kept for the next run.
    """

    def __init__(
        self,
        config: AnnotateConfig,
        folder: OutputFolder,
        *,
        tagger: ResolvedTagger,
        parser: ComponentIdentity | None = None,
    ) -> None:
        """Take a configuration with absolute paths.

        Args:
            parser: that of the configuration if None.

        Raises:
            PlanError: when the plan that stands cannot be read.
            ModelError: when the parser is not installed, or the tagger learned from other trees than it gives.
        """
        self._config = config
        self._folder = folder
        self._latest = folder.plan() if folder.latest_generation() is not None else None
        self._tagger = tagger
        self._parser = parser or parser_identity(config.parser)
        if not config.tagger.accept_parser:
            check_trees(tagger.name, tagger.trees, parser=component_signature(self._parser))
        self._recipe = Recipe(
            schema_version=SCHEMA_VERSION,
            parser=component_signature(self._parser),
            tagger=component_signature(tagger.identity),
            config=row_config(config),
        )
        hash_files = partial(_hash_files, config) if config.executor.kind == "ray" else hash_here
        self.hashes = FileHashes(folder.run / "files.json", hash_files=hash_files, trust=not config.planning.rehash)

    def resolve(self) -> Plan:
        """Give the plan to work on.

        Raises:
            PlanError: when the folder holds the annotation of another input, or too much of the input is gone.
            InputError, StoreError, ConfigError: when the input cannot be planned.
            IntegrityError: when what stands cannot be read.
        """
        manifest = self._manifest()
        try:
            return self._resolve(manifest)
        except IntegrityError:
            # Another driver that finished meanwhile has removed what its generation has replaced.
            newer = self._manifest()
            if newer == manifest:
                raise
            self._latest = self._folder.plan()
            return self._resolve(newer)

    def _resolve(self, manifest: Manifest | None) -> Plan:
        folder, latest = self._folder, self._latest
        if latest is None:
            return self._plan(0)
        self._check_input(latest)
        if manifest is not None and manifest.generation == latest.generation:
            return self._follow(latest)
        base = folder.plan(manifest.generation) if manifest is not None else None
        again = self._plan(latest.generation, base=base)
        if again.digest == latest.digest:
            return again
        return self._plan(latest.generation + 1, base=base, begun=latest)

    def retry(self, choice: DeadLetterFilter) -> Plan:
        """Give the plan that tries dead letters of a finished run again; its own plan where none is chosen.

        Raises:
            PlanError: when the run is not finished, or the rest of it would have to be done again as well.
            IntegrityError: when what stands is not whole.
            InputError, StoreError: when a file that holds such a letter cannot be read.
        """
        folder, latest, manifest = self._folder, self._latest, self._manifest()
        if latest is None or manifest is None:
            raise PlanError(f"{folder.output}: the run is not finished; finish it with 'concord annotate' first")
        base = folder.plan(manifest.generation)
        self._check_recipe(base)
        if not folder.is_complete(base):
            raise IntegrityError(f"{folder.output}: files are gone or cut; 'concord annotate' makes them anew")
        standing = self._scan_existing([base], files=_known_files(base, None, limit=base.config.limit))
        generation = max(latest.generation, base.generation + 1)
        plan = retry_plan(
            base, self._config, generation=generation, standing=standing, choice=choice, hashes=self.hashes
        )
        if latest.generation != base.generation and plan.digest != latest.digest:
            raise PlanError(
                f"{folder.output}: generation {latest.generation} is begun and not finished; finish it with the "
                "command that began it, or with 'concord annotate', first"
            )
        self._check_removed(plan, standing)
        if not plan.shards:
            return base.model_copy(update={"changes": plan.changes, "reasons": ()})
        return plan

    def _check_recipe(self, base: Plan) -> None:
        """Refuse to put rows of two recipes into one collection."""
        differences = self._recipe.difference(base.recipe)
        differences += [
            f"{name}: was {then!r}, is now {now!r}"
            for name, then, now in (
                ("input", base.config.input, self._config.input),
                ("limit", base.config.limit, self._config.limit),
                ("tagger.model", base.config.tagger.model, self._config.tagger.model),
            )
            if then != now
        ]
        if differences:
            raise PlanError(
                f"{self._folder.output}: a retry leaves the other documents as they are, and they would not be as a "
                f"run of today gives them ({'; '.join(differences)}); 'concord annotate' does all of them again, "
                "dead letters included"
            )

    def _manifest(self) -> Manifest | None:
        """Read the manifest; a broken one tells nothing that plans and commit records do not."""
        try:
            return self._folder.manifest()
        except IntegrityError:
            return None

    def _follow(self, finished: Plan) -> Plan:
        """Give what comes after a finished generation: itself if nothing has changed since."""
        if not self._folder.is_complete(finished) and finished.stands_alone:
            # Harmed since: the same plan again gives the bytes that are gone.
            again = self._plan(finished.generation)
            if again.digest == finished.digest:
                return again
        following = self._plan(finished.generation + 1, base=finished)
        standing = self._folder.reused_shards(finished) | self._folder.committed_shards(finished)
        untouched = {(carry.shard, carry.generation) for carry in following.kept}
        whole = untouched == {(report.shard, report.generation) for report in standing.values()}
        if following.shards or not whole:
            return following
        return finished.model_copy(update={"changes": following.changes, "reasons": following.reasons})

    def _plan(self, generation: int, *, base: Plan | None = None, begun: Plan | None = None) -> Plan:
        """Make the plan of a generation.

        Args:
            base: the plan of a finished generation.
            begun: that of a generation after it, which was interrupted and no longer fits.
        """
        plans = [plan for plan in (base, begun) if plan is not None]
        files = _known_files(base, begun, limit=self._config.limit)
        standing = self._scan_existing(plans, files=files) if plans else None
        plan = make_plan(
            self._config,
            parser=self._parser,
            tagger=self._tagger.identity,
            tagger_folder=self._tagger.folder.absolute(),
            threads=_threads(self._config, self._latest),
            generation=generation,
            standing=standing,
            reasons=[line for plan in plans for line in self._recipe.difference(plan.recipe)],
            hashes=self.hashes,
        )
        if standing is not None and self._config.limit is not None and plan.changes.removed:
            raise PlanError(
                f"limit: {plan.changes.removed:,} of the {len(standing.documents):,} documents in "
                f"{self._folder.output} are not among the first {self._config.limit:,} records and would be dropped; "
                "give another --output"
            )
        if standing is not None:
            self._check_removed(plan, standing)
        return plan

    def _check_removed(self, plan: Plan, standing: ExistingOutput) -> None:
        if plan.changes.removed > self._config.max_removed * len(standing.documents):
            raise PlanError(
                f"{self._config.input}: {plan.changes.removed:,} of the {len(standing.documents):,} documents in "
                f"{self._folder.output} are gone; see that the input is all there, or allow it with --set max_removed=1"
            )

    def _check_input(self, latest: Plan) -> None:
        if latest.config.input != self._config.input and not self._config.accept_input:
            raise PlanError(
                f"{self._folder.output}: holds the annotation of {latest.config.input}, this job reads "
                f"{self._config.input}: give another --output folder, or --set accept_input=true where the collection "
                "is to follow the new input"
            )

    def _scan_existing(self, plans: Sequence[Plan], *, files: Mapping[str, ExistingFile]) -> ExistingOutput:
        """Look over what these generations, the earlier first, have committed."""
        reports: dict[ShardRef, ShardReport] = {}
        current: dict[int, ShardRef] = {}
        parsed: set[ShardRef] = set()
        for plan in plans:
            done = self._folder.committed_shards(plan)
            for shard in plan.shards:
                for carry in shard.carries if shard.index in done else ():
                    reports.pop(ShardRef(shard=carry.shard, generation=carry.generation), None)
            own = {shard_ref(report): report for report in (*self._folder.reused_shards(plan).values(), *done.values())}
            reports |= own
            if not self._recipe.difference(plan.recipe):
                # Of a shard that was written over by a run of which no plan is left, only the later state counts.
                current |= {place.shard: place for place in own}
            if self._recipe.parses_alike(plan.recipe):
                parsed |= own.keys()
        return scan_existing(
            self._folder.output,
            list(reports.values()),
            current=reports.keys() & set(current.values()),
            parsed=parsed & reports.keys(),
            files=files,
        )


def check_trees(name: str, trees: str | None, *, parser: str) -> None:
    """Refuse a tagger that learned from other trees than it would be given.

    Args:
        name, trees: of the tagger (concord.models.tagger.Tagger.trees).
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


def _known_files(base: Plan | None, begun: Plan | None, *, limit: int | None) -> dict[str, ExistingFile]:
    """Give the input files of which a finished generation holds every record, and no later one has touched any.

    Args:
        limit: of the plan to come; another one would take more or fewer records of some file.
    """
    if base is None or base.config.limit != limit:
        return {}
    later = {source.uri: source.sha256 for source in begun.sources} if begun is not None else None
    return {
        source.uri: ExistingFile(source.sha256, source.records)
        for source in base.sources
        if later is None or later.get(source.uri) == source.sha256
    }


def _threads(config: AnnotateConfig, latest: Plan | None) -> int:
    """Settle the threads of a worker: as configured, else as the standing plan has them, else by the executor."""
    if config.executor.threads is not None:
        return config.executor.threads
    if latest is not None:
        return latest.threads
    if config.executor.kind == "ray":
        return 1
    return min(_MOST_LOCAL_THREADS, len(os.sched_getaffinity(0)))


def _hash_files(config: AnnotateConfig, paths: Sequence[str]) -> list[str]:
    if sum(file_state(path).size for path in paths) <= config.planning.hash_with_ray_bytes:
        return hash_here(paths)
    resolve_auth_mode(os.environ.get("RAY_ADDRESS"))
    from concord.pipeline.executors.ray_cluster import hash_files

    return hash_files(paths)
