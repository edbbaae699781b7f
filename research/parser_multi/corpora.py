"""The corpora that ``parser_multi`` is trained on, in a folder that has them.

``treebanks/NAME.dev.conllu``, whose test parts are kept for scores, ``labelled/NAME/train.*``, which have sentences of
tokens and, in EWT, trees, and ``text/NAME.jsonl``; compressed or not.
"""

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import pyarrow as pa

from concord.pipeline.config import ParserConfig
from concord.pipeline.documents import Document
from concord.pipeline.parsing.stanza_parser import StanzaParser
from concord.workflows.corpora import read_corpora
from research.parser_en import raw_text
from research.parser_en.raw_text import Paragraph, split_compounds
from research.parser_multi import texts
from research.parser_multi.labels import MOST_WORDS, language_of
from research.texts import split_texts

EWT = "ewt_uner"
LANGUAGES = ("da", "hr", "pt", "sk", "sr", "sv")
"""Those of Universal NER's corpora."""
TOKENS = ("litbank_prop", "wikigold", "btc")
_PUNCTUATED = TOKENS[:2]
TEXTS = ("us_presidents", "factbook", "gutenberg_chapters")
_NEWSPAPERS = ("europeana_nl", "europeana_fr", "europeana_de_lft", "europeana_de_onb", "europeana_de_sbb")
_WORDS = {"en": 60_000, "newspapers": 10_000, "others": 30_000}
"""How many words of each corpus are labelled, about."""
_TOKENIZER_WORDS, _MOST_TIMES = 120_000, 6
"""The tokenizer reads about so many words of each language but English, small treebanks up to six times."""
_LONGEST_TEXT = 4_000
_TEXTS_AT_ONCE = 8
_PIECE = 30
"""Sentences."""

Words = tuple[str, ...]


def treebanks(corpora: Path, part: str = "dev") -> list[Path]:
    """Return the files of all treebanks but EWT, in order of their names."""
    return sorted((corpora / "treebanks").glob(f"*.{part}.conllu*"))


def labelled(corpora: Path, name: str, part: str = "train") -> Path:
    """Return the file of a labelled corpus."""
    return next((corpora / "labelled" / name).glob(f"{part}.con*"))


def documents_to_label(corpora: Path) -> Iterator[tuple[str, str, list[list[Words]]]]:
    """Yield names, languages and documents of sentences for the teacher."""
    for name in TEXTS:
        path = next((corpora / "text").glob(f"{name}.jsonl*"))
        yield name, "en", list(_first(_split(path), _WORDS["en"]))
    for name in TOKENS:
        documents = [[split_compounds(words) for words in one] for one in _tokens(corpora, name)]
        yield name, "en", list(_first(documents, _WORDS["en"]))
    for language in LANGUAGES:
        yield f"uner_{language}", language, list(_first(_tokens(corpora, f"uner_{language}"), _WORDS["others"]))
    for name in _NEWSPAPERS:
        language = name.split("_")[1]
        yield name, language, list(_first(_tokens(corpora, name), _WORDS["newspapers"]))


def tokenizer_texts(corpora: Path, part: str, draw: random.Random) -> list[Paragraph]:
    """Return what the tokenizer is trained on; of another part than "train", the paragraphs of EWT."""
    ewt = labelled(corpora, EWT, part)
    paragraphs = list(raw_text.read_paragraphs(ewt, split=True))
    if part != "train":
        return paragraphs
    found = paragraphs * 2
    found += raw_text.merged(raw_text.read_documents(ewt, split=True), draw)
    files = [str(labelled(corpora, name)) for name in _PUNCTUATED]
    for document in read_corpora(files, labels={}):
        found += raw_text.joined((sentence.words for sentence in document), draw)
    found += texts.runs(ewt, draw)
    for path in [*(labelled(corpora, f"uner_{language}") for language in LANGUAGES), *treebanks(corpora)]:
        words = sum(len(sentence) for paragraph in texts.runs(path, random.Random(1)) for sentence in paragraph)
        times = min(_MOST_TIMES, max(1, round(_TOKENIZER_WORDS / words)))
        own = [paragraph for _ in range(times) for paragraph in texts.runs(path, draw)]
        if path.parent.name == "uner_pt":
            own = [texts.contracted(one) if draw.random() < 0.9 else one for one in own]
        if language_of(path) == "sr":
            own = [texts.in_cyrillic(one) if draw.random() < 0.5 else one for one in own]
        found += own
    return found


def _tokens(corpora: Path, name: str) -> list[list[Words]]:
    """Read sentences of words in pieces of documents, in any order, whatever their labels."""
    documents = [
        [one.words for one in document] for document in read_corpora([str(labelled(corpora, name))], labels={})
    ]
    if max(map(len, documents)) == 1:  # the corpus has no documents
        documents = [[words for document in documents for words in document]]
    pieces = [document[first : first + _PIECE] for document in documents for first in range(0, len(document), _PIECE)]
    random.Random(1).shuffle(pieces)
    return pieces


def _first(documents: Iterable[Sequence[Words]], most: int) -> Iterator[list[Words]]:
    """Yield documents of distinct sentences that can be labelled, until there are so many words."""
    seen: set[Words] = set()
    total = 0
    for document in documents:
        kept = [words for words in document if 0 < len(words) <= MOST_WORDS and words not in seen]
        seen.update(kept)
        total += sum(map(len, kept))
        if kept:
            yield kept
        if total >= most:
            return


def _split(path: Path) -> Iterator[list[Words]]:
    """Split the first characters of texts, drawn at random, into sentences of words."""
    parser = StanzaParser(ParserConfig(trees=False, tags=False))
    lines = pa.input_stream(str(path)).read().decode().splitlines()
    texts = [json.loads(line)["text"][:_LONGEST_TEXT] for line in lines]
    random.Random(1).shuffle(texts)
    rest = iter(texts)
    while part := list(islice(rest, _TEXTS_AT_ONCE)):
        documents = [
            Document(doc_id=str(n), text=t, source_uri=str(path), source_position=n) for n, t in enumerate(part)
        ]
        yield from split_texts(parser, documents)
