"""A finished collection as its manifest names it: what reads annotations goes by this, never by a listing of files."""

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
        output: its folder, absolute.
        plan: of the generation that the manifest stands for.
    """

    output: OutputPath
    manifest: Manifest
    plan: Plan

    def parts(self, table: str) -> list[OutputPath]:
        """Give the places of a table's parts, in the shards' order."""
        return [self.output / part.path for part in self.manifest.files(table)]

    def read(self, table: str, columns: Sequence[str], *, shard: int) -> pa.Table:
        """Read columns of a shard's part; no rows where the shard has none.

        Args:
            shard: its place among the manifest's shards.

        Raises:
            IntegrityError: when the part is missing or broken.
        """
        part = self.manifest.shards[shard].files.get(table)
        if part is None:
            return SCHEMAS[table].empty_table().select(list(columns))
        return read_part(self.output / part.path, columns)


def open_collection(output: OutputPath) -> Collection:
    """Open the folder of a finished run; a newer generation that is under way in it does not count yet.

    Raises:
        PlanError: when the folder holds no finished run.
        IntegrityError: when the manifest cannot be read.
    """
    folder = OutputFolder(output.absolute())
    manifest = folder.manifest()
    if manifest is None:
        folder.plan()
        raise PlanError(f"{output}: the run is not finished; run the same annotate command again")
    return Collection(output=folder.output, manifest=manifest, plan=folder.plan(manifest.generation))
