"""Where words and sentences never end, and where they always do, whatever a tokenizer's network has said.

A network learns the letters of some languages, and cuts words of others anywhere: these rules need no training. Like
``tokens``, they read one document at a time.
"""

import re
from itertools import pairwise
from unicodedata import category

from concord.pipeline.names.language import language_of
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
_SKIN_TONES = "\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff"

_ARTICLES = "[Aa]m|[Bb]eim|[Dd](?:as|e[mnrs]|ie)|[Ii]m|[Vv]om|[Zz]u[mr]"
_MONTHS = "Januar|Jänner|Februar|März|Mai|Juni|Juli|Oktober|Dezember"  # those that English has not
_CLUBS = "FC|FFC|FSV|BC|SC|SV|VC"
_OPENERS = (
    "Aber|Als|Am|An|Auch|Auf|Aus|Bei|Da|Damit|Danach|Dann|Das|Dem|Den|Der|Deshalb|Die|Dies|Diese|Dieser|Dieses|Doch|"
    "Dort|Ein|Eine|Einen|Einem|Einer|Er|Es|Für|Hier|Ich|Ihr|Ihre|Im|In|Man|Mit|Nach|Nun|Nur|Ob|Seit|Sein|Seine|Sie|So|"
    "Und|Unter|Vom|Von|Vor|Was|Weil|Wenn|Wer|Wie|Wir|Zu|Zum|Zur"
)
# An ordinal number of German: a month follows it, the name of a club, or, if an article is before it, a word in a
# capital that does not only begin sentences.
_ORDINAL = re.compile(
    rf"(?<![\w.,])(?:({_ARTICLES}) )?\d{{1,2}}(\.) "
    rf"(?:(?:{_MONTHS})\b|(?<=\b1\. )(?:{_CLUBS})\b ?|(?(1)(?!(?:{_OPENERS})\b)[A-ZÄÖÜ]|(?!)))"
)


def mend_words(view: str, sentences: list[list[Token]], *, letters: bool) -> list[list[Token]]:
    """Return the tokens of a text, with words that end where they should.

    No word, and so no sentence, ends within a number (digits with commas or points between them; a list without spaces,
    ``1990,1991``, is then one word too), before a combining mark, or between two symbols. Symbols are words of their
    own, as are the quotation marks and brackets at the edges of a word.

    Args:
        letters: whether no word ends between two letters either, and no sentence after an ordinal number of German: not
            for a package that has learned one language, whose words may end there.
    """
    whole = _places_within(_NUMBER, view)
    goes_on: set[int] = set()
    if letters:
        whole |= _places_within(_UNSPACED, view)
        for match in _ORDINAL.finditer(view):
            if (language := language_of(view)) is not None and language.code == "de":
                whole.add(match.start(2))
                goes_on.update((match.end(2) + 1, match.end()))
    mended: list[list[Token]] = []
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
    unspaced = sum(len(match[0]) for match in _UNSPACED.finditer(view))
    return bool(unspaced) and 2 * unspaced > sum(map(str.isalpha, view))


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
    if left.isascii() and right.isascii():
        return False
    is_within = letters and any(_MARK_WITHIN.match(view, at) for at in (place - 1, place))
    return is_within or (_is_symbol(left) and _is_symbol(right))


def _is_symbol(character: str) -> bool:
    return character in _SKIN_TONES or (category(character) == "So" and character != "°")


def _joined(view: str, before: Token, token: Token) -> Token:
    *first, left = (word.form for word in before.words)
    right, *last = (word.form for word in token.words)
    return make_token(view, before.start, token.end, [*first, left + right, *last])


def _split(view: str, token: Token) -> list[Token]:
    """Split a token before and after symbols, and quotation marks and brackets at its edges."""
    text = view[token.start : token.end]
    if len(text) == 1 or text.isalnum() or any(word.end - word.start == len(text) for word in token.words[1:]):
        return [token]
    tokens, cuts = [], _cuts(view, token.start, token.end)
    for start, end in pairwise([token.start, *cuts, token.end]):
        words = [(max(start, word.start), min(end, word.end)) for word in token.words]
        tokens.append(make_token(view, start, end, [view[slice(*word)] for word in words if word[0] < word[1]]))
    return tokens if cuts else [token]


def _cuts(view: str, start: int, end: int) -> list[int]:
    """Return the places within a token where a word ends; none if it has white space."""
    core = _CORE.search(view, start, end)
    cuts: set[int] = set()
    after = start
    for match in _SIGN.finditer(view, start):
        first = match.start()
        if first >= end:
            break
        is_symbol = _is_symbol(match[0])
        if first >= after and (is_symbol or _is_outer(view, first, core)):
            after = first + 1
            while after < end and (category(view[after])[0] == "M" or (is_symbol and _is_symbol(view[after]))):
                after += 1
            cuts.update((first, after))
    return sorted(cuts - {start, end}) if len(view[start:end].split()) == 1 else []


def _is_outer(view: str, place: int, core: re.Match[str] | None) -> bool:
    """Return whether a quotation mark or bracket is at an edge of a word; those of ":)" and "(s)he" are not.

    Args:
        core: the token from its first letter or digit to its last.
    """
    mark = view[place]
    if category(mark) not in {"Pi", "Pf", "Ps", "Pe"} or (core and core.start() < place < core.end()):
        return False
    if mark not in _BRACKETS:
        return True
    if core is None or _BRACKETS[mark] in core[0]:
        return False
    neighbour = view[place + 1] if place < core.start() else view[place - 1]
    return neighbour not in ":;=-*^'"
