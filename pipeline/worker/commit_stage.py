"""Write a shard's tables and commit them."""

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from concord.pipeline.documents import AnnotatedDocument, DeadLetter
from concord.pipeline.output.dead_letters import with_attempts
from concord.pipeline.output.manifest import ShardReport, check_equation
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.parquet_parts import write_part
from concord.pipeline.output.schema import SCHEMAS, signed_schema
from concord.pipeline.output.shard_stats import BackOffStep, count_margins, count_rows, count_step
from concord.pipeline.output.tables import annotated_tables, error_table
from concord.pipeline.plan import Shard
from concord.pipeline.worker.bisect import dead_letters_in, describe_error, in_bulk, make_dead_letter
from concord.pipeline.worker.copied_rows import carry_rows
from concord.pipeline.worker.memory import shortages


class CommitStage:
    """Outcomes of a shard to committed parts. Nothing is written unless every record is accounted for."""

    def __init__(
        self,
        folder: OutputFolder,
        *,
        generation: int,
        parser: str,
        tagger: str,
        calibration: str,
        threshold: float | None,
    ) -> None:
        """Take where to write and what to sign with.

        Args:
            parser, tagger: their signatures.
            calibration: as in ``concord.pipeline.output.schema.signed_schema``.
            threshold: nats above which stage two decides, for the counts.
        """
        self._folder = folder
        self._generation = generation
        self._signed = {"parser": parser, "tagger": tagger, "calibration": calibration}
        self._threshold = threshold

    def __call__(
        self,
        shard: Shard,
        outcomes: Sequence[AnnotatedDocument | DeadLetter],
        *,
        step: BackOffStep = BackOffStep.AS_PLANNED,
    ) -> ShardReport:
        """Write and commit, with the rows that the shard takes over before those of its outcomes.

        Args:
            step: how the outcomes came about, for the counts.

        Returns:
            the record that counts: this one, or that of another worker who was first.

        Raises:
            ReconciliationError: when a record of the shard is missing or came twice; nothing is written then.
            StoreError: when there is no space; nothing is committed then.
            ShortageError: when memory runs out.
        """
        documents = [outcome for outcome in outcomes if isinstance(outcome, AnnotatedDocument)]
        tables, annotated, refused = self._tabulate(documents)
        letters = with_attempts(shard, _in_input_order(shard, [*dead_letters_in(outcomes), *refused]))
        if letters:
            tables["errors"] = error_table(letters, **self._signed)
        tables, unchanged = self._with_carried(shard, tables)
        stats = count_rows(tables, threshold=self._threshold) | count_margins(annotated, threshold=self._threshold)
        stats |= count_step(step)
        report = ShardReport(
            shard=shard.index,
            generation=self._generation,
            read=shard.records,
            annotated=len(annotated),
            unchanged=unchanged,
            dead_letters=tables["errors"].num_rows if "errors" in tables else 0,
            stats=dict(sorted(stats.items())),
        )
        check_equation(report, place=f"shard {shard.name}")
        return self._commit(report, tables, shard)

    def _with_carried(self, shard: Shard, tables: dict[str, pa.Table]) -> tuple[dict[str, pa.Table], int]:
        """Put the rows that a shard takes over before its own; give the documents among them as well."""
        sources = []
        for carry in shard.carries:
            report = self._folder.require_commit(carry.shard, generation=carry.generation)
            sources.append(carry_rows(self._folder.output, report, carry))
        unchanged = sum(source["documents"].num_rows for source in sources)
        joined = {
            name: pa.concat_tables(
                signed.cast(signed_schema(name, **self._signed))
                for source in (*sources, tables)
                if (signed := source.get(name)) is not None
            )
            for name in SCHEMAS
            if any(name in source for source in (*sources, tables))
        }
        return joined, unchanged

    def _tabulate(
        self, documents: Sequence[AnnotatedDocument]
    ) -> tuple[dict[str, pa.Table], list[AnnotatedDocument], list[DeadLetter]]:
        """Give the tables, the documents in them, and a dead letter for each that the schema cannot hold."""
        pieces = [annotated_tables([], **self._signed)]

        def tabulate(group: Sequence[AnnotatedDocument]) -> Sequence[AnnotatedDocument]:
            with shortages():
                pieces.append(annotated_tables(group, **self._signed))
            return group

        results = in_bulk(documents, tabulate, _write_letter)
        tables = {name: pa.concat_tables([piece[name] for piece in pieces]) for name in pieces[0]}
        return tables, [result for result in results if isinstance(result, AnnotatedDocument)], dead_letters_in(results)

    def _commit(self, report: ShardReport, tables: dict[str, pa.Table], shard: Shard) -> ShardReport:
        folder = self._folder
        try:
            files = {
                name: write_part(
                    table,
                    output=folder.output,
                    staging=folder.staging,
                    name=name,
                    shard=shard.name,
                    generation=self._generation,
                )
                for name, table in tables.items()
            }
            return folder.commit(replace(report, files=files))
        except FileNotFoundError:
            # A second driver that finished first has swept the staging folder under us; its record counts.
            winner = folder.find_commit(shard.index, generation=self._generation)
            if winner is None:
                raise
            return winner


def _in_input_order(shard: Shard, letters: Sequence[DeadLetter]) -> list[DeadLetter]:
    places = {piece.uri: number for number, piece in reversed(list(enumerate(shard.pieces)))}
    return sorted(letters, key=lambda letter: (places.get(letter.source_uri, len(places)), letter.position))


def _write_letter(annotated: AnnotatedDocument, error: Exception) -> DeadLetter:
    return make_dead_letter(
        annotated.parsed.document, stage="write", error="write_failed", message=describe_error(error)
    )
