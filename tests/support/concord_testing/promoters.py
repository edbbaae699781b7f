"""Processes that move a champion at once, or are killed while they do."""

from collections.abc import Callable, Sequence
from functools import partial

from concord.workflows.promotion.champion import move_champion
from concord.workflows.promotion.ledger import BEGINNING, Entry
from concord_testing.runs import in_child

_SECONDS = 300


def entry(went_to: int, *, came_from: int | None = None) -> Entry:
    """Give a line for the ledger."""
    return Entry(
        number=1,
        previous=BEGINNING,
        action="promote",
        who="ada@here",
        when="2026-11-21T12:00:00+00:00",
        came_from=came_from,
        went_to=went_to,
    )


def mover(came_from: int | None, went_to: int) -> Callable[[], object]:
    """Give what moves the champion of the model ``tiny``."""
    return partial(move_champion, "tiny", expected=came_from, entry=entry(went_to, came_from=came_from))


def exit_codes(works: Sequence[Callable[[], object]], *, uri: str, crash_at: str = "") -> list[int | None]:
    """Do each work in a process of its own, all at once, and give how they ended."""
    # Another spelling, so that a forked process opens the database anew: a connection does not survive a fork.
    spelled = uri.replace("/mlflow.db", "/./mlflow.db")
    processes = [in_child(work, crash_at=crash_at, MLFLOW_TRACKING_URI=spelled) for work in works]
    for process in processes:
        process.join(timeout=_SECONDS)
    return [process.exitcode for process in processes]
