"""Damaged files of every format and faulty readers: no traceback, no endless file, no record lost in silence."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from concord_testing.broken_files import damage_and_read, read_all, samples
from concord_testing.checkout import SOAK

from concord.pipeline.config import ReaderConfig
from concord.pipeline.documents import DeadLetter
from concord.pipeline.errors import InputError
from concord.pipeline.plan import Piece
from concord.pipeline.readers import read_file
from concord.pipeline.readers.base import Fields, Reader, RecordReader, extract_checked
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


@pytest.mark.parametrize(("name", "format"), [("a.txt", "text"), ("a.txt.gz", "text"), ("a.parquet", "parquet")])
def test_document_that_is_too_long_is_a_dead_letter(tmp_path: Path, name: str, format: str) -> None:
    (tmp_path / name).write_bytes(SAMPLES[name].content)

    found = set(outcomes(tmp_path / name, format, max_record_bytes=20))

    assert found == {"record_too_large"}


class Given(RecordReader):
    """Yields what it is given, and fails."""

    suffixes: Sequence[str] = (".given",)

    def __init__(self, *given: Any, error: BaseException | None = None) -> None:
        self.given = given
        self.error = error

    def records(self, path: str, config: ReaderConfig) -> Iterator[Fields | RecordError]:
        yield from self.given
        if self.error is not None:
            raise self.error


ROWS = {"id": "a", "text": "one"}, {"id": "b", "text": "two"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "a.given").touch()
    return tmp_path / "a.given"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValueError("odd bytes"), "unreadable"),
        (RecursionError("too deep"), "unreadable"),
        (OSError("no gzip file"), "unreadable"),
        (MemoryError(), "out_of_memory"),
        (RecordError("own_code", "expected x, got y"), "own_code"),
    ],
)
def test_reader_that_raises_costs_the_rest_of_its_file(
    path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: str
) -> None:
    reader = Given(*ROWS, error=error)

    assert outcomes(path, "given", reader) == ["a", "b", code]

    monkeypatch.setattr(read_file, "readers", lambda: {"given": reader})
    (dead_letter,) = read_piece(Piece(uri=str(path), format="given", start=2, end=3, records=1), ReaderConfig())
    assert isinstance(dead_letter, DeadLetter)
    assert dead_letter.position == 2


def test_a_run_that_is_stopped_while_it_reads_takes_that_for_no_fault_of_the_file(path: Path) -> None:
    stopped = SystemExit(143)
    with pytest.raises(SystemExit):
        outcomes(path, "given", Given(*ROWS, error=stopped))
    with pytest.raises(SystemExit):
        extract_checked(Mock(side_effect=stopped), b"", ReaderConfig(), "record")


@pytest.mark.parametrize(
    ("reader", "message"),
    [
        (Given(*ROWS, error=ValueError("odd")), r"a\.given: cannot be read after 2 records \(.*ValueError: odd"),
        (Given(), "expected 5 records, got 0"),
    ],
)
def test_reader_that_does_not_read_what_it_found_names_the_file(
    path: Path, monkeypatch: pytest.MonkeyPatch, reader: Reader, message: str
) -> None:
    monkeypatch.setattr(read_file, "readers", lambda: {"given": reader})
    with pytest.raises(InputError, match=message):
        list(read_piece(Piece(uri=str(path), format="given", start=0, end=5, records=5), ReaderConfig()))


@pytest.mark.parametrize("odd", [None, 5, [], {"id": [], "text": 7}, {1: 2}, "text"])
def test_reader_that_yields_something_else_costs_its_file(path: Path, odd: Any) -> None:
    (found,) = outcomes(path, "given", Given(odd))
    assert found in ("unreadable", "id_not_string", "missing_text")
