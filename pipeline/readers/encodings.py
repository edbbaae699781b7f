"""Decode bytes to text.

A leading byte order mark belongs to the encoding, not to the text: it is removed, and offsets count from the code point
after it. Nothing else is changed: line ends stay as they are.
"""

import codecs
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

import charset_normalizer

from concord.models.errors import ConfigError
from concord.pipeline.readers.records import RecordError

# Longer marks first: that of UTF-32 starts like that of UTF-16.
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}

_WESTERN = "cp1252"
_WESTERN_LETTERS = ("áéíóúüñ", "àâæçèéêëîïôœùûü", "äöüß", "àáâãçéêíóôõú", "àèéìíòóùú", "åäöæøé", "áéíðóúýþæö")
_CENTRAL_LETTERS = ("ąćęłńóśźż", "áčďéěíňóřšťúůýž", "áäčďéíĺľňóôŕšťúýž", "áéíóöőúüű", "ăâîşţ", "čćđšž")
_LETTERS = {
    _WESTERN: _WESTERN_LETTERS,
    "cp1250": _CENTRAL_LETTERS,
    "iso8859-2": _CENTRAL_LETTERS,
    "cp1254": ("çğıöşüâîİ",),
    "cp1257": ("ąčęėįšųūž", "āčēģīķļņšūž", "äõöüšž"),
    "cp850": _WESTERN_LETTERS,
    "mac-roman": _WESTERN_LETTERS,
}
"""Encodings of the Latin script, and the letters beyond ASCII of the languages written in each."""

_OTHER_SCRIPTS = [
    *("cp1251", "koi8_r", "cp1253", "cp1255", "cp1256", "cp874", "cp866"),
    *("cp932", "euc_jp", "gb18030", "big5", "cp949"),
]

_SAMPLE_BYTES = 1 << 16
_MOST_LATIN = 0.3
"""Share of letters beyond ASCII in texts of the Latin script; Czech and Icelandic have about 0.2."""
_SURE_FIT = 0.9
_MARGIN = 0.2
"""Another encoding must fit better than Western European by this much."""
_SURE_LETTERS = 4
"""This many characters beyond ASCII make a guess half as sure as it could be."""
_PUNCTUATION = frozenset(
    "\u2018\u2019\u201a\u201c\u201d\u201e\u2026\u2013\u2014\u2022\u20ac\u00ab\u00bb\u00a0\u00ad\u00b7\u00a7\u00b0\u00a3\u00a1\u00bf"
)
"""Characters beyond ASCII that speak for no language, where they stand outside of words."""
_CONTROLS = re.compile(rb"[\x00-\x06\x0e-\x1a]")


class Encoding(NamedTuple):
    """An encoding, with its confidence (see Decoded) where it was guessed."""

    name: str
    confidence: float | None = None


class Decoded(NamedTuple):
    """A text and the encoding of its bytes.

    Attributes:
        confidence: 0..1, how sure a guessed encoding is; None where it was not guessed.
        meta: what else the file says, see Document.meta.
    """

    text: str
    encoding: str
    confidence: float | None = None
    meta: str | None = None


def check_encoding(encoding: str) -> None:
    """Check that an encoding exists.

    Raises:
        ConfigError: naming the key.
    """
    try:
        "\n".encode("utf-8" if encoding == "auto" else encoding)
    except LookupError:
        raise ConfigError(
            f"reader.encoding: expected auto or an encoding of Python such as utf-8 or cp1252, got {encoding!r}"
        ) from None


def decode(content: bytes, *, encoding: str) -> Decoded:
    """Decode a whole file.

    Raises:
        RecordError: naming the first invalid byte.
    """
    marked = mark_of(content)
    if encoding not in ("auto", marked) and marked is not None:
        hint = f"it begins with the byte order mark of {marked}: set reader.encoding to {marked} or auto"
        return Decoded(_decode_as(content, encoding, hint=hint), encoding)
    if encoding != "auto":
        return Decoded(_decode_as(content, encoding), encoding)
    if marked is not None:
        return Decoded(_decode_as(content, marked, hint="convert the file to utf-8"), marked)
    try:
        return Decoded(content.decode("utf-8-sig"), "utf-8")
    except UnicodeDecodeError:
        sample = _sample(content)
    if _is_damaged_utf8(sample):
        _decode_as(content, "utf-8", hint="fix the bytes, or set reader.encoding")
    for name, confidence in guess(sample):
        try:
            text = content.decode(name)
            text.encode("utf-8")
        except UnicodeError:
            continue
        return Decoded(text, name, confidence)
    raise RecordError(
        "invalid_encoding",
        "expected text, and no encoding fits the bytes; set reader.encoding or convert the file to utf-8",
    )


def mark_of(content: bytes) -> str | None:
    """Return the encoding that a byte order mark names; None without a mark, and with that of UTF-8."""
    return next((name for mark, name in _MARKS.items() if content.startswith(mark)), None)


def encoding_of_lines(lines: Iterable[bytes]) -> Encoding:
    """Return the encoding that is UTF-8 or guessed from the first lines that are not ASCII."""
    sample = bytearray()
    for line in lines:
        if not line.isascii():
            sample += line
        if len(sample) > _SAMPLE_BYTES:
            break
    with suppress(UnicodeDecodeError):
        sample.decode("utf-8")
        return Encoding("utf-8")
    guesses = () if _is_damaged_utf8(bytes(sample)) else guess(bytes(sample))
    return next(iter(guesses), Encoding("utf-8"))


def guess(sample: bytes) -> Iterator[Encoding]:
    """Yield the encodings that a part of a text other than UTF-8 may have, with a confidence; the likeliest first.

    Texts of the Latin script are taken for Western European, unless their letters clearly say otherwise;
    charset-normalizer takes most of them for Central European. The other scripts are left to it.
    """
    if _CONTROLS.search(sample):
        return
    beyond = sum(byte >= 0x80 for byte in sample)
    letters = beyond + len(re.findall(rb"[A-Za-z]", sample))
    sure = beyond / (beyond + _SURE_LETTERS)
    fits = {name: fit for name in _LETTERS if (fit := _fit(sample, name)) is not None}
    if fits and (beyond <= _MOST_LATIN * letters or max(fits.values()) > _SURE_FIT):
        likeliest = max(fits, key=lambda name: fits[name] + _MARGIN * (name == _WESTERN))
        for name in dict.fromkeys([likeliest, _WESTERN, "iso8859-1"]):
            yield Encoding(name, round(fits.get(name, 0.0) * sure, 3))
        return
    for match in charset_normalizer.from_bytes(sample, cp_isolation=[*_OTHER_SCRIPTS, _WESTERN]):
        yield Encoding(match.encoding, round((1 - match.chaos) * sure, 3))


def _sample(content: bytes) -> bytes:
    """Return the part around the first byte that is not ASCII; bounded, since guessing tries many encodings."""
    first = next(re.finditer(rb"[\x80-\xff]", content)).start()
    end = first + _SAMPLE_BYTES
    if end < len(content):
        # Between two words, and not between the bytes of one character.
        end = max(content.rfind(space, first, end) for space in (b" ", b"\n"))
    return content[max(first - _SAMPLE_BYTES, 0) : end if end > first else first + _SAMPLE_BYTES]


def _is_damaged_utf8(sample: bytes) -> bool:
    """Return whether most characters beyond ASCII are valid UTF-8, which those of other encodings hardly ever are."""
    beyond = re.findall(r"[^\x00-\x7f]", sample.decode("utf-8", "replace"))
    return beyond.count("\ufffd") * 2 < len(beyond)


def _fit(sample: bytes, encoding: str) -> float | None:
    """Return which share of the characters beyond ASCII are letters of one language of an encoding; None if invalid."""
    try:
        text = sample.decode(encoding)
    except UnicodeDecodeError:
        return None
    characters = [
        match[0].lower()
        for match in re.finditer(r"[^\x00-\x7f]", text)
        if match[0] not in _PUNCTUATION or _is_within_word(text, match.start())
    ]
    if not characters:
        return 1.0
    counts = (sum(character in letters for character in characters) for letters in _LETTERS[encoding])
    return max(counts) / len(characters)


def _is_within_word(text: str, place: int) -> bool:
    before, after = text[place - 1 : place], text[place + 1 : place + 2]
    return before.isalpha() and after.isalpha() and text[place] not in "\u2019\u00ad\u00b7\u2013\u2014\u2026"


def decode_line(line: bytes, *, encoding: str) -> str:
    """Decode one line of a file, which is UTF-8 for ``auto``; raises what ``decode`` raises."""
    return _decode_as(line, "utf-8" if encoding == "auto" else encoding)


def _decode_as(content: bytes, encoding: str, *, hint: str = "fix the bytes or set reader.encoding") -> str:
    name = codecs.lookup(encoding).name
    try:
        text = content.decode(name)
        # Some codecs (utf-7) accept lone surrogates, which no output can store.
        text.encode("utf-8")
    except UnicodeDecodeError as error:
        code = "invalid_utf8" if name.startswith("utf-8") else "invalid_encoding"
        raise RecordError(
            code,
            f"expected {encoding}, got byte 0x{content[error.start]:02x} at offset {error.start} of the record"
            f" ({error.reason}); {hint}",
        ) from None
    except UnicodeEncodeError as error:
        raise RecordError(
            "lone_surrogate", f"expected characters, got half of a surrogate pair at {error.start}; {hint}"
        ) from None
    return text.removeprefix("\ufeff")
