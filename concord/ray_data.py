"""Annotation as an operator of Ray Data: ``dataset.map_batches(concord.Annotator, ...)``."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Literal

import pyarrow as pa

from concord._environment import set_environment

ERROR = "annotation_error"


class Annotator:
    """Adds annotations to batches of rows; construct it once per actor, with ``fn_constructor_kwargs``.

    Every row comes out once, with its columns and, for each table asked for, one column of that name: the list of the
    text's rows in that table, without ``doc_id``. A text that cannot be annotated has empty lists and says why in the
    column ``annotation_error``, which is null for all others.

    Needs ``batch_format="pyarrow"``.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        text_column: str = "text",
        tables: Sequence[Literal["sentences", "tokens", "entities"]] = ("entities",),
        device: str | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """Load the tagger.

        Args:
            model, device, settings: as for ``concord.load``.
            text_column: the column that holds the texts.
            tables: sentences, tokens or entities.

        Raises:
            ValueError: for an unknown table.
            ConfigError, ModelError: as ``concord.load``.
        """
        for table in tables:
            if table not in ("sentences", "tokens", "entities"):
                raise ValueError(f"tables: expected sentences, tokens or entities, got {table!r}")
        # Not at the head of this file: an actor imports it, and the environment must be set before torch is loaded.
        set_environment()
        from concord.nlp import load

        self._nlp = load(model, device=device, settings=settings)
        self._text_column = text_column
        self._tables = tuple(tables)

    def __call__(self, batch: pa.Table) -> pa.Table:
        """Annotate a batch.

        Raises:
            KeyError: when the batch has no column of texts.
            ValueError: when it has a column of a name that is to be added.
        """
        if self._text_column not in batch.column_names:
            raise KeyError(f"expected a column {self._text_column!r}, got {', '.join(batch.column_names)}")
        for name in (*self._tables, ERROR):
            if name in batch.column_names:
                raise ValueError(f"expected no column {name!r}, which annotation adds; rename it first")
        annotator = self._nlp.annotator
        tables = annotator.tables(annotator.annotate(batch[self._text_column].to_pylist()))
        ids = [str(number) for number in range(batch.num_rows)]
        for name in self._tables:
            batch = batch.append_column(name, _lists(tables[name], ids))
        messages = {row["doc_id"]: row["message"] for row in tables["errors"].to_pylist()}
        return batch.append_column(ERROR, pa.array([messages.get(doc_id) for doc_id in ids], pa.string()))


def _lists(table: pa.Table, ids: Sequence[str]) -> pa.ListArray:
    """Return the rows of each document, whose rows stand together and in the order of ``ids``, as one list each."""
    counts = dict(zip(*table.group_by("doc_id").aggregate([([], "count_all")]).to_pydict().values(), strict=True))
    offsets = list(accumulate((counts.get(doc_id, 0) for doc_id in ids), initial=0))
    rows = table.drop_columns(["doc_id"]).to_struct_array().combine_chunks()
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), rows)
