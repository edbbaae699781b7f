"""Small documents of the formats whose text is extracted, made here so that no binary file is stored."""

from collections.abc import Sequence

BROKEN_PAGE = None
"""A page that no program can read."""


def pdf(*pages: Sequence[tuple[float, float, str]] | None, trailer: str = "") -> bytes:
    """Return a PDF file with the lines of each page, given by the place of their first letter, in points, and text.

    The origin is the lower left corner of a page of 600 by 800 points; letters are 10 points high, in WinAnsi.

    Args:
        trailer: further entries of the trailer.
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
        drawn = "".join(f"1 0 0 1 {x} {y} Tm ({_escaped(text)}) Tj\n" for x, y, text in lines)
        stream = f"BT /F1 10 Tf\n{drawn}ET".encode("cp1252")
        objects += [
            b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 600 800]/Resources<</Font<</F1 3 0 R>>>>/Contents %d 0 R>>"
            % (5 + 2 * number),
            b"<</Length %d>>stream\n%s\nendstream" % (len(stream), stream),
        ]
    content, places = b"%PDF-1.7\n", []
    for number, item in enumerate(objects, start=1):
        places.append(len(content))
        content += b"%d 0 obj\n%s\nendobj\n" % (number, item)
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    end = f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}trailer\n<</Size {len(objects) + 1}/Root 1 0 R"
    return content + f"{end}{trailer}>>\nstartxref\n{len(content)}\n%%EOF\n".encode()


def lines(*texts: str, left: float = 72, top: float = 700, step: float = 12) -> list[tuple[float, float, str]]:
    """Return lines of text one below the other, for ``pdf``."""
    return [(left, top - step * number, text) for number, text in enumerate(texts)]


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("(", "\\(").replace(")", "\\)")
