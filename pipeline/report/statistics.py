"""What a report shows of a run: counts, the equation, and what deserves a second look.

Everything is read from the committed parts in one pass with one document in memory at a time; the examples kept
beside the counts are bounded in number. Sections of the report correspond to the fields of ``Quality``.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Generic, TypeVar

from concord.models.data.outputs import known_numbers
from concord.models.evaluation.consistency import Consistency, consistency, name_labels
from concord.models.labels.spans import decode_spans
from concord.pipeline.output.collection import open_collection
from concord.pipeline.output.document_rows import (
    CollectedDocument,
    CollectedSentence,
    TokenRow,
    join_words,
    read_collection,
)
from concord.pipeline.output.manifest import Manifest, check_equation
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.parquet_parts import iter_batches
from concord.pipeline.output.schema import ERRORS
from concord.pipeline.plan import Plan
from concord.pipeline.storage.output_paths import OutputPath

BIN_WIDTH = 0.05
"""Width in nats of a bar of the uncertainty histogram."""
NAMES_A_TYPE = 15
LEAST_CONSISTENT_NAMES = 20
EXAMPLES = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """How much a report shows.

    Attributes:
        long_document_tokens: a longer document is shown whole only if there are too few shorter ones.
        document_sentences: of a whole document; the report says how many more there are.
        changes: kinds of change shown with examples; the others are only counted.
        distinct_names: when there are more than this, the rarer half is dropped from the counts.
    """

    uncertain_sentences: int = 50
    whole_documents: int = 3
    long_document_tokens: int = 1500
    document_sentences: int = 60
    changes: int = 20
    distinct_names: int = 400_000


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True, kw_only=True, slots=True)
class EntityType:
    """A type of entity: how many stage one drafted, how many there are in the end, and the most frequent names."""

    label: str
    drafted: int
    count: int
    names: tuple[tuple[str, int], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownSentence:
    """A sentence to show; ``sent_id`` is 0-based within the document."""

    doc_id: str
    sent_id: int
    tokens: tuple[TokenRow, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """Words whose label stage two changed, and the first few of them as sentence and 0-based word."""

    draft: str
    label: str
    count: int
    examples: tuple[tuple[ShownSentence, int], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class RecurringName:
    """A name in a document, as first written, and the number of its occurrences by label; ``O`` is none."""

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
class Quality:
    """Everything that the report shows of a run, except its timings.

    Attributes:
        names_are_exact: false if rare names were dropped, so that counts of names are lower bounds.
        histogram: tokens by uncertainty, the first bar from 0 to BIN_WIDTH nats.
        least_consistent: by the number of occurrences that deviate from their name's most frequent label.
        uncertain_sentences: by their most uncertain word, then by the mean.
        whole_documents: those with most entities that are not too long.
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
    uncertain_sentences: tuple[ShownSentence, ...]
    whole_documents: tuple[CollectedDocument, ...]


def measure_quality(output: OutputPath | OutputFolder, limits: Limits = DEFAULT_LIMITS) -> Quality:
    """Read a finished run's output and compute what the report shows; raises what ``write_report`` raises."""
    collection = open_collection(output)
    manifest = collection.manifest
    check_equation(manifest, where=str(collection.output))
    names, uncertainty = _Names(limits.distinct_names), _Uncertainty(limits.uncertain_sentences)
    changes, recurring = _Pairs[tuple[ShownSentence, int]](), _Recurring()
    richest = _Top[CollectedDocument](limits.whole_documents)
    count = refined = 0
    for document in read_collection(collection):
        count += 1
        richest.add(_display_rank(document, longest=limits.long_document_tokens), document)
        labels = _Labels(document)
        names.add(labels)
        uncertainty.add(document)
        recurring.add(document, labels)
        for sentence in document.sentences:
            for position, token in enumerate(sentence.tokens):
                refined += token.refined
                if token.changed:
                    changes.add(token.draft_ner, token.ner, (_shown(document, sentence), position))
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
        refined=refined,
        changed=changes.counts.total(),
        changes=tuple(
            Change(draft=draft, label=label, count=count, examples=examples)
            for (draft, label), count, examples in changes.most_common()
        ),
        consistency=recurring.final,
        draft_consistency=recurring.draft,
        least_consistent=recurring.least_consistent.items(),
        reasons=_reasons(collection.parts("errors")),
        uncertain_sentences=uncertainty.most_uncertain.items(),
        whole_documents=tuple(document for document in richest.items() if document.sentences),
    )


def _display_rank(document: CollectedDocument, *, longest: int) -> tuple[float, ...]:
    """Rank documents that are not long by their entities, before long ones; then by their length, shortest first."""
    row = document.row
    return (0, -row.n_tokens) if row.n_tokens > longest else (1, row.n_entities, -row.n_tokens)


def _reasons(parts: Sequence[OutputPath]) -> tuple[Reason, ...]:
    pairs = _Pairs[Mapping[str, Any]]()
    for batch in chain.from_iterable(iter_batches(part, tuple(ERRORS.names)) for part in parts):
        for row in batch.to_pylist():
            pairs.add(row["stage"], row["error"], row)
    return tuple(
        Reason(stage=stage, error=error, count=count, examples=examples)
        for (stage, error), count, examples in pairs.most_common()
    )


class _Labels:
    """A document's words and labels: by sentence, and decoded into spans over all its words."""

    def __init__(self, document: CollectedDocument) -> None:
        sentences = document.sentences
        self.final = [[token.ner for token in sentence.tokens] for sentence in sentences]
        self.draft = [[token.draft_ner for token in sentence.tokens] for sentence in sentences]
        # Only a piece of an over-long sentence begins with I-, so the labels of sentences may be concatenated.
        self.final_spans = decode_spans([*chain.from_iterable(self.final)], "BIO")
        self.draft_spans = decode_spans([*chain.from_iterable(self.draft)], "BIO")
        tokens = [token for sentence in sentences for token in sentence.tokens]
        self.entity_words = [tokens[span.start : span.end] for span in self.final_spans]


ItemT = TypeVar("ItemT")


class _Top(Generic[ItemT]):
    """The items of highest rank, at most so many; of equals, those added first."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._heap: list[tuple[tuple[float, ...], int, ItemT]] = []
        self._added = 0

    def add(self, rank: tuple[float, ...], item: ItemT) -> None:
        self._added += 1
        # The running number decides between equal ranks, and keeps items from being compared.
        entry = (rank, -self._added, item)
        if len(self._heap) < self._size:
            heapq.heappush(self._heap, entry)
        else:
            heapq.heappushpop(self._heap, entry)

    def items(self) -> tuple[ItemT, ...]:
        return tuple(item for _, _, item in sorted(self._heap, reverse=True))


class _Pairs(Generic[ItemT]):
    """Counts of pairs, with the first few examples of each."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self._examples: defaultdict[tuple[str, str], list[ItemT]] = defaultdict(list)

    def add(self, first: str, second: str, example: ItemT) -> None:
        self.counts[first, second] += 1
        if self.counts[first, second] <= EXAMPLES:
            self._examples[first, second].append(example)

    def most_common(self) -> Iterator[tuple[tuple[str, str], int, tuple[ItemT, ...]]]:
        for pair, count in self.counts.most_common():
            yield pair, count, tuple(self._examples[pair])


class _Names:
    """Entities by type, and their names; at most ``most`` different ones."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.final: Counter[str] = Counter()
        self.drafted: Counter[str] = Counter()
        self.exact = True
        self._names: Counter[tuple[str, str]] = Counter()

    def add(self, labels: _Labels) -> None:
        self.final.update(span.label for span in labels.final_spans)
        self.drafted.update(span.label for span in labels.draft_spans)
        entities = zip(labels.final_spans, labels.entity_words, strict=True)
        self._names.update((span.label, join_words(words)) for span, words in entities)
        if len(self._names) > self._most:
            self.exact = False
            self._names = Counter(dict(self._names.most_common(self._most // 2)))

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

    def __init__(self, shown: int) -> None:
        self.sentences = 0
        self.tokens = 0
        self.most_uncertain = _Top[ShownSentence](shown)
        self._bins: Counter[int] = Counter()

    def add(self, document: CollectedDocument) -> None:
        for sentence in document.sentences:
            values = known_numbers(token.uncertainty for token in sentence.tokens)
            self._bins.update([int(value / BIN_WIDTH) for value in values])
            self.sentences += 1
            self.tokens += len(sentence.tokens)
            if (highest := max(values, default=0.0)) > 0:
                self.most_uncertain.add((highest, sum(values) / len(values)), _shown(document, sentence))

    def histogram(self) -> tuple[int, ...]:
        return tuple(self._bins[number] for number in range(max(self._bins, default=-1) + 1))


class _Recurring:
    """Consistency of recurring names, of the final labels and of stage one's."""

    def __init__(self) -> None:
        self.final = Consistency()
        self.draft = Consistency()
        self.least_consistent = _Top[RecurringName](LEAST_CONSISTENT_NAMES)

    def add(self, document: CollectedDocument, labels: _Labels) -> None:
        words = [[token.text for token in sentence.tokens] for sentence in document.sentences]
        names = name_labels(zip(words, labels.final, strict=True))
        self.final += consistency(names)
        self.draft += consistency(name_labels(zip(words, labels.draft, strict=True)))
        spellings: dict[str, str] = {}
        for entity in labels.entity_words:
            spellings.setdefault(" ".join(token.text.lower() for token in entity), join_words(entity))
        for name, counts in names.items():
            total = sum(counts.values())
            if deviating := total - max(counts.values()):
                found = RecurringName(name=spellings[name], doc_id=document.row.doc_id, labels=dict(counts))
                self.least_consistent.add((deviating, deviating / total), found)


def _shown(document: CollectedDocument, sentence: CollectedSentence) -> ShownSentence:
    return ShownSentence(doc_id=document.row.doc_id, sent_id=sentence.row.sent_id, tokens=sentence.tokens)
