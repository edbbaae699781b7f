"""Run the networks of Stanza 1.15 with our own batches: the output of ``stanza_plain`` at a multiple of its speed.

Sentences of all documents are sorted by length, character features come from a table, tag names are looked up for real
positions only, relations are chosen for the best heads only, the tree search stops at the first proof of the best tree,
and addresses are looked for only where one may start. Nothing of Stanza is patched; for any other package or version
``stanza_plain`` is used.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from concord.models.tagger import OnBatch
from concord.pipeline.parsing.spanning_tree import best_tree
from concord.pipeline.parsing.stanza_plain import PlainStanza, WordAnalysis, restore_lemma, stanza_document, truncate
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
# Characters. A longer paragraph is tokenized in windows; the last _WINDOW_CONTEXT characters of each are read again
# by the next. Memory grows by about 4 kB per character.
_WINDOW = 20_000
_WINDOW_CONTEXT = 1_000
# Small batches win on a CPU (caches, padding), large ones on a GPU.
_BATCH_PARAGRAPHS = {"cpu": 16, "cuda": 128}
_BATCH_WORDS = {"cpu": 1_000, "cuda": 8_000}
# Pairs of words, by sentence and with padding, per word of a batch: the parser scores every relation for each pair.
_PAIRS_PER_WORD = 100

# Everything that Stanza takes for an e-mail or web address contains one of these.
_ADDRESS_MARK = re.compile(r"@|http|www\.|\.(?:gov|org|edu|net|co)")
# Where the first address after a position can start, at least two characters on. Stanza's expression starts at every
# character of a run that an address may begin with, and reads to the end of the run each time: hours for a long one.
_LOCAL = r"[a-z0-9!#$%&'*+/=?^_`{|}~-]"
_ADDRESS_START = (
    rf"(?<!{_LOCAL})(?<!{_LOCAL}\.)(?={_LOCAL}+(?:\.{_LOCAL}+)*@)|(?=https?://|www\.)"
    r"|(?<![a-zA-Z0-9])(?=[a-zA-Z0-9]+\.(?:gov|org|edu|net|com|co))"
)


def obstacle_to_shortcuts(nlp: Any) -> str | None:
    """Return why FastStanza cannot run a pipeline; None if it can."""
    if not version("stanza").startswith(_FAST_VERSION):
        return f"Stanza is {version('stanza')}, the shortcuts are for {_FAST_VERSION}x"
    tokenizer = nlp.processors["tokenize"].trainer
    if tokenizer.args["use_dictionary"] or tokenizer.args["skip_newline"] or tokenizer.vocab.lang_replaces_spaces:
        return "the package's tokenizer uses a dictionary or ignores white space"
    if tokenizer.args["shorthand"] == "la_ittb":
        return "the package's tokenizer has rules of its own"
    parser = nlp.processors["depparse"].trainer
    if type(parser.model).__name__ != "GraphParser" or parser.args.get("reversed"):
        return "the package's parser is not graph-based, or reads in reverse"
    if [column.name for column in nlp.processors["pos"].trainer.model.tag_columns[:3]] != ["upos", "xpos", "feats"]:
        return "the package's tagger has other columns than upos, xpos and feats"
    return None


class _Window(NamedTuple):
    """Characters ``start`` to ``end`` of the paragraph with a number."""

    paragraph: int
    start: int
    end: int


class FastStanza(PlainStanza):
    """The networks of Stanza 1.15 with our own batching, features and tree search."""

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
    def tokenize(self, views: Sequence[str], *, on_batch: OnBatch | None = None) -> list[list[list[Token]]]:
        paragraphs = [list(split_paragraphs(view)) for view in views]
        labels = iter(self._label_characters([one for document in paragraphs for one in document], on_batch))
        spans = [
            [sentence for paragraph in document for sentence in sentences_of(paragraph, next(labels))]
            for document in paragraphs
        ]
        expansions = self._expand([span for document in spans for sentence in document for span in sentence])

        def token(view: str, span: TokenSpan) -> Token:
            forms = expansions.get(span.text) if span.is_multi_word else None
            return make_token(view, span.start, span.end, forms or (span.text,))

        return [
            [[token(view, span) for span in sentence] for sentence in document]
            for view, document in zip(views, spans, strict=True)
        ]

    def _label_characters(self, paragraphs: Sequence[Paragraph], on_batch: OnBatch | None) -> list[NDArray[np.int8]]:
        """Label every character (see ``tokens`` for the labels), in rounds of one window per paragraph."""
        labels = [np.zeros(len(paragraph.characters), dtype=np.int8) for paragraph in paragraphs]
        starts = dict.fromkeys(range(len(paragraphs)), 0)
        while starts:
            windows = [
                _Window(index, start, min(start + _WINDOW, len(labels[index]))) for index, start in starts.items()
            ]
            starts = {}
            for batch in self._window_batches(windows):
                if on_batch is not None:
                    on_batch(0, 0)
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
            _merge_addresses(paragraph.characters, row)
        return labels

    def _window_batches(self, windows: Sequence[_Window]) -> Iterator[list[_Window]]:
        """Split windows into batches, the longest first; on a CPU at most _WINDOW characters with padding."""
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
        lengths = [window.end - window.start + 1 for window in windows]  # the network needs one position of padding
        units = np.full((len(windows), lengths[0]), self._characters.padding, dtype=np.int64)
        features = np.zeros((len(windows), lengths[0], self._characters.num_features), dtype=np.float32)
        raw = []
        for row, window in enumerate(windows):
            characters = paragraphs[window.paragraph].characters
            length = lengths[row] - 1
            units[row, :length], features[row, :length] = self._characters.look_up(
                characters[window.start : window.end], opens=window.start == 0, closes=window.end == len(characters)
            )
            raw.append([*characters[window.start : window.end], "<PAD>"])
        scores = network(
            torch.from_numpy(units).to(self._device), torch.from_numpy(features).to(self._device), lengths, raw
        )
        labels = np.argmax(scores.cpu().numpy(), axis=2)
        return [labels[row, : length - 1] for row, length in enumerate(lengths)]

    def _expand(self, spans: Sequence[TokenSpan]) -> dict[str, list[str]]:
        """Return the words of each text that is marked as a multi-word token."""
        texts = sorted({span.text for span in spans if span.is_multi_word})
        if not texts or "mwt" not in self._nlp.processors:
            return {}
        document = stanza_document([[{"text": text, "misc": "MWT=Yes"} for text in texts]])
        tokens = self._nlp.processors["mwt"].process(document).sentences[0].tokens
        return {text: [word.text for word in token.words] for text, token in zip(texts, tokens, strict=True)}

    @override
    def analyse(
        self, sentences: Sequence[Sequence[str]], *, on_batch: OnBatch | None = None
    ) -> list[list[WordAnalysis]]:
        analyses: list[list[WordAnalysis]] = [[] for _ in sentences]
        words_done, all_words = 0, sum(map(len, sentences))
        for batch in _length_sorted(sentences, batch_words=self._batch_words):
            forms = [[truncate(form) for form in sentences[index]] for index in batch]
            tags = self._tag(forms)
            lemmas = self._lemmatize(forms, tags)
            arcs = self._attach(forms, tags, lemmas)
            for row, index in enumerate(batch):
                words = zip(sentences[index], tags[row], lemmas[row], arcs[row], strict=True)
                analyses[index] = [
                    WordAnalysis(_or_none(upos), _or_none(xpos), _or_none(feats), restore_lemma(lemma, form), *arc)
                    for form, (upos, xpos, feats), lemma, arc in words
                ]
            words_done += sum(map(len, forms))
            if on_batch is not None:
                on_batch(words_done, all_words)
        return analyses

    def _tag(self, sentences: Sequence[Sequence[str]]) -> list[list[tuple[str, str, str]]]:
        """Return upos, xpos and features of each word, ``_`` where there is none."""
        from stanza.models.pos.data import Dataset

        processor = self._nlp.processors["pos"]
        rows = _Rows([[(form,) for form in sentence] for sentence in sentences])
        dataset = Dataset(rows, processor.config, processor.pretrain, vocab=processor.vocab, evaluation=True)
        batch = dataset.collate_fn([dataset[i] for i in range(len(dataset))])
        tensors = (batch.words, batch.words_mask, batch.wordchars, batch.wordchars_mask, batch.pretrained)
        *features, pretrained = (tensor.to(self._device) for tensor in tensors)
        _, found = processor.trainer.model(
            *features, None, pretrained, batch.word_orig_idx, batch.lens, batch.word_lens, batch.text
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
        """Return each word's lemma, ``_`` where there is none."""
        processor = self._nlp.processors["lemma"]
        tagged = [list(zip(sentence, row, strict=True)) for sentence, row in zip(sentences, tags, strict=True)]
        if processor.config.get("dict_only"):
            look_up = processor.trainer.predict_dict
            return [
                [lemma or "_" for lemma in look_up([(form, _or_none(upos)) for form, (upos, _, _) in words])]
                for words in tagged
            ]
        document = stanza_document(
            [
                [{"text": form, "upos": upos, "xpos": xpos, "feats": feats} for form, (upos, xpos, feats) in words]
                for words in tagged
            ]
        )
        return [[word.lemma or "_" for word in found.words] for found in processor.process(document).sentences]

    def _attach(
        self,
        sentences: Sequence[Sequence[str]],
        tags: Sequence[Sequence[tuple[str, str, str]]],
        lemmas: Sequence[Sequence[str]],
    ) -> list[list[tuple[int, str]]]:
        """Return head and relation of each word."""
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
    """The tokenizer's unit and features of each code point, computed when it first occurs; at most 0x110000 rows."""

    def __init__(self, trainer: Any) -> None:
        from stanza.models.tokenization.data import PER_CHAR_FEAT_FUNCS, STRUCTURAL_FEATURES

        wanted = trainer.args["feat_funcs"]
        self._vocabulary = trainer.vocab
        self._functions = [PER_CHAR_FEAT_FUNCS[name] for name in wanted if name in PER_CHAR_FEAT_FUNCS]
        self._positions = [name for name in ("end_of_para", "start_of_para") if name in wanted]
        self._patterns = [pattern for name, pattern in STRUCTURAL_FEATURES.items() if name in wanted]
        self._is_known = np.zeros(0x110000, dtype=np.bool_)
        self._units = np.zeros(0x110000, dtype=np.int32)
        self._features = np.zeros((0x110000, len(self._functions)), dtype=np.uint8)
        self.padding: int = trainer.vocab.unit2id("<PAD>")
        self.num_features = len(self._functions) + len(self._positions) + len(self._patterns)

    def look_up(self, characters: str, *, opens: bool, closes: bool) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Return units, shape ``(C,)``, and features, shape ``(C, features)``, of a window's C characters.

        Args:
            opens, closes: whether the window is the first or last of its paragraph.
        """
        codes = np.frombuffer(characters.encode("utf-32-le", errors="surrogatepass"), dtype=np.uint32)
        for code in np.unique(codes[~self._is_known[codes]]).tolist():
            self._is_known[code] = True
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
    """A document as Stanza's data sets read it: the first fields of each word; all others are None."""

    def __init__(self, sentences: Sequence[Sequence[tuple[str, ...]]]) -> None:
        self._sentences = sentences

    def get(self, fields: Sequence[str], *, as_sentences: bool) -> list[list[list[str | None]]]:
        """Return new lists of the fields of each word, by sentence."""
        if not as_sentences:
            raise ValueError("expected as_sentences=True")
        return [[[*word, *[None] * (len(fields) - len(word))] for word in sentence] for sentence in self._sentences]


def _merge_addresses(characters: str, labels: NDArray[np.int8]) -> None:
    """Make each e-mail and web address one token, in place, as Stanza does after its network."""
    for start, end in find_addresses(characters):
        labels[start : end - 1] = 0
        labels[end - 1] = max(labels[end - 1], TOKEN_END)


def find_addresses(characters: str) -> Iterator[tuple[int, int]]:
    """Find what Stanza's expression for addresses matches, without its quadratic time."""
    if not _ADDRESS_MARK.search(characters):
        return
    from stanza.models.tokenization.utils import MASK_RE

    search = _address_search(MASK_RE.pattern, quotes='"@' in characters)
    match = search(characters)
    while match is not None:
        yield match.span()
        end = match.end()
        match = MASK_RE.match(characters, end) or MASK_RE.match(characters, end + 1) or search(characters, end + 2)


@cache
def _address_search(address: str, *, quotes: bool) -> Callable[..., re.Match[str] | None]:
    """Return a search for addresses that tries few starts; all quotation marks if ``quotes``."""
    start = _ADDRESS_START + ('|(?=")' if quotes else "")
    return re.compile(f"(?:{start})(?:{address})").search


def _length_sorted(sentences: Sequence[Sequence[str]], *, batch_words: int) -> Iterator[list[int]]:
    """Split sentences, the shortest first, into batches limited in words and in pairs of words."""
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


def _or_none(name: str) -> str | None:
    return None if name == "_" else name


def _hashable(value: int | list[int]) -> int | tuple[int, ...]:
    return tuple(value) if isinstance(value, list) else value
