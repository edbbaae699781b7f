"""Writers of gold corpora as CoNLL-U or two columns, which ``read_corpus`` recognizes by the file name.

They write what taggers use: documents, words, labels, trees and parts of speech; no comments, and no lemmas or features
but those of a parser.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any, Literal

from concord.models.data.sentence import Sentence
from concord.models.labels import OUTSIDE
from concord.pipeline.corpora.conll import DOCUMENT_START
from concord.pipeline.corpora.conllu import ENTITY_KEY, conllu_row
from concord.pipeline.corpora.corpus_format import TAG_COLUMNS, UNKNOWN_LABEL
from concord.pipeline.corpora.read_corpus import GoldDocument
from concord.pipeline.parsing.tokens import WordAnalysis
from concord.pipeline.storage.atomic_writes import write_compressed

GoldForm = Literal["conll", "conllu"]

PARSED_SUFFIXES = (".conllu", ".conllu.gz", ".conllu.zst")
"""Names of corpora with the trees of a parser."""


def write_gold(
    path: Path,
    documents: Iterable[GoldDocument],
    *,
    form: GoldForm,
    label_column: str | None = None,
    header: Mapping[str, str] | None = None,
    analyses: Iterable[Sequence[WordAnalysis]] | None = None,
) -> None:
    """Atomically write a corpus, replacing any existing file; ``.gz`` and ``.zst`` are compressed.

    Args:
        label_column: for CoNLL-U: ``upos``, ``xpos`` or a key of MISC, where every word's label is written; None for
            entities, which are written as ``NER=`` only for their own words.
        header: for CoNLL-U: comments at the start of the file, by key; those of ``conllu.read_header`` say whose trees
            it has, so that it is not parsed twice and a tagger records whose trees it was trained on.
        analyses: for CoNLL-U: the output of a parser for each sentence of all documents, in order, which replaces
            their trees and parts of speech; None keeps these.
    """
    if form == "conll":
        lines = _columns(documents)
    else:
        lines = _conllu(documents, label_column, header or {}, iter(repeat(None) if analyses is None else analyses))
    write_compressed(path, (f"{line}\n" for line in lines))


def _columns(documents: Iterable[GoldDocument]) -> Iterator[str]:
    for document in documents:
        if document.name is not None:
            yield f"{DOCUMENT_START}\t{document.name}" if document.name else DOCUMENT_START
            yield ""
        for sentence in document.sentences:
            yield from (f"{word}\t{label}" for word, label in zip(sentence.words, _labels(sentence), strict=True))
            yield ""


def _conllu(
    documents: Iterable[GoldDocument],
    label_column: str | None,
    header: Mapping[str, str],
    analyses: Iterator[Sequence[WordAnalysis] | None],
) -> Iterator[str]:
    yield from (f"# {key} = {value}" for key, value in header.items())
    for document in documents:
        if document.name is not None:
            yield f"# newdoc id = {document.name}" if document.name else "# newdoc"
        for sentence in document.sentences:
            yield from _rows(sentence, label_column, next(analyses))
            yield ""


def _rows(sentence: Sentence, label_column: str | None, analyses: Sequence[WordAnalysis] | None) -> Iterator[str]:
    cells: list[dict[str, Any]]
    if analyses is None:
        absent = (None,) * len(sentence.words)
        gold = zip(sentence.tags or absent, sentence.heads or absent, sentence.relations or absent, strict=True)
        cells = [{"upos": tag, "head": head, "deprel": relation} for tag, head, relation in gold]
    else:
        cells = [analysis._asdict() | {"upos": analysis.upos or "X"} for analysis in analyses]
    rows = zip(sentence.words, _labels(sentence), cells, strict=True)
    for number, (word, label, fields) in enumerate(rows, start=1):
        if label_column in TAG_COLUMNS:
            fields[label_column] = label
        elif label_column is not None or label != OUTSIDE:
            fields["misc"] = f"{label_column or ENTITY_KEY}={label}"
        yield conllu_row(number, word, **fields)


def _labels(sentence: Sentence) -> Sequence[str]:
    """Return the gold labels of a sentence as they are written."""
    labels = sentence.labels or ()
    if sentence.known is None:
        return labels
    return [label if known else UNKNOWN_LABEL for label, known in zip(labels, sentence.known, strict=True)]
