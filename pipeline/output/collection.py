"""A finished run as readers see it: the parts that its manifest names, never a listing of files."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from concord.pipeline.errors import PlanError
from concord.pipeline.output.manifest import Manifest
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.parquet_parts import read_part
from concord.pipeline.output.schema import SCHEMAS
from concord.pipeline.plan import Plan
from concord.pipeline.storage.output_paths import OutputPath


@dataclass(frozen=True, kw_only=True, slots=True)
class Collection:
    """An annotated collection.

    Attributes:
        output: absolute path of its folder.
        plan: the plan of the manifest's generation.
    """

    output: OutputPath
    manifest: Manifest
    plan: Plan

    def parts(self, table: str) -> list[OutputPath]:
        """Return the paths of a table's parts, in shard order."""
        return [self.output / part.path for part in self.manifest.files(table)]

    def read(self, table: str, columns: Sequence[str], *, shard: int) -> pa.Table:
        """Read columns of the part of a shard, given by its 0-based position in the manifest; no rows if it has none.

        Raises:
            IntegrityError: when the part is missing or damaged.
        """
        part = self.manifest.shards[shard].files.get(table)
        if part is None:
            return SCHEMAS[table].empty_table().select(list(columns))
        return read_part(self.output / part.path, columns)


def open_collection(output: OutputPath) -> Collection:
    """Open the folder of a finished run; a newer generation in progress is ignored.

    Raises:
        PlanError: when the folder contains no finished run.
        IntegrityError: when the manifest cannot be read.
    """
    folder = OutputFolder(output.absolute())
    manifest = folder.manifest()
    if manifest is None:
        folder.plan()
        raise PlanError(f"{output}: the run is not finished; run the same annotate command again")
    return Collection(output=folder.output, manifest=manifest, plan=folder.plan(manifest.generation))
