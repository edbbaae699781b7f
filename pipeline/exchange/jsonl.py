"""Export to JSON Lines: one object a document, with its sentences, their tokens, and its entities."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson

from concord.pipeline.exchange.items import ExportItem, round_float
from concord.pipeline.output.document_rows import CollectedSentence
from concord.pipeline.storage.atomic_writes import write_compressed


def write_json_lines(path: Path, items: Iterable[ExportItem]) -> None:
    """Atomically write items, replacing any existing file; ``.gz`` and ``.zst`` are compressed.

    Offsets count code points of ``text``; the other fields are columns of the tables.
    """
    write_compressed(path, (orjson.dumps(_record(item), option=orjson.OPT_APPEND_NEWLINE).decode() for item in items))


def _record(item: ExportItem) -> dict[str, Any]:
    return {
        **item.metadata,
        "text": item.text,
        "sentences": [_sentence(sentence) for sentence in item.document.sentences],
        "entities": [_rounded({**entity._asdict(), "name": entity.name}) for entity in item.document.entities],
    }


def _sentence(sentence: CollectedSentence) -> dict[str, Any]:
    fields = {name: getattr(sentence.row, name) for name in ("sent_id", "start_char", "end_char", "continues")}
    return {**fields, "tokens": [_rounded(token._asdict()) for token in sentence.tokens]}


def _rounded(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: round_float(value) if isinstance(value, float) else value for name, value in row.items()}
