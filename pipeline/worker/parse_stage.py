"""Parse stage: documents to parsed documents, with their offsets checked."""

from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import Protocol

from concord.models.data.options import OnBatch
from concord.models.data.visible import visible
from concord.pipeline.documents import DeadLetter, Document, ParsedDocument
from concord.pipeline.worker.bisect import run_bisecting
from concord.pipeline.worker.memory import shortage_errors
from concord.pipeline.worker.shard_progress import OnShare


class DocumentParser(Protocol):
    """What the parse stage needs of a parser; see ``concord.pipeline.parsing.parser.Parser``."""

    def parse(
        self, documents: Sequence[Document], *, on_batch: OnBatch | None = None
    ) -> list[ParsedDocument | DeadLetter]:
        """Return one result for each document, in order."""


class ParseStage:
    """Parses documents in batches; records that are parsed already and dead letters pass through."""

    def __init__(self, parser: DocumentParser, *, batch_documents: int, on_share: OnShare | None = None) -> None:
        self._parser = parser
        self._batch_documents = batch_documents
        self._on_share = on_share

    def run(self, records: Sequence[Document | ParsedDocument | DeadLetter]) -> list[ParsedDocument | DeadLetter]:
        """Parse records, in order; ShortageError if memory runs out."""
        documents = [record for record in records if isinstance(record, Document)]
        sizes = [*accumulate((len(document.text) for document in documents), initial=0)]
        shares = [size / max(1, sizes[-1]) for size in sizes]
        results: list[ParsedDocument | DeadLetter] = []
        words = 0
        for start in range(0, len(documents), self._batch_documents):
            batch = documents[start : start + self._batch_documents]
            on_batch = partial(self._report, shares[start], shares[start + len(batch)], words)
            parsed = run_bisecting(batch, partial(self._parse, on_batch=on_batch), stage="parse")
            words += sum(result.words for result in parsed if isinstance(result, ParsedDocument))
            results += parsed
        outcomes = iter(results)
        return [_checked(next(outcomes) if isinstance(record, Document) else record) for record in records]

    def _parse(self, batch: Sequence[Document], *, on_batch: OnBatch) -> list[ParsedDocument | DeadLetter]:
        with shortage_errors():
            return self._parser.parse(batch, on_batch=on_batch)

    def _report(self, first: float, last: float, before: int, done: int, words: int) -> None:
        """Report that words of a batch are done, which takes the stage from one share to another."""
        if self._on_share is not None:
            self._on_share(first + (last - first) * done / max(1, words), before + done)


def _checked(result: ParsedDocument | DeadLetter) -> ParsedDocument | DeadLetter:
    if isinstance(result, ParsedDocument) and (fault := find_offset_fault(result)) is not None:
        return DeadLetter.for_document(result, stage="parse", error="offsets", message=fault)
    return result


def find_offset_fault(parsed: ParsedDocument) -> str | None:
    """Describe the first fault in a document's offsets; None if there is none.

    Words must be ordered and disjoint (only words of one multi-word token may share an interval), each must equal its
    slice of the raw text, together they must cover every code point that is neither white space nor invisible,
    and no sentence may be empty.
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
            if visible(text[end:start]).strip():
                return f"characters {end}..{start}: {text[end:start][:80]!r} is in no word"
            begin, end = start, stop
    if visible(text[end:]).strip():
        return f"characters {end}..{len(text)}: {text[end:][:80]!r} is in no word"
    return None
