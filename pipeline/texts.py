"""Annotate texts in memory, in this process, through the same parse and tag stages as a run over a collection."""

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Self

import pyarrow as pa

from concord.models.bundles.checkpoint import load_tagger
from concord.models.errors import ModelError
from concord.pipeline.config import ParserConfig, TaggerRunConfig
from concord.pipeline.corpora.read_terms import read_terms_for
from concord.pipeline.documents import AnnotatedDocument, DeadLetter, Document
from concord.pipeline.identity import ResolvedTagger, component_signature
from concord.pipeline.job import check_trees, with_terms
from concord.pipeline.output.schema import UNCALIBRATED, UNSIGNED, Signature
from concord.pipeline.output.tables import Columns, annotated_columns, annotated_tables, error_table
from concord.pipeline.parsing.resolve_parser import load_parser, parser_for, parser_identity
from concord.pipeline.resources import bound_caches, default_threads, free_memory, torch_threads, trim_heap
from concord.pipeline.worker.stages import ParseStage, TagStage, run_batch

SOURCE = "memory"
"""``source_uri`` of texts that come from no file."""


class TextAnnotator:
    """A parser and a tagger that stay loaded. Safe to call from several threads, which take turns."""

    def __init__(self, *, parse: ParseStage, tag: TagStage, signature: Signature = UNSIGNED) -> None:
        """Compute with the threads that the environment asks for now (``default_threads``)."""
        self._threads = default_threads()
        self._parse = parse
        self._tag = tag
        self._signature = signature
        # Pipelines of Stanza and spaCy keep state while they work.
        self._lock = Lock()

    @classmethod
    def load(cls, tagger: ResolvedTagger, *, parser: ParserConfig, settings: TaggerRunConfig) -> Self:
        """Load a tagger, run with these settings (whose ``model`` is not read), and a parser.

        Raises:
            ModelError: when one of them cannot be loaded, or the tagger reads trees that this parser does not make.
            InputError: when the list of terms cannot be read, or has labels that the tagger does not know.
        """
        bound_caches()
        parser = parser_for(tagger.parser, parser, device=settings.device)
        loaded = load_tagger(tagger.folder, device=settings.device)
        if not loaded.vocabulary.scheme.has_entities:
            raise ModelError(f"{tagger.folder}: a tagger of token labels, which does not annotate; use one of entities")
        parser_signature = component_signature(parser_identity(parser))
        check_trees(loaded, parser, parser_signature, accept=settings.accept_parser)
        return cls(
            parse=ParseStage(load_parser(parser), batch_documents=parser.batch_documents),
            tag=TagStage(loaded, settings, terms=read_terms_for(loaded, settings.terms)),
            signature=Signature(
                parser=parser_signature,
                tagger=component_signature(with_terms(tagger, settings).identity),
                calibration=UNCALIBRATED
                if loaded.calibration is None
                else loaded.calibration.summary(candidates=False),
            ),
        )

    def annotate(
        self, texts: Sequence[object], *, ids: Sequence[str] | None = None
    ) -> list[AnnotatedDocument | DeadLetter]:
        """Annotate texts; one outcome per text, in the same order.

        Args:
            texts: strings; anything else becomes a dead letter, as does a text for which memory does not suffice.
            ids: one per text; their indices if None.
        """
        names = [str(number) for number in range(len(texts))] if ids is None else ids
        records = [_to_document(number, *pair) for number, pair in enumerate(zip(texts, names, strict=True))]
        with self._lock, torch_threads(self._threads):
            outcomes = run_batch(records, self._run, stage="tag", on_shortage=free_memory)
            trim_heap()
        return outcomes

    def _run(self, documents: Sequence[Document]) -> list[AnnotatedDocument | DeadLetter]:
        return self._tag.run(self._parse.run(documents))

    def columns(self, annotated: Sequence[AnnotatedDocument]) -> Mapping[str, Columns]:
        """Return the columns of four tables, as ``annotated_columns`` does."""
        return annotated_columns(annotated, self._signature)

    def tables(self, outcomes: Sequence[AnnotatedDocument | DeadLetter]) -> dict[str, pa.Table]:
        """Return the five tables of the output for some outcomes, as a run writes them."""
        annotated = [outcome for outcome in outcomes if isinstance(outcome, AnnotatedDocument)]
        dead_letters = [outcome for outcome in outcomes if isinstance(outcome, DeadLetter)]
        errors = error_table(dead_letters, self._signature)
        return {**annotated_tables(annotated, self._signature), "errors": errors}


def _to_document(number: int, text: object, doc_id: str) -> Document | DeadLetter:
    if isinstance(text, str):
        try:
            text.encode()
            return Document(doc_id=doc_id, text=text, source_uri=SOURCE, source_position=number)
        except UnicodeEncodeError as error:
            code, fault = "lone_surrogate", f"expected whole characters, got half of a pair: {error}"
    else:
        code, fault = "text_not_string", f"expected a string, got {type(text).__name__}"
    message = f"text {number}: {fault}"
    return DeadLetter(doc_id=doc_id, source_uri=SOURCE, position=number, stage="read", error=code, message=message)
