"""Commit stage: write a shard's tables and commit them."""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc

from concord.pipeline.documents import AnnotatedDocument, DeadLetter
from concord.pipeline.errors import IntegrityError
from concord.pipeline.names.language import load_languages
from concord.pipeline.output.collection import DocumentRow, with_attempts
from concord.pipeline.output.manifest import CommitRecord, check_equation
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.parquet_parts import read_part, write_part
from concord.pipeline.output.schema import DOCUMENT_TABLES, ERRORS, Signature, signed_schema
from concord.pipeline.output.shard_stats import count_margins, count_rows
from concord.pipeline.output.tables import annotated_tables, error_table, lost_pages, without_lost_pages
from concord.pipeline.plan import Plan, RowsToCopy, Shard
from concord.pipeline.resources import shortage_errors
from concord.pipeline.worker.source_texts import SourceTexts
from concord.pipeline.worker.stages import run_batch

Outcome = AnnotatedDocument | DeadLetter

_ANNOTATED_IN = "annotated_in"


class CommitStage:
    """Commits the outcomes of a shard. Nothing is written unless every record is accounted for."""

    def __init__(self, plan: Plan, folder: OutputFolder, *, signature: Signature, threshold: float | None) -> None:
        """Prepare to commit the shards of a plan.

        Args:
            threshold: nats above which stage two decides, for the counts.
        """
        self._folder = folder
        self._generation = plan.generation
        self._signature = signature
        self._threshold = threshold
        self._keep_text = plan.config.output.keep_text
        self._texts = SourceTexts.of(plan)
        # The time limit of a shard begins when its worker is ready.
        load_languages()

    def run(self, shard: Shard, outcomes: Sequence[Outcome]) -> CommitRecord:
        """Write and commit a shard; the rows that it copies come before those of its outcomes.

        Args:
            outcomes: in the order of the input.

        Returns:
            the commit record that counts: this one, or that of another worker that committed first.

        Raises:
            ReconciliationError: when a record of the shard is missing or came twice; nothing is written then.
            PlanError: when a newer generation has been started; nothing is written then.
            StoreError: when there is no space; nothing is committed then.
        """
        tables, outcomes = self._tabulate(outcomes)
        annotated = [outcome for outcome in outcomes if isinstance(outcome, AnnotatedDocument)]
        dead_letters = with_attempts(shard, [outcome for outcome in outcomes if isinstance(outcome, DeadLetter)])
        tables["errors"] = error_table(dead_letters, self._signature)
        tables, copied = self._with_copied_rows(shard, tables)
        letters = tables["errors"].num_rows
        tables["errors"] = pa.concat_tables([tables["errors"], lost_pages(tables["documents"], self._signature)])
        stats = count_rows(tables, threshold=self._threshold) | count_margins(annotated, threshold=self._threshold)
        report = CommitRecord(
            shard=shard.index,
            generation=self._generation,
            read=shard.records,
            annotated=len(annotated),
            unchanged=len(copied),
            annotated_in=_runs([*copied, *[self._generation] * len(annotated)]) if copied else (),
            dead_letters=letters,
            stats=dict(sorted(stats.items())),
        )
        check_equation(report, where=f"shard {shard.name}")
        return self._commit(report, tables, shard)

    def _with_copied_rows(self, shard: Shard, tables: dict[str, pa.Table]) -> tuple[dict[str, pa.Table], list[int]]:
        """Return the tables with the rows that a shard copies in front, and when each copied document was annotated."""
        sources = [self._with_texts(_copy_rows(self._folder, rows)) for rows in shard.carries]
        copied = [generation for source in sources for generation in source["documents"][_ANNOTATED_IN].to_pylist()]
        joined: dict[str, pa.Table] = {}
        for name in tables:
            schema = signed_schema(name, self._signature)
            parts = [source[name].select(schema.names).cast(schema) for source in (*sources, tables)]
            joined[name] = pa.concat_tables(parts)
        return joined, copied

    def _with_texts(self, tables: dict[str, pa.Table]) -> dict[str, pa.Table]:
        """Return copied tables with the raw texts, or without them, as the run stores them."""
        documents = tables["documents"]
        keep = pc.or_(pc.is_valid(documents["parts"]), self._keep_text)
        differs = pc.not_equal(pc.is_valid(documents["raw_text"]), keep)
        rows = [DocumentRow(**row) for row in documents.select(DocumentRow._fields).filter(differs).to_pylist()]
        texts = {row.doc_id: self._texts.read(row) if self._keep_text else None for row in rows}
        return tables | {"documents": _replace(documents, "raw_text", texts)}

    def _tabulate(self, outcomes: Sequence[Outcome]) -> tuple[dict[str, pa.Table], list[Outcome]]:
        """Return the tables, and the outcomes with a dead letter in place of each document that they cannot hold."""
        pieces = [annotated_tables([], self._signature)]

        def tabulate(batch: Sequence[AnnotatedDocument]) -> Sequence[AnnotatedDocument]:
            with shortage_errors():
                pieces.append(annotated_tables(batch, self._signature, keep_text=self._keep_text))
            return batch

        results = run_batch(outcomes, tabulate, stage="write")
        return {name: pa.concat_tables([piece[name] for piece in pieces]) for name in pieces[0]}, results

    def _commit(self, report: CommitRecord, tables: dict[str, pa.Table], shard: Shard) -> CommitRecord:
        folder = self._folder
        folder.check_newest(self._generation)
        files = {
            name: write_part(
                table,
                root=folder.generations.pending,
                staging=folder.staging,
                name=name,
                shard=shard.name,
                generation=self._generation,
            )
            for name, table in tables.items()
            if name in DOCUMENT_TABLES or table.num_rows
        }
        return folder.commit(replace(report, files=files))


def _copy_rows(folder: OutputFolder, rows: RowsToCopy) -> dict[str, pa.Table]:
    """Return the tables of the rows to copy.

    The documents have one more column: the generation in which they were annotated.

    Raises:
        IntegrityError: when a part cannot be read, or does not hold the rows that the plan counted.
    """
    report = folder.require_commit(rows.shard, generation=rows.generation)
    tables = {"errors": ERRORS.empty_table()} | {name: read_part(folder.part(report, name)) for name in report.files}
    generations = pa.array(report.document_generations(tables["documents"].num_rows), pa.int64())
    tables["documents"] = tables["documents"].append_column(_ANNOTATED_IN, generations)
    new_ids = {rename.was: rename.now.doc_id for rename in rows.renames if rename.was != rename.now.doc_id}
    for name in DOCUMENT_TABLES:
        tables[name] = _replace(_drop(tables[name], "doc_id", rows.without), "doc_id", new_ids)
    for column in ("source_uri", "source_position", "meta", "meta_nulls", "encoding", "encoding_confidence"):
        # What an extracted text says of itself is known only when it is extracted.
        changed = (name.now for name in rows.renames if column.startswith("source_") or not name.is_extracted)
        values = {document.doc_id: getattr(document, column) for document in changed}
        tables["documents"] = _replace(tables["documents"], column, values)
    tables["errors"] = _drop_dead_letters(without_lost_pages(tables["errors"]), set(rows.without_dead_letters))
    records = tables["documents"].num_rows + tables["errors"].num_rows
    if records != rows.records:
        raise IntegrityError(
            f"{folder.output}: shard {rows.shard:05d} of generation {rows.generation}: expected {rows.records} records "
            f"to copy, found {records}; check the folder with 'concord verify'"
        )
    return tables


def _runs(values: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return the runs of equal values: each value, and how often it follows itself."""
    return tuple((value, len(list(run))) for value, run in groupby(values))


def _drop(table: pa.Table, column: str, values: tuple[str, ...]) -> pa.Table:
    """Drop the rows that have one of the values in a column."""
    if not values:
        return table
    return table.filter(pc.invert(pc.is_in(table[column], pa.array(values, pa.string()))))


def _drop_dead_letters(errors: pa.Table, dropped: Set[tuple[str, int]]) -> pa.Table:
    places = zip(errors["source_uri"].to_pylist(), errors["position"].to_pylist(), strict=True)
    return errors.filter(pa.array([place not in dropped for place in places], pa.bool_()))


def _replace(table: pa.Table, column: str, values: Mapping[str, object]) -> pa.Table:
    """Set a column's values in the rows of some documents, given by id."""
    if not values:
        return table
    field = table.schema.field(column)
    places = pc.index_in(table["doc_id"], pa.array(list(values), pa.string()))
    chosen = pc.take(pa.array(list(values.values()), field.type), places)
    index = table.schema.get_field_index(column)
    return table.set_column(index, field, pc.if_else(pc.is_valid(places), chosen, table[column]))
