"""Files of word processors and books: paragraphs, tables, notes and chapters; files that are damaged or hostile."""

import json
from itertools import pairwise
from pathlib import Path
from zipfile import ZipFile

import pytest
from concord_testing.broken_files import read_all
from concord_testing.documents import docx, epub, odt, unzipped, zipped

from concord.pipeline.config import ReaderConfig
from concord.pipeline.documents import DeadLetter, Document
from concord.pipeline.readers import files
from concord.pipeline.readers.base import FileReader, extract_checked
from concord.pipeline.readers.files import Decoded
from concord.pipeline.readers.office import DocxReader, EpubReader, OdtReader, RtfReader
from concord.pipeline.readers.records import RecordError

pytestmark = pytest.mark.slow

ENTITIES = "".join(f'<!ENTITY {name} "{20 * f"&{before};"}">' for before, name in pairwise("abcdefgh"))
BOMB = f'<!DOCTYPE a [<!ENTITY a "{"a" * 100}">{ENTITIES}]>'
EXTERNAL = '<!DOCTYPE a [<!ENTITY a SYSTEM "file:///etc/passwd">]>'
MANIFEST = "META-INF/manifest.xml"
DOCX = docx("<w:p><w:r><w:t>Ada met Charles.</w:t></w:r></w:p>")
RTF = rb"{\rtf1\ansi Ada met Charles.}"


def read(reader: FileReader, content: bytes, **settings: object) -> Decoded:
    return extract_checked(reader.extract, content, ReaderConfig.from_mapping(settings), "file")


def fault(reader: FileReader, content: bytes, **settings: object) -> RecordError:
    with pytest.raises(RecordError) as found:
        read(reader, content, **settings)
    return found.value


def word(document: str | bytes) -> bytes:
    return zipped({"word/document.xml": document})


def runs(*texts: str) -> str:
    return "".join(f'<w:r><w:t xml:space="preserve">{text}</w:t></w:r>' for text in texts)


def test_docx_has_what_the_pages_show() -> None:
    old_box = f"<mc:Fallback><w:p>{runs('again')}</w:p></mc:Fallback>"
    choice = f"<mc:Choice><w:p>{runs('In a box.')}</w:p></mc:Choice>{old_box}"
    box = f"<w:r><mc:AlternateContent>{choice}</mc:AlternateContent></w:r>"
    changes = f"<w:ins>{runs('met ')}</w:ins><w:del>{runs('never ')}<w:r><w:delText>saw</w:delText></w:r></w:del>"
    field = "<w:r><w:instrText>HYPERLINK x</w:instrText></w:r><w:hyperlink><w:r><w:t>Charles</w:t></w:r></w:hyperlink>"
    tab = "<w:pPr><w:tabs><w:tab/></w:tabs></w:pPr>"
    breaks = "<w:r><w:t>one</w:t><w:br/><w:t>two</w:t><w:tab/><w:t>co</w:t><w:softHyphen/><w:t>op</w:t></w:r>"
    control = f"<w:sdt><w:sdtContent><w:p>{breaks}</w:p></w:sdtContent></w:sdt>"
    body = f"<w:p>{tab}{runs('Ada ')}{changes}{field}</w:p><w:p/>{control}"

    found = read(DocxReader(), docx(f"{body}<w:p>{box}{runs('Round it.')}</w:p>"))

    assert found.text == "Ada met Charles\n\none\ntwo\tco\u00adop\n\nRound it.\n\nIn a box."
    assert found.parts == ()


def test_cells_are_paragraphs_and_notes_follow_the_text_as_parts() -> None:
    cells = "".join(f"<w:tc><w:p>{runs(text)}</w:p></w:tc>" for text in ("Ada King", "Charles Babbage"))
    marks = '<w:r><w:footnoteReference w:id="7"/></w:r><w:r><w:endnoteReference w:id="2"/></w:r>' * 3
    notes = {
        f"{kind}notes": f'<w:{kind}note w:id="0"/><w:{kind}note w:id="{number}"><w:p>{runs(text)}</w:p></w:{kind}note>'
        for kind, number, text in (("foot", 7, "A foot."), ("end", 2, "An end."))
    }
    body = f"<w:p>{runs('So')}{marks}{runs(' it is.')}</w:p><w:tbl><w:tr>{cells}</w:tr></w:tbl>"

    found = read(DocxReader(), docx(body, **notes))

    assert found.text == "So it is.\n\nAda King\n\nCharles Babbage\n\nA foot.\n\nAn end."
    assert [(part.label, found.text[part.start :][:5]) for part in found.parts or ()] == [
        ("footnote 1", "A foo"),
        ("endnote 2", "An en"),
    ]


def test_odt_has_what_the_pages_show() -> None:
    note = "<text:note-citation>1</text:note-citation><text:note-body><text:p>A note.</text:p></text:note-body>"
    cells = "".join(f"<table:table-cell><text:p>{text}</text:p></table:table-cell>" for text in ("Ada King", "Charles"))
    box = "<text-box><text:p>In a box.</text:p></text-box>"
    picture = f'<text:p>A <x xmlns="x"><title>A ship</title>\n<desc>in fog</desc>{box}</x>picture.</text:p>'
    found = read(
        OdtReader(),
        odt(
            "<text:tracked-changes><text:p>gone</text:p></text:tracked-changes><text:h>Title</text:h>"
            '<text:p>Ada<text:s text:c="3"/>met\n  <text:span>Charles</text:span>'
            f'<text:note text:note-class="endnote">{note}</text:note>, and<office:annotation><text:p>no</text:p>'
            "</office:annotation> left.<text:line-break/>Then.</text:p>"
            f"{picture}<table:table><table:table-row>{cells}</table:table-row></table:table>",
            meta='<m xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>On Ada</dc:title><dc:creator/></m>',
        ),
    )

    assert (
        found.text
        == "Title\n\nAda met Charles, and left.\nThen.\n\nA picture.\n\nIn a box.\n\nAda King\n\nCharles\n\nA note."
    )
    assert [str(part) for part in found.parts or ()] == ["endnote 1"]
    assert found.meta == '{"title":"On Ada"}'


def test_rtf_has_its_characters_in_every_way_in_which_they_are_written() -> None:
    fonts = rb"{\fonttbl{\f0\fcharset0 Arial;}{\f1\fcharset238 Arial;}}"
    link = rb'{\field{\*\fldinst{HYPERLINK "http://a.example"}}{\fldrslt{Charles}}}'
    written = rb"\f0 Caf\'e9, caf" + b"\xe9" + rb" \\cell \f1 \'9a\par \u-10179?\u-8704? "
    end = rb" left.\par Ada King\cell Charles\cell\row {\*\footnote\ftnalt An end.}{\footnote A foot.} End.}"
    found = read(RtfReader(), rb"{\rtf1\ansi\ansicpg1252" + fonts + written + link + end)

    assert found.text == "Café, café \\cell š\n\n😀 Charles left.\n\nAda King\n\nCharles\n\nEnd.\n\nAn end.\n\nA foot."
    assert [str(part) for part in found.parts or ()] == ["endnote 1", "footnote 2"]


STYLES = (
    '<w:style w:styleId="Unseen"><w:rPr><w:vanish/></w:rPr></w:style>'
    '<w:style w:styleId="Derived"><w:basedOn w:val="Unseen"/></w:style>'
    '<w:style w:styleId="Seen"><w:basedOn w:val="Unseen"/><w:rPr><w:vanish w:val="0"/></w:rPr></w:style>'
    '<w:style w:styleId="Loop"><w:basedOn w:val="Loop"/></w:style>'
    '<w:style w:styleId="Mark"><w:rPr><w:vertAlign w:val="superscript"/></w:rPr></w:style>'
)
RAISED = '<w:vertAlign w:val="superscript"/>'


def field(*kinds: str) -> str:
    return "".join(f'<w:r><w:fldChar w:fldCharType="{kind}"/></w:r>' for kind in kinds)


def run(text: str, properties: str) -> str:
    return f'<w:r><w:rPr>{properties}</w:rPr><w:t xml:space="preserve">{text}</w:t></w:r>'


def paragraph(content: str, properties: str = "") -> str:
    return f"<w:p><w:pPr>{properties}</w:pPr>{content}</w:p>"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (paragraph(run("no", "<w:vanish/>") + run("yes", '<w:vanish w:val="false"/>') + runs("!")), "yes!"),
        (paragraph(run("no", '<w:rStyle w:val="Derived"/>') + run("yes", '<w:rStyle w:val="Loop"/>')), "yes"),
        (paragraph(runs("no"), '<w:pStyle w:val="Unseen"/>') + paragraph(runs("a"), '<w:pStyle w:val="Seen"/>'), "a"),
        (paragraph(runs("A"), '<w:framePr w:dropCap="drop"/>') + paragraph(runs("da met")), "Ada met"),
        (paragraph(run("no", "<w:vanish/>").replace("</w:r>", f"<w:box>{paragraph(runs('no'))}</w:box></w:r>")), ""),
        (paragraph(runs("Berlin") + run("9", RAISED) + runs("m") + run("2", RAISED)), "Berlin 9m2"),
        (paragraph('<w:r><w:t>Pra<!-- a comment -->gue</w:t><w:br w:type="page"/><w:t>Us</w:t></w:r>'), "Prague\nUs"),
        (paragraph(runs("Berlin") + run("9", '<w:rStyle w:val="Mark"/>') + runs("!")), "Berlin 9!"),
        (paragraph(f"{field('begin')}{runs('no')}{field('begin', 'separate')}{runs('no')}{field('end', 'separate')}"
                   f"{runs('yes')}{field('end')}{field('begin')}") + paragraph(runs("so")), "yes\n\nso"),
        (paragraph(f"<w:r><w:ruby><w:rt>{runs('no')}</w:rt><w:rubyBase>{runs('a')}</w:rubyBase></w:ruby></w:r>"), "a"),
    ],
)  # fmt: skip
def test_docx_has_what_is_shown_and_no_marks_of_notes(body: str, text: str) -> None:
    assert read(DocxReader(), docx(body, styles=STYLES)).text == text


@pytest.mark.parametrize(
    ("font", "code", "text"),
    [
        ("Arial", "0158", "Ř"),
        ("Arial", "F0E9", "é"),
        ("Symbol", "F061", "α"),
        ("Wingdings", "F04A", ""),
        ("Pictures", "F04A", ""),
        ("Cyrillic", "F0E9", "й"),
    ],
)
def test_symbols_of_fonts_are_the_letters_that_they_show(font: str, code: str, text: str) -> None:
    symbol = f'<w:r><w:sym w:font="{font}" w:char="{code}"/></w:r>'
    own = f'<w:r><w:rPr><w:rFonts w:ascii="{font}"/></w:rPr><w:t>&#x{code};</w:t></w:r>'
    fonts = "".join(
        f'<w:font w:name="{name}"><w:charset w:val="{number}"/></w:font>'
        for name, number in (("Pictures", "02"), ("Cyrillic", "CC"))
    )
    found = read(DocxReader(), docx(f"<w:p>{runs('a')}{symbol}{own}{runs('b')}</w:p>", fontTable=fonts))
    assert found.text == f"a{text}{text}b"


def including(content: bytes | str, name: str = "c") -> bytes:
    """Return a Word file that includes another file in place of a paragraph."""
    office = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    body = f'{paragraph(runs("Before."))}<w:altChunk xmlns:r="{office}" r:id="x"/>{paragraph(runs("After."))}'
    link = f'<Relationships><Relationship Id="x" Type="{office}/aFChunk" Target="/word/{name}"/></Relationships>'
    return zipped({**unzipped(docx(body)), "word/_rels/document.xml.rels": link, f"word/{name}": content})


MHT = """MIME-Version: 1.0
Content-Type: multipart/related; boundary=b

--b
Content-Type: text/html; charset=koi8-r
Content-Transfer-Encoding: quoted-printable

<p>=E1=C4=C1
--b--
"""


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("<p>Ada.", "Ada."),
        (RTF, "Ada met Charles."),
        (DOCX, "Ada met Charles."),
        (MHT, "Ада"),
    ],
)
def test_what_a_docx_includes_is_read_where_it_stands(content: bytes | str, text: str) -> None:
    found = read(DocxReader(), including(content))
    assert (found.text, found.lost) == (f"Before.\n\n{text}\n\nAfter.", ())


def test_what_a_docx_includes_and_cannot_be_read_is_said() -> None:
    found = read(DocxReader(), including(b"PK"))
    assert (found.text, [lost.error for lost in found.lost]) == ("Before.\n\nAfter.", ["unreadable"])


def test_missing_notes_are_said() -> None:
    found = read(DocxReader(), docx(f'<w:p>{runs("Ada.")}<w:r><w:endnoteReference w:id="1"/></w:r></w:p>'))
    assert found.text == "Ada."
    assert "word/endnotes.xml" in found.lost[0].message


def test_odt_leaves_out_what_is_not_shown() -> None:
    style = 'xmlns:style="urn:oasis:names:tc:opendocument:xmlns:style:1.0"'
    styles = "".join(
        f'<style:style {style} style:family="{family}" style:name="{name}" style:parent-style-name="{parent}">'
        f"<style:text-properties {properties}/></style:style>"
        for family, name, parent, properties in (
            ("text", "Unseen", "", 'text:display="none"'),
            ("paragraph", "Derived", "Base", ""),
            ("text", "Raised", "", 'style:text-position="super 58%"'),
        )
    )
    common = (
        f'<a xmlns:office="urn:oasis:names:tc:opendocument:xmlns:office:1.0" {style} '
        'xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0"><office:styles>'
        '<style:style style:family="paragraph" style:name="Base"><style:text-properties text:display="none"/>'
        "</style:style></office:styles></a>"
    )
    shown = (
        '<text:p text:style-name="Unseen">Keller<text:span text:style-name="Raised">3</text:span>'
        '<text:span text:style-name="Unseen">no</text:span><text:hidden-text>no</text:hidden-text> met</text:p>'
    )
    hidden = (
        '<text:p text:style-name="Derived">no</text:p><text:p>no<text:hidden-paragraph text:is-hidden="true"/></text:p>'
        '<text:section text:display="none"><text:p>no</text:p></text:section>'
        '<text:section text:is-hidden="true"><text:p>no</text:p></text:section>'
    )
    ruby = "<text:ruby-base>base</text:ruby-base><text:ruby-text>no</text:ruby-text>"
    found = read(
        OdtReader(), odt(f"{styles}{shown}{hidden}<text:p><text:ruby>{ruby}</text:ruby></text:p>", styles=common)
    )
    assert found.text == "Keller 3 met\n\nbase"


FONTS = (
    rb"{\fonttbl{\f0\fnil\fcharset238 Arial;}{\f1\fcharset128{\*\falt Other} Gothic;}{\f2\fcharset2 Symbol;}"
    rb"{\f3\fcharset2 Wingdings;}{\f4\fcharset0 Arial;}}"
)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (rb"\deff0" + FONTS + rb"\'f8{\f4 \'f8}\f4\'f8\plain\'f8", "řøøř"),
        (rb"\deff4" + FONTS + rb"{\f1\'83A\'83\\\'93\b\'fa}{\f2 ab}{\f3 J}.", "アソ日αβ."),
        (FONTS + rb"\f0\u-3848?\f3\u-3848?", "ř"),
        (rb"\mac{\fonttbl{\f0\fcharset0 A;}}\f0 \'8e", "é"),
        (rb"\pca\'82", "é"),
        (rb"\ansi\ansicpg1251\'df", "Я"),
        (rb"\uc2\u345\'c5\'99{\uc0\u345}\uc1\u345\'3f\u345{}a\u-10179?\u-8704?", "řřřřa😀"),
        (rb"a{\v no}\v no\v0 b{\deleted no}\v no\plain c", "abc"),
        (rb"{\field{\*\fldinst no}{\fldrslt yes}}{\pict\bin3 }}}no}{\*\new no}{\info{\title no}}{\header no}", "yes"),
        (rb"{\b\*\cs1 an}{\upr{no}{\*\ud{yes}}}{\object{\*\objdata 00}{\result yes}}", "anyesyes"),
        (rb"a{\shp{\*\shpinst{\sp{\sv no}}{\shptxt box\par}}{\shprslt no}}b\par c", "a\n\nbox\n\nb\n\nc"),
        (rb"{\listtext 1.\tab}a\tab b\line c\page d\nestcell e\~f\_g", "a\tb\nc\n\nd\n\ne\u00a0f\u2011g"),
        (rb"Keller{\super\chftn{\footnote\ftnalt {\super\chftn} Note.}}{\super 2} m{\up6 2}", "Keller 2 m2\n\nNote."),
    ],
)  # fmt: skip
def test_rtf_has_what_is_shown_in_the_letters_of_its_fonts(body: bytes, text: str) -> None:
    assert read(RtfReader(), rb"{\rtf1" + body + b"}").text == text


def test_rtf_may_go_on_after_its_end_and_have_bytes_that_are_replaced() -> None:
    assert read(RtfReader(), RTF + b" sent by mail").text == "Ada met Charles."
    replaced = read(RtfReader(), rb"{\rtf1\ansi\ansicpg932 a\'81}", errors="replace")
    assert (replaced.text, replaced.replaced) == ("a\ufffd", 1)
    assert read(RtfReader(), rb"{\rtf1{\pict\bin}Ada}").text == "Ada"


@pytest.mark.parametrize(
    ("reader", "content", "code"),
    [
        (DocxReader(), b"", "unreadable"),
        (DocxReader(), b"\xd0\xcf\x11\xe0 old or encrypted", "encrypted"),
        (DocxReader(), zipped({"a": "b"}), "unreadable"),
        (DocxReader(), DOCX[:-9], "unreadable"),
        (DocxReader(), docx("<w:p>"), "unreadable"),
        (DocxReader(), docx("<w:x>" * 300 + "</w:x>" * 300), "unreadable"),
        (DocxReader(), word(f"{BOMB}<a>&h;</a>"), "unreadable"),
        (DocxReader(), word(f"{EXTERNAL}<a>&a;</a>"), "unreadable"),
        (OdtReader(), b"", "unreadable"),
        (OdtReader(), zipped({MANIFEST: "<a/>"}), "unreadable"),
        (OdtReader(), zipped({MANIFEST: "<a><encryption-data/></a>", "content.xml": "?"}), "encrypted"),
        (RtfReader(), b"", "not_rtf"),
        (RtfReader(), RTF[:-1], "truncated"),
        (RtfReader(), rb"{\rtf1\ansi\ansicpg932 \'81}", "invalid_bytes"),
        (RtfReader(), rb"{\rtf1{\fonttbl{\f0\fcharset83 A;}}\f0 \'e9}", "unreadable"),
    ],
)
def test_files_that_cannot_be_read_say_why(reader: FileReader, content: bytes, code: str) -> None:
    assert fault(reader, content).code == code


@pytest.mark.parametrize(
    "content",
    [
        rb"{\rtf1 " + b"{" * 200_000 + b"}",
        rb"{\rtf1 " + rb"{\FIELD{\*\FLDINST{ " * 30_000 + b"}",
        rb"{\rtf1{\fonttbl" + rb"{\f1\fcharset0 " * 60_000 + b"}",
        rb"{\rtf1 " + rb"{\shp{\*\shpinst{\shptxt" * 30_000 + b"}",
    ],
)
def test_rtf_that_repeats_itself_takes_no_long_time(content: bytes) -> None:
    assert read(RtfReader(), content).text == ""


HEAD = '<?xml version="1.0"?><html xmlns="http://www.w3.org/1999/xhtml"><head>'
ONE = f"{HEAD}<title/></head><body><h1>First</h1><p>Anna<br/>went.<a id='x'/></p></body></html>"
TWO = f"{HEAD}<title>The bridge</title><script src='a.js'/></head><body><p>Bob.</p></body></html>"


def read_book(path: Path, content: bytes) -> list[Document | DeadLetter]:
    path.write_bytes(content)
    return read_all(path, "epub", ReaderConfig())


def test_chapters_are_parts_named_by_the_contents(tmp_path: Path) -> None:
    blank = f"{HEAD}<title>Cover</title></head><body><img src='a.png'/></body></html>"

    (found,) = read_book(
        tmp_path / "a.epub", epub(blank, ONE, TWO, TWO, toc='<a href="c2.xhtml#x">Chapter  <b>1</b></a>')
    )

    assert isinstance(found, Document)
    assert found.text == "First\n\nAnna\nwent.\n\nBob.\n\nBob."
    assert [(str(part), found.text[part.start :][:5]) for part in found.parts or ()] == [
        ("Chapter 1", "First"),
        ("The bridge", "Bob.\n"),
        ("The bridge", "Bob."),
    ]
    assert json.loads(found.meta or "") == {"title": "Letters & Diaries", "author": "Ada"}


def test_older_table_of_contents_is_read(tmp_path: Path) -> None:
    ncx = (
        '<ncx><navMap><navPoint><navLabel><text>Part I</text></navLabel><content src="c1.xhtml"/><navPoint><navLabel>'
        '<text>The town</text></navLabel><content src="c2.xhtml#a"/></navPoint></navPoint></navMap></ncx>'
    )
    content = epub(ONE, TWO, files={"in/nav.xhtml": ncx})

    (found,) = read_book(tmp_path / "a.epub", content)

    assert isinstance(found, Document)
    assert [str(part) for part in found.parts or ()] == ["Part I", "The town"]


ENCRYPTED = '<encryption><CipherReference URI="in/c2.xhtml"/><CipherReference URI="in/a%20font.otf"/></encryption>'


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (epub(ONE, None, TWO), "unreadable"),
        (epub(ONE, b"<p>Zo\xeb", TWO), "invalid_utf8"),
        (epub(ONE, TWO, TWO, files={"META-INF/encryption.xml": ENCRYPTED}), "encrypted"),
    ],
)
def test_chapter_that_cannot_be_read_costs_itself(tmp_path: Path, content: bytes, error: str) -> None:
    (found,) = read_book(tmp_path / "a.epub", content)

    assert isinstance(found, Document)
    assert found.text == "First\n\nAnna\nwent.\n\nBob."
    assert [(lost.number, lost.error) for lost in found.lost] == [(2, error)]


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", "unreadable"),
        (epub(ONE)[:-30], "unreadable"),
        (b"no archive", "unreadable"),
        (epub(files={"META-INF/container.xml": "<container/>"}), "unreadable"),
        (epub(None), "unreadable"),
        (epub(files={"in/a.opf": "<package>"}), "unreadable"),
        (epub(ONE, files={"in/a.opf": f"{EXTERNAL}<package>&a;</package>"}), "unreadable"),
        (epub(ONE, TWO, files={"META-INF/encryption.xml": ENCRYPTED.replace("a%20font.otf", "c1.xhtml")}), "encrypted"),
    ],
)
def test_file_without_a_readable_chapter_is_a_dead_letter(tmp_path: Path, content: bytes, error: str) -> None:
    (found,) = read_book(tmp_path / "a.epub", content)

    assert isinstance(found, DeadLetter)
    assert (found.doc_id, found.error) == ("a.epub", error)


@pytest.mark.parametrize("what", ["properties='nav' media-type=''", "media-type='application/xhtml+xml'"])
def test_no_file_is_unpacked_again_for_each_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    unpacked = list[object]()
    read_it = ZipFile.read

    def noted(archive: ZipFile, name: str) -> bytes:
        unpacked.append(name)
        return read_it(archive, name)

    monkeypatch.setattr(ZipFile, "read", noted)
    numbers = range(2, 40)
    items = "".join(f"<item id='c{number}' href='c1.xhtml#{number}' {what}/>" for number in (1, *numbers))
    spine = "".join(f"<itemref idref='c{number}'/>" for number in (1, *numbers))
    package = f"<package><manifest>{items}</manifest><spine>{spine}</spine></package>"

    read_book(tmp_path / "a.epub", epub(ONE, files={"in/a.opf": package}))

    assert unpacked.count("in/c1.xhtml") == 1


HUGE = f"<p>{'a' * 500_000}</p>"


@pytest.mark.parametrize(
    ("reader", "bomb", "lost"),
    [
        (DocxReader(), docx(HUGE), []),
        (OdtReader(), odt(HUGE), []),
        (EpubReader(), epub(HUGE), []),
        (EpubReader(), epub(HUGE, HUGE), ["unpacks_too_far"]),
    ],
)
def test_bombs_are_not_unpacked(
    reader: FileReader, bomb: bytes, lost: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "ALWAYS_UNPACKED_BYTES", 200_000)
    assert fault(reader, bomb).code == "unpacks_too_far"
    monkeypatch.setattr(files, "ALWAYS_UNPACKED_BYTES", 600_000)
    assert [fault.error for fault in read(reader, bomb).lost] == lost
