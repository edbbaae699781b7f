"""Export to Label Studio, and import of the tasks that it exports as JSON (https://labelstud.io/guide).

Label Studio runs in a browser: its offsets count UTF-16 code units, of which a character above U+FFFF, such as most
emoji, has two.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

import orjson
import pyarrow as pa

from concord.models.data.outputs import known_numbers
from concord.pipeline.errors import InputError
from concord.pipeline.exchange.items import (
    AnnotatedPassage,
    AnnotatedSpan,
    ExportItem,
    normalize_line_ends,
    round_float,
    visible,
)
from concord.pipeline.output.collection import EntityRow
from concord.pipeline.storage.atomic_writes import write_compressed

_FROM, _TO = "label", "text"
_LAST_SINGLE_UNIT = "\uffff"
# Results that mark no words, even where they belong to a region.
_NO_REGIONS = {"relation", "choices", "textarea", "rating", "number", "taxonomy", "datetime", "pairwise", "ranker"}


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
        "score": round_float(min(known_numbers(entity.confidence for entity in entities), default=1.0)),
        "result": [_region(entity, text, units) for entity in entities],
    }
    return {"data": {"text": text, **item.metadata}, "predictions": [prediction]}


def _region(entity: EntityRow, text: str, units: Sequence[int]) -> dict[str, Any]:
    return {
        "id": f"e{entity.entity_id}",
        "from_name": _FROM,
        "to_name": _TO,
        "type": "labels",
        **({} if entity.confidence is None else {"score": round_float(entity.confidence)}),
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

    Of several annotations of a task the one marked as ground truth counts, else the last that was not cancelled. A task
    without any is not annotated: predictions and drafts are no annotations.

    Raises:
        InputError: when the file cannot be read, or is no list.
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
        except (KeyError, TypeError, AttributeError) as error:
            reason = (
                "expected data with doc_id and text, and annotations with results, as in an export 'JSON' of tasks "
                f"from 'concord export': {type(error).__name__}: {error}"
            )
            yield AnnotatedPassage.unread(where, reason)


def _passage(task: Any, where: str) -> AnnotatedPassage:
    data = task["data"]
    text, doc_id, start = data["text"], data["doc_id"], data.get("start_char", 0)
    if not (isinstance(text, str) and isinstance(doc_id, str) and isinstance(start, int)):
        raise TypeError("doc_id and text are strings, start_char is a number")
    if "completions" in task and "annotations" not in task:
        raise KeyError("annotations; Label Studio before 1.0 wrote completions, export the project with a later one")
    annotations = [entry for entry in task.get("annotations") or () if not entry.get("was_cancelled")]
    annotations.sort(key=lambda entry: bool(entry.get("ground_truth")))
    if not annotations:
        return AnnotatedPassage(where=where, doc_id=doc_id)
    units = _code_units(text)
    spans = [
        _span(region, text, units, f"{where}: region {number}")
        for number, region in enumerate(annotations[-1]["result"], 1)
        if not (isinstance(region, dict) and region.get("type") in _NO_REGIONS)
    ]
    return AnnotatedPassage(where=where, doc_id=doc_id, spans=tuple(spans), start=start, text=text)


def _span(region: Any, text: str, units: list[int], where: str) -> AnnotatedSpan:
    anywhere = AnnotatedSpan(0, len(text), "", where)
    value = region.get("value") if isinstance(region, dict) else None
    if not isinstance(value, dict) or region.get("type") != "labels":
        return anywhere._replace(fault=f"expected a region of the type 'labels', got {region!r:.80}")
    first, last, labels, surface = map(value.get, ("start", "end", "labels", "text"))
    if not (isinstance(first, int) and isinstance(last, int) and first < last):
        return anywhere._replace(fault=f"expected start and end in UTF-16 code units, got {value!r:.80}")
    start, end = max(0, bisect_right(units, first) - 1), min(bisect_left(units, last), len(text))
    span = AnnotatedSpan(start, end, "", where)
    if (units[start], units[end]) != (first, last):
        return span._replace(fault=f"expected offsets in UTF-16 code units of its text, got {first} to {last}")
    if not (isinstance(labels, list) and len(labels) == 1 and isinstance(labels[0], str)):
        return span._replace(fault=f"expected one label for {text[start:end]!r}, got {labels or 'none'!s:.80}")
    if isinstance(surface, str) and visible(surface) != visible(text[start:end]):
        return anywhere._replace(fault=f"its text is {surface!r}, but {text[start:end]!r} is at {first} to {last}")
    return span._replace(type=labels[0])
