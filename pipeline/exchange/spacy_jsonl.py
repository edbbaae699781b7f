"""Export of texts and entities as JSON Lines, as trainings of spaCy and Prodigy (https://prodi.gy/docs) read them."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from concord.pipeline.exchange.items import ExportItem
from concord.pipeline.output.document_rows import EntityRow
from concord.pipeline.storage.atomic_writes import write_compressed


def write_spacy_jsonl(path: Path, items: Iterable[ExportItem]) -> None:
    """Atomically write one object a document, replacing any existing file; ``.gz`` and ``.zst`` are compressed.

    ``entities`` holds ``[start, end, label]`` for ``spacy.training.Example.from_dict``, which takes no two that
    overlap; ``spans`` holds all as Prodigy writes them. Offsets count code points of ``text``.
    """
    write_compressed(path, (orjson.dumps(_record(item), option=orjson.OPT_APPEND_NEWLINE).decode() for item in items))


def _record(item: ExportItem) -> dict[str, Any]:
    entities = item.document.entities
    return {
        **item.metadata,
        "text": item.text,
        "entities": [(entity.start_char, entity.end_char, entity.label) for entity in _disjoint(entities)],
        "spans": [{"start": row.start_char, "end": row.end_char, "label": row.label} for row in entities],
    }


def _disjoint(entities: Sequence[EntityRow]) -> Iterator[EntityRow]:
    """Yield entities without those that begin within the one before: two words of a multi-word token share a place."""
    end = 0
    for entity in entities:
        if entity.start_char >= end:
            yield entity
            end = entity.end_char
