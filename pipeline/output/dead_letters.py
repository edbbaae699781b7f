"""The dead letters of a collection: read back, chosen, and counted each time they are tried again."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from concord.pipeline.documents import DeadLetter
from concord.pipeline.output.manifest import ShardReport
from concord.pipeline.output.parquet_parts import iter_batches
from concord.pipeline.output.schema import ERRORS
from concord.pipeline.plan import Shard
from concord.pipeline.storage.output_paths import OutputPath


class ExistingDeadLetter(NamedTuple):
    """A dead letter's row, as far as it tells which record it is of; see DeadLetter."""

    source_uri: str
    position: int
    doc_id: str | None
    stage: str
    error: str
    attempts: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DeadLetterFilter:
    """Which dead letters are meant. What is left empty chooses all.

    Attributes:
        ids: of documents; a record that could not be read may have none.
    """

    stages: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()

    def matches(self, letter: DeadLetter | ExistingDeadLetter) -> bool:
        """Say whether a dead letter is meant."""
        return (
            (not self.stages or letter.stage in self.stages)
            and (not self.errors or letter.error in self.errors)
            and (not self.ids or letter.doc_id in self.ids)
        )


def read_dead_letters(output: OutputPath, reports: Iterable[ShardReport]) -> Iterator[DeadLetter]:
    """Read the dead letters of committed shards, in the shards' order.

    Raises:
        IntegrityError: when a part cannot be read.
    """
    for report in reports:
        if "errors" in report.files:
            for batch in iter_batches(output / report.files["errors"].path, tuple(ERRORS.names)):
                yield from (DeadLetter(**row) for row in batch.to_pylist())


def with_attempts(shard: Shard, letters: Sequence[DeadLetter]) -> list[DeadLetter]:
    """Count the tries that the plan knows of."""
    attempts = {(piece.uri, position): attempts for piece in shard.pieces for position, attempts in piece.retries}
    return [
        replace(letter, attempts=attempts.get((letter.source_uri, letter.position), letter.attempts))
        for letter in letters
    ]
