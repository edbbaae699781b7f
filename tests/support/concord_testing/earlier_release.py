"""Turn a finished collection into one of an earlier release."""

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from concord.pipeline.output.manifest import PartFile, ShardReport, canonical_json
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.schema import SCHEMAS, columns_of
from concord.pipeline.plan import Plan

VERSION = 2
"""Of the schema."""


def downgrade(output: Path) -> None:
    """Rewrite parts, commit records, plan and manifest as a release with the schema of ``VERSION`` wrote them."""
    folder = OutputFolder(output)
    manifest, plan = folder.manifest(), folder.plan()
    assert manifest is not None
    values = orjson.loads(plan.to_json())
    values["schema_version"] = VERSION
    values["config"]["output"] = values["config"]["output"]["path"]
    plan_path = Path(str(folder.plan_path(plan.generation)))
    plan_path.write_bytes(orjson.dumps(values, option=orjson.OPT_SORT_KEYS))
    shards = tuple(_downgrade_shard(folder, report) for report in manifest.shards)
    digest = Plan.from_json(plan_path.read_bytes()).digest
    older = replace(manifest, schema_version=VERSION, plan=digest, shards=shards)
    Path(str(folder.manifest_path)).write_bytes(canonical_json(older))


def _downgrade_shard(folder: OutputFolder, report: ShardReport) -> ShardReport:
    files = {name: _downgrade_part(folder, name, part) for name, part in report.files.items()}
    older = replace(report, files=files)
    record = Path(str(folder.record_path(report.shard, generation=report.generation)))
    record.write_bytes(canonical_json(older))
    return older


def _downgrade_part(folder: OutputFolder, name: str, part: PartFile) -> PartFile:
    path = Path(str(folder.output / part.path))
    table: pa.Table = pq.read_table(path).select(columns_of(name, VERSION))
    metadata = {**(table.schema.metadata or {}), b"concord.schema_version": str(VERSION).encode()}
    path.unlink()  # other names of the file keep their bytes
    pq.write_table(table.replace_schema_metadata(metadata), path)
    content = path.read_bytes()
    return replace(part, size=len(content), sha256=hashlib.sha256(content).hexdigest())


def flatten(output: Path) -> None:
    """Give a folder the layout of a release without generations, as that release left it, finished or not."""
    current = output / "current"
    manifest = (current / "manifest.json").read_bytes() if current.exists() else None
    for name in SCHEMAS:
        parts = [*(current / name).glob("*"), *(output / "_run" / "parts" / name).glob("*")]
        (output / name).unlink(missing_ok=True)
        if parts:
            (output / name).mkdir()
        for part in parts:
            part.rename(output / name / part.name)
    manifest_path = output / "_run" / "manifest.json"
    manifest_path.unlink(missing_ok=True)
    if manifest is not None:
        manifest_path.write_bytes(manifest)
    current.unlink(missing_ok=True)
    for folder in (output / "generations", output / "_run" / "parts"):
        shutil.rmtree(folder, ignore_errors=True)
