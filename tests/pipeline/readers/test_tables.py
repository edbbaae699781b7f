"""Texts, JSON lines, CSV, Parquet and Arrow: every record is read, in any pieces, or a dead letter says why not."""

import csv
import gzip
import io
import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from concord_testing import broken_files, runs
from concord_testing.broken_files import arrow_stream, plan_for, read_all, read_plan, zstd
from hypothesis import given
from hypothesis import strategies as st

import concord
from concord.pipeline.config import ReaderConfig
from concord.pipeline.documents import DeadLetter, Document
from concord.pipeline.readers.read_file import read_text_at, scan_file

pytestmark = pytest.mark.slow

PLAIN = ReaderConfig()
COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".zst": zstd}
TABLE = pa.table(
    {
        "id": pa.array([*range(39), None], pa.int64()),
        "text": pa.array([f"Anna met Bob {number} times." for number in range(40)]).dictionary_encode(),
        "label": [{"name": "a", "scores": [0.5]}] * 40,
    }
)
ROWS = [("id", "text"), ("a", "Zoë said:\nwait.\rShe left."), ("b", 'a "quoted" word, 😀'), ("c", "last")]
ODD_TEXTS = {
    "empty": "",
    "blank": " \t\r\n ",
    "line ends": "a\r\nb\rc\nd\u2028e\x85f\x0bg\x0ch\u2029i",
    "emoji": "\U0001f469\u200d\U0001f52c and \U0001f1e8\U0001f1ed",
    "joiners": "a\u200db\u200cc\u2060d\ufeffe",
    "decomposed": "Cafe\u0301 \u1112\u1161\u11ab",
    "right to left": "\u05e9\u05dc\u05d5\u05dd \u202eabc\u202c",
    "controls": "nul \x00 bell \x07 escape \x1b del \x7f",
    "noncharacter": "\ufffe\uffff\U0010ffff",
}


def read(where: Path, **settings: Any) -> list[Document | DeadLetter]:
    return read_plan(plan_for(where, **settings))


def outcomes(path: Path, format: str = "csv") -> list[str]:
    return broken_files.outcomes(read_all(path, format, PLAIN))


def errors(where: Path, **settings: Any) -> list[str | None]:
    return [record.error if isinstance(record, DeadLetter) else None for record in read(where, **settings)]


@pytest.mark.parametrize("text", ODD_TEXTS.values(), ids=ODD_TEXTS.keys())
def test_odd_text_is_read_unchanged_by_every_reader(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.txt").write_bytes(text.encode())
    (tmp_path / "b.jsonl").write_bytes(json.dumps({"id": "b", "text": text}, ensure_ascii=False).encode())
    (tmp_path / "c.jsonl").write_bytes(json.dumps({"id": "c", "text": text}).encode())
    pq.write_table(pa.table({"id": ["d"], "text": [text]}), tmp_path / "d.parquet")

    found = read(tmp_path)

    assert [record.text for record in found if isinstance(record, Document)] == [text] * 4


@pytest.mark.parametrize(
    ("line", "error", "says"),
    [
        (b'{"id": "x", "text": "ab\xffc"}', "invalid_utf8", "byte 0xff at offset 23 of the record"),
        (b'{"id": "x", "text": "\xed\xa0\x80"}', "invalid_utf8", "byte 0xed at offset 21"),
        (b"\xff\xfe{\x00}\x00", "invalid_utf8", "byte 0xff at offset 0"),
        (b'{"id": "x", "text": "cut', "invalid_json", "fix the line"),
        (b'{"id": "x", "text": "a"} trailing', "invalid_json", "got invalid JSON"),
        (b"{'id': 'x'}", "invalid_json", "got invalid JSON"),
        (b"[" * 100_000, "nested_too_deep", "at most 500 lists"),
        (
            b'{"id": "x", "text": "a", "n": ' + b'[{"a":' * 250 + b"{}" + b"}]" * 250 + b"}",
            "nested_too_deep",
            "got more",
        ),
        (b'["x", "a"]', "not_an_object", 'got ["x","a"]'),
        (b"null", "not_an_object", "got null"),
        (b'{"id": "x"}', "missing_text", 'got only ["id"]'),
        (b'{"id": "x", "text": null}', "no_text", "got null"),
        (b'{"id": "x", "text": 5}', "text_not_string", "got 5"),
        (b'{"id": 1.5, "text": "a"}', "id_not_string", "got 1.5"),
        (b'{"id": true, "text": "a"}', "id_not_string", "got true"),
        (b'{"id": {"a": 1}, "text": "a"}', "id_not_string", 'got {"a":1}'),
        (b'{"id": "x", "text": "a\\ud83d b"}', "lone_surrogate", "half of a surrogate pair"),
        (b'{"id": "\\udc00", "text": "a"}', "lone_surrogate", "field 'id'"),
        (b'{"id": "x", "text": "a", "text": "b"}', "duplicate_key", "got 'text' twice"),
        (b'{"id": "before", "text": "again"}', "duplicate_id", "got 'before'"),
    ],
)
def test_bad_line_becomes_a_dead_letter_and_its_neighbours_are_read(
    tmp_path: Path, line: bytes, error: str, says: str
) -> None:
    before = b'{"id": "before", "text": "good"}\n'
    path = tmp_path / "a.jsonl"
    path.write_bytes(before + line + b"\n" + b'{"id": "after", "text": "good"}\n')

    first, bad, last = read(path)

    assert (first.doc_id, last.doc_id) == ("before", "after")
    assert isinstance(bad, DeadLetter)
    assert (bad.error, bad.position, bad.source_uri) == (error, len(before), str(path))
    assert bad.message.startswith(f"{path}, byte {len(before)}: ")
    assert "expected " in bad.message
    assert says in bad.message


def test_dead_letter_has_the_id_if_known_and_says_what_may_be_cut(tmp_path: Path) -> None:
    lines = (
        b'\xef\xbb\xbf{"id": 7, "text": 5}',
        b'{"id": [], "text": "a"}',
        b'{"id": 8, "text": "a"}',
        b'{"id": 9, "te',
    )
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))

    found = read(tmp_path)

    assert [record.doc_id for record in found] == ["7", None, "8", None]
    assert isinstance(found[3], DeadLetter)
    assert "the file may be truncated" in found[3].message


def test_duplicate_ids_across_files_and_formats_keep_the_first(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"id": "z.txt", "text": "1"}\n{"id": 5, "text": "1"}\n')
    (tmp_path / "b.jsonl").write_bytes(b'{"id": "b.jsonl:29", "text": "1"}\n{"text": "the place is taken"}\n')
    (tmp_path / "c.jsonl").write_bytes(b'{"id": "b.jsonl:34", "text": "1"}\n{"id": "late"}\n{"id": "late", "text": ""}')
    pq.write_table(pa.table({"id": [5, 6, 6], "text": ["2", "1", "2"]}), tmp_path / "d.parquet")
    (tmp_path / "z.txt").write_text("2")

    found = [record.doc_id for record in read(tmp_path)]

    assert list(zip(found, errors(tmp_path), strict=True)) == [
        ("z.txt", None),
        ("5", None),
        ("b.jsonl:29", None),
        ("b.jsonl:34", None),
        ("b.jsonl:34", "duplicate_id"),
        ("late", "missing_text"),
        ("late", None),
        ("5", "duplicate_id"),
        ("6", None),
        ("6", "duplicate_id"),
        ("z.txt", "duplicate_id"),
    ]


def test_empty_files_of_every_format(tmp_path: Path) -> None:
    for name in ("a.txt", "b.jsonl", "c.parquet", "d.txt.gz"):
        (tmp_path / name).write_bytes(b"")

    assert errors(tmp_path) == [None, "invalid_parquet", "truncated_stream"]


def test_larger_record_is_annotated_by_a_retry_with_a_larger_bound(tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"

    def lost(output: object) -> list[str]:
        return [row["error"] for row in concord.open(str(output)).to_arrow("errors").to_pylist()]

    records = [{"id": "short", "text": "Anna left."}, {"id": "long", "text": "Bob met Anna. " * 50}]
    source.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    config = runs.job(source, tmp_path / "out", reader={"max_record_bytes": 100}, max_dead_letters=1)
    report = runs.run_job(config)
    assert (report.annotated, lost(report.output)) == (1, ["record_too_large"])

    larger = config.model_copy(update={"reader": config.reader.model_copy(update={"max_record_bytes": 10_000})})
    assert runs.run_job(larger).changes.new == 0
    again = larger.planning.model_copy(update={"retry": "read"})
    retried = runs.run_job(larger.model_copy(update={"planning": again}))

    assert (retried.annotated, retried.unchanged, lost(retried.output)) == (1, 1, [])


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_row_keeps_its_byte_its_other_columns_and_its_line_ends(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.csv{suffix}"
    header, first = b"\xef\xbb\xbfid,text,page\r\n", 'a,"Zoë said ""no"",\r\nand left.",1\r\n'.encode()
    path.write_bytes(COMPRESSORS[suffix](header + first + b"\r\n,plain,2"))

    second = len(header + first) + 2
    assert read_all(path, "csv", PLAIN) == [
        Document(
            doc_id="a",
            text='Zoë said "no",\r\nand left.',
            source_uri=str(path),
            source_position=len(header),
            meta='{"page":"1"}',
            encoding="utf-8",
        ),
        Document(
            doc_id=f"a.csv{suffix}:{second}",
            text="plain",
            source_uri=str(path),
            source_position=second,
            meta='{"page":"2"}',
            encoding="utf-8",
        ),
    ]
    assert read_text_at(str(path), format="csv", position=second, config=PLAIN) == "plain"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (['x,"never closed', "y,two", "z,three"], ["invalid_quotes", "two", "three"]),
        (['x,"closed" and more', "y,two"], ["invalid_quotes", "two"]),
        (["x,one,more", "y,two"], ["wrong_columns", "two"]),
        (["x", "y,two"], ["wrong_columns", "two"]),
        (['x,"one\nmore",1', "y,two"], ["wrong_columns", "two"]),
        (['x,a 5" pipe', "y,two"], ['a 5" pipe', "two"]),
        (["x,", "y,two"], ["", "two"]),
        (["x,one", "x,two"], ["one", "two"]),
        (["x," + "o" * 300_000], ["o" * 300_000]),
    ],
)
def test_broken_row_costs_only_itself(tmp_path: Path, lines: Sequence[str], expected: Sequence[str]) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,text\n" + "\n".join(lines) + "\n")

    assert outcomes(path) == expected


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"text,text\na,b\n", ["invalid_header"]),
        (b'"text\na\nb\n', ["invalid_quotes"]),
        (b"t\xffxt\na\n", ["invalid_utf8"]),
        (b"", []),
        (b"\n\n", []),
        (b"id,text\n", []),
    ],
)
def test_file_without_a_usable_header_is_at_most_one_dead_letter(
    tmp_path: Path, content: bytes, found: Sequence[str]
) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content)

    assert outcomes(path) == found


def test_tsv_may_hold_quotes_as_text(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text('id\ttext\nx\t"No," she said.\ny\t"quoted ""text"""\nz\t"a\n')

    assert outcomes(path, "tsv") == ['"No," she said.', 'quoted "text"', '"a']


def test_encoding_is_guessed_for_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("id,text\na,plain\nb,Muñoz\nc,Zoë left\n".encode("cp1252"))

    found = [record for record in read_all(path, "csv", ReaderConfig(encoding="auto")) if isinstance(record, Document)]

    assert [record.text for record in found] == ["plain", "Muñoz", "Zoë left"]
    assert {(record.encoding, record.encoding_confidence) for record in found} == {("cp1252", 0.333)}
    assert outcomes(path) == ["plain", "invalid_utf8", "invalid_utf8"]


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_a_few_invalid_bytes_of_a_row_are_replaced_and_counted_where_that_is_asked_for(
    tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"a.{suffix}"
    rows = (b"id,text,note", b"a,caf\xe9 noir,n\xffn", "b,café,x".encode(), b"c,\xff\xff\xff\xff,x", b'd,"a\n\xff",x')
    path.write_bytes(b"\n".join(rows).replace(b",", b"," if suffix == "csv" else b"\t"))

    strict = read_all(path, suffix, ReaderConfig())
    a, b, c, d = read_all(path, suffix, ReaderConfig(errors="replace"))

    assert broken_files.outcomes(strict) == ["invalid_utf8", "café", "invalid_utf8", "invalid_utf8"]
    assert [(found.text, found.meta, found.replaced) for found in (a, b, d) if isinstance(found, Document)] == [
        ("caf\ufffd noir", '{"note":"n\ufffdn"}', 2),
        ("café", '{"note":"x"}', 0),
        ("a\n\ufffd", '{"note":"x"}', 1),
    ]
    assert isinstance(c, DeadLetter)
    assert "4 such places in all, which is more than a few" in c.message


def test_rows_are_read_as_browsers_read_them(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("id,text\na,价格".encode("gbk") + b"\x805")

    found = read_all(path, "csv", ReaderConfig.from_mapping({"encoding": "gb2312"}))

    assert broken_files.outcomes(found) == ["价格€5"]


def delimited(rows: Sequence[Sequence[str]], line_end: str, delimiter: str = ",") -> str:
    sink = io.StringIO()
    csv.writer(sink, lineterminator=line_end, delimiter=delimiter).writerows(rows)
    return sink.getvalue()


@pytest.mark.parametrize("line_end", ["\r", "\r\r\n", "\r\n", "\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.tsv.gz"])
def test_lines_are_found_in_every_encoding_and_however_they_end(
    tmp_path: Path, name: str, encoding: str, line_end: str
) -> None:
    path, format = tmp_path / name, name.split(".")[1]
    content = delimited(ROWS, line_end, "," if format == "csv" else "\t")
    if format == "jsonl":
        content = "".join(json.dumps({"id": doc_id, "text": text}) + line_end for doc_id, text in ROWS[1:])
    path.write_bytes(COMPRESSORS[path.suffix if path.suffix == ".gz" else ""](content.encode(encoding)))

    for setting in {"utf-8", "auto", encoding}:
        found = [
            record for record in read_all(path, format, ReaderConfig(encoding=setting)) if isinstance(record, Document)
        ]
        assert [(record.doc_id, record.text) for record in found] == ROWS[1:]
        assert {record.encoding for record in found} == {encoding}
        position = found[1].source_position
        assert read_text_at(str(path), format=format, position=position, config=ReaderConfig()) == ROWS[2][1]


@pytest.mark.parametrize(
    ("header", "names"),
    [
        (",text", ["Unnamed: 0"]),
        (',"Unnamed: 0",text', ["Unnamed: 0", "Unnamed: 0.1"]),
        ('"",text, ,', ["Unnamed: 0", "Unnamed: 2", "Unnamed: 3"]),
    ],
)
def test_columns_without_a_name_get_that_of_pandas(tmp_path: Path, header: str, names: list[str]) -> None:
    fields = ["one" if name == "text" else "7" for name in next(csv.reader([header]))]
    (tmp_path / "a.csv").write_text(f"{header}\n{','.join(fields)}\n")

    [found] = read_all(tmp_path / "a.csv", "csv", ReaderConfig())

    assert isinstance(found, Document)
    assert (found.text, sorted(json.loads(found.meta or "{}"))) == ("one", names)


FIELD = st.one_of(st.text(max_size=8), st.sampled_from(['"', 'a"b', "a,b", "x\ny", "\r", "\ufeff", "\x00"]))


@given(
    rows=st.lists(st.tuples(FIELD, FIELD), max_size=10),
    noise=st.lists(st.sampled_from(['"', "\n", ",", '",', 'x,"', "\xff"]), max_size=3),
    suffix=st.sampled_from(sorted(COMPRESSORS)),
    cut=st.integers(0, 20),
    shard_bytes=st.integers(1, 60),
)
def test_pieces_of_any_size_have_the_records_of_the_whole_file(
    tmp_path: Path, rows: list[tuple[str, str]], noise: list[str], suffix: str, cut: int, shard_bytes: int
) -> None:
    sink = io.StringIO(newline="")
    csv.writer(sink).writerows([("key", "text"), *rows])
    content = (sink.getvalue() + "".join(noise)).encode("utf-8", "replace")
    path = tmp_path / f"a.csv{suffix}"
    stored = COMPRESSORS[suffix](content)
    path.write_bytes(stored[: len(stored) - cut] if suffix else stored)

    whole = read_all(path, "csv", PLAIN)

    if whole and any(isinstance(record, Document) for record in whole):
        assert read_plan(plan_for(path, shard_bytes=shard_bytes)) == whole
    if not noise and not (suffix and cut):
        texts = [text.encode("utf-8", "replace").decode() for _, text in rows]
        assert [record.text for record in whole if isinstance(record, Document)] == texts


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
def test_pieces_of_arrow_of_any_size_have_the_rows_of_the_whole_file(tmp_path: Path, shard_bytes: int) -> None:
    path = tmp_path / "a.arrow"
    path.write_bytes(arrow_stream(TABLE))

    assert read(path, shard_bytes=shard_bytes) == read_all(path, "arrow", ReaderConfig())


def test_a_broken_batch_of_one_row_does_not_hide_those_after_it(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.string()), ("text", pa.string())])
    offsets = pa.array([0, 2], pa.int32()).buffers()[1]
    invalid = pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(b"\xff\xfe")])
    path = tmp_path / "a.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema) as stream:
        for doc_id, text in (("a", pa.array(["Ada."])), ("b", invalid), ("c", pa.array(["Bob."]))):
            stream.write_batch(pa.RecordBatch.from_arrays([pa.array([doc_id]), text], schema=schema))

    assert [record.doc_id for record in read(path)] == ["a", "b", "c"]
    assert errors(path) == [None, "invalid_arrow", None]


def test_folder_of_the_datasets_library_is_read_without_its_cached_results(tmp_path: Path) -> None:
    for split, first in (("train", 0), ("test", 20)):
        folder = tmp_path / split
        folder.mkdir()
        (folder / "data-00000-of-00001.arrow").write_bytes(arrow_stream(TABLE.slice(first, 19)))
        for name in ("cache-c0801e024d563b55.arrow", "cache-c0801e024d563b55_00001_of_00002.arrow"):
            (folder / name).write_bytes(arrow_stream(TABLE.slice(first, 9)))
        (folder / "dataset_info.json").write_text("{}")
        (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')

    plan = plan_for(tmp_path, shard_bytes=200)

    assert plan.ignored == 0
    assert [record.doc_id for record in read_plan(plan)] == [*map(str, range(20, 39)), *map(str, range(19))]


def arrow_batches(*batches: list[str]) -> tuple[bytes, int]:
    """Return a stream of batches of texts, and where the first one ends."""
    sink, ends = io.BytesIO(), list[int]()
    with pa.ipc.new_stream(sink, pa.schema({"text": pa.string()})) as stream:
        for texts in batches:
            stream.write_batch(pa.record_batch({"text": texts}))
            ends.append(sink.tell())
    return sink.getvalue(), ends[0]


def test_arrow_stream_that_is_cut_between_two_batches_is_a_dead_letter(tmp_path: Path) -> None:
    content, end = arrow_batches(["one"], ["two"])
    (tmp_path / "a.arrow").write_bytes(content[:end])

    assert errors(tmp_path / "a.arrow") == [None, "truncated_stream"]


def test_arrow_batch_with_wrong_offsets_costs_only_its_rows(tmp_path: Path) -> None:
    content, _ = arrow_batches(["one", "two"], ["three", "four"], ["five", "six"])
    offsets = [pa.array([0, 5, end], pa.int32()).buffers()[1].to_pybytes()[:12] for end in (9, 2**30)]
    (tmp_path / "a.arrow").write_bytes(content.replace(*offsets))

    assert errors(tmp_path / "a.arrow") == [None, None, "invalid_arrow", "invalid_arrow", None, None]


def test_parquet_footer_with_invalid_names_or_a_wrong_number_of_rows_is_a_dead_letter(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a"] * 3}), path)
    content = path.read_bytes()
    # In the footer, the number of rows (3, twice that as a zigzag integer) stands before the list of row groups.
    for damage in ((b"text", b"te\xe5t"), (b"\x16\x06\x19\x1c\x19", b"\x16\x04\x19\x1c\x19")):
        path.write_bytes(content.replace(*damage))

        assert errors(path) == ["invalid_parquet"]


def test_parquet_faults_of_rows_are_dead_letters(tmp_path: Path) -> None:
    bad = pa.array([b"ok", b"\xff", b"ok", b"ok"]).view(pa.string())
    table = pa.table({"id": ["a", "b", None, "a"], "text": bad, "score": [0.5, float("nan"), None, 1.0]})
    pq.write_table(table, tmp_path / "a.parquet")

    found = read(tmp_path)

    assert [record.doc_id for record in found] == ["a", "b", "a.parquet:2", "a"]
    assert errors(tmp_path) == [None, "invalid_utf8", None, "duplicate_id"]
    assert isinstance(found[1], DeadLetter)
    assert found[1].message.startswith(f"{tmp_path}/a.parquet, row 1: field 'text': expected a string in utf-8")


@pytest.mark.parametrize("shard_bytes", [1_000_000, 900])
def test_damaged_pages_cost_only_their_row_group(tmp_path: Path, shard_bytes: int) -> None:
    path = tmp_path / "a.parquet"
    texts = [f"text {number} " * 3 for number in range(300)]
    pq.write_table(pa.table({"text": texts}), path, row_group_size=100, use_dictionary=False, write_page_checksum=True)
    content = bytearray(path.read_bytes())
    column = pq.ParquetFile(path).metadata.row_group(1).column(0)
    end = column.data_page_offset + column.total_compressed_size
    content[end - 30 : end - 10] = bytes(20)
    path.write_bytes(content)

    assert errors(path, shard_bytes=shard_bytes) == [None] * 100 + ["invalid_parquet"] * 100 + [None] * 100


LONG = "Anna met Bob. " * 74_000
MANY_ROWS = 3000
SAME = pa.DictionaryArray.from_arrays(pa.array([0] * MANY_ROWS, pa.int32()), pa.array([LONG]))


def views() -> pa.Array:
    """Return strings that are all views of one."""
    view = struct.pack("<i4sii", len(LONG), LONG[:4].encode(), 0, 0)
    return pa.Array.from_buffers(
        pa.string_view(), MANY_ROWS, [None, pa.py_buffer(view * MANY_ROWS), pa.py_buffer(LONG.encode())]
    )


def lists() -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(range(MANY_ROWS + 1), pa.int32()), SAME)


COLUMNS: dict[str, Callable[[], pa.Table]] = {
    "dictionary": lambda: pa.table({"text": SAME}),
    "dictionary in a struct": lambda: pa.table(
        {"text": ["a"] * MANY_ROWS, "other": pa.StructArray.from_arrays([SAME], ["x"])}
    ),
    "dictionary in a list": lambda: pa.table({"text": ["a"] * MANY_ROWS, "other": lists()}),
    "nulls in a list": lambda: pa.table({"text": ["a"], "other": pa.array([[None] * 70_000_000], pa.list_(pa.null()))}),
    "views": lambda: pa.table({"text": views()}),
    "pages": lambda: pa.table({"text": [f"{LONG}{number}" for number in range(100)]}),
}


def write_parquet(table: pa.Table, path: Path) -> None:
    pq.write_table(table, path, compression="zstd", dictionary_pagesize_limit=1 << 30)


def write_arrow(table: pa.Table, path: Path) -> None:
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema, options=options) as stream:
        stream.write_table(table)


@pytest.mark.parametrize(
    ("format", "columns"),
    [
        *(("parquet", columns) for columns in COLUMNS if columns != "views"),
        *(("arrow", columns) for columns in ("dictionary", "nulls in a list", "views")),
    ],
)
def test_small_file_of_columns_that_holds_gigabytes_is_one_dead_letter(
    tmp_path: Path, format: str, columns: str
) -> None:
    path, table = tmp_path / f"a.{format}", COLUMNS[columns]()
    (write_parquet if format == "parquet" else write_arrow)(table, path)
    assert path.stat().st_size < 100_000

    [found] = read_all(path, format, PLAIN)
    [scanned] = scan_file(str(path), format=format, name=path.name, config=PLAIN)

    assert isinstance(found, DeadLetter)
    assert found.error == "unpacks_too_far"
    assert "write it in another format" in found.message
    assert scanned.loses_file
