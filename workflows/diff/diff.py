"""The comparison of two annotations of a collection, A and B.

Shards are compared pair by pair: memory holds the rows of one shard of A and one of B, and the changes that are listed.
Rows are matched in Arrow and numpy and become Python objects only when they are listed.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from concord.models.labels.spans import OUTSIDE
from concord.pipeline.errors import PlanError
from concord.pipeline.output.collection import Collection
from concord.workflows.console import counted
from concord.workflows.diff import records
from concord.workflows.diff.entity_changes import CHANGES, SIDE_COLUMNS, Kind, compare_entities
from concord.workflows.diff.rows import KEYS, WORD_COLUMNS, Matches, ShardRows, match_rows, read_shard

LIMITS = (0.5, 0.8, 0.95)
"""Limits of sureness; the changes below each are counted."""
BARS = 20
LISTED_DOCUMENTS = 12
SIDES = ("first", "second")


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Tally:
    """A number of entities or changes.

    Attributes:
        below: for each of LIMITS, how many have a lower sureness.
        refined: how many labels of A and of B were decided by stage two.
        mean_confidence: of A and of B; None where none is known.
    """

    count: int
    below: Mapping[str, int]
    refined: tuple[int, ...]
    mean_confidence: tuple[float | None, ...]

    @classmethod
    def of(cls, sums: Counter[str]) -> "Tally":
        """Build it from what ``_sums`` returns."""
        known = ((sums[f"{side}_confidence"], sums[f"{side}_known"]) for side in SIDES)
        return cls(
            count=sums["count"],
            below={str(limit): sums[f"below_{limit}"] for limit in LIMITS},
            refined=tuple(sums[f"{side}_refined"] for side in SIDES),
            mean_confidence=tuple(confidence / count if count else None for confidence, count in known),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangedDocument:
    """A document with the number of its changed entities and the number of its entities in A."""

    doc_id: str
    changes: int
    entities: int


@dataclass(slots=True)
class Shared:
    """Numbers of sentences or words in A, in B, and at the same offsets in both."""

    first: int = 0
    second: int = 0
    shared: int = 0

    def add(self, first: pa.Table, second: pa.Table) -> Matches:
        """Count the rows of two tables, and return those at the same offsets."""
        matches = match_rows(first, second, keys=KEYS)
        self.first += first.num_rows
        self.second += second.num_rows
        self.shared += len(matches.first)
        return matches


@dataclass(kw_only=True, slots=True)
class Differences:
    """The differences between A and B in the documents whose text is the same, added up shard by shard.

    Attributes:
        listed: how many changes to keep in full.
        differing: column of the tokens -> how many of the shared words differ in it; heads are compared by offset.
        sums: (kind, label of A, label of B) -> sums over these entities; ``O`` means no entity.
        bars: numbers of changes by sureness, in bins of equal width from 0 to 1.
        changes: those with the highest sureness, in that order.
        changed_documents: how many documents have any change.
        most_changed: those with most changes.
    """

    listed: int
    sentences: Shared = field(default_factory=Shared)
    words: Shared = field(default_factory=Shared)
    differing: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(WORD_COLUMNS, 0)))
    sums: defaultdict[tuple[Kind, str, str], Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    bars: NDArray[np.int64] = field(default_factory=lambda: np.zeros(BARS, dtype=np.int64))
    changes: list[EntityChange] = field(default_factory=list)
    changed_documents: int = 0
    most_changed: list[ChangedDocument] = field(default_factory=list)

    @property
    def labels(self) -> Mapping[tuple[Kind, str, str], Tally]:
        """The entities by kind, label of A and label of B."""
        return {group: Tally.of(sums) for group, sums in sorted(self.sums.items())}

    @property
    def kinds(self) -> Mapping[Kind, Tally]:
        """The entities by kind."""
        totals: dict[Kind, Counter[str]] = {kind: Counter() for kind in ("same", *CHANGES)}
        for (kind, *_), sums in self.sums.items():
            totals[kind].update(sums)
        return {kind: Tally.of(sums) for kind, sums in totals.items()}

    @property
    def changed(self) -> int:
        """How many entities changed."""
        return sum(sums["count"] for (kind, *_), sums in self.sums.items() if kind != "same")

    def confusion_matrix(self) -> tuple[list[str], list[tuple[str, list[int | None]]]]:
        """Return the labels of both sides, and for each label of A the number of entities by label of B.

        ``O``, which comes last, means no entity; its own cell is None.
        """
        counts: Counter[tuple[str, str]] = Counter()
        for (_, *labels), sums in self.sums.items():
            counts[labels[0], labels[1]] += sums["count"]
        names = [*sorted({label for pair in counts for label in pair} - {OUTSIDE}), OUTSIDE]
        return names, [
            (first, [None if first == second == OUTSIDE else counts[first, second] for second in names])
            for first in names
        ]

    def add(self, pair: records.ShardPair, first: ShardRows, second: ShardRows) -> None:
        """Add the differences of the documents of one pair of shards."""
        self.sentences.add(first.sentences, second.sentences)
        words = self.words.add(first.tokens, second.tokens)
        self.differing.update(_count_differing_words(first, second, words))
        entities = compare_entities(first, second)
        for row in _sums(entities).to_pylist():
            self.sums[row.pop("kind"), row.pop("first_label"), row.pop("second_label")].update(row)
        changes = entities.filter(pc.not_equal(entities["kind"], "same"))
        self.bars += np.histogram(changes["sureness"].drop_null().to_numpy(), bins=BARS, range=(0, 1))[0]
        documents, counts = np.unique(changes["document"].to_numpy(), return_counts=True)
        totals = np.bincount(first.entities["document"].to_numpy(), minlength=len(pair.first))[documents]
        found = pa.table({"doc_id": pair.first.take(documents), "changes": counts, "entities": totals})
        order = [("changes", "descending"), ("doc_id", "ascending")]
        self.changed_documents += len(documents)
        rows = _first_rows(found, order, LISTED_DOCUMENTS)
        self.most_changed += [ChangedDocument(**row) for row in rows.to_pylist()]
        self.most_changed.sort(key=lambda document: (-document.changes, document.doc_id))
        del self.most_changed[LISTED_DOCUMENTS:]
        if len(self.changes) == self.listed > 0 and (least := self.changes[-1].sureness) is not None:
            changes = changes.filter(pc.greater_equal(changes["sureness"], least))
        changes = changes.append_column("doc_id", pair.first.take(changes["document"].combine_chunks()))
        order = [("sureness", "descending"), ("doc_id", "ascending"), ("first_start_char", "ascending")]
        self.changes += [_change(row, pair, first) for row in _first_rows(changes, order, self.listed).to_pylist()]
        self.changes.sort(key=_rank)
        del self.changes[self.listed :]


@dataclass(frozen=True, kw_only=True, slots=True)
class Diff:
    """The differences between two annotated collections, A and B.

    Attributes:
        calibrations: the distinct ones that the tables of A and of B name, in shard order.
        recipe: the differences between the parsers, taggers and settings, one a line.
    """

    first: Collection
    second: Collection
    calibrations: Sequence[Sequence[str]]
    recipe: Sequence[str]
    documents: records.Documents
    differences: Differences
    dead_letters: records.DeadLetters

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
        if not self.documents.same_text:
            return "A and B have no document with the same text"
        compared, changed = (
            f"{counted(self.documents.same_text, 'document')} with the same text",
            self.differences.changed,
        )
        if not changed:
            return f"no entity changed in {compared}"
        entities = changed + self.differences.kinds["same"].count
        return f"{changed:,} of {entities:,} entities changed, in {self.differences.changed_documents:,} of {compared}"


def compare_collections(left: Collection, right: Collection, *, listed: int) -> Diff:
    """Compare two collections, or two generations of one.

    Args:
        listed: how many changes, documents and dead letters are listed in full.

    Raises:
        PlanError: when the schema versions differ.
        IntegrityError: when a part cannot be read.
    """
    if left.manifest.schema_version != right.manifest.schema_version:
        raise PlanError(
            f"{left.output} has version {left.manifest.schema_version} of the schema, {right.output} version "
            f"{right.manifest.schema_version}: expected the same; annotate one of them again"
        )
    tables, calibrations = zip(*map(records.read_documents, (left, right)), strict=True)
    documents, pairs = records.match_documents(*tables, listed=listed)
    dead_letters = records.compare_dead_letters(left, right, tables, listed=listed)
    del tables
    differences = Differences(listed=listed)
    shards, rows = (-1, -1), [dict[str, pa.Table](), dict[str, pa.Table]()]
    for pair in pairs:
        # A and B are mostly cut alike: the next pair may need one of the same shards.
        for side, collection in enumerate((left, right)):
            if pair[side] != shards[side]:
                rows[side].clear()  # frees its memory before the next shard is read
                rows[side] |= read_shard(collection, pair[side])
        shards = pair.first_shard, pair.second_shard
        differences.add(pair, ShardRows.select(rows[0], pair.first), ShardRows.select(rows[1], pair.second))
    return Diff(
        first=left,
        second=right,
        calibrations=calibrations,
        recipe=right.plan.recipe.difference(left.plan.recipe),
        documents=documents,
        differences=differences,
        dead_letters=dead_letters,
    )


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


def _sums(entities: pa.Table) -> pa.Table:
    """Return the sums of what ``Tally`` tells by kind and labels."""
    columns = {"count": pa.repeat(1, entities.num_rows)}
    columns |= {f"below_{limit}": pc.less(entities["sureness"], limit) for limit in LIMITS}
    for side in SIDES:
        columns |= {f"{side}_{name}": entities[f"{side}_{name}"] for name in ("refined", "confidence")}
        columns[f"{side}_known"] = pc.is_valid(entities[f"{side}_confidence"])
    keys = {name: entities[name] for name in ("kind", "first_label", "second_label")}
    # One thread: the order of a floating-point sum decides its last digits.
    groups = pa.table(keys | columns).group_by([*keys], use_threads=False)
    sums = groups.aggregate([(name, "sum", pc.ScalarAggregateOptions(min_count=0)) for name in columns])
    return sums.rename_columns([*keys, *columns])


def _first_rows(table: pa.Table, order: Sequence[tuple[str, str]], count: int) -> pa.Table:
    return table.take(pc.sort_indices(table, order).slice(0, count))


def _rank(change: EntityChange) -> tuple[float, str, int]:
    """Return what changes are ordered by; those of unknown sureness come last."""
    return 1.0 if change.sureness is None else -change.sureness, change.doc_id, change.first.start_char


def _change(row: Mapping[str, Any], pair: records.ShardPair, first: ShardRows) -> EntityChange:
    sides = [Side(**{name: row[f"{side}_{name}"] for name in SIDE_COLUMNS}) for side in SIDES]
    start, end = min(side.start_char for side in sides), max(side.end_char for side in sides)
    context_start, context = first.context(start, end, document=row["document"])
    return EntityChange(
        kind=row["kind"],
        doc_id=row["doc_id"],
        second_doc_id=pair.second[row["document"]].as_py(),
        sureness=row["sureness"],
        first=sides[0],
        second=sides[1],
        context=context,
        context_start=context_start,
    )
