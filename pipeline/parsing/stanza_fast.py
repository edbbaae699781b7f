"""Run the networks of Stanza 1.15 with our own batches: the output of ``PlainStanza`` at a multiple of its speed.

Paragraphs and sentences of all documents are sorted by length, and features of characters and word forms come from
tables. Long paragraphs are read in pieces side by side (``stanza_tokenizer``). Tagger and parser run on the same rows
of words without padding (``stanza_networks``), relations are chosen for the best heads only, the tree search stops at
the first proof of the best tree, and addresses are looked for only where one may start. Nothing of Stanza is patched;
for any other package or version ``PlainStanza`` is used.
"""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib.metadata import version
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from concord.models.data.outputs import OnBatch
from concord.pipeline.parsing.packed_sentences import BATCH_WORDS, PackedSentences, length_sorted
from concord.pipeline.parsing.stanza_networks import (
    ROOT_FORM,
    FormTable,
    ParserNetwork,
    TaggerNetwork,
    obstacle_to_networks,
)
from concord.pipeline.parsing.stanza_pipeline import PlainStanza, restore_lemma, stanza_document, truncate
from concord.pipeline.parsing.stanza_tokenizer import TokenizerNetwork
from concord.pipeline.parsing.tokens import (
    BOTH_END,
    SENTENCE_END,
    TOKEN_END,
    Paragraph,
    Token,
    TokenSpan,
    WordAnalysis,
    make_token,
    sentences_of,
    split_paragraphs,
)

_FAST_VERSION = "1.15."
_TAG_COLUMNS = ("upos", "xpos", "feats")

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
    tagger, parser = (getattr(nlp.processors.get(name), "trainer", None) for name in ("pos", "depparse"))
    return obstacle_to_networks(tagger, parser)


class _Tag(NamedTuple):
    """Names of a word's tags, and the numbers of upos and xpos that the parser reads."""

    upos: str | None
    xpos: str | None
    feats: str | None
    numbers: tuple[int, ...]


class FastTokenizer(PlainStanza):
    """The tokenizer of Stanza 1.15 with our own batching, for a pipeline without tagger and parser."""

    def __init__(self, nlp: Any) -> None:
        super().__init__(nlp)
        for processor in nlp.processors.values():
            network = getattr(processor.trainer, "model", None)
            if network is not None:
                network.eval()
        self._device = torch.device(nlp.device)
        self._tokenizer = TokenizerNetwork(nlp.processors["tokenize"].trainer, self._device)

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
        """Label every character; see ``tokens`` for the labels."""
        labels = self._tokenizer.label(paragraphs, on_batch)
        for paragraph, row in zip(paragraphs, labels, strict=True):
            row[-1] = BOTH_END if row[-1] > SENTENCE_END else SENTENCE_END
            # Each e-mail and web address is one token, as Stanza makes it after its network.
            for start, end in find_addresses(paragraph.characters):
                row[start : end - 1] = 0
                row[end - 1] = max(row[end - 1], TOKEN_END)
        return labels

    def _expand(self, spans: Sequence[TokenSpan]) -> dict[str, list[str]]:
        """Return the words of each text that is marked as a multi-word token."""
        texts = sorted({span.text for span in spans if span.is_multi_word})
        if not texts or "mwt" not in self._nlp.processors:
            return {}
        document = stanza_document([[{"text": text, "misc": "MWT=Yes"} for text in texts]])
        tokens = self._nlp.processors["mwt"].process(document).sentences[0].tokens
        return {text: [word.text for word in token.words] for text, token in zip(texts, tokens, strict=True)}


class FastStanza(FastTokenizer):
    """The networks of Stanza 1.15 with our own batching, features and tree search; the parser only if it is loaded."""

    def __init__(self, nlp: Any) -> None:
        super().__init__(nlp)
        self._batch_words = BATCH_WORDS[self._device.type]
        self._tagger = TaggerNetwork(nlp.processors["pos"], self._device)
        self._parser: ParserNetwork | None = None
        readers: list[TaggerNetwork | ParserNetwork] = [self._tagger]
        if "depparse" in nlp.processors:
            self._parser = ParserNetwork(nlp.processors["depparse"], self._device)
            readers.append(self._parser)
            self._lemma_number = lru_cache(maxsize=1 << 16)(nlp.processors["depparse"].vocab["lemma"].unit2id)
        with torch.inference_mode():
            self._forms = FormTable(readers)
        self._tag_vocabularies = nlp.processors["pos"].vocab
        self._tag_parts = [_number_of_parts(self._tag_vocabularies[name]) for name in _TAG_COLUMNS]
        # English has a few hundred tags with features; the bound is for texts that provoke more.
        self._tag_of = lru_cache(maxsize=1 << 16)(self._tag_of_numbers)
        self._lemma_of = lru_cache(maxsize=1 << 16)(self._lemma_in_dictionary)

    @override
    def analyse(
        self, sentences: Sequence[Sequence[str]], *, on_batch: OnBatch | None = None
    ) -> list[list[WordAnalysis]]:
        self._forms.clear()
        analyses: list[list[WordAnalysis]] = [[] for _ in sentences]
        words_done, all_words = 0, sum(map(len, sentences))
        for batch in length_sorted(sentences, batch_words=self._batch_words):
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
            yield WordAnalysis(restore_lemma(lemma, form), tag.upos, tag.xpos, tag.feats, head, relation)

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
        upos, xpos, feats = (None if name == "_" else name for name in names)
        if self._parser is None:
            return _Tag(upos, xpos, feats, ())
        vocabularies = self._nlp.processors["depparse"].vocab
        number = vocabularies["xpos"].unit2id(names[1])
        numbers_of_xpos = number if isinstance(number, list) else [number]
        return _Tag(upos, xpos, feats, (vocabularies["upos"].unit2id(names[0]), *numbers_of_xpos))

    def _lemma_in_dictionary(self, form: str, upos: str | None) -> str:
        [lemma] = self._nlp.processors["lemma"].trainer.predict_dict([(form, upos)])
        return lemma or "_"

    def _lemmatize(self, sentences: Sequence[Sequence[str]], tags: Sequence[_Tag]) -> list[str]:
        """Return each word's lemma, ``_`` where there is none."""
        processor = self._nlp.processors["lemma"]
        words = [form for sentence in sentences for form in sentence]
        if processor.config.get("dict_only"):
            return [self._lemma_of(form, tag.upos) for form, tag in zip(words, tags, strict=True)]
        fields = (
            {"text": form, "upos": tag.upos or "_", "xpos": tag.xpos or "_", "feats": tag.feats or "_"}
            for form, tag in zip(words, tags, strict=True)
        )
        document = stanza_document([list(islice(fields, len(sentence))) for sentence in sentences])
        return [word.lemma or "_" for found in processor.process(document).sentences for word in found.words]

    def _attach(
        self, rows: NDArray[np.int64], tags: Sequence[_Tag], lemmas: Sequence[str], sentences: Sequence[Sequence[str]]
    ) -> list[tuple[int | None, str | None]]:
        """Return head and relation of each word, if the parser is loaded."""
        if self._parser is None:
            return [(None, None)] * len(rows)
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


def find_addresses(characters: str) -> Iterator[tuple[int, int]]:
    """Find what Stanza's expression for addresses matches, without its quadratic time."""
    if not _ADDRESS_MARK.search(characters):
        return
    from stanza.models.tokenization.utils import MASK_RE

    # What is before the @ of an address may be in quotation marks.
    start = _ADDRESS_START + ('|(?=")' if '"@' in characters else "")
    search = re.compile(f"(?:{start})(?:{MASK_RE.pattern})").search
    match = search(characters)
    while match is not None:
        yield match.span()
        end = match.end()
        match = MASK_RE.match(characters, end) or MASK_RE.match(characters, end + 1) or search(characters, end + 2)


def _number_of_parts(vocabulary: Any) -> int | None:
    """Return of how many numbers a tag of a vocabulary consists; None if it is a number itself."""
    from stanza.models.common.vocab import CompositeVocab

    return len(vocabulary.lens()) if isinstance(vocabulary, CompositeVocab) else None
