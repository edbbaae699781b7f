"""What two annotations of the same texts, A and B, say differently: entities, sentences, words, trees.

Everything is read shard by shard: memory holds the rows of one shard of A and one of B, and what is listed. Rows are
matched in Arrow and numpy, none is a Python object before it is listed.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from concord.models.labels import OUTSIDE
from concord.pipeline.output.collection import Collection
from concord.workflows.diff.document_pairs import DocumentPairs, ShardPair
from concord.workflows.diff.row_matching import Matches, Rows, match_rows

Kind = Literal["same", "relabelled", "moved", "lost", "gained"]
CHANGES: tuple[Kind, ...] = ("relabelled", "moved", "lost", "gained")
LIMITS = (0.5, 0.8, 0.95)
"""Of the sureness: how many changes are below each."""
BARS = 20
LISTED_DOCUMENTS = 12
CONTEXT = 70
"""Code points of text shown on each side of an entity."""
WORD_COLUMNS = ("word", "lemma", "upos", "xpos", "feats", "head", "deprel", "draft_ner", "ner")

_PLACE = ("start_char", "end_char")
_COLUMNS = {
    "sentences": ("doc_id", *_PLACE),
    "tokens": ("doc_id", "sent_id", "token_id", *_PLACE, "text", *WORD_COLUMNS, "ner_prob", "refined"),
    "entities": ("doc_id", "sent_id", *_PLACE, "text", "label", "confidence", "refined"),
}
_SIDE = ("sent_id", *_PLACE, "text", "label", "confidence", "refined")
_KEYS = ("document", *_PLACE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """What A or B says of a stretch of text.

    Attributes:
        label: the entity's type, or ``O`` where there is no such entity; the stretch is then the other side's.
        sent_id: 0-based sentence in which the stretch begins.
        confidence: of the entity; where there is none, the least probability of the labels of the stretch's words.
        refined: whether stage two gave the label of any of its words.
    """

    label: str
    sent_id: int
    start_char: int
    end_char: int
    text: str
    confidence: float
    refined: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class EntityChange:
    """An entity that only one side has, or that the two have with another label or other ends.

    Attributes:
        doc_id, second_doc_id: of A and B.
        sureness: the lesser confidence of the two sides, 0..1.
        context: the text around, white space as blanks; its first code point is ``context_start`` of the document.
    """

    kind: Kind
    doc_id: str
    second_doc_id: str
    sureness: float
    first: Side
    second: Side
    context: str
    context_start: int


@dataclass(kw_only=True, slots=True)
class Tally:
    """How many entities or changes there are, with sums over them.

    Attributes:
        below: how many have a sureness below each of LIMITS.
        refined: how many labels of A and of B are stage two's.
        confidence: sums of A's and B's confidence.
    """

    count: int = 0
    below: tuple[int, ...] = (0,) * len(LIMITS)
    refined: tuple[int, int] = (0, 0)
    confidence: tuple[float, float] = (0.0, 0.0)

    def __add__(self, other: "Tally") -> "Tally":
        """Add counts and sums up."""
        return Tally(
            count=self.count + other.count,
            below=tuple(map(sum, zip(self.below, other.below, strict=True))),
            refined=(self.refined[0] + other.refined[0], self.refined[1] + other.refined[1]),
            confidence=(self.confidence[0] + other.confidence[0], self.confidence[1] + other.confidence[1]),
        )

    @property
    def means(self) -> tuple[float, float] | None:
        """Mean confidence of A and B; None of nothing."""
        return (self.confidence[0] / self.count, self.confidence[1] / self.count) if self.count else None


@dataclass(frozen=True, slots=True)
class Shared:
    """Sentences or words of A and of B, and how many stand at the same offsets in both."""

    first: int
    second: int
    shared: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangedDocument:
    """A document of both, with the number of changes of its entities and the number of entities that A has."""

    doc_id: str
    changes: int
    entities: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Differences:
    """What A and B say differently of the documents whose text is the same.

    Attributes:
        words: how many words of both stand at the same offsets, and ``other`` by column how many of them differ there.
            Heads are compared by the offsets of the head.
        tallies: by kind, label of A and label of B; ``O`` where there is no entity.
        bars: changes by sureness, in bars of equal width from 0 to 1.
        changes: the surest ones.
        documents: those with most changes.
        changed_documents: how many have any.
    """

    sentences: Shared
    words: Shared
    other: Mapping[str, int]
    tallies: Mapping[tuple[Kind, str, str], Tally]
    bars: tuple[int, ...]
    changes: tuple[EntityChange, ...]
    documents: tuple[ChangedDocument, ...]
    changed_documents: int

    def tally(self, *kinds: Kind) -> Tally:
        """Add up all labels of some kinds."""
        return sum((tally for (kind, *_), tally in self.tallies.items() if kind in kinds), start=Tally())

    @property
    def by_labels(self) -> dict[tuple[str, str], int]:
        """How many entities A calls so and B calls so; ``O`` where one has none."""
        counts: Counter[tuple[str, str]] = Counter()
        for (_, first, second), tally in self.tallies.items():
            counts[first, second] += tally.count
        return dict(counts)


def find_differences(first: Collection, second: Collection, pairs: DocumentPairs, *, listed: int) -> Differences:
    """Compare the documents whose text is the same.

    An entity of A and one of B are the same or relabelled if they have the same offsets. Of the others an entity of A
    and one of B are one that moved if each is the first that the other overlaps. The rest is lost or gained.

    Args:
        listed: how many changes to give in full, the surest first.

    Raises:
        IntegrityError: when a part cannot be read.
    """
    found = _Findings(listed=listed)
    readers = _Reader(first), _Reader(second)
    for pair in pairs.by_shards():
        found.add(
            pair,
            _Texts.of(readers[0].read(pair.first_shard), pair.first),
            _Texts.of(readers[1].read(pair.second_shard), pair.second),
        )
    return found.result()


class _Reader:
    """Reads the shards of a collection and holds the last one: A and B are mostly cut alike."""

    def __init__(self, collection: Collection) -> None:
        self._collection = collection
        self._held: tuple[int, dict[str, pa.Table]] | None = None

    def read(self, shard: int) -> dict[str, pa.Table]:
        if self._held is None or self._held[0] != shard:
            self._held = None
            tables = {name: self._collection.read(name, columns, shard=shard) for name, columns in _COLUMNS.items()}
            self._held = shard, tables
        return self._held[1]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Texts:
    """The rows of some documents on one side, with ``document``, the number of the pair, by which they are ordered.

    Attributes:
        starts, ends: of the words, as ``_place`` gives them.
    """

    sentences: pa.Table
    tokens: pa.Table
    entities: pa.Table
    starts: Rows
    ends: Rows

    @classmethod
    def of(cls, tables: Mapping[str, pa.Table], ids: pa.Array) -> "_Texts":
        chosen = {name: _chosen(table, ids) for name, table in tables.items()}
        tokens = chosen["tokens"]
        return cls(**chosen, starts=_place(tokens, "start_char"), ends=_place(tokens, "end_char"))

    def words_of(self, starts: Rows, ends: Rows) -> tuple[Rows, Rows]:
        """Give for each stretch the first word that it overlaps, and the one behind the last."""
        begin = np.searchsorted(self.ends, starts, side="right")
        return begin, np.maximum(np.searchsorted(self.starts, ends, side="left"), begin + 1)

    def outside(self, stretches: pa.Table) -> pa.Table:
        """Give what this side says of stretches that are entities on the other side only."""
        bounds = np.stack(self.words_of(_place(stretches, "start_char"), _place(stretches, "end_char")), axis=1)

        def reduced(reduce: np.ufunc, column: str) -> NDArray[Any]:
            # One value more, so that a stretch may end with the last word.
            values = np.append(self.tokens[column].to_numpy(), 0)
            return np.asarray(reduce.reduceat(values, bounds.ravel())[::2] if len(bounds) else values[:0])

        columns = {
            "sent_id": self.tokens["sent_id"].take(pa.array(bounds[:, 0])),
            "label": pa.array([OUTSIDE] * stretches.num_rows, pa.string()),
            "confidence": pa.array(reduced(np.minimum, "ner_prob"), pa.float32()),
            "refined": pa.array(reduced(np.maximum, "refined").astype(bool), pa.bool_()),
        }
        return pa.table({name: columns.get(name, stretches[name]) for name in ("document", *_SIDE)} | columns)

    def head_starts(self) -> pa.Array:
        """Give the offset of each word's head; -1 of a root, which no offset is."""
        rows, heads, numbers = (np.arange(self.tokens.num_rows), *map(self._numbers, ("head", "token_id")))
        of_head = self._numbers("start_char")[np.where(heads == 0, rows, rows - numbers + heads)]
        return pa.array(np.where(heads == 0, -1, of_head))

    def context(self, start: int, end: int, *, document: int) -> tuple[int, str]:
        """Give whole words around a stretch, with white space as blanks, and the offset of the first."""
        base = document << 32
        near = np.searchsorted(self.starts, base + max(0, start - CONTEXT), side="left")
        far = np.searchsorted(self.ends, base + end + CONTEXT, side="right")
        own = self.words_of(np.array([base + start]), np.array([base + end]))
        first, behind = min(near, own[0][0]), max(far, own[1][0])
        words = self.tokens.slice(first, behind - first).select([*_PLACE, "text"]).to_pylist()
        text, offset = "", words[0]["start_char"]
        for word in words:
            # Words of one multi-word token share a stretch, which is written once.
            if word["start_char"] >= offset + len(text):
                text = text.ljust(word["start_char"] - offset) + word["text"]
        return offset, text

    def _numbers(self, column: str) -> Rows:
        return np.asarray(self.tokens[column].to_numpy(), dtype=np.int64)


def _chosen(table: pa.Table, ids: pa.Array) -> pa.Table:
    numbers = pc.index_in(table["doc_id"], ids)
    chosen = table.drop_columns("doc_id").append_column("document", numbers).filter(pc.is_valid(numbers))
    return chosen.take(pc.sort_indices(chosen, [("document", "ascending")])).combine_chunks()


def _place(table: pa.Table, column: str) -> Rows:
    """Give an offset and the document that it is in as one number, which ascends through a table."""
    documents, offsets = (np.asarray(table[name].to_numpy(), dtype=np.int64) for name in ("document", column))
    return (documents << 32) + offsets


class _Findings:
    """What has been found so far."""

    def __init__(self, *, listed: int) -> None:
        self._listed = listed
        self._sentences = np.zeros(3, dtype=np.int64)
        self._words = np.zeros(3, dtype=np.int64)
        self._other: Counter[str] = Counter(dict.fromkeys(WORD_COLUMNS, 0))
        self._tallies: defaultdict[tuple[Kind, str, str], Tally] = defaultdict(Tally)
        self._bars = np.zeros(BARS, dtype=np.int64)
        self._changes: list[EntityChange] = []
        self._documents: list[ChangedDocument] = []
        self._changed_documents = 0

    def add(self, pair: ShardPair, first: _Texts, second: _Texts) -> None:
        sentences = match_rows(first.sentences, second.sentences, keys=_KEYS)
        self._sentences += (first.sentences.num_rows, second.sentences.num_rows, len(sentences.first))
        words = match_rows(first.tokens, second.tokens, keys=_KEYS)
        self._words += (first.tokens.num_rows, second.tokens.num_rows, len(words.first))
        self._other.update(_other_words(first, second, words))
        entities = _compared(first, second)
        self._add_tallies(entities)
        changes = entities.filter(pc.not_equal(entities["kind"], "same"))
        self._bars += np.histogram(changes["sureness"].to_numpy(), bins=BARS, range=(0, 1))[0]
        self._add_documents(pair.first, changes, first.entities)
        self._add_changes(pair, changes, first)

    def result(self) -> Differences:
        return Differences(
            sentences=Shared(*self._sentences.tolist()),
            words=Shared(*self._words.tolist()),
            other=dict(self._other),
            tallies=dict(sorted(self._tallies.items())),
            bars=tuple(self._bars.tolist()),
            changes=tuple(self._changes),
            documents=tuple(self._documents),
            changed_documents=self._changed_documents,
        )

    def _add_tallies(self, entities: pa.Table) -> None:
        for number, limit in enumerate(LIMITS):
            entities = entities.append_column(f"below_{number}", pc.less(entities["sureness"], limit))
        summed = [f"below_{number}" for number in range(len(LIMITS))]
        summed += [f"{side}_{column}" for column in ("refined", "confidence") for side in ("first", "second")]
        # One thread: the order of a sum decides its last digits.
        groups = entities.group_by(["kind", "first_label", "second_label"], use_threads=False)
        for row in groups.aggregate([([], "count_all"), *((column, "sum") for column in summed)]).to_pylist():
            sums = {column: row[f"{column}_sum"] for column in summed}
            self._tallies[row["kind"], row["first_label"], row["second_label"]] += Tally(
                count=row["count_all"],
                below=tuple(sums[f"below_{number}"] for number in range(len(LIMITS))),
                refined=(sums["first_refined"], sums["second_refined"]),
                confidence=(sums["first_confidence"], sums["second_confidence"]),
            )

    def _add_documents(self, ids: pa.Array, changes: pa.Table, entities: pa.Table) -> None:
        counts, held = (np.bincount(table["document"].to_numpy(), minlength=len(ids)) for table in (changes, entities))
        self._changed_documents += int((counts > 0).sum())
        most = np.argsort(-counts, kind="stable")[:LISTED_DOCUMENTS]
        new = [
            ChangedDocument(doc_id=ids[number].as_py(), changes=int(counts[number]), entities=int(held[number]))
            for number in most.tolist()
            if counts[number]
        ]
        ranked = sorted(self._documents + new, key=lambda document: (-document.changes, document.doc_id))
        self._documents = ranked[:LISTED_DOCUMENTS]

    def _add_changes(self, pair: ShardPair, changes: pa.Table, first: _Texts) -> None:
        if len(self._changes) == self._listed > 0:
            changes = changes.filter(pc.greater_equal(changes["sureness"], self._changes[-1].sureness))
        order = pc.sort_indices(
            changes, [("sureness", "descending"), ("document", "ascending"), ("first_start_char", "ascending")]
        )
        rows = changes.take(order.slice(0, self._listed)).to_pylist()
        new = [_listed_change(row, pair, first) for row in rows]
        ranked = sorted(
            self._changes + new, key=lambda change: (-change.sureness, change.doc_id, change.first.start_char)
        )
        self._changes = ranked[: self._listed]


def _listed_change(row: Mapping[str, Any], pair: ShardPair, first: _Texts) -> EntityChange:
    sides = [Side(**{name: row[f"{side}_{name}"] for name in _SIDE}) for side in ("first", "second")]
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


def _other_words(first: _Texts, second: _Texts, words: Matches) -> dict[str, int]:
    """Count by column the words at the same offsets that differ in it."""
    rows, others = pa.array(words.first), pa.array(words.second)

    def differing(column: pa.Array, other: pa.Array) -> int:
        # Null is nothing, as the empty text is.
        if pa.types.is_string(column.type):
            column, other = column.fill_null(""), other.fill_null("")
        return int(pc.sum(pc.not_equal(column.take(rows), other.take(others))).as_py() or 0)

    counts = {name: differing(first.tokens[name], second.tokens[name]) for name in WORD_COLUMNS if name != "head"}
    return counts | {"head": differing(first.head_starts(), second.head_starts())}


def _compared(first: _Texts, second: _Texts) -> pa.Table:
    """Give every entity of both sides once, with ``kind``, what each side says, and ``sureness``."""
    matches = match_rows(first.entities, second.entities, keys=_KEYS)
    left, right = first.entities.take(pa.array(matches.first)), second.entities.take(pa.array(matches.second))
    kinds = pc.if_else(pc.equal(left["label"], right["label"]), "same", "relabelled")
    lost, gained = (
        first.entities.take(pa.array(matches.only_first)),
        second.entities.take(pa.array(matches.only_second)),
    )
    moved, to = _overlapping(lost, gained)
    moved_lost, moved_gained = lost.take(pa.array(moved)), gained.take(pa.array(to))
    lost, gained = _without(lost, moved), _without(gained, to)
    return pa.concat_tables(
        [
            _beside(left, right, kinds),
            _beside(moved_lost, moved_gained, "moved"),
            _beside(lost, second.outside(lost), "lost"),
            _beside(first.outside(gained), gained, "gained"),
        ]
    )


def _overlapping(first: pa.Table, second: pa.Table) -> tuple[Rows, Rows]:
    """Give the rows of entities each of which is the first that the other overlaps."""
    partners, others = _first_overlapping(first, second), _first_overlapping(second, first)
    rows = np.flatnonzero(partners < second.num_rows)
    mutual = rows[others[partners[rows]] == rows]
    return mutual, partners[mutual]


def _first_overlapping(first: pa.Table, second: pa.Table) -> Rows:
    """Give for each entity the first row of the other table that it overlaps; its length where there is none."""
    starts, ends = _place(first, "start_char"), _place(first, "end_char")
    nearest = np.searchsorted(_place(second, "end_char"), starts, side="right")
    # Behind the last there is a place that no entity reaches.
    begins = np.append(_place(second, "start_char"), np.iinfo(np.int64).max)
    return np.where(begins[nearest] < ends, nearest, second.num_rows)


def _without(table: pa.Table, rows: Rows) -> pa.Table:
    kept = np.ones(table.num_rows, dtype=bool)
    kept[rows] = False
    return table.filter(pa.array(kept))


def _beside(first: pa.Table, second: pa.Table, kind: Any) -> pa.Table:
    """Put what A and B say side by side."""
    kinds = pa.array([kind] * first.num_rows, pa.string()) if isinstance(kind, str) else kind
    columns = {"document": first["document"], "kind": kinds}
    columns |= {f"first_{name}": first[name] for name in _SIDE} | {f"second_{name}": second[name] for name in _SIDE}
    sureness = pc.min_element_wise(first["confidence"], second["confidence"])
    return pa.table(columns | {"sureness": sureness})
