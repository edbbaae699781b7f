"""The encodings that labels such as ``gb2312`` mean, as browsers take them."""

import codecs

import webencodings

_SUPERSETS = {"gbk": "gb18030", "iso2022_jp": "iso2022_jp_ext"}
"""Codecs of Python that lack characters which browsers read, and those that have them."""


def codec_of(label: str) -> str | None:
    """Return the name of Python's codec for what browsers take a label for, or else for what Python does.

    A page in Latin-1 is read as Windows-1252, for example, and one in Shift_JIS as code page 932. None for a label that
    neither knows.
    """
    try:
        known = webencodings.lookup(label) or webencodings.lookup(codecs.lookup(label).name)
        # Browsers refuse 7-bit encodings of China and Korea. Python's utf-16 also heeds a byte order mark.
        if known is None or known.name in ("replacement", "x-user-defined") or label.lower() in ("utf-16", "utf16"):
            return _text_codec(label)
    except (LookupError, UnicodeError):
        return None
    name: str = known.codec_info.name
    return _SUPERSETS.get(name, name)


def _text_codec(label: str) -> str:
    """Return the name of a codec between bytes and text, which ``hex`` is not; raise LookupError if there is none."""
    "".encode(label)
    return codecs.lookup(label).name
