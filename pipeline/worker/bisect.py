"""Retry by bisection: one document that fails must not cost its batch."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from concord.models.errors import ConcordError
from concord.pipeline.documents import AnnotatedDocument, DeadLetter, Document, ParsedDocument

Item = TypeVar("Item", bound=Document | ParsedDocument | AnnotatedDocument)
Result = TypeVar("Result")


def run_bisecting(
    items: Sequence[Item], run: Callable[[Sequence[Item]], Sequence[Result]], *, stage: str
) -> list[Result | DeadLetter]:
    """Run a batch in one call; when that raises, halve it until only the documents at fault are left out.

    They become dead letters with the code ``<stage>_failed``, in place of their results.

    Raises:
        ConcordError, torch.AcceleratorError: no document is at fault; the store, the model or the device is broken.
    """
    if not items:
        return []
    try:
        return list(run(items))
    except (ConcordError, torch.AcceleratorError):
        raise
    except Exception as error:  # noqa: BLE001 - the worker's edge: whatever a document raises is its dead letter
        if len(items) == 1:
            message = f"{type(error).__name__}: {error}"
            return [DeadLetter.for_document(items[0], stage=stage, error=f"{stage}_failed", message=message)]
    middle = len(items) // 2
    return [*run_bisecting(items[:middle], run, stage=stage), *run_bisecting(items[middle:], run, stage=stage)]
