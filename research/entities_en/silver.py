"""Names of seven more types, as spaCy's pipeline predicts them beside the gold names: silver labels.

No gold set has them. A prediction is dropped where it overlaps a gold name, and where a rule is certain that it is none
of its type.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from concord.models.data.sentence import Sentence
from concord.models.labels import Span, decode_spans, encode_spans

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
_PATTERNS = {kind: re.compile(pattern, re.IGNORECASE) for kind, pattern in _EVIDENCE.items()}


def is_plausible(words: Sequence[str], kind: str) -> bool:
    """Return whether words hold what a name of the type must hold: a currency, a number, a word of time, a capital."""
    if kind == "NORP":
        return any(word[0].isupper() for word in words)
    return any(_PATTERNS[kind].fullmatch(word) for word in words)


def add_silver(sentence: Sentence, predicted: Sequence[str], dropped: Counter[str]) -> Sentence:
    """Return a sentence with the names of the seven types beside its gold ones; ``dropped`` counts, by type.

    ``predicted`` are spaCy's labels in BIO2, of all its types.
    """
    gold = list(decode_spans(sentence.labels or ["O"] * len(sentence.words), "BIO"))
    taken = {word for span in gold for word in range(span.start, span.end)}
    found: list[Span] = []
    for span in decode_spans(predicted, "BIO"):
        if span.label in TYPES and taken.isdisjoint(range(span.start, span.end)):
            if is_plausible(sentence.words[span.start : span.end], span.label):
                found.append(span)
            else:
                dropped[span.label] += 1
    spans = sorted([*gold, *found], key=lambda span: span.start)
    return replace(sentence, labels=encode_spans(spans, len(sentence.words), "BIO"))
