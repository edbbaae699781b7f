"""The dependency parser; start here. ``StanzaParser`` turns documents into sentences with words, tags and trees.

A configuration may leave out the trees, and the tags with them; their networks are then not loaded.

``stanza_packages`` finds a Stanza package, which ``stanza_pipeline`` loads. Its networks are run by ``stanza_fast``,
which makes its own batches (``packed_sentences``) and calls the networks' modules (``stanza_networks``), or by
``stanza_plain``, which calls Stanza's processors: slower, and the reference that the fast one must equal word by word.
``tokens`` handles text before and after the networks, ``spanning_tree`` finds the best tree.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import torch

from concord.models.checkpoint import pick_device
from concord.models.options import OnBatch
from concord.pipeline.config import ParserConfig
from concord.pipeline.documents import DeadLetter, Document, ParsedDocument, ParsedSentence, ParsedWord
from concord.pipeline.parsing.stanza_fast import FastStanza, FastTokenizer, obstacle_to_shortcuts
from concord.pipeline.parsing.stanza_packages import find_package, identity_of
from concord.pipeline.parsing.stanza_pipeline import load_pipeline
from concord.pipeline.parsing.stanza_plain import PlainStanza, WordAnalysis
from concord.pipeline.parsing.tokens import (
    Token,
    cut_sentence,
    find_token_fault,
    make_token,
    parser_view,
    restore_offsets,
)
from concord.pipeline.threads import torch_threads

logger = logging.getLogger(__name__)


class StanzaParser:
    """A Stanza pipeline that runs in this process, in one thread.

    Its matrices are small: a second thread made it 1.2 times as fast on an idle machine, and less than half as fast
    where other processes needed the cores.

    Args:
        shortcuts: ``off`` calls Stanza's own processors, for comparison: the same output, much slower.

    Raises:
        ModelError: when the package is not installed or does not load.
        ConfigError: when there is no such device.
    """

    def __init__(self, config: ParserConfig, *, shortcuts: Literal["auto", "off"] = "auto") -> None:
        package = find_package(config)
        self.identity = identity_of(config, package)
        """As ``parser_identity`` returns it."""
        self._sentence_cap = config.sentence_cap
        nlp = load_pipeline(package, device=pick_device(config.device, key="parser.device"))
        obstacle = obstacle_to_shortcuts(nlp) if shortcuts == "auto" else None
        if obstacle is not None:
            logger.warning("Parsing without shortcuts, at a fraction of the speed: %s", obstacle)
        is_fast = shortcuts == "auto" and obstacle is None
        fast = FastStanza if config.tags else FastTokenizer
        self._stanza = fast(nlp) if is_fast else PlainStanza(nlp)

    def parse(
        self, documents: Sequence[Document], *, on_batch: OnBatch | None = None
    ) -> list[ParsedDocument | DeadLetter]:
        """Parse documents, each independently of the others; one outcome per document, in the same order.

        A document whose tokens do not cover its visible code points in order becomes a dead letter.

        Args:
            on_batch: called after each batch of a network, with no words as long as they are not known; what it raises
                ends the call.
        """
        with torch_threads(1), torch.inference_mode():
            tokenized, faults = self._tokenize(documents, on_batch)
            pieces = [
                [] if fault else list(_pieces(sentences, cap=self._sentence_cap))
                for fault, sentences in zip(faults, tokenized, strict=True)
            ]
            forms = [_forms(piece.tokens) for document_pieces in pieces for piece in document_pieces]
            analyses = iter(self._stanza.analyse(forms, on_batch=on_batch))
        return [
            _dead_letter(document, fault) if fault else _parsed(document, document_pieces, analyses)
            for document, fault, document_pieces in zip(documents, faults, pieces, strict=True)
        ]

    def split(self, documents: Sequence[Document]) -> list[list[tuple[str, ...]] | DeadLetter]:
        """Split documents into sentences of words, without tags and trees; otherwise as ``parse`` does.

        A sentence above the cap is not cut.
        """
        with torch_threads(1), torch.inference_mode():
            tokenized, faults = self._tokenize(documents, None)
        return [
            _dead_letter(document, fault) if fault else [tuple(_forms(sentence)) for sentence in sentences]
            for document, fault, sentences in zip(documents, faults, tokenized, strict=True)
        ]

    def _tokenize(
        self, documents: Sequence[Document], on_batch: OnBatch | None
    ) -> tuple[list[list[list[Token]]], list[str | None]]:
        """Return the sentences of tokens of each document, and where they do not cover its text, if anywhere."""
        views = [parser_view(document.text) for document in documents]
        tokenized = self._stanza.tokenize(views, on_batch=on_batch)
        faults = [
            find_token_fault(view, [token for sentence in sentences for token in sentence])
            for view, sentences in zip(views, tokenized, strict=True)
        ]
        restored = map(restore_offsets, (document.text for document in documents), views, tokenized)
        return list(restored), faults

    def parse_words(self, sentences: Sequence[Sequence[str]]) -> list[tuple[WordAnalysis, ...]]:
        """Tag and parse sentences that are split into words already, each independently of the others.

        A sentence above the cap is parsed in the same pieces as one from raw text; each piece has its own root.
        """
        tokens = [[make_token("", 0, 0, [word]) for word in words] for words in sentences]
        cut = [cut_sentence(sentence, cap=self._sentence_cap) for sentence in tokens]
        forms = [_forms(piece) for pieces in cut for piece in pieces]
        with torch_threads(1), torch.inference_mode():
            analyses = iter(self._stanza.analyse(forms))
        return [tuple(_join_pieces([next(analyses) for _ in pieces])) for pieces in cut]


class _Piece(NamedTuple):
    tokens: Sequence[Token]
    continues: bool


def _pieces(sentences: Sequence[Sequence[Token]], *, cap: int) -> Iterator[_Piece]:
    for sentence in sentences:
        for index, tokens in enumerate(cut_sentence(sentence, cap=cap)):
            yield _Piece(tokens, continues=index > 0)


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
    """Combine a document's pieces with their analyses, which are next in the iterator."""
    sentences = []
    for piece in pieces:
        words = [word for token in piece.tokens for word in token.words]
        parsed = tuple(
            ParsedWord(word.start, word.end, document.text[word.start : word.end], word.form, *analysis)
            for word, analysis in zip(words, next(analyses), strict=True)
        )
        sentences.append(ParsedSentence(words=parsed, continues=piece.continues))
    return ParsedDocument(document=document, sentences=tuple(sentences))


def _dead_letter(document: Document, fault: str) -> DeadLetter:
    return DeadLetter(
        doc_id=document.doc_id,
        source_uri=document.source_uri,
        position=document.source_position,
        stage="parse",
        error="offsets",
        message=f"{document.source_uri} at {document.source_position}: expected tokens that cover the text in order, "
        f"but {fault}; change the text there, or try another parser.package",
    )
