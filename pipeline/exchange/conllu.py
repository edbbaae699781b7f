"""Export to CoNLL-U (https://universaldependencies.org/format.html), and import of its entities.

MISC has the offsets of each token in code points of the raw text, ``SpaceAfter=No``, and the entity label in BIO2 as
``NER``. ``# text`` is the text of the rows, with one space for any white space. The words of a multi-word token follow
a range.

A piece of an over-long sentence is a sentence with its own root, marked ``# continues = yes``. An entity that crosses
the boundary between two pieces begins again in the second, so that every sentence is valid BIO2; its word there has
``NERContinues=Yes``.

An edited file may have other labels in ``NER``, in BIO2, but no other words, and must have the offsets.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from urllib.parse import unquote

from concord.models.labels import OUTSIDE
from concord.pipeline.corpora.conll import COLUMNS, ENTITY_KEY, conllu_row, misc_values
from concord.pipeline.corpora.corpus_format import looks_like_label, numbered_lines
from concord.pipeline.errors import InputError
from concord.pipeline.exchange.items import AnnotatedPassage, AnnotatedSpan, ExportItem, percent_encode
from concord.pipeline.output.collection import CollectedDocument, SentenceRow, TokenRow, group_words
from concord.pipeline.storage.atomic_writes import write_compressed

_NEW_DOCUMENT = "# newdoc id ="
_CONTINUES = "# continues = yes"
_WHITE_SPACE = re.compile(r"\s+")


def write_conllu(path: Path, items: Iterable[ExportItem]) -> None:
    """Atomically write documents, replacing any existing file; ``.gz`` and ``.zst`` are compressed.

    Ids are percent-encoded. Items need no text, but at least one sentence each: the format cannot represent a document
    without words.
    """
    write_compressed(path, (f"{line}\n" for item in items for line in _lines(item.document)))


def _lines(document: CollectedDocument) -> Iterator[str]:
    doc_id = document.row.doc_id
    yield f"{_NEW_DOCUMENT} {percent_encode(doc_id)}"
    following = chain((sentence.start_char for sentence in document.sentences[1:]), (None,))
    for sentence, next_start in zip(document.sentences, following, strict=True):
        # A slash has a special meaning in sentence ids.
        yield f"# sent_id = {percent_encode(doc_id, also='/')}-{sentence.sent_id}"
        if sentence.continues:
            yield _CONTINUES
        yield from _sentence_lines(sentence, next_start)
        yield ""


def _sentence_lines(sentence: SentenceRow, next_start: int | None) -> Iterator[str]:
    tokens = group_words(sentence)
    starts = [*(words[0].start_char for words in tokens[1:]), next_start]
    spaced = [start != words[0].end_char for words, start in zip(tokens, starts, strict=True)]
    forms = list(map(_token_form, tokens))
    text = "".join(f"{form} " if space else form for form, space in zip(forms, spaced, strict=True))
    yield f"# text = {text.rstrip(' ')}"
    for words, form, space in zip(tokens, forms, spaced, strict=True):
        yield from _token_lines(words, form, is_spaced=space)


def _token_form(words: Sequence[TokenRow]) -> str:
    return _single_spaced(words[0].word if len(words) == 1 else words[0].text)


def _single_spaced(text: str) -> str:
    return _WHITE_SPACE.sub(" ", text)


def _token_lines(words: Sequence[TokenRow], form: str, *, is_spaced: bool) -> Iterator[str]:
    offsets = [f"start_char={words[0].start_char}", f"end_char={words[0].end_char}"]
    offsets += [] if is_spaced else ["SpaceAfter=No"]
    if len(words) > 1:
        yield conllu_row(f"{words[0].token_id}-{words[-1].token_id}", form, misc="|".join(offsets))
    for word in words:
        misc = (offsets if len(words) == 1 else []) + _entity_fields(word)
        yield conllu_row(
            word.token_id,
            _single_spaced(word.word),
            lemma=None if word.lemma is None else _single_spaced(word.lemma),
            upos=word.upos,
            xpos=word.xpos,
            feats=word.feats,
            head=word.head,
            deprel=word.deprel,
            misc="|".join(misc),
        )


def _entity_fields(word: TokenRow) -> list[str]:
    if word.ner == OUTSIDE:
        return []
    prefix, _, label = word.ner.partition("-")
    if prefix == "I" and word.token_id == 1:
        return [f"{ENTITY_KEY}=B-{label}", f"{ENTITY_KEY}Continues=Yes"]
    return [f"{ENTITY_KEY}={word.ner}"]


def token_forms(document: CollectedDocument) -> dict[tuple[int, int], str]:
    """Return the tokens of a document as they are exported, by their offsets."""
    tokens = [words for sentence in document.sentences for words in group_words(sentence)]
    return {(words[0].start_char, words[0].end_char): _token_form(words) for words in tokens}


@dataclass
class _Document:
    """A document as far as it is read.

    Attributes:
        is_open: whether the next word may continue the last entity.
        shared: the words of a range, which have its offsets.
    """

    doc_id: str
    where: str
    spans: list[AnnotatedSpan] = field(default_factory=list)
    forms: dict[tuple[int, int], str] = field(default_factory=dict)
    is_open: bool = False
    shared: range = range(0)
    offsets: tuple[int, int] = (0, 0)

    def passage(self) -> AnnotatedPassage:
        """Return the document as it is read."""
        return AnnotatedPassage(where=self.where, doc_id=self.doc_id, spans=tuple(self.spans), forms=self.forms)


def read_conllu(path: Path) -> Iterator[AnnotatedPassage]:
    """Yield the documents of a file, which may lack sentences; ``.gz`` and ``.zst`` files are decompressed.

    Raises:
        InputError: when the file cannot be read or a word is in no document.
    """
    document: _Document | None = None
    is_first = continues = False
    for number, line in numbered_lines(path):
        where = f"{path}: line {number}"
        if line.startswith(_NEW_DOCUMENT):
            if document is not None:
                yield document.passage()
            document = _Document(unquote(line.removeprefix(_NEW_DOCUMENT).removeprefix(" ")), where)
        elif not line:
            is_first, continues = True, False
        elif line.startswith("#"):
            continues = continues or line == _CONTINUES
        elif document is None:
            raise InputError(f"{where}: expected '{_NEW_DOCUMENT}...' before the first word")
        else:
            if is_first:
                document.is_open = document.is_open and continues
                document.shared = range(0)
            is_first = False
            try:
                _read_row(document, line, where)
            except ValueError as error:
                document.spans.append(AnnotatedSpan(*document.offsets, "", where, str(error)))
                document.is_open = False
    if document is not None:
        yield document.passage()


def _read_row(document: _Document, line: str, where: str) -> None:
    """Add a row to its document; raise a ValueError if it, or its label at the offsets of the document, cannot be."""
    columns = line.split("\t")
    first, dash, last = columns[0].partition("-")
    is_shared = first.isdecimal() and int(first) in document.shared
    document.offsets = document.offsets if is_shared else (0, 0)
    if len(columns) != COLUMNS:
        raise ValueError(f"expected {COLUMNS} columns separated by tabs, got {len(columns)}")
    if not (first.isdecimal() and (last.isdecimal() or not dash)):
        raise ValueError(f"expected the number of a word, or a range of numbers, got {columns[0]!r}")
    misc = misc_values(columns[-1])
    if not is_shared:
        start, end = misc.get("start_char", ""), misc.get("end_char", "")
        if not (start.isdecimal() and end.isdecimal()):
            raise ValueError("expected start_char and end_char in MISC, as 'concord export --to conllu' writes them")
        document.offsets = int(start), int(end)
        document.forms[document.offsets] = columns[1]
    if dash:
        document.shared = range(int(first), int(last) + 1)
    label = misc.get(ENTITY_KEY, OUTSIDE)
    others = [f"{key}={value}" for key, value in misc.items() if looks_like_label(key, value)]
    if others and ENTITY_KEY not in misc:
        raise ValueError(f"expected labels as {ENTITY_KEY}=, got {others[0]}")
    if not dash:
        _add_label(document, label, where, continues=f"{ENTITY_KEY}Continues" in misc)
    elif label != OUTSIDE:
        raise ValueError(f"expected labels at the words of a range, got {ENTITY_KEY}={label} at the range")


def _add_label(document: _Document, label: str, where: str, *, continues: bool) -> None:
    prefix, _, kind = label.partition("-")
    goes_on = prefix == "I" or continues
    if label == OUTSIDE:
        document.is_open = False
    elif goes_on and document.is_open and document.spans[-1].type == kind:
        document.spans[-1] = document.spans[-1]._replace(end=document.offsets[1])
    elif prefix == "B" and kind:
        document.spans.append(AnnotatedSpan(*document.offsets, kind, where))
        document.is_open = True
    else:
        raise ValueError(f"expected O, B- with a type, or I- after the same type, got {ENTITY_KEY}={label}")
