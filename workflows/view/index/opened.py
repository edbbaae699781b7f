"""The collection that is viewed, as it is now, with its index; both follow new generations and committed shards."""

import sqlite3
import time
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from threading import Lock, Thread

from concord.models.errors import ConcordError
from concord.pipeline.documents import DeadLetter
from concord.pipeline.exchange.source_texts import SourceTexts
from concord.pipeline.output.collection import Collection, open_collection
from concord.pipeline.output.document_rows import DocumentRow
from concord.pipeline.output.manifest import Manifest, ShardReport, sum_outcomes
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.storage.output_paths import OutputPath
from concord.workflows.environment import cache_folder
from concord.workflows.view.index.search_index import Progress, SearchIndex, shard_key
from concord.workflows.view.recent import Recent

_LOOK_SECONDS = 2.0
_LOOK_SECONDS_STORE = 30.0
_KEPT_TEXTS = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """The collection at one moment.

    Attributes:
        unfinished: whether no run over it has finished, so that there are only the shards committed so far.
        shards: the commit records, by ``shard_key``.
    """

    collection: Collection
    unfinished: bool
    shards: Mapping[str, ShardReport]


class OpenedCollection:
    """A collection with its index. Pages ask for ``snapshot`` first, which notices a newer state of the folder."""

    def __init__(self, output: OutputPath, *, cache: Path | None = None) -> None:
        """Open a collection and start to index it in the background.

        Args:
            cache: the folder for the index; by default that of downloaded models.

        Raises:
            PlanError: when the folder contains no run.
        """
        self.output = output.absolute()
        self._folder = OutputFolder(self.output)
        self._lock = Lock()
        self._indexing = Lock()
        self._looked = 0.0
        self._state = ""
        self._texts: Recent[tuple[str, str], str | DeadLetter] = Recent(_KEPT_TEXTS)
        self.fault = ""
        """Why the index could not be updated; empty if it could."""
        self.progress = Progress(shards=0, listed=0, searchable=0)
        name = sha256(str(self.output).encode()).hexdigest()[:16]
        self.index = SearchIndex((cache or cache_folder() / "view") / f"{name}.sqlite")
        self._snapshot = self._look()

    @property
    def snapshot(self) -> Snapshot:
        """The state of the collection, looked up again every few seconds; the last one while the folder is gone."""
        with self._lock:
            patience = _LOOK_SECONDS if isinstance(self.output, Path) else _LOOK_SECONDS_STORE
            if time.monotonic() - self._looked > patience:
                try:
                    self._snapshot = self._look()
                except (ConcordError, OSError) as error:
                    self.fault = str(error)
            return self._snapshot

    def text(self, row: DocumentRow) -> str | DeadLetter:
        """Return the raw text of a document, or why there is none."""
        key = row.doc_id, row.text_sha256
        with self._lock:
            text = self._texts.get(key)
            plan = self._snapshot.collection.plan
        if text is None:
            # Without the lock, which every page needs: a source may take long to read.
            try:
                text = SourceTexts.of(plan).find(row)
            except ConcordError as error:
                text = DeadLetter(
                    doc_id=row.doc_id,
                    source_uri=row.source_uri,
                    position=row.source_position,
                    stage="read",
                    error="source_gone",
                    message=str(error),
                )
            with self._lock:
                self._texts[key] = text
        return text

    def wait(self) -> None:
        """Return when the index holds the newest state that was seen."""
        with self._indexing:
            pass

    def _look(self) -> Snapshot:
        self._looked = time.monotonic()
        current = self._folder.generations.current()
        if current is not None:
            state = current.name
            if state == self._state:
                return self._snapshot
            collection, unfinished = open_collection(self.output), False
        else:
            collection, unfinished = self._committed_so_far(), True
            state = f"{len(collection.manifest.shards)} shards"
            if state == self._state:
                return self._snapshot
        self._state = state
        snapshot = Snapshot(
            collection=collection,
            unfinished=unfinished,
            shards={shard_key(report): report for report in collection.manifest.shards},
        )
        Thread(target=self._update_index, args=[collection], name="index", daemon=True).start()
        return snapshot

    def _committed_so_far(self) -> Collection:
        """Return what a first run has committed, as a collection."""
        plan = self._folder.plan()
        reports = self._folder.reused_shards(plan) | self._folder.committed_shards(plan)
        shards = tuple(reports[index] for index in sorted(reports))
        outcome = sum_outcomes(shards, generation=plan.generation)
        manifest = Manifest(
            schema_version=plan.schema_version,
            generation=plan.generation,
            plan=plan.digest,
            read=sum(report.read for report in shards),
            annotated=outcome.annotated,
            unchanged=outcome.unchanged,
            dead_letters=outcome.dead_letters,
            shards=shards,
        )
        return Collection(output=self.output, root=self._folder.generations.pending, manifest=manifest, plan=plan)

    def _update_index(self, collection: Collection) -> None:
        with self._indexing:
            try:
                for progress in self.index.update(collection):
                    self.progress, self.fault = progress, ""
            except (ConcordError, sqlite3.Error, OSError) as error:
                # A generation may be removed while it is being read; the next look finds the newer one.
                self.fault = str(error)
                self._state = ""
