"""The normal forms of dates, amounts of money, percentages and numbers in English.

A form must be clear from the words alone: relative dates (*yesterday*), periods (*the 1830s*, *fiscal year 1958*),
dates without a year, days and months that could be each other (5/4/2025), ranges and unknown currencies have none.
Parsers and taggers cut expressions, so what is read is the entity with all beside it that belongs to the same number or
date. There is no form where what comes next could still change it: the scale after a range, an era, a nationality.
"""

import re
from collections.abc import Callable
from datetime import date
from decimal import Decimal

from concord.models.data.visible import visible

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
_UNITS = {word: number for number, word in enumerate(_SMALL.split())}
_UNITS |= {word: 10 * number for number, word in enumerate(_TENS.split(), 2)}
_POWERS = {3: "thousand k", 6: "million m mn mln", 9: "billion b bn bln", 12: "trillion tn trn"}
_SCALES = {word: power for power, words in _POWERS.items() for word in words.split()}
# 007 is a name, and in other languages 1.515 is more than a thousand.
_DIGITS = re.compile(r"(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+|[1-9][0-9]*|0)(?:\.[0-9]+)?|\.[0-9]+")
_MIXED = re.compile("([1-9][0-9]?)/(2|4|8|16|32|64)")
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
_PERCENT = re.compile(r"(.+?)[ -]?(?:%|percent|per cent|pct\.?)")
VALUES = ("CARDINAL", "DATE", "MONEY", "ORDINAL", "PERCENT", "QUANTITY", "TIME")
"""Labels of entities that are values and nobody's name."""
# Longer ones are no amounts, and exact with the digits of a Decimal.
_LONGEST = 60
_MOST_DIGITS = 24

# Characters beside an entity that are read with it.
_BESIDE = 60
_NUMERAL = r"\d+(?:[.,/'’]\d+)*"
_VULGAR = "[½⅓⅔¼¾⅛⅜⅝⅞]"
_COUNT_WORD = rf"(?:{'|'.join(_UNITS)}|hundred)"
_COUNT = (
    "(?:hundred|thousand|million|milliard|billion|trillion|[mb]n|[mb]ln|trn?|tn|mil|[mbk]|lakh|crore|dozen|score)s?"
)
_FRACTION = "(?:half|halves|(?:quarter|third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|hundredth|thousandth)s?)"
_CURRENCY = "[$€£¥₹]"
_SIGN = f"(?:per ?cent|pct|{'|'.join(filter(str.isalpha, _CURRENCIES | _HUNDREDTHS))})"
_WORD = rf"(?:(?:{_COUNT_WORD}|{_COUNT}|{_FRACTION}|{_SIGN}|point(?=[ -]{_COUNT_WORD}))(?![^\W\d_])|{_CURRENCY}|¢)"
# All that belongs to an amount, also where the whole can then not be read.
_AMOUNT_AFTER = re.compile(rf"(?:[.,/'’]\d+)*(?:[ -]\d+/\d+(?![/\d])| ?{_VULGAR}|[ -]?{_WORD}|[ -]?%)*")
_DIGITS_BEFORE = re.compile(rf"(?:{_CURRENCY} ?)?(?:(?:\d+[ -](?=\d+/$))?{_NUMERAL}[.,/'’]|\.)?$")
_FRACTION_BEFORE = re.compile(rf"(?:{_CURRENCY} ?)?{_NUMERAL}[ -]?$")
_WORDS_BEFORE = re.compile(
    rf"(?:(?:{_CURRENCY} ?|(?<![^\W_])){_NUMERAL}(?: ?{_VULGAR}|[ -]\d+/\d+)?[ -]?)?(?:(?<![^\W\d_]){_WORD}[ -])*$"
)
_IS_FRACTION = re.compile(rf"\d+/\d|{_VULGAR}")
_MINUS_BEFORE = re.compile(r"(?:(?<![^\s(:])-|(?<![^\W_])(?:minus|negative) )$")
_NAMED_DOLLAR = re.compile("[a-z.]+$")
_DATE_BEFORE = re.compile(
    rf"(?<![^\s(\[\"“‘—])(?:[0-9]{{1,2}}(?:st|nd|rd|th)?(?: of)? )?"
    rf"(?:(?:{_MONTHS})\.?(?: [0-9]{{1,2}}(?:st|nd|rd|th)?)?(?:,?(?: of)? |,))?$"
)

# What may stand right beside; a dash or a bracket after a digit may be that of a range, a ratio or a formula.
_APART_BEFORE = re.compile(r"(?:^|\s|(?:^|(?<=\D))[(\[{\"“‘«~≈<>=—:;,|…]|(?<=[^\W\d_])/)$")
_APART_AFTER = re.compile(r"$|\s|[.,;:!?)\]}\"”»…'’]+(?:$|[\s—])|[-–—/](?=[^\W\d_])")
_ERA = r"(?:b\.? ?c\b|bce\b|b\. ?p\.|bp\b|a\. ?h\.|ah\b)"
_LINKED = r"(?:, ?(?:and |or )?| ?[-–—/] ?|[ -](?:to|and|or|and/or|through|versus|vs\.?|up to)[ -])"
_NEXT = rf"(?:about |some |nearly |perhaps |even )?(?:[a-z]{{0,3}}[$€£¥₹])?(?:{_NUMERAL}|{_COUNT_WORD}\b)"
_AMOUNT_CHANGED_BEFORE = re.compile(
    rf"(?:^|[^\w])(?:{_FRACTION}(?: of)?(?: an?)?|\d/\d+ of(?: an?)?|{_COUNT},?(?: and)?|point|-|\S*\d ?[x×*^]) $"
)
_AMOUNT_CHANGED_AFTER = re.compile(
    rf"(?: ?[-–/]|—) ?(?:[a-z]{{0,3}}[$€£¥₹])?(?:\d|{_COUNT_WORD}\b)"
    rf"|[ -]and[ -](?:(?:(?:an?|{_COUNT_WORD})[ -])?{_FRACTION}\b|\d+/\d)"
    rf"| ?(?:[ap]\.?m\b|o['’]clock)| ?[x×*^] ?\d|[)\]] ?\(?\d|[ -](?:odd|plus|something|ish|fold|first|second)\b"
    rf"| \(?{_COUNT}\b| ?\(?(?:{_ERA}|a\.? ?d\b|ce\b|c\.e\.)"
)
_SCALED_LATER = re.compile(
    rf"(?:{_LINKED}{_NEXT}(?:[ -](?:{_COUNT_WORD}\b|\d+/\d+))*)+[ -]?(?:(?:{_COUNT}|{_SIGN}|s|d|shillings?)\b|[%¢])"
)
_SCALED = re.compile(rf"(?<![^\W\d_])(?!hundred){_COUNT}(?![^\W\d_])")
_GOES_ON = re.compile(rf"(?:,| and|, and) {_NEXT}")
_COUNT_LAST = re.compile(rf"(?<![^\W\d_]){_COUNT}$")
# 12 000 is one number, and "12 345 men" may be two.
_GROUP_FIRST, _GROUP_AFTER = re.compile(r"\d{3}(?!\d)"), re.compile(r",? \d{3}(?!\d)")
_GROUP_LAST, _GROUP_BEFORE = re.compile(r"(?<![\d.,])\d{1,3}$"), re.compile(r"(?<![\d.,])\d{1,3} $")
_OTHER_MONEY = (
    "(?:argentin|austral|baham|barbad|beliz|bermud|brazil|brunei|canad|caribb|cayman|chile|colombia|confedera|cuba|"
    "cypr|dominican|egypt|ethiop|fiji|gibraltar|guyan|(?:hong )?kong|hongkong|irish|israel|jamaica|leban|liberia|libya|"
    "malay|malt|mexic|namibia|nigeria|rhodesia|scot|singapor|solomon|spanish|straits|sudan|surinam|syria|taiwan|"
    "trinidad|tobag|turk|tuvalu|urugua|(?:new )?zealand|zambia|zimbabw|"
    r"(?:au|aud|aus|cad|can|cdn|ec|hk|hkd|jmd|mx|mxn|nt|ntd|nz|nzd|sg|sgd|twd|xcd)\b)"
)
_OTHER_MONEY_BEFORE = re.compile(rf"(?<![^\W_]){_OTHER_MONEY}[a-z]*(?:['’]s)?,? $")
_OTHER_MONEY_AFTER = re.compile(rf",? ?[(\[]?(?:in )?{_OTHER_MONEY}")
_DATE_CHANGED_BEFORE = re.compile(
    r"(?<![^\W_])(?:earl(?:y|ier)|later?|mid|middle|(?:beginning|start) of|end|close|half|quarter|q[1-4]|spring|"
    rf"summer|autumn|fall|winter|season|fiscal|fy|(?:fiscal|financial|academic|school|crop|marketing|model) years?|"
    rf"circa|ca?\.|about|around|approximately|nearly|almost|christmas|easter|(?:{_MONTHS})\.?|[0-9]{{1,2}}(?:st|nd|rd|th)?|"
    rf"{_ERA}[.e]*)"
    "(?:,? (?:of|in|the year|the)){0,2},? $"
)
_DATE_CHANGED_AFTER = re.compile(
    rf"(?: ?[-–/] ?|—)\d|-| ['’]?s\b| or so\b| \(?(?:fiscal|financial|academic|school)\b| (?:{_WORD}|\d)"
    rf"| (?:{_MONTHS})\.? \d| (?:year|month|week|day|hour|hr|minute)s?\b|"
    r"(?:(?:to|and|or|until|till|through|in|from|about|around|circa|ca?\.|again|the|year|late|early)\b|[\s,.\d()–—/-])*"
    rf"{_ERA}"
)


def value_of(label: str, text: str, start: int, end: int) -> str | None:
    """Return the normal form of an entity, or None if its label has none or the words are not clear.

    - ``DATE``: ISO 8601, as exact as the text: ``1945``, ``1945-05`` or ``1945-05-08``; none before our era;
    - ``MONEY``: amount and currency by ISO 4217, ``3500000 USD``; dollars and cents of no named country are those of
      the United States;
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
    before, words, after = map(_simplified, pieces)
    words = words.strip()
    whole = _date_in(before, words, after) if label == "DATE" else _amount_in(label, before, words, after)
    return _READERS[label](whole) if whole and len(whole) <= _LONGEST else None


def _simplified(text: str) -> str:
    return re.sub("--+", "—", re.sub(r"\s+", " ", visible(text))).lower().replace("−", "-")


def _amount_in(label: str, before: str, words: str, after: str) -> str | None:
    """Return the whole amount of which some words are given, or None if what is beside it could change it."""
    if right := _AMOUNT_AFTER.match(after):
        words, after = words + right[0], after[right.end() :]
    pattern = _FRACTION_BEFORE if _IS_FRACTION.match(words) else _DIGITS_BEFORE
    if left := (_WORDS_BEFORE if words[:1].isalpha() else pattern).search(before):
        before, words = before[: left.start()], left[0] + words
    if words.startswith("$") and (named := _NAMED_DOLLAR.search(before)):
        before, words = before[: named.start()], named[0] + words
    if sign := _MINUS_BEFORE.search(before):
        before, words = before[: sign.start()], f"-{words}"
    is_scaled = label == "PERCENT" or _SCALED.search(words)
    if (
        not (_APART_BEFORE.search(before) and _APART_AFTER.match(after))
        or _AMOUNT_CHANGED_BEFORE.search(before)
        or _AMOUNT_CHANGED_AFTER.match(after)
        or (_COUNT_LAST.search(words) and _GOES_ON.match(after))
        or (_GROUP_LAST.search(words) and _GROUP_AFTER.match(after))
        or (_GROUP_FIRST.match(words) and _GROUP_BEFORE.search(before))
        or (not is_scaled and _SCALED_LATER.match(after))
        or (label == "MONEY" and (_OTHER_MONEY_BEFORE.search(before) or _OTHER_MONEY_AFTER.match(after)))
    ):
        return None
    return words


def _date_in(before: str, words: str, after: str) -> str | None:
    """Return the whole date of which some words are given, or None if what is beside it could change it."""
    if left := _DATE_BEFORE.search(before):
        before, words = before[: left.start()], left[0] + words
    if (
        not (_APART_BEFORE.search(before) and _APART_AFTER.match(after))
        or _DATE_CHANGED_BEFORE.search(before)
        or _DATE_CHANGED_AFTER.match(after)
    ):
        return None
    return words


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
        elif place == 1 and words[0].isdecimal() and group is not None and (part := _MIXED.fullmatch(word)):
            if int(part[1]) >= int(part[2]):
                return None
            group += Decimal(part[1]) / Decimal(part[2])
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
