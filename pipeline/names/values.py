"""The normal forms of dates, amounts of money, percentages and numbers in English.

A form must be clear from the entity's own words: relative dates (*yesterday*), periods (*the 1830s*), dates without a
year, days and months that could be each other (5/4/2025), ranges and unknown currencies have none.
Parsers and taggers cut expressions, so the words beside an entity are looked at too. Where they could change the value,
such as the scale behind a range, an era or a nationality, there is none; nothing of them is ever added to it.
"""

import re
from collections.abc import Callable, Mapping
from datetime import date
from decimal import Decimal

from concord.models.data.sentence import visible

VALUES = ("CARDINAL", "DATE", "MONEY", "ORDINAL", "PERCENT", "QUANTITY", "TIME")
"""Labels of entities that are values and nobody's name."""

_MONTHS = (
    "jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?|"
    "nov(?:ember)?|dec(?:ember)?"
)
_MONTH_STARTS = "janfebmaraprmayjunjulaugsepoctnovdec"
_DAY = "([0-9]{1,2})(?:st|nd|rd|th)?"
_YEAR = "([12][0-9]{3})"
_YEAR_ALONE = re.compile(f"(?:the year )?{_YEAR}")
_NAMED = re.compile(
    rf"(?:(?:sun|mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?)(?:day)?\.?,? )?(?:the )?(?:{_DAY}(?: of)? )?"
    rf"({_MONTHS})\.?(?: (?:the )?{_DAY})?(?:,?(?: of)? |,){_YEAR}"
)
_ISO = re.compile(f"{_YEAR}-([0-9]{{2}})(?:-([0-9]{{2}}))?")
_NUMERIC = re.compile(rf"([0-9]{{1,2}})([/.])([0-9]{{1,2}})\2{_YEAR}")

_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_WORDS = {word: number for number, word in enumerate(_SMALL.split())}
_WORDS |= {
    f"{ten}-{unit}".removesuffix("-zero"): 10 * tens + _WORDS[unit]
    for tens, ten in enumerate(_TENS.split(), 2)
    for unit in _SMALL.split()[:10]
}
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
# Without a currency they may be metres, kelvin or a paragraph.
_SHORT_SCALES = {"k": 3, "m": 6, "mn": 6, "bn": 9, "tn": 12}
# 007 is a name, and in other languages 1.515 is more than a thousand. 24 digits are exact in a Decimal.
_DIGITS = re.compile(r"(?!.{25})(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+|[1-9][0-9]*|0)(?:\.[0-9]+)?|\.[0-9]{1,23}")
_UNCLEAR = re.compile(r"-?[1-9][0-9]{0,2}\.[0-9]{3}")
_VAGUELY = re.compile(
    "^(?:about|around|approximately|roughly|nearly|almost|over|more than|less than|fewer than|at least|at most|up to|"
    "as much as|as many as|only|just|some|an estimated|an additional|another) "
)
_NAMES = {
    "USD": "$|us$|usd|dollar|dollars|us dollars|u.s. dollars",
    "EUR": "€|eur|euro|euros",
    "GBP": "£|gbp|pounds|pounds sterling|british pounds",
    "CAD": "c$|ca$|cad|canadian dollars",
    "AUD": "a$|au$|aud|australian dollars",
    "JPY": "jpy|yen",
    "CNY": "cny|yuan|renminbi",
    "INR": "₹|inr|indian rupees",
}
_CURRENCIES = {name: code for code, names in _NAMES.items() for name in names.split("|")}
_CURRENCY = "|".join(map(re.escape, sorted(_CURRENCIES, key=len, reverse=True)))
_AMOUNT = re.compile(rf"(-?)(?:({_CURRENCY}) ?)?(.+?)(?: ?({_CURRENCY}))?")
_PERCENT = re.compile(r"(.+?)[ -]?(?:%|percent|per cent|pct\.?)")

_LONGEST = 60
_BESIDE = 60
"""Characters that are looked at on each side of an entity."""
_NEAR = 4
"""Words on each side, up to the end of the sentence, that may not belong to a number or an era."""
_ENDS_BEFORE = re.compile(r"[;:!?][\"”’)\]]* |[(\[\"“‘]$|\b(?=(?:in|on|since|during) $)|(?<=\w{3}[.])[\"”’)\]]* ")
_ENDS_AFTER = re.compile(
    r"[.;:!?…][\"”’)\]]*(?: (?![a-z])|$)|[)\]](?! ?[\w(])| (?:\(|in (?:[A-Z][a-z]+\.? )?)[12]\d{3}\b"
)
_APART_BEFORE = re.compile(r"(?:^|\s|(?:^|\s)[(\[\"“‘])$")
_APART_AFTER = re.compile(r"[.,;:!?)\]\"”»…'’]*(?:$|\s)")
_CHANGING = re.compile(
    rf"(?<![^\W\d_])(?:{'|'.join((*_WORDS, *_SCALES, *_SHORT_SCALES))}|[mb]ln|mil|milliard|trn?|grand|lakh|crore|dozen|"
    "score|half|halve|quarter|third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|hundredth|thousandth|point|minus|negative|"
    "or so|odd|plus|times|squared|cubed|per ?cent|pct|dollar|cent|euro|pound|pence|shilling|yen|yuan|rupee|"
    r"b\.? ?c|bce|b\.? ?p|a\.? ?h|a\.? ?d|c\.? ?e|o['’]clock)s?(?![^\W\d_])|[$€£¥₹%¢×*^–—]|(?:^| )-"
)
_DATE_WORDS = "after and before between by during for from in on or since than till to until"
_PLAIN_WORDS = (
    "a all also an are as at be been but est had has have he her his i if into is it its men more new not of our out "
    "per she such that the their them then there these they this those up was we were when where which while who with"
)
_PLAIN = frozenset((_PLAIN_WORDS + " " + _DATE_WORDS).split())
"""Words that change nothing beside them."""
_BEFORE_DATE = frozenset(_DATE_WORDS.split())
"""Words that stand before a date. *Of* is not one of them: *the spring of 1990*."""
_NATION = re.compile(r"\b(?:[a-z]{3,}(?:ian|ean|can|ese)|hong|kong|zealand|nz|hk|nt)\b")


def value_of(label: str, text: str, start: int, end: int) -> str | None:
    """Return the normal form of an entity, or None if its label has none or the words are not clear.

    - ``DATE``: ISO 8601, as exact as the text: ``1945``, ``1945-05`` or ``1945-05-08``; none before our era;
    - ``MONEY``: amount and currency by ISO 4217, ``3500000 USD``; dollars of no named country are those of the United
      States;
    - ``PERCENT`` and ``CARDINAL``: ``12.5%``, ``1200``.

    A number is the one that is written, also where the text says *about*, *over* or *less than*.

    Args:
        text: of the document; white space of any kind and length is read as one space.
        start, end: of the entity in it.
    """
    label = label.upper()
    if label not in _READERS or end - start > _LONGEST:
        return None
    pieces = text[max(0, start - _BESIDE) : start], text[start:end], text[end : end + _BESIDE]
    before, words, after = (re.sub(r"\s+", " ", visible(piece)) for piece in pieces)
    return None if _could_change(label, before, after) else _READERS[label](words.strip().lower().replace("−", "-"))


def _could_change(label: str, before: str, after: str) -> bool:
    """Return whether what is beside an entity touches it, or belongs to a number, an era or a country's money."""
    if not (_APART_BEFORE.search(before) and _APART_AFTER.match(after)):
        return True
    words_before = _ENDS_BEFORE.split(before)[-1].split()[-_NEAR:]
    words_after = _ENDS_AFTER.split(after, maxsplit=1)[0].split()[:_NEAR]
    near = " | ".join((" ".join(words_before), " ".join(words_after)))
    last = words_before[-1] if words_before and not before.endswith(", ") else "in"
    following = words_after[0].strip(".,") if words_after and after[0] == " " else "in"
    return bool(
        any(map(str.isnumeric, near))
        or _CHANGING.search(near.lower())
        or following.startswith(("(", "["))
        or (len(following) <= 3 and following not in _PLAIN)
        or (label == "DATE" and (last.lower() not in _BEFORE_DATE or following not in _PLAIN))
        or (label == "MONEY" and (_NATION.search(near.lower()) or not (_is_plain(last) and _is_plain(following))))
    )


def _is_plain(word: str) -> bool:
    return word.islower() or word.lower() in _PLAIN


def _date(text: str) -> str | None:
    if match := _YEAR_ALONE.fullmatch(text):
        return match[1]
    if match := _NAMED.fullmatch(text):
        before, month, after, year = match.groups()
        return None if before and after else _iso(year, _MONTH_STARTS.index(month[:3]) // 3 + 1, before or after)
    if match := _NUMERIC.fullmatch(text):
        first, second, year = int(match[1]), int(match[3]), match[4]
        if first != second and first <= 12 and second <= 12:
            return None
        return _iso(year, min(first, second), max(first, second))
    match = _ISO.fullmatch(text)
    # 2004-05 may be two years.
    if match is None or (match[3] is None and match[2] > match[1][2:]):
        return None
    return _iso(match[1], int(match[2]), match[3])


def _iso(year: str, month: int, day: str | int | None) -> str | None:
    try:
        exact = date(int(year), month, int(day or 1)).isoformat()
    except ValueError:
        return None
    return exact if day else exact[:7]


def _money(text: str) -> str | None:
    match = _AMOUNT.fullmatch(_VAGUELY.sub("", text))
    if match is None or bool(match[2]) == bool(match[4]):
        return None
    amount = _number(match[1] + match[3], _SCALES | _SHORT_SCALES)
    return amount and f"{amount} {_CURRENCIES[match[2] or match[4]]}"


def _percent(text: str) -> str | None:
    match = _PERCENT.fullmatch(text)
    number = _cardinal(match[1]) if match else None
    return number and f"{number}%"


def _cardinal(text: str) -> str | None:
    return _number(_VAGUELY.sub("", text), _SCALES)


def _number(text: str, scales: Mapping[str, int]) -> str | None:
    """Return the number that digits or a word name, with at most one scale: ``1,500 million``, ``forty-two``."""
    match = re.fullmatch(rf"(-?)(.*?)(?:[ -]?({'|'.join(scales)}))?", text)
    if match is None or _UNCLEAR.fullmatch(text):
        return None
    sign, digits, scale = match.groups()
    if _DIGITS.fullmatch(digits):
        number = Decimal(digits.replace(",", ""))
    elif digits in _WORDS or (digits in ("a", "an") and scale):
        number = Decimal(_WORDS.get(digits, 1))
    else:
        return None
    return f"{(number * 10 ** scales.get(scale, 0) * (-1 if sign else 1)).normalize():f}"


_READERS: dict[str, Callable[[str], str | None]] = {
    "DATE": _date,
    "MONEY": _money,
    "PERCENT": _percent,
    "CARDINAL": _cardinal,
}
