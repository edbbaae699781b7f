"""TEI, ALTO and PAGE XML: the text that their markup says a page shows, in reading order, with its pages."""

import json
from pathlib import Path
from typing import Any

import pytest
from concord_testing.broken_files import read_all

from concord.pipeline.config import ReaderConfig
from concord.pipeline.documents import DeadLetter, Document


def read(path: Path, content: str | bytes, **config: Any) -> Document | DeadLetter:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    (found,) = read_all(path, "tei", ReaderConfig(**config))
    return found


def document(folder: Path, content: str | bytes, **config: Any) -> Document:
    found = read(folder / "a.xml", content, **config)
    assert isinstance(found, Document), found
    return found


def tei(body: str) -> str:
    return f'<TEI xmlns="http://www.tei-c.org/ns/1.0"><teiHeader/><text><body>{body}</body></text></TEI>'


def pages(found: Document) -> dict[str, str]:
    """Return the text of each page."""
    parts = found.parts or ()
    ends = [*(part.start for part in parts[1:]), len(found.text)]
    return {str(part): found.text[part.start : end].strip() for part, end in zip(parts, ends, strict=True)}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("<head>One</head><p>Anna\n  <hi>went</hi> on.</p>  <p>Bob.</p>", "One\n\nAnna went on.\n\nBob."),
        ("<lg><l>Anna went</l><l>on.</l></lg><p>Bob.</p>", "Anna went\non.\n\nBob."),
        ("<p>to Phila-<lb/>delphia,<lb/>he said</p>", "to Philadelphia,\nhe said"),
        ("<p>to Phila<lb break='no'/>delphia</p>", "to Philadelphia"),
        (
            "<p>to Phila-\n <lb break='no'/>delphia, to Bos\n<pb/><lb n='2' break='no'/>ton</p>",
            "to Philadelphia, to Boston",
        ),
        ("<p>Anna<note>A <hi>friend</hi>.</note> went.</p><p>Bob.</p>", "Anna went.\n\nA friend.\n\nBob."),
        ("<note>First.</note><p>Anna.</p>", "First.\n\nAnna."),
        ("<p><choice><sic>Ana</sic> <corr>Anna</corr></choice> went</p>", "Anna went"),
        ("<p><choice><abbr>Dr.</abbr></choice> Bob</p>", "Dr. Bob"),
        ("<p><app><rdg>Ana</rdg><lem>Anna</lem></app> went</p>", "Anna went"),
        ("<p>Anna <del>Bob</del><add>Eve</add></p><fw>THE BRIDGE 12</fw>", "Anna Eve"),
        ("<p><w>Good</w><w>day</w><pc>,</pc> <w>An</w><w join='left'>na</w></p>", "Good day, Anna"),
        ("<p><w part='I'>Phila</w><w part='F'>delphia</w></p>", "Philadelphia"),
        ("<p><w part='I'>Phila</w> <w>and</w> <w part='I'>Bos</w> <w part='F'>ton</w></p>", "Phila and Boston"),
        ("<p><w part='I'>Phila-</w>\n<lb/> <w part='F'>delphia</w> <w>Bos<lb/>ton</w></p>", "Philadelphia Boston"),
        ("<s><w join='right'>O'</w>\n<w>Brien</w>\n<pc join='left'>,</pc> <w>Eve</w></s>", "O'Brien, Eve"),
        ("<s><w>Anna</w><pc>,</pc><w>Eve</w></s>", "Anna, Eve"),
        ("<p><persName><forename>Anna</forename><surname>Lind</surname></persName>'s</p>", "Anna Lind's"),
        ("<p><hi>A</hi><persName><supplied>n</supplied><unclear>na</unclear></persName></p>", "Anna"),
        ("<p><seg><name>Anna</name></seg><note>N.</note><seg><name>Bob</name></seg></p>", "Anna Bob\n\nN."),
        ("<bibl>\n<author>Lind</author>\n<pubPlace>Rome</pubPlace></bibl>", "Lind\n\nRome"),
        ("<p><bibl><author>Lind</author>, <pubPlace>Rome</pubPlace></bibl></p>", "Lind, Rome"),
        ("<list><label>Anna</label><item>a queen</item></list><p>In <label>1.</label></p>", "Anna\n\na queen\n\nIn 1."),
        ("<u><seg>Go.</seg><seg>On <vocal><desc>cough</desc></vocal> now.</seg></u>", "Go.\n\nOn cough now."),
        ("<p>Bonn<ref type='foot'>1</ref>, Rome<ref>[2]</ref></p><note>C</note>", "Bonn 1, Rome [2]\n\nC"),
        ("<p>Berlin<hi rend='superscript'>1</hi> has 5 m<hi rend='sup'>2</hi></p>", "Berlin 1 has 5 m2"),
        (
            "<p>Ann<space/>Lind</p><figure><head>Fig. 1</head><figDesc>A tree</figDesc></figure>",
            "Ann Lind\n\nFig. 1\n\nA tree",
        ),
        ("<castList><castItem>Anna</castItem><castItem>Bob</castItem></castList>", "Anna\n\nBob"),
        ("<sp><speaker>Anna</speaker><p>Go <stage>(to Bob)</stage> on.</p></sp>", "Anna\n\nGo (to Bob) on."),
        ("<p>He said <quote>go</quote> to\u00a0Bob.</p>", "He said go to\u00a0Bob."),
        ("<table><row><cell>a</cell><cell>b</cell></row></table>", "a\n\nb"),
        ("<p><!-- no -->An<!-- no -->na<?no?> <![CDATA[& Bob]]></p>", "Anna & Bob"),
    ],
)
def test_elements_of_tei_are_as_on_a_page(tmp_path: Path, body: str, expected: str) -> None:
    assert document(tmp_path, tei(body)).text == expected


def test_pages_of_tei_begin_at_what_is_on_them(tmp_path: Path) -> None:
    body = (
        '<pb n="1"/><p>Anna went to Phila-<pb n="p. 2"/>delphia.<note>See<pb/>there.</note></p>'
        '<p><choice><orig><pb n="4"/>Ba</orig><reg>Bob</reg></choice> too.</p><pb n="5"/>'
    )

    found = document(tmp_path, tei(body))

    assert found.text == "Anna went to Philadelphia.\n\nSee\nthere.\n\nBob too."
    assert pages(found) == {
        "p. 1": "Anna went to Phila", "p. 2": "delphia.\n\nSee", "p. 3": "there.", "p. 4": "Bob too.", "p. 5": ""
    }  # fmt: skip


def test_meta_of_tei_is_in_its_header(tmp_path: Path) -> None:
    header = "<teiHeader><fileDesc><titleStmt><title>A <hi>Letter</hi></title><author>Ada<idno>12</idno></author>"
    whole = f"<TEI.2>{header}<author>Bob</author></titleStmt></fileDesc></teiHeader><text><p>Anna.</p></text></TEI.2>"

    assert json.loads(document(tmp_path, whole).meta or "") == {"title": "A Letter", "author": "Ada; Bob"}


def test_corpus_of_tei_is_one_document(tmp_path: Path) -> None:
    inner = "<TEI><text><group><text><p>{}</p></text></group></text></TEI>"

    assert (
        document(tmp_path, f"<teiCorpus>{inner.format('Anna')}{inner.format('Bob')}</teiCorpus>").text == "Anna\n\nBob"
    )


def test_elements_nested_deep_are_read_in_every_process(tmp_path: Path) -> None:
    body = tei("<div>" * 3000 + "<note>" * 300 + "Anna" + "</note>" * 300 + "</div>" * 3000)

    assert document(tmp_path, body).text == "Anna"


def alto(*blocks: str, order: str = "") -> str:
    texts = "".join(f'<TextBlock ID="b{number}">{block}</TextBlock>' for number, block in enumerate(blocks))
    page = f'<Page PHYSICAL_IMG_NR="7"><PrintSpace><ComposedBlock>{texts}</ComposedBlock></PrintSpace></Page>'
    return f'<alto xmlns="http://www.loc.gov/standards/alto/ns-v4#"><Layout>{order}{page}</Layout></alto>'


def line(*words: str) -> str:
    strings = (f'<String CONTENT="{word}"/>' for word in words)
    return f"<TextLine>{'<SP/>'.join(strings)}</TextLine>"


WHOLE = 'SUBS_CONTENT="Philadelphia"'
BROKEN = (
    f'<TextLine><String CONTENT="to"/><SP/><String CONTENT="Phila" SUBS_TYPE="HypPart1" {WHOLE}/><HYP CONTENT="-"/>'
    f'</TextLine><TextLine><String CONTENT="delphia" SUBS_TYPE="HypPart2" {WHOLE}/>'
    '<SP/><String CONTENT="soon"/></TextLine>'
)


def half(content: str, part: int, whole: str = "Philadelphia", *, hyphen: bool = True) -> str:
    """Return a line of one half of a word."""
    word = f'<String CONTENT="{content}" SUBS_TYPE="HypPart{part}" SUBS_CONTENT="{whole}"/>'
    return f"<TextLine>{word}{'<HYP/>' if part == 1 and hyphen else ''}</TextLine>"


@pytest.mark.parametrize(
    ("block", "joined", "apart"),
    [
        (line("Anna", "went") + line("on."), "Anna went on.", "Anna went\non."),
        (BROKEN, "to Philadelphia soon", "to Phila-\ndelphia soon"),
        (line("to", "Phila-") + line("delphia", "soon"), "to Philadelphia soon", "to Phila-\ndelphia soon"),
        (line("to", "Phila-") + line("Delphia", "soon"), "to Phila-Delphia soon", "to Phila-\nDelphia soon"),
        (line("Despo\u2e17") + line("tism"), "Despotism", "Despo\u2e17\ntism"),
        (half("(Phila", 1) + half("delphia),", 2), "(Philadelphia),", "(Phila-\ndelphia),"),
        (half("Phila-", 1, hyphen=False) + half("delphia", 2), "Philadelphia", "Phila-\ndelphia"),
        (half("Jean", 1, "Jean-Luc") + half("Luc", 2, "Jean-Luc"), "Jean-Luc", "Jean-\nLuc"),
        (half("Phila", 1) + half("delphia!", 2, "Philadelphia!"), "Philadelphia!", "Phila-\ndelphia!"),
        (half("(Phila", 1) + line("delphia),") + line("so"), "(Philadelphia), so", "(Phila-\ndelphia),\nso"),
        (half("Phila", 1) + line("delpha"), "Philadelphia delpha", "Phila-\ndelpha"),
        (half("Phila", 1) + half("don", 2, "London"), "Philadelphia don", "Phila-\ndon"),
        (half("Phila", 1) + line("so") + line("Bos-") + line("ton"), "Philadelphia so Boston", "Phila-\nso\nBos-\nton"),
        ('<TextLine><String CONTENT="a"/><String CONTENT="b"/></TextLine>', "a b", "a b"),
        ('<TextLine><String CONTENT="a"/><SP/><String CONTENT="b"/><String CONTENT=","/></TextLine>', "a b,", "a b,"),
    ],
)
def test_lines_of_alto_are_joined_or_not(tmp_path: Path, block: str, joined: str, apart: str) -> None:
    found = document(tmp_path, alto(block))

    assert (found.text, pages(found)) == (joined, {"p. 7": joined})
    assert document(tmp_path, alto(block), join_lines=False).text == apart


def test_blocks_of_alto_are_in_its_reading_order(tmp_path: Path) -> None:
    order = '<ReadingOrder><OrderedGroup><ElementRef REF="b2"/><ElementRef REF="b0"/></OrderedGroup></ReadingOrder>'
    blocks = [line("Bob."), line("12"), line("Anna.")]

    assert document(tmp_path, alto(*blocks)).text == "Bob.\n\n12\n\nAnna."
    assert document(tmp_path, alto(*blocks, order=order)).text == "Anna.\n\nBob.\n\n12"
    inner = "".join(f"<TextBlock>{block}</TextBlock>" for block in blocks[::2])
    page = f'<Page><TextBlock>{blocks[1]}</TextBlock><ComposedBlock ID="b0">{inner}</ComposedBlock></Page>'
    assert document(tmp_path, f"<alto>{order}<Layout>{page}</Layout></alto>").text == "Bob.\n\nAnna.\n\n12"


def test_words_that_are_broken_over_blocks_are_whole(tmp_path: Path) -> None:
    blocks = (half("Phila", 1), line("12"), half("delphia.", 2) + line("In", "Bos-"), line("ton,", "Bob"), line("Vor-"))

    found = document(tmp_path, alto(*blocks, line("Anna")))

    assert found.text == "Philadelphia.\n\n12\n\nIn Boston, Bob\n\nVor-\n\nAnna"


def test_many_pages_do_not_each_go_through_the_reading_order(tmp_path: Path) -> None:
    order, last = "<ElementRef REF='a'/>" * 30_000, f"<Page><TextBlock>{line('Anna')}</TextBlock></Page>"

    found = document(tmp_path, f"<alto>{order}<Layout>{'<Page/>' * 30_000}{last}</Layout></alto>")

    assert len(found.parts or ()) == 30_001


def text(content: str, index: int = 0) -> str:
    return f'<TextEquiv index="{index}"><Unicode>{content}</Unicode></TextEquiv>'


def region(name: str, content: str, kind: str = "paragraph") -> str:
    return f'<TextRegion id="{name}" type="{kind}">{content}</TextRegion>'


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (region("a", f"<TextLine>{text('Anna')}</TextLine><TextLine>{text('went.')}</TextLine>"), "Anna went."),
        (region("a", f"<TextLine><Word>{text('A')}</Word>{text('Anna')}</TextLine>{text('whole')}"), "Anna"),
        (region("a", f"<TextLine><Word>{text('Anna')}</Word><Word>{text('went')}</Word></TextLine>"), "Anna went"),
        (region("a", f"<TextLine>{text('Ama', 1)}{text('Anna')}</TextLine>"), "Anna"),
        (region("a", "<TextLine/>" + text("to Phila-\ndelphia")), "to Philadelphia"),
        (region("a", text("Anna")) + region("b", text("12"), "page-number"), "Anna"),
        (region("a", f"<TextLine><Word><Glyph>{text('A')}</Glyph><Glyph>{text('n')}</Glyph></Word></TextLine>"), "An"),
        (region("a", text("Anna\u00ac")) + region("b", text("lena, Bob")), "Annalena, Bob"),
        (region("a", region("b", text("Anna")) + region("c", text("Bob")) + text("Anna Bob")), "Anna\n\nBob"),
        (
            f"<TextRegion custom='structure {{type:header;}}'>{text('12')}</TextRegion>" + region("b", text("Bob")),
            "Bob",
        ),
        (
            f"<TableRegion><TableCell>{text('Anna')}</TableCell><TableCell>{text('Bob')}</TableCell></TableRegion>",
            "Anna\n\nBob",
        ),
        (f"<TableRegion id='t'>{region('a', text('Anna'))}{region('b', text('Bob'))}</TableRegion>", "Anna\n\nBob"),
        (
            '<ReadingOrder><OrderedGroup><RegionRefIndexed index="1" regionRef="a"/><OrderedGroupIndexed index="0">'
            '<RegionRefIndexed index="10" regionRef="c"/><RegionRefIndexed index="9" regionRef="b"/>'
            "</OrderedGroupIndexed></OrderedGroup></ReadingOrder>"
            + "".join(region(name, text(name)) for name in "abcd"),
            "b\n\nc\n\na\n\nd",
        ),
    ],
)
def test_regions_of_page_xml_are_in_reading_order(tmp_path: Path, content: str, expected: str) -> None:
    found = document(tmp_path, f"<PcGts><Page imageFilename='a.png'>{content}</Page></PcGts>")

    assert (found.text, pages(found)) == (expected, {"p. 1": expected})


@pytest.mark.parametrize(
    ("declared", "written", "expected"),
    [
        ("iso-8859-1", "cp1252", "cp1252"),
        ("gb2312", "gb18030", "gb18030"),
        ("shift_jis", "cp932", "cp932"),
        ("iso-8859-1", "utf-8", "utf-8"),
        ("utf-16", "utf-16", "utf-16"),
    ],
)
def test_encoding_is_the_declared_one(tmp_path: Path, declared: str, written: str, expected: str) -> None:
    name = "東京の橋" if written in ("cp932", "gb18030") else "Zoë, Chloë, Noël, Citroën"

    found = document(tmp_path, f'<?xml version="1.0" encoding="{declared}"?>{tei(name)}'.encode(written))

    assert (found.text, found.encoding) == (name, expected)


@pytest.mark.parametrize(
    ("dtd", "body", "expected"),
    [
        ('SYSTEM "tei.dtd"', "Zo&euml; &mdash; Bob", "Zoë — Bob"),
        ('[<!ATTLIST hi rend CDATA "superscript">]', "<p>Berlin<hi>1</hi></p>", "Berlin1"),
    ],
)
def test_entities_are_those_of_html_and_attributes_those_of_the_text(
    tmp_path: Path, dtd: str, body: str, expected: str
) -> None:
    assert document(tmp_path, f"<!DOCTYPE TEI {dtd}>{tei(body)}").text == expected


def entities(count: int) -> str:
    return '<!ENTITY a0 "Anna">' + "".join(
        f'<!ENTITY a{number} "{f"&a{number - 1};" * 10}">' for number in range(1, count)
    )


REFUSED: dict[str, tuple[str | bytes, str]] = {
    "cut": (tei("Anna")[:-3], "invalid_xml"),
    "empty": ("", "invalid_xml"),
    "no XML": ("Anna went.", "invalid_xml"),
    "another root": ("<mets/>", "unknown_xml"),
    "no text": ("<TEI><teiHeader/></TEI>", "no_text"),
    "wrong bytes": (tei("Zo").encode() + b"\xeb", "invalid_utf8"),
    "entities that grow": (f"<!DOCTYPE TEI [{entities(12)}]>{tei('&a11;')}", "invalid_xml"),
    "unknown entity": (f'<!DOCTYPE TEI SYSTEM "tei.dtd">{tei("&nothing;")}', "invalid_xml"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_text_or_would_grow_is_a_dead_letter(tmp_path: Path, name: str) -> None:
    content, error = REFUSED[name]

    found = read(tmp_path / "a.xml", content)

    assert isinstance(found, DeadLetter)
    assert (found.error, found.doc_id) == (error, "a.xml")


@pytest.mark.parametrize("entity", ['<!ENTITY x SYSTEM "{}">', '<!ENTITY % x SYSTEM "{}"> %x; <!ENTITY y "">'])
def test_no_other_file_is_opened(tmp_path: Path, entity: str) -> None:
    (tmp_path / "secret").write_text("secret")

    found = read(tmp_path / "a.xml", f"<!DOCTYPE TEI [{entity.format(tmp_path / 'secret')}]>{tei('Anna &x;')}")

    assert isinstance(found, DeadLetter)
    assert (found.error, "secret" in found.message) == ("invalid_xml", False)
