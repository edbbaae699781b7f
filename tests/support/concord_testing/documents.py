"""Small documents of the formats whose text is extracted, made here so that no binary file is stored."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from types import MappingProxyType
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

BROKEN_PAGE = None
"""A page that no program can read."""


PICTURE = "a page that is a picture"

Line = tuple[float, float, str]


def pdf(*pages: Sequence[Line] | str | bytes | None, trailer: str = "", info: str = "") -> bytes:
    """Return a PDF file with the lines of each page, given by the place of their first letter, in points, and text.

    The origin is the lower left corner of a page of 600 by 800 points; letters are 10 points high, in WinAnsi.

    Args:
        pages: of lines, ``PICTURE``, ``BROKEN_PAGE``, or a content stream.
        trailer: further entries of the trailer.
        info: the entries of what the file says of itself.
    """
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(pages)))
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        f"<</Type/Pages/Count {len(pages)}/Kids[{kids}]>>".encode(),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>",
    ]
    for number, lines in enumerate(pages):
        if lines is BROKEN_PAGE:
            objects += [b"<</Type/Nothing>>", b"null"]
            continue
        if isinstance(lines, bytes):
            stream = lines
        elif isinstance(lines, str):
            stream = b"600 0 0 800 0 0 cm BI /W 1 /H 1 /CS /G /BPC 8 ID 0 EI"
        else:
            drawn = "".join(f"1 0 0 1 {x} {y} Tm ({_escaped(text)}) Tj\n" for x, y, text in lines)
            stream = f"BT /F1 10 Tf\n{drawn}ET".encode("cp1252")
        objects += [
            b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 600 800]/Resources<</Font<</F1 3 0 R>>>>/Contents %d 0 R>>"
            % (5 + 2 * number),
            b"<</Length %d>>stream\n%s\nendstream" % (len(stream), stream),
        ]
    if info:
        objects.append(f"<<{info}>>".encode())
        trailer += f"/Info {len(objects)} 0 R"
    content, places = b"%PDF-1.7\n", []
    for number, item in enumerate(objects, start=1):
        places.append(len(content))
        content += b"%d 0 obj\n%s\nendobj\n" % (number, item)
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    end = f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}trailer\n<</Size {len(objects) + 1}/Root 1 0 R"
    return content + f"{end}{trailer}>>\nstartxref\n{len(content)}\n%%EOF\n".encode()


def lines(*texts: str, left: float = 72, top: float = 700, step: float = 12) -> list[Line]:
    """Return lines of text one below the other, for ``pdf``."""
    return [(left, top - step * number, text) for number, text in enumerate(texts)]


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("(", "\\(").replace(")", "\\)")


def zipped(files: Mapping[str, str | bytes]) -> bytes:
    """Return a zip archive of files, by name, without their dates: equal files give equal bytes."""
    buffer = BytesIO()
    with ZipFile(buffer, "w", ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(ZipInfo(name), content, ZIP_DEFLATED)
    return buffer.getvalue()


def unzipped(content: bytes) -> dict[str, bytes]:
    """Return the files of a zip archive, by name."""
    with ZipFile(BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def docx(body: str, **files: str) -> bytes:
    """Return a Word file, given the XML of its body and that of other parts by name, as in ``footnotes``."""
    office = "http://schemas.openxmlformats.org"
    word = f'xmlns:w="{office}/wordprocessingml/2006/main" xmlns:mc="{office}/markup-compatibility/2006"'
    link = f'<Relationship Id="a" Type="{office}/officeDocument/2006/relationships/officeDocument" Target="{{}}"/>'
    links = (
        f'<Relationships xmlns="{office}/package/2006/relationships">{link.format("word/document.xml")}</Relationships>'
    )
    parts = {f"word/{name}.xml": f"<w:{name} {word}>{xml}</w:{name}>" for name, xml in files.items()}
    main = f"<w:document {word}><w:body>{body}</w:body></w:document>"
    return zipped({"_rels/.rels": links, "word/document.xml": main, **parts})


def odt(body: str, **files: str) -> bytes:
    """Return an OpenDocument file, given the XML of its text and further files by name without ``.xml``."""
    names = " ".join(
        f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"' for name in ("office", "text", "table")
    )
    text = f"<office:body><office:text>{body}</office:text></office:body>"
    styles = '<n:text xmlns:n="urn:oasis:names:tc:opendocument:xmlns:datastyle:1.0">a style</n:text>'
    content = f"<office:document-content {names}>{styles}{text}</office:document-content>"
    manifest = '<manifest xmlns="urn:oasis:names:tc:opendocument:xmlns:manifest:1.0"/>'
    others = {f"{name}.xml": xml for name, xml in files.items()}
    return zipped({"META-INF/manifest.xml": manifest, "content.xml": content, **others})


def epub(*chapters: str | bytes | None, files: Mapping[str, str] = MappingProxyType({}), toc: str = "") -> bytes:
    """Return a book whose chapters are pages of XHTML; None is one whose file is missing.

    Args:
        files: further files, or others in place of its own, by their paths.
        toc: the table of contents, as links of XHTML to ``c1.xhtml`` and so on.
    """
    numbers = range(1, len(chapters) + 1)
    items = "".join(f'<item id="c{n}" href="c{n}.xhtml" media-type="application/xhtml+xml"/>' for n in numbers)
    spine = "".join(f'<itemref idref="c{n}"/>' for n in numbers)
    package = (
        '<package xmlns="http://www.idpf.org/2007/opf" xmlns:dc="http://purl.org/dc/elements/1.1/"><metadata>'
        f"<dc:title>Letters &amp; Diaries</dc:title><dc:creator>Ada</dc:creator></metadata><manifest>{items}"
        '<item id="nav" href="nav.xhtml" media-type="application/xhtml+xml" properties="nav"/></manifest>'
        f"<spine>{spine}</spine></package>"
    )
    return zipped(
        {
            "META-INF/container.xml": '<container><rootfiles><rootfile full-path="in/a.opf"/></rootfiles></container>',
            "in/a.opf": package,
            "in/nav.xhtml": f'<html xmlns="http://www.w3.org/1999/xhtml"><body><nav>{toc}</nav></body></html>',
            **{f"in/c{n}.xhtml": page for n, page in zip(numbers, chapters, strict=True) if page is not None},
            **files,
        }
    )


def warc_page(
    page: bytes, *, media_type: str = "text/html", headers: str = "", status: str = "200 OK", url: str = "http://a.org/"
) -> bytes:
    """Return the record of a web archive for a page that a server has sent; ``headers`` are further ones of HTTP."""
    http = f"HTTP/1.1 {status}\r\nContent-Type: {media_type}\r\n{headers}\r\n".encode() + page
    return warc_record(
        http, "response", f"WARC-Target-URI: {url}\r\nContent-Type: application/http;msgtype=response\r\n"
    )


def warc_record(block: bytes, kind: str, headers: str = "") -> bytes:
    """Return a record of a web archive."""
    named = f"WARC-Type: {kind}\r\nWARC-Date: 2021-05-08T10:00:00Z\r\n{headers}Content-Length: {len(block)}\r\n"
    return f"WARC/1.0\r\n{named}\r\n".encode() + block + b"\r\n\r\n"
