"""HTML files: each is one document, whose raw text is the text that the page shows.

The text is extracted by resiliparse (extra ``html``): its blocks stand on lines of their own, scripts, styles and tags
are left out, and entities are resolved. Offsets count in this text.
"""

import codecs
import re
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

import orjson
from typing_extensions import override

from concord.pipeline.config import ReaderConfig
from concord.pipeline.readers.encodings import Decoded, decode
from concord.pipeline.readers.records import RecordError, too_large
from concord.pipeline.readers.streams import with_codecs
from concord.pipeline.readers.text import TextReader

_DECLARATION = re.compile(
    rb"""<(?:meta|\?xml)\b[^<>]*?(?:charset|encoding)\s*=\s*["']?\s*([A-Za-z0-9_.:-]+)""", re.IGNORECASE
)
_DECLARED_WITHIN = 1024
"""Bytes in which a page may declare its encoding, as browsers have it."""
_LATIN = {"iso8859-1", "ascii"}
_MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_MOST_DEPTH = 1000
"""Browsers stop at about 500."""


class HtmlReader(TextReader):
    """Reads files of one page each."""

    suffixes = (*with_codecs(".html"), *with_codecs(".htm"))

    @override
    def extract(self, content: bytes, config: ReaderConfig) -> Decoded:
        # Importing it takes a while.
        from resiliparse.extract.html2text import extract_plain_text
        from resiliparse.parse.html import HTMLTree

        decoded = decode(content, encoding=_stated(content, config))
        tree = HTMLTree.parse(decoded.text)
        if content.count(b"<") > _MOST_DEPTH:
            _check_nesting(tree, config)
        text = extract_plain_text(
            tree, preserve_formatting=True, main_content=config.main_content, list_bullets=False, alt_texts=False
        )
        title = (tree.title or "").strip()
        meta = orjson.dumps({"title": title}).decode() if title else None
        return decoded._replace(text=text, meta=meta)


def is_available() -> bool:
    """Return whether the library of the extra ``html`` is installed."""
    return find_spec("resiliparse") is not None


def _stated(content: bytes, config: ReaderConfig) -> str:
    """Return the encoding that the job sets, or else that a page which is not UTF-8 declares."""
    declared = _DECLARATION.search(content[:_DECLARED_WITHIN])
    if config.encoding not in ("utf-8", "auto") or declared is None or content.startswith(_MARKS):
        return config.encoding
    with suppress(UnicodeDecodeError):
        content.decode("utf-8")
        return config.encoding
    try:
        name = codecs.lookup(declared[1].decode()).name
        extends_ascii = "<".encode(name) == b"<"
    except LookupError:
        extends_ascii = False
    if not extends_ascii:
        return config.encoding
    # As browsers do: what is declared as Latin-1 is Windows-1252.
    return "cp1252" if name in _LATIN else name


def _check_nesting(tree: Any, config: ReaderConfig) -> None:
    """Refuse pages that would take very long, or whose nested lists would become mostly indents.

    Raises:
        RecordError: saying so.
    """
    from resiliparse.parse.html import traverse_dom

    indents = 0

    def look_at(context: Any) -> None:
        nonlocal indents
        indents += 2 * context.depth
        if context.depth > _MOST_DEPTH:
            raise RecordError(
                "nested_too_deep", f"expected elements nested at most {_MOST_DEPTH} deep, got more; repair the page"
            )
        if indents > config.max_record_bytes:
            raise too_large(config.max_record_bytes)

    traverse_dom(tree.body or tree.document, look_at, elements_only=True)
