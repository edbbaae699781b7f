"""Processes that move a champion concurrently, or are killed meanwhile."""

from collections.abc import Callable, Sequence
from functools import partial

from concord.workflows.promotion.champion import move_champion
from concord.workflows.promotion.ledger import Move
from concord_testing.runs import in_child

_SECONDS = 300


def move(went_to: int, *, came_from: int | None = None) -> Move:
    """Return a move of a champion."""
    return Move(
        action="promote", who="ada@here", when="2026-11-21T12:00:00+00:00", came_from=came_from, went_to=went_to
    )


def mover(came_from: int | None, went_to: int) -> Callable[[], object]:
    """Return a function that moves the champion of the model ``tiny``."""
    return partial(move_champion, "tiny", expected=came_from, move=move(went_to, came_from=came_from))


def exit_codes(functions: Sequence[Callable[[], object]], *, uri: str, crash_at: str = "") -> list[int | None]:
    """Run each function in a process of its own, all at once, and return their exit codes."""
    processes = [in_child(function, crash_at=crash_at, MLFLOW_TRACKING_URI=uri) for function in functions]
    for process in processes:
        process.join(timeout=_SECONDS)
    return [process.exitcode for process in processes]
