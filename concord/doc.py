"""One annotated document in memory: its text with sentences, tokens and entities, fields as in the output's tables."""

import html
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from concord.pipeline.documents import DeadLetter
from concord.pipeline.output.collection import (
    CollectedDocument,
    EntityRow,
    SentenceRow,
    TokenRow,
)
from concord.pipeline.report.html import HUES, type_colours

_HUES = ("#1f6feb", "#b35900", "#1a7f37", "#8250df", "#bf3989", "#0b7285", "#9a6700", "#57606a")
_LINES = ("solid", "dashed", "dotted")


Sentence = SentenceRow
Token = TokenRow
Entity = EntityRow


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Doc:
    """An annotated document. Jupyter shows its text with the entities highlighted.

    Attributes:
        context: what ``Nlp.pipe`` was given beside the text.
        error: why the text could not be annotated, with ``stage``, ``error`` and ``message``; None if it was.
    """

    doc_id: str
    text: str
    sentences: tuple[Sentence, ...] = ()
    entities: tuple[Entity, ...] = ()
    context: Any = None
    error: DeadLetter | None = None

    @property
    def tokens(self) -> tuple[Token, ...]:
        """The words of all sentences."""
        return tuple(token for sentence in self.sentences for token in sentence.tokens)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        if self.error is not None:
            return f"<concord.Doc {self.doc_id!r} error={self.error.message!r}>"
        return f"<concord.Doc {self.doc_id!r} tokens={len(self.tokens)} entities={len(self.entities)}>"

    def _repr_html_(self) -> str:
        body = html.escape(self.error.message) if self.error is not None else "".join(_pieces(self))
        return f'<div style="line-height: 1.9; white-space: pre-wrap; max-width: 50em">{body}</div>'


def doc_of(document: CollectedDocument, text: str, *, context: Any = None) -> Doc:
    """Return a document of the output's tables with its raw text."""
    sentences = (
        sentence._replace(text=text[sentence.start_char : sentence.end_char]) for sentence in document.sentences
    )
    return Doc(
        doc_id=document.row.doc_id,
        text=text,
        sentences=tuple(sentences),
        entities=document.entities,
        context=context,
    )


def _pieces(doc: Doc) -> Iterator[str]:
    colours = type_colours(entity.label for entity in doc.entities)
    end = 0
    for entity in doc.entities:
        line, hue = divmod(colours[entity.label], HUES)
        colour = _HUES[hue]
        yield html.escape(doc.text[end : entity.start_char])
        sure = "" if entity.confidence is None else f"{entity.confidence:.0%} sure"
        nats = "" if entity.uncertainty is None else f", {entity.uncertainty:.2f} nats"
        yield (
            f'<mark style="background: {colour}22; color: inherit; border-bottom: 2px {_LINES[line]} {colour}; '
            f'padding: 0 2px" title="{sure}{nats}">{html.escape(entity.text)}'
            f' <small style="color: {colour}; font-weight: 600">{html.escape(entity.label)}</small></mark>'
        )
        end = entity.end_char
    yield html.escape(doc.text[end:])
