"""Export to Label Studio, and import of the tasks that it exports as JSON (https://labelstud.io/guide).

Label Studio runs in a browser: its offsets count UTF-16 code units, of which a character above U+FFFF, such as most
emoji, has two.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

import orjson
import pyarrow as pa

from concord.pipeline.errors import InputError
from concord.pipeline.exchange.items import (
    AnnotatedPassage,
    AnnotatedSpan,
    ExportItem,
    normalize_line_ends,
    round_float,
)
from concord.pipeline.output.document_rows import EntityRow
from concord.pipeline.storage.atomic_writes import write_compressed

_FROM, _TO = "label", "text"
_LAST_SINGLE_UNIT = "\uffff"


def write_label_studio(path: Path, items: Iterable[ExportItem]) -> None:
    """Atomically write a list of tasks with the entities as predictions, replacing any existing file.

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


def _region(entity: EntityRow, text: str, units: Sequence[int]) -> dict[str, Any]:
    return {
        "id": f"e{entity.entity_id}",
        "from_name": _FROM,
        "to_name": _TO,
        "type": "labels",
        "score": round_float(entity.confidence),
        "value": {
            "start": units[entity.start_char],
            "end": units[entity.end_char],
            "text": text[entity.start_char : entity.end_char],
            "labels": [entity.label],
        },
    }


def _code_units(text: str) -> list[int]:
    """Return the offset in UTF-16 code units of each offset in code points, that of the end included."""
    return [*accumulate((1 + (character > _LAST_SINGLE_UNIT) for character in text), initial=0)]


def read_label_studio(path: Path) -> Iterator[AnnotatedPassage]:
    """Yield the passages of a file of tasks; ``.gz`` and ``.zst`` files are decompressed.

    Of several annotations of a task the last that was not cancelled counts. A task that nobody annotated has those
    entities with which it was imported, its predictions.

    Raises:
        InputError: when the file cannot be read, or a task has another form; the message says which.
    """
    try:
        with pa.input_stream(str(path)) as stream:
            tasks = orjson.loads(stream.read())
    except (OSError, pa.ArrowException, orjson.JSONDecodeError) as error:
        raise InputError(f"{path}: expected tasks that Label Studio exported as JSON: {error}") from None
    if not isinstance(tasks, list):
        raise InputError(f"{path}: expected a list of tasks, as Label Studio exports as JSON, got no list")
    for number, task in enumerate(tasks, 1):
        where = f"{path}: task {number}"
        try:
            yield _passage(task, where)
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise InputError(
                f"{where}: expected data with doc_id and text, and results of the type labels, as in an export "
                f"'JSON' of tasks from 'concord export': {type(error).__name__}: {error}"
            ) from None


def _passage(task: Any, where: str) -> AnnotatedPassage:
    data = task["data"]
    text, doc_id, start = data["text"], data["doc_id"], data.get("start_char", 0)
    if not (isinstance(text, str) and isinstance(doc_id, str) and isinstance(start, int)):
        raise TypeError("doc_id and text are strings, start_char is a number")
    annotations = [entry for entry in task.get("annotations") or () if not entry.get("was_cancelled")]
    predictions = [entry for entry in task.get("predictions") or () if isinstance(entry, dict)]
    chosen = (annotations or predictions)[-1:]
    units = _code_units(text)
    spans = [
        _span(region, units, where) for entry in chosen for region in entry["result"] if region["type"] == "labels"
    ]
    return AnnotatedPassage(where=where, doc_id=doc_id, spans=tuple(spans), start=start, text=text)


def _span(region: Any, units: list[int], where: str) -> AnnotatedSpan:
    value = region["value"]
    if len(value["labels"]) != 1:
        raise InputError(
            f"{where}: expected one label for an entity, got {value['labels']!r} for {value.get('text')!r}"
        )
    start, end = (_code_point(value[name], units, where) for name in ("start", "end"))
    return AnnotatedSpan(start, end, value["labels"][0])


def _code_point(unit: Any, units: list[int], where: str) -> int:
    """Return the offset in code points of one in UTF-16 code units, of which a rare character has two."""
    offset = bisect_right(units, unit) - 1
    if offset < 0 or units[offset] != unit:
        raise InputError(f"{where}: expected offsets in UTF-16 code units of its text, got {unit!r}")
    return offset
