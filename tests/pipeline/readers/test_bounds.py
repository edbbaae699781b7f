"""What is read is bounded; a dead letter beyond the bounds can be tried again with others."""

import gzip
import json
import resource
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from concord_testing import runs
from concord_testing.broken_files import read_all
from concord_testing.checkout import CHECKOUT

import concord
from concord.pipeline.config import ReaderConfig
from concord.pipeline.documents import DeadLetter
from concord.pipeline.output.collection import DeadLetterFilter
from concord.pipeline.readers.read_file import scan_file

pytestmark = pytest.mark.slow(reason="unpacks gigabytes in a process that has little memory")

LINES = b"".join(b'{"id": "d%d", "text": "Anna met Bob %d times."}\n' % (number, number) for number in range(200))


def errors(output: object) -> list[str]:
    return [row["error"] for row in concord.open(str(output)).to_arrow("errors").to_pylist()]


def test_larger_record_is_annotated_by_a_retry_with_a_larger_bound(tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    records = [{"id": "short", "text": "Anna left."}, {"id": "long", "text": "Bob met Anna. " * 50}]
    source.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    config = runs.job(source, tmp_path / "out", reader={"max_record_bytes": 100}, max_dead_letters=1)
    report = runs.run_job(config)
    assert (report.annotated, errors(report.output)) == (1, ["record_too_large"])

    larger = config.model_copy(update={"reader": config.reader.model_copy(update={"max_record_bytes": 10_000})})
    assert runs.run_job(larger).changes.new == 0
    retried = runs.run_job(larger, retry=DeadLetterFilter())

    assert (retried.annotated, retried.unchanged, errors(retried.output)) == (1, 1, [])


LONG = "Anna met Bob. " * 74_000
ROWS = 3000
SAME = pa.DictionaryArray.from_arrays(pa.array([0] * ROWS, pa.int32()), pa.array([LONG]))


def views() -> pa.Array:
    """Return strings that are all views of one."""
    view = struct.pack("<i4sii", len(LONG), LONG[:4].encode(), 0, 0)
    return pa.Array.from_buffers(pa.string_view(), ROWS, [None, pa.py_buffer(view * ROWS), pa.py_buffer(LONG.encode())])


def lists() -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(range(ROWS + 1), pa.int32()), SAME)


COLUMNS: dict[str, Callable[[], pa.Table]] = {
    "dictionary": lambda: pa.table({"text": SAME}),
    "dictionary in a struct": lambda: pa.table(
        {"text": ["a"] * ROWS, "other": pa.StructArray.from_arrays([SAME], ["x"])}
    ),
    "dictionary in a list": lambda: pa.table({"text": ["a"] * ROWS, "other": lists()}),
    "nulls in a list": lambda: pa.table({"text": ["a"], "other": pa.array([[None] * 70_000_000], pa.list_(pa.null()))}),
    "pages": lambda: pa.table({"text": [f"{LONG}{number}" for number in range(100)]}),
}


def write_parquet(table: pa.Table, path: Path) -> None:
    pq.write_table(table, path, compression="zstd", dictionary_pagesize_limit=1 << 30)


def write_arrow(table: pa.Table, path: Path, compression: str | None = "zstd") -> None:
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema, options=options) as stream:
        stream.write_table(table)


@pytest.mark.parametrize(
    ("format", "columns"),
    [*(("parquet", columns) for columns in COLUMNS), ("arrow", "dictionary"), ("arrow", "nulls in a list")],
)
def test_small_file_of_columns_that_holds_gigabytes_is_one_dead_letter(
    tmp_path: Path, format: str, columns: str
) -> None:
    path, table = tmp_path / f"a.{format}", COLUMNS[columns]()
    (write_parquet if format == "parquet" else write_arrow)(table, path)
    assert path.stat().st_size < 100_000

    [found] = read_all(path, format, ReaderConfig())
    [scanned] = scan_file(str(path), format=format, name=path.name, config=ReaderConfig())

    assert isinstance(found, DeadLetter)
    assert found.error == "unpacks_too_far"
    assert "write it in another format" in found.message
    assert scanned.loses_file


def test_views_of_one_string_count_as_often_as_they_stand_there(tmp_path: Path) -> None:
    write_arrow(pa.table({"text": views()}), tmp_path / "a.arrow", None)

    [found] = read_all(tmp_path / "a.arrow", "arrow", ReaderConfig())

    assert isinstance(found, DeadLetter)
    assert found.error == "unpacks_too_far"


READ_WITH_LITTLE_MEMORY = """
import resource, sys
from pathlib import Path
sys.path.insert(0, "tests/support")
from concord_testing.broken_files import read_all
from concord.pipeline.config import ReaderConfig
import concord.pipeline.readers.files, concord.pipeline.readers.web
held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (held + 1_000_000_000,) * 2)
for name in sys.argv[1:]:
    [found] = read_all(Path(name), Path(name).suffixes[0][1:].replace("txt", "text"), ReaderConfig())
    print(found.error)
"""


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_AS") or sys.platform != "linux", reason="needs /proc")
def test_small_bombs_of_every_format_need_little_memory(tmp_path: Path) -> None:
    bomb = gzip.compress(bytes(10_000_000)) * 120
    names = [tmp_path / f"bomb.{suffix}.gz" for suffix in ("txt", "jsonl", "csv", "html")]
    for name in names:
        name.write_bytes(bomb)

    done = subprocess.run(
        [sys.executable, "-c", READ_WITH_LITTLE_MEMORY, *map(str, names)],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout.split() == ["unpacks_too_far"] * 4, done.stderr
