"""Files of word processors: .docx, .odt and .rtf, each as paragraphs.

No macro, link, embedded file or external entity is opened. A cell of a table is a paragraph, or several, so that no
name runs from one cell into the next. Footnotes and endnotes follow the text, as parts of it; their marks are left out.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from io import BytesIO
from typing import Any
from zipfile import BadZipFile, ZipFile

from typing_extensions import override

from concord.pipeline.config import ReaderConfig
from concord.pipeline.readers.base import FileReader
from concord.pipeline.readers.extracting import extracted, read_member
from concord.pipeline.readers.files import Decoded, with_codecs
from concord.pipeline.readers.records import RecordError

_WORD = "/wordprocessingml/"
_WORD_CHARACTERS = {
    "tab": "\t",
    "ptab": "\t",
    "br": "\n",
    "cr": "\n",
    "noBreakHyphen": "\u2011",
    "softHyphen": "\u00ad",
}
_WORD_LEFT_OUT = {"del", "moveFrom", "Fallback"}
"""What a tracked change removes, and what older programs show in place of a text box."""
_ODF_OFFICE, _ODF_TEXT = (f"urn:oasis:names:tc:opendocument:xmlns:{name}:1.0" for name in ("office", "text"))
_ODF_CHARACTERS = {"tab": "\t", "line-break": "\n"}
_ODF_LEFT_OUT = {"tracked-changes", "annotation", "note-citation"}
_META = {"title": "title", "creator": "author", "subject": "subject", "keywords": "keywords", "created": "created"}
_OLE = b"\xd0\xcf\x11\xe0"

_Notes = list[tuple[str, str]]
"""Notes in the order of their marks: kind, and id (docx) or text (odt)."""


class DocxReader(FileReader):
    """Reads files of Word since 2007."""

    suffixes = with_codecs(".docx")
    text_share = 0.2
    libraries = ("lxml",)

    @override
    def extract(self, content: bytes, config: ReaderConfig) -> Decoded:
        if content.startswith(_OLE):
            raise RecordError("encrypted", "encrypted, or a .doc of an older Word; save it as .docx without a password")
        with _opened(content) as archive:
            files = _Files(archive, len(content), config)
            links = files.xml("_rels/.rels").iter("{*}Relationship")
            targets = (link.get("Target", "") for link in links if link.get("Type", "").endswith("/officeDocument"))
            main = next(targets, "word/document.xml").lstrip("/")
            paragraphs, marks = _word_paragraphs(files.xml(main))
            notes = {kind: _word_notes(files, main, kind) for kind in {kind for kind, _ in marks}}
            texts = [(kind, notes[kind].get(number, "")) for kind, number in marks]
            return _document(paragraphs, texts, files.meta("docProps/core.xml"))


class OdtReader(FileReader):
    """Reads files of LibreOffice and others in OpenDocument."""

    suffixes = with_codecs(".odt")
    text_share = 0.2
    libraries = ("lxml",)

    @override
    def extract(self, content: bytes, config: ReaderConfig) -> Decoded:
        with _opened(content) as archive:
            files = _Files(archive, len(content), config)
            if next(files.xml("META-INF/manifest.xml").iter("{*}encryption-data"), None) is not None:
                raise RecordError("encrypted", "encrypted: it opens with a password only; save it without one")
            # Styles have elements of the same name in another name space.
            body = next(files.xml("content.xml").iter(f"{{{_ODF_OFFICE}}}text"))
            return _document(*_odf_paragraphs(body), files.meta("meta.xml"))


class RtfReader(FileReader):
    """Reads files in the Rich Text Format."""

    suffixes = with_codecs(".rtf")
    text_share = 0.2
    libraries = ("striprtf",)

    @override
    def extract(self, content: bytes, config: ReaderConfig) -> Decoded:
        from striprtf.striprtf import rtf_to_text

        if not content.lstrip().startswith(b"{\\rtf"):
            raise RecordError("not_rtf", "expected a file that begins with {\\rtf, got another; rename or remove it")
        # There may be other bytes after the end, and braces in pictures that count for nothing.
        if not content.rstrip(b"\0 \t\r\n").endswith(b"}"):
            braces = Counter(_BRACES.findall(content))
            if braces[b"{"] > braces[b"}"]:
                raise RecordError(
                    "truncated", "expected a file that ends in }, got one that is cut short; fetch it again"
                )
        replaced = 0
        marked = _RTF_MARKS.sub(_rtf_mark, content.decode("latin-1"))
        try:
            text = rtf_to_text(marked, errors="strict")
        except UnicodeDecodeError as error:
            if config.errors == "strict":
                raise RecordError(
                    "invalid_bytes",
                    f"expected {error.encoding}, as the file says, got byte {error.object[error.start]:#04x}; set "
                    "reader.errors to replace",
                ) from None
            text = rtf_to_text(marked, errors="replace")
            replaced = text.count("\ufffd")
        # Characters beyond U+FFFF are written as pairs of surrogates.
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        found = extracted([("", "", "\n\n".join(filter(None, map(str.strip, text.split("\n")))))])
        return found._replace(replaced=replaced)


_BRACES = re.compile(rb"\\.|[{}]", re.DOTALL)
_RTF_MARKS = re.compile(r"\\\\|\\(?:nest)?cell(?![a-z])|\\bin(?=[^\d-])|\\(?=f\d|field)|[\x80-\xff]")


def _rtf_mark(found: re.Match[str]) -> str:
    """Return the same mark so that striprtf reads it well.

    Cells become paragraphs, and bytes that are not ASCII are escaped, as the format has it. A line end before a font or
    field, which means nothing there, keeps addresses of links out of the text, and regular expressions from long ways.
    """
    mark = found[0]
    if mark == "\\":
        return "\n\\"
    if mark.endswith("cell"):
        return "\\par "
    if mark.endswith("bin"):
        return ""
    return mark if mark.isascii() else f"\\'{ord(mark):02x}"


class _Files:
    """The files of a document, read within the bounds of a configuration."""

    def __init__(self, archive: ZipFile, size: int, config: ReaderConfig) -> None:
        self._archive, self._size, self._config = archive, size, config

    def xml(self, name: str) -> Any:
        """Return the root of an XML file, with nothing in it that would have to be fetched or expanded."""
        from lxml import etree

        try:
            content = read_member(self._archive, name, size=self._size, config=self._config)
        except KeyError:
            raise RecordError(
                "incomplete", f"expected the file {name!r} in it, got none; it is no such document, or damaged"
            ) from None
        parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False)
        root = etree.fromstring(content, parser)
        declared = root.getroottree().docinfo.internalDTD
        if declared is not None and next(declared.iterentities(), None) is not None:
            raise RecordError("has_entities", f"expected no entities of its own in {name!r}, got some; save it again")
        return root

    def meta(self, name: str) -> dict[str, str]:
        """Return what the document says of itself."""
        if name not in self._archive.namelist():
            return {}
        found = ((_name(element), (element.text or "").strip()) for element in self.xml(name).iter("{*}*"))
        return {_META[key]: value for key, value in found if key in _META}


def _opened(content: bytes) -> ZipFile:
    try:
        return ZipFile(BytesIO(content))
    except BadZipFile:
        raise RecordError(
            "unreadable", "expected a zip archive, got other content or a part of one; fetch the file again"
        ) from None


def _document(paragraphs: Sequence[str], notes: _Notes, meta: dict[str, str]) -> Decoded:
    """Return paragraphs, and then the notes as parts."""
    parts = [(kind, f"{kind} {number}", text) for number, (kind, text) in enumerate(notes, start=1)]
    return extracted([("", "", "\n\n".join(paragraphs)), *parts], meta=meta)


def _word_paragraphs(root: Any) -> tuple[list[str], _Notes]:
    """Return the paragraphs of a docx file, and the notes that it refers to."""
    open_ones: list[list[str]] = []
    paragraphs: list[str] = []
    notes: _Notes = []
    # A large letter at the beginning of a paragraph is one of its own.
    initial, initial_letters = None, ""
    for event, element in _walk(root, _WORD_LEFT_OUT):
        if _WORD not in element.tag:
            continue
        name = _name(element)
        if name == "p" and event == "start":
            open_ones.append([])
        elif name == "p":
            text = "".join(open_ones.pop()).strip()
            if initial is not None and initial.getparent().getparent() is element:
                initial_letters = text
            else:
                paragraphs.append(initial_letters + text)
                initial_letters = ""
        elif event == "start" and name == "framePr" and element.get(_key(element, "dropCap"), "none") != "none":
            initial = element
        elif event == "start" and open_ones:
            # A tab among the properties of a paragraph sets a stop.
            if name == "t" or (name in _WORD_CHARACTERS and _name(element.getparent()) == "r"):
                open_ones[-1].append(_WORD_CHARACTERS.get(name) or element.text or "")
            elif name.endswith("noteReference"):
                notes.append((name.removesuffix("Reference"), _id(element)))
    return list(filter(None, paragraphs)), notes


def _word_notes(files: _Files, main: str, kind: str) -> dict[str, str]:
    """Return the text of the footnotes or endnotes of a docx file, by id."""
    root = files.xml(f"{main.rpartition('/')[0]}/{kind}s.xml".lstrip("/"))
    return {_id(note): "\n\n".join(_word_paragraphs(note)[0]) for note in root.iter(f"{{*}}{kind}")}


def _odf_paragraphs(root: Any) -> tuple[list[str], _Notes]:
    """Return the paragraphs of an odt file and its notes, which stand within them."""
    open_ones: list[list[str]] = []
    paragraphs, notes = list[str](), list[tuple[str, list[str]]]()
    current = [paragraphs]
    for event, element in _walk(root, _ODF_LEFT_OUT):
        name = _name(element)
        if event == "start":
            if name in ("p", "h"):
                open_ones.append([])
            elif name == "note":
                notes.append((element.get(_key(element, "note-class"), "footnote"), []))
                current.append(notes[-1][1])
            # Other elements describe a picture, say.
            if open_ones and _ODF_TEXT in element.tag:
                count = int(element.get(_key(element, "c"), "1")) if name == "s" else 0
                space = " " * min(count, _MOST_SPACES)
                open_ones[-1].append(space or _ODF_CHARACTERS.get(name) or _collapsed(element.text))
        else:
            if name in ("p", "h"):
                current[-1].append("".join(open_ones.pop()).strip())
            elif name == "note":
                current.pop()
            if open_ones and _ODF_TEXT in element.getparent().tag:
                open_ones[-1].append(_collapsed(element.tail))
    return list(filter(None, paragraphs)), [(kind, "\n\n".join(filter(None, texts))) for kind, texts in notes]


_MOST_SPACES = 100


def _collapsed(text: str | None) -> str:
    return re.sub(r"\s+", " ", text or "")


def _walk(root: Any, left_out: set[str]) -> Iterator[tuple[str, Any]]:
    """Yield the starts and ends of elements; of those that are left out only the ends, which text may follow."""
    from lxml import etree

    walk = etree.iterwalk(root, events=("start", "end"))
    for event, element in walk:
        if event == "start" and _name(element) in left_out:
            walk.skip_subtree()
        else:
            yield event, element


def _name(element: Any) -> str:
    name: str = element.tag.rpartition("}")[2]
    return name


def _key(element: Any, name: str) -> str:
    """Return the name of an attribute in the name space of its element."""
    return f"{element.tag.rpartition('}')[0]}}}{name}"


def _id(element: Any) -> str:
    value: str = element.get(_key(element, "id"), "")
    return value
