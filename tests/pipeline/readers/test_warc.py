"""Web archives: a document for each page, found by its byte; a broken record costs no other."""

import gzip
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from concord_testing.broken_files import check_pieces, outcomes, read_all, zstd
from concord_testing.documents import warc_page, warc_record

from concord.pipeline.config import ReaderConfig
from concord.pipeline.documents import DeadLetter, Document
from concord.pipeline.readers import files
from concord.pipeline.readers.read_file import scan_file

INFO = warc_record(b"software: x\r\n", "warcinfo")
ANNA = warc_page(b"<title>One</title><p>Anna met Bob.", url="http://a.org/1")
BOB = warc_page("<p>Zoë".encode("cp1252"), media_type="text/html; charset=iso-8859-1", url="http://a.org/2")
IMAGE = warc_page(b"\x89PNG" * 50_000, media_type="image/png")
EVE = warc_page(b"<p>Eve left.", url="http://a.org/3")
RECORDS = [INFO, ANNA, IMAGE, BOB, EVE]


def by_record(records: list[bytes]) -> bytes:
    return b"".join(gzip.compress(record, mtime=0) for record in records)


WAYS: dict[str, Callable[[list[bytes]], bytes]] = {
    "a.warc": b"".join,
    "a.warc.gz": by_record,
    "whole.warc.gz": lambda records: gzip.compress(b"".join(records)),
    "a.warc.zst": lambda records: zstd(b"".join(records)),
}


def read(path: Path, content: bytes, **config: Any) -> list[Document | DeadLetter]:
    path.write_bytes(content)
    return read_all(path, "warc", ReaderConfig(**config))


def read_one(folder: Path, record: bytes, **config: Any) -> Document | DeadLetter:
    (found,) = read(folder / "a.warc", record, **config)
    return found


@pytest.mark.parametrize("name", WAYS)
def test_pages_are_documents_that_are_found_by_their_byte(tmp_path: Path, name: str) -> None:
    path, config = tmp_path / name, ReaderConfig()

    whole = read(path, WAYS[name](RECORDS))

    assert outcomes(whole) == ["Anna met Bob.", "Zoë", "Eve left."]
    first, second, third = (record for record in whole if isinstance(record, Document))
    assert json.loads(first.meta or "") == {"title": "One", "url": "http://a.org/1", "date": "2021-05-08T10:00:00Z"}
    assert (second.encoding, third.encoding, first.parts) == ("cp1252", "utf-8", ())
    of_file = {"a.warc.gz": by_record}.get(name, b"".join)
    starts = [len(of_file(RECORDS[:number])) for number in (1, 3, 4)]
    assert [record.source_position for record in (first, second, third)] == starts
    assert [record.doc_id for record in whole] == [f"{name}:{start}" for start in starts]
    check_pieces(path, whole, config)


def test_id_may_be_the_address(tmp_path: Path) -> None:
    found = read(tmp_path / "a.warc", ANNA + EVE, id_field="url")

    assert [record.doc_id for record in found] == ["http://a.org/1", "http://a.org/3"]


CHUNKED = "Transfer-Encoding: chunked\r\n"
PAGE = b"<p>Anna</p>"


@pytest.mark.parametrize(
    ("page", "headers"),
    [
        (b"4\r\n<p>A\r\n7\r\nnna</p>\r\n0\r\n\r\n", CHUNKED),
        (gzip.compress(PAGE), "Content-Encoding: gzip\r\n"),
        (zlib.compress(PAGE), "Content-Encoding: deflate\r\n"),
        (b"\x0b\x05\x80<p>Anna</p>\x03", "Content-Encoding: br\r\n"),
        (
            b"%x\r\n%s\r\n0\r\n\r\n" % (len(gzip.compress(PAGE)), gzip.compress(PAGE)),
            f"{CHUNKED}Content-Encoding: gzip\r\n",
        ),
        (PAGE, CHUNKED),
        (PAGE, "Content-Encoding: gzip\r\n"),
    ],
    ids=["chunked", "gzip", "deflate", "brotli", "chunked gzip", "not chunked", "no gzip"],
)
def test_page_is_decoded_unless_it_is_stored_so(tmp_path: Path, page: bytes, headers: str) -> None:
    assert outcomes([read_one(tmp_path, warc_page(page, headers=headers))]) == ["Anna"]


@pytest.mark.parametrize(
    "record",
    [
        warc_page(PAGE, media_type="application/xhtml+xml").replace(b"<p>", b"<p/><p>"),
        warc_page(PAGE, media_type="TEXT/HTML ; charset=utf-8"),
        warc_page(b"<!-- x --> <!DOCTYPE html>" + PAGE).replace(b"Content-Type: text/html\r\n", b""),
        warc_record(PAGE, "resource", "WARC-Target-URI: http://a.org/\r\nContent-Type: text/html\r\n"),
    ],
)
def test_other_pages(tmp_path: Path, record: bytes) -> None:
    length = record[record.index(b"\r\n\r\n") + 4 : -4]
    head, _, rest = record.partition(b"Content-Length: ")
    record = head + b"Content-Length: %d" % len(length) + rest[rest.index(b"\r\n") :]

    assert outcomes([read_one(tmp_path, record)]) == ["Anna"]


def test_text_that_was_made_of_a_page_stays_as_it_is(tmp_path: Path) -> None:
    headers = "WARC-Target-URI: http://a.org/\r\nContent-Type: {}\r\n"
    text = "<b> Zoë\n\nmet  Eve.\n"
    records = [
        warc_record(text.encode(), "conversion", headers.format("text/plain")),
        warc_record(b"Z\xeb", "conversion", headers.format("text/plain")),
        warc_record(b"{}", "conversion", headers.format("application/json")),
        warc_record(b"%PDF", "conversion", headers.format("application/pdf")),
    ]

    found = read(tmp_path / "a.warc", b"".join(records))

    assert outcomes(found) == [text, "invalid_utf8"]
    assert isinstance(found[0], Document)
    assert (json.loads(found[0].meta or ""), found[0].encoding) == (
        {"url": "http://a.org/", "date": "2021-05-08T10:00:00Z"},
        "utf-8",
    )


@pytest.mark.parametrize(
    "record",
    [
        warc_page(PAGE, status="404 Not Found"),
        warc_page(PAGE, status="302 Found"),
        warc_page(b"Anna", media_type="text/plain"),
        warc_record(b"GET / HTTP/1.1\r\n\r\n", "request", "Content-Type: application/http\r\n"),
        warc_record(PAGE, "metadata", "Content-Type: text/html\r\n"),
        warc_record(b"", "revisit", "Content-Type: application/http\r\n"),
        warc_record(b"20210508\na.org. IN A 1.2.3.4\n", "response", "Content-Type: text/dns\r\n"),
    ],
)
def test_what_is_no_page_is_no_record(tmp_path: Path, record: bytes) -> None:
    assert read(tmp_path / "a.warc", record + INFO) == []


DAMAGED = {
    "magic": lambda record: b"WORC" + record[4:],
    "length": lambda record: record.replace(b"Content-Length: ", b"Content-Length: 9"),
    "long length": lambda record: record.replace(b"Content-Length: ", b"Content-Length: 987654321012"),
    "no length": lambda record: record.replace(b"Content-Length", b"Kontent-Length"),
    "end": lambda record: record[:-4] + b"xxxx",
    "cut": lambda record: record[:-30],
}


@pytest.mark.parametrize("damage", DAMAGED)
@pytest.mark.parametrize("name", ["a.warc", "a.warc.gz"])
def test_broken_record_costs_no_other(tmp_path: Path, name: str, damage: str) -> None:
    records = [INFO, ANNA, DAMAGED[damage](BOB), EVE]

    anna, broken, eve = read(tmp_path / name, WAYS[name](records))

    assert isinstance(broken, DeadLetter)
    assert broken.position == len(WAYS[name](records[:2]))
    assert broken.error == (
        "truncated_stream" if name == "a.warc" and damage in ("length", "long length") else "invalid_warc"
    )
    assert outcomes([anna, eve]) == ["Anna met Bob.", "Eve left."]


def test_corrupt_member_costs_no_other(tmp_path: Path) -> None:
    members = [gzip.compress(record) for record in RECORDS]
    members[1] = members[1][:60] + b"????" + members[1][64:]
    path = tmp_path / "a.warc.gz"

    found = read(path, b"".join(members))

    assert outcomes(found) == ["corrupt_stream", "Zoë", "Eve left."]
    assert not any(record.loses_file for record in scan_file(str(path), format="warc", name="a", config=ReaderConfig()))


@pytest.mark.parametrize("name", ["a.warc.gz", "whole.warc.gz"])
@pytest.mark.parametrize("zeros", [1, 100_000])
def test_zeros_that_pad_a_file_are_passed_over(tmp_path: Path, name: str, zeros: int) -> None:
    assert outcomes(read(tmp_path / name, WAYS[name](RECORDS) + bytes(zeros))) == ["Anna met Bob.", "Zoë", "Eve left."]


@pytest.mark.parametrize("noise", [b"\x1f\x8b\x08\x00" * 20_000, b"x" * 65_530, bytes(65_537) + b"x"])
def test_next_member_is_found_behind_any_noise(tmp_path: Path, noise: bytes) -> None:
    content = by_record([ANNA]) + b"x" + noise + by_record([EVE])

    assert outcomes(read(tmp_path / "a.warc.gz", content)) == ["Anna met Bob.", "corrupt_stream", "Eve left."]


def test_many_starts_of_records_take_no_long_time(tmp_path: Path) -> None:
    found = outcomes(read(tmp_path / "a.warc", b"WARC/1.0\r\n" * 4_000 + EVE))

    assert (set(found[:-1]), found[-1]) == ({"invalid_warc"}, "Eve left.")


@pytest.mark.parametrize("name", WAYS)
def test_file_that_is_cut_says_what_is_lost(tmp_path: Path, name: str) -> None:
    path, content = tmp_path / name, WAYS[name](RECORDS)

    found = read(path, content[:-20])

    assert outcomes(found)[-1] == "truncated_stream"
    assert outcomes(found)[:-1] == ["Anna met Bob.", "Zoë"][: len(found) - 1]
    *_, last = scan_file(str(path), format="warc", name=name, config=ReaderConfig())
    assert last.loses_file


@pytest.mark.parametrize("content", [b"", b"no archive\r\n\r\n"])
def test_what_is_no_archive_has_no_page(tmp_path: Path, content: bytes) -> None:
    assert outcomes(read(tmp_path / "a.warc", content)) == ["invalid_warc"][: len(content)]
    (found,) = outcomes(read(tmp_path / "a.warc.gz", content))
    assert found in ("truncated_stream", "corrupt_stream")


def test_several_records_in_one_member_are_not_lost_in_silence(tmp_path: Path) -> None:
    content = by_record([INFO]) + gzip.compress(ANNA + EVE) + gzip.compress(INFO + EVE)

    assert outcomes(read(tmp_path / "a.warc.gz", content)) == ["invalid_warc", "invalid_warc"]


@pytest.mark.parametrize("name", WAYS)
def test_large_page_costs_itself_and_a_large_image_nothing(tmp_path: Path, name: str) -> None:
    large = warc_page(b"<p>" + b"Anna " * 50_000)

    found = read(tmp_path / name, WAYS[name]([ANNA, IMAGE, large, EVE]), max_record_bytes=100_000)

    assert outcomes(found) == ["Anna met Bob.", "record_too_large", "Eve left."]


def test_bombs_are_dead_letters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = warc_page(gzip.compress(bytes(10_000_000)), headers="Content-Encoding: gzip\r\n")
    assert outcomes([read_one(tmp_path, inner, max_record_bytes=1_000_000)]) == ["record_too_large"]

    monkeypatch.setattr(files, "ALWAYS_UNPACKED_BYTES", 100_000)
    assert outcomes(read(tmp_path / "a.warc", inner + EVE)) == ["unpacks_too_far", "Eve left."]
    outer = by_record([ANNA, warc_page(bytes(10_000_000)), EVE])
    assert outcomes(read(tmp_path / "a.warc.gz", outer)) == ["Anna met Bob.", "unpacks_too_far", "Eve left."]


def test_header_of_http_may_end_in_line_feeds_and_what_is_no_http_is_a_dead_letter(tmp_path: Path) -> None:
    head, _, http = warc_page(PAGE).removesuffix(b"\r\n\r\n").partition(b"\r\n\r\n")
    http = http.replace(b"\r\n", b"\n")
    head = head.rpartition(b" ")[0] + b" %d\r\n\r\n" % len(http)
    assert outcomes([read_one(tmp_path, head + http + b"\r\n\r\n")]) == ["Anna"]
    record = warc_record(PAGE, "response", "Content-Type: application/http\r\n")
    assert outcomes(read(tmp_path / "a.warc", record + EVE)) == ["invalid_http", "Eve left."]


def test_page_that_cannot_be_read_costs_no_other(tmp_path: Path) -> None:
    page = b"\xff\xfe" * 10 + b"<p>\x81\xff"

    first, second = read(tmp_path / "a.warc", warc_page(page) + EVE)

    assert isinstance(first, DeadLetter)
    assert outcomes([second]) == ["Eve left."]
