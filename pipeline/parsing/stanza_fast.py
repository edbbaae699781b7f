"""The networks of Stanza 1.15 fed by ourselves: the words of its own processors at a multiple of their speed.

Sentences of all documents are sorted by length, character features come from a table, tags are put into words for real
positions only, labels are scored for the chosen arcs only, and the tree search stops at the first proof of the best
tree. Nothing of Stanza is patched; a package or version that this file was not written for goes the plain way.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from concord.pipeline.parsing.spanning_tree import best_tree
from concord.pipeline.parsing.stanza_plain import SHOWN, PlainStanza, WordAnalysis, shown_lemma, stanza_document
from concord.pipeline.parsing.tokens import (
    BOTH_END,
    SENTENCE_END,
    TOKEN_END,
    Paragraph,
    Token,
    TokenSpan,
    make_token,
    sentences_of,
    split_paragraphs,
    window_cut,
)

_FAST_VERSION = "1.15."
# Characters. A longer paragraph goes through the tokenizer in windows, the last _WINDOW_CONTEXT characters of
# each being read again by the next; memory grows by about 4 kB a character.
_WINDOW = 20_000
_WINDOW_CONTEXT = 1_000
# Small batches win on a CPU (caches, padding), large ones on a GPU.
_BATCH_PARAGRAPHS = {"cpu": 16, "cuda": 128}
_BATCH_WORDS = {"cpu": 1_000, "cuda": 8_000}
# Pairs of words, sentence by sentence and with padding, per word of a batch: the parser scores every relation for
# each pair.
_PAIRS_PER_WORD = 100

# Whatever Stanza takes for an e-mail or web address has one of these in it.
_ADDRESS_MARK = re.compile(r"@|http|www\.|\.(?:gov|org|edu|net|co)")


def obstacle_to_shortcuts(nlp: Any) -> str | None:
    """Say why FastStanza cannot take over a pipeline; None if it can."""
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


class _Window(NamedTuple):
    """Characters ``start`` to ``end`` of a paragraph, which is given by its number."""

    paragraph: int
    start: int
    end: int


class FastStanza(PlainStanza):
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
        document = stanza_document([[{"text": text, "misc": "MWT=Yes"} for text in texts]])
        tokens = self._nlp.processors["mwt"].process(document).sentences[0].tokens
        return {text: [word.text for word in token.words] for text, token in zip(texts, tokens, strict=True)}

    @override
    def analyse(self, sentences: Sequence[Sequence[str]]) -> list[list[WordAnalysis]]:
        analyses: list[list[WordAnalysis]] = [[] for _ in sentences]
        for batch in _length_sorted(sentences, batch_words=self._batch_words):
            forms = [[form[:SHOWN] for form in sentences[index]] for index in batch]
            tags = self._tag(forms)
            lemmas = self._lemmatize(forms, tags)
            arcs = self._attach(forms, tags, lemmas)
            for row, index in enumerate(batch):
                analyses[index] = [
                    WordAnalysis(_known(upos), _known(xpos), _known(feats), shown_lemma(lemma, form), head, deprel)
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
        document = stanza_document(
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


def _hashable(value: int | list[int]) -> int | tuple[int, ...]:
    return tuple(value) if isinstance(value, list) else value
