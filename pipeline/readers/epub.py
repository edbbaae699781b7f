"""EPUB: each book is one document, whose chapters are parts; their text is that which their pages show."""

import posixpath
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from io import BytesIO
from urllib.parse import unquote, urldefrag
from xml.etree import ElementTree
from xml.etree.ElementTree import Element
from zipfile import ZipFile

from typing_extensions import override

from concord.pipeline.config import ReaderConfig
from concord.pipeline.readers.base import FileReader, as_record_errors
from concord.pipeline.readers.extracting import extracted, read_member
from concord.pipeline.readers.files import Decoded, most_unpacked, unpacks_too_far, with_codecs
from concord.pipeline.readers.records import RecordError
from concord.pipeline.readers.web import read_page

CHAPTER = "chapter"

_CONTAINER, _ENCRYPTION = "META-INF/container.xml", "META-INF/encryption.xml"
_CONTENTS = "application/x-dtbncx+xml"
_PAGES = ("application/xhtml+xml", "text/html", "text/x-oeb1-document")
_META = {"title": "title", "author": "creator", "language": "language", "date": "date"}


class EpubReader(FileReader):
    """Reads files of one book each."""

    suffixes = with_codecs(".epub")
    libraries = ("resiliparse",)
    unit = "chapter"

    @override
    def extract(self, content: bytes, config: ReaderConfig) -> Decoded:
        with ZipFile(BytesIO(content)) as archive:
            return _Book(archive, len(content), config).read()


class _Book:
    def __init__(self, archive: ZipFile, size: int, config: ReaderConfig) -> None:
        self._archive = archive
        self._size = size
        self._config = config
        self._unpacked = 0

    def read(self) -> Decoded:
        """Return the document; a chapter that cannot be read is lost by its number in the book."""
        where = next((path for path in _values(self._parse(_CONTAINER), "rootfile", "full-path")), "")
        package = self._parse(where)
        items = {item.get("id", ""): item for item in _named(package, "item")}
        titles, encrypted = self._titles(where, items.values()), self._encrypted()
        chapters: list[tuple[str, str, str]] = []
        lost: dict[int, RecordError] = {}
        for number, name in enumerate(dict.fromkeys(_values(package, "itemref", "idref")), 1):
            item = items.get(name)
            if item is not None and item.get("media-type") not in _PAGES:
                continue
            try:
                if item is None:
                    raise RecordError("missing_chapter", f"expected a file named {name!r} in the book, got none")
                path = _join(where, item.get("href", ""))
                if path in encrypted:
                    raise RecordError("encrypted", "expected a chapter that can be read, got an encrypted one")
                with as_record_errors("chapter"):
                    page, title = read_page(self._read(path), self._config, is_xml=True)
            except RecordError as error:
                lost[number] = error.with_traceback(None)
                continue
            if text := page.text.strip():
                chapters.append((CHAPTER, titles.get(path) or title or str(number), text))
        if lost and not chapters:
            raise next(iter(lost.values()))
        meta = {
            name: "; ".join("".join(value.itertext()).strip() for value in _named(package, element))
            for name, element in _META.items()
        }
        return extracted(chapters, meta=meta, lost=lost)

    def _titles(self, where: str, items: Iterable[Element]) -> Mapping[str, str]:
        """Return what the table of contents calls the files of chapters; the first entry of a file counts."""
        titles: dict[str, str] = {}
        for item in items:
            if item.get("media-type") != _CONTENTS and "nav" not in item.get("properties", "").split():
                continue
            path = _join(where, item.get("href", ""))
            with suppress(RecordError), as_record_errors("table of contents"):
                # Entries are links of XHTML, or points of the older NCX.
                for entry in _named(self._parse(path), "a", "navPoint"):
                    label = entry if _name(entry) == "a" else next(iter(_named(entry, "text")), entry)
                    target = entry.get("href") or next(iter(_values(entry, "content", "src")), "")
                    titles.setdefault(_join(path, target), " ".join("".join(label.itertext()).split()))
        return titles

    def _encrypted(self) -> frozenset[str]:
        """Return the paths of encrypted files, which may be its fonts alone."""
        if _ENCRYPTION not in self._archive.NameToInfo:
            return frozenset()
        return frozenset(map(unquote, _values(self._parse(_ENCRYPTION), "CipherReference", "URI")))

    def _parse(self, path: str) -> Element:
        root: Element = ElementTree.fromstring(self._read(path))
        return root

    def _read(self, path: str) -> bytes:
        content = read_member(self._archive, path, size=self._size, config=self._config)
        self._unpacked += len(content)
        if self._unpacked > (most := most_unpacked(self._size)):
            raise unpacks_too_far(self._size, most)
        return content


def _named(root: Element, *names: str) -> Iterator[Element]:
    """Yield the elements of these names, whatever their namespace."""
    return (element for element in root.iter() if _name(element) in names)


def _values(root: Element, name: str, attribute: str) -> Iterator[str]:
    return (element.get(attribute, "") for element in _named(root, name))


def _name(element: Element) -> str:
    return element.tag.rpartition("}")[2]


def _join(base: str, reference: str) -> str:
    """Return the path that a reference in a file of the book leads to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(base), unquote(urldefrag(reference).url)))
