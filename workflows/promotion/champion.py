"""Moving a model's champion: one mover at a time, only from where it was seen, with a line in the ledger.

MLflow cannot compare and set an alias, but of several processes that create one registered model, one does. So a model
of an agreed name is the lock; under it the champion is compared with what the mover has seen, the ledger's line is
written down as an intent, the aliases move, the line joins the ledger, and the intent goes. Whoever finds an intent
finishes what it says, or undoes it where the champion stands elsewhere by now.

The lock has no fence: the store does not ask whoever moves an alias for it. A mover that is held up for longer than
``LOCK_SECONDS`` loses its lock to the next. It looks at lock and clock before each step, so the danger is one call to
the store that hangs for so long; clocks of machines must agree to within a minute. A trigger that is run once at a time
(a CI concurrency group) has no such danger.
"""

import getpass
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from concord.pipeline.errors import ConcordError
from concord.pipeline.storage.atomic_writes import crash_point
from concord.workflows.console import info, warn
from concord.workflows.environment import has_ended, process_name
from concord.workflows.promotion.ledger import (
    BEGINNING,
    Entry,
    line_hash,
    lines_of,
    next_number,
    read_line,
    tag_of,
    write_line,
)
from concord.workflows.registry.mlflow_client import TrackingError, explained, open_client
from concord.workflows.registry.model_versions import LOCK_SUFFIX, create_model

CHAMPION, PREVIOUS = "champion", "previous"
INTENT_TAG = "concord.intent"
LOCK_SECONDS = 120.0
"""After so many seconds a lock counts as left behind."""
HOLD_SECONDS = 60.0
"""A mover gives up after so many, so that its last call ends before its lock can be broken."""
_OWNER, _TOKEN, _SINCE = "concord.owner", "concord.token", "concord.since"
_POLL_SECONDS = 0.3
STEPS = ("locked", "intent", "previous", "champion", "ledger", "settled")
"""What ``concord.pipeline.storage.atomic_writes.reach`` is told of a move, in order."""


class RaceLostError(ConcordError):
    """The champion is not the one that the mover has seen."""

    exit_code = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """Where a model stands: its aliases, its ledger, and the line of a move that was begun and not ended."""

    champion: int | None
    previous: int | None
    lines: tuple[str, ...]
    next_number: int
    intent: str | None


def settled_state(name: str) -> State:
    """Look at a model, after finishing or undoing what a mover that was killed has left.

    Raises:
        ModelError: when there is no such model.
        TrackingError: when the store cannot be reached.
    """
    model = _Model(name)
    state = model.state()
    if state.intent is None:
        return state
    with _locked(model) as lock:
        _resolve(model, lock)
    return model.state()


def move_champion(name: str, *, expected: int | None, entry: Entry) -> Entry:
    """Move the champion to ``entry.went_to`` if it is at ``expected``, and give the line that the ledger has of it.

    Args:
        expected: the version that was compared with; None where there was no champion.
        entry: its number and the hash of the line before are set here, under the lock.

    Raises:
        RaceLostError: when the champion is elsewhere.
        ModelError: when there is no such model.
        TrackingError: when the store fails or is too slow; a move that was begun is finished by the next call.
    """
    model = _Model(name)
    with _locked(model) as lock:
        _resolve(model, lock)
        state = model.state()
        if state.champion != expected:
            raise RaceLostError(
                f"{name}: the champion is {_version(state.champion)} by now and was {_version(expected)} when this "
                "began; nothing was moved, run the command again"
            )
        last = line_hash(state.lines[-1]) if state.lines else BEGINNING
        line = write_line(replace(entry, number=state.next_number, previous=last))
        lock.check()
        model.set_tag(INTENT_TAG, line)
        crash_point("intent")
        _finish(model, line, lock)
        return read_line(line)


def who() -> str:
    """Name user and host."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


def now() -> str:
    """Give the time as it stands in the ledger."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class _Model:
    """A registered model, as far as its champion is concerned; every method may raise TrackingError."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._client = open_client()

    def state(self) -> State:
        with explained(f"{self.name} could not be looked up", absent=self.name):
            found = self._client.get_registered_model(self.name)
        aliases = {alias: int(version) for alias, version in found.aliases.items()}
        return State(
            champion=aliases.get(CHAMPION),
            previous=aliases.get(PREVIOUS),
            lines=tuple(lines_of(found.tags)),
            next_number=next_number(found.tags),
            intent=found.tags.get(INTENT_TAG),
        )

    def set_tag(self, key: str, value: str) -> None:
        with explained(f"{key} of {self.name} could not be written"):
            self._client.set_registered_model_tag(self.name, key, value)

    def drop_tag(self, key: str) -> None:
        with explained(f"{key} of {self.name} could not be dropped"):
            self._client.delete_registered_model_tag(self.name, key)

    def set_alias(self, alias: str, version: int) -> None:
        with explained(f"the alias {alias} of {self.name} could not be set"):
            self._client.set_registered_model_alias(self.name, alias, str(version))

    def has_version(self, version: int) -> bool:
        found = _if_there(lambda: self._client.get_model_version(self.name, str(version)))
        return found is not None

    def lock_tags(self) -> dict[str, str] | None:
        """Give the tags of the lock; None where there is none."""
        found = _if_there(lambda: self._client.get_registered_model(self.name + LOCK_SUFFIX))
        return None if found is None else dict(found.tags)

    def drop_lock(self) -> None:
        _if_there(lambda: self._client.delete_registered_model(self.name + LOCK_SUFFIX))


def _if_there(call: Callable[[], Any]) -> Any:
    """Call the store; None where what is asked for does not exist."""
    try:
        with explained("the registry could not be asked"):
            return call()
    except TrackingError as error:
        if error.code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Lock:
    """A lock that this process has made."""

    model: _Model
    token: str
    since: float

    def check(self) -> None:
        """Check that it still stands and has not been held for too long.

        Raises:
            TrackingError: when not.
        """
        held = time.monotonic() - self.since
        if held > HOLD_SECONDS:
            raise TrackingError(f"{self.model.name}: locked for {held:.0f} s; the store is too slow, try again")
        if not self.stands():
            raise TrackingError(f"{self.model.name}: another process has broken the lock of this one, try again")

    def stands(self) -> bool:
        """Say whether the lock in the store is this one."""
        return (self.model.lock_tags() or {}).get(_TOKEN) == self.token


@contextmanager
def _locked(model: _Model) -> Iterator[_Lock]:
    lock = _take_lock(model)
    crash_point("locked")
    try:
        yield lock
    finally:
        # A store that fails here must not hide what has failed before; the lock ages until it may be broken.
        try:
            if lock.stands():
                model.drop_lock()
        except TrackingError as error:
            warn(f"the lock of {model.name} is left behind for {LOCK_SECONDS:.0f} s. {error}")


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
            info(f"Breaking the lock of {model.name} that {holder.get(_OWNER)} has left behind.")
            model.drop_lock()
        elif time.monotonic() > deadline:
            raise TrackingError(f"{model.name}: locked by {(holder or {}).get(_OWNER)}; try again")
        else:
            time.sleep(_POLL_SECONDS)


def _is_stale(tags: dict[str, str]) -> bool:
    """Say whether a lock's owner is dead, or has had it for too long."""
    if has_ended(tags.get(_OWNER, "")):
        return True
    try:
        return time.time() - float(tags[_SINCE]) > LOCK_SECONDS
    except (KeyError, ValueError):
        return True  # nobody who holds it wrote this


def _resolve(model: _Model, lock: _Lock) -> None:
    """Finish a move that was begun, or undo it where that cannot be done any more."""
    state = model.state()
    if state.intent is None:
        return
    try:
        entry = read_line(state.intent)
    except ValueError as error:
        info(f"Dropping an intent of {model.name} that cannot be read: {error}")
        _drop_intent(model, lock)
        return
    begun = f"the {entry.action} of {model.name} to version {entry.went_to} that {entry.who} began at {entry.when}"
    if state.intent in state.lines:
        _drop_intent(model, lock)
    elif state.champion in (entry.came_from, entry.went_to) and model.has_version(entry.went_to):
        info(f"Finishing {begun}.")
        _finish(model, state.intent, lock)
    else:
        info(f"Undoing {begun}: the champion is {_version(state.champion)} by now.")
        _drop_intent(model, lock)


def _finish(model: _Model, line: str, lock: _Lock) -> None:
    """Do what an intent says; every step may have been done before."""
    entry = read_line(line)
    if entry.came_from is not None:
        lock.check()
        model.set_alias(PREVIOUS, entry.came_from)
        crash_point("previous")
    lock.check()
    model.set_alias(CHAMPION, entry.went_to)
    crash_point("champion")
    lock.check()
    model.set_tag(tag_of(entry.number), line)
    crash_point("ledger")
    _drop_intent(model, lock)


def _drop_intent(model: _Model, lock: _Lock) -> None:
    lock.check()
    model.drop_tag(INTENT_TAG)
    crash_point("settled")


def _version(number: int | None) -> str:
    return "none" if number is None else f"version {number}"
