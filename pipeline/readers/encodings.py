"""Decode bytes to text.

A leading byte order mark belongs to the encoding, not to the text: it is removed, and offsets count from the code point
after it. Nothing else is changed: line ends stay as they are.
"""

import codecs
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import islice
from types import MappingProxyType
from typing import Literal, NamedTuple

from concord.pipeline.documents import Part
from concord.pipeline.readers.records import RecordError

Errors = Literal["strict", "replace"]

# Longer marks first: that of UTF-32 starts like that of UTF-16.
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}

_SET = "set reader.encoding or convert the file to utf-8"
_AS_BROWSERS = "concord.as_browsers"
_ROWS_OF = {("euc_jp", b"\xad"): "euc_jis_2004", ("big5hkscs", b"\xa3"): "cp950"}
KEEP_INVALID = "concord.keep_invalid"
"""Handler of errors that makes a surrogate of each byte that ``decode`` refuses."""

_WESTERN = "cp1252"
_LATIN = (_WESTERN, "cp1250", "iso8859-2", "cp1254", "cp1257", "cp1258", "cp850", "mac-roman")
_OTHER_SCRIPTS = (
    *("cp1251", "koi8-r", "koi8-u", "iso8859-5", "mac-cyrillic", "cp866", "cp1253", "iso8859-7", "cp1255", "iso8859-8"),
    *("cp1256", "iso8859-6", "cp874", "cp932", "euc_jis_2004", "gb18030", "big5hkscs", "cp949"),
)
_SAMPLE_BYTES = 1 << 16
_CONTEXT = 16
"""Bytes of ASCII on either side of others that speak for an encoding as well: without them there are few letters."""
_SURE = 0.15
"""Another script must be this much likelier than the Latin one; of 720 scraps of manual pages none came out wrong."""
_LEAD = 0.05
"""Another encoding of the Latin script must be this much likelier than Western European."""
_SURE_LETTERS = 4
"""This many characters beyond ASCII make a guess half as sure as it could be."""
_MARKUP = re.compile(rb"<[^<>]*>")
_BEYOND_ASCII = re.compile(rb"[\x80-\xff]+(?:[\x00-\x7f]{1,48}[\x80-\xff]+){0,1000}")
_MAC, _CLOSE = "mac-cyrillic", 0.03
_NOT_WESTERN = b"\x81\x8d\x8f\x90\x9d"
_DAMAGE = 0.05
_TURKISH = re.compile(rb"[\xd0\xdd\xde\xf0\xfd\xfe]")
_PUNCTUATION = "\u2018\u2019\u201c\u201d\u201e\u2026\u2013\u2014\u2022\u00ab\u00bb\u00a0\u00ad\u00b7\u00b4"
_ORDINALS, _SIGNS = {"\xaa", "\xba"}, "\xa9\xae\xb0"
_RUNS = re.compile(r"(?:(?<=([A-Za-z]))|)([^\x00-\x7f]+)(?=([A-Za-z]?))")
_WITHIN_WORDS = "\u2019\u2013\u2014\u2026\u00ad\u00b7\u00b4\u00a0"
_CONTROLS = re.compile(rb"[\x00-\x06\x0e-\x1a]")
_FEW, _FEW_SHARE = 3, 0.01
"""With ``reader.errors: replace`` so many bad bytes of a record are replaced, or this share of all if that is more."""


_MULTIBYTE = {"cp932", "gb18030", "big5hkscs", "cp949", "euc_jp", "iso2022_jp_ext", "iso2022_kr", "hz"}
_ASCII = bytes(range(0x20, 0x7E))
_MOST_BY_CHANCE = 3
"""So few characters of these encodings may happen to be UTF-8 as well."""


class Encoding(NamedTuple):
    """An encoding, with its confidence (see Decoded) where it was guessed."""

    name: str
    confidence: float | None = None


class Decoded(NamedTuple):
    """A text and the encoding of its bytes.

    Attributes:
        confidence: 0..1, how sure a guessed encoding is; None where it was not guessed.
        meta: what else the file says, see Document.meta.
        parts: see Document.parts.
        lost: why parts of the file cannot be read although others can, by their number in the file, from 1.
        replaced: how many characters U+FFFD stand for bytes that are not of the encoding.
    """

    text: str
    encoding: str | None
    confidence: float | None = None
    meta: str | None = None
    parts: tuple[Part, ...] | None = None
    lost: Mapping[int, RecordError] = MappingProxyType({})
    replaced: int = 0


def decode(content: bytes, *, encoding: str, errors: Errors = "strict") -> Decoded:
    """Decode a whole file; ``encoding`` and ``errors`` as in ReaderConfig.

    Raises:
        RecordError: naming the first invalid byte.
    """
    marked = mark_of(content)
    if encoding not in ("auto", marked) and marked is not None:
        hint = f"it begins with the byte order mark of {marked}: set reader.encoding to {marked} or auto"
        return _decode_as(content, encoding, errors=errors, hint=hint)
    if encoding != "auto":
        return _decode_as(content, encoding, errors=errors)
    if marked is not None:
        return _decode_as(content, marked, errors=errors, hint="convert the file to utf-8")
    if b"\x1b$" in content and content.isascii():
        with suppress(RecordError):
            return _decode_as(content, "iso2022_jp_ext")._replace(confidence=1.0)
    with suppress(UnicodeDecodeError):
        return Decoded(content.decode("utf-8-sig"), "utf-8")
    sample = _sample(content)
    if _is_damaged_utf8(sample):
        return _decode_as(content, "utf-8", errors=errors, hint="fix the bytes, or set reader.encoding")
    guessed = guess(sample)
    if guessed is None:
        raise RecordError("invalid_encoding", f"expected utf-8 or letters that show an encoding, got neither; {_SET}")
    return _decode_as(content, guessed.name, errors=errors, hint=_SET)._replace(confidence=guessed.confidence)


def encoding_of(content: bytes, encoding: str, declared: Callable[[], str | None]) -> str:
    """Return the encoding that the job sets, or else that a mark or the content itself states; UTF-8 is recognized.

    Args:
        encoding: as in ReaderConfig; utf-8 and auto give way to what the content states.
        declared: returns the encoding that the content states; None where it states none.
    """
    marked = mark_of(content)
    if encoding not in ("utf-8", "auto") or content.startswith(codecs.BOM_UTF8):
        return encoding
    if marked is not None:
        return marked
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return _of_ascii(declared()) or encoding
    beyond = sum(1 for _ in islice(re.finditer(rb"[\xc2-\xff]", content), _MOST_BY_CHANCE + 1))
    is_ambiguous = beyond <= _MOST_BY_CHANCE if beyond else b"\x1b" in content or b"~{" in content
    stated = _of_ascii(declared()) if is_ambiguous else None
    if stated in _MULTIBYTE:
        with suppress(UnicodeDecodeError):
            content.decode(stated)
            return stated
    return encoding


def _of_ascii(encoding: str | None) -> str | None:
    """Return an encoding if what is in it can state it: in UTF-16, say, a statement in ASCII could not be read."""
    try:
        states = encoding is not None and not encoding.startswith("utf") and _ASCII.decode(encoding) == _ASCII.decode()
    except UnicodeError:
        return None
    return encoding if states else None


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
    guessed = None if _is_damaged_utf8(bytes(sample)) else guess(_sample(bytes(sample)))
    return guessed or Encoding("utf-8")


def guess(sample: bytes) -> Encoding | None:
    """Return the encoding that a part of a text other than UTF-8 must have; None where nothing is sure.

    Texts of the Latin script are taken for Western European, unless their letters say otherwise: a few accents never
    make chardet sure.
    """
    if _CONTROLS.search(sample):
        return None
    sure = _likelihoods(sample)
    name = _other_script(sample, sure) or _latin(sample, sure)
    if name is None or _has_two_encodings(sample, name):
        return None
    beyond = sum(byte >= 0x80 for byte in sample)
    confidence = (sure[name] if name in _OTHER_SCRIPTS else 1.0) * beyond / (beyond + _SURE_LETTERS)
    return Encoding(name.replace("euc_jis_2004", "euc_jp"), round(confidence, 3))


def _likelihoods(sample: bytes) -> dict[str, float]:
    """Return how likely each encoding is; those in which the sample is invalid or has controls are left out."""
    # Importing it takes a while.
    import chardet

    found = chardet.detect_all(
        sample,
        ignore_threshold=True,
        compat_names=False,
        include_encodings=(*_LATIN, *_OTHER_SCRIPTS),
        no_match_encoding=_WESTERN,
        empty_input_encoding=_WESTERN,
    )
    has_controls = re.search(rb"[\x80-\x9f]", sample) is not None
    likely = {match["encoding"] or "": match["confidence"] for match in found}
    return {name: value for name, value in likely.items() if not (has_controls and name.startswith("iso"))}


def _has_two_encodings(sample: bytes, name: str) -> bool:
    """Tell whether one half of a sample is surely in another encoding: bytes are damaged, or the file is two in one."""
    middle = sample.find(b" ", len(sample) // 2)
    for half in (sample[:middle], sample[middle:]):
        other = _other_script(half, _likelihoods(half))
        if other is not None and half.decode(other, "replace") != half.decode(name, "replace"):
            return True
    return False


def _other_script(sample: bytes, sure: Mapping[str, float]) -> str | None:
    """Return the likeliest encoding of another script, if it is clearly likelier; its letters stand side by side."""
    name = max(sure.keys() & set(_OTHER_SCRIPTS), key=lambda name: sure[name], default=None)
    latin = max((sure[name] for name in sure.keys() & set(_LATIN)), default=0.0)
    together = sum(map(len, re.findall(rb"[\x80-\xff]{2,}", sample)))
    beyond = sum(byte >= 0x80 for byte in sample)
    if name is None or sure[name] < latin + _SURE or together <= beyond / 5:
        return None
    if name == _MAC and sure[name] < sure.get("cp1251", 0.0) + _CLOSE:
        # They differ in the capitals; those of Mac OS are the quotation marks of Windows.
        return _MAC if len(re.findall(rb"[\x80-\x9f]", sample)) > len(re.findall(rb"[\xc0-\xde]", sample)) else "cp1251"
    return name


def _latin(sample: bytes, sure: Mapping[str, float]) -> str | None:
    """Return the likeliest encoding of the Latin script in which the sample reads like words."""
    # A byte or two that Windows-1252 lacks are damage, and do not make another encoding of it.
    valid = sample.translate(None, _NOT_WESTERN)
    if 0 < len(sample) - len(valid) <= _DAMAGE * len(re.findall(rb"[\x80-\xff]", valid)):
        return _latin(valid, _likelihoods(valid))
    western = sure.get(_WESTERN, 0.0)
    others = {name: sure[name] for name in sure.keys() & set(_LATIN[1:])}
    # Six letters tell Turkish from Icelandic, and more people write it.
    name = max(others, key=lambda name: others[name], default=_WESTERN)
    if name == "cp1254" and others[name] * 1.5 >= western and _TURKISH.search(sample):
        others[name] += western
    lead = others.get(name, 0.0) - western
    is_western = _reads_like_words(sample, _WESTERN)
    if (lead >= _LEAD or (not is_western and others.get(name, 0.0) >= _LEAD)) and _reads_like_words(sample, name):
        return name
    return _WESTERN if is_western and (lead < _LEAD / 2 or lead < western) else None


def _reads_like_words(sample: bytes, encoding: str) -> bool:
    """Tell whether characters beyond ASCII are accents in words of the Latin script, or punctuation between them."""
    try:
        text = sample.decode(encoding)
    except UnicodeDecodeError:
        return False
    for before, run, after in _RUNS.findall(text):
        letters = run.strip(_WITHIN_WORDS if before and after else _PUNCTUATION)
        is_word = letters.isalpha() and not set(letters) & _ORDINALS
        if len(letters) > 2 or (len(letters) == 2 and not (is_word and (before or after))):
            return False
        if is_word and letters.isupper() and before.islower():
            return False
        if letters and not is_word and after and (before or letters not in _SIGNS):
            return False
    return True


def _sample(content: bytes) -> bytes:
    """Return what is not ASCII outside of markup, with a little around it; bounded, since guessing takes a while."""
    plain = _MARKUP.sub(b" ", content)
    plain = content if plain.isascii() else plain
    parts: list[bytes] = []
    size = 0
    for match in _BEYOND_ASCII.finditer(plain):
        parts.append(plain[max(match.start() - _CONTEXT, 0) : match.end() + _CONTEXT])
        size += len(parts[-1])
        if size > _SAMPLE_BYTES:
            break
    return b" ".join(parts)


def _is_damaged_utf8(sample: bytes) -> bool:
    """Return whether most characters beyond ASCII are valid UTF-8, which those of other encodings hardly ever are."""
    beyond = re.findall(r"[^\x00-\x7f]", sample.decode("utf-8", "replace"))
    return beyond.count("\ufffd") * 2 < len(beyond)


def decode_line(line: bytes, *, encoding: str, errors: Errors = "strict") -> Decoded:
    """Decode one line of a file, which is UTF-8 for ``auto``; arguments and RecordError as for ``decode``."""
    return _decode_as(line, "utf-8" if encoding == "auto" else encoding, errors=errors)


def _decode_as(
    content: bytes, encoding: str, *, errors: Errors = "strict", hint: str = "fix the bytes or set reader.encoding"
) -> Decoded:
    replaced = 0
    try:
        text = content.decode(encoding, _AS_BROWSERS)
    except UnicodeDecodeError as error:
        text = content.decode(encoding, "replace")
        # Those that the bytes spell are not ignored.
        replaced = text.count("\ufffd") - content.decode(encoding, "ignore").count("\ufffd")
        if errors == "strict" or replaced > max(_FEW, _FEW_SHARE * len(content)):
            many = f", and {replaced:,} such places in all, which is more than a few" if errors == "replace" else ""
            raise RecordError(
                "invalid_utf8" if encoding.startswith("utf-8") else "invalid_encoding",
                f"expected {encoding}, got byte 0x{content[error.start]:02x} at offset {error.start} of the record"
                f" ({error.reason}){many}; {hint}",
            ) from None
    try:
        # Some codecs (utf-7) accept lone surrogates, which no output can store.
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RecordError(
            "lone_surrogate", f"expected characters, got half of a surrogate pair at {error.start}; {hint}"
        ) from None
    return Decoded(text.removeprefix("\ufeff"), encoding, replaced=replaced)


def _as_browsers(error: UnicodeError) -> tuple[str, int]:
    """Read what browsers do and Python does not: the euro sign of GBK and Big5, and the row of symbols in EUC-JP."""
    if isinstance(error, UnicodeDecodeError):
        place, pair = error.start, error.object[error.start : error.start + 2]
        if error.encoding == "gb18030" and pair[:1] == b"\x80":
            return "\u20ac", place + 1
        if other := _ROWS_OF.get((error.encoding, pair[:1])):
            with suppress(UnicodeDecodeError):
                return pair.decode(other), place + 2
    raise error


def _keep_invalid(error: UnicodeError) -> tuple[str | bytes, int]:
    try:
        return _as_browsers(error)
    except UnicodeDecodeError:
        return codecs.lookup_error("surrogateescape")(error)


codecs.register_error(_AS_BROWSERS, _as_browsers)
codecs.register_error(KEEP_INVALID, _keep_invalid)
