"""Writer of a gold corpus with the trees of a parser, as CoNLL-U.

The first comments name the parser and the source file, so that a corpus is not parsed twice and a tagger records whose
trees it was trained on.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from concord.models.data.sentence import Sentence
from concord.models.labels import OUTSIDE
from concord.pipeline.corpora.conllu import ENTITY_KEY, PARSER_KEY, SOURCE_KEY, conllu_row
from concord.pipeline.parsing.stanza_plain import WordAnalysis
from concord.pipeline.storage.compressed import write_compressed

SUFFIXES = (".conllu", ".conllu.gz", ".conllu.zst")


def write_parsed_corpus(
    path: Path,
    documents: Sequence[Sequence[Sentence]],
    analyses: Sequence[Sequence[WordAnalysis]],
    *,
    parser: str,
    source: str,
) -> None:
    """Atomically write a corpus, replacing any existing file; ``.gz`` and ``.zst`` are compressed.

    Args:
        analyses: one for each sentence of all documents, in order.
        parser: its signature.
        source: SHA-256, in hex, of the file that the documents were read from.

    Raises:
        StoreError: when there is no space.
    """
    lines = [f"# {PARSER_KEY} = {parser}", f"# {SOURCE_KEY} = {source}", *_lines(documents, iter(analyses))]
    write_compressed(path, (f"{line}\n" for line in lines))


def _lines(documents: Sequence[Sequence[Sentence]], analyses: Iterator[Sequence[WordAnalysis]]) -> Iterator[str]:
    for document in documents:
        yield "# newdoc"
        for sentence in document:
            labels = sentence.labels or (OUTSIDE,) * len(sentence.words)
            rows = zip(sentence.words, labels, next(analyses), strict=True)
            for number, (word, label, analysis) in enumerate(rows, start=1):
                yield conllu_row(
                    number,
                    word,
                    lemma=analysis.lemma,
                    upos=analysis.upos or "X",
                    xpos=analysis.xpos,
                    feats=analysis.feats,
                    head=analysis.head,
                    deprel=analysis.deprel,
                    misc=f"{ENTITY_KEY}={label}" if label != OUTSIDE else None,
                )
            yield ""
