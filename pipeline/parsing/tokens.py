"""Text before and after the networks: paragraphs, windows, tokens, pieces of long sentences, and the check of offsets.

Offsets are half-open and count code points of the raw text. Nothing here depends on Stanza; everything is a pure
function of one document, so that its parse never depends on the other documents of a batch.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from concord.models.data.sentence import INVISIBLE, line_breaks, visible, without_line_breaks

# Labels that Stanza's tokenizer gives to characters: 0 inside a token, else the end of a token, of a sentence, of a
# multi-word token, or of both a multi-word token and a sentence.
TOKEN_END = 1
SENTENCE_END = 2
MULTI_WORD_END = 3
BOTH_END = 4

SENTENCE_CAP = 200
"""In words; a longer sentence is parsed in pieces marked `continues`."""

# Characters of Windows-1252 for the code points U+0080..U+009F. Stanza treats these as white space and would lose them;
# in real text they are almost always punctuation of a file that was decoded as Latin-1. U+0085 is white space in
# Python too and stays so; the five that Windows-1252 leaves undefined become U+FFFD.
_AS_WINDOWS_1252 = {
    code: bytes([code]).decode("cp1252", errors="replace") for code in range(0x80, 0xA0) if code != 0x85
}

_BLANK_LINES = re.compile(r"\n\s*\n")
_WHITE_SPACE = re.compile(r"\s")
_CLOSING = re.compile(r"[^\w\s]+")


class TokenSpan(NamedTuple):
    """A token as labelled by the tokenizer: its offsets in the document, and its text with single spaces."""

    start: int
    end: int
    text: str
    is_multi_word: bool


class WordAnalysis(NamedTuple):
    """Output of lemmatizer, tagger and parser for a word, as in ParsedWord; ``head`` is 1-based, 0 for a root."""

    lemma: str | None = None
    upos: str | None = None
    xpos: str | None = None
    feats: str | None = None
    head: int | None = None
    deprel: str | None = None


class SyntacticWord(NamedTuple):
    """A syntactic word; it has the offsets of its whole token if it is not a slice of it."""

    start: int
    end: int
    form: str
    analysis: WordAnalysis | None = None
    """None if it is still to be made."""


class Token(NamedTuple):
    """A token of the raw text and its words, at least one."""

    start: int
    end: int
    words: tuple[SyntacticWord, ...]


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A paragraph, with each run of white space replaced by one space.

    Attributes:
        offsets: of each character in the document.
    """

    characters: str
    offsets: Sequence[int]


def parser_view(text: str) -> str:
    """Return the text that the parser reads.

    No word is broken at the end of a line, and no code point is invisible, or one that the parser would skip.
    """
    return visible(without_line_breaks(text)).translate(_AS_WINDOWS_1252)


def restore_offsets(text: str, view: str, sentences: list[list[Token]]) -> list[list[Token]]:
    """Return the tokens of a text's view with offsets in the text.

    An invisible character belongs to the word before it; after white space, to the word after it; between white space,
    to none. What breaks a word at the end of a line belongs to this word.
    """
    if len(view) == len(text):
        return sentences
    hidden = {match.start() for match in INVISIBLE.finditer(text)}
    hidden.update(chain.from_iterable(range(*bounds) for bounds in line_breaks(text)))
    places = [*(place for place in range(len(text)) if place not in hidden), len(text)]

    def start_of(place: int) -> int:
        if place and not view[place - 1].isspace():
            return places[place]
        return places[place - 1] + 1 if place else 0

    def end_of(place: int) -> int:
        end = places[place]
        while text[end - 1].isspace():  # where a line ends between two words, of which the parser reads one
            end -= 1
        return end

    def restored(token: Token) -> Token:
        words = tuple(word._replace(start=start_of(word.start), end=end_of(word.end)) for word in token.words)
        return Token(start_of(token.start), end_of(token.end), words)

    return [list(map(restored, sentence)) for sentence in sentences]


def split_paragraphs(view: str) -> Iterator[Paragraph]:
    """Split text at blank lines; paragraphs without a visible character are left out."""
    start = 0
    for stop, next_start in [*(gap.span() for gap in _BLANK_LINES.finditer(view)), (len(view), len(view))]:
        piece = view[start:stop].rstrip()
        if piece:
            yield _collapse_spaces(piece, start=start)
        start = next_start


def _collapse_spaces(piece: str, *, start: int) -> Paragraph:
    spaced = _WHITE_SPACE.sub(" ", piece)
    if "  " not in spaced:
        return Paragraph(spaced, range(start, start + len(spaced)))
    kept = [i for i, character in enumerate(spaced) if character != " " or i == 0 or spaced[i - 1] != " "]
    return Paragraph("".join(spaced[i] for i in kept), [start + i for i in kept])


def window_cut(characters: str, labels: NDArray[np.integer], *, start: int, safe: int) -> int:
    """Choose where the next window of a paragraph starts.

    Args:
        labels: of the window's characters, shape ``(window,)``.
        start: where the window starts in the paragraph.
        safe: how many of its characters have enough context to their right.

    Returns:
        a position in the paragraph after ``start``: after the window's last safe sentence, else at its last safe
        white space, else where the safe characters end. It only ends a window, never a token or sentence.
    """
    ends = np.flatnonzero((labels[:safe] == SENTENCE_END) | (labels[:safe] == BOTH_END))
    if ends.size:
        return start + int(ends[-1]) + 1
    space = characters.rfind(" ", start + 1, start + safe)
    return space if space > start else start + safe


def sentences_of(paragraph: Paragraph, labels: NDArray[np.integer]) -> Iterator[list[TokenSpan]]:
    """Convert the labels of a paragraph's characters, of which the last ends a sentence, to sentences of tokens."""
    sentence: list[TokenSpan] = []
    first = 0
    lasts = np.flatnonzero(labels)
    for last, label in zip(lasts.tolist(), labels[lasts].tolist(), strict=True):
        marked = paragraph.characters[first : last + 1]
        begin = first + len(marked) - len(marked.lstrip())
        text = marked.strip()
        first = last + 1
        if not text:
            continue
        start, end = paragraph.offsets[begin], paragraph.offsets[begin + len(text) - 1] + 1
        sentence.append(TokenSpan(start, end, text, label >= MULTI_WORD_END))
        if label in (SENTENCE_END, BOTH_END):
            yield sentence
            sentence = []
    if sentence:
        yield sentence


def make_token(view: str, start: int, end: int, forms: Sequence[str]) -> Token:
    """Build a token: its words have their own slices if they spell the token, else all have the token's offsets."""
    if len(forms) == 1:
        return Token(start, end, (SyntacticWord(start, end, forms[0]),))
    words = []
    position = start
    for form in forms:
        while position < end and view[position].isspace():
            position += 1
        if not view.startswith(form, position):
            break
        words.append(SyntacticWord(position, position + len(form), form))
        position += len(form)
    if len(words) < len(forms) or position != end:
        words = [SyntacticWord(start, end, form) for form in forms]
    return Token(start, end, tuple(words))


def cut_sentence(tokens: Sequence[Token], *, cap: int) -> list[Sequence[Token]]:
    """Cut a sentence into pieces of at most ``cap`` words, never inside a token.

    A piece ends after the last punctuation of its second half, if there is any, else at the cap.
    """
    ends = list(accumulate(len(token.words) for token in tokens))
    pieces: list[Sequence[Token]] = []
    first = done = 0
    while first + 1 < len(tokens) and ends[-1] - done > cap:
        end = max(bisect_right(ends, done + cap), first + 1)
        good = (i + 1 for i in reversed(range(first, end)) if _CLOSING.fullmatch(tokens[i].words[-1].form))
        last = next(good, end)
        if ends[last - 1] - done > cap // 2:
            end = last
        pieces.append(tokens[first:end])
        first, done = end, ends[end - 1]
    return [*pieces, tokens[first:]]


def find_token_fault(view: str, tokens: Sequence[Token]) -> str | None:
    """Describe where tokens are out of order, differ from the text, or miss a visible code point; None if nowhere."""
    position = 0
    for token in tokens:
        if not position <= token.start < token.end <= len(view):
            return f"a token at {token.start}..{token.end} does not follow the one that ends at {position}"
        if token.start > position and not view[position : token.start].isspace():
            return _uncovered(view, position, token.start)
        text, form = view[token.start : token.end], token.words[0].form
        if len(token.words) == 1 and text != form and "".join(text.split()) != "".join(form.split()):
            return f"expected {form[:40]!r} at {token.start}..{token.end}, got {text[:40]!r}"
        position = token.end
    return _uncovered(view, position, len(view)) if view[position:].strip() else None


def _uncovered(view: str, start: int, end: int) -> str:
    place = next(i for i in range(start, end) if not view[i].isspace())
    return f"code point U+{ord(view[place]):04X} at {place} is in no token"
