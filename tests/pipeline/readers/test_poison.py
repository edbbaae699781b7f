"""Invalid records become dead letters with position and reason; odd ones are read unchanged."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from concord_testing.broken_files import plan_for, read_plan, zstd

from concord.pipeline.documents import DeadLetter, Document

pytestmark = pytest.mark.slow

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


def outcome(record: Document | DeadLetter) -> str:
    return record.error if isinstance(record, DeadLetter) else "document"


def dead_letter(where: Path, **reader: Any) -> DeadLetter:
    (record,) = read(where, **reader)
    assert isinstance(record, DeadLetter)
    return record


COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".zst": zstd}


@pytest.mark.parametrize("text", ODD_TEXTS.values(), ids=ODD_TEXTS.keys())
def test_odd_text_is_read_unchanged_by_every_reader(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.txt").write_bytes(text.encode())
    (tmp_path / "b.jsonl").write_bytes(json.dumps({"id": "b", "text": text}, ensure_ascii=False).encode())
    (tmp_path / "c.jsonl").write_bytes(json.dumps({"id": "c", "text": text}).encode())
    pq.write_table(pa.table({"id": ["d"], "text": [text]}), tmp_path / "d.parquet")

    found = read(tmp_path)

    assert [outcome(record) for record in found] == ["document"] * 4
    assert {record.text for record in found if isinstance(record, Document)} == {text}


@pytest.mark.parametrize(
    ("line", "error", "says"),
    [
        (b'{"id": "x", "text": "ab\xffc"}', "invalid_utf8", "byte 0xff at offset 23 of the record"),
        (b'{"id": "x", "text": "\xed\xa0\x80"}', "invalid_utf8", "byte 0xed at offset 21"),
        (b"\xff\xfe{\x00}\x00", "invalid_utf8", "byte 0xff at offset 0"),
        (b'{"id": "x", "text": "cut', "invalid_json", "fix the line"),
        (b'{"id": "x", "text": "a"} trailing', "invalid_json", "got invalid JSON"),
        (b"{'id': 'x'}", "invalid_json", "got invalid JSON"),
        (b"\x00" * 40, "invalid_json", "fix the line"),
        (b"[" * 100_000, "invalid_json", "depth"),
        (b'{"id": "x", "text": "a", "n": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "invalid_json", "depth"),
        (b'["x", "a"]', "not_an_object", "got a list"),
        (b"null", "not_an_object", "got null"),
        (b'"text"', "not_an_object", "got a string"),
        (b'{"id": "x"}', "missing_text", "got only 'id'"),
        (b"{}", "missing_text", "got only no field"),
        (b'{"id": "x", "text": null}', "missing_text", "got null"),
        (b'{"id": "x", "text": 5}', "text_not_string", "got a number"),
        (b'{"id": "x", "text": ["a"]}', "text_not_string", "got a list"),
        (b'{"id": 1.5, "text": "a"}', "id_not_string", "got a number"),
        (b'{"id": true, "text": "a"}', "id_not_string", "got true or false"),
        (b'{"id": {"a": 1}, "text": "a"}', "id_not_string", "got an object"),
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


def test_dead_letter_has_the_id_if_known(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"id": 7, "text": 5}\n{"id": [], "text": "a"}\n{"id": 8, "text": "a"}\n')

    assert [record.doc_id for record in read(tmp_path)] == ["7", None, "8"]


def test_last_line_needs_a_line_end_only_if_it_is_truncated(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"id": "a", "text": "good"}\n{"id": "b", "te')
    good, bad = read(tmp_path)
    assert (outcome(good), outcome(bad)) == ("document", "invalid_json")
    assert isinstance(bad, DeadLetter)
    assert "the file may be truncated" in bad.message
    (tmp_path / "a.jsonl").write_bytes(b'{"id": "a", "text": "good"}')
    assert [outcome(record) for record in read(tmp_path)] == ["document"]


def test_byte_order_mark_is_not_part_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfText\xef\xbb\xbf")
    (tmp_path / "b.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "Text\\ufeff"}\n')
    (tmp_path / "c.jsonl").write_bytes(b"\xef\xbb\xbf\n")

    found = read(tmp_path)

    assert [record.text for record in found if isinstance(record, Document)] == ["Text\ufeff", "Text\ufeff"]
    assert [record.doc_id for record in found] == ["a.txt", "b.jsonl:0"]


def test_duplicate_ids_across_files_and_formats_keep_the_first(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"id": "z.txt", "text": "1"}\n{"id": 5, "text": "1"}\n')
    (tmp_path / "b.jsonl").write_bytes(b'{"id": "b.jsonl:29", "text": "1"}\n{"text": "the place is taken"}\n')
    (tmp_path / "c.jsonl").write_bytes(b'{"id": "b.jsonl:34", "text": "1"}\n{"id": "late"}\n{"id": "late", "text": ""}')
    pq.write_table(pa.table({"id": [5, 6, 6], "text": ["2", "1", "2"]}), tmp_path / "d.parquet")
    (tmp_path / "z.txt").write_text("2")

    found = read(tmp_path)

    assert [(record.doc_id, outcome(record)) for record in found] == [
        ("z.txt", "document"),
        ("5", "document"),
        ("b.jsonl:29", "document"),
        ("b.jsonl:34", "document"),
        ("b.jsonl:34", "duplicate_id"),
        ("late", "missing_text"),
        ("late", "document"),
        ("5", "duplicate_id"),
        ("6", "document"),
        ("6", "duplicate_id"),
        ("z.txt", "duplicate_id"),
    ]


def test_text_with_invalid_bytes_becomes_a_dead_letter_that_names_the_byte(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"caf\xe9 noir")

    found = dead_letter(tmp_path)

    assert (found.doc_id, found.error, found.position) == ("a.txt", "invalid_utf8", 0)
    assert "byte 0xe9 at offset 3 of the record" in found.message


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_text_with_a_byte_order_mark_is_a_dead_letter_unless_its_encoding_is_set_or_guessed(
    tmp_path: Path, encoding: str
) -> None:
    (tmp_path / "a.txt").write_bytes("Caf\u00e9 \U0001f600".encode(encoding))

    assert dead_letter(tmp_path).error == "invalid_utf8"
    assert f"set reader.encoding to {encoding} or auto" in dead_letter(tmp_path).message
    for setting in (encoding, "auto"):
        (found,) = read(tmp_path, encoding=setting)
        assert isinstance(found, Document)
        assert found.text == "Caf\u00e9 \U0001f600"


def test_byte_order_mark_is_removed_when_the_byte_order_is_set(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("\ufeffText".encode("utf-16-le"))

    (found,) = read(tmp_path, encoding="utf-16-le")

    assert isinstance(found, Document)
    assert found.text == "Text"


def test_bytes_that_are_not_text_are_rejected(tmp_path: Path) -> None:
    for content, encoding, error in (
        (b"\xff\xfe\x00", "auto", "invalid_encoding"),
        (bytes(range(256)) * 8, "auto", "invalid_encoding"),
        (b"+2AA-", "utf-7", "lone_surrogate"),  # which the codec accepts
    ):
        (tmp_path / "a.txt").write_bytes(content)
        assert dead_letter(tmp_path, encoding=encoding).error == error


LINES = [b'{"id": %d, "text": "%s"}\n' % (number, str(number * 7919).encode() * 9) for number in range(4000)]


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("kept", [0.05, 0.5, 0.999])
def test_truncated_stream_yields_the_lines_before_the_cut_and_one_dead_letter(
    tmp_path: Path, suffix: str, kept: float
) -> None:
    stored = COMPRESSORS[suffix](b"".join(LINES))
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(stored[: int(len(stored) * kept)])

    for shard_bytes in (10_000_000, 20_000):
        *whole, cut = read(path, shard_bytes=shard_bytes)

        assert [record.doc_id for record in whole] == [str(number) for number in range(len(whole))]
        assert isinstance(cut, DeadLetter)
        assert (cut.error, cut.position) == ("truncated_stream", len(b"".join(LINES[: len(whole)])))
        assert "breaks off at byte" in cut.message
    if suffix == ".gz":
        # Nothing that stands in the file is given up: deflate yields all but a little of it.
        assert len(whole) >= int(len(LINES) * kept * 0.8)


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("place", [0.3, 0.5, 0.9])
def test_corrupt_stream_yields_the_same_records_in_any_pieces(tmp_path: Path, suffix: str, place: float) -> None:
    stored = bytearray(COMPRESSORS[suffix](b"".join(LINES)))
    stored[int(len(stored) * place)] ^= 0x55
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(stored)

    whole = read(path)

    assert read(path, shard_bytes=20_000) == whole
    if suffix == ".gz":
        assert outcome(whole[-1]) == "corrupt_stream"


@pytest.mark.parametrize(
    ("stored", "lines", "error"),
    [
        (gzip.compress(LINES[0]) + b"junk that is no member", 1, "corrupt_stream"),
        (gzip.compress(LINES[0])[:-6] + b"\x00" * 6, 1, "corrupt_stream"),
        (b"not compressed at all", 0, "corrupt_stream"),
        (b"", 0, "truncated_stream"),
        (gzip.compress(b""), 0, None),
        (gzip.compress(LINES[0]) + gzip.compress(LINES[1]), 2, None),
        (gzip.compress(LINES[0]) + gzip.compress(LINES[1])[:5], 1, "truncated_stream"),
        (gzip.compress(LINES[0] + LINES[1])[:-8], 2, "truncated_stream"),
    ],
    ids=[
        "junk behind",
        "checksum",
        "not gzip",
        "empty file",
        "empty stream",
        "two members",
        "cut member",
        "cut at a line end",
    ],
)
def test_odd_gzip_files_lose_no_data_silently(tmp_path: Path, stored: bytes, lines: int, error: str | None) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(stored)

    outcomes = [outcome(record) for record in read(tmp_path)]

    assert outcomes == ["document"] * lines + ([error] if error else [])


def test_empty_files_of_every_format(tmp_path: Path) -> None:
    for name in ("a.txt", "b.jsonl", "c.parquet", "d.txt.gz"):
        (tmp_path / name).write_bytes(b"")

    assert [(Path(record.source_uri).name, outcome(record)) for record in read(tmp_path)] == [
        ("a.txt", "document"),
        ("c.parquet", "invalid_parquet"),
        ("d.txt.gz", "truncated_stream"),
    ]


def test_parquet_faults_of_rows_are_dead_letters(tmp_path: Path) -> None:
    bad = pa.array([b"ok", b"\xff", b"ok", b"ok"]).view(pa.string())
    table = pa.table({"id": ["a", "b", None, "a"], "text": bad, "score": [0.5, float("nan"), None, 1.0]})
    pq.write_table(table, tmp_path / "a.parquet")

    found = read(tmp_path)

    assert [(record.doc_id, outcome(record)) for record in found] == [
        ("a", "document"),
        ("b", "invalid_utf8"),
        ("a.parquet:2", "document"),
        ("a", "duplicate_id"),
    ]
    assert isinstance(found[1], DeadLetter)
    assert found[1].message.startswith(f"{tmp_path}/a.parquet, row 1: field 'text': expected a string in utf-8")


@pytest.mark.parametrize(
    ("column", "error"), [({"body": ["a", "b"]}, "missing_text"), ({"text": [1, 2]}, "text_not_string")]
)
def test_parquet_without_texts_yields_a_dead_letter_for_each_row(
    tmp_path: Path, column: dict[str, list[object]], error: str
) -> None:
    pq.write_table(pa.table(column), tmp_path / "a.parquet")
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "b.parquet")

    assert [outcome(record) for record in read(tmp_path)] == [error, error, "document"]


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

    found = read(path, shard_bytes=shard_bytes)

    expected = ["document"] * 100 + ["invalid_parquet"] * 100 + ["document"] * 100
    assert [outcome(record) for record in found] == expected
