"""``concord diff``: which documents and entities differ between two annotations of a collection, A and B.

One join matches the documents by their ids; memory holds an id and two hashes for each. The entities of equal texts are
matched by their offsets, one pair of shards at a time, so that no more of them are ever held, and only the differences
that are listed become Python objects.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial, reduce
from textwrap import shorten
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from concord.pipeline.errors import PlanError
from concord.pipeline.identity import find_differences
from concord.pipeline.output.collection import Collection, open_collection
from concord.pipeline.output.schema import SCHEMAS
from concord.pipeline.output.tables import without_candidates
from concord.pipeline.storage.output_paths import OutputPath
from concord.workflows.console import Answer, counted, indented, table

KIND_NAMES = {"same": "the same", "different": "different", "only_first": "only in A", "only_second": "only in B"}
KINDS = tuple(KIND_NAMES)
SHOWN_LABELS = 20
SHOWN_NAME = 40
SHOWN_IDS = 120
_PLACE = ("doc_id", "start_char", "end_char")
_ENTITY_COLUMNS = (*_PLACE, "sent_id", "name", "label", "confidence", "source")
_GROUPS = ["kind", "first_label", "second_label"]
_ORDER = [("certainty", "descending"), *((name, "ascending") for name in _PLACE)]


@dataclass(kw_only=True, slots=True)
class EntityDifferences:
    """The entities of the documents whose text is the same, added up shard by shard.

    Attributes:
        listed: how many differences to keep in full.
        labels: kind, label in A and label in B -> number of entities; None where a side has none.
        changed_documents: how many documents have any difference.
        changes: the most certain differences, in that order. A difference is as certain as the lower confidence of
            the two labels; the one that is known if there is only one.
    """

    listed: int
    labels: Counter[tuple[str, str | None, str | None]] = field(default_factory=Counter)
    changed_documents: int = 0
    changes: pa.Table | None = None

    def add(self, first: pa.Table, second: pa.Table) -> None:
        """Add the entities of the same documents in A and B."""
        joined = _join(first, second, keys=[*_PLACE, "occurrence"], compared="label")
        groups = joined.group_by(_GROUPS).aggregate([([], "count_all")])
        for row in groups.to_pylist():
            self.labels[row["kind"], row["first_label"], row["second_label"]] += row["count_all"]
        differing = joined.filter(pc.not_equal(joined["kind"], "same"))
        self.changed_documents += len(pc.unique(differing["doc_id"]))
        changes = _describe_changes(differing)
        if self.changes is not None:
            changes = pa.concat_tables([self.changes, changes])
        self.changes = changes.take(pc.sort_indices(changes, _ORDER).slice(0, self.listed))

    @property
    def kinds(self) -> dict[str, int]:
        """How many entities are of each kind."""
        return {kind: sum(count for key, count in self.labels.items() if key[0] == kind) for kind in KINDS}


def diff_collections(first: OutputPath, second: OutputPath, *, listed: int) -> Answer:
    """Compare two annotated collections, A and B, or two generations of one.

    Args:
        listed: how many differences and documents of each kind are listed.

    Raises:
        PlanError: when the schema versions differ.
        IntegrityError: when a part cannot be read.
    """
    left, right = open_collection(first), open_collection(second)
    if left.manifest.schema_version != right.manifest.schema_version:
        raise PlanError(
            f"{left.output} has version {left.manifest.schema_version} of the schema, {right.output} version "
            f"{right.manifest.schema_version}: expected the same; annotate one of them again"
        )
    documents, listed_ids, same = _compare_documents(left, right, listed=listed)
    found = _compare_entities(left, right, same, listed=listed)
    changes = [] if found.changes is None else found.changes.to_pylist()
    labels = sorted(found.labels.items(), key=lambda item: (-item[1], *map(str, item[0])))
    # They depend on nothing but the bytes of the two collections.
    values: dict[str, Any] = {
        "verdict": _verdict(documents["same"], found),
        "first": _side_values(left),
        "second": _side_values(right),
        "settings": find_differences(left.plan.row_settings, right.plan.row_settings),
        "documents": {**_with_sums(documents), "listed": listed_ids},
        "entities": {
            **_with_sums(found.kinds),
            "changed_documents": found.changed_documents,
            "labels": [
                {"kind": kind, "first": first_label, "second": second_label, "entities": count}
                for (kind, first_label, second_label), count in labels
            ],
            "changes": [{name: _rounded(value) for name, value in change.items()} for change in changes],
        },
    }
    return Answer(values=values, text=_describe(values, changes))


def _verdict(same: int, entities: EntityDifferences) -> str:
    """Return the result in one sentence, given how many documents have the same text."""
    if not same:
        return "A and B have no document with the same text"
    compared = f"{counted(same, 'document')} with the same text"
    total = entities.labels.total()
    changed = total - entities.kinds["same"]
    if not changed:
        return f"no entity differs in {compared}"
    return f"{changed:,} of {total:,} entities differ, in {entities.changed_documents:,} of {compared}"


def _compare_documents(
    left: Collection, right: Collection, *, listed: int
) -> tuple[dict[str, int], dict[str, list[str]], pa.Table]:
    """Return the numbers of documents of each kind, first ids of all but the same, and the same with their shards."""
    joined = _join(_read_documents(left), _read_documents(right), keys=["doc_id"], compared="text_sha256")
    kinds = {kind: joined.filter(pc.equal(joined["kind"], kind)) for kind in KINDS}
    counts = {kind: found.num_rows for kind, found in kinds.items()}
    ids = {kind: kinds[kind]["doc_id"].sort().slice(0, listed).to_pylist() for kind in KINDS[1:]}
    return counts, ids, kinds["same"].select(["doc_id", "first_shard", "second_shard"])


def _compare_entities(left: Collection, right: Collection, documents: pa.Table, *, listed: int) -> EntityDifferences:
    entities = EntityDifferences(listed=listed)
    # A and B are mostly cut alike: the next pair often needs one of the same shards.
    read_left, read_right = (lru_cache(maxsize=1)(partial(_read_entities, side)) for side in (left, right))
    for first, second, ids in _shard_pairs(documents):
        rows = [side.filter(pc.is_in(side["doc_id"], ids)) for side in (read_left(first), read_right(second))]
        entities.add(*rows)
    return entities


def _read_documents(collection: Collection) -> pa.Table:
    """Read id and hash of the text of all documents, and the index of the shard that holds them."""
    columns = ["doc_id", "text_sha256"]
    parts = [collection.read_rows(report, "documents", columns) for report in collection.manifest.shards]
    shards = np.repeat(np.arange(len(parts)), [part.num_rows for part in parts])
    parts = parts or [SCHEMAS["documents"].empty_table().select(columns)]
    # Parts of several generations bear different signatures, which concat_tables would take for other schemas.
    documents = pa.concat_tables(part.replace_schema_metadata() for part in parts)
    return documents.append_column("shard", pa.array(shards, pa.int64()))


def _read_entities(collection: Collection, shard: int) -> pa.Table:
    """Read the entities of a shard, with ``occurrence``: how many before it are at the same offsets.

    Words of one multi-word token share their offsets, so that there may be some.
    """
    rows = without_candidates(collection.read_rows(collection.manifest.shards[shard], "entities", _ENTITY_COLUMNS))
    numbers = np.arange(rows.num_rows)
    columns = (rows[name] for name in _PLACE)
    differs = reduce(pc.or_, (pc.not_equal(column.slice(1), column.slice(0, len(column) - 1)) for column in columns))
    # The number of the last row whose offsets are not those of the row before it.
    begins = np.where(np.append(True, differs.to_numpy())[: len(numbers)], numbers, 0)
    return rows.append_column("occurrence", pa.array(numbers - np.maximum.accumulate(begins)))


def _shard_pairs(documents: pa.Table) -> Iterator[tuple[int, int, pa.Array]]:
    """Yield the pairs of shards that hold the same documents, with their ids."""
    shards = ["first_shard", "second_shard"]
    pairs = documents.group_by(shards).aggregate([("doc_id", "list")])
    pairs = pairs.sort_by([(name, "ascending") for name in shards])
    for first, second, ids in zip(*pairs.select([*shards, "doc_id_list"]).columns, strict=True):
        yield first.as_py(), second.as_py(), ids.values


def _join(first: pa.Table, second: pa.Table, *, keys: Sequence[str], compared: str) -> pa.Table:
    """Return a row for each key of two tables, with the other columns as ``first_NAME`` and ``second_NAME``.

    Args:
        compared: the column whose values decide the ``kind`` of a row; without nulls.
    """
    sides = (
        side.rename_columns([column if column in keys else f"{name}_{column}" for column in side.column_names])
        for name, side in (("first", first), ("second", second))
    )
    joined = next(sides).join(next(sides), keys=list(keys), join_type="full outer").replace_schema_metadata()
    one, other = (joined[f"{side}_{compared}"] for side in ("first", "second"))
    is_same = pc.equal(one, other).fill_null(False)
    cases = pc.make_struct(pc.is_null(one), pc.is_null(other), is_same)
    return joined.append_column("kind", pc.case_when(cases, "only_second", "only_first", "same", "different"))


def _describe_changes(rows: pa.Table) -> pa.Table:
    """Return what is said about entities that differ; sentence and name are those of A where it has the entity."""
    columns = {name: rows[name] for name in ("kind", *_PLACE)}
    columns |= {name: pc.coalesce(rows[f"first_{name}"], rows[f"second_{name}"]) for name in ("sent_id", "name")}
    sides = [f"{side}_{name}" for side in ("first", "second") for name in ("label", "confidence")]
    certainty = pc.min_element_wise(rows["first_confidence"], rows["second_confidence"])
    return pa.table(columns | {name: rows[name] for name in sides} | {"certainty": certainty})


def _side_values(collection: Collection) -> Mapping[str, Any]:
    return {
        "output": collection.output,
        "generation": collection.manifest.generation,
        "schema_version": collection.manifest.schema_version,
        "parser": collection.plan.parser,
        "tagger": collection.plan.tagger,
        "dead_letters": collection.manifest.dead_letters,
    }


def _with_sums(kinds: Mapping[str, int]) -> Mapping[str, int]:
    """Return the numbers in A and in B before those of each kind."""
    in_both = kinds["same"] + kinds["different"]
    return {"first": in_both + kinds["only_first"], "second": in_both + kinds["only_second"], **kinds}


def _rounded(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value


def _describe(values: Mapping[str, Any], changes: Sequence[Mapping[str, Any]]) -> str:
    documents, entities = values["documents"], values["entities"]
    parts = [
        f"{values['verdict']}.",
        _describe_sides(values),
        _describe_counts("documents", documents, documents["listed"]),
        _describe_counts("entities of documents with the same text", entities, {}) if documents["same"] else "",
        _describe_labels(entities["labels"]),
        _describe_listed(changes),
    ]
    return "\n\n".join(part for part in parts if part)


def _describe_sides(values: Mapping[str, Any]) -> str:
    rows = [
        (name, side["output"], side["tagger"].description, side["parser"].description, side["dead_letters"])
        for name, side in (("A", values["first"]), ("B", values["second"]))
    ]
    return "\n".join([table(rows, header=("", "output", "tagger", "parser", "dead letters")), *values["settings"]])


def _describe_counts(what: str, counts: Mapping[str, int], listed: Mapping[str, Sequence[str]]) -> str:
    rows = [
        (name, counts[kind], shorten(", ".join(listed.get(kind, ())), SHOWN_IDS, placeholder=" ..."))
        for kind, name in KIND_NAMES.items()
        if counts[kind]
    ]
    lines = [f"{what}: {counts['first']:,} in A, {counts['second']:,} in B", indented(table(rows))]
    return "\n".join(filter(None, lines))


def _describe_labels(labels: Sequence[Mapping[str, Any]]) -> str:
    rows = [(one["first"], one["second"], one["entities"]) for one in labels if one["kind"] != "same"]
    if not rows:
        return ""
    more = [f"{len(rows) - SHOWN_LABELS:,} more"] if len(rows) > SHOWN_LABELS else []
    return "\n".join([table(rows[:SHOWN_LABELS], header=("in A", "in B", "entities")), *more])


def _describe_listed(changes: Sequence[Mapping[str, Any]]) -> str:
    if not changes:
        return ""
    rows = [
        (
            "-" if change["certainty"] is None else f"{change['certainty']:.3f}",
            *(_describe_label(change, side) for side in ("first", "second")),
            shorten(change["name"], SHOWN_NAME, placeholder=" ..."),
            *(change["doc_id"], change["sent_id"], f"{change['start_char']}-{change['end_char']}"),
        )
        for change in changes
    ]
    header = ("certainty", "A", "B", "name", "document", "sentence", "offsets")
    return f"most certain differences\n{indented(table(rows, header=header))}"


def _describe_label(change: Mapping[str, Any], side: str) -> str:
    label, confidence = change[f"{side}_label"], change[f"{side}_confidence"]
    return "-" if label is None else label if confidence is None else f"{label} {confidence:.2f}"
