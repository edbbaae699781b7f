"""How far people agree who looked at the same sentences of a collection, and where they differ.

What a person left in a sentence is what corrections had made of it by then, the person's own before all others: who
leaves the corrections of others as they are agrees with them. A correction that settles a difference is nobody's own.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, permutations
from typing import NamedTuple

from concord.models.labels import OUTSIDE
from concord.pipeline.corrections.correction import Correction, Mark, current_corrections, group_by_document
from concord.pipeline.corrections.fitting import Offsets, corrected_marks, fit_corrections, marks_of_tagger
from concord.pipeline.corrections.log import log_path, read_log
from concord.pipeline.documents import DeadLetter
from concord.pipeline.output.collection import (
    CollectedDocument,
    Collection,
    entity_marks,
    open_collection,
    whole_sentences,
)
from concord.pipeline.storage.output_paths import OutputPath
from concord.workflows.console import Answer, counted, table
from concord.workflows.corrections.corrections import documents_with_texts, saw


class SharedSentence(NamedTuple):
    """A sentence that several people looked at: its words, and the entities that each of them left there.

    The text is that of the document, and ``settled`` are the marks of corrections that settle a difference.
    """

    doc_id: str
    sent_id: int
    text: str
    words: Sequence[Offsets]
    left: Mapping[str, Sequence[Mark]]
    settled: Sequence[Mark]

    def labels(self, who: str) -> list[str]:
        """Return the labels that a person left on the words, in BIO2."""
        marks = [
            next((mark for mark in self.left[who] if mark.start <= word[0] < mark.end), None) for word in self.words
        ]
        return [
            OUTSIDE if mark is None else f"{'B' if mark.start == word[0] else 'I'}-{mark.type}"
            for word, mark in zip(self.words, marks, strict=True)
        ]


class Agreement(NamedTuple):
    """How far two people agree in the sentences that both looked at.

    ``f1`` is that of entities, strict, in percent, None without any; ``alpha`` is Krippendorff's, of labels of words.
    """

    first: str
    second: str
    sentences: int
    f1: float | None
    alpha: float | None


class Difference(NamedTuple):
    """A stretch of a sentence in which people left different entities, by what they left."""

    sentence: SharedSentence
    start: int
    end: int
    answers: Mapping[tuple[Mark, ...], list[str]]


def agreement_command(output: OutputPath) -> Answer:
    """Show how far people agree in a collection, and how many differences are to be settled."""
    sentences = list(shared_sentences(open_collection(output), read_log(log_path(output))))
    found, count = agreements(sentences), sum(1 for one in sentences for _ in open_differences(one))
    if not found:
        return Answer(values={"agreements": [], "open": 0}, text="No two people have corrected in one sentence.")
    rows = [(f"{one.first}, {one.second}", one.sentences, one.f1, one.alpha) for one in found]
    shown = table(rows, header=("people", "sentences", "F1", "alpha"), right={1, 2, 3})
    return Answer(
        values={"agreements": [one._asdict() for one in found], "open": count},
        text=f"{shown}\n\n{counted(count, 'difference')} to settle",
    )


def shared_sentences(collection: Collection, log: Sequence[Correction]) -> Iterator[SharedSentence]:
    """Yield the sentences in which several people made corrections that count, on the text and entities as they are."""
    current = current_corrections(log)
    several = {doc_id: lines for doc_id, lines in current.items() if len({line.who for line in lines}) > 1}
    all_lines = group_by_document(line for line in log if line.decides)
    for document, text in documents_with_texts(collection, several):
        if not isinstance(text, DeadLetter):
            yield from _shared(document, text, several[document.row.doc_id], all_lines[document.row.doc_id])


def _shared(
    document: CollectedDocument, text: str, current: Sequence[Correction], all_lines: Sequence[Correction]
) -> Iterator[SharedSentence]:
    sentences = whole_sentences(document)
    starts = [pieces[0].row.start_char for pieces in sentences]
    by_sentence: defaultdict[int, list[Correction]] = defaultdict(list)
    for line in current:
        if saw(line, document):
            by_sentence[bisect_right(starts, line.result.start) - 1].append(line)
    found = zip(entity_marks(document, text), (row.source for row in document.entities), strict=True)
    tagged = marks_of_tagger(found, all_lines, document.row.text_sha256)
    for number, lines in sorted(by_sentence.items()):
        words = [(word.start_char, word.end_char) for piece in sentences[number] for word in piece.tokens]
        marks = [mark for mark in tagged if words[0][0] <= mark.start < words[-1][1]]
        left = {
            who: corrected_marks(marks, fit_corrections(_left_by(who, lines), text).corrections)
            for who in sorted({line.who for line in lines if not line.settles})
        }
        if len(left) > 1:
            settled = [mark for line in lines if line.settles for mark in line.marks]
            yield SharedSentence(document.row.doc_id, sentences[number][0].row.sent_id, text, words, left, settled)


def _left_by(who: str, lines: Sequence[Correction]) -> list[Correction]:
    """Return the corrections that make what a person left in a sentence: those by then, and the person's own last."""
    own = [line for line in lines if line.who == who and not line.settles]
    return [*(line for line in lines[: lines.index(own[-1])] if line not in own), *own]


def agreements(sentences: Iterable[SharedSentence]) -> list[Agreement]:
    """Return how far each two people agree, by their names."""
    by_pair: defaultdict[tuple[str, str], list[SharedSentence]] = defaultdict(list)
    for sentence in sentences:
        for pair in combinations(sentence.left, 2):
            by_pair[pair].append(sentence)
    found = []
    for (first, second), shared in sorted(by_pair.items()):
        both = [(set(one.left[first]), set(one.left[second])) for one in shared]
        entities = sum(len(ours) + len(theirs) for ours, theirs in both)
        f1 = 200 * sum(len(ours & theirs) for ours, theirs in both) / entities if entities else None
        words = (pair for one in shared for pair in zip(one.labels(first), one.labels(second), strict=True))
        found.append(Agreement(first, second, len(shared), f1, krippendorff_alpha(words)))
    return found


def krippendorff_alpha(units: Iterable[Sequence[str]]) -> float | None:
    """Return Krippendorff's alpha for nominal values, 1 for full agreement and 0 for that of chance.

    A unit has the values that people gave it, two or more. The result is None if all values are the same.
    """
    differing, values = 0.0, Counter[str]()
    for unit in units:
        values.update(unit)
        differing += sum(first != second for first, second in permutations(unit, 2)) / (len(unit) - 1)
    total = values.total()
    by_chance = total**2 - sum(count**2 for count in values.values())
    return 1 - (total - 1) * differing / by_chance if by_chance else None


def open_differences(sentence: SharedSentence) -> Iterator[Difference]:
    """Yield where people differ in a sentence and nobody has settled it; entities that overlap are one difference."""
    answers = [set(marks) for marks in sentence.left.values()]
    stretches: list[list[Mark]] = []
    for mark in sorted(set[Mark]().union(*answers) - answers[0].intersection(*answers), key=lambda mark: mark.start):
        if stretches and mark.start < max(other.end for other in stretches[-1]):
            stretches[-1].append(mark)
        else:
            stretches.append([mark])
    for marks in stretches:
        by_answer: defaultdict[tuple[Mark, ...], list[str]] = defaultdict(list)
        for who, left in sentence.left.items():
            by_answer[tuple(mark for mark in left if mark in marks)].append(who)
        start, end = marks[0].start, max(mark.end for mark in marks)
        if not any(mark.start < end and start < mark.end for mark in sentence.settled):
            yield Difference(sentence, start, end, by_answer)
