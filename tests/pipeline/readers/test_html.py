"""HTML pages: the text that they show is the raw text."""

import gzip
import json
from pathlib import Path

import pytest
from concord_testing.broken_files import read_all

from concord.pipeline.config import ReaderConfig
from concord.pipeline.documents import DeadLetter, Document
from concord.pipeline.errors import InputError
from concord.pipeline.readers import html
from concord.pipeline.readers.read_file import format_of, read_text_at, reader_for, readers

PAGE = """<!doctype html><html><head><title>The bridge &amp; the town</title><style>p {}</style>
<script>let text = "<p>not shown</p>";</script></head><body><nav><a href="/">Home</a></nav>
<main><article><h1>The bridge</h1><p>Ada <b>Love</b>lace met Charles&nbsp;Babbage<br>in London.</p>
<p>The committee of the town met on Monday to talk about the bridge, and in the end it decided nothing at all.</p>
<ul><li>one<li>two</ul><!-- no comment --></article></main><footer>Imprint</footer></body></html>"""


def read_one(path: Path, content: bytes, **config: object) -> Document | DeadLetter:
    path.write_bytes(content)
    (found,) = read_all(path, "html", ReaderConfig.from_mapping(config))
    return found


@pytest.mark.parametrize("name", ["a.html", "a.htm", "a.HTML.gz"])
def test_raw_text_is_what_the_page_shows(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    content = gzip.compress(PAGE.encode()) if name.endswith(".gz") else PAGE.encode()

    found = read_one(path, content)

    assert isinstance(found, Document)
    lines = [line.strip() for line in found.text.splitlines() if line.strip()]
    assert lines[:5] == ["Home", "The bridge", "Ada Lovelace met Charles\xa0Babbage", "in London.", lines[4]]
    assert lines[5:] == ["one", "two", "Imprint"]
    assert (found.doc_id, found.source_position, found.encoding) == (name, 0, "utf-8")
    assert json.loads(found.meta or "") == {"title": "The bridge & the town"}
    assert read_text_at(str(path), format="html", position=0, config=ReaderConfig()) == found.text


def test_main_content_leaves_navigation_out(tmp_path: Path) -> None:
    found = read_one(tmp_path / "a.html", PAGE.encode(), main_content=True)

    assert isinstance(found, Document)
    assert "Ada Lovelace" in found.text
    assert "Home" not in found.text
    assert "Imprint" not in found.text


@pytest.mark.parametrize(
    ("head", "written", "setting", "expected"),
    [
        ("<meta charset=iso-8859-1>", "cp1252", "utf-8", "cp1252"),
        ('<meta http-equiv="Content-Type" content="text/html; charset=windows-1250">', "cp1250", "utf-8", "cp1250"),
        ('<?xml version="1.0" encoding="koi8-r"?>', "koi8-r", "auto", "koi8-r"),
        ("<meta charset=iso-8859-1>", "utf-8", "utf-8", "utf-8"),
        ("<meta charset=utf-16>", "utf-8", "utf-8", "utf-8"),
        ("<meta charset=utf-8>", "cp1252", "cp1252", "cp1252"),
        ("", "utf-16", "auto", "utf-16"),
        ("", "cp1252", "auto", "cp1252"),
    ],
)
def test_encoding_is_the_one_that_the_page_declares(
    tmp_path: Path, head: str, written: str, setting: str, expected: str
) -> None:
    text = "Вчера" if written == "koi8-r" else "Zoë"

    found = read_one(tmp_path / "a.html", f"{head}<p>{text}</p>".encode(written), encoding=setting)

    assert isinstance(found, Document)
    assert (found.text, found.encoding) == (text, expected)
    assert (found.encoding_confidence is None) == bool(head or written == "utf-16")


@pytest.mark.parametrize("charset", ["", "<meta charset=hex>", "<meta charset=no-such>", "<meta charset=utf-16>"])
def test_undeclared_encoding_is_a_dead_letter(tmp_path: Path, charset: str) -> None:
    found = read_one(tmp_path / "a.html", f"{charset}<p>Zoë</p>".encode("latin-1"))

    assert isinstance(found, DeadLetter)
    assert found.error == "invalid_utf8"


@pytest.mark.parametrize(
    ("content", "error"),
    [(b"<div>x" * 20_000, "nested_too_deep"), (b"<ul><li>x" * 20_000, "nested_too_deep")],
)
def test_page_that_would_take_very_long_is_a_dead_letter(tmp_path: Path, content: bytes, error: str) -> None:
    found = read_one(tmp_path / "a.html", content)

    assert isinstance(found, DeadLetter)
    assert found.error == error


def test_page_whose_indents_would_be_too_long_is_a_dead_letter(tmp_path: Path) -> None:
    found = read_one(tmp_path / "a.html", b"<ul>" * 900 + b"<li>x" * 1000, max_record_bytes=1_000_000)

    assert isinstance(found, DeadLetter)
    assert found.error == "record_too_large"


@pytest.mark.parametrize("content", [b"", b"<", b"<frameset>", b"\x00", b"<p>", b"<!--", b"<b"])
def test_odd_pages_are_documents(tmp_path: Path, content: bytes) -> None:
    assert isinstance(read_one(tmp_path / "a.html", content), Document)


@pytest.mark.slow
def test_without_the_extra_the_format_is_unknown_and_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "is_available", lambda: False)
    available = readers.__wrapped__()

    assert format_of("a.html", available=available) is None
    with pytest.raises(InputError, match=r"pip install 'concord-annotate\[html\]'"):
        reader_for("html", available=available)
