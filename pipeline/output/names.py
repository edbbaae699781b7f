"""Who is named in a collection, and where: its entities grouped over documents by label and canonical name."""

import hashlib

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from concord.models.names import compared_words

NAMES = pa.schema(
    {
        "name_id": pa.string(),
        "canonical": pa.string(),
        "label": pa.string(),
        "mentions": pa.int64(),
        "documents": pa.int64(),
        "first_doc_id": pa.string(),
        "last_doc_id": pa.string(),
        "variants": pa.list_(pa.string()),
    }
)
NAMED_COLUMNS = ("doc_id", "name", "label", "canonical")
"""The columns of entities that make up the table."""
_DIGITS = 16

_Numbers = NDArray[np.int64]


def tabulate_names(entities: pa.Table) -> pa.Table:
    """Group entities that have the same label and canonical name, but for case, full stops, articles and titles.

    Args:
        entities: rows of the table entities, with ``NAMED_COLUMNS`` at least.

    Returns:
        A row for each name, the most frequent first: ``canonical`` is its most frequent canonical name, ``mentions``
        and ``documents`` are counts, first and last are the documents in the order of the rows, ``variants`` its names
        as they are written, the most frequent first. ``name_id``, 16 hexadecimal digits, depends on label and name
        alone: a name keeps it in every generation.
    """
    documents, doc_ids = _encode(entities["doc_id"])
    names, spellings = _encode(entities["name"])
    labels, types = _encode(entities["label"])
    canonical, full_names = _encode(entities["canonical"])
    pairs, pair_of_row = np.unique(_pair(labels, canonical, full_names), return_inverse=True)
    keys = [
        f"{types[label]}\0{' '.join(compared_words(full_names[name], types[label]))}"
        for label, name in zip(*_parts(pairs, full_names), strict=True)
    ]
    group_of_pair, groups = _encode(pa.array(keys, pa.string()))
    group = group_of_pair[pair_of_row]
    group_of_document, document = _parts(np.unique(_pair(group, documents, doc_ids)), doc_ids)
    sizes = np.bincount(group_of_document, minlength=len(groups))
    ends = np.cumsum(sizes)
    by_number = pa.array(doc_ids, pa.string())
    variants, of_variants = _most_frequent(group, names, spellings)
    fullest, of_fullest = _most_frequent(group, canonical, full_names)
    first_fullest = np.searchsorted(of_fullest, np.arange(len(groups)))
    bounds = np.searchsorted(of_variants, np.arange(len(groups) + 1))
    table = pa.table(
        {
            "name_id": [hashlib.sha256(key.encode()).hexdigest()[:_DIGITS] for key in groups],
            "canonical": fullest.take(pa.array(first_fullest)),
            "label": [key.partition("\0")[0] for key in groups],
            "mentions": np.bincount(group, minlength=len(groups)),
            "documents": sizes,
            "first_doc_id": by_number.take(pa.array(document[ends - sizes])),
            "last_doc_id": by_number.take(pa.array(document[ends - 1])),
            "variants": pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), variants),
        },
        schema=NAMES,
    )
    return table.sort_by([("mentions", "descending"), ("name_id", "ascending")])


def _encode(column: pa.ChunkedArray | pa.Array) -> tuple[_Numbers, list[str]]:
    """Return the number of each row's value, and the values by number, in the order of their first rows."""
    encoded = column.dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        # Not before: an array of strings holds 2 GiB at most.
        encoded = encoded.combine_chunks()
    return np.asarray(encoded.indices).astype(np.int64), encoded.dictionary.to_pylist()


def _pair(first: _Numbers, second: _Numbers, values: list[str]) -> _Numbers:
    """Return a number for each pair of numbers; ``values`` are those of the second."""
    return first * len(values) + second


def _parts(pairs: _Numbers, values: list[str]) -> tuple[_Numbers, _Numbers]:
    return pairs // max(1, len(values)), pairs % max(1, len(values))


def _most_frequent(group: _Numbers, numbers: _Numbers, values: list[str]) -> tuple[pa.Array, _Numbers]:
    """Return the distinct values of each group in turn, the most frequent first, and the group of each."""
    pairs, counts = np.unique(_pair(group, numbers, values), return_counts=True)
    groups, of_values = _parts(pairs, values)
    alphabetical = np.argsort(np.argsort(np.array(values, dtype=object), kind="stable"))
    order = np.lexsort((alphabetical[of_values], -counts, groups))
    return pa.array(values, pa.string()).take(pa.array(of_values[order])), groups[order]
