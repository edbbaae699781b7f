"""Fit corrections to the present text of a document, which may have changed since, and find equal places."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from unicodedata import category

from concord.models.labels import OUTSIDE
from concord.pipeline.corrections.correction import Correction, Mark, text_digest

CORRECTED = "corrected"
"""The ``source`` of an entity that a person accepted, changed or added."""
ENOUGH_CONTEXT = 8
"""Code points around an entity that must agree before it is taken for the same in a changed text."""
_WORD_CHARACTER = re.compile(r"\w")

Offsets = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Misfit:
    """A correction that no longer fits its document, and why, in plain words."""

    correction: Correction
    reason: str


@dataclass(frozen=True, slots=True)
class Overruled:
    """A correction that a later one replaces because they concern the same words and disagree."""

    earlier: Correction
    later: Correction


@dataclass(frozen=True, kw_only=True, slots=True)
class FittedCorrections:
    """The corrections of a document that count in its text, and those that do not fit it or were replaced.

    Attributes:
        corrections: those that count, with the offsets of this text, in its order; no two of their results overlap.
        misfits: in the order of the log.
        overruled: in the order of the log.
    """

    corrections: tuple[Correction, ...] = ()
    misfits: tuple[Misfit, ...] = ()
    overruled: tuple[Overruled, ...] = ()


def fit_corrections(
    corrections: Sequence[Correction], text: str, sentences: Iterable[Sequence[Offsets]] | None = None
) -> FittedCorrections:
    """Fit the corrections of a document, in the order of the log, to its text.

    In the text on which a correction was made its offsets hold. In any other text its words are searched for, and the
    text around them decides between several places. A later correction replaces those whose result its marks overlap;
    words that an earlier one only gave up are free, so that one entity can become two. One that does not say whom the
    same entity names keeps what the earlier one said.

    Args:
        sentences: the offsets of the words of each sentence; marks must then begin and end with a word, in one
            sentence. None leaves this unchecked.
    """
    if not corrections:
        return FittedCorrections()
    words = None if sentences is None else WordOffsets(sentences)
    digest = text_digest(text)
    # By where their results start, none of which overlap.
    fitted: list[Correction] = []
    misfits: list[Misfit] = []
    overruled: list[Overruled] = []
    for correction in corrections:
        placed = _place(correction, text, digest)
        if isinstance(placed, Correction) and words is not None:
            placed = next(filter(None, map(words.fault, placed.marks)), None) or placed
        if isinstance(placed, str):
            misfits.append(Misfit(correction, placed))
            continue
        replaced = _replaced(fitted, placed)
        placed = _keep_canonical(placed, fitted[replaced])
        overruled += (Overruled(earlier, placed) for earlier in fitted[replaced] if earlier.new != placed.new)
        fitted[replaced] = [placed]
    return FittedCorrections(corrections=tuple(fitted), misfits=tuple(misfits), overruled=tuple(overruled))


def corrected_marks(marks: Iterable[Mark], corrections: Sequence[Correction]) -> list[Mark]:
    """Return the entities of a document with fitted corrections, in order.

    An entity that overlaps a mark of a correction, old or new, gives way.
    """
    decided = sorted((mark for correction in corrections for mark in correction.marks), key=lambda mark: mark.start)
    ends = list(accumulate((mark.end for mark in decided), max))

    def is_kept(mark: Mark) -> bool:
        first = bisect_right(ends, mark.start)
        return first == len(decided) or decided[first].start >= mark.end

    kept = filter(is_kept, marks)
    new = (correction.new for correction in corrections if correction.new is not None)
    return sorted([*kept, *new], key=lambda mark: mark.start)


def paired_marks(before: Iterable[Mark], after: Iterable[Mark]) -> Iterator[tuple[Mark | None, Mark | None]]:
    """Yield old and new mark of each difference, in order; a new mark replaces the first old one that it overlaps."""
    same = set(before) & set(after)
    gone = [mark for mark in before if mark not in same]
    pairs: list[tuple[Mark | None, Mark | None]] = []
    for new in (mark for mark in after if mark not in same):
        old = next((mark for mark in gone if mark.overlaps(new)), None)
        if old is not None:
            gone.remove(old)
        pairs.append((old, new))
    pairs += [(old, None) for old in gone]
    yield from sorted(pairs, key=lambda pair: next(mark.start for mark in pair if mark is not None))


def marks_of_tagger(marks: Iterable[tuple[Mark, str | None]], lines: Iterable[Correction], digest: str) -> list[Mark]:
    """Restore the entities of a tagger, as far as the log knows them, from tables that hold corrections.

    Some of these corrections are undone by now, and only the next annotation asks the tagger again.

    Args:
        marks: the entities of the tables, each with its ``source``.
        lines: all corrections of the document, with those that are undone.
        digest: SHA-256 of its text.
    """
    tagged = [mark for mark, source in marks if source != CORRECTED]
    results: set[Mark] = set()
    for line in lines:
        old = line.old
        if old is not None and old.type != OUTSIDE and line.text_sha256 == digest and old not in results:
            tagged += [] if any(old.overlaps(mark) for mark in tagged) else [old]
        if line.new is not None:
            results.add(line.new)
    return sorted(tagged, key=lambda mark: mark.start)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the words of a correction occur: its offsets, and the entities that it overlaps there."""

    doc_id: str
    start: int
    end: int
    found: tuple[Mark, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether no entity there extends beyond the words, so that a correction of them cuts no longer name."""
        return all(self.start <= mark.start and mark.end <= self.end for mark in self.found)


def find_places(doc_id: str, text: str, marks: Sequence[Mark], surface: str) -> list[Place]:
    """Return where some words occur in a document, in order, with the entities that they overlap.

    White space of any kind equals white space; an occurrence inside a longer word does not count. One in an entity that
    goes beyond it is a place that is not ``is_whole``: it is seldom meant when all others are.

    Args:
        marks: the entities of the document as they are.
    """
    parts = surface.split()
    if not parts:
        return []
    pattern = r"\s+".join(map(re.escape, parts))
    left = r"(?<!\w)" if _WORD_CHARACTER.match(parts[0]) else ""
    right = r"(?!\w)" if _WORD_CHARACTER.match(parts[-1][-1]) else ""
    spans = (match.span() for match in re.finditer(left + pattern + right, text))
    # A mark that combines with the last letter belongs to the word.
    places = [
        Place(doc_id, *span) for span in spans if not category(text[span[1] : span[1] + 1] or " ").startswith("M")
    ]
    return [
        replace(place, found=tuple(mark for mark in marks if mark.start < place.end and place.start < mark.end))
        for place in places
    ]


def marks_at(place: Place, text: str, label: str | None) -> Iterator[tuple[Mark | None, Mark | None]]:
    """Yield the old and new mark of each single correction that makes a place an entity of a type, or none if None.

    A place that is this already is accepted. Entities that a place only overlaps give way as a whole: the words of
    "Alan Baxter" are in none but "Baxter" once that is one. Leave out places that are not ``is_whole`` to keep them.
    """
    new = None
    if label is not None:
        new = Mark(start=place.start, end=place.end, type=label, text=text[place.start : place.end])
    first, *others = place.found or (None,)
    # The last one counts where they overlap.
    yield from ((mark, None) for mark in others)
    if first is not None or new is not None:
        yield first, new


class WordOffsets:
    """Where words begin and end, and in which sentence, given their offsets by sentence."""

    def __init__(self, sentences: Iterable[Sequence[Offsets]]) -> None:
        numbered = list(
            chain.from_iterable([(number, *word) for word in words] for number, words in enumerate(sentences))
        )
        self._starts = {start: number for number, start, _ in numbered}
        self._ends = {end: number for number, _, end in numbered}

    def fault(self, mark: Mark) -> str | None:
        """Return why a mark cannot be labelled word by word, in plain words; None if it can."""
        first, last = self._starts.get(mark.start), self._ends.get(mark.end)
        if first is None or last is None:
            return f"{mark.text!r} does not begin and end with a word"
        return None if first == last else f"{mark.text!r} crosses the boundary of a sentence"


def _replaced(fitted: Sequence[Correction], placed: Correction) -> slice:
    """Return which of the fitted corrections, by where their results start, another one replaces: those whose results
    its marks overlap. Old and new mark overlap, so that they are one stretch of text."""
    start, end = min(mark.start for mark in placed.marks), max(mark.end for mark in placed.marks)
    first = bisect_right(fitted, start, key=lambda earlier: earlier.result.end)
    return slice(first, max(first, bisect_left(fitted, end, key=lambda earlier: earlier.result.start)))


def _keep_canonical(placed: Correction, replaced: Sequence[Correction]) -> Correction:
    new = placed.new
    if new is None or new.canonical is not None:
        return placed
    same = (earlier.new.canonical for earlier in replaced if earlier.new is not None and earlier.new.is_same(new))
    return placed.model_copy(update={"new": new.model_copy(update={"canonical": next(same, None)})})


def _place(correction: Correction, text: str, digest: str) -> Correction | str:
    """Return a correction with the offsets of a text, or why it does not fit."""
    if correction.text_sha256 == digest:
        wrong = next((mark for mark in correction.marks if text[mark.start : mark.end] != mark.text), None)
        return correction if wrong is None else f"{wrong.text!r} is not the text at {wrong.start} to {wrong.end}"
    anchor = correction.anchor
    starts = [match.start() for match in re.finditer(f"(?={re.escape(anchor.text)})", text)]
    if not starts:
        return f"the text has changed, and {anchor.text!r} is no longer in it"
    agreements = [_agreement(correction, text, start) for start in starts]
    best = max(agreements)
    if best < min(ENOUGH_CONTEXT, len(correction.before) + len(correction.after)):
        return f"the text has changed around {anchor.text!r}"
    ties = [start for start, agreement in zip(starts, agreements, strict=True) if agreement == best]
    if len(ties) > 1 and anchor.start not in ties:
        return f"the text has changed, and {anchor.text!r} is now at {len(ties)} places that look the same"
    start = anchor.start if anchor.start in ties else ties[0]
    moved = correction.moved(start - anchor.start)
    if any(mark.start < 0 or text[mark.start : mark.end] != mark.text for mark in moved.marks):
        return f"the text has changed around {anchor.text!r}"
    return moved


def _agreement(correction: Correction, text: str, start: int) -> int:
    """Return how many code points before and after a place agree with those around the anchor."""
    before = text[max(0, start - len(correction.before)) : start]
    end = start + len(correction.anchor.text)
    after = text[end : end + len(correction.after)]
    return _common(before[::-1], correction.before[::-1]) + _common(after, correction.after)


def _common(left: str, right: str) -> int:
    """Return the length of the prefix that two texts share."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((number for number, (character, other) in pairs if character != other), min(len(left), len(right)))
