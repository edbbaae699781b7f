"""Build the text of a file out of its parts."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import orjson

from concord.models.data.sentence import line_breaks
from concord.pipeline.documents import Lost, Part
from concord.pipeline.readers.files import Decoded
from concord.pipeline.readers.records import RecordError


def extracted(
    parts: Iterable[tuple[str, str, str]],
    *,
    meta: Mapping[str, Any] | None = None,
    lost: Mapping[int, RecordError] | None = None,
    between: str = "\n\n",
    join_lines: bool = False,
) -> Decoded:
    """Return a text made of parts, given as kind, label and text; those without a kind are only text.

    Args:
        meta: what else the file says; empty values are left out.
        between: stands between two parts.
        join_lines: join lines that ``SOFT_BREAK`` stands between, and the words that are broken there.
    """
    text: list[str] = []
    starts: list[Part] = []
    length = 0
    for kind, label, content in parts:
        if not kind and not content:
            continue
        if text:
            text.append(between)
            length += len(between)
        if kind:
            starts.append(Part(kind, label, length))
        text.append(content)
        length += len(content)
    whole = "".join(text).rstrip()
    if join_lines:
        whole, starts = _joined(whole, starts)
    fields = {key: _without_zeros(value) for key, value in (meta or {}).items() if value}
    return Decoded(
        whole,
        encoding=None,
        meta=orjson.dumps(fields, option=orjson.OPT_SORT_KEYS).decode() if fields else None,
        # A page without text at the end begins where the text ends.
        parts=tuple(part._replace(start=min(part.start, len(whole))) for part in starts),
        lost=tuple(Lost(number, error.code, str(error)) for number, error in (lost or {}).items()),
    )


def _without_zeros(value: Any) -> Any:
    """Return a value without what some programs put at the end of a title."""
    return value.replace("\0", "").encode(errors="replace").decode() if isinstance(value, str) else value


def _joined(text: str, parts: Sequence[Part]) -> tuple[str, list[Part]]:
    """Return a text with its lines joined, and where its parts then begin."""
    breaks = line_breaks(text)
    bounds = [0, *chain.from_iterable(breaks), len(text)]
    joined = "".join(text[start:end] for start, end in zip(bounds[::2], bounds[1::2], strict=True))
    moved, before = [], 0
    ends = iter([*breaks, (len(text) + 1, 0)])
    start, end = next(ends)
    for part in parts:
        while end and end <= part.start:
            before += end - start
            start, end = next(ends)
        moved.append(part._replace(start=part.start - before))
    return _SOFT.sub(" ", joined).replace(HARD_BREAK, "\n"), moved


SOFT_BREAK = "\n"
"""Ends a line within a paragraph; two of them end the paragraph."""
HARD_BREAK = "\r"
"""Ends a line that is not joined with the next one."""
_SOFT = re.compile(r"(?<![\n\r])\n(?![\n\r])")
