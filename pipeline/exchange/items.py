"""The units of every export and import, documents or passages of them, and helpers that several formats share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self
from urllib.parse import quote

import orjson

from concord.pipeline.output.collection import CollectedDocument


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportItem:
    """A document or a passage of one: what an annotator sees at a time.

    Attributes:
        name: unique in the export; for a document its id.
        document: offsets count within ``text``.
        text: the raw text; empty in a format that does not need it.
        fields: further values to export with it; plain values only.
    """

    name: str
    document: CollectedDocument
    text: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def metadata(self) -> dict[str, Any]:
        """What the item is and where it comes from, without its text, for orjson; ``meta`` is JSON already."""
        row = self.document.row
        meta = {} if row.meta is None else {"meta": orjson.Fragment(row.meta)}
        return {"doc_id": row.doc_id, "source_uri": row.source_uri, **self.fields, **meta}


class AnnotatedSpan(NamedTuple):
    """An entity of a file; offsets are half-open, in code points of the passage.

    With a ``fault``, the reason why it cannot be read, it only says where somebody may have changed something: anywhere
    in the passage if its offsets are those of the whole text.
    """

    start: int
    end: int
    type: str
    where: str
    fault: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class AnnotatedPassage:
    """A document or a passage of one, as an annotator left it in a file.

    One with neither text nor forms could not be read if it has spans, which say why; else nobody has annotated it.

    Attributes:
        where: file and place, for messages.
        doc_id: empty where the file does not say it.
        start: offset of the passage in the raw text, in code points.
        text: as exported, with normalized line ends; None in a format without the text.
        forms: in such a format, the tokens that are in the file, by their offsets.
    """

    where: str
    doc_id: str
    spans: tuple[AnnotatedSpan, ...] = ()
    start: int = 0
    text: str | None = None
    forms: Mapping[tuple[int, int], str] = field(default_factory=dict)

    @classmethod
    def unread(cls, where: str, reason: str, doc_id: str = "") -> Self:
        """Return a passage that cannot be read, for a reason."""
        return cls(where=where, doc_id=doc_id, spans=(AnnotatedSpan(0, 0, "", where, reason),))


def percent_encode(name: str, *, also: str = "") -> str:
    """Encode white space, control characters, ``%`` and ``also``; ``urllib.parse.unquote`` decodes the result."""
    encoded = f" %{also}"
    return "".join(
        quote(character, safe="") if character in encoded or not character.isprintable() else character
        for character in name
    )


def normalize_line_ends(text: str) -> str:
    """Return a text of the same length in which every line ends with a line feed only.

    Annotation tools read CR LF as one character, which would shift all offsets after it: CR LF becomes a space and LF,
    a single CR becomes LF.
    """
    return text.replace("\r\n", " \n").replace("\r", "\n")


def visible(text: str) -> str:
    """Return a text without white space, and without line feeds that a tool has written as a backslash and n."""
    return "".join(text.replace("\\n", "").split())


def round_float(value: float) -> float:
    """Round a single-precision value to the decimals that it has."""
    return round(value, 6)
