"""Compressed and encoded streams: what other tools read is read, and messages name the cause."""

import csv
import gzip
import io
import json
import sys
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from concord_testing.broken_files import check_pieces, read_all

from concord.pipeline.config import ReaderConfig
from concord.pipeline.documents import DeadLetter, Document
from concord.pipeline.readers.files import read_whole
from concord.pipeline.readers.read_file import read_text_at

pytestmark = pytest.mark.slow

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

LINES = [json.dumps({"id": f"d{number}", "text": f"Zoë met Bob {number} times."}) for number in range(300)]
CONTENT = "".join(f"{line}\n" for line in LINES).encode()
IDS = [f"d{number}" for number in range(len(LINES))]


def outcomes(path: Path, format: str = "jsonl", **config: object) -> list[str | None]:
    found = read_all(path, format, ReaderConfig.from_mapping(config))
    return [record.error if isinstance(record, DeadLetter) else record.doc_id for record in found]


def last_message(path: Path) -> str:
    found = read_all(path, "jsonl", ReaderConfig())[-1]
    assert isinstance(found, DeadLetter)
    return found.message


def with_window(content: bytes, log: int) -> bytes:
    """Compress as ``zstd --long=LOG`` does of a pipe, whose frame says the window and not the size."""
    parameters = {zstd.CompressionParameter.window_log: log, zstd.CompressionParameter.enable_long_distance_matching: 1}
    compressor = zstd.ZstdCompressor(options={int(key): value for key, value in parameters.items()})
    return compressor.compress(content[:10]) + compressor.compress(content[10:]) + compressor.flush()


@pytest.mark.parametrize("log", [27, 28, 31])
def test_zstd_with_a_long_window_is_read(tmp_path: Path, log: int) -> None:
    (tmp_path / "a.jsonl.zst").write_bytes(with_window(CONTENT, log))
    (tmp_path / "a.txt.zst").write_bytes(with_window(CONTENT, log))

    assert outcomes(tmp_path / "a.jsonl.zst") == IDS
    assert read_whole(str(tmp_path / "a.txt.zst")) == CONTENT


def test_zstd_that_cannot_be_unpacked_is_a_dead_letter_that_says_why(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    frame = bytearray(with_window(CONTENT, 31))
    frame[5] += 1 << 3  # the exponent in the byte of the window
    path.write_bytes(frame)
    assert outcomes(path) == ["corrupt_stream"]
    assert "its window is larger than 2 GiB" in last_message(path)
    assert "fetch" not in last_message(path)
    dictionary = zstd.train_dict([line.encode() for line in LINES], 2000)
    path.write_bytes(zstd.compress(CONTENT, zstd_dict=dictionary))
    assert "needs the dictionary" in last_message(path)


def test_zstd_frames_and_skippable_frames_follow_one_another(tmp_path: Path) -> None:
    note = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"note"
    frames = note + zstd.compress(CONTENT[:5000]) + note + zstd.compress(b"") + zstd.compress(CONTENT[5000:]) + note
    (tmp_path / "a.jsonl.zst").write_bytes(frames)

    assert outcomes(tmp_path / "a.jsonl.zst") == IDS


@pytest.mark.parametrize("zeros", [1, 7, 512, 100_000])
def test_zeros_after_a_gzip_member_are_padding(tmp_path: Path, zeros: int) -> None:
    half = gzip.compress(CONTENT[:5000]), gzip.compress(CONTENT[5000:])
    (tmp_path / "after.jsonl.gz").write_bytes(gzip.compress(CONTENT) + bytes(zeros))
    (tmp_path / "between.jsonl.gz").write_bytes(bytes(zeros).join(half) + bytes(zeros))
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(CONTENT) + bytes(zeros))

    assert outcomes(tmp_path / "after.jsonl.gz") == IDS
    assert outcomes(tmp_path / "between.jsonl.gz") == IDS
    assert read_whole(str(tmp_path / "a.txt.gz")) == CONTENT


@pytest.mark.parametrize("garbage", [b"\n", b"garbage", bytes(10) + b"x" * 5000])
def test_other_bytes_after_a_gzip_member_are_a_dead_letter_after_all_records(tmp_path: Path, garbage: bytes) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(CONTENT) + garbage)

    assert outcomes(tmp_path / "a.jsonl.gz") == [*IDS, "corrupt_stream"]
    assert "cut off what follows the end" in last_message(tmp_path / "a.jsonl.gz")


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_file_that_is_not_compressed_as_its_name_says_is_told_to_be_renamed(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(CONTENT)

    assert outcomes(path) == ["corrupt_stream"]
    assert "rename a file that is not compressed" in last_message(path)


def test_stored_blocks_and_flushes_of_gzip_are_read(tmp_path: Path) -> None:
    compressor = zlib.compressobj(level=0, wbits=31)
    parts = [compressor.compress(f"{line}\n".encode()) + compressor.flush(zlib.Z_FULL_FLUSH) for line in LINES]
    (tmp_path / "a.jsonl.gz").write_bytes(b"".join(parts) + compressor.flush())

    assert outcomes(tmp_path / "a.jsonl.gz") == IDS


def delimited(rows: Sequence[Sequence[str]], line_end: str, delimiter: str = ",") -> str:
    sink = io.StringIO()
    csv.writer(sink, lineterminator=line_end, delimiter=delimiter).writerows(rows)
    return sink.getvalue()


ROWS = [("id", "text"), ("a", "Zoë said:\nwait.\rShe left."), ("b", 'a "quoted" word, 😀'), ("c", "last")]


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_rows_in_utf_16_with_a_mark_are_read(tmp_path: Path, encoding: str, compress: Callable[[bytes], bytes]) -> None:
    path = tmp_path / ("a.csv" if compress is bytes else "a.csv.gz")
    path.write_bytes(compress(delimited(ROWS, "\r\n").encode(encoding)))

    for setting in ("utf-8", "auto", encoding):
        found = read_all(path, "csv", ReaderConfig(encoding=setting))
        assert [(record.doc_id, record.text, record.encoding) for record in found if isinstance(record, Document)] == [
            (doc_id, text, encoding) for doc_id, text in ROWS[1:]
        ]
    position = found[1].source_position if isinstance(found[1], Document) else 0
    assert read_text_at(str(path), format="csv", position=position, config=ReaderConfig()) == ROWS[2][1]


@pytest.mark.parametrize("mark", [b"\xff\xfe", b"\xfe\xff", b""])
def test_json_lines_in_utf_16_are_read_in_any_pieces(tmp_path: Path, mark: bytes) -> None:
    encoding = "utf-16-be" if mark == b"\xfe\xff" else "utf-16-le"
    path = tmp_path / "a.jsonl"
    path.write_bytes(mark + CONTENT.decode().encode(encoding))
    config = ReaderConfig() if mark else ReaderConfig(encoding=encoding)

    found = read_all(path, "jsonl", config)

    assert [record.doc_id for record in found] == IDS
    assert isinstance(found[0], Document)
    assert (found[0].text, found[0].encoding) == ("Zoë met Bob 0 times.", "utf-16" if mark else encoding)
    check_pieces(path, found, config, step=70)


def test_invalid_utf_16_costs_only_its_line(tmp_path: Path) -> None:
    lines = [b'{"text": "one"}', b'{"text": "t\x00\xd8wo"}', b'{"text": "three"}']
    halves = [line.decode("latin-1").encode("utf-16-le").replace(b"\x00\x00\xd8\x00", b"\x00\xd8") for line in lines]
    (tmp_path / "a.jsonl").write_bytes(b"\xff\xfe" + b"\n\x00".join(halves) + b"\n\x00" + b"{")

    found = read_all(tmp_path / "a.jsonl", "jsonl", ReaderConfig())

    assert [record.text if isinstance(record, Document) else record.error for record in found] == [
        "one",
        "invalid_utf8",
        "three",
        "invalid_utf8",
    ]


@pytest.mark.parametrize("line_end", ["\r", "\r\r\n", "\r\n", "\n"])
@pytest.mark.parametrize("format", ["jsonl", "csv", "tsv"])
def test_lines_may_end_in_carriage_returns(tmp_path: Path, format: str, line_end: str) -> None:
    path = tmp_path / f"a.{format}"
    if format == "jsonl":
        path.write_bytes((line_end.join(LINES) + line_end).encode())
        assert outcomes(path) == IDS
        return
    path.write_bytes(delimited(ROWS, line_end, "," if format == "csv" else "\t").encode())
    found = read_all(path, format, ReaderConfig())

    assert [(record.doc_id, record.text) for record in found if isinstance(record, Document)] == ROWS[1:]


def test_long_lines_that_end_in_carriage_returns_are_bounded(tmp_path: Path) -> None:
    lines = [json.dumps({"id": name, "text": "x" * size}) for name, size in (("a", 9), ("b", 300_000), ("c", 9))]
    (tmp_path / "a.jsonl").write_text("\r".join(lines))

    assert outcomes(tmp_path / "a.jsonl") == ["a", "b", "c"]
    assert outcomes(tmp_path / "a.jsonl", max_record_bytes=1000) == ["a", "record_too_large", "c"]


def test_carriage_return_within_a_line_that_ends_in_a_line_feed_is_white_space(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"id": "a", "text": "one"}\n{"id": "b",\r"text": "two"}\n')

    assert outcomes(tmp_path / "a.jsonl") == ["a", "b"]


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
