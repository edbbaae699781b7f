"""Parse documents in batches."""

from collections.abc import Callable, Sequence
from typing import Protocol

from concord.pipeline.documents import DeadLetter, Document, ParsedDocument
from concord.pipeline.worker.bisect import describe_error, in_bulk, make_dead_letter
from concord.pipeline.worker.memory import shortages

Parse = Callable[[Sequence[Document | ParsedDocument | DeadLetter]], list[ParsedDocument | DeadLetter]]


class DocumentParser(Protocol):
    """What the parse stage needs of a parser; see concord.pipeline.parsing.stanza_parser.DependencyParser."""

    def parse(self, documents: Sequence[Document]) -> list[ParsedDocument | DeadLetter]:
        """Give one result a document, in order."""


class ParseStage:
    """Documents to parsed documents, in groups; those that are parsed already pass through."""

    def __init__(self, parser: DocumentParser, *, batch_documents: int) -> None:
        """Take the parser and how many documents one of its calls gets."""
        self._parser = parser
        self._batch_documents = batch_documents

    def __call__(self, records: Sequence[Document | ParsedDocument | DeadLetter]) -> list[ParsedDocument | DeadLetter]:
        """Parse.

        Raises:
            ShortageError: when memory runs out.
        """
        documents = [record for record in records if isinstance(record, Document)]
        parsed: list[ParsedDocument | DeadLetter] = []
        for start in range(0, len(documents), self._batch_documents):
            group = documents[start : start + self._batch_documents]
            parsed.extend(in_bulk(group, self._parse, _parse_letter))
        fresh = iter(parsed)
        results = [next(fresh) if isinstance(record, Document) else record for record in records]
        return [_checked(result) for result in results]

    def _parse(self, documents: Sequence[Document]) -> list[ParsedDocument | DeadLetter]:
        with shortages():
            return self._parser.parse(documents)


def _checked(result: ParsedDocument | DeadLetter) -> ParsedDocument | DeadLetter:
    fault = offset_fault(result) if isinstance(result, ParsedDocument) else None
    if fault is None or isinstance(result, DeadLetter):
        return result
    return make_dead_letter(result.document, stage="parse", error="offsets", message=fault)


def _parse_letter(document: Document, error: Exception) -> DeadLetter:
    return make_dead_letter(document, stage="parse", error="parse_failed", message=describe_error(error))


def offset_fault(parsed: ParsedDocument) -> str | None:
    """Say what is wrong with a document's offsets; None when all is well.

    Words must be ordered and disjoint (only words of one multi-word token may share one stretch), each must equal its
    slice of the raw text, together they must cover every code point that is not white space, and no sentence may
    be empty.
    """
    text = parsed.document.text
    begin = end = 0
    for number, sentence in enumerate(parsed.sentences):
        if not sentence.words:
            return f"sentence {number}: expected a word or more, got none"
        for word in sentence.words:
            start, stop = word.start_char, word.end_char
            shares_token = begin < end and (start, stop) == (begin, end)
            if not shares_token and not end <= start < stop <= len(text):
                return f"{word.text!r}: expected offsets within {end}..{len(text)}, got {start}..{stop}"
            if text[start:stop] != word.text:
                return f"characters {start}..{stop}: expected {text[start:stop]!r}, got {word.text!r}"
            if _holds_ink(text[end:start]):
                return f"characters {end}..{start}: {text[end:start][:80]!r} is in no word"
            begin, end = start, stop
    if _holds_ink(text[end:]):
        return f"characters {end}..{len(text)}: {text[end:][:80]!r} is in no word"
    return None


def _holds_ink(gap: str) -> bool:
    return bool(gap) and not gap.isspace()
