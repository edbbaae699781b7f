"""HTML pages: the text that they show is the raw text."""

import gzip
import json
from pathlib import Path

import pytest
from concord_testing.broken_files import read_all

from concord.pipeline.config import ReaderConfig
from concord.pipeline.documents import DeadLetter, Document
from concord.pipeline.errors import InputError
from concord.pipeline.readers import read_file
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


def read_page(folder: Path, content: bytes, **config: object) -> Document:
    found = read_one(folder / "a.html", content, **config)
    assert isinstance(found, Document), found
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
    found = read_page(tmp_path, PAGE.encode(), main_content=True)
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

    found = read_page(tmp_path, f"{head}<p>{text}</p>".encode(written), encoding=setting)
    assert (found.text, found.encoding) == (text, expected)
    assert (found.encoding_confidence is None) == bool(head or written == "utf-16")


RUSSIAN = "Анна встретила Карла в Москве."
LABELS = {
    "gb2312": ("gb18030", "朱镕基访问日本。"),
    "x-gbk": ("gb18030", "昨天，部长访问日本。"),
    "shift_jis": ("cp932", "株式会社①は東京にあります。"),
    "iso-2022-jp": ("iso2022_jp_ext", "東京です。"),
    "windows-874": ("cp874", "กรุงเทพ…"),
    "koi8-ru": ("koi8-u", "Київ"),
    "windows-1256": ("cp1256", "القاهرة"),
    "iso-8859-7": ("iso8859-7", "Αθήνα"),
    "x-user-defined": ("cp1252", "Zoë"),
}


@pytest.mark.parametrize("setting", ["utf-8", "auto"])
@pytest.mark.parametrize("label", LABELS)
def test_declared_label_means_what_browsers_take_it_for(tmp_path: Path, label: str, setting: str) -> None:
    codec, text = LABELS[label]

    found = read_page(tmp_path, f"<meta charset={label}><p>{text}</p>".encode(codec), encoding=setting)
    assert (found.text, found.encoding, found.encoding_confidence) == (text, codec, None)


@pytest.mark.parametrize("setting", ["utf-8", "auto"])
@pytest.mark.parametrize(
    "declaration",
    [
        "<!--" + "x" * 5000 + "--><meta charset=koi8-r>",
        "<style>" + "p {} " * 1000 + "</style><META CONTENT='text/html; Charset = KOI8-R' HTTP-EQUIV=content-type>",
        "</head><body>" + "<p>x</p>" * 500 + "<meta charset='koi8-r'>",
        "<!-- <meta charset=gb2312> --><meta charset=koi8-r>",
        "<script>'<meta charset=gb2312>'</script><meta charset=koi8-r>",
        "<meta name=description content='charset=gb2312'><meta charset=koi8-r>",
        "<meta charset=no-such><meta charset=koi8-r>",
        "<meta charset=koi8-r><meta charset=gb2312>",
    ],
)
def test_declaration_counts_wherever_browsers_find_it(tmp_path: Path, declaration: str, setting: str) -> None:
    page = f"<html><head>{declaration}<p>{RUSSIAN}</p>"

    found = read_page(tmp_path, page.encode("koi8-r"), encoding=setting)
    assert found.text.endswith(RUSSIAN)
    assert found.encoding == "koi8-r"


@pytest.mark.parametrize(
    "head", ["<?xml version='1.0' encoding='koi8-r'?>", " \n<?xml version='1.0' encoding=\"KOI8-R\"?>"]
)
def test_declaration_of_xml_counts_unless_the_page_has_one(tmp_path: Path, head: str) -> None:
    of_xml = read_page(tmp_path, f"{head}<p>{RUSSIAN}</p>".encode("koi8-r"))
    of_page = read_page(tmp_path, f"{head}<meta charset=windows-1251><p>{RUSSIAN}</p>".encode("cp1251"))

    assert (of_xml.encoding, of_page.encoding) == ("koi8-r", "cp1251")
    assert of_xml.text == of_page.text == RUSSIAN


@pytest.mark.parametrize(("encoding", "mark"), [("utf-8", "\ufeff"), ("utf-16", ""), ("utf-16-be", "\ufeff")])
@pytest.mark.parametrize("setting", ["utf-8", "auto"])
def test_byte_order_mark_comes_before_a_declaration(tmp_path: Path, encoding: str, mark: str, setting: str) -> None:
    page = f"{mark}<meta charset=windows-1251><p>{RUSSIAN}</p>"

    found = read_page(tmp_path, page.encode(encoding), encoding=setting)
    assert found.text == RUSSIAN


@pytest.mark.parametrize("label", ["utf-16", "utf-16le", "utf-7", "unicode", "cp037"])
def test_page_in_utf8_that_declares_what_it_cannot_be_is_in_utf8(tmp_path: Path, label: str) -> None:
    found = read_page(tmp_path, f"<meta charset={label}><p>{RUSSIAN}</p>".encode())
    assert (found.text, found.encoding) == (RUSSIAN, "utf-8")


@pytest.mark.parametrize(("text", "encoding"), [("毛", "gb18030"), ("媒体", "gb18030"), ("毛泽东", "utf-8")])
def test_few_letters_that_are_utf8_as_well_are_in_the_declared_encoding(
    tmp_path: Path, text: str, encoding: str
) -> None:
    found = read_page(tmp_path, f"<meta charset=gbk><p>{text}</p>".encode(encoding))
    assert (found.text, found.encoding) == (text, encoding)


def test_invalid_byte_of_a_declared_encoding_is_a_dead_letter_or_replaced(tmp_path: Path) -> None:
    page = f"<meta charset=gb2312><p>{LABELS['gb2312'][1]}".encode("gb18030") + b"\xff</p>"

    strict = read_one(tmp_path / "a.html", page)
    replaced = read_one(tmp_path / "a.html", page, errors="replace")

    assert isinstance(strict, DeadLetter)
    assert (strict.error, "expected gb18030, got byte 0xff" in strict.message) == ("invalid_encoding", True)
    assert isinstance(replaced, Document)
    assert (replaced.text, replaced.replaced) == (LABELS["gb2312"][1] + "\ufffd", 1)


@pytest.mark.parametrize("charset", ["", "<meta charset=hex>", "<meta charset=no-such>", "<meta charset=utf-16>"])
def test_undeclared_encoding_is_a_dead_letter(tmp_path: Path, charset: str) -> None:
    found = read_one(tmp_path / "a.html", f"{charset}<p>Zoë</p>".encode("latin-1"))

    assert isinstance(found, DeadLetter)
    assert found.error == "invalid_utf8"


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"<div>x" * 20_000, "nested_too_deep"),
        (b"<ul><li>x" * 20_000, "nested_too_deep"),
        # Its indents would be too long.
        (b"<ul>" * 900 + b"<li>x" * 1000, "record_too_large"),
    ],
)
def test_page_that_would_take_very_long_is_a_dead_letter(tmp_path: Path, content: bytes, error: str) -> None:
    limits = {"max_record_bytes": 1_000_000} if error == "record_too_large" else {}
    found = read_one(tmp_path / "a.html", content, **limits)
    assert isinstance(found, DeadLetter)
    assert found.error == error


@pytest.mark.parametrize("content", [b"", b"<", b"<frameset>", b"\x00", b"<p>", b"<!--", b"<b"])
def test_odd_pages_are_documents(tmp_path: Path, content: bytes) -> None:
    assert isinstance(read_one(tmp_path / "a.html", content), Document)


@pytest.mark.slow
def test_without_the_extra_the_format_is_unknown_and_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_file, "_release", lambda name: "")
    available = readers.__wrapped__()

    assert format_of("a.html", available=available) is None
    with pytest.raises(InputError, match=r"pip install 'concord-annotate\[html\]'"):
        reader_for("html", available=available)
