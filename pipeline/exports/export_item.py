"""What the writers for annotation tools are given, and what they share."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import orjson

from concord.pipeline.output.document_rows import CollectedDocument

_LINE_END = re.compile(r"\r\n|\r")
_DECIMALS = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportItem:
    """A document with its raw text, or a passage of one: what an annotator is shown at a time.

    Attributes:
        name: unique in the export; a document's is its id.
        document: its offsets count in ``text``.
        fields: what else goes with it, as plain values.
    """

    name: str
    document: CollectedDocument
    text: str
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def described(self) -> dict[str, Any]:
        """What it is and where it comes from, as plain values; without the text."""
        row = self.document.row
        meta = {} if row.meta is None else {"meta": orjson.loads(row.meta)}
        return {"doc_id": row.doc_id, "source_uri": row.source_uri, **self.fields, **meta}


def percent_encoded(name: str, *, also: str = "") -> str:
    """Write a name without white space, control characters and ``%``; ``urllib.parse.unquote`` gives it back.

    Args:
        also: further characters that are to be encoded.
    """
    return "".join(
        quote(character, safe="")
        if character in " %" or character in also or not character.isprintable()
        else character
        for character in name
    )


def plain_line_ends(text: str) -> str:
    """Give a text of the same length in which every line ends with a line feed alone.

    Tools read CR LF as one character, which would move all offsets behind it: CR LF becomes a blank and LF, a CR
    alone LF.
    """
    return _LINE_END.sub(lambda end: " \n" if len(end[0]) == 2 else "\n", text)


def rounded(value: float) -> float:
    """Round what is kept in single precision to the digits that it has."""
    return round(value, _DECIMALS)
