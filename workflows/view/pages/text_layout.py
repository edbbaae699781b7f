"""What the reading page shows of a page of a document: words, entities, what stage two changed, and trees."""

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from concord.models.labels.spans import OUTSIDE, split_label
from concord.pipeline.corrections.fitting import Offsets
from concord.pipeline.output.document_rows import SentenceRow, TokenRow
from concord.pipeline.output.tables import normalize_name
from concord.workflows.view.index.document import DocumentPage, ReadSentence
from concord.workflows.view.index.hits import IndexedEntity
from concord.workflows.view.pages.dependency_arcs import Tree, draw_tree

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
class Word:
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


@dataclass(kw_only=True, slots=True)
class Segment:
    """Words of one entity, of a name that is not labelled here though it is elsewhere, or of neither.

    Attributes:
        start, end: of the entity or name that is not labelled, in code points of the raw text.
        name: of the entity, or the name that is not labelled.
        strength: 0 for an entity of low confidence, and up, see ``STRENGTHS``.
        drafts: the labels of stage one that differ.
        begins, ends: whether the entity begins and ends here, and not in another sentence.
    """

    words: list[Word]
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
class Sentence:
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


def lay_out(page: DocumentPage, names: KnownNames, *, tree: int | None) -> list[list[Sentence]]:
    """Return the sentences of a page by paragraph.

    Args:
        names: the names of entities anywhere in the document; where one is not labelled, it is marked.
        tree: the number of the sentence whose tree is shown.
    """
    entities = iter(page.entities)
    current = next(entities, None)
    paragraphs: list[list[Sentence]] = [[]]
    for sentence in page.sentences:
        segments: list[Segment] = []
        loose: list[_Piece] = []
        end = sentence.row.start_char
        for token in sentence.tokens:
            gap, text = ("", "") if token.start_char < end else (page.text.slice(end, token.start_char), token.text)
            end = max(end, token.end_char)
            while current is not None and current.end <= token.start_char:
                current = next(entities, None)
            if current is None or token.start_char < current.start:
                loose.append(_Piece(token, gap, text))
                continue
            segments += _plain(page, loose, names)
            loose = []
            if not segments or segments[-1].entity != current:
                segments.append(_entity(current, sentence))
            if token.changed and current.number >= 0:
                _note_draft(segments[-1], token, current.label)
            _append(segments[-1].words, _Piece(token, gap, text))
        segments += _plain(page, loose, names)
        if _PARAGRAPH.search(sentence.gap) and paragraphs[-1]:
            paragraphs.append([])
        drawn = draw_tree(sentence.tokens) if sentence.row.sent_id == tree else None
        paragraphs[-1].append(Sentence(row=sentence.row, gap=sentence.gap, segments=segments, tree=drawn))
    return paragraphs


def count_marks(paragraphs: Sequence[Sequence[Sentence]]) -> Marks:
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


def _entity(row: IndexedEntity, sentence: ReadSentence) -> Segment:
    sure = "" if row.confidence is None else f", confidence {row.confidence:.2f}"
    unsure = "" if row.uncertainty is None else f", uncertainty {row.uncertainty:.2f}"
    note = f"{row.label}{sure}{unsure}, decided by stage {'two' if row.refined else 'one'}"
    if row.origin == "corrected":
        note = f"{row.label}, corrected by a person"
    if row.number < 0:
        note = f"{note if row.origin else row.label}, not in the tables yet"
    return Segment(
        words=[],
        entity=row,
        start=row.start,
        end=row.end,
        name=row.name,
        strength=len(STRENGTHS) if row.confidence is None else band(row.confidence, STRENGTHS),
        note=f"{note}, source: {row.origin}" if row.origin not in {None, "", "corrected"} else note,
        begins=row.start >= sentence.row.start_char,
        ends=row.end <= sentence.row.end_char,
    )


def _note_draft(segment: Segment, token: TokenRow, label: str) -> None:
    """Add the draft of a word to its entity, if the type or the boundary differs."""
    draft = split_label(token.draft_ner)[1] or NO_ENTITY
    draft = "other bounds" if draft == label else draft
    if draft not in segment.drafts:
        segment.drafts = (*segment.drafts, draft)


def _plain(page: DocumentPage, pieces: Sequence[_Piece], names: KnownNames) -> Iterator[Segment]:
    """Yield the segments of words outside of entities; a name that is labelled elsewhere is one of its own."""
    start = 0
    current = Segment(words=[])
    while start < len(pieces):
        name, stop = _unlabelled_name(page, pieces, start, names)
        if name:
            if current.words:
                yield current
            current = Segment(words=[])
            note = f"elsewhere in this document {names.labels[name]}" if name in names.labels else "perhaps an entity"
            note = f"not labelled here; {note}"
            bounds = pieces[start].token.start_char, pieces[stop - 1].token.end_char
            segment = Segment(words=[], start=bounds[0], end=bounds[1], name=name, note=note)
            for piece in pieces[start:stop]:
                _append(segment.words, piece)
            yield segment
        else:
            _append(current.words, pieces[start])
        start = stop
    if current.words:
        yield current


def _unlabelled_name(page: DocumentPage, pieces: Sequence[_Piece], start: int, names: KnownNames) -> tuple[str, int]:
    """Return the longest known name that starts at a word, or the words that are asked for, and where the name ends.

    Without one return an empty name and the next word.
    """
    first = pieces[start].token
    if first.text[:1] in names.initials:
        for stop in range(min(start + _LONGEST_NAME, len(pieces)), start, -1):
            text = normalize_name(page.text.slice(first.start_char, pieces[stop - 1].token.end_char))
            if text in names.labels:
                return text, stop
    asked_start, asked_end = names.asked
    if first.start_char != asked_start:
        return "", start + 1
    asked = [piece.token.text for piece in pieces[start:] if piece.token.start_char < asked_end]
    return normalize_name(" ".join(asked)), start + len(asked)


def _append(words: list[Word], piece: _Piece) -> None:
    """Add a word; one that nothing marks joins the one before it, which saves half the time of a page."""
    token = piece.token
    level = band(token.uncertainty or 0.0, UNCERTAIN)
    draft = split_label(token.draft_ner)[1] if token.changed and token.ner == OUTSIDE else ""
    if level or draft:
        note = f"uncertainty {token.uncertainty or 0.0:.2f}"
        if token.changed:
            note = f"{note}; stage one said {label_name(token.draft_ner)}, stage two {label_name(token.ner)}"
        words.append(Word(gap=piece.gap, text=piece.text, level=level, note=note, draft=draft))
    elif words and not words[-1].note:
        words[-1] = Word(gap=words[-1].gap, text=f"{words[-1].text}{piece.gap}{piece.text}")
    else:
        words.append(Word(gap=piece.gap, text=piece.text))
