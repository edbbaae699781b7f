"""Annotate collections from Python, and open what a run wrote."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from concord.doc import Doc, doc_of
from concord.pipeline.config import Retry
from concord.pipeline.documents import Part, part_finder
from concord.pipeline.errors import DeadLetterLimitError, IntegrityError
from concord.pipeline.output.collection import (
    ROW_COLUMNS,
    Collection,
    DocumentRow,
    documents_of,
    open_collection,
)
from concord.pipeline.output.manifest import CommitRecord
from concord.pipeline.output.parquet_parts import read_part
from concord.pipeline.output.schema import SCHEMAS, TableName
from concord.pipeline.output.verify import part_faults
from concord.pipeline.storage.output_paths import output_path
from concord.pipeline.worker.source_texts import SourceTexts
from concord.workflows.annotation.annotate import annotate_collection
from concord.workflows.annotation.job import JOB_SUFFIXES, job_values, read_annotate_job, resolve_job
from concord.workflows.annotation.summary import describe_lost_files
from concord.workflows.job_files import absolute

_NULLABLE = ("meta", "raw_text", "encoding")
_NEEDED = ("doc_id", "source_uri", "source_position", "text_sha256")

if TYPE_CHECKING:
    import duckdb
    import pandas as pd


class Run:
    """A finished collection: exactly the files that its manifest names; ``concord.open`` makes one.

    The six tables are pyarrow datasets: ``run.entities.to_table(filter=...)`` reads what it needs. The parts of a
    collection in a store are fetched into memory when their table is first used. A later run changes nothing here: it
    leaves the generation that was opened for ``output.grace_seconds``, an hour by default.
    """

    def __init__(self, collection: Collection) -> None:
        self._collection = collection
        self.output = str(collection.output)
        """Where the collection lies."""
        self.generation = collection.manifest.generation
        """Number of the generation that the manifest stands for."""

    def __repr__(self) -> str:
        manifest = self._collection.manifest
        documents = manifest.annotated + manifest.unchanged
        return (
            f"<concord.Run {self.output} generation={self.generation} documents={documents} "
            f"dead_letters={manifest.dead_letters}>"
        )

    @cached_property
    def documents(self) -> ds.Dataset:
        """One row per annotated document."""
        return self._dataset("documents")

    @cached_property
    def sentences(self) -> ds.Dataset:
        """One row per sentence."""
        return self._dataset("sentences")

    @cached_property
    def tokens(self) -> ds.Dataset:
        """One row per word, with lemma, tags, tree and labels."""
        return self._dataset("tokens")

    @cached_property
    def entities(self) -> ds.Dataset:
        """One row per entity, and per candidate where ``output.candidates`` was set."""
        return self._dataset("entities")

    @cached_property
    def errors(self) -> ds.Dataset:
        """One row per dead letter: a record that could not be annotated, and why; or per lost page, with a ``page``."""
        return self._dataset("errors")

    @cached_property
    def names(self) -> ds.Dataset:
        """One row per name, of whatever label, with its mentions, documents and variants; the most frequent first."""
        return self._dataset("names")

    def to_arrow(self, table: TableName | Literal["names"] = "entities") -> pa.Table:
        """Return a whole table.

        Raises:
            ValueError: for an unknown table.
            IntegrityError: when the generation is no longer kept, or a part is damaged.
        """
        if table not in SCHEMAS:
            raise ValueError(f"table: expected one of {', '.join(SCHEMAS)}, got {table!r}")
        with self._naming_damage():
            dataset: ds.Dataset = getattr(self, table)
            return dataset.to_table()

    def to_pandas(self, table: TableName | Literal["names"] = "entities") -> "pd.DataFrame":
        """Return a whole table as a pandas DataFrame."""
        return self.to_arrow(table).to_pandas()

    def sql(self, query: str) -> "duckdb.DuckDBPyRelation":
        """Query the six tables by their names with DuckDB, which the extra ``duckdb`` installs.

        Returns:
            A relation: it prints as a table; ``.df()`` and ``.arrow()`` convert it.
        """
        return self._connection.sql(query)

    def document(self, doc_id: str) -> Doc:
        """Return one document as ``concord.load`` would annotate it.

        Its text is the stored one (``output.keep_text``), or else read from the input again.

        Raises:
            KeyError: when the collection has no annotated document of this id.
            InputError: when neither the collection nor the input holds the text that was annotated.
            IntegrityError: when the generation is no longer kept, or a part is damaged.
        """
        is_document = pc.field("doc_id") == doc_id
        with self._naming_damage():
            shard = self._shards.get(doc_id)
            if shard is None:
                dead_letters = self.errors.to_table(filter=is_document)["message"].to_pylist()
                raise KeyError("; ".join([f"{self.output}: no document {doc_id!r}", *dead_letters]))
            tables = {
                name: self._collection.read_rows(shard, name, SCHEMAS[name].names).filter(is_document)
                for name in ROW_COLUMNS
            }
            [document] = documents_of({name: table.to_pydict() for name, table in tables.items()})
            row = document.row
            expected = (1, row.n_sentences, row.n_tokens, row.n_entities + row.n_candidates)
            if tuple(map(len, tables.values())) != expected:
                raise pa.ArrowInvalid(f"document {doc_id!r} lacks rows")
        return doc_of(document, self.read_text(row))

    def page_of(self, entity: Any) -> Part | None:
        """Return the page on which an entity begins, which prints as ``p. 12``; its ``label`` is the number.

        In a document without pages it is the chapter or the like; None if there is none of these either.

        Args:
            entity: a row of ``entities``, or of another table with ``doc_id`` and ``start_char``, as a mapping or a
                pandas Series.
        """
        rows, parts = self._parts
        return part_finder(parts[rows[entity["doc_id"]]].as_py())(int(entity["start_char"]))

    @cached_property
    def _parts(self) -> tuple[dict[str, int], pa.ChunkedArray]:
        """Return the rows of the documents by id, and the parts of each row."""
        with self._naming_damage():
            table = self.documents.to_table(columns=["doc_id", "parts"])
        return {doc_id: number for number, doc_id in enumerate(table["doc_id"].to_pylist())}, table["parts"]

    @cached_property
    def _shards(self) -> dict[str, CommitRecord]:
        """The shard of each document, by id."""
        shards = self._collection.manifest.shards
        ids = ((shard, self._collection.read_rows(shard, "documents", ["doc_id"])["doc_id"]) for shard in shards)
        return {doc_id: shard for shard, column in ids for doc_id in column.to_pylist()}

    def read_text(self, row: Any) -> str:
        """Return the raw text of a row of ``documents``; as ``concord.read_text``, with the settings of the run."""
        return self._texts.read(_document_row(row))

    @cached_property
    def _texts(self) -> SourceTexts:
        return SourceTexts.of(self._collection.plan)

    def _dataset(self, table: str) -> ds.Dataset:
        parts = self._collection.parts(table)
        if not parts:
            return ds.dataset(SCHEMAS[table].empty_table())
        with self._naming_damage():
            if not all(isinstance(part, Path) for part in parts):
                return ds.dataset([read_part(part) for part in parts])
            format = ds.ParquetFileFormat(page_checksum_verification=True)
            dataset = ds.dataset([str(part) for part in parts], format=format)
            for fragment, part in zip(dataset.get_fragments(), self._collection.manifest.files(table), strict=True):
                if fragment.metadata.num_rows != part.rows or not fragment.physical_schema.equals(SCHEMAS[table]):
                    raise pa.ArrowInvalid(f"{part.path} has other rows or columns")
            return dataset

    @contextmanager
    def _naming_damage(self) -> Iterator[None]:
        """Turn the errors of damaged or missing parts into an IntegrityError that names one."""
        try:
            yield
        except (OSError, pa.ArrowException, IntegrityError) as error:
            if isinstance(self._collection.root, Path) and not self._collection.root.exists():
                raise IntegrityError(
                    f"{self.output}: parts of generation {self.generation} are gone; a generation is kept for "
                    "output.grace_seconds after the next one: open the collection again"
                ) from error
            faults = part_faults(self._collection.root, self._collection.manifest)
            place, fault = next(faults, (self.output, f"cannot be read: {error}"))
            raise IntegrityError(
                f"{place}: {fault}; remove what is left of it and run the same annotate command again ('concord verify "
                f"{self.output}' lists everything that is damaged)"
            ) from error

    @cached_property
    def _connection(self) -> "duckdb.DuckDBPyConnection":
        try:
            import duckdb
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("Run.sql needs DuckDB: pip install 'concord-annotate[duckdb]'") from error
        connection = duckdb.connect()
        for name in SCHEMAS:
            connection.register(name, getattr(self, name))
        return connection


def read_text(row: Any, *, settings: Mapping[str, Any] | None = None) -> str:
    """Return the raw text of an annotated document: the one in which its offsets count code points.

    Raw means decoded and nothing else. A byte order mark is no part of the text, and line ends stay as they are in the
    file (``open().read()`` keeps the mark and replaces ``\\r\\n``). Of HTML, the raw text is the extracted one.

    Args:
        row: of the table ``documents``, as a mapping, a pandas Series or anything with its columns as attributes. Where
            it has no ``raw_text`` (``output.keep_text``), the text is read again from its ``source_uri``.
        settings: the keys of the section ``reader`` that the job set, as ``{"reader.text_field": "body"}``;
            ``Run.read_text`` knows them.

    Raises:
        ConfigError: for a setting that no job has.
        InputError: when the source is gone, or no longer holds a text with the ``text_sha256`` of the row.
        ValueError: when it is no row of ``documents``.
    """
    # Validated as the settings of a whole job, so that a misspelt section is an error.
    job = read_annotate_job(None, values={"input": "", "output": "", **job_values({}, settings)})
    return SourceTexts(job.reader).read(_document_row(row))


def _document_row(row: Any) -> DocumentRow:
    """Return a row of ``documents`` in any of the forms in which libraries hand it out."""
    if hasattr(row, "as_py"):
        row = row.as_py()
    get: Callable[[str], Any] = getattr(row, "get", None) or (lambda name: getattr(row, name, None))
    values = {name: get(name) for name in DocumentRow._fields}
    missing = [name for name in _NEEDED if values[name] is None]
    if missing:
        raise ValueError(f"row: expected a row of documents, got one without {', '.join(missing)}")
    # pandas has other values than None for what is null.
    return DocumentRow(**{**values, **{name: get(name) if isinstance(get(name), str) else None for name in _NULLABLE}})


def annotate(
    input: str | Path,
    output: str | Path | None = None,
    *,
    model: str | None = None,
    executor: Literal["local", "ray"] | None = None,
    actors: int | None = None,
    limit: int | None = None,
    rehash: bool | None = None,
    retry: Retry | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Run:
    """Annotate a collection as ``concord annotate`` does: exactly once, and only what is new or changed.

    Args:
        input: a file, a folder, a pattern or a URL; or a job file (.yaml), whose keys the other arguments override.
        output: folder or URL (``s3://``, ``gs://``, ``az://``) of the collection; may be None where a job file names
            it.
        model, executor, actors, limit, rehash: as the options of the command line.
        retry: try dead letters of files that have not changed again, too: all of them, or those of one stage.
        settings: further keys of the job, as ``--set`` takes them: ``{"reader.text_field": "body"}``. Keys that are
            left out have the values of the collection, if it exists.

    Raises:
        ConfigError: for a key or value that does not exist.
        DeadLetterLimitError: when more records became dead letters than ``max_dead_letters`` allows, or more files were
            lost than ``max_lost_files`` does; the collection is finished all the same.
        ConcordError: as the command line explains it (concord.pipeline.errors).
    """
    options = {"model": model, "executor": executor, "actors": actors, "limit": limit, "rehash": rehash, "retry": retry}
    options["output"] = None if output is None else str(output)
    values, source = job_values(options, settings), Path(input).expanduser()
    if source.suffix in JOB_SUFFIXES:
        config = read_annotate_job(source, values=values)
    else:
        config = read_annotate_job(None, values={"input": str(input), **values})
    job = resolve_job(config)
    answer = annotate_collection(job)
    if answer.exit_code:
        lost, excess = answer.values["lost_files"], f"more than max_dead_letters={job.config.max_dead_letters} allows"
        if len(lost) > job.config.max_lost_files:
            excess = describe_lost_files(lost)
        raise DeadLetterLimitError(
            f"{config.output.path}: {answer.values['dead_letters']} of {answer.values['read']} records are dead "
            f"letters, {excess}; concord.open(...).errors says why, and the other documents are annotated"
        )
    return Run(open_collection(job.folder))


def open(output: str | Path, *, generation: int | None = None, version: str | None = None) -> Run:
    """Open a finished collection.

    Args:
        output: its folder or URL (``s3://``, ``gs://``, ``az://``).
        generation: the number of an earlier generation that is still kept (``concord history``).
        version: the name of one (``concord history --tag``).

    Raises:
        PlanError: when there is no finished run, or not this generation.
        IntegrityError: when its manifest cannot be read. The methods of the run raise it for a damaged part; what the
            datasets raise while they are read is Arrow's.
    """
    path = output_path(absolute(str(output)))
    return Run(open_collection(path, generation=generation, version=version))
