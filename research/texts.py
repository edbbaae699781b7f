"""Texts as sentences of words, for trainings that need no trees."""

from collections.abc import Iterator, Sequence

from concord.pipeline.documents import Document, ParsedDocument
from concord.pipeline.parsing.parser import Parser


def split_texts(parser: Parser, documents: Sequence[Document]) -> Iterator[list[tuple[str, ...]]]:
    """Yield the sentences of each document that a parser without tags takes; those above its cap are whole."""
    for found in parser.parse(documents):
        if isinstance(found, ParsedDocument):
            sentences: list[tuple[str, ...]] = []
            for sentence in found.sentences:
                words = tuple(word.word for word in sentence.words)
                if sentence.continues:
                    sentences[-1] += words
                else:
                    sentences.append(words)
            yield sentences
