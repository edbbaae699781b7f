"""Which colour each entity type has, on pages, in notebooks and in a terminal."""

from collections.abc import Iterable
from zlib import crc32

HUES = 8
COLOURS = 3 * HUES
"""The colours of the stylesheet: eight hues, the same with a line above, and with a dotted one."""

# Types that occur together have different hues, as far as there are; related ones share one.
_KIN = (
    "LOC FAC LANGUAGE",
    "ORG PRODUCT LAW",
    "PER EVENT WORK_OF_ART",
    "MISC GPE",
    "NORP",
    "DATE TIME",
    "MONEY PERCENT",
    "CARDINAL ORDINAL QUANTITY",
)
_USUAL = {kind: hue + HUES * place for hue, kinds in enumerate(_KIN) for place, kind in enumerate(kinds.split())}
_USUAL |= {"PERSON": _USUAL["PER"], "LOCATION": _USUAL["LOC"], "ORGANIZATION": _USUAL["ORG"]}


def type_colours(types: Iterable[str]) -> dict[str, int]:
    """Return the number of the colour of each entity type, from 0 to ``COLOURS - 1``.

    A usual type has the same everywhere. Another has one by its name, or the next that is free; beyond ``COLOURS``
    types colours repeat.
    """
    colours: dict[str, int] = {}
    for kind in sorted(set(types), key=lambda kind: (kind not in _USUAL, kind)):
        first = _USUAL.get(kind, crc32(kind.encode(errors="replace")) % HUES)
        free = set(range(COLOURS)) - set(colours.values())
        colours[kind] = min(free, key=lambda number: (number - first) % COLOURS, default=first)
    return colours
