"""Names of seven more types beside the gold names: silver labels, by rules and as spaCy's pipeline predicts them.

No gold set has them. A rule that is certain (an amount after the sign of a currency, a number before a sign of per
cent, a faith or nationality with a capital) goes before a prediction, and gold before both. A prediction is dropped
where a rule is certain that it is none of its type; what has no currency is no money, but may be a number.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from concord.models.data.sentence import Sentence
from concord.models.labels import Span, decode_spans, encode_spans
from research.entities_en.words import WORDS

GOLD_TYPES = ("LOC", "ORG", "PER")
TYPES = ("CARDINAL", "DATE", "MONEY", "NORP", "ORDINAL", "PERCENT", "TIME")
_COUNTED = (
    r"one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen|twenty|thirty|fou?rty|fifty|sixty|seventy"
    r"|eighty|ninety|\w+ty-\w+|hundreds?|thousands?|[mb]illions?|trillions?|dozens?|half|couple|pair|score|zero|[ivxlc]+"
)
_EVIDENCE = {
    "CARDINAL": rf".*\d.*|{_COUNTED}",
    "DATE": (
        r".*\d.*|(jan|febr)(uary)?|march|april|may|june|july|august|(sept|octo|novem|decem)(em)?(ber)?|.*day|.*days"
        r"|.*(year|month|week|decade|centur|season|quarter|annual|fortnight|era)\w*|spring|summer|autumn|fall|winter|daily"
        r"|tomorrow|now|once|recent|recently|past|future|christmas|easter|thanksgiving|twenties|thirties|old|.*ties"
        r"|ramadan|hanukkah|passover|halloween|last|next|previous|current|lately|today"
    ),
    "MONEY": (
        r".*[$£€¥₹].*|.*dollars?|pounds?|euros?|cents?|pennies|penny|pence|shillings?|francs?|yen|yuan|rubles?|roubles?"
        r"|pesos?|rupees?|marks?|crowns?|guineas?|bucks?|usd|eur|gbp|sterling|sous?|florins?|ducats?|liras?|won|rs|rands?"
    ),
    "NORP": r".*",
    "ORDINAL": (
        r"\d+(st|nd|rd|th)|(\w+-)?(first|second|third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|eleventh|twelfth"
        r"|\w+teenth|\w+tieth|hundredth|thousandth|millionth|last)|firstly|secondly|thirdly"
    ),
    "PERCENT": r".*%.*|per-?cents?|percentages?|pct|cents?",
    "TIME": (
        r".*\d.*|.*(hour|minute|second|moment)s?|mornings?|afternoons?|evenings?|.*nights?|noon|midnight|dawn|dusk|sunset"
        r"|sunrise|tonight|[ap]\.?m\.?|o'clock|daybreak|midday"
    ),
}
_NUMBER = re.compile(r"[-+−]?\d[\d.,]*")
_AMOUNT = re.compile(r"[-−]?(US|A|C|NZ|HK)?[$£€¥]\d[\d.,]*")
_SIGN = re.compile(r"[-−]?(US|A|C|NZ|HK)?[$£€¥]")
_SHARE = re.compile(r"[-+−]?\d[\d.,]*%")
# As in the headers of pages: "05-51226".
_NUMBER_OF_A_CASE = re.compile(r"\d+(-\d{3,})+")
_SCALES = {"thousand", "million", "billion", "trillion"}
_NUMBER_OR_SCALE = re.compile(rf".*\d.*|{_COUNTED}", re.IGNORECASE)
_PEOPLES = (WORDS["demonyms"] - WORDS["languages"]) | WORDS["faiths"]
_PATTERNS = {kind: re.compile(pattern, re.IGNORECASE) for kind, pattern in _EVIDENCE.items()}


def is_plausible(words: Sequence[str], kind: str) -> bool:
    """Return whether words hold what a name of the type must hold: a currency, a number, a word of time, a capital."""
    if kind == "NORP":
        return any(word[0].isupper() for word in words)
    if kind == "CARDINAL" and all(_NUMBER_OF_A_CASE.fullmatch(word) for word in words):
        return False
    return any(_PATTERNS[kind].fullmatch(word) for word in words)


def find_certain(words: Sequence[str]) -> list[Span]:
    """Return the amounts, shares and peoples of which rules are certain."""
    found: list[Span] = []
    start = 0
    while start < len(words):
        end, kind = next(filter(None, (rule(words, start) for rule in (_money, _percent, _people))), (start + 1, ""))
        if kind:
            first = start - 1 if kind != "NORP" and _is_minus(words, start - 1) else start
            found.append(Span(first, end, kind))
        start = end
    return found


def mend(words: Sequence[str], spans: Sequence[Span]) -> tuple[list[Span], Counter[str]]:
    """Return spans with those of rules in place of predicted ones of the seven types, and how many were dropped."""
    kept = [span for span in spans if span.label not in TYPES]
    taken = {word for span in kept for word in range(span.start, span.end)}
    certain = [span for span in find_certain(words) if taken.isdisjoint(range(span.start, span.end))]
    taken |= {word for span in certain for word in range(span.start, span.end)}
    dropped: Counter[str] = Counter()
    for span in spans:
        if span.label in TYPES and taken.isdisjoint(range(span.start, span.end)):
            inside = words[span.start : span.end]
            if is_plausible(inside, span.label):
                certain.append(span)
            else:
                dropped[span.label] += 1
                if span.label in {"MONEY", "PERCENT"} and all(_NUMBER_OR_SCALE.fullmatch(word) for word in inside):
                    certain.append(Span(span.start, span.end, "CARDINAL"))
    return sorted([*kept, *certain], key=lambda span: span.start), dropped


def add_silver(sentence: Sentence, predicted: Sequence[str], dropped: Counter[str]) -> Sentence:
    """Return a sentence with the names of the seven types beside its gold ones; ``dropped`` counts, by type.

    ``predicted`` are spaCy's labels in BIO2, of all its types.
    """
    gold = decode_spans(sentence.labels or ["O"] * len(sentence.words), "BIO")
    silver = [span for span in decode_spans(predicted, "BIO") if span.label in TYPES]
    spans, without = mend(sentence.words, [*gold, *silver])
    dropped.update(without)
    return replace(sentence, labels=encode_spans(spans, len(sentence.words), "BIO"))


def _money(words: Sequence[str], start: int) -> tuple[int, str] | None:
    if not (_AMOUNT.fullmatch(words[start]) or (_SIGN.fullmatch(words[start]) and _is_number(words, start + 1))):
        return None
    end = start + (1 if _AMOUNT.fullmatch(words[start]) else 2)
    return end + (end < len(words) and words[end].lower() in _SCALES), "MONEY"


def _percent(words: Sequence[str], start: int) -> tuple[int, str] | None:
    if _SHARE.fullmatch(words[start]):
        return start + 1, "PERCENT"
    if not _is_number(words, start):
        return None
    end = start + 1
    if end < len(words) and words[end].lower() in {"to", "-", "–", "or"} and _is_number(words, end + 1):
        end += 2
    rest = [word.lower() for word in words[end : end + 2]]
    if rest[:1] in (["%"], ["percent"], ["pct"]):
        return end + 1, "PERCENT"
    return (end + 2, "PERCENT") if rest in (["per", "cent"], ["percentage", "points"]) else None


def _people(words: Sequence[str], start: int) -> tuple[int, str] | None:
    end = start
    while end < len(words) and words[end][0].isupper() and _singular(words[end]) in _PEOPLES:
        end += 1
    # With a capital before or behind, it may be a part of a longer name.
    is_free = end == len(words) or not words[end][0].isupper()
    is_free &= start in {0, end} or not words[start - 1][0].isupper()
    return (end, "NORP") if end > start and is_free else None


def _singular(word: str) -> str:
    lower = word.lower()
    return lower if lower in _PEOPLES else lower.removesuffix("s")


def _is_number(words: Sequence[str], place: int) -> bool:
    return place < len(words) and _NUMBER.fullmatch(words[place]) is not None


def _is_minus(words: Sequence[str], place: int) -> bool:
    return place >= 0 and words[place] in {"-", "−"} and (place == 0 or not words[place - 1][-1].isalnum())
