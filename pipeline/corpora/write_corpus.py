"""Gold corpora in the two forms that ``corpora.read_corpus`` reads by their names: CoNLL-U and two columns.

What a tagger reads is written: words, labels, trees, parts of speech, documents. Lemmas, features and comments are not.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

from concord.models.data.sentence import Sentence
from concord.models.labels import OUTSIDE
from concord.pipeline.corpora.conll import DOCUMENT_START
from concord.pipeline.corpora.conllu import ENTITY_KEY, conllu_row
from concord.pipeline.corpora.read_corpus import GoldDocument
from concord.pipeline.storage.compressed import write_compressed

GoldForm = Literal["conll", "conllu"]


def write_gold(
    path: Path,
    documents: Iterable[GoldDocument],
    *,
    form: GoldForm,
    label_column: str | None = None,
    header: Mapping[str, str] | None = None,
) -> None:
    """Write a corpus in one step, over whatever bears its name.

    Args:
        label_column: of CoNLL-U: ``upos``, ``xpos`` or a key of MISC, under which every word's label is written; None
            for entities, which stand as ``NER=`` where there is one.
        header: comments of CoNLL-U at the head of the file.

    Raises:
        StoreError: when there is no space.
    """
    if form == "conll":
        lines = _columns(documents)
    else:
        lines = _conllu(documents, label_column, header or {})
    write_compressed(path, (f"{line}\n" for line in lines))


def _columns(documents: Iterable[GoldDocument]) -> Iterator[str]:
    for document in documents:
        if document.name is not None:
            yield f"{DOCUMENT_START}\t{document.name}" if document.name else DOCUMENT_START
            yield ""
        for sentence in document.sentences:
            yield from (f"{word}\t{label}" for word, label in zip(sentence.words, sentence.labels or (), strict=True))
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
    for index, (word, label) in enumerate(zip(sentence.words, sentence.labels or (), strict=True)):
        upos = sentence.tags[index] if sentence.tags is not None else None
        xpos, misc = None, None
        if label_column == "upos":
            upos = label
        elif label_column == "xpos":
            xpos = label
        elif label_column is not None or label != OUTSIDE:
            misc = f"{label_column or ENTITY_KEY}={label}"
        yield conllu_row(
            index + 1,
            word,
            upos=upos,
            xpos=xpos,
            head=sentence.heads[index] if sentence.heads is not None else None,
            deprel=sentence.relations[index] if sentence.relations is not None else None,
            misc=misc,
        )
