"""The layout of a dependency tree as arcs above the words of a sentence, in pixels."""

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from concord.models.labels.spans import OUTSIDE
from concord.pipeline.output.document_rows import TokenRow

_MARGIN = 14
_GAP = 14
_LEVEL = 19
_HEAD_ROOM = 20
_TEXT_DROP = 20
_TAG_DROP = 37
_FOOT_ROOM = 10
_CORNER = 7
# Arcs leave their head this far beside its middle, so that they do not overlap with the arc that arrives there.
_OFFSET = 4
_WORD_SIZE = 15.0
# Words of entities are bold, which is wider.
_BOLD_SIZE = 16.2
_LABEL_SIZE = 11.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Word:
    """A word; ``x`` is the middle of its column."""

    x: int
    text: str
    tag: str
    label: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Arc:
    """An arc from head to dependent: SVG paths of the line and the arrowhead, and the position of the label."""

    line: str
    tip: str
    relation: str
    x: int
    y: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Tree:
    """A drawing; ``text_y`` and ``tag_y`` are the baselines of words and parts of speech.

    There are no arcs if the document was annotated without trees.
    """

    width: int
    height: int
    text_y: int
    tag_y: int
    words: tuple[Word, ...]
    arcs: tuple[Arc, ...]


def draw_tree(tokens: Sequence[TokenRow]) -> Tree:
    """Lay out words and arcs. Widths of text are estimates, so all text is to be drawn centred."""
    centres = _centres(tokens)
    spans = {
        number: (min(token.head, number), max(token.head, number))
        for number, token in enumerate(tokens, 1)
        if token.head and token.head <= len(tokens) and token.head != number
    }
    levels = _levels(spans.values())
    base = _HEAD_ROOM + _LEVEL * max(levels.values(), default=1)
    arcs = []
    for number, (token, x) in enumerate(zip(tokens, centres, strict=True), 1):
        relation = token.deprel or ""
        if token.head == 0:
            # Up to the top: no arc of a projective tree passes over the root.
            line = f"M{x} {_HEAD_ROOM}V{base}"
            arcs.append(Arc(line=line, tip=_tip(x, base), relation=relation, x=x, y=_HEAD_ROOM - 5))
        elif token.head and number in spans:
            arcs.append(_arc(relation, centres[token.head - 1], x, base=base, level=levels[spans[number]]))
    return Tree(
        width=round(centres[-1] + _column_width(tokens[-1]) / 2) + _MARGIN if centres else 2 * _MARGIN,
        height=base + _TAG_DROP + _FOOT_ROOM,
        text_y=base + _TEXT_DROP,
        tag_y=base + _TAG_DROP,
        words=tuple(
            Word(x=x, text=token.text, tag=token.upos or "", label=token.ner)
            for token, x in zip(tokens, centres, strict=True)
        ),
        arcs=tuple(arcs),
    )


def text_width(text: str, size: float) -> float:
    """Estimate how wide a text is in a common sans-serif font, in pixels, at a font size in pixels."""
    return size * sum(_character_width(character) for character in text)


def _character_width(character: str) -> float:
    if unicodedata.combining(character):
        return 0.0
    if unicodedata.east_asian_width(character) in "WF":
        return 1.0
    if character in "iljtfrI.,:;'!|()[] ":
        return 0.34
    if character in "mwMW@":
        return 0.92
    return 0.68 if character.isupper() else 0.56


def _column_width(token: TokenRow) -> float:
    size = _WORD_SIZE if token.ner == OUTSIDE else _BOLD_SIZE
    return max(text_width(token.text, size), text_width(token.upos or "", _LABEL_SIZE), 2 * _OFFSET + 8)


def _centres(tokens: Sequence[TokenRow]) -> list[int]:
    """Return the middle of each column; neighbours joined by an arc leave room for its label."""
    centres: list[int] = []
    for number, token in enumerate(tokens, 1):
        half = _column_width(token) / 2
        if not centres:
            centres.append(round(_MARGIN + half))
            continue
        before = tokens[number - 2]
        distance = _column_width(before) / 2 + half + _GAP
        if token.head == number - 1:
            distance = max(distance, text_width(token.deprel or "", _LABEL_SIZE) + 4 * _OFFSET)
        if before.head == number:
            distance = max(distance, text_width(before.deprel or "", _LABEL_SIZE) + 4 * _OFFSET)
        centres.append(round(centres[-1] + distance))
    return centres


def _levels(spans: Iterable[tuple[int, int]]) -> dict[tuple[int, int], int]:
    """Assign each arc a level: above every shorter one that it overlaps."""
    levels: dict[tuple[int, int], int] = {}
    for left, right in sorted(spans, key=lambda span: (span[1] - span[0], span)):
        below = [level for (start, end), level in levels.items() if left < end and start < right]
        levels[left, right] = 1 + max(below, default=0)
    return levels


def _arc(relation: str, head: int, dependent: int, *, base: int, level: int) -> Arc:
    side = 1 if dependent > head else -1
    start, top = head + side * _OFFSET, base - _LEVEL * level
    line = (
        f"M{start} {base}V{top + _CORNER}q0 {-_CORNER} {side * _CORNER} {-_CORNER}"
        f"H{dependent - side * _CORNER}q{side * _CORNER} 0 {side * _CORNER} {_CORNER}V{base}"
    )
    return Arc(line=line, tip=_tip(dependent, base), relation=relation, x=round((start + dependent) / 2), y=top - 4)


def _tip(x: int, base: int) -> str:
    return f"M{x - 3} {base - 6}h6l-3 6z"
