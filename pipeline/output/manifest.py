"""The manifest, the commit records it is made of, and their JSON."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Self, TypeVar

import orjson
from pydantic import AfterValidator, ConfigDict, Field, NonNegativeInt, TypeAdapter, ValidationError

from concord.models.config import first_fault
from concord.pipeline.errors import IntegrityError, ReconciliationError
from concord.pipeline.output.schema import DOCUMENT_TABLES, SCHEMAS
from concord.pipeline.plan import Plan
from concord.pipeline.storage.output_paths import OutputPath, read_bytes

# What a file says is checked where it is read: somebody else may have made the collection.
_STRICT = ConfigDict(strict=True, extra="forbid")
_PART = rf"^({'|'.join(SCHEMAS)})/part-[0-9]{{5,10}}-g[0-9]{{1,10}}-[0-9a-f]{{8}}\.parquet$"

RecordT = TypeVar("RecordT")


def _part_of(table: str, part: "DataFile | None") -> "DataFile":
    """Return a part of a table; ValueError if it is missing, or that of another one."""
    if part is None or not part.path.startswith(f"{table}/"):
        raise ValueError(f"expected a part of {table}, got {part and part.path}")
    return part


def _parts_of_shard(files: "Mapping[str, DataFile]") -> "Mapping[str, DataFile]":
    return {table: _part_of(table, files.get(table)) for table in (*files, *DOCUMENT_TABLES)}


@dataclass(frozen=True, kw_only=True, slots=True)
class DataFile:
    """A committed data file.

    Attributes:
        path: below the output folder.
        size: bytes.
        sha256: hex.
    """

    __pydantic_config__ = _STRICT

    path: Annotated[str, Field(pattern=_PART)]
    rows: NonNegativeInt
    size: NonNegativeInt
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CommitRecord:
    """The outcome of a shard; the content of its commit record.

    Attributes:
        read: records counted by the planner, not by the reader.
        annotated, unchanged: documents annotated by this commit, and documents copied from earlier ones.
        annotated_in: runs of documents, in the order of their rows: the generation that annotated them, and how many
            they are; empty where that is the shard's own generation for all.
        files: data files by table name.
        stats: counts for the report, name -> number. They contain no times: equal plans give equal stats.
    """

    __pydantic_config__ = _STRICT

    shard: NonNegativeInt
    generation: NonNegativeInt
    read: NonNegativeInt
    annotated: NonNegativeInt
    unchanged: NonNegativeInt
    dead_letters: NonNegativeInt
    files: Annotated[Mapping[str, DataFile], AfterValidator(_parts_of_shard)] = field(default_factory=dict)
    stats: Mapping[str, int | float] = field(default_factory=dict)
    annotated_in: tuple[tuple[NonNegativeInt, NonNegativeInt], ...] = ()

    def document_generations(self, documents: int) -> list[int]:
        """Return the generation in which each document was last annotated, in the order of the rows.

        It raises IntegrityError if they are not so many documents.
        """
        runs = self.annotated_in or ((self.generation, self.annotated + self.unchanged),)
        if sum(number for _, number in runs) != documents:
            raise IntegrityError(
                f"shard {self.shard:05d}: its commit record counts other documents than the {documents} of its part; "
                "check the folder with 'concord verify'"
            )
        return [generation for generation, number in runs for _ in range(number)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """The state of a finished run; readers see exactly the files it names.

    Attributes:
        plan: digest of the plan.
        annotated, unchanged: documents annotated in the manifest's generation, and in earlier ones.
        dead_letters: records of the collection that could not be annotated, in this generation or an earlier one.
        shards: the content of every valid commit record, in shard order.
        names: the table of names; None while a first run is not finished.
    """

    __pydantic_config__ = _STRICT

    schema_version: int
    generation: NonNegativeInt
    plan: str
    read: NonNegativeInt
    annotated: NonNegativeInt
    unchanged: NonNegativeInt
    dead_letters: NonNegativeInt
    shards: tuple[CommitRecord, ...]
    names: Annotated[DataFile, AfterValidator(partial(_part_of, "names"))] | None = None

    @classmethod
    def of(cls, plan: Plan, shards: Iterable[CommitRecord], *, read: int) -> Self:
        """Return the manifest of a plan's shards, of which ``read`` records were planned."""
        in_order = tuple(sorted(shards, key=lambda report: report.shard))
        documents = sum(report.annotated + report.unchanged for report in in_order)
        annotated = sum(report.annotated for report in in_order if report.generation == plan.generation)
        return cls(
            schema_version=plan.schema_version,
            generation=plan.generation,
            plan=plan.digest,
            read=read,
            annotated=annotated,
            unchanged=documents - annotated,
            dead_letters=sum(report.dead_letters for report in in_order),
            shards=in_order,
        )

    def files(self, table: str) -> list[DataFile]:
        """Return the data files of a table in shard order."""
        if table == "names":
            return [] if self.names is None else [self.names]
        return [shard.files[table] for shard in self.shards if table in shard.files]

    def all_files(self) -> list[DataFile]:
        """Return the data files of all tables."""
        return [part for table in SCHEMAS for part in self.files(table)]


def check_equation(report: CommitRecord | Manifest, *, where: str) -> None:
    """Raise a ReconciliationError that names ``where`` unless read = annotated + unchanged + dead letters."""
    outcomes = report.annotated + report.unchanged + report.dead_letters
    if report.read != outcomes:
        raise ReconciliationError(
            f"{where}: {report.read} records were planned, but {report.annotated} annotated + {report.unchanged} "
            f"unchanged + {report.dead_letters} dead letters = {outcomes}; has the input changed since it was planned?"
        )


def canonical_json(value: Manifest | CommitRecord) -> bytes:
    """Serialize with sorted keys and a final newline, so that equal values have equal bytes."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE)


def read_manifest(path: OutputPath) -> Manifest | None:
    """Read a manifest; None if there is no such file, IntegrityError if it is not a manifest."""
    return _read(path, "manifest", _MANIFEST)


def read_commit_record(path: OutputPath) -> CommitRecord | None:
    """Read a shard's commit record; None if there is no such file, IntegrityError if it is not a commit record."""
    return _read(path, "commit record", _REPORT)


_MANIFEST, _REPORT = TypeAdapter(Manifest), TypeAdapter(CommitRecord)


def _read(path: OutputPath, kind: str, parser: TypeAdapter[RecordT]) -> RecordT | None:
    try:
        return parser.validate_json(read_bytes(path))
    except FileNotFoundError:
        return None
    except ValidationError as error:
        fault = first_fault(error)
        raise IntegrityError(f"{path}: not a {kind}: {fault}; run the same annotate command again") from None
