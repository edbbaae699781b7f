"""Export to Label Studio: tasks with the entities as predictions (https://labelstud.io/guide/predictions).

Label Studio runs in a browser: its offsets count UTF-16 code units, of which a character above U+FFFF, such as most
emoji, has two.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

import orjson

from concord.pipeline.exchange.export_item import ExportItem, normalize_line_ends, round_float
from concord.pipeline.output.document_rows import EntityRow
from concord.pipeline.storage.atomic_writes import write_compressed

_FROM, _TO = "label", "text"
_LAST_SINGLE_UNIT = "\uffff"


def write_label_studio(path: Path, items: Iterable[ExportItem]) -> None:
    """Atomically write a list of tasks, replacing any existing file.

    The score of a prediction is the lowest confidence of its entities, 1 if there are none: sorted by it, the tasks
    that need a review most come first. Line ends become line feeds, without changing offsets; see
    ``normalize_line_ends``.
    """
    write_compressed(path, _json_chunks(items))


def labeling_config(labels: Iterable[str]) -> str:
    """Return the labeling configuration for the tasks."""
    rows = [f"    <Label value={quoteattr(label)}/>" for label in labels]
    text = f'  <Text name="{_TO}" value="$text"/>'
    return "\n".join(["<View>", f'  <Labels name="{_FROM}" toName="{_TO}">', *rows, "  </Labels>", text, "</View>"])


def _json_chunks(items: Iterable[ExportItem]) -> Iterator[str]:
    before = "[\n"
    for item in items:
        yield before + orjson.dumps(_task(item)).decode()
        before = ",\n"
    yield "[]\n" if before == "[\n" else "\n]\n"


def _task(item: ExportItem) -> dict[str, Any]:
    text = normalize_line_ends(item.text)
    units = _code_units(text)
    entities = item.document.entities
    prediction = {
        "model_version": item.document.row.tagger,
        "score": round_float(min((entity.confidence for entity in entities), default=1.0)),
        "result": [_region(entity, text, units) for entity in entities],
    }
    return {"data": {"text": text, **item.metadata}, "predictions": [prediction]}


def _region(entity: EntityRow, text: str, units: Callable[[int], int]) -> dict[str, Any]:
    return {
        "id": f"e{entity.entity_id}",
        "from_name": _FROM,
        "to_name": _TO,
        "type": "labels",
        "score": round_float(entity.confidence),
        "value": {
            "start": units(entity.start_char),
            "end": units(entity.end_char),
            "text": text[entity.start_char : entity.end_char],
            "labels": [entity.label],
        },
    }


def _code_units(text: str) -> Callable[[int], int]:
    """Return a function from offsets in code points to offsets in UTF-16 code units."""
    pairs = [offset for offset, character in enumerate(text) if character > _LAST_SINGLE_UNIT]
    return lambda offset: offset + bisect_left(pairs, offset)
