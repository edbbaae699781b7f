"""Token patterns: conditions on the words of a term, in the form of spaCy's Matcher."""

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, cast

Operator = Literal["once", "?", "+", "*", "!"]
_OPERATORS = ("?", "+", "*", "!")
_REMEMBERED_WORDS = 65_536
_LONGEST_RUN = 4
_NUMBER = re.compile(r"[+\-±~]?\d[\d.,]*(/\d+)?")


class PatternError(ValueError):
    """A pattern that is not of the documented form; the message says what was expected and what was found."""


def word_shape(word: str) -> str:
    """Return the shape of a word: X, x and d for capitals, other letters and digits, runs cut to four characters."""
    shape = ""
    for character in word:
        kind = character
        if character.isalpha():
            kind = "X" if character.isupper() else "x"
        elif character.isdigit():
            kind = "d"
        if not shape.endswith(kind * _LONGEST_RUN):
            shape += kind
    return shape


def _is_punctuation(word: str) -> bool:
    return bool(word) and all(unicodedata.category(character).startswith("P") for character in word)


_TEXTS: Mapping[str, Callable[[str], str]] = {"TEXT": str, "ORTH": str, "LOWER": str.lower, "SHAPE": word_shape}
_FLAGS: Mapping[str, Callable[[str], bool]] = {
    "IS_ALPHA": str.isalpha,
    "IS_ASCII": str.isascii,
    "IS_DIGIT": str.isdigit,
    "IS_LOWER": str.islower,
    "IS_UPPER": str.isupper,
    "IS_TITLE": str.istitle,
    "IS_PUNCT": _is_punctuation,
    "LIKE_NUM": lambda word: _NUMBER.fullmatch(word) is not None,
}
ATTRIBUTES = (*_TEXTS, "POS", *_FLAGS)

Condition = Callable[[str], bool]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TokenPattern:
    """The condition on one word, and how many words it stands for."""

    on_word: Condition
    on_tag: Condition | None
    """Condition on the universal part of speech; None if the pattern has none."""
    operator: Operator
    words: frozenset[str] | None
    """The only words that it accepts, in lower case; None if there are others."""

    def accepts(self, word: str, tag: str | None) -> bool:
        """Return whether the pattern takes a word; with the operator ``!`` it takes those that it does not describe."""
        described = self.on_word(word) and (self.on_tag is None or (tag is not None and self.on_tag(tag)))
        return described != (self.operator == "!")


def read_token_pattern(values: object) -> TokenPattern:
    """Read the description of a word, such as ``{"LOWER": "mg"}`` or ``{"IS_DIGIT": true, "OP": "+"}``.

    Raises:
        PatternError: when it is not of the documented form.
    """
    if not isinstance(values, dict):
        raise PatternError(f"pattern: expected an object for each word, got {values!r}")
    operator = values.get("OP", "once")
    if "OP" in values and operator not in _OPERATORS:
        raise PatternError(f"OP: expected one of {' '.join(_OPERATORS)}, got {operator!r}")
    conditions: list[Condition] = []
    on_tag: Condition | None = None
    words: frozenset[str] | None = None
    for name, value in values.items():
        if name in _FLAGS:
            conditions.append(_flag_condition(name, value))
        elif name in _TEXTS:
            conditions.append(_text_condition(name, value))
            words = _only_words(name, value, known=words)
        elif name == "POS":
            on_tag = _value_condition(name, value)
        elif name != "OP":
            raise PatternError(f"expected OP or one of {', '.join(ATTRIBUTES)}, got {name!r}")
    on_word = lru_cache(_REMEMBERED_WORDS)(lambda word: all(condition(word) for condition in conditions))
    return TokenPattern(on_word=on_word, on_tag=on_tag, operator=operator, words=words)


def match_ends(
    pattern: Sequence[TokenPattern], words: Sequence[str], tags: Sequence[str] | None, start: int
) -> list[int]:
    """Return the ends, half-open and rising, of all matches of a pattern that begin at a word."""
    ends: list[int] = []
    states = _with_skipped({0}, pattern)
    for place in range(start, len(words)):
        word, tag = words[place], None if tags is None else tags[place]
        taken: set[int] = set()
        for state in states:
            if state < len(pattern) and pattern[state].accepts(word, tag):
                taken.add(state + 1)
                if pattern[state].operator in ("+", "*"):
                    taken.add(state)
        states = _with_skipped(taken, pattern)
        if not states:
            break
        if len(pattern) in states:
            ends.append(place + 1)
    return ends


def _with_skipped(states: Iterable[int], pattern: Sequence[TokenPattern]) -> set[int]:
    """Add what is reached without a word, past the patterns that may stand for none."""
    reached: set[int] = set()
    for first in states:
        state = first
        reached.add(state)
        while state < len(pattern) and pattern[state].operator in ("?", "*"):
            state += 1
            reached.add(state)
    return reached


def _flag_condition(name: str, value: object) -> Condition:
    if not isinstance(value, bool):
        raise PatternError(f"{name}: expected true or false, got {value!r}")
    flag = _FLAGS[name]
    return lambda word: flag(word) is value


def _text_condition(name: str, value: object) -> Condition:
    of_word, accepts = _TEXTS[name], _value_condition(name, value)
    return lambda word: accepts(of_word(word))


def _value_condition(name: str, value: object) -> Condition:
    if isinstance(value, str):
        return lambda text: text == value
    if not isinstance(value, dict) or not value:
        raise PatternError(f'{name}: expected a string, or an object such as {{"IN": ["mg", "ml"]}}, got {value!r}')
    conditions = [_set_condition(name, key, wanted) for key, wanted in value.items()]
    return lambda text: all(condition(text) for condition in conditions)


def _set_condition(name: str, key: str, wanted: Any) -> Condition:
    if key == "REGEX" and isinstance(wanted, str):
        try:
            expression = re.compile(wanted)
        except re.error as error:
            raise PatternError(f"{name}: expected a regular expression, got {wanted!r}: {error}") from error
        return lambda text: expression.search(text) is not None
    is_strings = isinstance(wanted, list) and all(isinstance(entry, str) for entry in wanted)
    if key not in ("IN", "NOT_IN") or not is_strings:
        raise PatternError(
            f"{name}: expected IN or NOT_IN with a list of strings, or REGEX with a string, got {{{key!r}: {wanted!r}}}"
        )
    listed, inside = frozenset(wanted), key == "IN"
    return lambda text: (text in listed) is inside


def _only_words(name: str, value: object, *, known: frozenset[str] | None) -> frozenset[str] | None:
    """Return the words that a condition on text or LOWER leaves, in lower case; None if it leaves others."""
    listed = value.get("IN") if isinstance(value, dict) else [value]
    if name == "SHAPE" or listed is None:
        return known
    words = frozenset(word.lower() for word in cast(list[str], listed))
    return words if known is None else words & known
