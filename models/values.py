"""The normal forms of dates, amounts of money, percentages and numbers in English.

A form must be clear from the words alone: relative dates (*yesterday*), periods (*the 1830s*, *fiscal year 1958*),
dates without a year, days and months that could be each other (5/4/2025), ranges and unknown currencies have none.
"""

import re
from collections.abc import Callable
from datetime import date
from decimal import Decimal

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
    rf"({_MONTHS})\.?(?: {_DAY})?,?(?: of)? {_YEAR}"
)
_ISO = re.compile(f"{_YEAR}-([0-9]{{2}})(?:-([0-9]{{2}}))?")
_NUMERIC = re.compile(rf"([0-9]{{1,2}})([/.])([0-9]{{1,2}})\2{_YEAR}")

_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_UNITS = {word: number for number, word in enumerate(_SMALL.split())}
_UNITS |= {word: 10 * number for number, word in enumerate(_TENS.split(), 2)}
_POWERS = {3: "thousand k", 6: "million m mn", 9: "billion b bn", 12: "trillion tn"}
_SCALES = {word: power for power, words in _POWERS.items() for word in words.split()}
# 007 is a name, and in other languages 1.515 is more than a thousand.
_DIGITS = re.compile(r"(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+|[1-9][0-9]*|0)(?:\.[0-9]+)?|\.[0-9]+")
_UNCLEAR = re.compile(r"[1-9][0-9]{0,2}\.[0-9]{3}")
# Without a currency they may be metres, kelvin or a paragraph.
_LETTERS = re.compile("(?<![a-z])[kmb]$")
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
_HUNDREDTHS = {"cent": "USD", "cents": "USD", "¢": "USD", "pence": "GBP"}
_UNIT = "|".join(map(re.escape, sorted(_CURRENCIES | _HUNDREDTHS, key=len, reverse=True)))
_AMOUNT = re.compile(rf"(-?)(?:({_UNIT}) ?)?(.+?)(?: ?({_UNIT}))?")
_PERCENT = re.compile(r"(.+?) ?(?:%|percent|per cent|pct\.?)")
VALUES = ("CARDINAL", "DATE", "MONEY", "ORDINAL", "PERCENT", "QUANTITY", "TIME")
"""Labels of entities that are values and nobody's name."""
# Longer ones are no amounts, and exact with the digits of a Decimal.
_LONGEST = 60
_MOST_DIGITS = 24


def value_of(label: str, text: str) -> str | None:
    """Return the normal form of an entity, or None if its label has none or the words are not clear.

    - ``DATE``: ISO 8601, as exact as the text: ``1945``, ``1945-05`` or ``1945-05-08``;
    - ``MONEY``: amount and currency by ISO 4217, ``3500000 USD``; dollars and cents of no named country are those of
      the United States;
    - ``PERCENT`` and ``CARDINAL``: ``12.5%``, ``1200``.

    A number is the one that is written, also where the text says *about*, *over* or *less than*.

    Args:
        text: with single spaces.
    """
    read = _READERS.get(label.upper())
    return None if read is None or len(text) > _LONGEST else read(text.lower().replace("−", "-"))


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
    unit = match[2] or match[4]
    amount = _number(match[1] + match[3])
    if amount is None:
        return None
    if unit in _HUNDREDTHS:
        return f"{_plain(amount / 100)} {_HUNDREDTHS[unit]}"
    return f"{_plain(amount)} {_CURRENCIES[unit]}"


def _percent(text: str) -> str | None:
    match = _PERCENT.fullmatch(text)
    number = _cardinal(match[1]) if match else None
    return number and f"{number}%"


def _cardinal(text: str) -> str | None:
    number = None if _LETTERS.search(text) else _number(_VAGUELY.sub("", text))
    return None if number is None else _plain(number)


def _number(text: str) -> Decimal | None:
    """Return the number that digits or words name: ``1,500 million``, ``forty-two``, ``a hundred thousand``."""
    text, sign = text.removeprefix("-"), -1 if text.startswith("-") else 1
    words = [word for word in re.split("[ -]", re.sub("(?<=[0-9])(?=[a-z])", " ", text)) if word != "and"]
    total, group, scale = Decimal(0), None, 15
    if _UNCLEAR.fullmatch(text):
        return None
    for place, word in enumerate(words):
        if word == "hundred" and group is not None and 0 < group < 100:
            group *= 100
        elif word in _SCALES and group and _SCALES[word] < scale:
            scale = _SCALES[word]
            total, group = total + group * 10**scale, Decimal(0)
        elif word in _UNITS and _fits(_UNITS[word], group):
            group = (group or 0) + Decimal(_UNITS[word])
        elif place == 0 and word in ("a", "an") and len(words) > 1 and words[1] not in _UNITS:
            group = Decimal(1)
        elif place == 0 and _DIGITS.fullmatch(word) and len(word) <= _MOST_DIGITS:
            group = Decimal(word.replace(",", ""))
        else:
            return None
    return None if group is None else sign * (total + group)


def _fits(unit: int, group: Decimal | None) -> bool:
    """Return whether a word may follow those of a number below 1,000: one after twenty, but not after ten."""
    if not group:
        return True
    return group % 100 == 0 if unit >= 10 else group % 10 == 0 and group % 100 != 10


def _plain(number: Decimal) -> str:
    return f"{number.normalize():f}"


_READERS: dict[str, Callable[[str], str | None]] = {
    "DATE": _date,
    "MONEY": _money,
    "PERCENT": _percent,
    "CARDINAL": _cardinal,
}
