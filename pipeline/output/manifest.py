"""The manifest and the commit records it is made of."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from concord.pipeline.errors import ReconciliationError
from concord.pipeline.plan import ShardRef


@dataclass(frozen=True, kw_only=True, slots=True)
class PartFile:
    """A committed file: path below the output folder, rows, bytes and sha256 in hex."""

    path: str
    rows: int
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardReport:
    """What became of a shard: the content of its commit record.

    Attributes:
        read: records counted by the planner, not by the reader.
        annotated, unchanged: documents annotated by this commit, and taken over from earlier ones.
        stats: counts and sums for the report, name -> number; equal for equal plans (no times in here).
    """

    shard: int
    generation: int
    read: int
    annotated: int
    unchanged: int
    dead_letters: int
    files: Mapping[str, PartFile] = field(default_factory=dict)
    stats: Mapping[str, float] = field(default_factory=dict)


MANIFEST_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """A finished run: what readers go by.

    Attributes:
        plan: digest of the plan.
        annotated, unchanged: documents annotated in the manifest's generation, and taken over from earlier ones.
        shards: the content of every commit record that counts, in the shards' order.
    """

    manifest_version: int = MANIFEST_VERSION
    schema_version: int
    generation: int
    plan: str
    read: int
    annotated: int
    unchanged: int
    dead_letters: int
    shards: tuple[ShardReport, ...]

    def files(self, table: str) -> list[PartFile]:
        """Give a table's parts in the shards' order."""
        return [shard.files[table] for shard in self.shards if table in shard.files]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What became of records: annotated in one generation, taken over from earlier ones, or a dead letter."""

    annotated: int
    unchanged: int
    dead_letters: int


def sum_outcomes(reports: Iterable[ShardReport], *, generation: int) -> Outcome:
    """Add up what the shards of a collection hold, as seen from a generation."""
    annotated = unchanged = dead_letters = 0
    for report in reports:
        new = report.annotated if report.generation == generation else 0
        annotated += new
        unchanged += report.annotated + report.unchanged - new
        dead_letters += report.dead_letters
    return Outcome(annotated=annotated, unchanged=unchanged, dead_letters=dead_letters)


def check_equation(report: ShardReport | Manifest, *, place: str) -> None:
    """Check read = annotated + unchanged + dead letters.

    Raises:
        ReconciliationError: naming the place and both sides.
    """
    outcomes = report.annotated + report.unchanged + report.dead_letters
    if report.read != outcomes:
        raise ReconciliationError(
            f"{place}: {report.read} records were planned, but {report.annotated} annotated + {report.unchanged} "
            f"unchanged + {report.dead_letters} dead letters = {outcomes}; has the input changed since it was planned?"
        )


def shard_ref(report: ShardReport) -> ShardRef:
    """Give the commit that a report is of."""
    return ShardRef(shard=report.shard, generation=report.generation)
