"""Names that come twice are refused; numbers keep their digits; a value that cannot be stored never costs the text."""

import json
from collections.abc import Iterator, Sequence
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from concord_testing.broken_files import read_all
from typing_extensions import override

from concord.pipeline.config import ReaderConfig
from concord.pipeline.documents import DeadLetter, Document
from concord.pipeline.plan import Piece
from concord.pipeline.readers.base import Fields, RecordReader
from concord.pipeline.readers.records import RecordError


def write(folder: Path, format: str, table: pa.Table) -> Path:
    """Write a table as Parquet, as an Arrow stream, or as an Arrow file (Feather)."""
    path = folder / f"a.{'arrow' if format == 'feather' else format}"
    if format == "parquet":
        pq.write_table(table, path)
        return path
    new = pa.ipc.new_file if format == "feather" else pa.ipc.new_stream
    with pa.OSFile(str(path), "wb") as file, new(file, table.schema) as stream:
        stream.write_table(table)
    return path


def read(path: Path, **config: object) -> list[Document | DeadLetter]:
    return read_all(path, path.suffix.lstrip("."), ReaderConfig.from_mapping(config))


def read_lines(folder: Path, *lines: str) -> list[Document | DeadLetter]:
    path = folder / "a.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines))
    return read(path)


def documents(found: Sequence[Document | DeadLetter]) -> list[Document]:
    assert all(isinstance(record, Document) for record in found), found
    return [record for record in found if isinstance(record, Document)]


@pytest.mark.parametrize("format", ["parquet", "arrow", "feather"])
@pytest.mark.parametrize("names", [["id", "text", "text"], ["id", "id", "text"], ["text", "x", "x"]])
def test_column_name_that_comes_twice_is_an_invalid_header(tmp_path: Path, format: str, names: list[str]) -> None:
    columns = [pa.array([f"{number}"]) for number in range(3)]
    path = write(tmp_path, format, pa.Table.from_arrays(columns, names=names))

    (found,) = read(path)

    assert isinstance(found, DeadLetter)
    twice = next(name for name in names if names.count(name) == 2)
    assert found.error == "invalid_header"
    assert f"got {twice!r} twice" in found.message


@pytest.mark.parametrize("format", ["parquet", "arrow"])
@pytest.mark.parametrize("within", ["struct", "list"])
def test_field_name_that_comes_twice_within_a_column_is_an_invalid_header(
    tmp_path: Path, format: str, within: str
) -> None:
    kind = pa.struct([pa.field("a", pa.string()), pa.field("a", pa.int8())])
    value = pa.StructArray.from_arrays([pa.array(["x"]), pa.array([1], pa.int8())], fields=list(kind))
    column = value if within == "struct" else pa.ListArray.from_arrays([0, 1], value)
    path = write(tmp_path, format, pa.table({"text": ["Ada."], "m": column}))

    (found,) = read(path)

    assert isinstance(found, DeadLetter)
    assert found.error == "invalid_header"


@pytest.mark.parametrize(
    "line",
    [
        '{"id": "x", "text": "Ada met Karl.", "text": "x"}',
        '{"text": "Ada met Karl.", "text": "Ada met Karl."}',
        '{"text" : "a", "te\\u0078t": "b"}',
        '{"id": 1, "id": 2, "text": "a"}',
        '{"text": "a", "meta": {"k": 1, "k": 2}}',
        '{"text": "a", "meta": [1, {"deep": {"k": null, "j": 1, "k": null}}]}',
        '{"text": "a: b", "": 1, "": 2}',
    ],
)
def test_json_key_that_comes_twice_is_a_dead_letter(tmp_path: Path, line: str) -> None:
    before, found, after = read_lines(tmp_path, '{"text": "before"}', line, '{"text": "after"}')

    assert isinstance(before, Document)
    assert isinstance(after, Document)
    assert isinstance(found, DeadLetter)
    assert found.error == "duplicate_key"
    assert "; rename or drop one of them" in found.message


def test_equal_keys_of_different_objects_are_no_duplicates(tmp_path: Path) -> None:
    line = '{"text": "a", "m": [{"k": 1}, {"k": {"k": 2}}], "Text": "b", "text ": "c"}'

    (found,) = documents(read_lines(tmp_path, line))

    assert json.loads(found.meta or "") == {"m": [{"k": 1}, {"k": {"k": 2}}], "Text": "b", "text ": "c"}


@pytest.mark.parametrize(
    "number",
    [
        "12345678901234567890123",
        "-9223372036854775809",
        "18446744073709551616",
        "9" * 5000,
        "3.14159265358979323846264338327950288",
        "0.1000",
        "1e400",
        "1.5E-400",
        "-0.0",
        "123456789.123456789123456789",
    ],
)
def test_numbers_of_json_keep_all_their_digits(tmp_path: Path, number: str) -> None:
    line = f'{{"text": "Ada.", "id": {"9" * 5000}, "n": {number}, "m": {{"n": [{number}]}}}}'

    (found,) = documents(read_lines(tmp_path, line))

    assert found.doc_id == "9" * 5000
    assert found.meta == f'{{"m":{{"n":[{number}]}},"n":{number}}}'
    assert found.meta_nulls is None


def test_decimals_and_unsigned_integers_keep_all_their_digits(tmp_path: Path) -> None:
    long, longer = Decimal("12345678901234567890.123456789012345678"), Decimal("9" * 70 + ".123")
    table = pa.table(
        {
            "id": pa.array([2**64 - 1], pa.uint64()),
            "text": ["Ada."],
            "a": pa.array([long], pa.decimal128(38, 18)),
            "b": pa.array([longer], pa.decimal256(76, 3)),
            "c": pa.array([2**64 - 1], pa.uint64()),
        }
    )

    for format in ("parquet", "arrow"):
        (found,) = documents(read(write(tmp_path, format, table)))

        assert found.doc_id == "18446744073709551615"
        assert json.loads(found.meta or "") == {"a": str(long), "b": str(longer), "c": 2**64 - 1}


LATE = pa.array([4_000_000], pa.int32()).cast(pa.date32())
UNSTORABLE = {
    "date32": LATE,
    "date64": pa.array([4_000_000 * 86_400_000], pa.int64()).cast(pa.date64()),
    "timestamp": pa.array([2**62], pa.timestamp("us")),
    "zone": pa.array([0], pa.timestamp("us", "W. Europe Standard Time")),
    "duration": pa.array([2**62], pa.duration("s")),
    "utf-8": pa.array([b"\xff"]).view(pa.string()),
    "list": pa.ListArray.from_arrays([0, 1], LATE),
    "struct": pa.StructArray.from_arrays([LATE], names=["d"]),
    "map": pa.MapArray.from_arrays([0, 1], pa.array(["k"]), LATE),
    "dictionary": pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), LATE),
}


@pytest.mark.parametrize("format", ["parquet", "arrow", "feather"])
@pytest.mark.parametrize("column", UNSTORABLE.values(), ids=UNSTORABLE.keys())
def test_value_that_cannot_be_stored_is_null_in_meta_and_named(tmp_path: Path, format: str, column: pa.Array) -> None:
    path = write(tmp_path, format, pa.table({"id": ["d"], "text": ["Ada met Karl."], "when": column, "n": [1]}))

    (found,) = documents(read(path))

    assert found.text == "Ada met Karl."
    assert json.loads(found.meta or "") == {"n": 1, "when": None}
    assert json.loads(found.meta_nulls or "") == ["when"]


STORABLE = {
    "duration": (pa.array([timedelta(days=1, seconds=5)]), "1 day, 0:00:05"),
    "binary": (pa.array([b"\xff\x00"]), "/wA="),
    "map": (pa.array([[("k", 1), ("k", 2)]], pa.map_(pa.string(), pa.int8())), [["k", 1], ["k", 2]]),
    "nulls": (pa.array([[None, {"a": None}]], pa.list_(pa.struct([("a", pa.null())]))), [None, {"a": None}]),
    "zone": (pa.array([0], pa.timestamp("s", "Europe/Berlin")), "1970-01-01T01:00:00+01:00"),
    "nan": (pa.array([float("nan")]), None),
}


@pytest.mark.parametrize("format", ["parquet", "arrow"])
@pytest.mark.parametrize(("column", "stored"), STORABLE.values(), ids=STORABLE.keys())
def test_other_values_are_stored_as_json_has_them(
    tmp_path: Path, format: str, column: pa.Array, stored: object
) -> None:
    (found,) = documents(read(write(tmp_path, format, pa.table({"text": ["Ada."], "m": column}))))

    assert json.loads(found.meta or "") == {"m": stored}
    assert found.meta_nulls is None


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("[" * 300 + "]" * 300, None),
        ('"\\ud800"', None),
        ('{"\\udfff": 1}', None),
        ("NaN", None),
        ("[1, Infinity]", [1, None]),
    ],
)
def test_value_of_json_that_cannot_be_stored_costs_no_text(tmp_path: Path, value: str, kept: object) -> None:
    (found,) = documents(read_lines(tmp_path, f'{{"text": "Ada.", "n": {value}, "\\ud800": 12345678901234567890123}}'))

    assert json.loads(found.meta or "") == {"n": kept, "\\ud800": 12345678901234567890123}


def test_id_and_text_that_cannot_be_read_are_named_in_the_dead_letter(tmp_path: Path) -> None:
    path = write(tmp_path, "parquet", pa.table({"id": LATE, "text": ["Ada."], "n": LATE}))

    (of_id,), (of_text,) = read(path), read(path, id_field="none", text_field="n")

    assert isinstance(of_id, DeadLetter)
    assert isinstance(of_text, DeadLetter)
    assert (of_id.error, of_text.error) == ("unstorable_field", "unstorable_field")
    assert "field 'id': expected a value that can be stored, got date value out of range" in of_id.message
    assert "field 'n'" in of_text.message


class Numbers(RecordReader):
    """Reads records of a package whose numbers are those of Python."""

    suffixes = (".n",)

    @override
    def records(self, path: str, config: ReaderConfig) -> Iterator[Fields | RecordError]:
        yield {"id": 10**30, "text": "Ada.", "n": 10**30, "o": 0.5}


def test_integers_of_another_reader_that_no_json_holds_cost_no_text(tmp_path: Path) -> None:
    path = tmp_path / "a.n"
    path.touch()

    (found,) = documents(
        list(Numbers().read(Piece(uri=str(path), format="n", start=0, end=1, records=1), ReaderConfig()))
    )

    assert found.doc_id == str(10**30)
    assert (found.meta, found.meta_nulls) == ('{"n":null,"o":0.5}', '["n"]')


def test_a_few_invalid_bytes_of_a_line_are_replaced_and_counted_where_that_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "caf\xe9", "n": "\xff"}\n{"text": "b"}\n{"text": "\xff\xff\xff\xff"}\n')

    a, b, c = read(path, errors="replace")

    assert isinstance(a, Document)
    assert isinstance(b, Document)
    assert (a.text, a.meta, a.replaced) == ("caf\ufffd", '{"n":"\ufffd"}', 2)
    assert (b.text, b.replaced) == ("b", 0)
    assert isinstance(c, DeadLetter)
    assert c.error == "invalid_utf8"
