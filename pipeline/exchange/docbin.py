"""Export to spaCy's DocBin (https://spacy.io/api/docbin); spaCy is an optional extra.

A Doc's text is the raw text: white space beyond one space between two tokens is a token of its own, as in spaCy's
tokenizer. The words of a multi-word token become one token, annotated like the word that governs the others. The
root of a sentence is ``ROOT``, as spaCy's own parsers write it. Without trees a Doc has sentences, but no heads.
"""

import importlib
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from concord.pipeline.exchange.items import ExportItem, round_float
from concord.pipeline.output.collection import SentenceRow, TokenRow, group_words
from concord.pipeline.storage.atomic_writes import stage_folder, store_errors

SPANS_KEY = "entities"
CONFIDENCE = "confidence"
ROOT = "ROOT"

_ATTRIBUTES = ("ORTH", "TAG", "POS", "MORPH", "LEMMA", "HEAD", "DEP", "SENT_START", "ENT_IOB", "ENT_TYPE")


def write_docbin(folder: Path, items: Iterable[ExportItem], *, part_words: int = 200_000) -> None:
    """Write a new folder of ``part-00000.spacy`` and so on, which appears under its name once it is complete.

    Entities are in ``doc.ents`` and, including overlapping ones, in ``doc.spans["entities"]``; their confidence is the
    span extension ``confidence``. ``doc.user_data`` says where the document comes from.

    Args:
        folder: must not exist, or be empty.
        part_words: about how many words a part has; a DocBin is read and written as a whole, in memory.
    """
    tokens: Any = importlib.import_module("spacy.tokens")
    vocab: Any = importlib.import_module("spacy.vocab")
    if not tokens.Span.has_extension(CONFIDENCE):
        tokens.Span.set_extension(CONFIDENCE, default=None)
    with store_errors(folder), stage_folder(folder) as staged:
        for number, group in enumerate(_parts(items, part_words)):
            # One vocabulary a part, because a vocabulary never shrinks.
            words = vocab.Vocab()
            bin_ = tokens.DocBin(attrs=_ATTRIBUTES, store_user_data=True, docs=(_doc(item, words) for item in group))
            (staged / f"part-{number:05d}.spacy").write_bytes(bin_.to_bytes())


def _parts(items: Iterable[ExportItem], part_words: int) -> Iterator[Iterator[ExportItem]]:
    """Split items into parts of about as many words; each must be consumed before the next."""
    words = 0

    def part_of(item: ExportItem) -> int:
        nonlocal words
        words += item.document.row.n_tokens
        return (words - item.document.row.n_tokens) // part_words

    for _, group in groupby(items, key=part_of):
        yield group


class _Tokens:
    """The tokens of a Doc, each with its attributes; heads are positions in the Doc."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def add_gap(self, gap: str) -> None:
        """Add white space: a space after a token belongs to it, any other is a token that depends on a neighbour."""
        if gap.startswith(" ") and self.rows:
            self.rows[-1]["spaces"] = True
            gap = gap[1:]
        if gap:
            head = len(self.rows) - 1 if self.rows else 1
            self._add(words=gap, tags="_SP", pos="SPACE", morphs="", lemmas=gap, heads=head, deps="dep")

    def add_sentence(self, sentence: SentenceRow, text: str, *, start: int) -> int:
        """Add the tokens of a sentence and of the gap that begins at ``start``; return the sentence's end."""
        tokens = group_words(sentence)
        governors = [_governor(words) for words in tokens]
        positions: dict[int, int] = {}
        is_first = not self.rows
        for words, word in zip(tokens, governors, strict=True):
            self.add_gap(text[start : word.start_char])
            positions |= {part.token_id: len(self.rows) for part in words}
            self._add(
                words=text[word.start_char : word.end_char],
                tags=word.xpos or "",
                pos=word.upos or "",
                morphs=word.feats or "",
                lemmas=word.lemma or (word.word if word.upos else ""),
                # Correct for the root; the other heads are set when all tokens of the sentence have positions.
                heads=len(self.rows),
                deps=(word.deprel or "") if word.head else ROOT,
            )
            start = word.end_char
        # Space before the first sentence belongs to it, and other space to the sentence before.
        self.rows[0 if is_first else positions[governors[0].token_id]]["sent_starts"] = True
        for word in governors:
            if word.head:
                self.rows[positions[word.token_id]]["heads"] = positions[word.head]
        return start

    def _add(self, **attributes: Any) -> None:
        """Add a token; whether a space follows and a sentence begins is set when it is known."""
        self.rows.append({**attributes, "spaces": False, "sent_starts": False})


def _user_data(item: ExportItem) -> dict[str, Any]:
    row = item.document.row
    # MessagePack has no integers beyond 64 bits.
    meta = json.loads(row.meta or "{}", parse_int=lambda digits: int(digits) if len(digits) < 19 else digits)
    return {**item.metadata, **({"meta": meta} if row.meta else {}), "tagger": row.tagger}


def _doc(item: ExportItem, vocab: Any) -> Any:
    found, end = _Tokens(), 0
    for sentence in item.document.sentences:
        end = found.add_sentence(sentence, item.text, start=end)
    found.add_gap(item.text[end:])
    tokens: Any = importlib.import_module("spacy.tokens")
    known_pos: Any = importlib.import_module("spacy.parts_of_speech").IDS
    filter_spans: Any = importlib.import_module("spacy.util").filter_spans
    for row in found.rows:
        row["pos"] = row["pos"] if row["pos"] in known_pos else "X"
    columns = {name: [row[name] for row in found.rows] for name in chain.from_iterable(found.rows[:1])}
    if not item.document.sentences:
        columns["heads"] = [0] * len(found.rows)
    if any(sentence.tokens[0].head is None for sentence in item.document.sentences):
        del columns["heads"], columns["deps"]
    doc = tokens.Doc(vocab, user_data=_user_data(item), **columns)
    spans = []
    for entity in item.document.entities:
        # The words of a multi-word token are one token here.
        span = doc.char_span(entity.start_char, entity.end_char, label=entity.label, alignment_mode="expand")
        span._.set(CONFIDENCE, entity.confidence and round_float(entity.confidence))
        spans.append(span)
    doc.spans[SPANS_KEY] = spans
    doc.set_ents(filter_spans(spans))
    return doc


def _governor(words: Sequence[TokenRow]) -> TokenRow:
    """Return the word of a token whose head is outside the token."""
    token_ids = {word.token_id for word in words}
    return next((word for word in words if word.head not in token_ids), words[0])
