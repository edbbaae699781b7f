"""CSV and TSV: records of one or more lines, at bytes, in any pieces; broken quotes cost one line."""

import csv
import gzip
import io
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from concord_testing import broken_files
from concord_testing.broken_files import plan_for, read_all, read_plan, zstd
from hypothesis import given
from hypothesis import strategies as st

from concord.pipeline.config import ReaderConfig
from concord.pipeline.documents import DeadLetter, Document
from concord.pipeline.readers.read_file import format_of, read_text_at

PLAIN = ReaderConfig()
COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".zst": zstd}


def outcomes(path: Path, format: str = "csv") -> list[str]:
    return broken_files.outcomes(read_all(path, format, PLAIN))


@pytest.mark.parametrize(
    ("name", "format"), [("a.csv", "csv"), ("a.CSV.gz", "csv"), ("a.tsv.zst", "tsv"), ("a.csv.bz2", None)]
)
def test_format_depends_on_the_suffixes(name: str, format: str | None) -> None:
    assert format_of(name) == format


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


def test_fields_come_from_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("key\tbody\n7\tOne, two.\n")

    (found,) = read_plan(plan_for(tmp_path / "a.tsv", shard_bytes=1, id_field="key", text_field="body"))

    assert isinstance(found, Document)
    assert (found.doc_id, found.text, found.meta) == ("7", "One, two.", None)


def test_text_may_be_longer_than_the_library_allows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text\n" + "x" * 300_000 + "\n")

    assert [len(text) for text in outcomes(tmp_path / "a.csv")] == [300_000]


def test_advice_about_columns_is_about_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,text,page\nx,one\ny,a,b,c\n")

    few, many = read_all(path, "csv", ReaderConfig())

    assert isinstance(few, DeadLetter)
    assert few.message.endswith(
        "got 2; write all of them, also those without a value, and put fields that hold line ends in quotes"
    )
    assert isinstance(many, DeadLetter)
    assert many.message.endswith("got 4; put fields that hold ',' in quotes")


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
    ],
)
def test_broken_row_costs_only_itself(tmp_path: Path, lines: Sequence[str], expected: Sequence[str]) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,text\n" + "\n".join(lines) + "\n")

    assert outcomes(path) == expected


def test_invalid_bytes_within_a_field_of_two_lines_cost_only_its_row(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'id,text\nx,"one\ntw\xff"\ny,two\n')

    bad, good = read_all(path, "csv", PLAIN)

    assert isinstance(bad, DeadLetter)
    assert (bad.error, bad.position) == ("invalid_utf8", 8)
    assert good.doc_id == "y"


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"text,text\na,b\n", "invalid_header"),
        (b'"text\na\nb\n', "invalid_quotes"),
        (b"t\xffxt\na\n", "invalid_utf8"),
    ],
)
def test_file_without_a_usable_header_is_one_dead_letter(tmp_path: Path, content: bytes, error: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content)

    assert outcomes(path) == [error]


@pytest.mark.parametrize("content", [b"", b"\n\n", b"id,text\n"])
def test_file_without_rows_has_no_records(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.csv").write_bytes(content)

    assert outcomes(tmp_path / "a.csv") == []


def test_tsv_may_hold_quotes_as_text(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text('id\ttext\nx\t"No," she said.\ny\t"quoted ""text"""\nz\t"a\n')

    assert outcomes(path, "tsv") == ['"No," she said.', 'quoted "text"', '"a']


def test_encoding_is_guessed_for_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("id,text\na,plain\nb,Muñoz\nc,Zoë left\n".encode("cp1252"))

    found = [
        (record.text, record.encoding, record.encoding_confidence)
        for record in read_all(path, "csv", ReaderConfig(encoding="auto"))
        if isinstance(record, Document)
    ]

    assert found == [(text, "cp1252", 0.333) for text in ("plain", "Muñoz", "Zoë left")]
    assert outcomes(path) == ["plain", "invalid_utf8", "invalid_utf8"]


def test_cut_within_a_field_of_several_lines_keeps_the_lines_before_it(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    content = b'id,text\na,one\nb,"two\nlines\nand more"\n'
    path.write_bytes(gzip.compress(content)[:-8])
    assert outcomes(path)[:2] == ["one", "two\nlines\nand more"]
    assert outcomes(path)[2:] == ["truncated_stream"]


FIELD = st.one_of(st.text(max_size=8), st.sampled_from(['"', 'a"b', "a,b", "x\ny", "\r", "\ufeff", "\x00"]))


@pytest.mark.slow
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


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_a_few_invalid_bytes_of_a_row_are_replaced_and_counted_where_that_is_asked_for(
    tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"a.{suffix}"
    rows = (b"id,text,note", b"a,caf\xe9 noir,n\xffn", "b,café,x".encode(), b"c,\xff\xff\xff\xff,x", b'd,"a\n\xff",x')
    path.write_bytes(b"\n".join(rows).replace(b",", b"," if suffix == "csv" else b"\t"))

    strict = read_all(path, suffix, ReaderConfig())
    a, b, c, d = read_all(path, suffix, ReaderConfig(errors="replace"))

    assert [type(record) for record in strict] == [DeadLetter, Document, DeadLetter, DeadLetter]
    assert isinstance(a, Document)
    assert isinstance(b, Document)
    assert isinstance(d, Document)
    assert (a.text, a.meta, a.replaced) == ("caf\ufffd noir", '{"note":"n\ufffdn"}', 2)
    assert (b.text, b.replaced) == ("café", 0)
    assert (d.text, d.replaced) == ("a\n\ufffd", 1)
    assert isinstance(c, DeadLetter)
    assert "4 such places in all, which is more than a few" in c.message


def test_rows_are_read_as_browsers_read_them(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("id,text\na,价格".encode("gbk") + b"\x805")

    (found,) = read_all(path, "csv", ReaderConfig.from_mapping({"encoding": "gb2312"}))

    assert isinstance(found, Document)
    assert (found.text, found.encoding) == ("价格€5", "gb18030")
