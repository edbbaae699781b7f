"""HTML files: each is one document, whose raw text is the text that the page shows.

Resiliparse (extra ``html``) parses the page as browsers do. What is not shown is taken out of the tree, and the tags of
the page that is written from it are replaced by what they stand for.
"""

import re
from html import escape
from itertools import pairwise, repeat
from typing import Any

import orjson
from typing_extensions import override

from concord.pipeline.config import ReaderConfig, codec_of
from concord.pipeline.readers.base import FileReader
from concord.pipeline.readers.builder import is_note_mark
from concord.pipeline.readers.files import Decoded, decode, encoding_of, with_codecs
from concord.pipeline.readers.records import RecordError

_XML = re.compile(rb"""\s*<\?xml\b[^>]*?encoding\s*=\s*["']([^"'>]+)""")
_CHARSET = re.compile(r"""charset\s*=\s*["']?\s*([^\s;"'>]+)""", re.IGNORECASE)
_CLOSED = re.compile(
    r"<(?!(?:area|base|br|col|embed|hr|img|input|link|meta|param|source|track|wbr)\b)([A-Za-z][\w:.-]*)(\s[^<>]*|)/>"
)
"""Elements of XHTML that are closed at once, which HTML does not know."""
_CDATA = re.compile(r"<!\[CDATA\[(.*?)\]\]>", re.DOTALL)
_MOST_DEPTH = 1000
"""Browsers stop at about 500; finding the main content takes time that grows with its square."""
_TOO_DEEP = ">".join("*" * (_MOST_DEPTH + 1))

_NOT_SHOWN = (
    "script,style,template,noscript,iframe,noframes,noembed,object,video,audio,canvas,datalist,head,title,metadata,"
    "desc,rt,rp,annotation,annotation-xml,[hidden],[popover],dialog:not([open]),"
    # Of a list that opens on a click, the choice.
    "select:not([multiple],[size]) option:not([selected]),[role=doc-noteref],[epub\\:type~=noteref]"
)
_STYLED = "[style*=none i],[style*=hidden i],[style*=collapse i]"
_HIDES = re.compile(
    r"(?:^|;)\s*(?:display\s*:\s*none|visibility\s*:\s*(?:hidden|collapse))\s*(?:!\s*important\s*)?(?:;|$)",
    re.IGNORECASE,
)
_NOTE_LINKS = 'sup:has(a[href*="#"]),a[href*="#"]>sup'

# What tags stand for, in characters that no text may contain.
_BLOCK, _LINE, _LINK, _LINK_END, _RAISED, _RAISED_END = "\ufdd0\ufdd1\ufdd2\ufdd3\ufdd4\ufdd5"
_TO_ASCII = {ord(mark): 0x0E + number for number, mark in enumerate((_BLOCK, _LINE, _RAISED, _RAISED_END))}
"""Resiliparse finds no content in other characters that stand alone."""
_KEPT = str.maketrans({" ": "\ufdd6", "\t": "\ufdd7", "\n": "\ufdd8"})
"""White space that is shown as it is written."""
_BLOCKS = (
    *("address", "article", "aside", "blockquote", "body", "button", "caption", "center", "dd", "details", "dialog"),
    *("dir", "div", "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5"),
    *("h6", "header", "hgroup", "hr", "label", "legend", "li", "listing", "main", "menu", "nav", "ol", "optgroup"),
    *("option", "p", "pre", "search", "section", "select", "summary", "table", "tbody", "td", "text"),
    *("textarea", "tfoot", "th", "thead", "tr", "ul"),
)
_MEANING = (
    {f"{end}{name}": _BLOCK for name in _BLOCKS for end in ("", "/")}
    | {"br": _LINE, "a": _LINK, "/a": _LINK_END, "sup": _RAISED, "/sup": _RAISED_END}
    | dict.fromkeys(("img", "input", "embed", "svg"), " ")
)
_TAG = re.compile(r"<(/?[a-z][^\s>]*)[^>]*>|<!--.*?-->", re.DOTALL)
_WRITTEN = re.compile(r"(<(pre|textarea|listing)\b[^>]*>)(.*?)(?=</\2>)", re.DOTALL)
_NEIGHBOURS = re.compile(f"{_LINK_END}{_LINK}")
_HAS_SPACES = re.compile(r"[0-9A-Za-z\xc0-\u0dff]")
"""Letters of scripts that have spaces between words."""
_MARKED = re.compile(rf"{_RAISED}([^\ufdd0-\ufdd8]*){_RAISED_END}")
_BLANK_LINES = re.compile(rf"(?:{_LINE}[ \xa0]*){{2,}}")
_BORDERS = re.compile(rf"{_BLOCK}[ {_BLOCK}]*")
_LEAST_WIDTH = 50
"""Lines that are filled have so many characters."""


class HtmlReader(FileReader):
    """Reads files of one page each."""

    suffixes = (*with_codecs(".html"), *with_codecs(".htm"))
    libraries = ("resiliparse",)
    text_share = 0.3

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
    from resiliparse.parse.html import HTMLTree

    decoded = decode(
        content,
        encoding=encoding_of(content, config.encoding, lambda: _declared(content, charset)),
        errors=config.errors,
    )
    page = decoded.text
    if is_xml:
        page = _CDATA.sub(lambda found: escape(found[1]), _CLOSED.sub(r"<\1\2></\1>", page))
    tree: Any = HTMLTree.parse(page)
    title = (tree.title or "").strip()
    _remove_hidden(tree)
    text = _main_content(tree) if main_content else _without_tags((tree.body or tree.document).html)
    return decoded._replace(text=_laid_out(text)), title


def _declared(content: bytes, charset: str | None) -> str | None:
    """Return ``charset`` or the encoding that a page declares, wherever it does; None for what browsers ignore."""
    from resiliparse.parse.html import HTMLTree

    tree: Any = HTMLTree.parse(content.decode("latin-1"))
    declarations = tree.document.query_selector_all("meta[charset], meta[http-equiv=content-type i]").values()
    labels = [label for meta in declarations for label in _CHARSET.findall(meta.html)]
    if in_xml := _XML.match(content):
        labels.append(in_xml[1].decode("latin-1"))
    for label in (charset, *labels) if charset else labels:
        name = "cp1252" if label.strip().lower() == "x-user-defined" else codec_of(label)
        if name is not None:
            return name
    return None


def _remove_hidden(tree: Any) -> None:
    """Take out what a page does not show, and the marks of notes that are links to them."""

    def found(selectors: str) -> list[Any]:
        # Iterating over the collection itself takes quadratic time.
        return list(tree.document.query_selector_all(selectors).values())

    for element in found(_NOT_SHOWN):
        element.remove()
    for element in found(_STYLED):
        # A page that hides itself is shown by its scripts.
        if _HIDES.search(element.getattr("style")) and element.tag not in ("html", "body"):
            element.remove()
    for element in found(_NOTE_LINKS):
        if is_note_mark(element.text.strip(), "word"):
            element.remove()


def _without_tags(markup: str) -> str:
    """Return the text of a page that was written from its tree, with what its tags stand for."""
    text = _WRITTEN.sub(lambda found: found[0].translate(_KEPT), markup)
    # Faster than a function that is called for each tag.
    pieces = _TAG.split(text)
    pieces[1::2] = map(_MEANING.get, pieces[1::2], repeat(""))
    return "".join(pieces).replace("&lt;", "<").replace("&gt;", ">").replace("&nbsp;", "\xa0").replace("&amp;", "&")


def _main_content(tree: Any) -> str:
    """Return what resiliparse takes for the article of a page, with what tags stand for."""
    from resiliparse.extract.html2text import extract_plain_text

    if tree.document.query_selector(_TOO_DEEP) is not None:
        raise RecordError(
            "nested_too_deep", f"expected elements nested at most {_MOST_DEPTH} deep, got more; repair the page"
        )
    for element in tree.document.query_selector_all(",".join((*_BLOCKS, "sup"))).values():
        for tag, add in ((element.tag, element.prepend), (f"/{element.tag}", element.append)):
            add(tree.create_text_node(_MEANING[tag].translate(_TO_ASCII)))
    for element in tree.document.query_selector_all("br").values():
        element.before(tree.create_text_node(_LINE.translate(_TO_ASCII)))
    text: str = extract_plain_text(
        tree, preserve_formatting=True, main_content=True, list_bullets=False, alt_texts=False
    )
    return text.translate({ascii: mark for mark, ascii in _TO_ASCII.items()})


def _laid_out(text: str) -> str:
    """Return a text in which white space is as it is shown, and blocks are set apart."""
    # Bytes are split at the white space of HTML alone.
    text = b" ".join(text.encode().split()).decode().replace("\u00ad", "")
    text = _NEIGHBOURS.sub(_between_links, text).replace(_LINK, "").replace(_LINK_END, "")
    text = _MARKED.sub(_with_raised, text).replace(_RAISED, "").replace(_RAISED_END, "")
    blocks = (block.strip(f" \xa0{_LINE}") for block in _BORDERS.split(text))
    text = "\n\n".join(_with_lines(block) if _LINE in block else block for block in blocks if block)
    for kept, mark in _KEPT.items():
        text = text.replace(mark, chr(kept))
    return text


def _between_links(found: re.Match[str]) -> str:
    """Return what separates two links without white space between them, as in a menu."""
    before, after = found.string[found.start() - 1], found.string[found.end() : found.end() + 1]
    is_apart = _HAS_SPACES.match(before) and _HAS_SPACES.match(after) and not after.islower()
    return _BLOCK if is_apart else ""


def _with_raised(found: re.Match[str]) -> str:
    before = found.string[max(0, found.start() - 8) : found.start()]
    return f" {found[1]}" if is_note_mark(found[1].strip(), before) else found[1]


def _with_lines(block: str) -> str:
    return "\n\n".join(map(_with_line_ends, _BLANK_LINES.split(block)))


def _with_line_ends(paragraph: str) -> str:
    """Return lines, each a block of its own unless it is filled, or the next one goes on with a small letter."""
    lines = [line.strip(" \xa0") for line in paragraph.split(_LINE)]
    width = max(map(len, lines))
    fills = [len(line) + len(after.partition(" ")[0]) >= width for line, after in pairwise(lines)]
    is_filled = width >= _LEAST_WIDTH and len(fills) > 1 and 2 * sum(fills) > len(fills)
    text = lines[:1]
    for fill, line in zip(fills, lines[1:], strict=True):
        text += ("\n" if line[:1].islower() or (fill and is_filled) else "\n\n", line)
    return "".join(text)
