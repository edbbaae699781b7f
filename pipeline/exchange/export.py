"""Export of an annotated collection, or of listed documents, to the formats that other tools read."""

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, TypeAlias

import orjson
import yaml

from concord.models.adapters.libraries import require_library
from concord.models.errors import ConfigError
from concord.models.labels import OUTSIDE
from concord.pipeline.documents import DeadLetter, part_finder
from concord.pipeline.errors import InputError
from concord.pipeline.exchange.brat import write_brat
from concord.pipeline.exchange.conllu import write_conllu
from concord.pipeline.exchange.docbin import write_docbin
from concord.pipeline.exchange.items import ExportItem, round_float
from concord.pipeline.exchange.label_studio import write_label_studio
from concord.pipeline.output.collection import (
    CollectedDocument,
    SentenceRow,
    open_collection,
    read_collection,
    spaced_text,
    whole_sentences,
)
from concord.pipeline.output.shard_stats import entity_types
from concord.pipeline.storage.atomic_writes import stage_folder, store_errors, write_compressed
from concord.pipeline.storage.output_paths import OutputPath
from concord.pipeline.worker.source_texts import SourceTexts

ExportForm = Literal["conllu", "jsonl", "csv", "brat", "label-studio", "docbin", "spacy-jsonl", "hf"]
Writer: TypeAlias = Callable[[Path, Iterable[ExportItem]], None]

ERRORS_SUFFIX = ".errors.jsonl"
_JSON_LINES = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".ndjson", ".ndjson.gz", ".ndjson.zst")
ENDINGS: Mapping[ExportForm, Sequence[str]] = {
    "conllu": (".conllu", ".conllu.gz", ".conllu.zst"),
    "jsonl": _JSON_LINES,
    "spacy-jsonl": _JSON_LINES,
    "csv": (".csv", ".csv.gz", ".csv.zst"),
    "label-studio": (".json", ".json.gz", ".json.zst"),
}
"""How the names of files may end; a name without an ending is plain text, too. Other formats write folders."""
WITHOUT_TEXT: frozenset[ExportForm] = frozenset({"conllu", "csv", "hf"})
"""The formats that hold only words, and therefore no documents without any."""


@dataclass(kw_only=True, slots=True)
class ExportReport:
    """What was exported; ``documents``, ``wordless`` and ``left_out`` add up to what was requested.

    Attributes:
        wordless: documents without a word, which the formats WITHOUT_TEXT cannot represent.
        left_out: documents whose text the input no longer holds.
        dead_letters: records of the collection that were never annotated.
        labels: the entity types of the whole collection, sorted.
        unknown: requested ids that the collection does not hold, sorted.
        errors: the file that lists what was left out; None if nothing was.
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


def export_collection(
    output: OutputPath,
    destination: Path,
    *,
    to: ExportForm,
    ids: frozenset[str] | None = None,
    limit: int | None = None,
    on_document: Callable[[], object] = lambda: None,
) -> ExportReport:
    """Export a collection; the destination appears once all of it is written.

    Args:
        destination: a file for the formats of ENDINGS, else a folder; must not exist.
        ids: which documents to export; all if None.
        limit: how many documents to export, from the first on; all if None.

    Raises:
        PlanError: when the folder holds no finished run.
        ConfigError: when the destination cannot be used.
        ModelError: when spaCy is missing.
        InputError: when an input file of many records is gone.
        IntegrityError: when a part of the collection is damaged.
        StoreError: when there is no space.
    """
    check_destination(destination, output=output, to=to)
    if to == "docbin":
        require_library("spacy", extra="spacy")
    collection = open_collection(output)
    labels = entity_types(collection.manifest.shards)
    unknown = set(ids or ())

    def is_wanted(doc_id: str) -> bool:
        unknown.discard(doc_id)
        return ids is None or doc_id in ids

    stream = ExportStream(destination, dead_letters=collection.manifest.dead_letters, on_document=on_document)
    documents = islice(read_collection(collection, wanted=is_wanted), limit)
    texts = SourceTexts.of(collection.plan)
    items = stream.with_words(documents) if to in WITHOUT_TEXT else stream.with_texts(documents, texts)
    writers(labels)[to](destination, items)
    # With a limit the collection is not read to its end.
    return replace(stream.report, labels=labels, unknown=tuple(sorted(unknown)) if limit is None else ())


def read_ids(path: Path) -> frozenset[str]:
    """Read the ids of the documents that a file lists.

    A ``.json`` file holds Label Studio tasks. In any other file each line is an id, or a JSON object with a ``doc_id``,
    as in an export to JSON Lines or the ``documents.jsonl`` of an export to brat.

    Raises:
        InputError: when the file cannot be read or has another form.
    """
    try:
        content = path.read_bytes()
        if path.suffix == ".json":
            return frozenset(task["data"]["doc_id"] for task in orjson.loads(content))
        lines = content.decode("utf-8-sig").split("\n")
        return frozenset(
            orjson.loads(line)["doc_id"] if line.startswith("{") else line.removesuffix("\r")
            for line in lines
            if line.strip()
        )
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise InputError(
            f"{path}: expected one id a line, JSON Lines with doc_id, or a .json file of Label Studio tasks: "
            f"{type(error).__name__}: {error}"
        ) from error


def writers(labels: Sequence[str]) -> Mapping[ExportForm, Writer]:
    """Return the function that writes each format, given the entity types of the collection."""
    return {
        "conllu": write_conllu,
        "jsonl": write_json_lines,
        "brat": partial(write_brat, labels=labels),
        "label-studio": write_label_studio,
        "docbin": write_docbin,
        "csv": write_entity_csv,
        "spacy-jsonl": partial(write_json_lines, record=spacy_record),
        "hf": partial(write_hf_dataset, labels=labels),
    }


class ExportStream:
    """Turns documents into export items, counts them in ``report``, and sets aside those whose text is gone."""

    def __init__(
        self, destination: Path, *, dead_letters: int, on_document: Callable[[], object] = lambda: None
    ) -> None:
        """See ``export_collection`` and ``ExportReport`` for the arguments."""
        self.report = ExportReport(dead_letters=dead_letters)
        self._errors = destination.with_name(f"{destination.name}{ERRORS_SUFFIX}")
        self._on_document = on_document

    def with_words(self, documents: Iterable[CollectedDocument]) -> Iterator[ExportItem]:
        """Yield the documents that have words, without their texts."""
        for document in documents:
            if document.sentences:
                yield self._item(document)
            else:
                self.report.wordless += 1
            self._on_document()

    def with_texts(self, documents: Iterable[CollectedDocument], texts: SourceTexts) -> Iterator[ExportItem]:
        """Yield the documents with their texts; at the end, write a list of those whose text is gone."""
        left_out: list[DeadLetter] = []
        for document in documents:
            text = texts.find(document.row)
            if isinstance(text, DeadLetter):
                left_out.append(text)
            else:
                yield self._item(document, text)
            self._on_document()
        if left_out:
            write_compressed(self._errors, (f"{orjson.dumps(dead_letter).decode()}\n" for dead_letter in left_out))
            self.report.left_out, self.report.errors = len(left_out), self._errors
        else:
            self._errors.unlink(missing_ok=True)  # of an earlier attempt

    def _item(self, document: CollectedDocument, text: str = "") -> ExportItem:
        self.report.documents += 1
        self.report.sentences += len(document.sentences)
        self.report.words += sum(len(sentence.tokens) for sentence in document.sentences)
        self.report.entities += len(document.entities)
        return ExportItem(name=document.row.doc_id, document=document, text=text)


def check_destination(destination: Path, *, output: OutputPath, to: ExportForm) -> None:
    """Check that an export overwrites nothing, and that the name of a file says what is in it.

    Raises:
        ConfigError: when the destination exists already, is inside the collection's folder, or has an ending that the
            format does not have.
    """
    endings = ENDINGS.get(to)
    if endings is not None and destination.suffix and not destination.name.lower().endswith(tuple(endings)):
        raise ConfigError(f"output: expected a name ending in {', '.join(endings)}, got {destination.name}")
    if isinstance(output, Path) and destination.resolve().is_relative_to(output.resolve()):
        raise ConfigError(f"output: expected a path outside of the collection {output}, got {destination}")
    is_free = not any(destination.iterdir()) if destination.is_dir() else not destination.exists()
    if not is_free:
        raise ConfigError(
            f"output: expected a new name, got {destination}, which exists; remove it or use another name"
        )


def _record(item: ExportItem) -> dict[str, Any]:
    return {
        **item.metadata,
        **{name: rows for name in ("parts", "lost") if (rows := getattr(item.document.row, name)) is not None},
        "text": item.text,
        "sentences": [_sentence(sentence) for sentence in item.document.sentences],
        "entities": [_rounded({**entity._asdict(), "name": entity.name}) for entity in item.document.entities],
    }


def _sentence(sentence: SentenceRow) -> dict[str, Any]:
    fields = {name: getattr(sentence, name) for name in ("sent_id", "start_char", "end_char", "continues")}
    return {**fields, "tokens": [_rounded(token._asdict()) for token in sentence.tokens]}


def _rounded(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: round_float(value) if isinstance(value, float) else value for name, value in row.items()}


def spacy_record(item: ExportItem) -> dict[str, Any]:
    """Return ``entities`` for spaCy, which takes no two that overlap, and ``spans``, which are all, for Prodigy."""
    spans: list[dict[str, Any]] = []
    entities: list[tuple[int, int, str]] = []
    for entity in item.document.entities:
        start, end, label = entity.start_char, entity.end_char, entity.label
        value = {} if entity.value is None else {"value": entity.value}
        spans.append({"start": start, "end": end, "label": label, **value})
        # Two words of a multi-word token share a place.
        if not entities or start >= entities[-1][1]:
            entities.append((start, end, label))
    return {**item.metadata, "text": item.text, "entities": entities, "spans": spans}


def write_json_lines(
    path: Path, items: Iterable[ExportItem], *, record: Callable[[ExportItem], Mapping[str, Any]] = _record
) -> None:
    """Atomically write items as JSON Lines, one object a document, replacing any existing file.

    ``.gz`` and ``.zst`` are compressed. Offsets count code points of ``text``; other fields are columns of the tables.
    """
    write_compressed(path, (orjson.dumps(record(item), option=orjson.OPT_APPEND_NEWLINE).decode() for item in items))


_COLUMNS = (
    *("doc_id", "source_uri", "sent_id", "start_char", "end_char", "part", "label", "name", "canonical", "value"),
    *("confidence", "uncertainty", "source", "context"),
)
# Spreadsheets guess the encoding unless a file says so.
_BYTE_ORDER_MARK = "\ufeff"
# What spreadsheets evaluate (https://owasp.org/www-community/attacks/CSV_Injection).
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


class _Row:
    """A file whose write returns the text, as ``csv.writer`` then does."""

    def write(self, text: str) -> str:
        return text


def write_entity_csv(path: Path, items: Iterable[ExportItem]) -> None:
    """Atomically write the entities, replacing any existing file; ``.gz`` and ``.zst`` are compressed.

    Items need no text.
    """
    write_compressed(path, format_csv(_COLUMNS, _rows(items)))


def format_csv(columns: Sequence[str], rows: Iterable[Iterable[Any]]) -> Iterator[str]:
    """Yield a table as CSV, line by line; what a spreadsheet would take for a formula begins with an apostrophe."""
    # Its line ends are \r\n, so that Python of every version quotes a cell with either.
    format_row = csv.writer(_Row()).writerow
    yield _BYTE_ORDER_MARK
    for row in chain([columns], rows):
        yield format_row(map(_cell, row))


def _rows(items: Iterable[ExportItem]) -> Iterator[Iterable[Any]]:
    for item in items:
        row = item.document.row
        sentences = {sentence.sent_id: sentence for sentence in item.document.sentences}
        part_at = part_finder(row.parts)
        for entity in item.document.entities:
            numbers = (value and round_float(value) for value in (entity.confidence, entity.uncertainty))
            context = " ".join(spaced_text(sentences[entity.sent_id].tokens).split())
            place = (row.doc_id, row.source_uri, entity.sent_id, entity.start_char, entity.end_char)
            part = part_at(entity.start_char)
            names = ("" if part is None else str(part), entity.label, entity.name, entity.canonical, entity.value)
            yield (*place, *names, *numbers, entity.source, context)


def _cell(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA_STARTS) else value


_CARD = """---
task_categories: [token-classification]
configs:
- config_name: default
  data_files: [{{split: train, path: train.jsonl}}]
dataset_info:
  features:
  - {{name: doc_id, dtype: string}}
  - {{name: sent_id, dtype: int32}}
  - {{name: tokens, list: string}}
  - {{name: ner_tags, list: {{class_label: {{names: {names}}}}}}}
---

The labels are those of a tagger, except where a person has corrected them.
"""


def write_hf_dataset(folder: Path, items: Iterable[ExportItem], *, labels: Sequence[str]) -> None:
    """Write a new folder, which appears under its name once it is complete; ``labels`` are all types that may occur."""
    names = [OUTSIDE, *(f"{prefix}-{label}" for label in labels for prefix in "BI")]
    numbers = {name: number for number, name in enumerate(names)}
    shown = yaml.safe_dump({str(number): name for name, number in numbers.items()}, default_flow_style=True)
    with store_errors(folder), stage_folder(folder) as staged:
        (staged / "README.md").write_text(_CARD.format(names=shown.strip()), encoding="utf-8")
        with (staged / "train.jsonl").open("xb") as stream:
            stream.writelines(_lines(items, numbers))


def _lines(items: Iterable[ExportItem], numbers: Mapping[str, int]) -> Iterator[bytes]:
    for item in items:
        for pieces in whole_sentences(item.document):
            words = [word for piece in pieces for word in piece.tokens]
            row = {
                "doc_id": item.document.row.doc_id,
                "sent_id": pieces[0].sent_id,
                "tokens": [word.word for word in words],
                "ner_tags": [numbers[word.ner] for word in words],
            }
            yield orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)
