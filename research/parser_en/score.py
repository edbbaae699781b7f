"""Score a parser on the raw text of treebanks, by the scorer of the CoNLL 2018 shared task, which Stanza uses.

Tokens are scored by ``tokenizer.scores_of``: what is parsed has words alone.
"""

import io
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from pathlib import Path

import pyarrow as pa
from stanza.models.common.utils import ud_scores

from concord.pipeline.config import ParserConfig
from concord.pipeline.documents import Document, ParsedDocument, ParsedWord
from concord.pipeline.parsing.parser import Parser
from concord.pipeline.parsing.resolve_parser import load_parser
from research.parser_en.conllu import read_sentences
from research.parser_en.raw_text import labelled, read_documents

_FIRST_COLUMN = ParsedWord._fields.index("word")
_METRICS = ("Sentences", "Words", "UPOS", "XPOS", "UFeats", "UAS", "LAS")


def score(config: ParserConfig, treebanks: Sequence[Path]) -> dict[str, dict[str, float]]:
    """Return F1 of each metric in percent, by treebank; paragraphs are separated by empty lines."""
    parser = load_parser(config)
    return {score_name(path): _score(parser, path) for path in treebanks}


def score_name(treebank: Path) -> str:
    """Return the name of a treebank among scores."""
    return f"{treebank.parent.name}/{treebank.name}"


def score_words(config: ParserConfig, treebanks: Sequence[Path]) -> dict[str, dict[str, float]]:
    """Return the accuracy of each metric in percent, by treebank, on gold words, each sentence by itself."""
    parser = load_parser(config)
    found = {}
    for path in treebanks:
        gold = list(read_sentences(path))
        rows = [row for sentence in gold for row in zip(*sentence[1:6], strict=True)]
        parsed = parser.parse_words([sentence.words for sentence in gold])
        right: Counter[str] = Counter()
        for (upos, _, feats, head, relation), word in zip(rows, chain.from_iterable(parsed), strict=True):
            attached = word.head == head
            right.update(UPOS=word.upos == upos, UFeats=(word.feats or "_") == feats, UAS=attached)
            right.update(LAS=attached and (word.deprel or "").split(":")[0] == relation.split(":")[0])
        found[score_name(path)] = {name: round(100 * n / len(rows), 2) for name, n in right.items()}
    return found


def _score(parser: Parser, path: Path) -> dict[str, float]:
    documents, _ = documents_of(path)
    lines: list[str] = []
    for parsed in parser.parse(documents):
        if not isinstance(parsed, ParsedDocument):
            raise TypeError(parsed.message)
        lines += _lines(parsed)
    gold = pa.input_stream(str(path)).read().decode()
    found = ud_scores(io.StringIO(gold), io.StringIO("\n".join(lines) + "\n"))
    return {name: round(100 * found[name].f1, 2) for name in _METRICS}


def documents_of(path: Path) -> tuple[list[Document], list[set[int]]]:
    """Return the texts of a treebank's documents, and where their sentences end."""
    documents, ends = [], []
    for number, paragraphs in enumerate(read_documents(path)):
        pairs = [labelled(paragraph) for paragraph in paragraphs]
        text = "\n\n".join(text.rstrip() for text, _ in pairs)
        labels = "00".join(labels[: len(text.rstrip())] for text, labels in pairs)
        documents.append(Document(doc_id=str(number), text=text, source_uri=str(path), source_position=number))
        ends.append({1 + place for place, label in enumerate(labels) if label in "24"})
    return documents, ends


def _lines(parsed: ParsedDocument) -> Iterator[str]:
    for sentence in parsed.sentences:
        before = 0
        for (_, _, text), group in groupby(sentence.words, key=lambda word: word[:3]):
            words = list(group)
            if len(words) > 1:
                yield "\t".join([f"{before + 1}-{before + len(words)}", text, *"________"])
            for number, word in enumerate(words, start=before + 1):
                values = (number, *word[_FIRST_COLUMN:], None, None)
                yield "\t".join("_" if value is None else str(value).replace(" ", "\u00a0") for value in values)
            before += len(words)
        yield ""
