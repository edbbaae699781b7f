"""A finished run as readers see it: the parts that its manifest names, never a listing of files."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from concord.pipeline.output.manifest import Manifest, PartFile, ShardReport
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.parquet_parts import read_rows
from concord.pipeline.output.schema import SCHEMAS
from concord.pipeline.plan import Plan
from concord.pipeline.storage.output_paths import OutputPath


@dataclass(frozen=True, kw_only=True, slots=True)
class Collection:
    """An annotated collection.

    Attributes:
        root: the folder below which the parts of this generation are; a later run leaves them for a while.
        plan: the plan of the manifest's generation.
    """

    folder: OutputFolder
    root: OutputPath
    manifest: Manifest
    plan: Plan

    @property
    def output(self) -> OutputPath:
        """The absolute path of its folder."""
        return self.folder.output

    def parts(self, table: str) -> list[OutputPath]:
        """Return the paths of a table's parts, in shard order."""
        return [self.path(part) for part in self.manifest.files(table)]

    def path(self, part: PartFile) -> OutputPath:
        """Return the path of a part."""
        return self.root / part.path

    def read_rows(
        self, report: ShardReport, table: str, columns: Sequence[str], *, start: int = 0, stop: int | None = None
    ) -> pa.Table:
        """Read some rows of a table of a shard; see ``parquet_parts.read_rows``. A shard without a part has no rows."""
        part = report.files.get(table)
        if part is None:
            return SCHEMAS[table].empty_table().select(columns)
        return read_rows(self.path(part), columns, start=start, stop=stop)


def open_collection(
    output: OutputPath | OutputFolder, *, generation: int | None = None, version: str | None = None
) -> Collection:
    """Open the folder of a finished run; a newer generation in progress is ignored.

    Args:
        generation, version: an earlier generation that is still kept, by number or by the name that it was given.

    Raises:
        PlanError: when the folder contains no finished run, or not this generation.
        IntegrityError: when the manifest cannot be read.
    """
    folder = output if isinstance(output, OutputFolder) else OutputFolder(output)
    if folder.generations.current() is None:
        folder.plan()
    chosen = folder.generations.find(generation=generation, version=version)
    return Collection(folder=folder, root=chosen.root, manifest=chosen.manifest(), plan=chosen.plan())
