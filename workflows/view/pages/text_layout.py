"""What the reading page shows of a page of a document: words, entities, what stage two changed, and trees."""

import re
import unicodedata
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from concord.models.labels import OUTSIDE, split_label
from concord.pipeline.corrections.fitting import Offsets
from concord.pipeline.output.collection import SentenceRow, TokenRow
from concord.pipeline.output.tables import normalize_name
from concord.workflows.view.index.opened import DocumentPage
from concord.workflows.view.index.queries import IndexedEntity

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
class Arc:
    """An arc from head to dependent: SVG paths of the line and the arrowhead, and the position of the label."""

    line: str
    tip: str
    relation: str
    x: int
    y: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Tree:
    """A drawing of words, each with the middle of its column, and arcs between them.

    ``text_y`` and ``tag_y`` are the baselines of words and parts of speech. There are no arcs if the document was
    annotated without trees.
    """

    width: int
    height: int
    text_y: int
    tag_y: int
    words: Sequence[tuple[int, TokenRow]]
    arcs: Sequence[Arc]


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
        words=list(zip(centres, tokens, strict=True)),
        arcs=arcs,
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


UNCERTAIN = (0.1, 0.3, 0.6, 0.9)
"""Nats from which a word is underlined, and underlined more strongly."""
STRENGTHS = (0.5, 0.7, 0.85, 0.95)
"""Confidence from which the colour of an entity is stronger."""
DOUBTFUL = 2
"""Strength below which the confidence of an entity stands beside it."""
NO_ENTITY = "no entity"
"""How the pages call the label ``O``."""
_LONGEST_NAME = 8
"""Words of a name that is looked for where it is not labelled."""
_PARAGRAPH = re.compile(r"\n[^\S\n]*\n")


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownWord:
    """A word that is marked, or a run of words that are not, with the text before it.

    Attributes:
        level: 0 for a certain word, else 1 and up, see ``UNCERTAIN``.
        note: what a pointer on it shows.
        draft: its draft label, if it is in no entity and stage two changed it.
    """

    gap: str
    text: str
    level: int = 0
    note: str = ""
    draft: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """Words of one entity, of a name that is not labelled here though it is elsewhere, or of neither.

    Attributes:
        start, end: of the entity or name that is not labelled, in code points of the raw text.
        name: of the entity, or the name that is not labelled.
        strength: 0 for an entity of low confidence, and up, see ``STRENGTHS``.
        drafts: the labels of stage one that differ.
        begins, ends: whether the entity begins and ends here, and not in another sentence.
    """

    words: Sequence[ShownWord]
    entity: IndexedEntity | None = None
    start: int = 0
    end: int = 0
    name: str = ""
    strength: int = 0
    note: str = ""
    drafts: Sequence[str] = ()
    begins: bool = True
    ends: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownSentence:
    """A sentence to show; ``tree`` is drawn only where it was asked for."""

    row: SentenceRow
    gap: str
    segments: Sequence[Segment]
    tree: Tree | None


class Marks(NamedTuple):
    """How many marks of uncertainty a page has: words, entities, and words and entities that stage two changed."""

    uncertain: int
    doubtful: int
    changed: int

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self)


class KnownNames:
    """The names of the entities of a document, with their labels in words, and the words that are asked for.

    These are marked as a name that is not labelled if they are in no entity.
    """

    def __init__(self, labels: Mapping[str, str], *, asked: Offsets = (-1, -1)) -> None:
        self.labels = labels
        self.initials = frozenset(name[:1] for name in labels)
        self.asked = asked


class _Piece(NamedTuple):
    """A word with the text before it; the words of a multi-word token but the first have no text of their own."""

    token: TokenRow
    gap: str
    text: str
    entity: IndexedEntity | None


def lay_out(page: DocumentPage, names: KnownNames, *, tree: int | None) -> list[list[ShownSentence]]:
    """Return the sentences of a page by paragraph.

    Args:
        names: the names of entities anywhere in the document; where one is not labelled, it is marked.
        tree: the number of the sentence whose tree is shown.
    """
    entities = deque(page.entities)
    paragraphs: list[list[ShownSentence]] = [[]]
    before = page.before
    for sentence in page.sentences:
        segments: list[Segment] = []
        for entity, group in groupby(_pieces(page, sentence, entities), key=attrgetter("entity")):
            pieces = list(group)
            segments += _plain(page, pieces, names) if entity is None else [_labelled(entity, sentence, pieces)]
        space, before = page.slice(before, sentence.start_char), sentence.end_char
        if _PARAGRAPH.search(space) and paragraphs[-1]:
            paragraphs.append([])
        drawn = draw_tree(sentence.tokens) if sentence.sent_id == tree else None
        paragraphs[-1].append(ShownSentence(row=sentence, gap=space, segments=segments, tree=drawn))
    return paragraphs


def count_marks(paragraphs: Sequence[Sequence[ShownSentence]]) -> Marks:
    """Count the marks that a page shows when they are switched on."""
    segments = [segment for sentences in paragraphs for sentence in sentences for segment in sentence.segments]
    words = [word for segment in segments for word in segment.words]
    return Marks(
        uncertain=sum(word.level > 0 for word in words),
        doubtful=sum(segment.entity is not None and segment.strength < DOUBTFUL for segment in segments),
        changed=sum(bool(segment.drafts) for segment in segments) + sum(bool(word.draft) for word in words),
    )


def label_name(label: str) -> str:
    """Return the label of a word as the pages show it."""
    return NO_ENTITY if label == OUTSIDE else label


def band(value: float, limits: Sequence[float]) -> int:
    """Return how many limits a value reaches."""
    return bisect_right(limits, value)


def _pieces(page: DocumentPage, sentence: SentenceRow, entities: deque[IndexedEntity]) -> Iterator[_Piece]:
    """Yield the words of a sentence, and drop the entities that end before them."""
    end = sentence.start_char
    for token in sentence.tokens:
        gap, text = ("", "") if token.start_char < end else (page.slice(end, token.start_char), token.text)
        end = max(end, token.end_char)
        while entities and entities[0].end <= token.start_char:
            entities.popleft()
        yield _Piece(token, gap, text, entities[0] if entities and entities[0].start <= token.start_char else None)


def _labelled(row: IndexedEntity, sentence: SentenceRow, pieces: Sequence[_Piece]) -> Segment:
    sure = "" if row.confidence is None else f", confidence {row.confidence:.2f}"
    unsure = "" if row.uncertainty is None else f", uncertainty {row.uncertainty:.2f}"
    note = f"{row.label}{sure}{unsure}, decided by stage {'two' if row.refined else 'one'}"
    if row.origin == "corrected":
        note = f"{row.label}, corrected by a person"
    if row.number < 0:
        note = f"{note if row.origin else row.label}, not in the tables yet"
    # What stage one said, if the type or the boundary differs.
    changed = (split_label(piece.token.draft_ner)[1] for piece in pieces if piece.token.changed and row.number >= 0)
    drafts = ("other bounds" if draft == row.label else draft or NO_ENTITY for draft in changed)
    return Segment(
        words=_shown_words(pieces),
        entity=row,
        start=row.start,
        end=row.end,
        name=row.name,
        strength=len(STRENGTHS) if row.confidence is None else band(row.confidence, STRENGTHS),
        note=f"{note}, source: {row.origin}" if row.origin not in {None, "", "corrected"} else note,
        drafts=tuple(dict.fromkeys(drafts)),
        begins=row.start >= sentence.start_char,
        ends=row.end <= sentence.end_char,
    )


def _plain(page: DocumentPage, pieces: Sequence[_Piece], names: KnownNames) -> Iterator[Segment]:
    """Yield the segments of words outside of entities; a name that is labelled elsewhere is one of its own."""
    first = start = 0
    while start < len(pieces):
        name, stop = _unlabelled_name(page, pieces, start, names)
        if name:
            if first < start:
                yield Segment(words=_shown_words(pieces[first:start]))
            first = stop
            note = f"elsewhere in this document {names.labels[name]}" if name in names.labels else "perhaps an entity"
            yield Segment(
                words=_shown_words(pieces[start:stop]),
                start=pieces[start].token.start_char,
                end=pieces[stop - 1].token.end_char,
                name=name,
                note=f"not labelled here; {note}",
            )
        start = stop
    if first < start:
        yield Segment(words=_shown_words(pieces[first:]))


def _unlabelled_name(page: DocumentPage, pieces: Sequence[_Piece], start: int, names: KnownNames) -> tuple[str, int]:
    """Return the longest known name that starts at a word, or the words that are asked for, and where the name ends.

    Without one return an empty name and the next word.
    """
    first = pieces[start].token
    if first.text[:1] in names.initials:
        for stop in range(min(start + _LONGEST_NAME, len(pieces)), start, -1):
            text = normalize_name(page.slice(first.start_char, pieces[stop - 1].token.end_char))
            if text in names.labels:
                return text, stop
    asked_start, asked_end = names.asked
    if first.start_char != asked_start:
        return "", start + 1
    asked = [piece.token.text for piece in pieces[start:] if piece.token.start_char < asked_end]
    return normalize_name(" ".join(asked)), start + len(asked)


def _shown_words(pieces: Iterable[_Piece]) -> list[ShownWord]:
    """Return words; one that nothing marks joins the one before it, which saves half the time of a page."""
    words: list[ShownWord] = []
    for token, gap, text, _ in pieces:
        level = band(token.uncertainty or 0.0, UNCERTAIN)
        draft = split_label(token.draft_ner)[1] if token.changed and token.ner == OUTSIDE else ""
        if level or draft:
            note = f"uncertainty {token.uncertainty or 0.0:.2f}"
            if token.changed:
                note = f"{note}; stage one said {label_name(token.draft_ner)}, stage two {label_name(token.ner)}"
            words.append(ShownWord(gap=gap, text=text, level=level, note=note, draft=draft))
        elif words and not words[-1].note:
            words[-1] = ShownWord(gap=words[-1].gap, text=f"{words[-1].text}{gap}{text}")
        else:
            words.append(ShownWord(gap=gap, text=text))
    return words
