"""HTML files: each is one document, whose raw text is the text that the page shows.

The text is extracted by resiliparse (extra ``html``): its blocks stand on lines of their own, scripts, styles and tags
are left out, and entities are resolved. Offsets count in this text.
"""

import re
from typing import Any

import orjson
from typing_extensions import override

from concord.pipeline.config import ReaderConfig, codec_of
from concord.pipeline.readers.files import Decoded, decode, encoding_of, with_codecs
from concord.pipeline.readers.records import RecordError, too_large
from concord.pipeline.readers.tables import TextReader

_XML = re.compile(rb"""\s*<\?xml\b[^>]*?encoding\s*=\s*["']([^"'>]+)""")
_CHARSET = re.compile(r"""charset\s*=\s*["']?\s*([^\s;"'>]+)""", re.IGNORECASE)
_CLOSED = re.compile(
    r"<(?!(?:area|base|br|col|embed|hr|img|input|link|meta|param|source|track|wbr)\b)([A-Za-z][\w:.-]*)(\s[^<>]*|)/>"
)
"""Elements of XHTML that are closed at once, which HTML does not know."""
_MOST_DEPTH = 1000
"""Browsers stop at about 500."""


class HtmlReader(TextReader):
    """Reads files of one page each."""

    suffixes = (*with_codecs(".html"), *with_codecs(".htm"))
    libraries = ("resiliparse",)

    @override
    def extract(self, content: bytes, config: ReaderConfig) -> Decoded:
        decoded, title = read_page(content, config, main_content=config.main_content)
        return decoded._replace(meta=orjson.dumps({"title": title}).decode() if title else None)


def read_page(
    content: bytes,
    config: ReaderConfig,
    *,
    charset: str | None = None,
    main_content: bool = False,
    is_xml: bool = False,
) -> tuple[Decoded, str]:
    """Return the text and the title of a page.

    Args:
        charset: what the page's server or message says of its encoding, which comes before what the page says.
        is_xml: whether an element without content may be closed at once, as ``<title/>``.

    Raises:
        RecordError: when it cannot be decoded, or would take very long.
    """
    # Importing it takes a while.
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.html import HTMLTree

    decoded = decode(
        content,
        encoding=encoding_of(content, config.encoding, lambda: _declared(content, charset)),
        errors=config.errors,
    )
    tree = HTMLTree.parse(_CLOSED.sub(r"<\1\2></\1>", decoded.text) if is_xml else decoded.text)
    if content.count(b"<") > _MOST_DEPTH:
        _check_nesting(tree, config)
    text = extract_plain_text(
        tree, preserve_formatting=True, main_content=main_content, list_bullets=False, alt_texts=False
    )
    return decoded._replace(text=text), (tree.title or "").strip()


def _declared(content: bytes, charset: str | None) -> str | None:
    """Return ``charset`` or the encoding that a page declares, wherever it does; None for what browsers ignore."""
    from resiliparse.parse.html import HTMLTree

    tree: Any = HTMLTree.parse(content.decode("latin-1"))
    declarations = tree.document.query_selector_all("meta[charset], meta[http-equiv=content-type i]")
    labels = [label for meta in declarations for label in _CHARSET.findall(meta.html)]
    if in_xml := _XML.match(content):
        labels.append(in_xml[1].decode("latin-1"))
    for label in (charset, *labels) if charset else labels:
        name = "cp1252" if label.strip().lower() == "x-user-defined" else codec_of(label)
        if name is not None:
            return name
    return None


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
