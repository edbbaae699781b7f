"""``concord corrections``: what people corrected, which of it fits, what a tagger can learn from it, and who agrees.

What a person left in a sentence is what corrections had made of it by then, the person's own before all others: who
leaves the corrections of others as they are agrees with them. A correction that settles a difference is nobody's own.
"""

import shlex
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, combinations, permutations
from pathlib import Path
from typing import NamedTuple

from concord.models.labels import OUTSIDE, decode_spans
from concord.pipeline.corpora.conll import PARSER_KEY
from concord.pipeline.corpora.gold_corpus import GoldDocument, write_gold
from concord.pipeline.corrections.correction import (
    Correction,
    Mark,
    corrections_digest,
    current_corrections,
    group_by_document,
    log_path,
    read_log,
    undone_ids,
)
from concord.pipeline.corrections.fitting import (
    FittedCorrections,
    Offsets,
    corrected_marks,
    fit_corrections,
    marks_of_tagger,
)
from concord.pipeline.documents import DeadLetter
from concord.pipeline.errors import InputError
from concord.pipeline.exchange.import_corrections import ImportReport, import_corrections
from concord.pipeline.exchange.items import percent_encode
from concord.pipeline.identity import component_signature
from concord.pipeline.output.collection import (
    CollectedDocument,
    Collection,
    entity_marks,
    open_collection,
    read_collection,
    sentence_offsets,
    tagged_sentences,
    whole_sentences,
)
from concord.pipeline.storage.output_paths import OutputPath
from concord.pipeline.worker.source_texts import SourceTexts
from concord.workflows.annotation.inspection import LEFT_OUT
from concord.workflows.console import INLINE, Answer, counted, plain, printable, short_path, table

# White space that ends a column or a line of a corpus.
_SPACES = str.maketrans("\t\n\r", "   ")
SHOWN = 40
"""Lines of a table; --json has all."""
NO_DOCUMENT = "the collection has no document of this id"


@dataclass(frozen=True, kw_only=True, slots=True)
class CorrectedCorpus:
    """The documents of a collection in which a correction fits.

    Attributes:
        documents: with the labels of all words and which of them are known.
        corrections: how many fit.
        left_out: how many do not, or belong to a document that is gone.
        trees: signature of the parser that made the trees.
    """

    documents: Sequence[GoldDocument]
    corrections: int
    left_out: int
    trees: str

    @property
    def examples(self) -> dict[str, int]:
        """How many entities there are of each type, as far as they are known."""
        kinds = Counter(
            span.label
            for document in self.documents
            for sentence in document.sentences
            for span in decode_spans(sentence.labels or (), "BIO")
        )
        return dict(sorted(kinds.items()))

    @property
    def looked_at(self) -> tuple[int, int]:
        """How many sentences have a known word, and how many words are known."""
        known = [
            len(sentence.words) if sentence.known is None else sum(sentence.known)
            for document in self.documents
            for sentence in document.sentences
        ]
        return sum(map(bool, known)), sum(known)


@dataclass(frozen=True, kw_only=True, slots=True)
class CorrectionStatus:
    """A correction or flag of the log and what became of it.

    Attributes:
        state: ``written`` in the tables, ``waiting`` for the next run, ``undone``, ``overruled`` by a later one,
            ``misfit`` or ``flagged``.
        reason: why it is overruled or does not fit, in plain words.
    """

    correction: Correction = field(metadata=INLINE)
    state: str
    reason: str = ""


def list_statuses(output: OutputPath) -> list[CorrectionStatus]:
    """Return every correction and flag of a collection's log, without the lines that undo others, in the log's order.

    Raises:
        PlanError: when the folder holds no finished run.
        InputError: when a line of the log is no correction, or an input file of many records is gone.
    """
    log = read_log(log_path(output))
    current = current_corrections(log)
    undone = undone_ids(log)
    statuses = _statuses((line for line in log if line.action != "undo"), "undone")
    statuses |= _statuses((line for line in log if line.action == "flag" and line.id not in undone), "flagged")
    collection = open_collection(output)
    missing = dict(current)
    for document, text in documents_with_texts(collection, current):
        doc_id = document.row.doc_id
        corrections = missing.pop(doc_id)
        if isinstance(text, DeadLetter):
            statuses |= _statuses(corrections, "misfit", text.message)
            continue
        is_written = collection.plan.corrected.get(doc_id) == corrections_digest(corrections)
        fit = fit_corrections(corrections, text, sentence_offsets(document))
        statuses |= fit_statuses(corrections, fit, "written" if is_written else "waiting")
    for corrections in missing.values():
        statuses |= _statuses(corrections, "misfit", NO_DOCUMENT)
    return list(statuses.values())


def fit_statuses(corrections: Sequence[Correction], fit: FittedCorrections, state: str) -> dict[str, CorrectionStatus]:
    """Return what became of the corrections of a document, by id, given their fit and the state of those that count."""
    statuses = _statuses(corrections, state)
    for misfit in fit.misfits:
        statuses |= _statuses([misfit.correction], "misfit", misfit.reason)
    for pair in fit.overruled:
        reason = f"{pair.later.who} later: {pair.later.description}"
        statuses |= _statuses([statuses[pair.earlier.id].correction], "overruled", reason)
    return statuses


def _statuses(corrections: Iterable[Correction], state: str, reason: str = "") -> dict[str, CorrectionStatus]:
    return {
        correction.id: CorrectionStatus(correction=correction, state=state, reason=reason) for correction in corrections
    }


def import_command(path: Path, output: OutputPath, *, who: str, dry_run: bool, accept_drops: bool) -> Answer:
    """Import an annotator's file; exit code 3 if a part of it was refused."""
    report = import_corrections(path, output, who=who, dry_run=dry_run, accept_drops=accept_drops)
    actions = dict(sorted(report.actions.items()))
    values = plain(report) | {"actions": actions, "log": str(log_path(output)), "dry_run": dry_run}
    text = "\n".join(_import_lines(report, output, dry_run=dry_run))
    return Answer(values=values, text=text, exit_code=LEFT_OUT if report.refused else 0)


def list_command(output: OutputPath) -> Answer:
    """List the corrections of a collection with what became of each."""
    statuses = list_statuses(output)
    counts = Counter(status.state for status in statuses)
    values = {"counts": dict(sorted(counts.items())), "corrections": plain(statuses)}
    if not statuses:
        return Answer(values=values, text=f"{short_path(output)}: no corrections")
    rows = [_row(status) for status in statuses[-SHOWN:]]
    lines = [table(rows, header=("document", "action", "words", "by", "when", "state")), ""]
    if len(statuses) > SHOWN:
        lines += [f"the last {SHOWN}; --json lists all {len(statuses):,}"]
    lines.append(", ".join(f"{number:,} {state}" for state, number in sorted(counts.items())))
    if counts["waiting"]:
        lines.append("concord annotate writes those that wait into the tables")
    return Answer(values=values, text="\n".join(lines))


def export_command(output: OutputPath, path: Path, *, whole_documents: bool) -> Answer:
    """Write the corrected documents of a collection as a corpus to train on; errors as in ``read_corrected``."""
    corpus = read_corrected(output, whole_documents=whole_documents)
    write_gold(path, corpus.documents, form="conllu", header={PARSER_KEY: corpus.trees})
    sentences, words = corpus.looked_at
    examples = ", ".join(f"{kind} {number:,}" for kind, number in corpus.examples.items())
    left_out = f"; {corpus.left_out:,} left out ('concord corrections list')" if corpus.left_out else ""
    lines = [
        f"{counted(corpus.corrections, 'correction')} in {counted(len(corpus.documents), 'document')}: "
        f"{counted(sentences, 'sentence')}, {counted(words, 'word')} looked at{left_out}",
        f"entities  {examples or 'none'}",
        f"corpus    {path}",
        f"learn it  concord train conf/train/corrected.yaml --set start=NAME --set data.train={shlex.quote(str(path))}",
    ]
    values = {
        "corpus": path,
        "documents": [document.name for document in corpus.documents],
        "corrections": corpus.corrections,
        "left_out": corpus.left_out,
        "sentences_looked_at": sentences,
        "words_looked_at": words,
        "entities": corpus.examples,
    }
    return Answer(values=values, text="\n".join(lines))


def read_corrected(output: OutputPath, *, whole_documents: bool = False) -> CorrectedCorpus:
    """Read what people corrected in a collection, whether the tables have it already or not.

    Somebody looked at a sentence if a current correction that fits has a mark in it, whatever it did there, and was
    made on this text with the entities of this tagger: what was left beside it counts as right. Of other corrections
    only the words of their marks are known.

    Args:
        whole_documents: somebody who corrected such a sentence looked at all sentences of the document.

    Raises:
        PlanError: when the folder holds no finished run.
        InputError: when there is no correction, or none fits, or an input file of many records is gone.
    """
    path = log_path(output)
    log = read_log(path)
    current = current_corrections(log)
    if not current:
        raise InputError(
            f"{path}: expected corrections to learn from, found none; make some with 'concord view', or import them "
            "with 'concord corrections import'"
        )
    collection = open_collection(output)
    undone_lines = undone_ids(log)
    # Rows may still have these.
    taken_back = group_by_document(line for line in log if line.decides and line.id in undone_lines)
    documents, fitting = [], 0
    for document, text in documents_with_texts(collection, current):
        doc_id = document.row.doc_id
        if isinstance(text, DeadLetter):
            continue
        digest = corrections_digest(current[doc_id])
        offsets = list(sentence_offsets(document))
        fit = fit_corrections(current[doc_id], text, offsets)
        if not fit.corrections:
            continue
        is_written = collection.plan.corrected.get(doc_id) in (None, digest)
        undone = () if is_written else fit_corrections(taken_back.get(doc_id, ()), text, offsets).corrections
        documents.append(_corrected(document, text, fit, undone, whole=whole_documents))
        fitting += len(current[doc_id]) - len(fit.misfits)
    if not documents:
        raise InputError(
            f"{path}: expected a correction that fits its document, found none; 'concord corrections list' says why"
        )
    return CorrectedCorpus(
        documents=documents,
        corrections=fitting,
        left_out=sum(map(len, current.values())) - fitting,
        trees=component_signature(collection.plan.parser),
    )


def documents_with_texts(
    collection: Collection, wanted: Mapping[str, Sequence[Correction]]
) -> Iterator[tuple[CollectedDocument, str | DeadLetter]]:
    """Yield the documents that have corrections, with their raw texts; a dead letter where a text is gone."""
    texts = SourceTexts.of(collection.plan)
    for document in read_collection(collection, wanted=wanted.__contains__):
        yield document, texts.find(document.row)


def _corrected(
    document: CollectedDocument, text: str, fit: FittedCorrections, undone: Sequence[Correction], *, whole: bool
) -> GoldDocument:
    """Return a document with the labels of its rows and of the corrections that fit.

    What the tagger had found in the place of a correction that was undone is not known until the next run.
    """
    offsets = list(sentence_offsets(document))
    starts = [start for start, _ in chain.from_iterable(offsets)]
    labels, known = [OUTSIDE] * len(starts), [False] * len(starts)

    def words(mark: Mark) -> range:
        return range(bisect_left(starts, mark.start), bisect_left(starts, mark.end))

    for mark in corrected_marks(entity_marks(document, text), fit.corrections):
        for number, word in enumerate(words(mark)):
            labels[word] = f"{'I' if number else 'B'}-{mark.type}"

    def marked_words(corrections: Iterable[Correction]) -> set[int]:
        return {word for correction in corrections for mark in correction.marks for word in words(mark)}

    for word in marked_words(fit.corrections):
        known[word] = True
    seen = marked_words(correction for correction in fit.corrections if saw(correction, document))
    unseen = marked_words(undone)
    sentences, first = [], 0
    for sentence in tagged_sentences(document):
        numbers = range(first, first + len(sentence.words))
        first = numbers.stop
        if (seen if whole else not seen.isdisjoint(numbers)) and unseen.isdisjoint(numbers):
            is_known = (True,) * len(numbers)
        else:
            is_known = tuple(known[word] for word in numbers)
        sentences.append(
            replace(
                sentence,
                words=tuple(word.translate(_SPACES) for word in sentence.words),
                labels=tuple(labels[word] if is_it else OUTSIDE for word, is_it in zip(numbers, is_known, strict=True)),
                known=None if all(is_known) else is_known,
            )
        )
    name = percent_encode(document.row.doc_id)
    return GoldDocument(name=name, sentences=tuple(sentences), lines=(0,) * len(sentences))


def saw(correction: Correction, document: CollectedDocument) -> bool:
    """Return whether a correction was made on the text and the entities of a document as they are."""
    row = document.row
    return (correction.text_sha256, correction.tagger) == (row.text_sha256, row.tagger)


def _import_lines(report: ImportReport, output: OutputPath, *, dry_run: bool) -> Iterator[str]:
    actions = ", ".join(f"{number:,} {action}" for action, number in sorted(report.actions.items()))
    would = "would be " if dry_run else ""
    unseen = f" ({report.not_annotated:,} not annotated)" if report.not_annotated else ""
    yield (
        f"{counted(report.passages, 'passage')}{unseen}: {counted(len(report.corrections), 'correction')} {would}added "
        f"to {short_path(log_path(output))}{f': {actions}' if actions else ''}"
    )
    yield from _correction_lines(report.corrections)
    if report.held_back:
        yield f"\n{counted(len(report.held_back), 'correction')} held back, for --accept-drops:"
        yield from _correction_lines(report.held_back)
    if report.refused:
        yield f"\n{len(report.refused):,} refused:"
    for refused in report.refused[:SHOWN]:
        document = f"document {refused.doc_id!r}: " if refused.doc_id else ""
        yield f"{refused.where}: {document}{printable(refused.reason)}"
    if len(report.refused) > SHOWN:
        yield f"... and {len(report.refused) - SHOWN:,} more: --json"


def _correction_lines(corrections: Sequence[Correction]) -> Iterator[str]:
    shown = [(_name(one.doc_id), one.action, printable(one.description)) for one in corrections[:SHOWN]]
    if shown:
        yield "\n" + table(shown, header=("document", "action", "entity"))
    if len(corrections) > SHOWN:
        yield f"... and {len(corrections) - SHOWN:,} more"


def _row(status: CorrectionStatus) -> tuple[str, ...]:
    correction = status.correction
    state = f"{status.state}: {printable(status.reason)}" if status.reason else status.state
    entity = printable(correction.description)
    return _name(correction.doc_id), correction.action, entity, correction.who, correction.when[:16], state


def _name(doc_id: str) -> str:
    return doc_id if doc_id.isprintable() else repr(doc_id)


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
    starts = [pieces[0].start_char for pieces in sentences]
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
            yield SharedSentence(document.row.doc_id, sentences[number][0].sent_id, text, words, left, settled)


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
