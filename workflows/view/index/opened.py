"""The collection that is viewed, as it is now, with its index; both follow new generations and committed shards."""

import sqlite3
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from threading import Lock, Thread

from concord.models.errors import ConcordError
from concord.pipeline.output.collection import Collection, DocumentRow, open_collection
from concord.pipeline.output.manifest import CommitRecord, Manifest
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.storage.output_paths import OutputPath
from concord.pipeline.worker.source_texts import SourceTexts
from concord.workflows.job_files import cache_folder
from concord.workflows.view.index.search_index import Progress, SearchIndex, shard_key
from concord.workflows.view.page import UnavailableError

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
    shards: Mapping[str, CommitRecord]

    @property
    def state(self) -> str:
        """What tells this moment from others."""
        return f"{self.collection.manifest.generation} {len(self.shards)}"


class OpenedCollection:
    """A collection with its index. ``refresh`` notices a newer state of the folder, which ``snapshot`` then is."""

    def __init__(self, output: OutputPath, *, cache: Path | None = None, fetch: bool = False) -> None:
        """Open a collection and start to index it in the background.

        Args:
            cache: the folder for the index; by default that of downloaded models.
            fetch: whether texts of inputs behind URLs are read, which sends requests.

        Raises:
            PlanError: when the folder contains no run.
        """
        self.folder = OutputFolder(output)
        self.output = self.folder.output
        self._fetch = fetch
        self._looking = Lock()
        self._indexing = Lock()
        self._looked = 0.0
        self._state = ""
        self._texts = lru_cache(maxsize=_KEPT_TEXTS)(self._read_text)
        self.fault = ""
        """Why the index could not be updated; empty if it could."""
        self.progress = Progress(shards=0, listed=0, searchable=0)
        name = sha256(str(self.output).encode()).hexdigest()[:16]
        self.index = SearchIndex((cache or cache_folder() / "view") / f"{name}.sqlite")
        self.snapshot = self._look()

    def refresh(self) -> None:
        """Look at the folder again if the last look was some seconds ago; keep the last state while it is gone.

        Nobody waits for a look that another request has started.
        """
        patience = _LOOK_SECONDS if isinstance(self.output, Path) else _LOOK_SECONDS_STORE
        if time.monotonic() - self._looked <= patience or not self._looking.acquire(blocking=False):
            return
        try:
            self.snapshot = self._look()
        except (ConcordError, OSError) as error:
            self.fault = str(error)
        finally:
            self._looking.release()

    def text(self, row: DocumentRow) -> str:
        """Return the raw text of a document; UnavailableError if the input no longer has it."""
        # A list of parts is no key of a cache.
        text = self._texts(row._replace(parts=None))
        if isinstance(text, UnavailableError):
            raise UnavailableError(str(text))
        return text

    def wait(self) -> None:
        """Return when the index holds the newest state that was seen."""
        with self._indexing:
            pass

    def _read_text(self, row: DocumentRow) -> str | UnavailableError:
        try:
            return SourceTexts.of(self.snapshot.collection.plan, fetch=self._fetch).read(row)
        except ConcordError as error:
            # Returned, so that it is cached: the whole file may have been searched for the text.
            return UnavailableError(str(error))

    def _look(self) -> Snapshot:
        self._looked = time.monotonic()
        current = self.folder.generations.current()
        if current is not None and current.name == self._state:
            return self.snapshot
        collection = self._committed_so_far() if current is None else open_collection(self.folder)
        shards = {shard_key(report): report for report in collection.manifest.shards}
        state = f"{len(shards)} shards" if current is None else current.name
        if state == self._state:
            return self.snapshot
        self._state = state
        Thread(target=self._update_index, args=[collection], name="index", daemon=True).start()
        return Snapshot(collection=collection, unfinished=current is None, shards=shards)

    def _committed_so_far(self) -> Collection:
        """Return what a first run has committed, as a collection."""
        plan = self.folder.plan()
        reports = self.folder.finished_shards(plan).values()
        manifest = Manifest.of(plan, reports, read=sum(report.read for report in reports))
        return Collection(folder=self.folder, root=self.folder.generations.pending, manifest=manifest, plan=plan)

    def _update_index(self, collection: Collection) -> None:
        with self._indexing:
            try:
                for progress in self.index.update(collection):
                    self.progress, self.fault = progress, ""
            except (ConcordError, sqlite3.Error, OSError) as error:
                # A generation may be removed while it is being read; the next look finds the newer one.
                self.fault = str(error)
                self._state = ""
