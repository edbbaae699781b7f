"""A gold corpus with the trees of a parser, as CoNLL-U that ``concord.pipeline.corpora.conllu`` reads.

The first comments say which parser the trees are of and which file they were made from, so that the work is not done
twice and a tagger can be told whose trees it learns from.
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
    """Write a corpus in one step, over whatever bears its name; ``.gz`` and ``.zst`` are packed by name.

    Args:
        analyses: of every sentence, through all documents.
        parser: its signature.
        source: sha256, in hex, of the file that the documents were read from.

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
            for number, (word, label, found) in enumerate(rows, start=1):
                yield conllu_row(
                    number,
                    word,
                    lemma=found.lemma,
                    upos=found.upos or "X",
                    xpos=found.xpos,
                    feats=found.feats,
                    head=found.head,
                    deprel=found.deprel,
                    misc=f"{ENTITY_KEY}={label}" if label != OUTSIDE else None,
                )
            yield ""
