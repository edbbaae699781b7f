"""Files of word processors: paragraphs, tables and notes; files that are damaged or hostile."""

import pytest
from concord_testing.documents import docx, odt, zipped

from concord.pipeline.config import ReaderConfig
from concord.pipeline.readers.base import FileReader
from concord.pipeline.readers.files import Decoded
from concord.pipeline.readers.office import DocxReader, OdtReader, RtfReader
from concord.pipeline.readers.records import RecordError

pytestmark = pytest.mark.slow

BOMB = '<?xml version="1.0"?><!DOCTYPE a [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]>'
EXTERNAL = '<!DOCTYPE a [<!ENTITY a SYSTEM "file:///etc/passwd">]>'
MANIFEST = "META-INF/manifest.xml"
DOCX = docx("<w:p><w:r><w:t>Ada met Charles.</w:t></w:r></w:p>")
RTF = rb"{\rtf1\ansi Ada met Charles.}"


def read(reader: FileReader, content: bytes, **settings: object) -> Decoded:
    return reader.extract_checked(content, ReaderConfig.from_mapping(settings))


def fault(reader: FileReader, content: bytes, **settings: object) -> RecordError:
    with pytest.raises(RecordError) as found:
        read(reader, content, **settings)
    return found.value


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

    assert found.text == "Ada met Charles\n\none\ntwo\tco\u00adop\n\nIn a box.\n\nRound it."
    assert found.parts == ()


def test_cells_are_paragraphs_and_notes_follow_the_text_as_parts() -> None:
    cells = "".join(f"<w:tc><w:p>{runs(text)}</w:p></w:tc>" for text in ("Ada King", "Charles Babbage"))
    marks = '<w:r><w:footnoteReference w:id="7"/></w:r><w:r><w:endnoteReference w:id="2"/></w:r>'
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
        == "Title\n\nAda   met Charles, and left.\nThen.\n\nIn a box.\n\nA picture.\n\nAda King\n\nCharles\n\nA note."
    )
    assert [str(part) for part in found.parts or ()] == ["endnote 1"]
    assert found.meta == '{"title":"On Ada"}'


def test_rtf_has_its_characters_in_every_way_in_which_they_are_written() -> None:
    fonts = rb"{\fonttbl{\f0\fcharset0 Arial;}{\f1\fcharset238 Arial;}}"
    link = rb'{\field{\*\fldinst{HYPERLINK "http://a.example"}}{\fldrslt{Charles}}}'
    written = rb"\f0 Caf\'e9, caf" + b"\xe9" + rb" \\cell \f1 \'9a\par \u-10179?\u-8704? "
    end = rb" left.\par Ada King\cell Charles\cell\row {\footnote gone} End.}"
    found = read(RtfReader(), rb"{\rtf1\ansi\ansicpg1252" + fonts + written + link + end)

    assert found.text == "Café, café \\cell š\n\n😀 Charles left.\n\nAda King\n\nCharles\n\nEnd."


def test_a_large_first_letter_belongs_to_its_paragraph() -> None:
    large = f'<w:p><w:pPr><w:framePr w:dropCap="drop"/></w:pPr>{runs("A")}</w:p>'
    assert read(DocxReader(), docx(f"{large}<w:p>{runs('da met')}</w:p><w:p>{runs('Charles.')}</w:p>")).text == (
        "Ada met\n\nCharles."
    )


def test_notes_without_a_text_around_them_are_the_text() -> None:
    note = f'<w:footnote w:id="1"><w:p>{runs("A note.")}</w:p></w:footnote>'
    found = read(DocxReader(), docx('<w:p><w:r><w:footnoteReference w:id="1"/></w:r></w:p>', footnotes=note))
    assert (found.text, [part.start for part in found.parts or ()]) == ("A note.", [0])


def test_a_document_type_alone_does_no_harm() -> None:
    content = zipped({"_rels/.rels": "<a/>", "word/document.xml": "<!DOCTYPE a><a/>"})
    assert read(DocxReader(), content).text == ""


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
        (DocxReader(), zipped({"a": "b"}), "incomplete"),
        (DocxReader(), DOCX[:-9], "unreadable"),
        (DocxReader(), docx("<w:p>"), "unreadable"),
        (DocxReader(), docx("<w:x>" * 300 + "</w:x>" * 300), "unreadable"),
        (DocxReader(), zipped({"_rels/.rels": "<a/>", "word/document.xml": f"{BOMB}<a>&b;</a>"}), "has_entities"),
        (DocxReader(), zipped({"_rels/.rels": "<a/>", "word/document.xml": f"{EXTERNAL}<a>&a;</a>"}), "has_entities"),
        (OdtReader(), b"", "unreadable"),
        (OdtReader(), zipped({MANIFEST: "<a/>"}), "incomplete"),
        (OdtReader(), zipped({MANIFEST: "<a/>", "content.xml": f"{BOMB}<a>&b;</a>"}), "has_entities"),
        (OdtReader(), zipped({MANIFEST: "<a><encryption-data/></a>", "content.xml": "?"}), "encrypted"),
        (RtfReader(), b"", "not_rtf"),
        (RtfReader(), RTF[:-1], "truncated"),
        (RtfReader(), rb"{\rtf1\ansi\ansicpg932 \'81}", "invalid_bytes"),
        (RtfReader(), rb"{\rtf1 \u99999999999 }", "unreadable"),
    ],
)
def test_files_that_cannot_be_read_say_why(reader: FileReader, content: bytes, code: str) -> None:
    assert fault(reader, content).code == code


@pytest.mark.parametrize("make", [docx, odt])
def test_zip_bombs_are_not_unpacked(make: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("concord.pipeline.readers.files.ALWAYS_UNPACKED_BYTES", 1000)
    reader, bomb = (DocxReader() if make is docx else OdtReader()), make(" " * 1_000_000)

    assert fault(reader, bomb).code == "unpacks_too_far"
    monkeypatch.setattr("concord.pipeline.readers.files.ALWAYS_UNPACKED_BYTES", 1 << 30)
    assert fault(reader, bomb, max_record_bytes=1000).code == "record_too_large"
    assert read(reader, bomb).text == ""


@pytest.mark.parametrize(
    "content",
    [
        rb"{\rtf1 " + rb"{\field{\*\fldinst{" * 30_000 + b"}",
        rb"{\rtf1{\fonttbl" + rb"\f1" * 60_000 + b"}}",
        rb"{\rtf1 " + b"{" * 200_000 + b"}",
    ],
)
def test_rtf_that_repeats_itself_takes_no_long_time(content: bytes) -> None:
    assert read(RtfReader(), content).text == ""
