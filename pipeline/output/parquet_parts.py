"""Parquet parts: reading and writing one file of a table."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from concord.pipeline.errors import IntegrityError
from concord.pipeline.output.manifest import PartFile
from concord.pipeline.storage.atomic_writes import crash_point, move_into_place, stage_file, store_errors
from concord.pipeline.storage.files import file_sha256
from concord.pipeline.storage.output_paths import OutputPath, arrow_source

# Rows decoded at once; a document's rows stay together however many batches they span.
_BATCH_ROWS = 16_384


def iter_batches(part: OutputPath, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """Read some columns of a part, a batch at a time; pages are checked against bit rot.

    Raises:
        IntegrityError: when the file is missing or broken.
    """
    try:
        with pq.ParquetFile(arrow_source(part), page_checksum_verification=True) as file:
            yield from file.iter_batches(batch_size=_BATCH_ROWS, columns=list(columns))
    except (OSError, pa.ArrowInvalid) as error:
        raise IntegrityError(f"{part}: cannot be read: {error}") from error


def read_part(part: OutputPath, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a part, or some columns of it, at once; pages are checked against bit rot.

    Raises:
        IntegrityError: when the file is missing or broken.
    """
    try:
        with pq.ParquetFile(arrow_source(part), page_checksum_verification=True) as file:
            return file.read(columns=None if columns is None else list(columns))
    except (OSError, pa.ArrowException) as error:
        raise IntegrityError(f"{part}: cannot be read: {error}; check the folder with 'concord verify'") from error


# Measured: 64 k rows let readers skip most of a file, smaller groups cost space and time.
ROW_GROUP_ROWS = 65_536

_COMPRESSION_LEVEL = 3


def write_part(
    table: pa.Table, *, output: OutputPath, staging: Path, name: str, shard: str, generation: int
) -> PartFile:
    """Write a table as ``OUT/<name>/part-<shard>-g<generation>-<hash>.parquet`` and give what was written.

    The bytes go to a staged file, are flushed to disk and read back before the file takes its name. That a part
    stands there says nothing yet: only a commit record makes it count.

    Args:
        output: the output folder.
        staging: a folder for unfinished files, on the same file system where the output lies on one.
        name: the table's name.
        shard: the shard's name, as in ``00007``.

    Raises:
        StoreError: when there is no space.
        IntegrityError: when the file read back is not what was written.
    """

    def fill(stream: BinaryIO) -> None:
        _write_table(table, stream)

    with store_errors(output / name):
        staged = stage_file(staging, fill)
        try:
            _check_footer(staged, table)
            sha256 = file_sha256(staged)
            size = staged.stat().st_size
            path = f"{name}/part-{shard}-g{generation}-{sha256[:8]}.parquet"
            move_into_place(staged, output / path)
        except BaseException:
            staged.unlink(missing_ok=True)
            raise
    crash_point("rename")
    return PartFile(path=path, rows=table.num_rows, size=size, sha256=sha256)


def _write_table(table: pa.Table, stream: BinaryIO) -> None:
    pq.write_table(
        table,
        stream,
        row_group_size=ROW_GROUP_ROWS,
        compression="zstd",
        compression_level=_COMPRESSION_LEVEL,
        # A dictionary of floats that are nearly all different only costs space.
        use_dictionary=[field.name for field in table.schema if not pa.types.is_floating(field.type)],
        write_page_index=True,
        write_page_checksum=True,
    )


def _check_footer(path: Path, table: pa.Table) -> None:
    """Read the footer back: a file that lost its end or rows must not get a name."""
    try:
        metadata = pq.read_metadata(path)
    except FileNotFoundError:
        # Another driver swept the folder; whoever writes the shard knows what to do.
        raise
    except (pa.ArrowInvalid, OSError) as error:
        raise IntegrityError(f"{path}: the file just written cannot be read back: {error}") from error
    if metadata.num_rows != table.num_rows:
        raise IntegrityError(f"{path}: expected {table.num_rows} rows, read back {metadata.num_rows}")
