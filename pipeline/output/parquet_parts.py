"""Reading and writing a part: one Parquet file of a table."""

import hashlib
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from concord.pipeline.errors import IntegrityError
from concord.pipeline.output.manifest import DataFile
from concord.pipeline.storage.atomic_writes import crash_point, store_errors, write_atomically
from concord.pipeline.storage.output_paths import OutputPath, arrow_source

# Measured: 64 k rows let readers skip most of a file; smaller groups cost space and time.
ROW_GROUP_ROWS = 65_536

_COMPRESSION_LEVEL = 3
# Rows decoded at once.
_BATCH_ROWS = 16_384


def iter_batches(part: OutputPath, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """Read some columns of a part batch by batch, verifying page checksums; raises what ``read_part`` raises."""
    with _open_part(part) as file:
        for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=list(columns)):
            yield batch.select(columns)


def read_part(
    part: OutputPath, columns: Sequence[str] | None = None, *, start: int = 0, stop: int | None = None
) -> pa.Table:
    """Read a part, or some of its columns and rows, as one table, verifying page checksums.

    Args:
        start, stop: numbers of rows, half-open; only the row groups that hold them are read.

    Raises:
        IntegrityError: when the file is missing or damaged.
    """
    with _open_part(part) as file:
        bounds, first, groups = 0, 0, []
        for number in range(file.num_row_groups):
            rows = file.metadata.row_group(number).num_rows
            if bounds + rows <= start:
                first = bounds + rows
            elif stop is None or bounds < stop:
                groups.append(number)
            bounds += rows
        table = file.read_row_groups(groups, columns=None if columns is None else list(columns))
        table = table if columns is None else table.select(columns)
    return table.slice(start - first, None if stop is None else stop - start)


def write_part(
    table: pa.Table, *, root: OutputPath, staging: Path | None, name: str, shard: str, generation: int
) -> DataFile:
    """Write a table as ``<name>/part-<shard>-g<generation>-<hash>.parquet`` below a folder.

    It is written in one piece, and does not count until a commit record names it.

    Args:
        root: the folder for parts that no finished generation names yet.
        staging: a folder for unfinished files, on the same file system; None for a store.
        shard: the shard's name, such as ``00007``.

    Raises:
        StoreError: when there is no space.
    """
    encoded = io.BytesIO()
    _write_table(table, encoded)
    content = encoded.getvalue()
    sha256 = hashlib.sha256(content).hexdigest()
    path = f"{name}/part-{shard}-g{generation}-{sha256[:8]}.parquet"
    with store_errors(root / name):
        write_atomically(root / path, content, staging=staging)
    crash_point("rename")
    return DataFile(path=path, rows=table.num_rows, size=len(content), sha256=sha256)


@contextmanager
def _open_part(part: OutputPath) -> Iterator[pq.ParquetFile]:
    try:
        with pq.ParquetFile(arrow_source(part), page_checksum_verification=True) as file:
            yield file
    except (OSError, KeyError, pa.ArrowException) as error:  # KeyError: a column is missing
        fault = " ".join(str(error).split())
        raise IntegrityError(f"{part}: cannot be read: {fault}; check the folder with 'concord verify'") from error


def _write_table(table: pa.Table, stream: BinaryIO) -> None:
    pq.write_table(
        table,
        stream,
        row_group_size=ROW_GROUP_ROWS,
        compression="zstd",
        compression_level=_COMPRESSION_LEVEL,
        # Nearly all floats are distinct, so that a dictionary of them only costs space.
        use_dictionary=[field.name for field in table.schema if not pa.types.is_floating(field.type)],
        write_page_index=True,
        write_page_checksum=True,
    )
