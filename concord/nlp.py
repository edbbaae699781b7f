"""Annotate texts from Python: load parser and tagger once, then call them with texts."""

import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import pyarrow as pa

from concord.doc import Doc, docs_from_tables
from concord.pipeline.documents import DeadLetter
from concord.pipeline.identity import ResolvedTagger
from concord.pipeline.output.schema import SCHEMAS
from concord.pipeline.texts import TextAnnotator
from concord.workflows.jobs import names_model, read_annotate_job
from concord.workflows.registry.resolve_tagger import find_entity_tagger

if TYPE_CHECKING:
    import pandas as pd

TableName = Literal["documents", "sentences", "tokens", "entities", "errors"]
Text = str | tuple[str, Any]
ItemT = TypeVar("ItemT")


class Nlp:
    """A parser and a tagger that stay loaded; ``concord.load`` makes one.

    It may be called from several threads, which take turns.
    """

    def __init__(self, annotator: TextAnnotator, tagger: ResolvedTagger) -> None:
        """Take what annotates, and which tagger it holds."""
        self.annotator = annotator
        self.model = tagger.identity
        """Name, version and digest of the tagger."""

    def __repr__(self) -> str:
        version = f" version {self.model.version}" if self.model.version else ""
        return f"<concord.Nlp {self.model.name}{version} {self.model.digest[:12]}>"

    def __call__(self, text: str) -> Doc:
        """Annotate one text.

        Raises:
            ValueError: when it cannot be annotated; the message says why.
        """
        [doc] = self.pipe([text])
        if doc.error is not None:
            raise ValueError(doc.error.message)
        return doc

    def pipe(self, texts: Iterable[Text], *, batch_size: int = 64) -> Iterator[Doc]:
        """Annotate texts as they come, in order; faster than one call per text.

        Args:
            texts: strings, or pairs of a string and a context, which becomes ``Doc.context``.
            batch_size: how many texts are annotated together; memory holds one batch.

        Yields:
            One Doc per text; its ``doc_id`` is the text's index. A text that cannot be annotated has ``Doc.error``
            instead of sentences, where a run over a collection would write a dead letter.
        """
        for start, batch in _batches(texts, batch_size):
            pairs = [item if isinstance(item, tuple) else (item, None) for item in batch]
            ids = [str(start + number) for number in range(len(pairs))]
            outcomes = self.annotator.annotate([text for text, _ in pairs], ids=ids)
            found = docs_from_tables(
                self.annotator.tables(outcomes),
                {doc_id: text for doc_id, (text, _) in zip(ids, pairs, strict=True)},
            )
            for doc_id, (text, context), outcome in zip(ids, pairs, outcomes, strict=True):
                if isinstance(outcome, DeadLetter):
                    yield Doc(doc_id=doc_id, text=text if isinstance(text, str) else "", context=context, error=outcome)
                else:
                    yield replace(next(found), context=context)

    def to_arrow(
        self,
        texts: Iterable[str],
        table: TableName = "entities",
        *,
        ids: Iterable[str] | None = None,
        batch_size: int = 64,
    ) -> pa.Table:
        """Annotate texts and return one of the tables that ``concord annotate`` writes, with its schema.

        A text that cannot be annotated has a row in ``errors`` alone; any other table then comes with a warning.

        Args:
            table: documents, sentences, tokens, entities or errors.
            ids: values of ``doc_id``, one per text; the texts' indices if None.
            batch_size: as for ``pipe``.

        Raises:
            ValueError: for an unknown table, or when there are not as many ids as texts.
        """
        if table not in SCHEMAS:
            raise ValueError(f"table: expected one of {', '.join(SCHEMAS)}, got {table!r}")
        names = None if ids is None else iter(ids)
        parts, failed, total = [self.annotator.tables([])[table]], 0, 0
        for start, batch in _batches(texts, batch_size):
            numbers = range(start, start + len(batch))
            chosen = [str(number) for number in numbers] if names is None else list(islice(names, len(batch)))
            if len(chosen) < len(batch):
                raise ValueError(f"ids: expected one per text, got {start + len(chosen)} for more texts")
            tables = self.annotator.tables(self.annotator.annotate(batch, ids=chosen))
            parts.append(tables[table])
            failed, total = failed + tables["errors"].num_rows, total + len(batch)
        if names is not None and next(names, None) is not None:
            raise ValueError(f"ids: expected one per text, got more than {total}")
        if failed and table != "errors":
            message = f"{failed} of {total} texts could not be annotated and are left out; table='errors' says why"
            warnings.warn(message, stacklevel=2)
        return pa.concat_tables(parts)

    def to_pandas(self, texts: Iterable[str], table: TableName = "entities", **options: Any) -> "pd.DataFrame":
        """Return ``to_arrow`` as a pandas DataFrame."""
        return self.to_arrow(texts, table, **options).to_pandas()


def load(model: str | None = None, *, device: str | None = None, settings: Mapping[str, Any] | None = None) -> Nlp:
    """Load a tagger and its parser; see ``concord.load``."""
    values = {**(settings or {}), "tagger.model": model, "tagger.device": device}
    places = {"input": ".", "output": "."}  # a job has them; nothing is read or written there
    chosen = {key: value for key, value in values.items() if value is not None}
    config = read_annotate_job(None, values={**places, **chosen})
    tagger = find_entity_tagger(config.tagger.model, named=names_model(config))
    return Nlp(TextAnnotator.load(tagger, parser=config.parser, run=config.tagger), tagger)


def _batches(items: Iterable[ItemT], size: int) -> Iterator[tuple[int, list[ItemT]]]:
    """Yield lists of at most ``size`` items, each with the index of its first item."""
    if size < 1:
        raise ValueError(f"batch_size: expected 1 or more, got {size}")
    left, start = iter(items), 0
    while batch := list(islice(left, size)):
        yield start, batch
        start += len(batch)
