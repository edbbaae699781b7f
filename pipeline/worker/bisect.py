"""Retry by bisection: one document that fails must not cost its batch."""

import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

from concord.models.errors import ConcordError
from concord.pipeline.documents import AnnotatedDocument, DeadLetter, Document, ParsedDocument
from concord.pipeline.errors import DeviceError, ShortageError

OUT_OF_MEMORY = "out_of_memory"
"""The code of a document's dead letter for which memory does not suffice even alone."""

Item = TypeVar("Item", bound=Document | ParsedDocument | AnnotatedDocument)
Result = TypeVar("Result")


def run_bisecting(
    items: Sequence[Item],
    run: Callable[[Sequence[Item]], Sequence[Result]],
    *,
    stage: str,
    on_shortage: Callable[[], None] | None = None,
) -> list[Result | DeadLetter]:
    """Run a batch in one call; when that raises, halve it until only the documents at fault are left out.

    They become dead letters with the code ``<stage>_failed`` or ``out_of_memory``, in place of their results.

    Args:
        on_shortage: called before a batch that finds no memory is halved; if None, it raises ShortageError.

    Raises:
        ConcordError: no document is at fault; the store, the model or the device is broken.
    """
    if not items:
        return []
    try:
        return list(run(items))
    except ShortageError as error:
        if on_shortage is None:
            raise
        on_shortage()
        code, message = OUT_OF_MEMORY, str(error)
    except ConcordError:
        raise
    except Exception as error:
        if _is_of_the_device(error):
            raise DeviceError(f"{stage}: the device is lost: {type(error).__name__}: {error}") from error
        # The worker's edge: whatever a document raises is its dead letter.
        code, message = f"{stage}_failed", f"{type(error).__name__}: {error}"
    if len(items) == 1:
        return [DeadLetter.for_document(items[0], stage=stage, error=code, message=message)]
    middle = len(items) // 2
    halves = (items[:middle], items[middle:])
    return [result for half in halves for result in run_bisecting(half, run, stage=stage, on_shortage=on_shortage)]


def _is_of_the_device(error: Exception) -> bool:
    # Where torch raised it, it is imported; a worker whose parser and tagger need no torch starts without it.
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(error, torch.AcceleratorError)
