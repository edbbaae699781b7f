"""Export to CoNLL-U (https://universaldependencies.org/format.html).

MISC has the offsets of each token in code points of the raw text, ``SpaceAfter=No``, and the entity label in BIO2 as
``NER``. ``# text`` is the text of the rows, with one space for any white space. The words of a multi-word token follow
a range.

A piece of an over-long sentence is a sentence with its own root, marked ``# continues = yes``. An entity that crosses
the boundary between two pieces begins again in the second, so that every sentence is valid BIO2; its word there has
``NERContinues=Yes``.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from concord.models.labels import OUTSIDE
from concord.pipeline.corpora.conllu import ENTITY_KEY, conllu_row
from concord.pipeline.exchange.export_item import ExportItem, percent_encode
from concord.pipeline.output.document_rows import CollectedDocument, CollectedSentence, TokenRow, group_words
from concord.pipeline.storage.atomic_writes import write_compressed

_WHITE_SPACE = re.compile(r"\s+")


def write_conllu(path: Path, items: Iterable[ExportItem]) -> None:
    """Atomically write documents, replacing any existing file; ``.gz`` and ``.zst`` are compressed.

    Ids are percent-encoded. Items need no text, but at least one sentence each: the format cannot represent a document
    without words.
    """
    write_compressed(path, (f"{line}\n" for item in items for line in _lines(item.document)))


def _lines(document: CollectedDocument) -> Iterator[str]:
    doc_id = document.row.doc_id
    yield f"# newdoc id = {percent_encode(doc_id)}"
    following = chain((sentence.row.start_char for sentence in document.sentences[1:]), (None,))
    for sentence, next_start in zip(document.sentences, following, strict=True):
        # A slash has a special meaning in sentence ids.
        yield f"# sent_id = {percent_encode(doc_id, also='/')}-{sentence.row.sent_id}"
        if sentence.row.continues:
            yield "# continues = yes"
        yield from _sentence_lines(sentence, next_start)
        yield ""


def _sentence_lines(sentence: CollectedSentence, next_start: int | None) -> Iterator[str]:
    tokens = group_words(sentence)
    starts = [*(words[0].start_char for words in tokens[1:]), next_start]
    spaced = [start != words[0].end_char for words, start in zip(tokens, starts, strict=True)]
    forms = [_single_spaced(words[0].word if len(words) == 1 else words[0].text) for words in tokens]
    text = "".join(f"{form} " if space else form for form, space in zip(forms, spaced, strict=True))
    yield f"# text = {text.rstrip(' ')}"
    for words, form, space in zip(tokens, forms, spaced, strict=True):
        yield from _token_lines(words, form, is_spaced=space)


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
