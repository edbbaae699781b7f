"""Move a model's champion: one process at a time, only from the expected version, with a line in the ledger.

MLflow has no compare-and-set for aliases, but only one of several processes can create a registered model of a given
name, so such a model serves as the lock. Under it, the champion is compared with the expected version, the line of the
ledger is stored as an intent, the aliases are moved, the line is added to the ledger, and the intent is deleted. A
process that finds an intent completes it, or undoes it if the champion has been moved elsewhere since.

The lock is not fenced: the store does not require it to move an alias. A process that is delayed for longer than
``LOCK_SECONDS`` loses its lock to the next. It checks lock and clock before each step, so the remaining risk is one
call to the store that hangs for that long; clocks must agree to within a minute. A trigger that never runs concurrently
(a CI concurrency group) does not have this risk.
"""

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, get_args

from concord.models.errors import ConcordError
from concord.pipeline.storage.atomic_writes import PromotionStep, crash_point
from concord.workflows.console import REFUSED, info, warn
from concord.workflows.environment import has_ended, process_name
from concord.workflows.promotion import ledger
from concord.workflows.registry.mlflow_client import NotFoundError, TrackingError, mlflow_errors
from concord.workflows.registry.model_versions import LOCK_SUFFIX, create_model, lookup_errors, set_alias

CHAMPION, PREVIOUS = "champion", "previous"
INTENT_TAG = "concord.intent"
LOCK_SECONDS = 120.0
"""A lock that is older counts as abandoned."""
HOLD_SECONDS = 60.0
"""A process gives up after this time, so that its last call ends before its lock can be broken."""
_OWNER, _TOKEN, _SINCE = "concord.owner", "concord.token", "concord.since"
_POLL_SECONDS = 0.3
STEPS: tuple[PromotionStep, ...] = get_args(PromotionStep)
"""The crash points of a move, in order (concord.pipeline.storage.atomic_writes)."""


class RaceLostError(ConcordError):
    """The champion is not the expected version."""

    exit_code = REFUSED


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """The aliases and the ledger of a model, and the line of an unfinished move, if any."""

    champion: int | None
    previous: int | None
    lines: tuple[str, ...]
    next_number: int
    intent: str | None


def settled_state(name: str) -> State:
    """Return the state of a model, after completing or undoing an unfinished move."""
    model = _Model(name)
    state = model.state()
    if state.intent is None:
        return state
    with _locked(model) as lock:
        _settle(model, lock)
    return model.state()


def move_champion(name: str, *, expected: int | None, move: ledger.Move) -> ledger.Entry:
    """Move the champion from ``expected``, None if there is no champion yet, and return the line of the ledger.

    Raises:
        RaceLostError: when the champion is not ``expected``.
        TrackingError: when the store fails or is too slow; the next call completes an unfinished move.
    """
    model = _Model(name)
    with _locked(model) as lock:
        _settle(model, lock)
        state = model.state()
        if state.champion != expected:
            now, before = map(ledger.describe_version, (state.champion, expected))
            raise RaceLostError(
                f"{name}: the champion is now {now} and was {before} when this command started; nothing was moved, "
                "run it again"
            )
        last = ledger.line_hash(state.lines[-1]) if state.lines else ledger.BEGINNING
        line = ledger.write_line(ledger.Entry.of(move, number=state.next_number, previous=last))
        lock.check()
        model.set_tag(INTENT_TAG, line)
        crash_point("intent")
        _complete(model, line, lock)
        return ledger.read_line(line)


class _Model:
    """The champion, ledger and lock of a registered model; every method may raise TrackingError."""

    def __init__(self, name: str) -> None:
        self.name = name
        with lookup_errors(name, name) as client:
            self._client = client

    def state(self) -> State:
        with lookup_errors(self.name, self.name):
            model = self._client.get_registered_model(self.name)
        aliases = {alias: int(version) for alias, version in model.aliases.items()}
        return State(
            champion=aliases.get(CHAMPION),
            previous=aliases.get(PREVIOUS),
            lines=tuple(ledger.lines_of(model.tags)),
            next_number=ledger.next_number(model.tags),
            intent=model.tags.get(INTENT_TAG),
        )

    def set_tag(self, key: str, value: str) -> None:
        with mlflow_errors(f"{key} of {self.name} could not be written"):
            self._client.set_registered_model_tag(self.name, key, value)

    def delete_tag(self, key: str) -> None:
        with mlflow_errors(f"{key} of {self.name} could not be deleted"):
            self._client.delete_registered_model_tag(self.name, key)

    def has_version(self, version: int) -> bool:
        return self._query(self._client.get_model_version, self.name, str(version)) is not None

    def lock_tags(self) -> dict[str, str] | None:
        """Return the tags of the lock; None if there is none."""
        lock = self._query(self._client.get_registered_model, self.name + LOCK_SUFFIX)
        return None if lock is None else dict(lock.tags)

    def delete_lock(self) -> None:
        self._query(self._client.delete_registered_model, self.name + LOCK_SUFFIX)

    def _query(self, call: Callable[..., Any], *arguments: str) -> Any:
        """Return what a call returns; None if what it is about does not exist."""
        with suppress(NotFoundError), mlflow_errors("the registry could not be queried"):
            return call(*arguments)
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Lock:
    """A lock that this process has taken."""

    model: _Model
    token: str
    since: float

    def check(self) -> None:
        """Raise TrackingError unless this process still has the lock, and has not held it for too long."""
        held = time.monotonic() - self.since
        if held > HOLD_SECONDS:
            raise TrackingError(f"{self.model.name}: locked for {held:.0f} s; the store is too slow, try again")
        if not self.is_held():
            raise TrackingError(f"{self.model.name}: another process has broken the lock of this one, try again")

    def is_held(self) -> bool:
        """Return whether the lock in the store is this one."""
        return (self.model.lock_tags() or {}).get(_TOKEN) == self.token


@contextmanager
def _locked(model: _Model) -> Iterator[_Lock]:
    lock = _take_lock(model)
    crash_point("locked")
    try:
        yield lock
    finally:
        # A failure here must not hide an earlier one; the lock ages until it may be broken.
        try:
            if lock.is_held():
                model.delete_lock()
        except TrackingError as error:
            warn(f"the lock of {model.name} remains for {LOCK_SECONDS:.0f} s. {error}")


def _take_lock(model: _Model) -> _Lock:
    """Wait for the lock, at most for as long as one may be held."""
    token = uuid.uuid4().hex
    deadline = time.monotonic() + LOCK_SECONDS + HOLD_SECONDS
    while True:
        tags = {_OWNER: process_name(), _TOKEN: token, _SINCE: f"{time.time():.3f}"}
        since = time.monotonic()
        if create_model(model.name + LOCK_SUFFIX, tags=tags):
            return _Lock(model=model, token=token, since=since)
        holder = model.lock_tags()
        if holder is not None and _is_stale(holder):
            info(f"Breaking the lock of {model.name} that {holder.get(_OWNER)} has abandoned.")
            model.delete_lock()
        elif time.monotonic() > deadline:
            raise TrackingError(f"{model.name}: locked by {(holder or {}).get(_OWNER)}; try again")
        else:
            time.sleep(_POLL_SECONDS)


def _is_stale(tags: dict[str, str]) -> bool:
    """Return whether the owner of a lock is dead, or has held it for too long."""
    if has_ended(tags.get(_OWNER, "")):
        return True
    try:
        return time.time() - float(tags[_SINCE]) > LOCK_SECONDS
    except (KeyError, ValueError):
        return True  # not written by this module


def _settle(model: _Model, lock: _Lock) -> None:
    """Complete an unfinished move, or undo it if it cannot be completed any more."""
    state = model.state()
    if state.intent is None:
        return
    try:
        entry = ledger.read_line(state.intent)
    except ValueError as error:
        info(f"Deleting an unreadable intent of {model.name}: {error}")
        _delete_intent(model, lock)
        return
    move = f"the {entry.action} of {model.name} to version {entry.went_to} that {entry.who} started at {entry.when}"
    if state.intent in state.lines:
        _delete_intent(model, lock)
    elif state.champion in (entry.came_from, entry.went_to) and model.has_version(entry.went_to):
        info(f"Completing {move}.")
        _complete(model, state.intent, lock)
    else:
        info(f"Undoing {move}: the champion is now {ledger.describe_version(state.champion)}.")
        _delete_intent(model, lock)


def _complete(model: _Model, line: str, lock: _Lock) -> None:
    """Carry out an intent; any of its steps may have been done before."""
    entry = ledger.read_line(line)
    if entry.came_from is not None:
        lock.check()
        set_alias(model.name, PREVIOUS, entry.came_from)
        crash_point("previous")
    lock.check()
    set_alias(model.name, CHAMPION, entry.went_to)
    crash_point("champion")
    lock.check()
    model.set_tag(ledger.tag_of(entry.number), line)
    crash_point("ledger")
    _delete_intent(model, lock)


def _delete_intent(model: _Model, lock: _Lock) -> None:
    lock.check()
    model.delete_tag(INTENT_TAG)
    crash_point("settled")
