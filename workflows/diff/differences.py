"""What two annotations of the same texts, A and B, say differently: entities, sentences, words and trees.

Shards are compared pair by pair: memory holds the rows of one shard of A and one of B, and the changes that are listed.
Rows are matched in Arrow and numpy and become Python objects only when they are listed.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from concord.models.labels import OUTSIDE
from concord.pipeline.output.collection import Collection
from concord.workflows.diff.entity_changes import SIDE_COLUMNS, Kind, compare_entities
from concord.workflows.diff.records import DocumentPairs, ShardPair
from concord.workflows.diff.rows import KEYS, WORD_COLUMNS, Matches, ShardReader, ShardRows, match_rows

LIMITS = (0.5, 0.8, 0.95)
"""Limits of sureness; the changes below each are counted."""
BARS = 20
LISTED_DOCUMENTS = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """What A or B says about a stretch of text.

    Attributes:
        label: the entity's type; ``O`` if this side has no such entity, and the stretch is the other side's.
        sent_id: 0-based sentence in which the stretch begins.
        confidence: of the entity; without one, the lowest label probability among the words of the stretch. None where
            the tagger gives no probabilities.
        refined: whether stage two decided the label of any of its words.
    """

    label: str
    sent_id: int
    start_char: int
    end_char: int
    text: str
    confidence: float | None
    refined: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class EntityChange:
    """An entity that only one side has, or to which the sides give different labels or boundaries.

    Attributes:
        doc_id, second_doc_id: of A and B.
        sureness: the lower confidence of the two sides, 0..1; None where one is unknown.
        context: the text around, any white space as spaces; it starts at offset ``context_start`` of the document.
    """

    kind: Kind
    doc_id: str
    second_doc_id: str
    sureness: float | None
    first: Side
    second: Side
    context: str
    context_start: int


@dataclass(kw_only=True, slots=True)
class Tally:
    """A number of entities or changes, with sums over them.

    Attributes:
        below: how many have a sureness below each of LIMITS.
        refined: how many labels of A and of B were decided by stage two.
        known: how many have a confidence in A and in B.
        confidence: sums of the confidence of A and of B.
    """

    count: int = 0
    below: tuple[int, ...] = (0,) * len(LIMITS)
    refined: tuple[int, int] = (0, 0)
    known: tuple[int, int] = (0, 0)
    confidence: tuple[float, float] = (0.0, 0.0)

    def __add__(self, other: "Tally") -> "Tally":
        """Add counts and sums."""
        return Tally(
            count=self.count + other.count,
            below=tuple(map(sum, zip(self.below, other.below, strict=True))),
            refined=(self.refined[0] + other.refined[0], self.refined[1] + other.refined[1]),
            known=(self.known[0] + other.known[0], self.known[1] + other.known[1]),
            confidence=(self.confidence[0] + other.confidence[0], self.confidence[1] + other.confidence[1]),
        )

    @property
    def means(self) -> list[float | None]:
        """Mean confidence of A and B; None where none is known."""
        sides = zip(self.confidence, self.known, strict=True)
        return [confidence / known if known else None for confidence, known in sides]


@dataclass(slots=True)
class Shared:
    """Numbers of sentences or words in A, in B, and at the same offsets in both."""

    first: int = 0
    second: int = 0
    shared: int = 0

    def add(self, first: pa.Table, second: pa.Table, matches: Matches) -> None:
        """Count the rows of two tables."""
        self.first += first.num_rows
        self.second += second.num_rows
        self.shared += len(matches.first)


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangedDocument:
    """A document with the number of its changed entities and the number of its entities in A."""

    doc_id: str
    changes: int
    entities: int


@dataclass(kw_only=True, slots=True)
class Differences:
    """The differences between A and B in the documents whose text is the same, added up shard by shard.

    Attributes:
        listed: how many changes to keep in full.
        other: column of the tokens -> how many of the shared words differ in it; heads are compared by their offset.
        tallies: (kind, label of A, label of B) -> tally; ``O`` means no entity.
        bars: numbers of changes by sureness, in bins of equal width from 0 to 1.
        changes: those with the highest sureness, in that order.
        documents: those with most changes.
        changed_documents: how many documents have any change.
    """

    listed: int
    sentences: Shared = field(default_factory=Shared)
    words: Shared = field(default_factory=Shared)
    other: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(WORD_COLUMNS, 0)))
    tallies: defaultdict[tuple[Kind, str, str], Tally] = field(default_factory=lambda: defaultdict(Tally))
    bars: NDArray[np.int64] = field(default_factory=lambda: np.zeros(BARS, dtype=np.int64))
    changes: list[EntityChange] = field(default_factory=list)
    documents: list[ChangedDocument] = field(default_factory=list)
    changed_documents: int = 0

    def tally(self, *kinds: Kind) -> Tally:
        """Return the sum over all labels of these kinds."""
        return sum((tally for (kind, *_), tally in self.tallies.items() if kind in kinds), start=Tally())

    def confusion_matrix(self) -> tuple[list[str], list[tuple[str, list[int | None]]]]:
        """Return the labels of both sides, and for each label of A the number of entities by label of B.

        ``O``, which comes last, means no entity; its own cell is None.
        """
        counts: Counter[tuple[str, str]] = Counter()
        for (_, first, second), tally in self.tallies.items():
            counts[first, second] += tally.count
        labels = [*sorted({label for pair in counts for label in pair} - {OUTSIDE}), OUTSIDE]
        return labels, [
            (first, [None if first == second == OUTSIDE else counts[first, second] for second in labels])
            for first in labels
        ]

    def add(self, pair: ShardPair, first: ShardRows, second: ShardRows) -> None:
        """Add the differences of the documents of one pair of shards."""
        self.sentences.add(first.sentences, second.sentences, match_rows(first.sentences, second.sentences, keys=KEYS))
        words = match_rows(first.tokens, second.tokens, keys=KEYS)
        self.words.add(first.tokens, second.tokens, words)
        self.other.update(_count_differing_words(first, second, words))
        entities = compare_entities(first, second)
        self._add_tallies(entities)
        changes = entities.filter(pc.not_equal(entities["kind"], "same"))
        self.bars += np.histogram(changes["sureness"].drop_null().to_numpy(), bins=BARS, range=(0, 1))[0]
        self._add_documents(pair.first, changes, first.entities)
        self._add_changes(pair, changes, first)

    def _add_tallies(self, entities: pa.Table) -> None:
        for number, limit in enumerate(LIMITS):
            entities = entities.append_column(f"below_{number}", pc.less(entities["sureness"], limit))
        summed = [f"below_{number}" for number in range(len(LIMITS))]
        summed += [f"{side}_{column}" for column in ("refined", "confidence") for side in ("first", "second")]
        # One thread: the order of a floating-point sum decides its last digits.
        groups = entities.group_by(["kind", "first_label", "second_label"], use_threads=False)
        known = [(f"{side}_confidence", "count") for side in ("first", "second")]
        counted = groups.aggregate([([], "count_all"), *known, *((column, "sum") for column in summed)])
        for row in counted.to_pylist():
            sums = {column: row[f"{column}_sum"] or 0 for column in summed}
            self.tallies[row["kind"], row["first_label"], row["second_label"]] += Tally(
                count=row["count_all"],
                below=tuple(sums[f"below_{number}"] for number in range(len(LIMITS))),
                refined=(sums["first_refined"], sums["second_refined"]),
                known=(row["first_confidence_count"], row["second_confidence_count"]),
                confidence=(sums["first_confidence"], sums["second_confidence"]),
            )

    def _add_documents(self, ids: pa.Array, changes: pa.Table, entities: pa.Table) -> None:
        counts, totals = (
            np.bincount(table["document"].to_numpy(), minlength=len(ids)) for table in (changes, entities)
        )
        self.changed_documents += int((counts > 0).sum())
        most = np.argsort(-counts, kind="stable")[:LISTED_DOCUMENTS]
        new = [
            ChangedDocument(doc_id=ids[number].as_py(), changes=int(counts[number]), entities=int(totals[number]))
            for number in most.tolist()
            if counts[number]
        ]
        ranked = sorted(self.documents + new, key=lambda document: (-document.changes, document.doc_id))
        self.documents = ranked[:LISTED_DOCUMENTS]

    def _add_changes(self, pair: ShardPair, changes: pa.Table, first: ShardRows) -> None:
        if len(self.changes) == self.listed > 0 and (least := self.changes[-1].sureness) is not None:
            changes = changes.filter(pc.greater_equal(changes["sureness"], least))
        order = pc.sort_indices(
            changes, [("sureness", "descending"), ("document", "ascending"), ("first_start_char", "ascending")]
        )
        new = [_entity_change(row, pair, first) for row in changes.take(order.slice(0, self.listed)).to_pylist()]
        self.changes = sorted(self.changes + new, key=_rank)[: self.listed]


def _rank(change: EntityChange) -> tuple[float, str, int]:
    """Return what changes are ordered by; those of unknown sureness come last."""
    return 1.0 if change.sureness is None else -change.sureness, change.doc_id, change.first.start_char


def find_differences(first: Collection, second: Collection, pairs: DocumentPairs, *, listed: int) -> Differences:
    """Compare the documents whose text is the same, and list the most certain changes in full."""
    differences = Differences(listed=listed)
    readers = ShardReader(first), ShardReader(second)
    for pair in pairs.by_shards():
        differences.add(
            pair,
            ShardRows.select(readers[0].read(pair.first_shard), pair.first),
            ShardRows.select(readers[1].read(pair.second_shard), pair.second),
        )
    differences.tallies = defaultdict(Tally, sorted(differences.tallies.items()))
    return differences


def _count_differing_words(first: ShardRows, second: ShardRows, words: Matches) -> dict[str, int]:
    """Count by column the words at the same offsets that differ in it."""
    rows, second_rows = pa.array(words.first), pa.array(words.second)

    def differing(column: pa.Array, other: pa.Array) -> int:
        # Null and the empty string are the same.
        if pa.types.is_string(column.type):
            column, other = column.fill_null(""), other.fill_null("")
        return int(pc.sum(pc.not_equal(column.take(rows), other.take(second_rows))).as_py() or 0)

    counts = {name: differing(first.tokens[name], second.tokens[name]) for name in WORD_COLUMNS if name != "head"}
    return counts | {"head": differing(first.head_starts(), second.head_starts())}


def _entity_change(row: Mapping[str, Any], pair: ShardPair, first: ShardRows) -> EntityChange:
    sides = [Side(**{name: row[f"{side}_{name}"] for name in SIDE_COLUMNS}) for side in ("first", "second")]
    start, end = min(side.start_char for side in sides), max(side.end_char for side in sides)
    context_start, context = first.context(start, end, document=row["document"])
    return EntityChange(
        kind=row["kind"],
        doc_id=pair.first[row["document"]].as_py(),
        second_doc_id=pair.second[row["document"]].as_py(),
        sureness=row["sureness"],
        first=sides[0],
        second=sides[1],
        context=context,
        context_start=context_start,
    )
