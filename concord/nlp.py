"""Annotate texts from Python: load parser and tagger once, then call them with texts."""

import warnings
from collections.abc import Iterable, Iterator, Mapping
from itertools import count, islice
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from concord._environment import collection_paused
from concord.doc import Doc, doc_of
from concord.pipeline.documents import AnnotatedDocument, DeadLetter
from concord.pipeline.identity import ResolvedTagger
from concord.pipeline.output.collection import documents_of
from concord.pipeline.output.schema import SHARD_TABLES, TableName
from concord.pipeline.texts import TextAnnotator
from concord.workflows.annotation.job import read_text_config
from concord.workflows.registry import find_entity_tagger

if TYPE_CHECKING:
    import pandas as pd

Text = str | tuple[str, Any]
ItemT = TypeVar("ItemT")


class Nlp:
    """A parser and a tagger that stay loaded; ``concord.load`` makes one.

    It may be called from several threads, which take turns.
    """

    def __init__(self, annotator: TextAnnotator, tagger: ResolvedTagger) -> None:
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

        Returns:
            An iterator of one Doc per text; its ``doc_id`` is the text's index. A text that cannot be annotated has
            ``Doc.error`` instead of sentences, where a run over a collection would write a dead letter.

        Raises:
            TypeError: when the texts are one string.
            ValueError: when the batch size is below 1.
        """
        return self._docs(_batches(texts, batch_size))

    def _docs(self, batches: Iterator[tuple[int, list[Text]]]) -> Iterator[Doc]:
        for start, batch in batches:
            pairs = [_with_context(item) for item in batch]
            ids = [str(start + number) for number in range(len(pairs))]
            outcomes = self.annotator.annotate([text for text, _ in pairs], ids=ids)
            annotated = [outcome for outcome in outcomes if isinstance(outcome, AnnotatedDocument)]
            documents = documents_of(self.annotator.columns(annotated))
            for doc_id, (text, context), outcome in zip(ids, pairs, outcomes, strict=True):
                if isinstance(outcome, DeadLetter):
                    yield Doc(doc_id=doc_id, text=text if isinstance(text, str) else "", context=context, error=outcome)
                else:
                    yield doc_of(next(documents), text, context=context)

    def to_arrow(
        self,
        texts: Iterable[Text],
        table: TableName = "entities",
        *,
        ids: Iterable[str | int] | None = None,
        batch_size: int = 64,
    ) -> pa.Table:
        """Annotate texts and return one of the tables that ``concord annotate`` writes, with its schema.

        A text that cannot be annotated has a row in ``errors`` alone; any other table then comes with a warning.

        Args:
            texts, batch_size: as for ``pipe``; contexts are ignored.
            table: documents, sentences, tokens, entities or errors.
            ids: values of ``doc_id``, one per text and all different; the texts' indices if None.

        Raises:
            ValueError: for an unknown table, or ids that are no ids or not as many as the texts.
        """
        if table not in SHARD_TABLES:
            raise ValueError(f"table: expected one of {', '.join(SHARD_TABLES)}, got {table!r}")
        batches = _batches(texts, batch_size)
        names = map(str, count()) if ids is None else _checked_ids(ids)
        parts, failed, total = [self.annotator.tables([])[table]], 0, 0
        for start, batch in batches:
            chosen = list(islice(names, len(batch)))
            if len(chosen) < len(batch):
                raise ValueError(f"ids: expected one per text, got {start + len(chosen)} for more texts")
            tables = self.annotator.tables(
                self.annotator.annotate([_with_context(item)[0] for item in batch], ids=chosen)
            )
            parts.append(tables[table])
            failed, total = failed + tables["errors"].num_rows, total + len(batch)
        if ids is not None and next(names, None) is not None:
            raise ValueError(f"ids: expected one per text, got more than {total}")
        if failed and table != "errors":
            message = f"{failed} of {total} texts could not be annotated and are left out; table='errors' says why"
            warnings.warn(message, stacklevel=2)
        return pa.concat_tables(parts)

    def to_pandas(
        self,
        texts: Iterable[Text],
        table: TableName = "entities",
        *,
        ids: Iterable[str | int] | None = None,
        batch_size: int = 64,
    ) -> "pd.DataFrame":
        """Return ``to_arrow`` as a pandas DataFrame."""
        return self.to_arrow(texts, table, ids=ids, batch_size=batch_size).to_pandas()


def load(
    model: str | Path | None = None,
    *,
    terms: str | Path | None = None,
    device: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Nlp:
    """Load a tagger and its parser, to be called with texts.

    Args:
        model: a bundle's folder, the name of a bundled tagger, ``models:/NAME@ALIAS`` of the MLflow registry, or
            another library's model, ``spacy:NAME`` or ``hf:FOLDER``; ``entities_multi`` if None.
        terms: a list of terms, one JSON object a line, as ``tagger.terms`` of an annotation job.
        device: cpu, cuda or auto; cpu if None.
        settings: further keys of ``parser`` and ``tagger`` in an annotation job, as ``--set`` takes them:
            ``{"parser.package": "default"}``; ``{"parser.trees": False}`` is faster, without heads and relations.

    Raises:
        ConfigError: for a key or value that does not exist.
        ModelError: when the tagger or the parser cannot be loaded.
        InputError: when the list of terms cannot be read, or has labels that the tagger does not know.
    """
    paths = {name: None if path is None else str(path) for name, path in (("model", model), ("terms", terms))}
    config = read_text_config({**paths, "device": device}, settings)
    with collection_paused():
        tagger = find_entity_tagger(config.tagger.model)
        return Nlp(TextAnnotator.load(tagger, parser=config.parser, settings=config.tagger), tagger)


def _batches(items: Iterable[ItemT], size: int) -> Iterator[tuple[int, list[ItemT]]]:
    """Return lists of at most ``size`` items, each with the index of its first item.

    Raises:
        TypeError: when the items are one string, whose characters would be taken for texts.
        ValueError: when the size is below 1.
    """
    if isinstance(items, str | bytes):
        raise TypeError("texts: expected an iterable of strings, got one string; put it into a list")
    if size < 1:
        raise ValueError(f"batch_size: expected 1 or more, got {size}")
    left = iter(items)
    return zip(count(step=size), iter(lambda: list(islice(left, size)), []), strict=False)


def _with_context(item: Any) -> tuple[Any, Any]:
    return item if isinstance(item, tuple) and len(item) == 2 else (item, None)


def _checked_ids(ids: Iterable[str | int]) -> Iterator[str]:
    taken: set[str] = set()
    for value in ids:
        if isinstance(value, bool) or not isinstance(value, str | Integral):
            raise ValueError(f"ids: expected strings or integers, got {value!r}")
        if str(value) in taken:
            raise ValueError(f"ids: expected different ones, got {value!r} twice")
        taken.add(str(value))
        yield str(value)
