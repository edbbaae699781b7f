"""Annotation queues by uncertainty sampling: the sentences that a person should review first.

Lewis and Gale (1994, "A Sequential Algorithm for Training Text Classifiers") have a person label what the classifier is
least confident of; Culotta and McCallum (2005, "Reducing Labeling Effort for Structured Prediction Tasks") use the
least confidence of sequences, one minus the probability of the whole labelling, which grows with the length of a
sentence. Unlike there, a sentence's score here is that of its least confident decision:

    score = max(1 - confidence of an entity, 1 - ner_prob of a word in no entity)

The first finds entities that may be wrong, the second entities that may have been missed. Both are probabilities of the
stage that decided, calibrated if the tagger is; the entropy of stage one (``uncertainty``, nats) is not calibrated and
only orders sentences of equal score. A tagger that gives no probabilities has no decision that is less certain than
another: the score is 0, and the queue is a random sample in the order of the seed.

What a tagger is sure of and wrong about has no such score. So every tenth sentence is one with a name that people
called something else wherever they corrected it, or whose other occurrences have another label, the surest first.

Sentences with candidates (``output.candidates``) come first, since all of these must be looked at so that few names are
missed: their score is 1 and the confidence of the likeliest candidate.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar

from concord.models.data.outputs import known_numbers
from concord.models.labels import OUTSIDE
from concord.pipeline.corrections.correction import Correction, current_corrections, read_log_of
from concord.pipeline.corrections.fitting import CORRECTED
from concord.pipeline.exchange.export import ExportStream, check_destination, writers
from concord.pipeline.exchange.items import ExportItem, round_float
from concord.pipeline.output.collection import (
    CollectedDocument,
    EntityRow,
    SentenceRow,
    TokenRow,
    open_collection,
    read_collection,
    whole_sentences,
)
from concord.pipeline.output.shard_stats import entity_types
from concord.pipeline.output.tables import normalize_name
from concord.pipeline.storage.output_paths import OutputPath
from concord.pipeline.worker.source_texts import SourceTexts

DISPUTED_EVERY = 10
_KEPT = 5
"""The most occurrences that are kept of a name with a label: those of which the tagger is surest."""
QueueForm = Literal["label-studio", "jsonl", "brat"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Quotas:
    """The limits of a queue.

    Attributes:
        size: sentences in total.
        per_document, per_type: maximum number of sentences of one document, and of one type; no limit if None.
        seed: orders sentences of equal score and uncertainty.
    """

    size: int
    per_document: int | None
    per_type: int | None
    seed: int


@dataclass(frozen=True, kw_only=True, slots=True)
class QueuedSentence:
    """A sentence of the queue and its least confident decision.

    Attributes:
        rank: 1 for the sentence to review first.
        sent_id: of the sentence; of its first piece if it is over-long.
        score: 0..1, or above 1 with a candidate; see the module.
        uncertainty: the highest among its words, in nats.
        type: the label decided for; ``O`` for a word that may be a missed entity.
        asked_start, asked_end: the words of the decision, half-open, in code points of the raw text.
        reason: the decision and its probability, for people.
    """

    rank: int
    doc_id: str
    sent_id: int
    score: float
    uncertainty: float
    type: str
    asked_start: int
    asked_end: int
    reason: str


_Scored: TypeAlias = tuple[list[SentenceRow], QueuedSentence]
"""A sentence, or the pieces of an over-long one, with its score."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReviewReport:
    """What was written.

    Attributes:
        choices: the queued sentences by rank, without those that were left out.
        left_out: documents with queued sentences whose text the input no longer holds.
        labels: the entity types of the whole collection, sorted: what annotators can choose from.
        errors: the file that lists what was left out; None if nothing was.
    """

    choices: tuple[QueuedSentence, ...]
    left_out: int
    labels: tuple[str, ...]
    errors: Path | None


def write_review_queue(
    output: OutputPath, destination: Path, *, to: QueueForm, quotas: Quotas, exclude: Collection[str] = frozenset()
) -> ReviewReport:
    """Write an annotation queue: the least confident sentences, each as an item of its own, in order of rank.

    Memory is linear in the number of sentences within the quotas of their documents, a few hundred bytes each; the
    sentences of the queue are held with their words.

    Args:
        output: the collection's folder.
        destination: a file for Label Studio and JSON Lines, a folder for brat; must not exist.
        exclude: ids of documents to keep out of the queue.

    Raises:
        PlanError, ConfigError, InputError, IntegrityError, StoreError: as ``export_collection`` does.
    """
    check_destination(destination, output=output, to=to)
    collection = open_collection(output)
    selected: defaultdict[str, list[QueuedSentence]] = defaultdict(list)
    read = read_collection(collection, wanted=lambda doc_id: doc_id not in exclude)
    for sentence in select_sentences(read, quotas, log=read_log_of(collection.output)):
        selected[sentence.doc_id].append(sentence)
    stream = ExportStream(destination, dead_letters=collection.manifest.dead_letters)
    documents = read_collection(collection, wanted=selected.__contains__)
    passages = {
        sentence: _passage(item, sentence)
        for item in stream.with_texts(documents, SourceTexts.of(collection.plan))
        for sentence in selected[item.name]
    }
    queue = sorted(passages, key=lambda sentence: sentence.rank)
    labels = entity_types(collection.manifest.shards)
    writers(labels)[to](destination, (passages[sentence] for sentence in queue))
    report = stream.report
    return ReviewReport(choices=tuple(queue), left_out=report.left_out, labels=labels, errors=report.errors)


def select_sentences(
    documents: Iterable[CollectedDocument],
    quotas: Quotas,
    *,
    log: Iterable[Correction] = (),
    disputed_every: int = DISPUTED_EVERY,
) -> list[QueuedSentence]:
    """Select sentences by rank: the highest score first, as far as the quotas of document and type allow.

    Args:
        log: of the corrections of the collection.
        disputed_every: how often a sentence with a disputed name comes instead, if there is another one.
    """
    names = _NameLabels(log)
    candidates = [candidate for document in documents for candidate in _candidates(document, quotas, names)]
    candidates.sort(key=lambda candidate: _sort_key(candidate, quotas.seed))
    by_score, by_dispute = iter(candidates), iter(names.disputed())
    taken: Counter[Hashable] = Counter()
    selected: list[QueuedSentence] = []

    def limits(one: QueuedSentence) -> dict[Hashable, int | None]:
        return {("d", one.doc_id): quotas.per_document, ("t", one.type): quotas.per_type, (one.doc_id, one.sent_id): 1}

    def is_allowed(one: QueuedSentence) -> bool:
        return all(limit is None or taken[key] < limit for key, limit in limits(one).items())

    while len(selected) < quotas.size:
        is_due = (len(selected) + 1) % disputed_every == 0
        chosen = next(filter(is_allowed, by_dispute), None) if is_due else None
        chosen = chosen or next(filter(is_allowed, by_score), None)
        if chosen is None:
            break
        taken.update(limits(chosen).keys())
        selected.append(replace(chosen, rank=len(selected) + 1))
    return selected


class _NameLabels:
    """The labels of names, collected document by document; memory is linear in the number of different names."""

    def __init__(self, log: Iterable[Correction]) -> None:
        """Begin with the labels that people gave names."""
        self._given: defaultdict[str, set[str]] = defaultdict(set)
        for line in chain.from_iterable(current_corrections(log).values()):
            self._given[normalize_name(line.result.text)].add(OUTSIDE if line.new is None else line.new.type)
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._surest: defaultdict[tuple[str, str], list[tuple[float, QueuedSentence]]] = defaultdict(list)

    def add(self, document: CollectedDocument, scored: Iterable[_Scored]) -> None:
        """Take the names of a document: entities, and words in none that are a name elsewhere in it."""
        found = list(_names(document, scored))
        counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for name, one in found:
            counts[name][one.type] += 1
            self._counts[name][one.type] += 1
        for name, one in found:
            kept = self._surest[name, one.type]
            kept.append(((1 - one.score) * (1 + _share_of_others(counts[name], one.type)), one))
            kept.sort(key=itemgetter(0), reverse=True)
            del kept[_KEPT:]

    def disputed(self) -> list[QueuedSentence]:
        """Return the disputed occurrences, those that contradict people first."""
        found = []
        for (name, label), kept in self._surest.items():
            given, counts = self._given.get(name, set()), self._counts[name]
            most, number = counts.most_common(1)[0]
            if given and label not in given:
                reason = f"{label} {name!r}, which people called {' or '.join(sorted(given))}"
            elif not given and number > counts[label]:
                reason = f"{label} {name!r}, {number:,} times {most} elsewhere"
            else:
                continue
            # What people said outweighs all other occurrences.
            weight = 1 + _share_of_others(counts, label)
            found += [
                (bool(given), 1 - one.score if given else weight * sure, replace(one, reason=reason))
                for sure, one in kept
            ]
        return [one for *_, one in sorted(found, key=itemgetter(0, 1), reverse=True)]


def _share_of_others(counts: Counter[str], label: str) -> float:
    """Return the share of a name's occurrences with another label, which is less for few occurrences."""
    return (counts.total() - counts[label]) / (counts.total() + 1)


def _names(document: CollectedDocument, scored: Iterable[_Scored]) -> Iterator[tuple[str, QueuedSentence]]:
    by_first: defaultdict[str, set[str]] = defaultdict(set)
    for row in document.entities:
        by_first[row.name.partition(" ")[0]].add(row.name)
    covered = {offset for row in document.entities for offset in range(row.start_char, row.end_char)}
    entities = _by_sentence(document.entities)
    for pieces, sentence in scored:
        tokens = [token for piece in pieces for token in piece.tokens]
        for row in _within(pieces, entities):
            if row.source != CORRECTED:
                yield row.name, _asked(sentence, row.label, row.start_char, row.end_char, row.confidence)
        for number, token in enumerate(tokens):
            for name in by_first.get(token.text, ()):
                words = tokens[number : number + name.count(" ") + 1]
                if " ".join(word.text for word in words) == name and covered.isdisjoint(
                    word.start_char for word in words
                ):
                    sure = min(known_numbers(word.ner_prob for word in words), default=None)
                    yield name, _asked(sentence, OUTSIDE, token.start_char, words[-1].end_char, sure)


def _asked(sentence: QueuedSentence, label: str, start: int, end: int, probability: float | None) -> QueuedSentence:
    score = 0.0 if probability is None else round_float(1 - probability)
    return replace(sentence, type=label, asked_start=start, asked_end=end, score=score)


def _candidates(document: CollectedDocument, quotas: Quotas, names: _NameLabels) -> Iterator[QueuedSentence]:
    """Yield a document's sentences, of each type at most as many as the document may have in the queue."""
    entities, candidates = _by_sentence(document.entities), _by_sentence(document.candidates)
    scored = [
        (pieces, _score(document.row.doc_id, pieces, _within(pieces, entities), _within(pieces, candidates)))
        for pieces in whole_sentences(document)
    ]
    names.add(document, scored)
    by_type: defaultdict[str, list[QueuedSentence]] = defaultdict(list)
    for _, candidate in scored:
        by_type[candidate.type].append(candidate)
    for of_type in by_type.values():
        of_type.sort(key=lambda candidate: _sort_key(candidate, quotas.seed))
        yield from of_type[: quotas.per_document]


def _sort_key(candidate: QueuedSentence, seed: int) -> tuple[float, float, bytes]:
    tie_breaker = sha256(f"{seed} {candidate.sent_id} {candidate.doc_id}".encode()).digest()
    return -candidate.score, -candidate.uncertainty, tie_breaker


def _score(
    doc_id: str, pieces: Sequence[SentenceRow], entities: Sequence[EntityRow], candidates: Sequence[EntityRow]
) -> QueuedSentence:
    """Return a sentence with its least confident decision, without a rank."""
    words = [word for piece in pieces for word in piece.tokens]
    covered = [range(entity.start_char, entity.end_char) for entity in entities]
    outside = [word for word in words if not any(word.start_char in interval for interval in covered)]
    decisions: list[tuple[float | None, str, EntityRow | TokenRow]] = [
        *((entity.confidence, entity.label, entity) for entity in entities),
        *((word.ner_prob, word.ner, word) for word in outside),
    ]
    scored = [(probability, label, row) for probability, label, row in decisions if probability is not None]
    if candidates:
        likeliest = max(candidates, key=lambda candidate: candidate.confidence or 0.0)
        asked: EntityRow | TokenRow = likeliest
        label, probability = likeliest.label, -(likeliest.confidence or 0.0)
        reason = f"candidate {label} {asked.text!r} with score {-probability:.2f}"
    elif scored:
        probability, label, asked = min(scored, key=itemgetter(0))
        reason = f"{label} {asked.text!r} with probability {probability:.2f}"
    else:
        (_, label, asked), probability = decisions[0], 1.0
        reason = f"{label} {asked.text!r}, drawn at random: the tagger gives no probabilities"
    return QueuedSentence(
        rank=0,
        doc_id=doc_id,
        sent_id=pieces[0].sent_id,
        score=round_float(1 - probability),
        uncertainty=round_float(max(known_numbers(word.uncertainty for word in words), default=0.0)),
        type=label,
        asked_start=asked.start_char,
        asked_end=asked.end_char,
        reason=reason,
    )


def _by_sentence(entities: Iterable[EntityRow]) -> Mapping[int, list[EntityRow]]:
    by_sentence: defaultdict[int, list[EntityRow]] = defaultdict(list)
    for entity in entities:
        by_sentence[entity.sent_id].append(entity)
    return by_sentence


def _within(pieces: Iterable[SentenceRow], entities: Mapping[int, list[EntityRow]]) -> list[EntityRow]:
    return [entity for piece in pieces for entity in entities.get(piece.sent_id, ())]


def _passage(item: ExportItem, sentence: QueuedSentence) -> ExportItem:
    """Return a sentence of a document as an item; offsets count within the sentence."""
    pieces = next(pieces for pieces in whole_sentences(item.document) if pieces[0].sent_id == sentence.sent_id)
    start, end = pieces[0].start_char, pieces[-1].end_char
    document = CollectedDocument(
        row=item.document.row,
        sentences=tuple(
            _shift(piece, start)._replace(tokens=tuple(_shift(token, start) for token in piece.tokens))
            for piece in pieces
        ),
        entities=tuple(_shift(entity, start) for entity in _within(pieces, _by_sentence(item.document.entities))),
    )
    return ExportItem(
        name=f"{sentence.doc_id}#{sentence.sent_id}",
        document=document,
        text=item.text[start:end],
        fields=asdict(sentence) | {"start_char": start},
    )


RowT = TypeVar("RowT", SentenceRow, TokenRow, EntityRow)


def _shift(row: RowT, start: int) -> RowT:
    return row._replace(start_char=row.start_char - start, end_char=row.end_char - start)
