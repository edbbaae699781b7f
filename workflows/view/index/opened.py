"""The collection that is viewed, as it is now, with its index; both follow new generations and committed shards.

Documents are read from its tables a page at a time: some sentences with their words, and the text around them.
"""

import sqlite3
import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from itertools import islice, repeat
from pathlib import Path
from threading import Lock, Thread

import numpy as np

from concord.models.errors import ConcordError
from concord.pipeline.errors import IntegrityError
from concord.pipeline.output.collection import (
    ROW_COLUMNS,
    Collection,
    DocumentRow,
    SentenceRow,
    TokenRow,
    open_collection,
)
from concord.pipeline.output.manifest import CommitRecord, Manifest
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.storage.output_paths import OutputPath
from concord.pipeline.worker.source_texts import SourceTexts
from concord.workflows.job_files import cache_folder
from concord.workflows.view.index.queries import IndexedDocument, IndexedEntity
from concord.workflows.view.index.search_index import SLOT_BITS, VERSION, Progress, SearchIndex, select, shard_key
from concord.workflows.view.page import UnavailableError

_LOOK_SECONDS = 2.0
_LOOK_SECONDS_STORE = 30.0
_KEPT_TEXTS = 2


class OpenedCollection:
    """A collection with its index. ``refresh`` notices a newer state of the folder, which ``collection`` then is."""

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
        self.progress = Progress(0, 0)
        name = sha256(str(self.output).encode()).hexdigest()[:16]
        self.index = SearchIndex((cache or cache_folder() / "view") / f"{name}-{VERSION}.sqlite")
        self.collection = self._look()

    @property
    def unfinished(self) -> bool:
        """Whether no run over it has finished, so that there are only the shards committed so far."""
        return self.collection.root == self.folder.generations.pending

    def refresh(self) -> None:
        """Look at the folder again if the last look was some seconds ago; keep the last state while it is gone.

        Nobody waits for a look that another request has started.
        """
        patience = _LOOK_SECONDS if isinstance(self.output, Path) else _LOOK_SECONDS_STORE
        if time.monotonic() - self._looked <= patience or not self._looking.acquire(blocking=False):
            return
        try:
            self.collection = self._look()
        except (ConcordError, OSError) as error:
            self.fault = str(error)
        finally:
            self._looking.release()

    def text(self, row: DocumentRow) -> str:
        """Return the raw text of a document; UnavailableError if the input no longer has it."""
        # A list is no key of a cache.
        text = self._texts(row._replace(parts=None, lost=None))
        if isinstance(text, UnavailableError):
            raise UnavailableError(str(text))
        return text

    def wait(self) -> None:
        """Return when the index holds the newest state that was seen."""
        with self._indexing:
            pass

    def _read_text(self, row: DocumentRow) -> str | UnavailableError:
        try:
            return SourceTexts.of(self.collection.plan, fetch=self._fetch).read(row)
        except ConcordError as error:
            # Returned, so that it is cached: the whole file may have been searched for the text.
            return UnavailableError(str(error))

    def _look(self) -> Collection:
        self._looked = time.monotonic()
        current = self.folder.generations.current()
        if current is not None and current.name == self._state:
            return self.collection
        collection = self._committed_so_far() if current is None else open_collection(self.folder)
        state = f"{len(collection.manifest.shards)} shards" if current is None else current.name
        if state == self._state:
            return self.collection
        self._state = state
        Thread(target=self._update_index, args=[collection], name="index", daemon=True).start()
        return collection

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


PAGE_WORDS = 2500
"""Words on a page of a document, to the end of the sentence."""
_SHOWN = ("start_char", "end_char", "text", "draft_ner", "ner", "uncertainty", "refined")
_READ_BY_TAGGERS = ("word", "upos", "head", "deprel")


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentPage:
    """A page of a document.

    Attributes:
        text: of the whole document; None where the input no longer has it, and why it is ``missing``.
        page, pages: 0-based number of the page, and how many there are.
        before: where the sentence before its first one ends.
        entities: of this page, in order.
    """

    row: DocumentRow
    text: str | None
    missing: str
    page: int
    pages: int
    before: int
    sentences: Sequence[SentenceRow]
    entities: Sequence[IndexedEntity]

    def slice(self, start: int, end: int) -> str:
        """Return a slice of the text; a space stands for one that is not there."""
        if self.text is None:
            return " " if start < end else ""
        return self.text[start:end]

    @property
    def bounds(self) -> tuple[int, int]:
        """Where its first sentence starts and its last one ends, in code points of the raw text."""
        return (self.sentences[0].start_char, self.sentences[-1].end_char) if self.sentences else (0, 0)


def read_page(
    opened: OpenedCollection,
    index: sqlite3.Connection,
    document: IndexedDocument,
    *,
    page: int | None = None,
    sentence: int | None = None,
    at: int | None = None,
    only: tuple[int, int] | None = None,
    trees: bool = False,
) -> DocumentPage:
    """Read a page of a document, by its number or by the number of a sentence on it; the first one by default.

    Args:
        at: an offset in the raw text, whose page is read if no other is asked for.
        only: reads instead the sentences of these numbers, the last one included, as far as there are such.
        trees: whether to read the columns that only a tree and a tagger need; they are null otherwise.

    Raises:
        IntegrityError: when the part is gone or damaged, or the index is not up to date yet.
    """
    collection = opened.collection
    report, row = read_row(opened, index, document)
    start = document.sentence_row
    table = collection.read_rows(
        report, "sentences", ROW_COLUMNS["sentences"], start=start, stop=start + row.n_sentences
    )
    words = np.concatenate([[0], np.cumsum(table["n_tokens"].to_numpy(), dtype=np.int64)])
    # The first sentence of each page, and the end of the last page.
    _, first_sentences = np.unique(words[:-1] // PAGE_WORDS, return_index=True)
    bounds = [*(first_sentences.tolist() or [0]), row.n_sentences]
    pages = len(bounds) - 1
    if page is None and sentence is None and at is not None:
        sentence = bisect_right(table["start_char"].to_pylist(), at) - 1
    if sentence is not None and 0 <= sentence < row.n_sentences:
        page = bisect_right(bounds, sentence) - 1
    page = min(max(page or 0, 0), pages - 1)
    first, stop = bounds[page : page + 2] if only is None else (max(only[0], 0), min(only[1] + 1, row.n_sentences))
    start, end = (document.token_row + int(words[number]) for number in (first, stop))
    names = (*_SHOWN, *_READ_BY_TAGGERS) if trees else _SHOWN
    words_table = collection.read_rows(report, "tokens", names, start=start, stop=end)
    columns = (
        words_table[name].to_pylist() if name in names else repeat(None, end - start) for name in TokenRow._fields
    )
    tokens = map(TokenRow._make, zip(*columns, strict=True))
    rows = [SentenceRow(**values) for values in table.slice(first, stop - first).to_pylist()]
    before = int(table["end_char"][first - 1].as_py()) if first else 0
    rest = "FROM entities WHERE document = ? AND end > ? AND start < ? ORDER BY number"
    text, missing = None, ""
    try:
        text = opened.text(row)
    except UnavailableError as error:
        missing = str(error)
    return DocumentPage(
        row=row,
        text=text,
        missing=missing,
        page=page,
        pages=pages,
        before=before,
        sentences=[sentence._replace(tokens=tuple(islice(tokens, sentence.n_tokens))) for sentence in rows],
        entities=select(index, IndexedEntity, rest, (document.id, before, rows[-1].end_char if rows else 0)),
    )


def read_row(
    opened: OpenedCollection, index: sqlite3.Connection, document: IndexedDocument
) -> tuple[CommitRecord, DocumentRow]:
    """Return the shard that holds a document of the index, and its row of the table of documents.

    Raises:
        IntegrityError: when the part is gone or damaged, or the index is not up to date yet.
    """
    collection = opened.collection
    [key] = index.execute("SELECT key FROM shards WHERE slot = ?", (document.id >> SLOT_BITS,)).fetchone()
    report = next((report for report in collection.manifest.shards if shard_key(report) == key), None)
    if report is None:
        raise IntegrityError(f"{opened.output}: another generation has just become current; load the page again")
    place = document.id & ((1 << SLOT_BITS) - 1)
    table = collection.read_rows(report, "documents", DocumentRow._fields, start=place, stop=place + 1)
    return report, DocumentRow(**table.to_pylist()[0])
