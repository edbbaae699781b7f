"""The parser of collections in several languages: English documents are parsed whole, others split into words.

Each document is read by one of two parsers, as if that one were alone. Which one, its own text decides.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias, TypeVar

from typing_extensions import override

from concord.models.data.outputs import OnBatch
from concord.pipeline.config import ParserConfig
from concord.pipeline.documents import DeadLetter, Document, ParsedDocument
from concord.pipeline.identity import ComponentIdentity
from concord.pipeline.names.language import ENGLISH, language_of, load_languages
from concord.pipeline.parsing.parser import Parser
from concord.pipeline.parsing.stanza_parser import StanzaParser

ResultT = TypeVar("ResultT")
_Read: TypeAlias = Callable[[Sequence[Document]], list[ResultT]]


class LanguageParser(StanzaParser):
    """A tokenizer for many languages that leaves documents to another parser if they are English for sure.

    Sentences given as words are of no document, and left to nobody.
    """

    def __init__(self, config: ParserConfig, *, english: Parser, identity: ComponentIdentity) -> None:
        super().__init__(config)
        self.identity = identity
        self._english = english
        load_languages()

    @override
    def parse(
        self, documents: Sequence[Document], *, on_batch: OnBatch | None = None
    ) -> list[ParsedDocument | DeadLetter]:
        others, english = (partial(parse, on_batch=on_batch) for parse in (super().parse, self._english.parse))
        return _read_by_language(documents, others=others, english=english)

    @override
    def split(self, documents: Sequence[Document]) -> list[list[tuple[str, ...]] | DeadLetter]:
        return _read_by_language(documents, others=super().split, english=self._english.split)


def _read_by_language(
    documents: Sequence[Document], *, others: _Read[ResultT], english: _Read[ResultT]
) -> list[ResultT]:
    """Read the documents of each parser in one call, and return the results in the order of the documents."""
    is_english = [_is_english(document.text) for document in documents]
    # English comes last, since what is told as done must not become less: of others no words are told.
    results = {
        chosen: iter(read([document for document, one in zip(documents, is_english, strict=True) if one is chosen]))
        for chosen, read in ((False, others), (True, english))
        if chosen in is_english
    }
    return [next(results[one]) for one in is_english]


def _is_english(text: str) -> bool:
    language = language_of(text)
    return language is not None and language.code == ENGLISH
