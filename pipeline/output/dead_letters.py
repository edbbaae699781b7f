"""Dead letters read back from a run's output, filtered, and with their number of attempts."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from concord.pipeline.documents import DeadLetter
from concord.pipeline.output.manifest import ShardReport
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.parquet_parts import iter_batches
from concord.pipeline.output.schema import ERRORS
from concord.pipeline.plan import Shard


class ExistingDeadLetter(NamedTuple):
    """The columns of a dead letter that identify its record and reason; see DeadLetter."""

    source_uri: str
    position: int
    doc_id: str | None
    stage: str
    error: str
    attempts: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DeadLetterFilter:
    """Filter for dead letters; an empty field matches all.

    Attributes:
        ids: document ids; a record that could not be read may have none.
    """

    stages: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()

    def matches(self, dead_letter: DeadLetter | ExistingDeadLetter) -> bool:
        """Tell whether a dead letter passes the filter."""
        return (
            (not self.stages or dead_letter.stage in self.stages)
            and (not self.errors or dead_letter.error in self.errors)
            and (not self.ids or dead_letter.doc_id in self.ids)
        )


def read_dead_letters(folder: OutputFolder, reports: Iterable[ShardReport]) -> Iterator[DeadLetter]:
    """Read the dead letters of committed shards, in shard order."""
    for report in reports:
        if "errors" in report.files:
            for batch in iter_batches(folder.part(report, "errors"), tuple(ERRORS.names)):
                yield from (DeadLetter(**row) for row in batch.to_pylist())


def with_attempts(shard: Shard, dead_letters: Sequence[DeadLetter]) -> list[DeadLetter]:
    """Return a shard's dead letters with the number of attempts recorded in its plan."""
    attempts = {(piece.uri, position): attempts for piece in shard.pieces for position, attempts in piece.retries}
    return [
        replace(dead, attempts=attempts.get((dead.source_uri, dead.position), dead.attempts)) for dead in dead_letters
    ]
