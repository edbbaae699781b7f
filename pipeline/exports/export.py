"""An annotated collection handed on in the forms that other tools read."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Literal

import orjson

from concord.models.config import ConfigError
from concord.pipeline.documents import DeadLetter
from concord.pipeline.exports.brat import write_brat
from concord.pipeline.exports.conllu import write_conllu
from concord.pipeline.exports.docbin import require_spacy, write_docbin
from concord.pipeline.exports.export_item import ExportItem
from concord.pipeline.exports.jsonl import write_json_lines
from concord.pipeline.exports.label_studio import write_label_studio
from concord.pipeline.exports.source_texts import SourceTexts
from concord.pipeline.output.collection import open_collection
from concord.pipeline.output.document_rows import CollectedDocument, read_collection
from concord.pipeline.output.shard_stats import entity_types
from concord.pipeline.storage.compressed import write_compressed
from concord.pipeline.storage.output_paths import OutputPath

ExportForm = Literal["conllu", "jsonl", "brat", "label-studio", "docbin"]

ERRORS_SUFFIX = ".errors.jsonl"

_WITH_TEXT: Mapping[ExportForm, Callable[[Path, Iterable[ExportItem]], None]] = {
    "jsonl": write_json_lines,
    "label-studio": write_label_studio,
    "docbin": write_docbin,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportReport:
    """What was handed on; ``documents``, ``wordless`` and ``left_out`` together are what was asked for.

    Attributes:
        wordless: documents without a word, which CoNLL-U cannot hold; other forms can.
        left_out: documents whose text the input no longer holds.
        dead_letters: records of the collection that were never annotated.
        labels: types of the entities of the whole collection, sorted.
        unknown: ids asked for that the collection does not hold, sorted.
        errors: the file that lists what was left out; None where nothing was.
    """

    documents: int = 0
    sentences: int = 0
    words: int = 0
    entities: int = 0
    wordless: int = 0
    left_out: int = 0
    dead_letters: int = 0
    labels: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    errors: Path | None = None


def export(
    output: OutputPath,
    destination: Path,
    *,
    to: ExportForm,
    ids: frozenset[str] | None = None,
    limit: int | None = None,
    on_document: Callable[[], object] = lambda: None,
) -> ExportReport:
    """Write a collection in another form; nothing bears the destination's name before all of it is there.

    Args:
        output: the collection's folder.
        destination: a file for CoNLL-U, JSON Lines and Label Studio, a folder for brat and DocBin; absent as yet.
        ids: of the documents that are wanted; all if None.
        limit: how many documents, from the first on; all if None.
        on_document: called after each document.

    Raises:
        PlanError: when the folder holds no finished run.
        ConfigError: when the destination cannot be taken, or spaCy is missing.
        InputError: when an input file of many records is gone.
        IntegrityError: when a part of the collection is broken.
        StoreError: when there is no space.
    """
    check_destination(destination, output=output)
    if to == "docbin":
        require_spacy()
    collection = open_collection(output)
    labels = entity_types(collection.manifest.shards)
    unknown = set(ids or ())

    def is_wanted(doc_id: str) -> bool:
        unknown.discard(doc_id)
        return ids is None or doc_id in ids

    outgoing = Outgoing(destination, dead_letters=collection.manifest.dead_letters, on_document=on_document)
    documents = islice(read_collection(collection, wanted=is_wanted), limit)
    if to == "conllu":
        write_conllu(destination, outgoing.with_words(documents))
    else:
        write_items(destination, outgoing.with_texts(documents, SourceTexts(collection.plan)), to=to, labels=labels)
    # With a limit the collection is not read to its end.
    return replace(outgoing.report(), labels=labels, unknown=tuple(sorted(unknown)) if limit is None else ())


def write_items(destination: Path, items: Iterable[ExportItem], *, to: ExportForm, labels: Sequence[str]) -> None:
    """Write documents with their texts in one of the forms that need these.

    Args:
        labels: the types that brat is to offer.

    Raises:
        StoreError: when there is no space.
    """
    if to == "brat":
        write_brat(destination, items, labels=labels)
    else:
        _WITH_TEXT[to](destination, items)


class Outgoing:
    """Counts what goes into an export, and sets aside the documents whose texts are gone."""

    def __init__(
        self, destination: Path, *, dead_letters: int, on_document: Callable[[], object] = lambda: None
    ) -> None:
        """Begin with nothing; see ``export`` for the arguments."""
        self._errors = destination.with_name(f"{destination.name}{ERRORS_SUFFIX}")
        self._dead_letters = dead_letters
        self._on_document = on_document
        self._letters: list[DeadLetter] = []
        self._counts: Counter[str] = Counter()

    def with_words(self, documents: Iterable[CollectedDocument]) -> Iterator[CollectedDocument]:
        """Pass documents on but those without a word."""
        for document in documents:
            if document.sentences:
                self._count(document)
                yield document
            else:
                self._counts["wordless"] += 1
            self._on_document()

    def with_texts(self, documents: Iterable[CollectedDocument], texts: SourceTexts) -> Iterator[ExportItem]:
        """Pass documents on with their texts; at the end, write down those that have none.

        Raises:
            InputError: when an input file of many records is gone.
        """
        for document in documents:
            text = texts.find(document.row)
            if isinstance(text, DeadLetter):
                self._letters.append(text)
            else:
                self._count(document)
                yield ExportItem(name=document.row.doc_id, document=document, text=text)
            self._on_document()
        self._write_letters()

    def report(self) -> ExportReport:
        """Give the counts, when all has passed."""
        return ExportReport(
            documents=self._counts["documents"],
            sentences=self._counts["sentences"],
            words=self._counts["words"],
            entities=self._counts["entities"],
            wordless=self._counts["wordless"],
            left_out=len(self._letters),
            dead_letters=self._dead_letters,
            errors=self._errors if self._letters else None,
        )

    def _count(self, document: CollectedDocument) -> None:
        self._counts.update(
            documents=1,
            sentences=len(document.sentences),
            words=sum(len(sentence.tokens) for sentence in document.sentences),
            entities=len(document.entities),
        )

    def _write_letters(self) -> None:
        if self._letters:
            write_compressed(self._errors, (f"{orjson.dumps(letter).decode()}\n" for letter in self._letters))
        else:
            # Of an earlier try.
            self._errors.unlink(missing_ok=True)


def check_destination(destination: Path, *, output: OutputPath) -> None:
    """Refuse a destination that would harm what stands.

    Raises:
        ConfigError: when something is there already, or it lies in the collection's folder.
    """
    if isinstance(output, Path) and destination.resolve().is_relative_to(output.resolve()):
        raise ConfigError(f"output: expected a place outside of the collection {output}, got {destination}")
    is_free = not any(destination.iterdir()) if destination.is_dir() else not destination.exists()
    if not is_free:
        raise ConfigError(f"output: expected a new name, got {destination}, which exists; remove it or give another")
