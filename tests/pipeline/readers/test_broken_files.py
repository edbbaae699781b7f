"""Damaged files of every format: no traceback, no endless file, no record lost in silence."""

import gzip
import io
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from concord_testing.broken_files import check_pieces, damage_and_read, read_all, samples, zstd
from concord_testing.checkout import SOAK

from concord.pipeline.config import ReaderConfig
from concord.pipeline.documents import DeadLetter, Document
from concord.pipeline.errors import InputError
from concord.pipeline.plan import Piece
from concord.pipeline.readers import files
from concord.pipeline.readers.base import Fields, Reader, RecordReader
from concord.pipeline.readers.read_file import read_piece, readers
from concord.pipeline.readers.records import RecordError

pytestmark = pytest.mark.slow

SAMPLES = samples()


def outcomes(path: Path, format: str, reader: Reader | None = None, **config: Any) -> list[str]:
    found = read_all(path, format, ReaderConfig(**config), None if reader is None else {format: reader})
    return [record.error if isinstance(record, DeadLetter) else record.doc_id for record in found]


def test_every_bundled_reader_has_a_sample() -> None:
    assert {sample.format for sample in SAMPLES.values()} == set(readers())


@pytest.mark.parametrize("name", SAMPLES)
def test_damaged_files_lose_no_record_in_silence(tmp_path: Path, name: str) -> None:
    outcomes = damage_and_read(SAMPLES[name], tmp_path / name, rounds=400 if SOAK else 40, seed=0)

    assert outcomes["dead letters"] > 0


def test_parquet_footer_with_invalid_names_or_a_wrong_number_of_rows_is_a_dead_letter(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(SAMPLES["a.parquet"].content.replace(b"page", b"pa\xe5e"))
    (found,) = read_all(path, "parquet", ReaderConfig())
    assert isinstance(found, DeadLetter)
    assert (found.error, found.position) == ("invalid_parquet", 0)

    pq.write_table(pa.table({"text": ["a"] * 3}), path)
    # In the footer, the number of rows (3, twice that as a zigzag integer) stands before the list of row groups.
    path.write_bytes(path.read_bytes().replace(b"\x16\x06\x19\x1c\x19", b"\x16\x04\x19\x1c\x19"))

    assert outcomes(path, "parquet") == ["invalid_parquet"]


def test_arrow_stream_that_is_cut_between_two_batches_is_a_dead_letter(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, pa.schema({"text": pa.string()})) as stream:
        stream.write_batch(pa.record_batch({"text": ["one"]}))
        end = sink.tell()
        stream.write_batch(pa.record_batch({"text": ["two"]}))
    path.write_bytes(sink.getvalue()[:end])

    assert outcomes(path, "arrow") == ["a.arrow:0", "truncated_stream"]


def test_arrow_batch_with_wrong_offsets_costs_only_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, pa.schema({"text": pa.string()})) as stream:
        for texts in (["one", "two"], ["three", "four"], ["five", "six"]):
            stream.write_batch(pa.record_batch({"text": texts}))
    offsets = [pa.array([0, 5, end], pa.int32()).buffers()[1].to_pybytes()[:12] for end in (9, 2**30)]
    path.write_bytes(sink.getvalue().replace(*offsets))

    found = outcomes(path, "arrow")

    assert found == ["a.arrow:0", "a.arrow:1", "invalid_arrow", "invalid_arrow", "a.arrow:4", "a.arrow:5"]


COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".zst": zstd}


@pytest.mark.parametrize("suffix", COMPRESSORS)
@pytest.mark.parametrize("format", ["text", "jsonl"])
def test_bomb_is_a_dead_letter_with_its_place(
    tmp_path: Path, format: str, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "ALWAYS_UNPACKED_BYTES", 100_000)
    line = b'{"id": "first", "text": "Ada met Charles."}\n'
    path = tmp_path / f"a.{format}{suffix}"
    path.write_bytes(COMPRESSORS[suffix](line + b" " * 1_000_000))

    *before, found = read_all(path, format, ReaderConfig())

    assert isinstance(found, DeadLetter)
    assert found.error == "unpacks_too_far"
    assert (len(before), found.position) == ((1, len(line)) if format == "jsonl" else (0, 0))
    assert str(path) in found.message
    assert "check the file, and unpack it" in found.message


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_lines_before_the_end_of_what_is_unpacked_are_read_in_any_pieces(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "ALWAYS_UNPACKED_BYTES", 100_000)
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(COMPRESSORS[suffix](b'{"text": "Ada met Charles."}\n' * 10_000))
    monkeypatch.setattr(files, "UNPACK_RATIO", 2)
    config = ReaderConfig()
    whole = read_all(path, "jsonl", config)
    check_pieces(path, whole, config, step=999)
    assert isinstance(whole[-1], DeadLetter)
    assert whole[-1].error == "unpacks_too_far"
    assert all(isinstance(record, Document) for record in whole[:-1])


def test_repetitive_file_below_the_bound_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b" " * 2_000_000))

    assert outcomes(tmp_path / "a.txt.gz", "text") == ["a.txt.gz"]


@pytest.mark.parametrize("suffix", ["", *COMPRESSORS])
def test_line_that_is_too_long_costs_only_itself(tmp_path: Path, suffix: str) -> None:
    long = json.dumps({"id": "long", "text": "x" * 3_000_000}).encode()
    content = b'{"id": "a", "text": "one"}\n' + long + b'\n{"id": "b", "text": "two"}\n'
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(COMPRESSORS.get(suffix, bytes)(content))

    assert outcomes(path, "jsonl", max_record_bytes=1000) == ["a", "record_too_large", "b"]
    assert outcomes(path, "jsonl", max_record_bytes=len(long) + 1) == ["a", "long", "b"]


@pytest.mark.parametrize(("name", "format"), [("a.txt", "text"), ("a.txt.gz", "text"), ("a.parquet", "parquet")])
def test_document_that_is_too_long_is_a_dead_letter(tmp_path: Path, name: str, format: str) -> None:
    (tmp_path / name).write_bytes(SAMPLES[name].content)

    found = set(outcomes(tmp_path / name, format, max_record_bytes=20))

    assert found == {"record_too_large"}


class Failing(RecordReader):
    """Fails at its third record."""

    suffixes: Sequence[str] = (".failing",)
    error: BaseException = ValueError("odd bytes")

    def records(self, path: str, config: ReaderConfig) -> Iterator[Fields | RecordError]:
        yield {"id": "a", "text": "one"}
        yield {"id": "b", "text": "two"}
        raise self.error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValueError("odd bytes"), "unreadable"),
        (RecursionError("too deep"), "unreadable"),
        (OSError("no gzip file"), "unreadable"),
        (MemoryError(), "out_of_memory"),
        (SystemExit(1), "unreadable"),
        (RecordError("own_code", "expected x, got y"), "own_code"),
    ],
)
def test_reader_that_raises_costs_the_rest_of_its_file(tmp_path: Path, error: BaseException, code: str) -> None:
    reader = Failing()
    reader.error = error
    available = {"failing": reader}
    path = tmp_path / "a.failing"
    path.write_text("")

    assert outcomes(path, "failing", reader) == ["a", "b", code]

    last = Piece(uri=str(path), format="failing", start=2, end=3, records=1)
    [dead_letter] = read_piece(last, ReaderConfig(), available=available)
    assert isinstance(dead_letter, DeadLetter)
    assert dead_letter.position == 2


class Forgetful(Failing):
    """Reads nothing of what it found."""

    def read(self, piece: Piece, config: ReaderConfig) -> Iterator[Document | DeadLetter]:
        yield from ()


@pytest.mark.parametrize(
    ("reader", "message"),
    [
        (Failing(), r"a\.failing: cannot be read after 2 records \(.*ValueError: odd bytes"),
        (Forgetful(), "expected 5 records, got 0"),
    ],
)
def test_reader_that_does_not_read_what_it_found_names_the_file(tmp_path: Path, reader: Reader, message: str) -> None:
    (tmp_path / "a.failing").write_text("")
    piece = Piece(uri=str(tmp_path / "a.failing"), format="failing", start=0, end=5, records=5)
    with pytest.raises(InputError, match=message):
        list(read_piece(piece, ReaderConfig(), available={"failing": reader}))


def test_reader_that_yields_something_else_costs_its_file(tmp_path: Path) -> None:
    class OddRecord(Failing):
        record: Any

        def records(self, path: str, config: ReaderConfig) -> Iterator[Fields | RecordError]:
            yield self.record

    (tmp_path / "a.odd").write_text("")
    odd: list[Any] = [None, 5, [], {"id": [], "text": 7}, {1: 2}, "text"]
    for record in odd:
        reader = OddRecord()
        reader.record = record
        (found,) = outcomes(tmp_path / "a.odd", "odd", reader)
        assert found in ("unreadable", "id_not_string", "missing_text")
