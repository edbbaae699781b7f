"""The stages a shard passes: read, parse, tag, commit.

A stage takes and gives records in the order of the input. A document that a stage cannot do becomes a dead letter
there; dead letters pass through every further stage.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import torch

from concord.pipeline.documents import DeadLetter, Document, ParsedDocument
from concord.pipeline.errors import ConcordError

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_bulk(
    items: Sequence[Item],
    work: Callable[[Sequence[Item]], Sequence[Result]],
    letter: Callable[[Item, Exception], DeadLetter],
) -> list[Result | DeadLetter]:
    """Do all items in one call; where it raises, halve until only the items that raise are left out."""
    if not items:
        return []
    try:
        return list(work(items))
    except (ConcordError, torch.AcceleratorError):
        # No fault of any document: the store, the model or the device is broken for all of them.
        raise
    except Exception as error:  # noqa: BLE001 - the worker's edge: whatever a document raises is its dead letter
        if len(items) == 1:
            return [letter(items[0], error)]
    middle = len(items) // 2
    return [*in_bulk(items[:middle], work, letter), *in_bulk(items[middle:], work, letter)]


def dead_letters_in(records: Iterable[object]) -> list[DeadLetter]:
    return [record for record in records if isinstance(record, DeadLetter)]


def left_out(record: Document | ParsedDocument, *, stage: str, error: str, message: str) -> DeadLetter:
    """Give the dead letter of a record that stages did not, or not to the end, see."""
    document = record.document if isinstance(record, ParsedDocument) else record
    return make_dead_letter(document, stage=stage, error=error, message=message)


def describe_error(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def make_dead_letter(document: Document, *, stage: str, error: str, message: str) -> DeadLetter:
    return DeadLetter(
        doc_id=document.doc_id,
        source_uri=document.source_uri,
        position=document.source_position,
        stage=stage,
        error=error,
        message=f"document {document.doc_id!r}: {message}",
    )
