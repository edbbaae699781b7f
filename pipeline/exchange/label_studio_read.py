"""Read tasks that Label Studio exported as JSON (https://labelstud.io/guide/export), the inverse of the export to it.

Of several annotations of a task the last that was not cancelled counts. A task that nobody annotated has those
entities with which it was imported, its predictions.
"""

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from concord.pipeline.errors import InputError
from concord.pipeline.exchange.passage import AnnotatedPassage, AnnotatedSpan

_LAST_SINGLE_UNIT = "\uffff"


def read_label_studio(path: Path) -> Iterator[AnnotatedPassage]:
    """Yield the passages of a file of tasks; ``.gz`` and ``.zst`` files are decompressed.

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
    done = [one for one in task.get("annotations") or () if not one.get("was_cancelled")]
    suggested = [one for one in task.get("predictions") or () if isinstance(one, dict)]
    chosen = (done or suggested)[-1:]
    units = [*accumulate((1 + (character > _LAST_SINGLE_UNIT) for character in text), initial=0)]
    spans = [_span(region, units, where) for one in chosen for region in one["result"] if region["type"] == "labels"]
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
