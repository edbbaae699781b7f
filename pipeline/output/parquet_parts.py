"""Reading and writing a part: one Parquet file of a table."""

import hashlib
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from concord.pipeline.errors import IntegrityError
from concord.pipeline.output.manifest import DataFile
from concord.pipeline.storage.atomic_writes import (
    crash_point,
    move_into_place,
    stage_file,
    store_errors,
    write_atomically,
)
from concord.pipeline.storage.object_stores import StorePath
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


def read_part(part: OutputPath, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a part, or some columns of it, as one table, verifying page checksums.

    Raises:
        IntegrityError: when the file is missing or damaged.
    """
    with _open_part(part) as file:
        table = file.read(columns=columns)
        return table if columns is None else table.select(columns)


def read_rows(part: OutputPath, columns: Sequence[str], *, start: int = 0, stop: int | None = None) -> pa.Table:
    """Read rows of a part, by number from 0 and half-open, and of it only the row groups that hold them.

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
        table = file.read_row_groups(groups, columns=list(columns)).select(columns)
    return table.slice(start - first, None if stop is None else stop - start)


def write_part(
    table: pa.Table, *, root: OutputPath, staging: Path | None, name: str, shard: str, generation: int
) -> DataFile:
    """Write a table as ``<name>/part-<shard>-g<generation>-<hash>.parquet`` below a folder.

    The bytes are written to a staged file, flushed to disk and read back before the file is renamed; a store gets them
    from memory in one request. The part does not count until a commit record names it.

    Args:
        root: the folder for parts that no finished generation names yet.
        staging: a folder for unfinished files, on the same file system; None for a store.
        shard: the shard's name, such as ``00007``.

    Raises:
        StoreError: when there is no space.
        IntegrityError: when the file read back is not what was written.
        FileNotFoundError: when another process has cleared the staging folder meanwhile.
    """
    stem = f"{name}/part-{shard}-g{generation}"
    with store_errors(root / name):
        if isinstance(root, StorePath) or staging is None:
            encoded = io.BytesIO()
            _write_table(table, encoded)
            content = encoded.getvalue()
            sha256, size = hashlib.sha256(content).hexdigest(), len(content)
            path = f"{stem}-{sha256[:8]}.parquet"
            write_atomically(root / path, content)
        else:
            staged = stage_file(staging, partial(_write_table, table))
            try:
                _check_footer(staged, table)
                with staged.open("rb") as stream:
                    sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
                size = staged.stat().st_size
                path = f"{stem}-{sha256[:8]}.parquet"
                move_into_place(staged, root / path)
            except BaseException:
                staged.unlink(missing_ok=True)
                raise
    crash_point("rename")
    return DataFile(path=path, rows=table.num_rows, size=size, sha256=sha256)


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


def _check_footer(path: Path, table: pa.Table) -> None:
    """Read the footer back, so that a file missing its end or rows is not renamed."""
    try:
        metadata = pq.read_metadata(path)
    except FileNotFoundError:
        # Another driver emptied the staging folder; the caller writes the shard again.
        raise
    except (pa.ArrowInvalid, OSError) as error:
        raise IntegrityError(f"{path}: the file just written cannot be read back: {error}") from error
    if metadata.num_rows != table.num_rows:
        raise IntegrityError(f"{path}: expected {table.num_rows} rows, read back {metadata.num_rows}")
