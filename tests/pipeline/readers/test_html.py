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
from concord.pipeline.readers.read_file import format_of, reader_for, readers

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
    "<div><a>Oslo</a> <a> Rome</a> · <a>Bonn</a></div>He saw <a>Ada</a> <a>L</a>": "Oslo|Rome|· Bonn|He saw Ada L",
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


def test_main_content_ends_blocks_as_well(tmp_path: Path) -> None:
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
    found = read_one(tmp_path / "a.html", content)
    assert isinstance(found, DeadLetter)
    assert found.error == "no_text"


@pytest.mark.slow
def test_without_the_extra_the_format_is_unknown_and_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_file, "_release", lambda name: "")
    available = readers.__wrapped__()
    monkeypatch.setattr(read_file, "readers", lambda: available)

    assert (format_of("a.html"), format_of("a.html", is_installed=False)) == (None, "html")
    with pytest.raises(InputError, match=r"pip install 'concord-annotate\[html\]'"):
        reader_for("html")
