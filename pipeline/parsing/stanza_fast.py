"""Run the networks of Stanza 1.15 with our own batches: the output of ``stanza_plain`` at a multiple of its speed.

Sentences of all documents are sorted by length, and features of characters and word forms come from tables. Tagger and
parser run on the same rows of words without padding (``stanza_networks``), relations are chosen for the best heads
only, the tree search stops at the first proof of the best tree, and addresses are looked for only where one may start.
Nothing of Stanza is patched; for any other package or version ``stanza_plain`` is used.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache
from importlib.metadata import version
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from concord.models.tagger import OnBatch
from concord.pipeline.parsing.packed_sentences import PackedSentences
from concord.pipeline.parsing.stanza_networks import (
    ROOT_FORM,
    FormTable,
    ParserNetwork,
    TaggerNetwork,
    obstacle_to_networks,
)
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
_TAG_COLUMNS = ("upos", "xpos", "feats")
# Characters. A longer paragraph is tokenized in windows; the last _WINDOW_CONTEXT characters of each are read again
# by the next. Memory grows by about 4 kB per character.
_WINDOW = 20_000
_WINDOW_CONTEXT = 1_000
# Small batches win on a CPU (caches, padding), large ones on a GPU.
_BATCH_PARAGRAPHS = {"cpu": 16, "cuda": 128}
_BATCH_WORDS = {"cpu": 1_000, "cuda": 8_000}
# Pairs of words, by sentence and with padding, per word of a batch: the parser scores each pair.
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
    return obstacle_to_networks(nlp.processors["pos"].trainer, nlp.processors["depparse"].trainer)


class _Window(NamedTuple):
    """Characters ``start`` to ``end`` of the paragraph with a number."""

    paragraph: int
    start: int
    end: int


class _Tag(NamedTuple):
    """Names of a word's tags, ``_`` where there is none, and the parser's numbers of upos and xpos."""

    upos: str
    xpos: str
    feats: str
    numbers: tuple[int, ...]


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
        self._tagger = TaggerNetwork(nlp.processors["pos"], self._device)
        self._parser = ParserNetwork(nlp.processors["depparse"], self._device)
        with torch.inference_mode():
            self._forms = FormTable([self._tagger, self._parser])
        self._tag_vocabularies = nlp.processors["pos"].vocab
        self._tag_parts = [_number_of_parts(self._tag_vocabularies[name]) for name in _TAG_COLUMNS]
        # English has a few hundred tags with features; the bound is for texts that provoke more.
        self._tag_of = lru_cache(maxsize=1 << 16)(self._tag_of_numbers)
        self._lemma_number = lru_cache(maxsize=1 << 16)(nlp.processors["depparse"].vocab["lemma"].unit2id)

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
            if network.charmodel is not None:
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
        self._forms.clear()
        analyses: list[list[WordAnalysis]] = [[] for _ in sentences]
        words_done, all_words = 0, sum(map(len, sentences))
        for batch in _length_sorted(sentences, batch_words=self._batch_words):
            batch.reverse()
            found = iter(self._analyse_batch([sentences[index] for index in batch]))
            for index in batch:
                analyses[index] = list(islice(found, len(sentences[index])))
            words_done += sum(len(sentences[index]) for index in batch)
            if on_batch is not None:
                on_batch(words_done, all_words)
        return analyses

    def _analyse_batch(self, sentences: Sequence[Sequence[str]]) -> Iterator[WordAnalysis]:
        """Analyse the words of sentences, the longest first; one sentence after the other."""
        forms = [[truncate(form) for form in sentence] for sentence in sentences]
        words = [form for sentence in forms for form in sentence]
        rows = self._forms.look_up(words)
        lengths = [len(sentence) for sentence in forms]
        tags = self._tag(rows, forms, PackedSentences(lengths, device=self._device))
        lemmas = self._lemmatize(forms, tags)
        arcs = self._attach(rows, tags, lemmas, forms)
        originals = (form for sentence in sentences for form in sentence)
        for form, tag, lemma, (head, relation) in zip(originals, tags, lemmas, arcs, strict=True):
            yield WordAnalysis(
                _or_none(tag.upos), _or_none(tag.xpos), _or_none(tag.feats), restore_lemma(lemma, form), head, relation
            )

    def _tag(self, rows: NDArray[np.int64], sentences: Sequence[Sequence[str]], layout: PackedSentences) -> list[_Tag]:
        """Return the tags of each word."""
        found = self._tagger.tag(self._forms.vectors(0, rows[layout.source]), sentences, layout)
        numbers = found.to(torch.int32).cpu().numpy()[layout.row]
        width, raw = numbers.itemsize * numbers.shape[1], numbers.tobytes()
        return [self._tag_of(raw[start : start + width]) for start in range(0, len(raw), width)]

    def _tag_of_numbers(self, numbers: bytes) -> _Tag:
        """Return the tag whose numbers in the tagger's columns are given."""
        left = np.frombuffer(numbers, dtype=np.int32).tolist()
        names = []
        for column, parts in zip(_TAG_COLUMNS, self._tag_parts, strict=True):
            part, left = left[: parts or 1], left[parts or 1 :]
            names.append(self._tag_vocabularies[column].id2unit(part if parts else part[0]))
        vocabularies = self._nlp.processors["depparse"].vocab
        xpos = vocabularies["xpos"].unit2id(names[1])
        numbers_of_xpos = xpos if isinstance(xpos, list) else [xpos]
        return _Tag(names[0], names[1], names[2], (vocabularies["upos"].unit2id(names[0]), *numbers_of_xpos))

    def _lemmatize(self, sentences: Sequence[Sequence[str]], tags: Sequence[_Tag]) -> list[str]:
        """Return each word's lemma, ``_`` where there is none."""
        processor = self._nlp.processors["lemma"]
        words = [form for sentence in sentences for form in sentence]
        if processor.config.get("dict_only"):
            pairs = [(form, _or_none(tag.upos)) for form, tag in zip(words, tags, strict=True)]
            return [lemma or "_" for lemma in processor.trainer.predict_dict(pairs)]
        fields = (
            {"text": form, "upos": tag.upos, "xpos": tag.xpos, "feats": tag.feats}
            for form, tag in zip(words, tags, strict=True)
        )
        document = stanza_document([list(islice(fields, len(sentence))) for sentence in sentences])
        return [word.lemma or "_" for found in processor.process(document).sentences for word in found.words]

    def _attach(
        self,
        rows: NDArray[np.int64],
        tags: Sequence[_Tag],
        lemmas: Sequence[str],
        sentences: Sequence[Sequence[str]],
    ) -> list[tuple[int, str]]:
        """Return head and relation of each word."""
        from stanza.models.common.vocab import ROOT_ID

        lengths = np.array([len(sentence) for sentence in sentences], dtype=np.int64)
        firsts = np.cumsum(lengths) - lengths
        layout = PackedSentences((1 + lengths).tolist(), device=self._device)
        rows = np.insert(rows, firsts, ROOT_FORM)[layout.source]
        lemma_numbers = np.insert(list(map(self._lemma_number, lemmas)), firsts, ROOT_ID)[layout.source]
        tag_numbers = np.insert([tag.numbers for tag in tags], firsts, ROOT_ID, axis=0)[layout.source]
        heads, relations = self._parser.attach(
            self._forms.vectors(1, rows), lemma_numbers, tag_numbers, sentences, layout
        )
        is_word = np.ones(len(rows), dtype=np.bool_)
        is_word[np.cumsum(layout.lengths) - layout.lengths] = False
        words = layout.row[is_word]
        names = self._nlp.processors["depparse"].vocab["deprel"].unmap(relations[words].tolist())
        return list(zip(heads[words].tolist(), names, strict=True))


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


def _number_of_parts(vocabulary: Any) -> int | None:
    """Return of how many numbers a tag of a vocabulary consists; None if it is a number itself."""
    from stanza.models.common.vocab import CompositeVocab

    return len(vocabulary.lens()) if isinstance(vocabulary, CompositeVocab) else None
