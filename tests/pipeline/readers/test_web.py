"""HTML pages, whose raw text is what they show, and archives of pages: a broken record costs no other."""

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
from concord.pipeline.errors import InputError
from concord.pipeline.readers import files, read_file
from concord.pipeline.readers.read_file import format_of, reader_for, readers, scan_file

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
    blocks = found.text.split("\n\n")
    assert blocks[:3] == ["Home", "The bridge", "Ada Lovelace met Charles\xa0Babbage\nin London."]
    assert blocks[4:] == ["one", "two", "Imprint"]
    assert (found.doc_id, found.source_position, found.encoding) == (name, 0, "utf-8")
    assert json.loads(found.meta or "") == {"title": "The bridge & the town"}


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
        "<?xml version='1.0' encoding='koi8-r'?>",
        " \n<?xml version='1.0' encoding=\"KOI8-R\"?>",
        "<?xml version='1.0' encoding='windows-1251'?><meta charset=koi8-r>",
    ],
)
def test_declaration_counts_wherever_browsers_find_it(tmp_path: Path, declaration: str, setting: str) -> None:
    found = read_page(tmp_path, f"{declaration}<p>{RUSSIAN}</p>".encode("koi8-r"), encoding=setting)
    assert found.text.endswith(RUSSIAN)
    assert found.encoding == "koi8-r"


@pytest.mark.parametrize(
    ("encoding", "start"),
    [
        ("utf-8", "\ufeff<meta charset=windows-1251>"),
        ("utf-16", "<meta charset=windows-1251>"),
        ("utf-16-be", "\ufeff<meta charset=windows-1251>"),
        *(("utf-8", f"<meta charset={label}>") for label in ("utf-16", "utf-16le", "utf-7", "unicode", "cp037")),
    ],
)
@pytest.mark.parametrize("setting", ["utf-8", "auto"])
def test_mark_and_valid_utf8_come_before_a_declaration(tmp_path: Path, encoding: str, start: str, setting: str) -> None:
    assert read_page(tmp_path, f"{start}<p>{RUSSIAN}</p>".encode(encoding), encoding=setting).text == RUSSIAN


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
    assert outcomes([read_one(tmp_path / "a.html", f"{charset}<p>Zoë</p>".encode("latin-1"))]) == ["invalid_utf8"]


SHOWN = {
    # Each block ends a sentence.
    "<table><caption>A</caption><tr><th>B</th><td>C<td>D<tr><td>E</table>": "A|B|C|D|E",
    "x<ul><li>A<ul><li>B</ul><li>C</ul><dl><dt>D<dd>E</dl>": "x|A|B|C|D|E",
    "<figure><img alt=x><figcaption>A</figcaption></figure>B<h2>C</h2>D<div>E</div>F": "A|B|C|D|E|F",
    "<form><fieldset><legend>A</legend><label>B</label><input value=x><button>C</button></fieldset>": "A|B|C",
    "<select><option>A<option selected>B</select><select multiple><option>C<option>D</select>": "B|C|D",
    "<details><summary>A</summary>B</details><svg><title>x</title><text>C</text><text>D</text></svg>": "A|B|C|D",
    # What stands within a line is one word unless there is white space, a picture, or the next link of a menu.
    "<b>Ang</b>ela Mer<wbr>k<i>e</i>l&shy;s": "Angela Merkels",
    "A<img src=x>B<script>x</script>C <!-- > x --> D  <!--[if IE]>x<![endif]-->\n E": "A BC D E",
    "<nav><a>Oslo</a><a><b>Rome</b></a></nav><a>Nord</a><a>see</a><a>中国</a><a>北京</a>": "Oslo|Rome|Nordsee中国北京",
    "A <b> B</b> C&nbsp; D&lt;b&gt;&amp;amp;": "A B C\xa0 D<b>&amp;",
    "<div><a>Oslo</a> <a> Rome</a> · <a>Bonn</a></div>He saw <a> Ada</a> <a>L</a>": "Oslo|Rome|· Bonn|He saw Ada L",
    "A<pre>\nC  D\n <u class=x>d</u>\nE</pre>": "A|C  D\nd|E",
    # Columns, but no letters that are set one by one.
    "<span>Lyon</span><i><span>Turin</span></i><b>, <span></span><span>Rome</span></b>": "Lyon|Turin, Rome",
    "Mc<b>Donald</b>, i<b>Phone</b>, <span>U</span><span>SA</span>, <b>An</b><i>Na</i>": "McDonald, iPhone, USA, AnNa",
    # Lines that are typed one by one are blocks, a sentence goes on.
    "<p>Anna Berg<br>Karl Maier<br> <b>the</b> smith<br><br>Eve": "Anna Berg|Karl Maier\nthe smith|Eve",
    f"<p>{'word ' * 12}<br>{'Word ' * 11}end<br>{'Word ' * 6}": (
        f"{('word ' * 12).strip()}\n{'Word ' * 11}end\n{('Word ' * 6).strip()}"
    ),
    # Marks of notes are no part of a name.
    "Obama<sup>1</sup> Rom.<sup>*</sup> Rossi<sup>1,2</sup> Bonn<sup>[a?]</sup>": "Obama 1 Rom. * Rossi 1,2 Bonn [a?]",
    "5 m<sup>2</sup> 1<sup>st</sup> 10<sup>6</sup> XVIII<sup>e</sup>": "5 m2 1st 106 XVIIIe",
    "Obama<sup><a href='#n'>[1]</a></sup> <a href='#n'><sup>2</sup></a>met<a role=doc-noteref>x</a>": "Obama met",
    # What is hidden is not shown.
    "A<p hidden>x<p style='top:0; DISPLAY : none !important'>x<p style=visibility:hidden>x<p aria-hidden=true>B": "A|B",
    "<dialog>x</dialog><dialog open>A</dialog><p popover>x</p><template>x</template><noscript>x</noscript>B": "A|B",
    "<ruby>漢<rp>(</rp><rt>x</rt><rp>)</rp>字</ruby><iframe>x</iframe><video>x</video><input value=x>": "漢字",
    "<body style='visibility:hidden'>A<p style='display:none-x'>B": "A|B",
}


@pytest.mark.parametrize("page", SHOWN)
def test_blocks_end_and_only_what_is_shown_is_read(tmp_path: Path, page: str) -> None:
    assert read_page(tmp_path, page.encode()).text == SHOWN[page].replace("|", "\n\n")


def test_main_content_ends_blocks_as_well_and_leaves_navigation_out(tmp_path: Path) -> None:
    assert read_page(tmp_path, PAGE.encode(), main_content=True).text.startswith("The bridge")
    page = (
        "<article><p>Ada Lovelace<sup>1</sup> met him there, as these figures of the town show:<table><tr><td>Ada</td>"
    )
    page += "<td>Eve<br>Karl</td></tr></table><p hidden>x</p>"

    text = read_page(tmp_path, page.encode(), main_content=True).text
    assert text == "Ada Lovelace 1 met him there, as these figures of the town show:\n\nAda\n\nEve\n\nKarl"


@pytest.mark.parametrize("content", [b"<div>x" * 50_000, b"<ul><li>x" * 20_000, b"<sup><a href=#x>x<b>" * 1000])
def test_deeply_nested_page_is_read(tmp_path: Path, content: bytes) -> None:
    assert read_page(tmp_path, content).text.startswith("x")


@pytest.mark.parametrize("content", [b"", b"<frameset>", b"\x00", b"<p>", b"<!--", b"<b"])
def test_pages_without_a_word_say_so(tmp_path: Path, content: bytes) -> None:
    assert outcomes([read_one(tmp_path / "a.html", content)]) == ["no_text"]


@pytest.mark.slow
def test_without_the_extra_the_format_is_unknown_and_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_file, "_release", lambda name: "")
    available = readers.__wrapped__()
    monkeypatch.setattr(read_file, "readers", lambda: available)

    assert (format_of("a.html"), format_of("a.html", is_installed=False)) == (None, "html")
    with pytest.raises(InputError, match=r"pip install 'concord-annotate\[html\]'"):
        reader_for("html")


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


def read_archive(path: Path, content: bytes, **config: Any) -> list[Document | DeadLetter]:
    path.write_bytes(content)
    return read_all(path, "warc", ReaderConfig(**config))


@pytest.mark.parametrize("name", WAYS)
def test_pages_are_documents_that_are_found_by_their_byte(tmp_path: Path, name: str) -> None:
    path, config = tmp_path / name, ReaderConfig()

    whole = read_archive(path, WAYS[name](RECORDS))

    assert outcomes(whole) == ["Anna met Bob.", "Zoë", "Eve left."]
    first, second, third = (record for record in whole if isinstance(record, Document))
    assert json.loads(first.meta or "") == {"title": "One", "url": "http://a.org/1", "date": "2021-05-08T10:00:00Z"}
    assert (second.encoding, third.encoding, first.parts) == ("cp1252", "utf-8", ())
    of_file = {"a.warc.gz": by_record}.get(name, b"".join)
    starts = [len(of_file(RECORDS[:number])) for number in (1, 3, 4)]
    assert [record.source_position for record in (first, second, third)] == starts
    assert [record.doc_id for record in whole] == [f"{name}:{start}" for start in starts]
    check_pieces(path, whole, config)
    by_address = read_archive(path, WAYS[name](RECORDS), id_field="url")
    assert [record.doc_id for record in by_address] == ["http://a.org/1", "http://a.org/2", "http://a.org/3"]


CHUNKED = "Transfer-Encoding: chunked\r\n"
SHORT = b"<p>Anna</p>"


@pytest.mark.parametrize(
    ("page", "headers"),
    [
        (b"4\r\n<p>A\r\n7\r\nnna</p>\r\n0\r\n\r\n", CHUNKED),
        (gzip.compress(SHORT, mtime=0), "Content-Encoding: gzip\r\n"),
        (zlib.compress(SHORT), "Content-Encoding: deflate\r\n"),
        (b"\x0b\x05\x80<p>Anna</p>\x03", "Content-Encoding: br\r\n"),
        (
            b"%x\r\n%s\r\n0\r\n\r\n" % (len(gzip.compress(SHORT)), gzip.compress(SHORT)),
            f"{CHUNKED}Content-Encoding: gzip\r\n",
        ),
        (SHORT, CHUNKED),
        (SHORT, "Content-Encoding: gzip\r\n"),
    ],
    ids=["chunked", "gzip", "deflate", "brotli", "chunked gzip", "not chunked", "no gzip"],
)
def test_page_is_decoded_unless_it_is_stored_so(tmp_path: Path, page: bytes, headers: str) -> None:
    assert outcomes(read_archive(tmp_path / "a.warc", warc_page(page, headers=headers))) == ["Anna"]


@pytest.mark.parametrize(
    "record",
    [
        warc_page(SHORT, media_type="application/xhtml+xml").replace(b"<p>", b"<p/><p>"),
        warc_page(SHORT, media_type="TEXT/HTML ; charset=utf-8"),
        warc_page(b"<!-- x --> <!DOCTYPE html>" + SHORT).replace(b"Content-Type: text/html\r\n", b""),
        warc_record(SHORT, "resource", "WARC-Target-URI: http://a.org/\r\nContent-Type: text/html\r\n"),
    ],
)
def test_other_pages(tmp_path: Path, record: bytes) -> None:
    length = record[record.index(b"\r\n\r\n") + 4 : -4]
    head, _, rest = record.partition(b"Content-Length: ")
    record = head + b"Content-Length: %d" % len(length) + rest[rest.index(b"\r\n") :]

    assert outcomes(read_archive(tmp_path / "a.warc", record)) == ["Anna"]


def test_text_that_was_made_of_a_page_stays_as_it_is(tmp_path: Path) -> None:
    headers = "WARC-Target-URI: http://a.org/\r\nContent-Type: {}\r\n"
    text = "<b> Zoë\n\nmet  Eve.\n"
    records = [
        warc_record(text.encode(), "conversion", headers.format("text/plain")),
        warc_record(b"Z\xeb", "conversion", headers.format("text/plain")),
        warc_record(b"{}", "conversion", headers.format("application/json")),
        warc_record(b"%PDF", "conversion", headers.format("application/pdf")),
    ]

    found = read_archive(tmp_path / "a.warc", b"".join(records))

    assert outcomes(found) == [text, "invalid_utf8"]
    assert isinstance(found[0], Document)
    assert (json.loads(found[0].meta or ""), found[0].encoding) == (
        {"url": "http://a.org/", "date": "2021-05-08T10:00:00Z"},
        "utf-8",
    )


@pytest.mark.parametrize(
    "record",
    [
        warc_page(SHORT, status="404 Not Found"),
        warc_page(SHORT, status="302 Found"),
        warc_page(b"Anna", media_type="text/plain"),
        warc_record(b"GET / HTTP/1.1\r\n\r\n", "request", "Content-Type: application/http\r\n"),
        warc_record(SHORT, "metadata", "Content-Type: text/html\r\n"),
        warc_record(b"", "revisit", "Content-Type: application/http\r\n"),
        warc_record(b"20210508\na.org. IN A 1.2.3.4\n", "response", "Content-Type: text/dns\r\n"),
    ],
)
def test_what_is_no_page_is_no_record(tmp_path: Path, record: bytes) -> None:
    assert read_archive(tmp_path / "a.warc", record + INFO) == []


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

    anna, broken, eve = read_archive(tmp_path / name, WAYS[name](records))

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

    found = read_archive(path, b"".join(members))

    assert outcomes(found) == ["corrupt_stream", "Zoë", "Eve left."]
    assert not any(record.loses_file for record in scan_file(str(path), format="warc", name="a", config=ReaderConfig()))


@pytest.mark.parametrize("name", ["a.warc.gz", "whole.warc.gz"])
@pytest.mark.parametrize("zeros", [1, 100_000])
def test_zeros_that_pad_a_file_are_passed_over(tmp_path: Path, name: str, zeros: int) -> None:
    found = read_archive(tmp_path / name, WAYS[name](RECORDS) + bytes(zeros))
    assert outcomes(found) == ["Anna met Bob.", "Zoë", "Eve left."]


@pytest.mark.parametrize("noise", [b"\x1f\x8b\x08\x00" * 20_000, b"x" * 65_530, bytes(65_537) + b"x"])
def test_next_member_is_found_behind_any_noise(tmp_path: Path, noise: bytes) -> None:
    content = by_record([ANNA]) + b"x" + noise + by_record([EVE])

    assert outcomes(read_archive(tmp_path / "a.warc.gz", content)) == ["Anna met Bob.", "corrupt_stream", "Eve left."]


@pytest.mark.parametrize("name", WAYS)
def test_file_that_is_cut_says_what_is_lost(tmp_path: Path, name: str) -> None:
    path, content = tmp_path / name, WAYS[name](RECORDS)

    found = read_archive(path, content[:-20])

    assert outcomes(found)[-1] == "truncated_stream"
    assert outcomes(found)[:-1] == ["Anna met Bob.", "Zoë"][: len(found) - 1]
    *_, last = scan_file(str(path), format="warc", name=name, config=ReaderConfig())
    assert last.loses_file


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.warc", b"", []),
        ("a.warc", b"no archive\r\n\r\n", ["invalid_warc"]),
        ("a.warc", EVE + b"\r\n" + EVE, ["Eve left.", "Eve left."]),
        ("a.warc.gz", b"", ["truncated_stream"]),
        ("a.warc.gz", b"no archive\r\n\r\n", ["corrupt_stream"]),
        # Several records in one member are not lost in silence.
        ("a.warc.gz", by_record([INFO]) + gzip.compress(ANNA + EVE), ["invalid_warc"]),
        # Nor do many starts of records take a long time.
        ("a.warc", b"WARC/1.0\r\n" * 4_000 + EVE, [*["invalid_warc"] * 4_000, "Eve left."]),
    ],
)
def test_what_is_no_record_is_said(tmp_path: Path, name: str, content: bytes, expected: list[str]) -> None:
    assert outcomes(read_archive(tmp_path / name, content)) == expected


@pytest.mark.parametrize("name", WAYS)
def test_large_page_costs_itself_and_a_large_image_nothing(tmp_path: Path, name: str) -> None:
    large = warc_page(b"<p>" + b"Anna " * 50_000)

    found = read_archive(tmp_path / name, WAYS[name]([ANNA, IMAGE, large, EVE]), max_record_bytes=100_000)

    assert outcomes(found) == ["Anna met Bob.", "record_too_large", "Eve left."]


def test_bombs_are_dead_letters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = warc_page(gzip.compress(bytes(10_000_000)), headers="Content-Encoding: gzip\r\n")
    assert outcomes(read_archive(tmp_path / "a.warc", inner, max_record_bytes=1_000_000)) == ["record_too_large"]

    monkeypatch.setattr(files, "ALWAYS_UNPACKED_BYTES", 100_000)
    assert outcomes(read_archive(tmp_path / "a.warc", inner + EVE)) == ["unpacks_too_far", "Eve left."]
    outer = by_record([ANNA, warc_page(bytes(10_000_000)), EVE])
    assert outcomes(read_archive(tmp_path / "a.warc.gz", outer)) == ["Anna met Bob.", "unpacks_too_far", "Eve left."]


def test_header_of_http_may_end_in_line_feeds_and_what_is_no_http_is_a_dead_letter(tmp_path: Path) -> None:
    head, _, http = warc_page(SHORT).removesuffix(b"\r\n\r\n").partition(b"\r\n\r\n")
    http = http.replace(b"\r\n", b"\n")
    head = head.rpartition(b" ")[0] + b" %d\r\n\r\n" % len(http)
    assert outcomes(read_archive(tmp_path / "a.warc", head + http + b"\r\n\r\n")) == ["Anna"]
    record = warc_record(SHORT, "response", "Content-Type: application/http\r\n")
    records = record + warc_page(b"\xff\xfe" * 10 + b"<p>\x81\xff") + EVE
    assert outcomes(read_archive(tmp_path / "a.warc", records)) == ["invalid_http", "invalid_encoding", "Eve left."]
