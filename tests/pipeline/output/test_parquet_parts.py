"""A part under its final name is complete."""

import errno
import hashlib
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from concord.pipeline.errors import StoreError
from concord.pipeline.output.manifest import DataFile
from concord.pipeline.output.parquet_parts import ROW_GROUP_ROWS, write_part
from concord.pipeline.output.schema import SCHEMAS


def error_rows(rows: int) -> pa.Table:
    columns = {
        "doc_id": [f"d{number}" for number in range(rows)],
        "source_uri": ["/in.jsonl"] * rows,
        "position": list(range(rows)),
        "stage": ["read"] * rows,
        "error": ["invalid_json"] * rows,
        "message": ["m"] * rows,
        "attempts": [0] * rows,
        "page": [None] * rows,
    }
    return pa.table(columns, schema=SCHEMAS["errors"])


def write(table: pa.Table, output: Path) -> DataFile:
    return write_part(
        table, root=output, staging=output / "_run" / "staging", name="errors", shard="00003", generation=0
    )


def files_below(output: Path) -> list[str]:
    return sorted(path.relative_to(output).as_posix() for path in output.rglob("*") if path.is_file())


@pytest.mark.parametrize("rows", [0, 3, ROW_GROUP_ROWS + 1])
def test_write_part_writes_the_table_that_it_is_given(tmp_path: Path, rows: int) -> None:
    table = error_rows(rows)
    part = write(table, tmp_path)
    content = (tmp_path / part.path).read_bytes()
    assert part.sha256 == hashlib.sha256(content).hexdigest()
    assert part.path == f"errors/part-00003-g0-{part.sha256[:8]}.parquet"
    assert (part.size, part.rows) == (len(content), rows)
    assert files_below(tmp_path) == [part.path]
    read = pq.read_table(tmp_path / part.path)
    assert read.equals(table)
    assert read.schema.equals(table.schema, check_metadata=True)


def test_write_part_adds_page_index_checksums_and_row_groups_of_fixed_size(tmp_path: Path) -> None:
    part = write(error_rows(ROW_GROUP_ROWS + 1), tmp_path)
    file = pq.ParquetFile(tmp_path / part.path, page_checksum_verification=True)
    assert [file.metadata.row_group(number).num_rows for number in range(2)] == [ROW_GROUP_ROWS, 1]
    column = file.metadata.row_group(0).column(1)
    assert column.compression == "ZSTD"
    assert column.has_column_index
    assert "RLE_DICTIONARY" in column.encodings


def test_write_part_writes_equal_bytes_however_a_table_is_chunked_and_may_replace_an_equal_part(tmp_path: Path) -> None:
    table = error_rows(1000)
    chunked = pa.concat_tables([table.slice(0, 1), table.slice(1, 500), table.slice(501)])
    assert write(table, tmp_path) == write(chunked, tmp_path)
    assert len(files_below(tmp_path)) == 1


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_write_part_leaves_no_file_when_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def no_space(_descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(StoreError, match="run the same command again") as caught:
        write(error_rows(5), tmp_path)
    assert caught.value.exit_code == 75
    assert files_below(tmp_path) == []


def test_write_part_raises_other_errors_of_the_system_unchanged(tmp_path: Path) -> None:
    (tmp_path / "errors").write_text("a file where a folder must be")
    with pytest.raises(FileExistsError):
        write(error_rows(1), tmp_path)
