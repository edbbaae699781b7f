"""What came out of a run: counts, the equation, and what deserves a second look.

Everything is read from the committed parts in one pass with one document in memory at a time; what is kept beside
the counts is bounded. Sections of the report map to the fields of ``Quality`` one to one.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from concord.models.evaluation.consistency import Consistency, consistency, name_labels
from concord.models.labels import decode_spans
from concord.pipeline.output.collection import open_collection
from concord.pipeline.output.document_rows import TokenDocument, TokenSentence, read_documents, written
from concord.pipeline.output.manifest import Manifest, check_equation
from concord.pipeline.output.parquet_parts import iter_batches
from concord.pipeline.plan import Plan
from concord.pipeline.storage.output_paths import OutputPath

BIN_WIDTH = 0.05
"""Nats a bar of the uncertainty histogram covers."""
NAMES_A_TYPE = 15
UNCERTAIN_SENTENCES = 50
LEAST_CONSISTENT_NAMES = 20
EXAMPLES = 3
WHOLE_DOCUMENTS = 3
LONG_DOCUMENT_TOKENS = 1500
"""A longer document is shown whole only where there are too few shorter ones."""
DISTINCT_NAMES = 400_000
"""When more distinct names than this are being counted, the rarer half is forgotten."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EntityType:
    """A type of entity: how many stage one drafted, how many stand in the end, and the most frequent names."""

    label: str
    drafted: int
    count: int
    names: tuple[tuple[str, int], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """Words whose label is not stage one's, and the first few of them as sentence and 0-based word."""

    draft: str
    label: str
    count: int
    examples: tuple[tuple[TokenSentence, int], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class RecurringName:
    """A name of a document, as first written, and how many of its occurrences bear which label; ``O`` is none."""

    name: str
    doc_id: str
    labels: Mapping[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Reason:
    """Dead letters of one stage and reason, and the first few as rows of the table of errors."""

    stage: str
    error: str
    count: int
    examples: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class WholeDocument:
    """A document to be shown; ``row`` is its row of the table of documents."""

    row: Mapping[str, Any]
    document: TokenDocument


@dataclass(frozen=True, kw_only=True, slots=True)
class Quality:
    """What came out of a run.

    Attributes:
        names_are_exact: false where rare names had to be forgotten, so that counts of names are lower bounds.
        histogram: tokens by uncertainty, the first bar from 0 to BIN_WIDTH nats.
        least_consistent: by the number of occurrences that deviate from their name's most frequent label.
        uncertain_sentences: by their most uncertain word, of equals by the mean.
    """

    plan: Plan
    manifest: Manifest
    documents: int
    sentences: int
    tokens: int
    entities: int
    types: tuple[EntityType, ...]
    names_are_exact: bool
    histogram: tuple[int, ...]
    refined: int
    changed: int
    changes: tuple[Change, ...]
    consistency: Consistency
    draft_consistency: Consistency
    least_consistent: tuple[RecurringName, ...]
    reasons: tuple[Reason, ...]
    uncertain_sentences: tuple[TokenSentence, ...]
    whole_documents: tuple[WholeDocument, ...]


def measure_quality(output: OutputPath) -> Quality:
    """Read a finished run's output.

    Raises:
        PlanError: when the folder holds no finished run.
        IntegrityError: when the manifest cannot be read.
        ReconciliationError: when read = annotated + unchanged + dead letters does not hold.
    """
    collection = open_collection(output)
    manifest = collection.manifest
    check_equation(manifest, place=str(output))
    count, shown = _survey_documents(collection.parts("documents"))
    names, uncertainty, changes, recurring = _Names(), _Uncertainty(), _Changes(), _Recurring()
    whole: dict[str, TokenDocument] = {}
    for document in chain.from_iterable(map(read_documents, collection.parts("tokens"))):
        if document.doc_id in shown:
            whole[document.doc_id] = document
        final = [[token.label for token in sentence.tokens] for sentence in document.sentences]
        draft = [[token.draft for token in sentence.tokens] for sentence in document.sentences]
        names.add(document, final=final, draft=draft)
        uncertainty.add(document)
        recurring.add(document, final=final, draft=draft)
        changes.add(document)
    return Quality(
        plan=collection.plan,
        manifest=manifest,
        documents=count,
        sentences=uncertainty.sentences,
        tokens=uncertainty.tokens,
        entities=names.final.total(),
        types=names.types(),
        names_are_exact=names.exact,
        histogram=uncertainty.histogram(),
        refined=changes.refined,
        changed=changes.counts.total(),
        changes=changes.most_common(),
        consistency=recurring.final,
        draft_consistency=recurring.draft,
        least_consistent=recurring.least_consistent(),
        reasons=_reasons(collection.parts("errors")),
        uncertain_sentences=uncertainty.most_uncertain(),
        whole_documents=tuple(
            WholeDocument(row=row, document=whole[doc_id]) for doc_id, row in shown.items() if doc_id in whole
        ),
    )


def _survey_documents(parts: Sequence[OutputPath]) -> tuple[int, dict[str, Mapping[str, Any]]]:
    """Count the documents and choose those to be shown: the richest in entities that are not too long."""
    count = 0

    def counted() -> Iterator[Mapping[str, Any]]:
        nonlocal count
        columns = ("doc_id", "source_uri", "source_position", "n_sentences", "n_tokens", "n_entities", "meta")
        for batch in chain.from_iterable(iter_batches(part, columns) for part in parts):
            count += batch.num_rows
            yield from batch.to_pylist()

    chosen = heapq.nsmallest(WHOLE_DOCUMENTS, counted(), key=_display_rank)
    return count, {row["doc_id"]: row for row in chosen}


def _display_rank(row: Mapping[str, Any]) -> tuple[bool, int, int]:
    if row["n_tokens"] > LONG_DOCUMENT_TOKENS:
        return (True, row["n_tokens"], 0)
    return (False, -row["n_entities"], row["n_tokens"])


def _reasons(parts: Sequence[OutputPath]) -> tuple[Reason, ...]:
    counts: Counter[tuple[str, str]] = Counter()
    examples: defaultdict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    columns = ("doc_id", "source_uri", "position", "stage", "error", "message", "attempts")
    for batch in chain.from_iterable(iter_batches(part, columns) for part in parts):
        for row in batch.to_pylist():
            key = (row["stage"], row["error"])
            counts[key] += 1
            if len(examples[key]) < EXAMPLES:
                examples[key].append(row)
    return tuple(
        Reason(stage=key[0], error=key[1], count=count, examples=tuple(examples[key]))
        for key, count in counts.most_common()
    )


class _Names:
    """Entities by type, and their names."""

    def __init__(self) -> None:
        self.final: Counter[str] = Counter()
        self.drafted: Counter[str] = Counter()
        self.exact = True
        self._names: Counter[tuple[str, str]] = Counter()

    def add(self, document: TokenDocument, *, final: Sequence[Sequence[str]], draft: Sequence[Sequence[str]]) -> None:
        # Only a piece of an over-long sentence begins with I-, so labels may be strung together.
        tokens = [token for sentence in document.sentences for token in sentence.tokens]
        spans = decode_spans([*chain.from_iterable(final)], "BIO")
        self.final.update(span.label for span in spans)
        self.drafted.update(span.label for span in decode_spans([*chain.from_iterable(draft)], "BIO"))
        self._names.update((span.label, written(tokens[span.start : span.end])) for span in spans)
        if len(self._names) > DISTINCT_NAMES:
            self.exact = False
            self._names = Counter(dict(self._names.most_common(DISTINCT_NAMES // 2)))

    def types(self) -> tuple[EntityType, ...]:
        top: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
        for (label, name), count in self._names.most_common():
            if len(top[label]) < NAMES_A_TYPE:
                top[label].append((name, count))
        return tuple(
            EntityType(label=label, drafted=self.drafted[label], count=self.final[label], names=tuple(top[label]))
            for label in sorted(self.final.keys() | self.drafted.keys())
        )


class _Uncertainty:
    """The histogram and the most uncertain sentences."""

    def __init__(self) -> None:
        self.sentences = 0
        self.tokens = 0
        self._bins: Counter[int] = Counter()
        self._top: list[tuple[float, float, int, TokenSentence]] = []

    def add(self, document: TokenDocument) -> None:
        for sentence in document.sentences:
            values = [token.uncertainty for token in sentence.tokens]
            self._bins.update(int(value / BIN_WIDTH) for value in values)
            # The running number decides between equals and keeps sentences from being compared.
            rank = (max(values), sum(values) / len(values), -self.sentences, sentence)
            self.sentences += 1
            self.tokens += len(values)
            if len(self._top) < UNCERTAIN_SENTENCES:
                heapq.heappush(self._top, rank)
            elif rank[:3] > self._top[0][:3]:
                heapq.heapreplace(self._top, rank)

    def histogram(self) -> tuple[int, ...]:
        return tuple(self._bins[number] for number in range(max(self._bins, default=-1) + 1))

    def most_uncertain(self) -> tuple[TokenSentence, ...]:
        return tuple(sentence for top, _, _, sentence in sorted(self._top, reverse=True) if top > 0)


class _Changes:
    """What stage two did."""

    def __init__(self) -> None:
        self.refined = 0
        self.counts: Counter[tuple[str, str]] = Counter()
        self._examples: defaultdict[tuple[str, str], list[tuple[TokenSentence, int]]] = defaultdict(list)

    def add(self, document: TokenDocument) -> None:
        for sentence in document.sentences:
            for position, token in enumerate(sentence.tokens):
                self.refined += token.refined
                if token.draft == token.label:
                    continue
                key = (token.draft, token.label)
                self.counts[key] += 1
                if len(self._examples[key]) < EXAMPLES:
                    self._examples[key].append((sentence, position))

    def most_common(self) -> tuple[Change, ...]:
        return tuple(
            Change(draft=key[0], label=key[1], count=count, examples=tuple(self._examples[key]))
            for key, count in self.counts.most_common()
        )


class _Recurring:
    """Consistency of recurring names, of the final labels and of stage one's."""

    def __init__(self) -> None:
        self.final = Consistency()
        self.draft = Consistency()
        self._least: list[tuple[int, float, int, RecurringName]] = []
        self._seen = 0

    def add(self, document: TokenDocument, *, final: Sequence[Sequence[str]], draft: Sequence[Sequence[str]]) -> None:
        words = [[token.text for token in sentence.tokens] for sentence in document.sentences]
        names = name_labels(zip(words, final, strict=True))
        spellings = _spellings(document, final)
        self.final += consistency(names)
        self.draft += consistency(name_labels(zip(words, draft, strict=True)))
        for name, labels in names.items():
            self._keep_if_inconsistent(RecurringName(name=spellings[name], doc_id=document.doc_id, labels=dict(labels)))

    def least_consistent(self) -> tuple[RecurringName, ...]:
        return tuple(name for *_, name in sorted(self._least, reverse=True, key=lambda entry: entry[:3]))

    def _keep_if_inconsistent(self, name: RecurringName) -> None:
        deviating = sum(name.labels.values()) - max(name.labels.values())
        if not deviating:
            return
        self._seen += 1
        rank = (deviating, deviating / sum(name.labels.values()), -self._seen, name)
        if len(self._least) < LEAST_CONSISTENT_NAMES:
            heapq.heappush(self._least, rank)
        elif rank[:3] > self._least[0][:3]:
            heapq.heapreplace(self._least, rank)


def _spellings(document: TokenDocument, labels: Sequence[Sequence[str]]) -> dict[str, str]:
    """Give how a name, as name_labels has it, is written where it first is an entity."""
    tokens = [token for sentence in document.sentences for token in sentence.tokens]
    spellings: dict[str, str] = {}
    for span in decode_spans([*chain.from_iterable(labels)], "BIO"):
        words = tokens[span.start : span.end]
        spellings.setdefault(" ".join(token.text.lower() for token in words), written(words))
    return spellings
