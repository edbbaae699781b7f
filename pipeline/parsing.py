"""The dependency parser: Stanza's tokenizer, tagger, lemmatizer and parser behind one call for many documents.

Two ways through Stanza give the same words. ``_PlainStanza`` calls its processors. ``_FastStanza``, for the
version it was written against, feeds the same networks itself: sentences of all documents sorted by length,
character features by table, tags put into words for real positions only, labels scored for the chosen arcs only,
and a tree search that stops at the first proof of the best tree. Nothing of Stanza is patched.
"""

import json
import logging
import pickle
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from hashlib import file_digest, sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from pipeline.config import ParserConfig
from pipeline.errors import ModelError
from pipeline.records import DeadLetter, Document, ParsedDocument, ParsedSentence, ParsedWord
from pipeline.segments import (
    BOTH_END,
    SENTENCE_END,
    TOKEN_END,
    Paragraph,
    Token,
    TokenSpan,
    cut_sentence,
    make_token,
    offset_fault,
    parser_view,
    sentences_of,
    split_paragraphs,
    window_cut,
)
from pipeline.signatures import ComponentIdentity

logger = logging.getLogger(__name__)

EMBEDDED_PACKAGE = "parser_en"
# Raised whenever this file or segments.py would give other words for the same weights.
PARSING_VERSION = 1

_EMBEDDED_FOLDER = Path(__file__).resolve().parents[1] / "models" / "pretrained" / EMBEDDED_PACKAGE
_PROCESSORS = ("tokenize", "mwt", "pos", "lemma", "depparse")
_FAST_VERSION = "1.15."
# Below this, Stanza cuts long paragraphs into windows that depend on what else is in the batch, and replaces
# long tokens by "<UNK>".
_STANZA_MAX_SEQLEN = 1_000_000

# Characters. A longer paragraph goes through the tokenizer in windows, the last _WINDOW_CONTEXT characters of
# each being read again by the next; memory grows by about 4 kB a character.
_WINDOW = 20_000
_WINDOW_CONTEXT = 1_000
# Characters of a word that tagger and parser get to see: the longest word of a batch decides the tagger's memory.
_SHOWN = 300
# Small batches win on a CPU (caches, padding), large ones on a GPU.
_BATCH_PARAGRAPHS = {"cpu": 16, "cuda": 128}
_BATCH_WORDS = {"cpu": 1_000, "cuda": 8_000}
# Pairs of words, sentence by sentence and with padding, per word of a batch: the parser scores every relation for
# each pair.
_PAIRS_PER_WORD = 100

# Whatever Stanza takes for an e-mail or web address has one of these in it.
_ADDRESS_MARK = re.compile(r"@|http|www\.|\.(?:gov|org|edu|net|co)")


class WordAnalysis(NamedTuple):
    """What tagger, lemmatizer and parser say of a word; ``head`` is 1-based, 0 for a root."""

    upos: str | None
    xpos: str | None
    feats: str | None
    lemma: str | None
    head: int
    deprel: str


class DependencyParser(Protocol):
    """Whatever turns documents into sentences with words, tags and trees."""

    @property
    def signature(self) -> str:
        """What decides the output besides the text: equal signatures, equal parses."""
        ...

    def parse(self, documents: Sequence[Document]) -> list[ParsedDocument | DeadLetter]:
        """Parse documents, each as if it were alone; one outcome a document, in the same order."""
        ...


def build_parser(config: ParserConfig) -> DependencyParser:
    """Load the parser of a configuration.

    Raises:
        ModelError: when the package is not installed or does not load, or there is no such device.
    """
    return StanzaParser(config)


def parser_identity(config: ParserConfig) -> ComponentIdentity:
    """Give name, version and digest of the parser that a configuration names, without loading it.

    Raises:
        ModelError: when the package is not installed.
    """
    return _identity(config, _find_package(config))


class StanzaParser:
    """A Stanza pipeline at work in one process, with one thread.

    Its matrices are small: a second thread made it 1.2 times as fast on an idle machine, and less than half as fast
    where other processes wanted the cores.

    Args:
        shortcuts: ``off`` calls Stanza's own processors, for comparison: the same words, much slower.

    Raises:
        ModelError: when the package is not installed or does not load, or there is no such device.
    """

    def __init__(
        self,
        config: ParserConfig,
        *,
        shortcuts: Literal["auto", "off"] = "auto",
    ) -> None:
        package = _find_package(config)
        self.identity = _identity(config, package)
        """Name, version and digest, as parser_identity gives them."""
        self._sentence_cap = config.sentence_cap
        nlp = _load_pipeline(package, device=_device(config))
        obstacle = _obstacle(nlp) if shortcuts == "auto" else None
        if obstacle is not None:
            logger.warning("Parsing without shortcuts, at a fraction of the speed: %s", obstacle)
        fast = shortcuts == "auto" and obstacle is None
        self._way = _FastStanza(nlp) if fast else _PlainStanza(nlp)

    @property
    def signature(self) -> str:
        """The identity's digest."""
        return self.identity.digest

    def parse(self, documents: Sequence[Document]) -> list[ParsedDocument | DeadLetter]:
        """Parse documents, each as if it were alone; one outcome a document, in the same order.

        A document whose tokens do not cover its visible code points in order becomes a dead letter.
        """
        views = [parser_view(document.text) for document in documents]
        with _one_thread(), torch.inference_mode():
            tokenized = self._way.tokenize(views)
            faults = [
                offset_fault(view, [token for sentence in sentences for token in sentence])
                for view, sentences in zip(views, tokenized, strict=True)
            ]
            pieces = [
                [] if fault else list(_pieces(sentences, cap=self._sentence_cap))
                for fault, sentences in zip(faults, tokenized, strict=True)
            ]
            forms = [_forms(piece) for document_pieces in pieces for piece in document_pieces]
            analyses = iter(self._way.analyse(forms))
        return [
            _dead_letter(document, fault) if fault else _parsed(document, document_pieces, analyses)
            for document, fault, document_pieces in zip(documents, faults, pieces, strict=True)
        ]

    def parse_words(self, sentences: Sequence[Sequence[str]]) -> list[tuple[WordAnalysis, ...]]:
        """Tag and parse sentences that are words already, each as if it were alone.

        A sentence above the cap is parsed in the same pieces as one of raw text; each piece has its own root.
        """
        cut = [
            cut_sentence([make_token("", 0, 0, [word]) for word in words], cap=self._sentence_cap)
            for words in sentences
        ]
        forms = [[word.form for token in piece for word in token.words] for pieces in cut for piece in pieces]
        with _one_thread(), torch.inference_mode():
            analyses = iter(self._way.analyse(forms))
        return [tuple(_joined([next(analyses) for _ in pieces])) for pieces in cut]


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Piece(NamedTuple):
    tokens: Sequence[Token]
    continues: bool


class _Window(NamedTuple):
    """Characters ``start`` to ``end`` of a paragraph, which is given by its number."""

    paragraph: int
    start: int
    end: int


def _pieces(sentences: Sequence[Sequence[Token]], *, cap: int) -> Iterator[_Piece]:
    for sentence in sentences:
        for index, tokens in enumerate(cut_sentence(sentence, cap=cap)):
            yield _Piece(tokens, continues=index > 0)


def _forms(piece: _Piece) -> list[str]:
    return [word.form for token in piece.tokens for word in token.words]


def _joined(pieces: Sequence[Sequence[WordAnalysis]]) -> Iterator[WordAnalysis]:
    """Put the pieces of a sentence one behind the other."""
    before = 0
    for piece in pieces:
        for word in piece:
            yield word._replace(head=word.head and word.head + before)
        before += len(piece)


def _parsed(document: Document, pieces: Sequence[_Piece], analyses: Iterator[Sequence[WordAnalysis]]) -> ParsedDocument:
    """Join a document's pieces with their analyses, which come next out of the iterator."""
    sentences = []
    for piece in pieces:
        words = [word for token in piece.tokens for word in token.words]
        parsed = tuple(
            ParsedWord(
                start_char=word.start,
                end_char=word.end,
                text=document.text[word.start : word.end],
                word=word.form,
                lemma=analysis.lemma,
                upos=analysis.upos,
                xpos=analysis.xpos,
                feats=analysis.feats,
                head=analysis.head,
                deprel=analysis.deprel,
            )
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
        message=(
            f"{document.source_uri} at {document.source_position}: expected tokens that cover the text in order, "
            f"but {fault}; change the text there, or try another parser.package"
        ),
    )


class _PlainStanza:
    """Stanza's own processors, one after the other."""

    def __init__(self, nlp: Any) -> None:
        self._nlp = nlp

    def tokenize(self, views: Sequence[str]) -> list[list[list[Token]]]:
        """Give each text's sentences as tokens."""
        return [self._tokenize(view) if view.strip() else [] for view in views]

    def _tokenize(self, view: str) -> list[list[Token]]:
        document = self._nlp.processors["tokenize"].process(view)
        if "mwt" in self._nlp.processors:
            document = self._nlp.processors["mwt"].process(document)
        return [
            [
                make_token(view, token.start_char, token.end_char, [word.text for word in token.words])
                for token in sentence.tokens
            ]
            for sentence in document.sentences
        ]

    def analyse(self, sentences: Sequence[Sequence[str]]) -> list[list[WordAnalysis]]:
        """Tag, lemmatize and parse sentences, given as words."""
        if not sentences:
            return []
        document = _stanza_document([[{"text": form[:_SHOWN]} for form in sentence] for sentence in sentences])
        for name in ("pos", "lemma", "depparse"):
            document = self._nlp.processors[name].process(document)
        return [
            [
                WordAnalysis(word.upos, word.xpos, word.feats, _lemma(word.lemma, form), word.head, word.deprel)
                for word, form in zip(analysed.words, sentence, strict=True)
            ]
            for analysed, sentence in zip(document.sentences, sentences, strict=True)
        ]


class _FastStanza(_PlainStanza):
    """The networks of Stanza 1.15 with our own batches, features and search."""

    def __init__(self, nlp: Any) -> None:
        super().__init__(nlp)
        for processor in nlp.processors.values():
            network = getattr(processor.trainer, "model", None)
            if network is not None:
                network.eval()
        self._device = torch.device(nlp.device)
        self._batch_paragraphs = _BATCH_PARAGRAPHS[self._device.type]
        self._batch_words = _BATCH_WORDS[self._device.type]
        self._characters = _CharacterTable(nlp.processors["tokenize"].trainer)
        tagger = nlp.processors["pos"].trainer
        # English has a few hundred combinations of features; the bound is for texts that provoke more.
        self._tag_names: list[Callable[[Any], str]] = [
            lru_cache(maxsize=1 << 16)(tagger.vocab[column.name].id2unit) for column in tagger.model.tag_columns
        ]

    @override
    def tokenize(self, views: Sequence[str]) -> list[list[list[Token]]]:
        paragraphs = [list(split_paragraphs(view)) for view in views]
        labels = iter(self._label_characters([paragraph for document in paragraphs for paragraph in document]))
        spans = [
            [sentence for paragraph in document for sentence in sentences_of(paragraph, next(labels))]
            for document in paragraphs
        ]
        expansions = self._expand([span for document in spans for sentence in document for span in sentence])
        return [
            [
                [
                    make_token(view, span.start, span.end, expansions.get(span.text, (span.text,)))
                    if span.is_multi_word
                    else make_token(view, span.start, span.end, (span.text,))
                    for span in sentence
                ]
                for sentence in document
            ]
            for view, document in zip(views, spans, strict=True)
        ]

    def _label_characters(self, paragraphs: Sequence[Paragraph]) -> list[NDArray[np.int8]]:
        """Label every character, one round of windows after the other; see segments.py for the labels."""
        labels = [np.zeros(len(paragraph.characters), dtype=np.int8) for paragraph in paragraphs]
        starts = dict.fromkeys(range(len(paragraphs)), 0)
        while starts:
            windows = [
                _Window(index, start, min(start + _WINDOW, len(labels[index]))) for index, start in starts.items()
            ]
            starts = {}
            for batch in self._window_batches(windows):
                for window, found in zip(batch, self._label_windows(paragraphs, batch), strict=True):
                    characters = paragraphs[window.paragraph].characters
                    cut = window.end
                    if window.end < len(characters):
                        safe = _WINDOW - _WINDOW_CONTEXT
                        cut = window_cut(characters, found, start=window.start, safe=safe)
                        starts[window.paragraph] = cut
                    labels[window.paragraph][window.start : cut] = found[: cut - window.start]
        for paragraph, row in zip(paragraphs, labels, strict=True):
            row[-1] = BOTH_END if row[-1] > SENTENCE_END else SENTENCE_END
            _keep_addresses_whole(paragraph.characters, row)
        return labels

    def _window_batches(self, windows: Sequence[_Window]) -> Iterator[list[_Window]]:
        """Cut windows into batches, the longest first; a CPU's hold at most _WINDOW characters with padding."""
        room = _WINDOW * self._batch_paragraphs // _BATCH_PARAGRAPHS["cpu"]
        batch: list[_Window] = []
        for window in sorted(windows, key=lambda window: window.start - window.end):
            longest = batch[0].end - batch[0].start if batch else 0
            if batch and (len(batch) == self._batch_paragraphs or longest * (len(batch) + 1) > room):
                yield batch
                batch = []
            batch.append(window)
        if batch:
            yield batch

    def _label_windows(self, paragraphs: Sequence[Paragraph], windows: Sequence[_Window]) -> list[NDArray[np.int64]]:
        """Run the tokenizer's network over one batch of windows, the longest first."""
        network = self._nlp.processors["tokenize"].trainer.model
        lengths = [window.end - window.start + 1 for window in windows]  # the network wants one place of padding
        units = np.full((len(windows), lengths[0]), self._characters.padding, dtype=np.int64)
        features = np.zeros((len(windows), lengths[0], self._characters.num_features), dtype=np.float32)
        raw = []
        for row, window in enumerate(windows):
            characters = paragraphs[window.paragraph].characters
            length = lengths[row] - 1
            units[row, :length], features[row, :length] = self._characters.look_up(
                characters[window.start : window.end],
                opens=window.start == 0,
                closes=window.end == len(characters),
            )
            raw.append([*characters[window.start : window.end], "<PAD>"])
        scores = network(
            torch.from_numpy(units).to(self._device), torch.from_numpy(features).to(self._device), lengths, raw
        )
        labels = np.argmax(scores.cpu().numpy(), axis=2)
        return [labels[row, : length - 1] for row, length in enumerate(lengths)]

    def _expand(self, spans: Sequence[TokenSpan]) -> dict[str, list[str]]:
        """Give the words of each text that is marked as a multi-word token."""
        texts = sorted({span.text for span in spans if span.is_multi_word})
        if not texts or "mwt" not in self._nlp.processors:
            return {}
        document = _stanza_document([[{"text": text, "misc": "MWT=Yes"} for text in texts]])
        tokens = self._nlp.processors["mwt"].process(document).sentences[0].tokens
        return {text: [word.text for word in token.words] for text, token in zip(texts, tokens, strict=True)}

    @override
    def analyse(self, sentences: Sequence[Sequence[str]]) -> list[list[WordAnalysis]]:
        analyses: list[list[WordAnalysis]] = [[] for _ in sentences]
        for batch in _length_sorted(sentences, batch_words=self._batch_words):
            forms = [[form[:_SHOWN] for form in sentences[index]] for index in batch]
            tags = self._tag(forms)
            lemmas = self._lemmatize(forms, tags)
            arcs = self._attach(forms, tags, lemmas)
            for row, index in enumerate(batch):
                analyses[index] = [
                    WordAnalysis(_known(upos), _known(xpos), _known(feats), _lemma(lemma, form), head, deprel)
                    for form, (upos, xpos, feats), lemma, (head, deprel) in zip(
                        sentences[index], tags[row], lemmas[row], arcs[row], strict=True
                    )
                ]
        return analyses

    def _tag(self, sentences: Sequence[Sequence[str]]) -> list[list[tuple[str, str, str]]]:
        """Give upos, xpos and features of each word, ``_`` where there is none."""
        from stanza.models.pos.data import Dataset

        processor = self._nlp.processors["pos"]
        rows = _Rows([[(form,) for form in sentence] for sentence in sentences])
        dataset = Dataset(rows, processor.config, processor.pretrain, vocab=processor.vocab, evaluation=True)
        batch = dataset.collate_fn([dataset[i] for i in range(len(dataset))])
        tensors = (batch.words, batch.words_mask, batch.wordchars, batch.wordchars_mask)
        _, found = processor.trainer.model(
            *(tensor.to(self._device) for tensor in tensors),
            None,
            batch.pretrained.to(self._device),
            batch.word_orig_idx,
            batch.lens,
            batch.word_lens,
            batch.text,
        )
        lengths = [int(length) for length in batch.lens]
        columns = [
            [[name(_hashable(value)) for value in row[:length]] for row, length in zip(rows, lengths, strict=True)]
            for name, rows in zip(self._tag_names, (ids.tolist() for ids in found), strict=True)
        ]
        tags: list[list[tuple[str, str, str]]] = [[] for _ in sentences]
        for row, index in enumerate(batch.orig_idx):
            tags[index] = list(zip(*(column[row] for column in columns[:3]), strict=True))
        return tags

    def _lemmatize(
        self, sentences: Sequence[Sequence[str]], tags: Sequence[Sequence[tuple[str, str, str]]]
    ) -> list[list[str]]:
        """Give each word's lemma, ``_`` where there is none."""
        processor = self._nlp.processors["lemma"]
        if processor.config.get("dict_only"):
            return [
                [
                    lemma or "_"
                    for lemma in processor.trainer.predict_dict(
                        [(form, _known(upos)) for form, (upos, _, _) in zip(sentence, row, strict=True)]
                    )
                ]
                for sentence, row in zip(sentences, tags, strict=True)
            ]
        document = _stanza_document(
            [
                [
                    {"text": form, "upos": upos, "xpos": xpos, "feats": feats}
                    for form, (upos, xpos, feats) in zip(sentence, row, strict=True)
                ]
                for sentence, row in zip(sentences, tags, strict=True)
            ]
        )
        return [[word.lemma or "_" for word in found.words] for found in processor.process(document).sentences]

    def _attach(
        self,
        sentences: Sequence[Sequence[str]],
        tags: Sequence[Sequence[tuple[str, str, str]]],
        lemmas: Sequence[Sequence[str]],
    ) -> list[list[tuple[int, str]]]:
        """Give head and relation of each word."""
        from stanza.models.common.vocab import VOCAB_PREFIX_SIZE
        from stanza.models.depparse.data import DataLoader, Dataset

        processor = self._nlp.processors["depparse"]
        rows = _Rows(
            [
                [(form, *tag, lemma) for form, tag, lemma in zip(*columns, strict=True)]
                for columns in zip(sentences, tags, lemmas, strict=True)
            ]
        )
        dataset = Dataset(rows, processor.config, processor.pretrain, vocab=processor.vocab, evaluation=True)
        batch = DataLoader.collate([dataset[i] for i in range(len(dataset))])
        tensors, (order, word_order, lengths, word_lengths, text) = batch[:11], batch[11:]
        arc_scores, label_scores, *_ = processor.trainer.model.forward_scores(
            *(tensor.to(self._device) for tensor in tensors), word_order, lengths, word_lengths, text
        )
        heads = torch.zeros(arc_scores.shape[:2], dtype=torch.int64)
        for row, (scores, length) in enumerate(zip(arc_scores.cpu().numpy(), lengths, strict=True)):
            heads[row, :length] = torch.from_numpy(best_tree(scores[:length, :length]))
        chosen = heads.to(self._device)[:, :, None, None].expand(-1, -1, 1, label_scores.shape[3])
        labels = label_scores.gather(2, chosen).squeeze(2).max(2)[1].cpu() + VOCAB_PREFIX_SIZE
        arcs: list[list[tuple[int, str]]] = [[] for _ in sentences]
        for row, (index, length) in enumerate(zip(order, lengths, strict=True)):
            names = processor.vocab["deprel"].unmap(labels[row, 1:length].tolist())
            arcs[index] = list(zip(heads[row, 1:length].tolist(), names, strict=True))
        return arcs


class _CharacterTable:
    """The tokenizer's unit and features of each code point, entered when it first comes: 0x110000 rows at most."""

    def __init__(self, trainer: Any) -> None:
        from stanza.models.tokenization.data import PER_CHAR_FEAT_FUNCS, STRUCTURAL_FEATURES

        wanted = trainer.args["feat_funcs"]
        self._vocabulary = trainer.vocab
        self._functions = [PER_CHAR_FEAT_FUNCS[name] for name in wanted if name in PER_CHAR_FEAT_FUNCS]
        self._positions = [name for name in ("end_of_para", "start_of_para") if name in wanted]
        self._patterns = [pattern for name, pattern in STRUCTURAL_FEATURES.items() if name in wanted]
        self._entered = np.zeros(0x110000, dtype=np.bool_)
        self._units = np.zeros(0x110000, dtype=np.int32)
        self._features = np.zeros((0x110000, len(self._functions)), dtype=np.uint8)
        self.padding: int = trainer.vocab.unit2id("<PAD>")
        self.num_features = len(self._functions) + len(self._positions) + len(self._patterns)

    def look_up(self, characters: str, *, opens: bool, closes: bool) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Give units, shape ``(C,)``, and features, shape ``(C, features)``, of a window's C characters.

        Args:
            opens, closes: whether the window is the first or last of its paragraph.
        """
        codes = np.frombuffer(characters.encode("utf-32-le", errors="surrogatepass"), dtype=np.uint32)
        for code in np.unique(codes[~self._entered[codes]]).tolist():
            self._entered[code] = True
            self._units[code] = self._vocabulary.unit2id(chr(code))
            self._features[code] = [function(chr(code)) for function in self._functions]
        features = np.zeros((len(characters), self.num_features), dtype=np.float32)
        column = len(self._functions)
        features[:, :column] = self._features[codes]
        for name in self._positions:
            if name == "end_of_para" and closes:
                features[-1, column] = 1
            elif name == "start_of_para" and opens:
                features[0, column] = 1
            column += 1
        for pattern in self._patterns:
            for match in pattern.finditer(characters):
                features[match.start() : match.end(), column] = 1
            column += 1
        return self._units[codes], features


class _Rows:
    """What Stanza's data sets ask of a document: its words' first fields, the others being empty."""

    def __init__(self, sentences: Sequence[Sequence[tuple[str, ...]]]) -> None:
        self._sentences = sentences

    def get(self, fields: Sequence[str], *, as_sentences: bool) -> list[list[list[str | None]]]:
        """Give fresh lists of the fields of each word, by sentences."""
        if not as_sentences:
            raise ValueError("expected as_sentences=True")
        return [[[*word, *[None] * (len(fields) - len(word))] for word in sentence] for sentence in self._sentences]


def best_tree(scores: NDArray[np.floating]) -> NDArray[np.int64]:
    """Find the tree of highest score that has one root.

    Exact, in three steps of rising cost. If each word's best head already makes a tree, no tree is better. Else
    the search for the best tree with any number of roots (Chu-Liu-Edmonds) is run, and if it gives one root, no
    tree of one root is better. Else all arcs from the root are made worse by the same growing amount: that
    changes no order among trees of one root, so the first such tree that wins is the best of them.

    Args:
        scores: of word i (row) having head j (column), place 0 being the root; shape ``(1 + T, 1 + T)``.
            The diagonal and row 0 are not read.

    Returns:
        heads, shape ``(1 + T,)``, 0 at place 0.

    Raises:
        ValueError: when scores are not finite.
    """
    from stanza.models.common.chuliu_edmonds import chuliu_edmonds

    arcs = scores.astype(np.float64)
    np.fill_diagonal(arcs, -np.inf)
    arcs[0] = -np.inf
    arcs[0, 0] = 0
    size = len(arcs)
    off_diagonal = arcs[1:][~np.eye(size, dtype=np.bool_)[1:]]
    if not np.isfinite(off_diagonal).all():
        raise ValueError(f"expected finite arc scores for a sentence of {size - 1} words")
    # No gain from a second root can outweigh this penalty, so the loop ends before it is passed.
    enough = size * (off_diagonal.max() - off_diagonal.min()) + 1 if size > 1 else 0
    penalty = 0.0
    while True:
        penalized = arcs.copy()
        penalized[1:, 0] -= penalty
        heads: NDArray[np.int64] = np.argmax(penalized, axis=1)
        if not _is_tree(heads.tolist()):
            heads = np.asarray(chuliu_edmonds(penalized))
        if np.count_nonzero(heads[1:] == 0) <= 1 or penalty > enough:
            return heads
        penalty = max(1.0, 4 * penalty)


def _is_tree(heads: Sequence[int]) -> bool:
    """Say whether every place reaches place 0."""
    seen_from = [-1] + [0] * (len(heads) - 1)
    for start in range(1, len(heads)):
        place = start
        while seen_from[place] == 0:
            seen_from[place] = start
            place = heads[place]
        if seen_from[place] == start:
            return False
    return True


def _keep_addresses_whole(characters: str, labels: NDArray[np.int8]) -> None:
    """Make one token of each e-mail and web address, in place, as Stanza does after its network."""
    if not _ADDRESS_MARK.search(characters):
        return
    from stanza.models.tokenization.utils import MASK_RE

    for match in MASK_RE.finditer(characters):
        labels[match.start() : match.end() - 1] = 0
        labels[match.end() - 1] = max(labels[match.end() - 1], TOKEN_END)


def _length_sorted(sentences: Sequence[Sequence[str]], *, batch_words: int) -> Iterator[list[int]]:
    """Cut sentences, the shortest first, into batches of so many words and of so many pairs of words at most."""
    batch: list[int] = []
    words = 0
    for index in sorted(range(len(sentences)), key=lambda index: len(sentences[index])):
        length = len(sentences[index])
        pairs = (len(batch) + 1) * length**2
        if batch and (words + length > batch_words or pairs > batch_words * _PAIRS_PER_WORD):
            yield batch
            batch, words = [], 0
        batch.append(index)
        words += length
    if batch:
        yield batch


def _known(name: str) -> str | None:
    return None if name == "_" else name


def _lemma(lemma: str | None, form: str) -> str | None:
    """Give the lemma of a whole form where Stanza was shown only its beginning."""
    if len(form) > _SHOWN and lemma == form[:_SHOWN]:
        return form
    return None if lemma == "_" and form != "_" else lemma


def _hashable(value: int | list[int]) -> int | tuple[int, ...]:
    return tuple(value) if isinstance(value, list) else value


def _stanza_document(sentences: Sequence[Sequence[dict[str, Any]]]) -> Any:
    from stanza.models.common.doc import Document as StanzaDocument

    return StanzaDocument(
        [[{"id": (place,), **word} for place, word in enumerate(sentence, start=1)] for sentence in sentences]
    )


def _obstacle(nlp: Any) -> str | None:
    """Say why _FastStanza cannot take over a pipeline; None if it can."""
    if not version("stanza").startswith(_FAST_VERSION):
        return f"Stanza is {version('stanza')}, the shortcuts are for {_FAST_VERSION}x"
    tokenizer = nlp.processors["tokenize"].trainer
    if tokenizer.args["use_dictionary"] or tokenizer.args["skip_newline"] or tokenizer.vocab.lang_replaces_spaces:
        return "the package's tokenizer goes by a dictionary or takes white space for nothing"
    if tokenizer.args["shorthand"] == "la_ittb":
        return "the package's tokenizer has rules of its own"
    parser = nlp.processors["depparse"].trainer
    if type(parser.model).__name__ != "GraphParser" or parser.args.get("reversed"):
        return "the package's parser is not graph-based, or reads backwards"
    if [column.name for column in nlp.processors["pos"].trainer.model.tag_columns[:3]] != ["upos", "xpos", "feats"]:
        return "the package's tagger has other columns than upos, xpos and feats"
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Package:
    """A Stanza package on disk: the folder of resources.json, the processors it has, and their files."""

    folder: Path
    language: str
    name: str
    processors: tuple[str, ...]
    files: tuple[Path, ...]


def _find_package(config: ParserConfig) -> _Package:
    if config.package == EMBEDDED_PACKAGE:
        if config.language != "en":
            raise ModelError(f"parser.package: {EMBEDDED_PACKAGE} is for language 'en', not {config.language!r}")
        return _read_package(_EMBEDDED_FOLDER, language="en", name="default")
    if config.directory is not None:
        return _read_package(Path(config.directory), language=config.language, name=config.package)
    from stanza.resources.common import DEFAULT_MODEL_DIR

    return _read_package(Path(DEFAULT_MODEL_DIR), language=config.language, name=config.package)


def _read_package(folder: Path, *, language: str, name: str) -> _Package:
    """Look up a package's processors and files, with those they depend on, in resources.json."""
    index = folder / "resources.json"
    try:
        known: dict[str, Any] = json.loads(index.read_text(encoding="utf-8"))
        language = known[language].get("alias", language)
        resources: dict[str, Any] = known[language]
    except FileNotFoundError:
        raise _not_installed(folder, language=language, name=name, missing=str(index)) from None
    except (ValueError, KeyError, AttributeError):
        raise _not_installed(folder, language=language, name=name, missing=f"{language!r} in {index}") from None
    processors, files = [], set()
    for processor in _PROCESSORS:
        chosen = _model_name(resources, processor, package=name)
        if chosen is None and processor == "mwt":  # many languages have no multi-word tokens
            continue
        if chosen is None:
            missing = f"package {name!r} with a {processor} model for {language!r} in {index}"
            raise _not_installed(folder, language=language, name=name, missing=missing)
        processors.append(processor)
        files.add(folder / language / processor / f"{chosen}.pt")
        for needed in resources.get(processor, {}).get(chosen, {}).get("dependencies", []):
            files.add(folder / language / needed["model"] / f"{needed['package']}.pt")
    for path in sorted(files):
        if not path.is_file():
            raise _not_installed(folder, language=language, name=name, missing=str(path))
    return _Package(
        folder=folder, language=language, name=name, processors=tuple(processors), files=tuple(sorted(files))
    )


def _model_name(resources: dict[str, Any], processor: str, *, package: str) -> str | None:
    """Give the model that a package has for a processor: one of its own name goes before one it lists."""
    if package in resources.get(processor, {}):
        return package
    listed: str | None = resources.get("packages", {}).get(package, {}).get(processor)
    return listed


def _not_installed(folder: Path, *, language: str, name: str, missing: str) -> ModelError:
    return ModelError(
        f"parser.package: Stanza's package {name!r} for {language!r} is not installed: there is no {missing}. "
        f"Nothing is downloaded unasked. Install it with: "
        f'python -c "import stanza; stanza.download({language!r}, package={name!r}, model_dir={str(folder)!r})" '
        f"- or use the embedded one: parser.package={EMBEDDED_PACKAGE}"
    )


def _identity(config: ParserConfig, package: _Package) -> ComponentIdentity:
    decisive = {
        "stanza": version("stanza"),
        "parsing": PARSING_VERSION,
        "language": config.language,
        "package": config.package,
        "sentence_cap": config.sentence_cap,
        "files": {path.relative_to(package.folder).as_posix(): _digest(path) for path in package.files},
    }
    digest = sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()
    return ComponentIdentity(name=f"stanza/{config.package}", version=version("stanza"), digest=digest)


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return file_digest(stream, "sha256").hexdigest()


def _device(config: ParserConfig) -> Literal["cpu", "cuda"]:
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ModelError("parser.device: expected a CUDA device, found none; use parser.device=auto or cpu")
    return "cuda" if config.device != "cpu" and torch.cuda.is_available() else "cpu"


def _load_pipeline(package: _Package, *, device: Literal["cpu", "cuda"]) -> Any:
    import stanza

    try:
        return stanza.Pipeline(
            lang=package.language,
            dir=str(package.folder),
            package=package.name,
            processors=",".join(package.processors),
            download_method=None,
            use_gpu=device == "cuda",
            verbose=False,
            tokenize_max_seqlen=_STANZA_MAX_SEQLEN,
            # Its default is set by each package; the repair costs a third of the speed for 0.7 % of the words.
            depparse_resolve_head_constraints=False,
        )
    except (OSError, EOFError, RuntimeError, ValueError, KeyError, pickle.UnpicklingError) as error:
        raise ModelError(
            f"parser.package: Stanza cannot load {package.name!r} for {package.language!r} from {package.folder}: "
            f"{type(error).__name__}: {error}; install the package anew"
        ) from error
