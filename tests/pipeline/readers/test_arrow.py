"""Arrow files, alone and in the folders that the ``datasets`` library saves."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from concord_testing.broken_files import arrow_stream, plan_for, read_all, read_plan

from concord.pipeline.config import ReaderConfig
from concord.pipeline.documents import DeadLetter, Document
from concord.pipeline.readers.read_file import read_text_at

TABLE = pa.table(
    {
        "id": pa.array([*range(39), None], pa.int64()),
        "text": pa.array([f"Anna met Bob {number} times." for number in range(40)]).dictionary_encode(),
        "label": [{"name": "a", "scores": [0.5]}] * 40,
    }
)


def read_in_pieces(where: Path, *, shard_bytes: int) -> list[Document | DeadLetter]:
    plan = plan_for(where, shard_bytes=shard_bytes)
    assert plan.ignored == 0
    return read_plan(plan)


def arrow_file(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as file:
        file.write_table(table, max_chunksize=15)
    return bytes(sink.getvalue())


@pytest.mark.parametrize("write", [arrow_stream, arrow_file])
def test_rows_are_read_as_those_of_parquet(tmp_path: Path, write: object) -> None:
    assert callable(write)
    path = tmp_path / "a.arrow"
    path.write_bytes(write(TABLE.drop_columns("text").append_column("text", TABLE["text"].cast(pa.string()))))
    pq.write_table(TABLE, tmp_path / "a.parquet")

    found = read_all(path, "arrow", ReaderConfig())

    expected = read_all(tmp_path / "a.parquet", "parquet", ReaderConfig())
    assert [(record.text, record.meta) for record in found if isinstance(record, Document)] == [
        (record.text, record.meta) for record in expected if isinstance(record, Document)
    ]
    assert [record.doc_id for record in found] == [*map(str, range(39)), "a.arrow:39"]
    assert isinstance(found[20], Document)
    assert found[20].source_position == 20
    assert read_text_at(str(path), format="arrow", position=20, config=ReaderConfig()) == found[20].text


@pytest.mark.parametrize("shard_bytes", [1, 100, 1_000_000])
def test_pieces_of_any_size_have_the_rows_of_the_whole_file(tmp_path: Path, shard_bytes: int) -> None:
    path = tmp_path / "a.arrow"
    path.write_bytes(arrow_stream(TABLE))

    assert read_in_pieces(path, shard_bytes=shard_bytes) == read_all(path, "arrow", ReaderConfig())


def test_a_broken_batch_of_one_row_does_not_hide_those_after_it(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.string()), ("text", pa.string())])
    offsets = pa.array([0, 2], pa.int32()).buffers()[1]
    invalid = pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(b"\xff\xfe")])
    path = tmp_path / "a.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema) as stream:
        for doc_id, text in (("a", pa.array(["Ada."])), ("b", invalid), ("c", pa.array(["Bob."]))):
            stream.write_batch(pa.RecordBatch.from_arrays([pa.array([doc_id]), text], schema=schema))

    found = read_all(path, "arrow", ReaderConfig())

    assert [record.doc_id for record in found] == ["a", "b", "c"]
    assert isinstance(found[1], DeadLetter)
    assert found[1].error == "invalid_arrow"


def test_folder_of_the_datasets_library_is_read_without_its_cached_results(tmp_path: Path) -> None:
    for split, first in (("train", 0), ("test", 20)):
        folder = tmp_path / split
        folder.mkdir()
        (folder / "data-00000-of-00001.arrow").write_bytes(arrow_stream(TABLE.slice(first, 19)))
        (folder / "cache-c0801e024d563b55.arrow").write_bytes(arrow_stream(TABLE.slice(first, 9)))
        (folder / "cache-c0801e024d563b55_00001_of_00002.arrow").write_bytes(arrow_stream(TABLE.slice(first, 9)))
        (folder / "dataset_info.json").write_text("{}")
        (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')

    found = read_in_pieces(tmp_path, shard_bytes=200)

    assert [record.doc_id for record in found] == [*map(str, range(20, 39)), *map(str, range(19))]
    assert {Path(record.source_uri).parent.name for record in found} == {"train", "test"}
