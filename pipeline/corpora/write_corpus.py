"""Writers of gold corpora as CoNLL-U or two columns, which ``read_corpus`` recognizes by the file name.

They write what taggers use: documents, words, labels, trees and parts of speech; no lemmas, features or comments.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from concord.models.data.sentence import Sentence
from concord.models.labels import OUTSIDE
from concord.pipeline.corpora.conll import DOCUMENT_START
from concord.pipeline.corpora.conllu import ENTITY_KEY, PARSER_KEY, SOURCE_KEY, conllu_row
from concord.pipeline.corpora.corpus_format import UNKNOWN_LABEL
from concord.pipeline.corpora.read_corpus import GoldDocument
from concord.pipeline.parsing.stanza_plain import WordAnalysis
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
) -> None:
    """Atomically write a corpus, replacing any existing file; ``.gz`` and ``.zst`` are compressed.

    Args:
        label_column: for CoNLL-U: ``upos``, ``xpos`` or a key of MISC, where every word's label is written; None for
            entities, which are written as ``NER=`` only for their own words.
        header: for CoNLL-U: comments at the start of the file.
    """
    lines = _columns(documents) if form == "conll" else _conllu(documents, label_column, header or {})
    write_compressed(path, (f"{line}\n" for line in lines))


def write_parsed_corpus(
    path: Path,
    documents: Sequence[Sequence[Sentence]],
    analyses: Sequence[Sequence[WordAnalysis]],
    *,
    parser: str,
    source: str,
) -> None:
    """Atomically write a corpus with the trees of a parser as CoNLL-U, replacing any existing file.

    The first comments name the parser and the source file, so that a corpus is not parsed twice and a tagger records
    whose trees it was trained on.

    Args:
        analyses: one for each sentence of all documents, in order.
        parser: its signature.
        source: SHA-256, in hex, of the file that the documents were read from.
    """
    lines = [f"# {PARSER_KEY} = {parser}", f"# {SOURCE_KEY} = {source}", *_parsed_lines(documents, iter(analyses))]
    write_compressed(path, (f"{line}\n" for line in lines))


def _columns(documents: Iterable[GoldDocument]) -> Iterator[str]:
    for document in documents:
        if document.name is not None:
            yield f"{DOCUMENT_START}\t{document.name}" if document.name else DOCUMENT_START
            yield ""
        for sentence in document.sentences:
            yield from (f"{word}\t{label}" for word, label in zip(sentence.words, _labels(sentence), strict=True))
            yield ""


def _conllu(documents: Iterable[GoldDocument], label_column: str | None, header: Mapping[str, str]) -> Iterator[str]:
    yield from (f"# {key} = {value}" for key, value in header.items())
    for document in documents:
        if document.name is not None:
            yield f"# newdoc id = {document.name}" if document.name else "# newdoc"
        for sentence in document.sentences:
            yield from _rows(sentence, label_column)
            yield ""


def _rows(sentence: Sentence, label_column: str | None) -> Iterator[str]:
    for index, (word, label) in enumerate(zip(sentence.words, _labels(sentence), strict=True)):
        upos = sentence.tags[index] if sentence.tags is not None else None
        head = sentence.heads[index] if sentence.heads is not None else None
        deprel = sentence.relations[index] if sentence.relations is not None else None
        xpos, misc = None, None
        if label_column == "upos":
            upos = label
        elif label_column == "xpos":
            xpos = label
        elif label_column is not None or label != OUTSIDE:
            misc = f"{label_column or ENTITY_KEY}={label}"
        yield conllu_row(index + 1, word, upos=upos, xpos=xpos, head=head, deprel=deprel, misc=misc)


def _labels(sentence: Sentence) -> Sequence[str]:
    """Return the gold labels of a sentence as they are written."""
    labels = sentence.labels or ()
    if sentence.known is None:
        return labels
    return [label if known else UNKNOWN_LABEL for label, known in zip(labels, sentence.known, strict=True)]


def _parsed_lines(documents: Sequence[Sequence[Sentence]], analyses: Iterator[Sequence[WordAnalysis]]) -> Iterator[str]:
    for document in documents:
        yield "# newdoc"
        for sentence in document:
            labels = _labels(sentence) or (OUTSIDE,) * len(sentence.words)
            rows = zip(sentence.words, labels, next(analyses), strict=True)
            for number, (word, label, analysis) in enumerate(rows, start=1):
                fields = analysis._replace(upos=analysis.upos or "X")._asdict()
                misc = f"{ENTITY_KEY}={label}" if label != OUTSIDE else None
                yield conllu_row(number, word, **fields, misc=misc)
            yield ""
