"""Where words and sentences never end, and where they always do, whatever a tokenizer's network has said.

A network learns the letters of some languages, and cuts words of others anywhere: these rules need no training.
"""

import re
from itertools import pairwise
from unicodedata import category

from concord.pipeline.parsing.tokens import Token, make_token

# Digits of any script, with the comma and the point of Latin or Arabic script between them.
_NUMBER = re.compile(r"\d+(?:[.,\u066b\u066c]\d+)+")
# Letters of scripts that write no spaces between words: Thai, Lao, Tibetan, Burmese, Khmer, Kana and Han.
_UNSPACED = re.compile(
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]+"
)
# What Universal Dependencies has as two words in English, and the bundled tokenizer of many languages has learned so.
_CONTRACTION = re.compile(
    "(?:ai|are|ca|could|did|do|does|had|has|have|is|might|must|need|ought|sha|should|was|were|wo|would)n['’`]t"
    "|(?:can|got|gon|wan)(?:not|na|ta)",
    re.IGNORECASE,
)
# The apostrophe of Ukrainian, and the sign before the last letter of a Hebrew abbreviation.
_MARK_WITHIN = re.compile(
    "(?<=[\u0400-\u052f])['’`](?=[\u0400-\u052f])|(?<=[\u05d0-\u05ea])[\"\u05f4](?=[\u05d0-\u05ea](?![\u05d0-\u05ea]))"
)
# A letter of Greek, Cyrillic or another script that is not Latin, and a space. The bundled tokenizers have hardly seen
# such letters and end sentences behind them at random; other texts end them so only where a line ends, too.
_UNFINISHED = re.compile("(?=[^\\W\\d_])[\u0370-\u0dff\u10a0-\u10ff\u1f00-\u1fff] ")
# What may be a symbol, a quotation mark or a bracket. An apostrophe is none, nor is the sign of degrees ("n° 5"); where
# ‘ ends a word, it is the second quotation mark of German.
_SIGN = re.compile(r"[^\w\s\x00-\x7f‘’‛°]|‘(?!\w)|[][(){}]")
_CORE = re.compile(r"\w(?:.*\w)?", re.DOTALL)
_BRACKETS = {"(": ")", "[": "]", "{": "}", ")": "(", "]": "[", "}": "{"}
# An ordinal number of German: before a month, if a preposition is before it also one that English has, or in a club.
_ORDINAL = re.compile(
    r"(?<![\w.,])(?:([Aa]m|[Bb]is|[Vv]om|[Zz]um) )?\d{1,2}(\.) "
    r"(?:(?:Januar|Jänner|Februar|März|Mai|Juni|Juli|Oktober|Dezember)\b|(?<=\b1\. )(?:FC|FFC|FSV|BC|SC|SV|VC)\b ?"
    r"|(?(1)(?:April|August|September|November)\b|(?!)))"
)


def mend_words(view: str, sentences: list[list[Token]], *, letters: bool) -> list[list[Token]]:
    """Return the tokens of a text, with words that end where they should.

    No word, and so no sentence, ends within a number or a list of them without spaces (``1990,1991``), before a mark of
    a letter, or between two symbols. Symbols are words of their own, as are quotation marks and brackets around words.

    Args:
        letters: whether no word ends between two letters either, and no sentence after a German ordinal number: not for
            a package that has learned one language, whose words may end there.
    """
    whole = _places_within(_NUMBER, view)
    mended, goes_on = list[list[Token]](), set[int]()
    if letters:
        whole |= _places_within(_UNSPACED, view)
        for match in _ORDINAL.finditer(view):
            whole.add(match.start(2))
            goes_on.update((match.end(2) + 1, match.end()))
    for sentence in sentences:
        before, first = mended[-1][-1] if mended else None, sentence[0]
        goes_on_here = before and (first.start in goes_on or _is_one_word(view, before, first, whole, letters))
        is_unfinished = before and letters and _UNFINISHED.fullmatch(view, before.end - 1, first.start)
        tokens = mended.pop() if goes_on_here or is_unfinished else []
        for found in sentence:
            for token in _split(view, found) if _SIGN.search(view, found.start, found.end) else (found,):
                if tokens and tokens[-1].end == token.start and _is_one_word(view, tokens[-1], token, whole, letters):
                    tokens[-1] = _joined(view, tokens[-1], token)
                    if view[token.start].isalpha() and view.startswith(" ", token.end):
                        # A network that has cut a word often ends the sentence behind it, too.
                        goes_on.add(token.end + 1)
                else:
                    tokens.append(token)
        mended.append(tokens)
    return mended


def is_unspaced(view: str) -> bool:
    """Return whether more than half of a text's letters are of scripts that write no spaces between words."""
    return 2 * sum(map(len, _UNSPACED.findall(view))) > sum(map(str.isalpha, view))


def _places_within(pattern: re.Pattern[str], view: str) -> set[int]:
    return {place for match in pattern.finditer(view) for place in range(match.start() + 1, match.end())}


def _is_one_word(view: str, before: Token, token: Token, whole: set[int], letters: bool) -> bool:
    """Return whether two tokens are parts of one word."""
    place, right = token.start, view[token.start]
    if before.end != place or right in ",.;:?!":
        return place in whole
    if place in whole or (not right.isascii() and category(right)[0] == "M"):
        return True
    base = place - 1
    while base > before.start and category(view[base])[0] == "M":
        base -= 1
    left = view[base]
    if left.isalpha() and right.isalpha():
        is_split = _UNSPACED.match(left) or _UNSPACED.match(right)
        return letters and not (is_split or _CONTRACTION.fullmatch(view, before.start, token.end))
    is_within = letters and any(_MARK_WITHIN.match(view, at) for at in (place - 1, place))
    return is_within or (_is_symbol(left) and _is_symbol(right))


def _is_symbol(character: str) -> bool:
    is_skin_tone = "\U0001f3fb" <= character <= "\U0001f3ff"
    return is_skin_tone or (category(character) == "So" and character != "°")


def _joined(view: str, before: Token, token: Token) -> Token:
    *first, left = (word.form for word in before.words)
    right, *last = (word.form for word in token.words)
    return make_token(view, before.start, token.end, [*first, left + right, *last])


def _split(view: str, token: Token) -> list[Token]:
    """Split a token before and after symbols, and quotation marks and brackets at its edges, unless it has a space."""
    text = view[token.start : token.end]
    if len(text.split()) > 1 or any(word.end - word.start == len(text) for word in token.words[1:]):
        return [token]
    tokens, cuts = [], _cuts(view, token.start, token.end)
    for start, end in pairwise([token.start, *cuts, token.end]):
        words = [(max(start, word.start), min(end, word.end)) for word in token.words]
        tokens.append(make_token(view, start, end, [view[slice(*word)] for word in words if word[0] < word[1]]))
    return tokens


def _cuts(view: str, start: int, end: int) -> list[int]:
    """Return the places within a token where a word ends."""
    core = _CORE.search(view, start, end)  # from its first letter or digit to its last
    cuts, after = set[int](), start
    for match in _SIGN.finditer(view, start, end):
        first, is_symbol = match.start(), _is_symbol(match[0])
        if first >= after and (is_symbol or _is_outer(match, core)):
            after = match.end()
            while after < end and (category(view[after])[0] == "M" or (is_symbol and _is_symbol(view[after]))):
                after += 1
            cuts.update((first, after))
    return sorted(cuts - {start, end})


def _is_outer(sign: re.Match[str], core: re.Match[str] | None) -> bool:
    """Return whether a quotation mark or bracket is at an edge of a word's core; those of ":)" and "(s)he" are not."""
    mark, other = sign[0], _BRACKETS.get(sign[0], "")
    if category(mark) not in {"Pi", "Pf", "Ps", "Pe"} or (core and core.start() < sign.start() < core.end()):
        return False
    return not other or (core is not None and other not in core[0])
