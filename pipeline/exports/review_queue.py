"""Which sentences of an annotated collection a person should look at first: uncertainty sampling.

Lewis and Gale (1994, "A Sequential Algorithm for Training Text Classifiers") let a person label what the classifier is
least sure of; Culotta and McCallum (2005, "Reducing Labeling Effort for Structured Prediction Tasks") take the least
confidence for sequences, one minus the probability of the whole labelling. That grows with the length of a sentence.
Unlike there, a sentence's score here is the least confidence of any one decision in it:

    score = max(1 - confidence of an entity, 1 - ner_prob of a word in no entity)

The first finds names that may be wrong, the second names that may have been missed. Both are probabilities by the stage
that had the last word, calibrated where the tagger is; the entropy of stage one (``uncertainty``, nats) is not, and
parts only sentences of equal score.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Literal, TypeVar

from concord.pipeline.exports.export import Outgoing, check_destination, write_items
from concord.pipeline.exports.export_item import ExportItem, rounded
from concord.pipeline.exports.source_texts import SourceTexts
from concord.pipeline.output.collection import open_collection
from concord.pipeline.output.document_rows import (
    CollectedDocument,
    CollectedSentence,
    EntityRow,
    SentenceRow,
    TokenRow,
    read_collection,
)
from concord.pipeline.output.shard_stats import entity_types
from concord.pipeline.storage.output_paths import OutputPath

QueueForm = Literal["label-studio", "jsonl", "brat"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Quotas:
    """How a queue is filled.

    Attributes:
        size: sentences in all.
        per_document, per_type: the most sentences of one document, and for decisions of one type; no bound if None.
        seed: decides between sentences of equal score and uncertainty.
    """

    size: int
    per_document: int | None
    per_type: int | None
    seed: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """A sentence of the queue, and the decision in it that is least sure.

    Attributes:
        rank: 1 for the one to look at first.
        sent_id: of the sentence; of its first piece, if it is over-long.
        score: 0..1, see the module.
        uncertainty: largest of its words, in nats.
        type: that was decided for; ``O`` for a word that may be a name that was missed.
        reason: in plain words.
    """

    rank: int
    doc_id: str
    sent_id: int
    score: float
    uncertainty: float
    type: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ReviewReport:
    """A queue that was written.

    Attributes:
        choices: by rank; without those that were left out.
        left_out: documents with chosen sentences whose text the input no longer holds.
        labels: types of the entities of the whole collection, sorted: what a person may choose from.
        errors: the file that lists what was left out; None where nothing was.
    """

    choices: tuple[Choice, ...]
    left_out: int
    labels: tuple[str, ...]
    errors: Path | None


def review(
    output: OutputPath, destination: Path, *, to: QueueForm, quotas: Quotas, done: Collection[str] = frozenset()
) -> ReviewReport:
    """Write an annotation queue: the sentences that are least sure, each by itself, in the order of need.

    Memory is linear in the sentences that the quotas of their documents allow, some hundred bytes each; the queue
    itself is held with its words.

    Args:
        output: the collection's folder.
        destination: a file for Label Studio and JSON Lines, a folder for brat; absent as yet.
        done: ids of documents that are not to be in the queue.

    Raises:
        PlanError: when the folder holds no finished run.
        ConfigError: when the destination cannot be taken.
        InputError: when an input file of many records is gone.
        IntegrityError: when a part of the collection is broken.
        StoreError: when there is no space.
    """
    check_destination(destination, output=output)
    collection = open_collection(output)
    choices = draw(read_collection(collection, wanted=lambda doc_id: doc_id not in done), quotas)
    chosen: defaultdict[str, list[Choice]] = defaultdict(list)
    for choice in choices:
        chosen[choice.doc_id].append(choice)
    outgoing = Outgoing(destination, dead_letters=collection.manifest.dead_letters)
    documents = read_collection(collection, wanted=chosen.__contains__)
    passages = {
        choice: _passage(item, choice)
        for item in outgoing.with_texts(documents, SourceTexts(collection.plan))
        for choice in chosen[item.name]
    }
    queue = sorted(passages, key=lambda choice: choice.rank)
    labels = entity_types(collection.manifest.shards)
    write_items(destination, (passages[choice] for choice in queue), to=to, labels=labels)
    report = outgoing.report()
    return ReviewReport(choices=tuple(queue), left_out=report.left_out, labels=labels, errors=report.errors)


def draw(documents: Iterable[CollectedDocument], quotas: Quotas) -> list[Choice]:
    """Choose sentences: the best score first, as far as the quotas of its document and type allow."""
    candidates = [candidate for document in documents for candidate in _candidates(document, quotas)]
    candidates.sort(key=lambda candidate: _order(candidate, quotas.seed))
    taken: Counter[tuple[str, str]] = Counter()
    chosen: list[Choice] = []
    for candidate in candidates:
        counts = ((("document", candidate.doc_id), quotas.per_document), (("type", candidate.type), quotas.per_type))
        if len(chosen) == quotas.size:
            break
        if all(most is None or taken[key] < most for key, most in counts):
            taken.update(key for key, _ in counts)
            chosen.append(replace(candidate, rank=len(chosen) + 1))
    return chosen


def _candidates(document: CollectedDocument, quotas: Quotas) -> Iterator[Choice]:
    """Give a document's sentences, of each type no more than the document may have in the queue."""
    found: defaultdict[str, list[Choice]] = defaultdict(list)
    for pieces in _wholes(document.sentences):
        judged = _judged(document, pieces)
        found[judged.type].append(judged)
    for candidates in found.values():
        candidates.sort(key=lambda candidate: _order(candidate, quotas.seed))
        yield from candidates[: quotas.per_document]


def _order(candidate: Choice, seed: int) -> tuple[float, float, bytes]:
    mark = sha256(f"{seed} {candidate.sent_id} {candidate.doc_id}".encode()).digest()
    return -candidate.score, -candidate.uncertainty, mark


def _wholes(sentences: Iterable[CollectedSentence]) -> Iterator[list[CollectedSentence]]:
    """Put the pieces of over-long sentences together."""
    whole: list[CollectedSentence] = []
    for sentence in sentences:
        if whole and not sentence.row.continues:
            yield whole
            whole = []
        whole.append(sentence)
    if whole:
        yield whole


def _judged(document: CollectedDocument, pieces: list[CollectedSentence]) -> Choice:
    """Find the decision of a sentence that is least sure."""
    words = [word for piece in pieces for word in piece.tokens]
    entities = _entities(document, pieces)
    decisions: list[EntityRow | TokenRow] = [*entities]
    decisions += [
        word for word in words if not any(entity.start_char <= word.start_char < entity.end_char for entity in entities)
    ]
    least = min(decisions, key=_probability)
    label = least.label if isinstance(least, EntityRow) else least.ner
    return Choice(
        rank=0,
        doc_id=document.row.doc_id,
        sent_id=pieces[0].row.sent_id,
        score=rounded(1 - _probability(least)),
        uncertainty=rounded(max(word.uncertainty for word in words)),
        type=label,
        reason=f"{label} {least.text!r} with probability {_probability(least):.2f}",
    )


def _probability(decision: EntityRow | TokenRow) -> float:
    return decision.confidence if isinstance(decision, EntityRow) else decision.ner_prob


def _entities(document: CollectedDocument, pieces: Iterable[CollectedSentence]) -> list[EntityRow]:
    own = {piece.row.sent_id for piece in pieces}
    return [entity for entity in document.entities if entity.sent_id in own]


def _passage(item: ExportItem, choice: Choice) -> ExportItem:
    """Cut a sentence out of its document; its offsets then count within it."""
    pieces = next(found for found in _wholes(item.document.sentences) if found[0].row.sent_id == choice.sent_id)
    start, end = pieces[0].row.start_char, pieces[-1].row.end_char
    document = CollectedDocument(
        row=item.document.row,
        sentences=tuple(
            CollectedSentence(_moved(piece.row, start), tuple(_moved(token, start) for token in piece.tokens))
            for piece in pieces
        ),
        entities=tuple(_moved(entity, start) for entity in _entities(item.document, pieces)),
    )
    fields = asdict(choice) | {"start_char": start}
    return ExportItem(
        name=f"{choice.doc_id}#{choice.sent_id}", document=document, text=item.text[start:end], fields=fields
    )


RowT = TypeVar("RowT", SentenceRow, TokenRow, EntityRow)


def _moved(row: RowT, start: int) -> RowT:
    return row._replace(start_char=row.start_char - start, end_char=row.end_char - start)
