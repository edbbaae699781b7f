"""The parser of collections in several languages: English documents are parsed whole, others split into words.

Each document is read by one of two parsers, as if that one were alone. Which one, its own text decides.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from concord.models.data.options import OnBatch
from concord.pipeline.documents import DeadLetter, Document, ParsedDocument
from concord.pipeline.identity import ComponentIdentity
from concord.pipeline.names.language import ENGLISH, language_of, load_languages
from concord.pipeline.parsing.parser import Parser

ResultT = TypeVar("ResultT")


class LanguageParser:
    """One parser for documents that are English for sure, and one for all others."""

    def __init__(self, *, english: Parser, others: Parser, identity: ComponentIdentity) -> None:
        self.identity = identity
        """As ``parser_identity`` returns it."""
        self._english = english
        self._others = others
        load_languages()

    def parse(
        self, documents: Sequence[Document], *, on_batch: OnBatch | None = None
    ) -> list[ParsedDocument | DeadLetter]:
        """Parse documents as ``Parser.parse`` does; words of English documents alone are told to ``on_batch``."""
        return self._read(documents, lambda parser, chosen: parser.parse(chosen, on_batch=on_batch))

    def split(self, documents: Sequence[Document]) -> list[list[tuple[str, ...]] | DeadLetter]:
        """Split documents into sentences of words, as ``Parser.split`` does."""
        return self._read(documents, lambda parser, chosen: parser.split(chosen))

    def _read(
        self, documents: Sequence[Document], read: Callable[[Parser, Sequence[Document]], list[ResultT]]
    ) -> list[ResultT]:
        """Read the documents of each parser in one call, and return the results in the order of the documents."""
        english = [_is_english(document.text) for document in documents]

        def results(parser: Parser, *, of: bool) -> list[ResultT]:
            chosen = [document for document, is_english in zip(documents, english, strict=True) if is_english is of]
            return read(parser, chosen) if chosen else []

        # Others tell no words, and so never take back how much of a batch is done.
        others, whole = iter(results(self._others, of=False)), iter(results(self._english, of=True))
        return [next(whole if is_english else others) for is_english in english]


def _is_english(text: str) -> bool:
    language = language_of(text)
    return language is not None and language.code == ENGLISH
