"""E-books: their chapters in order, as parts of one document; what cannot be read costs a chapter."""

import json
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from concord_testing.broken_files import read_all
from concord_testing.documents import epub

from concord.pipeline.config import ReaderConfig
from concord.pipeline.documents import DeadLetter, Document
from concord.pipeline.readers import files

HEAD = '<?xml version="1.0"?><html xmlns="http://www.w3.org/1999/xhtml"><head>'
ONE = f"{HEAD}<title/></head><body><h1>First</h1><p>Anna<br/>went.<a id='x'/></p></body></html>"
TWO = f"{HEAD}<title>The bridge</title><script src='a.js'/></head><body><p>Bob.</p></body></html>"


def read(path: Path, content: bytes, **config: Any) -> list[Document | DeadLetter]:
    path.write_bytes(content)
    return read_all(path, "epub", ReaderConfig(**config))


def test_chapters_are_parts_named_by_the_contents(tmp_path: Path) -> None:
    blank = f"{HEAD}<title>Cover</title></head><body><img src='a.png'/></body></html>"

    (found,) = read(tmp_path / "a.epub", epub(blank, ONE, TWO, TWO, toc='<a href="c2.xhtml#x">Chapter  <b>1</b></a>'))

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

    (found,) = read(tmp_path / "a.epub", content)

    assert isinstance(found, Document)
    assert [str(part) for part in found.parts or ()] == ["Part I", "The town"]


ENCRYPTED = '<encryption><CipherReference URI="in/c2.xhtml"/><CipherReference URI="in/a%20font.otf"/></encryption>'


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (epub(ONE, None, TWO), "incomplete"),
        (epub(ONE, b"<p>Zo\xeb", TWO), "invalid_utf8"),
        (epub(ONE, TWO, TWO, files={"META-INF/encryption.xml": ENCRYPTED}), "encrypted"),
    ],
)
def test_chapter_that_cannot_be_read_costs_itself(tmp_path: Path, content: bytes, error: str) -> None:
    (found,) = read(tmp_path / "a.epub", content)

    assert isinstance(found, Document)
    assert found.text == "First\n\nAnna\nwent.\n\nBob."
    assert [(lost.number, lost.error) for lost in found.lost] == [(2, error)]


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", "unreadable"),
        (epub(ONE)[:-30], "unreadable"),
        (b"no archive", "unreadable"),
        (epub(files={"META-INF/container.xml": "<container/>"}), "incomplete"),
        (epub(None), "incomplete"),
        (epub(files={"in/a.opf": "<package>"}), "unreadable"),
        (
            epub(ONE, files={"in/a.opf": '<!DOCTYPE p [<!ENTITY x SYSTEM "file:///x">]><package>&x;</package>'}),
            "has_entities",
        ),
        (epub(ONE, files={"in/a.opf": '<!DOCTYPE p [<!ATTLIST item x CDATA "y">]><package/>'}), "has_entities"),
        (epub(ONE, TWO, files={"META-INF/encryption.xml": ENCRYPTED.replace("a%20font.otf", "c1.xhtml")}), "encrypted"),
    ],
)
def test_file_without_a_readable_chapter_is_a_dead_letter(tmp_path: Path, content: bytes, error: str) -> None:
    (found,) = read(tmp_path / "a.epub", content)

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

    read(tmp_path / "a.epub", epub(ONE, files={"in/a.opf": package}))

    assert unpacked.count("in/c1.xhtml") == 1


@pytest.mark.parametrize("names", [{"c1"}, {"c1", "c2"}])
def test_bombs_are_dead_letters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: set[str]) -> None:
    monkeypatch.setattr(files, "ALWAYS_UNPACKED_BYTES", 600_000 if len(names) > 1 else 200_000)
    page = f"<p>{'a' * 500_000}"

    found = read(tmp_path / "a.epub", epub(*[page] * len(names)))

    (record,) = found
    errors = [record.error] if isinstance(record, DeadLetter) else [lost.error for lost in record.lost]
    assert errors == ["unpacks_too_far"]
