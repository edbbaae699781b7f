"""What every parser does before and after its networks; start here.

A ``Parser`` turns documents into sentences with words, tags and trees: ``EncoderParser``, ``StanzaParser`` or
``SpacyParser``, which ``resolve_parser`` finds. ``tokens`` handles text before and after the networks, ``words`` where
they err.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import NamedTuple

import torch

from concord.models.data.outputs import OnBatch
from concord.models.data.sentence import Sentence
from concord.pipeline.documents import DeadLetter, Document, ParsedDocument, ParsedSentence, ParsedWord
from concord.pipeline.identity import ComponentIdentity
from concord.pipeline.parsing.tokens import (
    SENTENCE_CAP,
    Token,
    WordAnalysis,
    cut_sentence,
    find_token_fault,
    make_token,
    parser_view,
    restore_offsets,
)
from concord.pipeline.parsing.words import is_unspaced
from concord.pipeline.resources import torch_threads


class Parser(ABC):
    """A parser that runs in this process, in one thread but for the encoder.

    Its matrices are small: a second thread made it 1.2 times as fast on an idle machine, and less than half as fast
    where other processes needed the cores.
    """

    def __init__(self, *, identity: ComponentIdentity, needs_spaces: bool = False) -> None:
        self.identity = identity
        """As ``parser_identity`` returns it."""
        self._needs_spaces = needs_spaces
        self._encoder_threads = 1

    @abstractmethod
    def _tokenize(self, views: Sequence[str], on_batch: OnBatch | None) -> list[list[list[Token]]]:
        """Split each text into sentences of tokens, whose words may be analysed already."""

    @abstractmethod
    def _analyse(self, sentences: Sequence[Sentence], on_batch: OnBatch | None) -> list[list[WordAnalysis]]:
        """Tag, lemmatize and parse sentences, as far as the parser does."""

    def _with_passages(self, document: list[Sentence]) -> list[Sentence]:
        """Return the sentences of a document, with the passages that an encoder reads if the parser has one."""
        return document

    @contextmanager
    def _in_one_thread(self) -> Iterator[None]:
        self._encoder_threads = torch.get_num_threads()
        with torch_threads(1), torch.inference_mode():
            yield

    def parse(
        self, documents: Sequence[Document], *, on_batch: OnBatch | None = None
    ) -> list[ParsedDocument | DeadLetter]:
        """Parse documents, each independently of the others; one outcome per document, in the same order.

        A document whose tokens do not cover its visible code points in order becomes a dead letter, as does one mostly
        in a script that writes no spaces between words, if the parser needs them.

        Args:
            on_batch: called after each batch of a network, with no words as long as they are not known; what it raises
                ends the call.
        """
        views = [parser_view(document.text) for document in documents]
        are_unspaced = [self._needs_spaces and is_unspaced(view) for view in views]
        with self._in_one_thread():
            readable = ["" if unspaced else view for unspaced, view in zip(are_unspaced, views, strict=True)]
            read = list(map(self._read, documents, views, are_unspaced, self._tokenize(readable, on_batch)))
            pieces = chain.from_iterable(found for found in read if isinstance(found, list))
            analyses = iter(self._analyse([piece.sentence for piece in pieces if not piece.analyses], on_batch))
        return [
            found if isinstance(found, DeadLetter) else _parsed(document, found, analyses)
            for document, found in zip(documents, read, strict=True)
        ]

    def _read(
        self, document: Document, view: str, unspaced: bool, sentences: list[list[Token]]
    ) -> "list[_Piece] | DeadLetter":
        """Return the pieces of a document, or why it cannot be parsed."""
        if unspaced:
            return DeadLetter.for_document(document, stage="parse", error="no_spaces", message=_UNSPACED)
        if fault := find_token_fault(view, list(chain.from_iterable(sentences))):
            message = (
                f"expected tokens that cover the text in order, but {fault}; change it there, or try another "
                "parser.package"
            )
            return DeadLetter.for_document(document, stage="parse", error="offsets", message=message)
        return list(self._pieces(restore_offsets(document.text, view, sentences)))

    def parse_words(self, sentences: Sequence[Sequence[str]]) -> list[tuple[WordAnalysis, ...]]:
        """Tag and parse sentences that are split into words already, each independently of the others.

        A sentence above the cap is parsed in the same pieces as one from raw text; each piece has its own root.
        """
        cut = [list(self._pieces([[make_token("", 0, 0, [word]) for word in words]])) for words in sentences]
        with self._in_one_thread():
            analyses = iter(self._analyse([piece.sentence for pieces in cut for piece in pieces], None))
        return [tuple(_join_pieces([next(analyses) for _ in pieces])) for pieces in cut]

    def _pieces(self, sentences: Sequence[Sequence[Token]]) -> Iterator["_Piece"]:
        """Yield the sentences of a document, long ones in pieces."""
        read = self._with_passages([Sentence(words=tuple(_forms(sentence))) for sentence in sentences])
        for sentence, own in zip(sentences, read, strict=True):
            pieces = cut_sentence(sentence, cap=SENTENCE_CAP)
            known = [word.analysis for token in sentence for word in token.words if word.analysis is not None]
            start = 0
            for index, tokens in enumerate(pieces):
                end = start + sum(len(token.words) for token in tokens)
                part = own if len(pieces) == 1 else own.part(start, end)
                # The heads of a sentence are not those of its pieces.
                yield _Piece(tokens, part, continues=index > 0, analyses=known if len(pieces) == 1 else ())
                start = end


_UNSPACED = (
    "expected a language that writes spaces between words, got mostly letters of one that writes none (Chinese, "
    "Japanese, Thai, ...); install Stanza's package for it and name it by parser.language and parser.package"
)


class _Piece(NamedTuple):
    tokens: Sequence[Token]
    sentence: Sentence
    continues: bool
    analyses: Sequence[WordAnalysis]
    """Of all words if they are known already, else empty."""


def _forms(tokens: Sequence[Token]) -> list[str]:
    return [word.form for token in tokens for word in token.words]


def _join_pieces(pieces: Sequence[Sequence[WordAnalysis]]) -> Iterator[WordAnalysis]:
    """Chain the pieces of a sentence, with heads that count from its start."""
    before = 0
    for piece in pieces:
        for word in piece:
            yield word._replace(head=word.head and word.head + before)
        before += len(piece)


def _parsed(document: Document, pieces: Sequence[_Piece], analyses: Iterator[Sequence[WordAnalysis]]) -> ParsedDocument:
    """Combine a document's pieces with their analyses, of which those still unknown are next in the iterator."""
    sentences = []
    for piece in pieces:
        words = [word for token in piece.tokens for word in token.words]
        parsed = tuple(
            ParsedWord(word.start, word.end, document.text[word.start : word.end], word.form, *analysis)
            for word, analysis in zip(words, piece.analyses or next(analyses), strict=True)
        )
        sentences.append(ParsedSentence(words=parsed, continues=piece.continues))
    passages = dict.fromkeys(piece.sentence.passage for piece in pieces if piece.sentence.passage)
    return ParsedDocument(document=document, sentences=tuple(sentences), passages=tuple(passages))
