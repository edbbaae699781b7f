"""The one writer of a collection, and locks between the processes of one machine.

In a folder the kernel holds the lock (``flock``): it ends with its process, in whichever way that ends. In a store the
lock is an object that is created, or replaced, under a condition. Its writer renews it, and one that was not renewed
for ``LEASE_SECONDS`` is that of a run that was killed. Both contain who holds it since when, and a random number that
no other lock has; readers look at neither.
"""

import errno
import fcntl
import getpass
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Lock, Thread
from uuid import uuid4

from concord.models.errors import ConcordError, ConfigError
from concord.models.regular_files import open_descriptor
from concord.pipeline.errors import BusyError, IntegrityError
from concord.pipeline.storage.atomic_writes import store_errors
from concord.pipeline.storage.object_stores import StorePath, Version
from concord.pipeline.storage.output_paths import OutputPath

LEASE_SECONDS = 60.0
_RENEW_SECONDS = 15.0
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
_LARGEST = 1000
_held: set[int] = set()

Check = Callable[[], None]
"""Raises BusyError once another writer has taken the lock over."""


@contextmanager
def write_lock(path: OutputPath) -> Iterator[Check]:
    """Hold the lock of a collection, a file or an object, which is removed afterwards.

    The folders above a file are made, and removed if nothing else is in them by then.

    Raises:
        BusyError: when another writer holds it.
        ConfigError: when the file cannot be written, or its file system has no locks.
        IntegrityError: when something else is in its place.
        StoreError: when there is no space, or the store fails.
    """
    who, since = f"process {os.getpid()} of {_user()} on {socket.gethostname()}", datetime.now(UTC)
    holder = f"{who} since {since:%Y-%m-%d %H:%M:%S} UTC ({uuid4().hex})".encode()
    if isinstance(path, StorePath):
        with _Lease(path, holder).kept() as check:
            yield check
        return
    made = [folder for folder in path.parents if not folder.exists()]
    try:
        with store_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = _lock(path, holder)
    except OSError as error:
        raise ConfigError(
            f"output: expected a folder that can be written, got {path.parent.parent} ({error.filename}: "
            f"{error.strerror})"
        ) from error
    try:
        yield lambda: None
    finally:
        # A process that was forked meanwhile has closed it.
        if descriptor in _held:
            # What stays does no harm.
            with suppress(OSError):
                path.unlink()
                for folder in made:
                    folder.rmdir()
            _close(descriptor)


@contextmanager
def exclusive(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold a lock file, created if absent and never removed; a process that ends in any way releases its lock.

    Yields:
        whether this process holds the lock; False only without ``wait``, while another process holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(open_descriptor(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True


def _lock(path: Path, holder: bytes) -> int:
    """Return the descriptor of the file, locked; that of a killed process may be there already."""
    while True:
        try:
            descriptor = open_descriptor(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
        except OSError as error:
            if error.errno not in {errno.EINVAL, errno.ELOOP, errno.EISDIR, errno.ENXIO}:
                raise
            raise IntegrityError(f"{path}: expected a file, got something else; remove it, and run again") from None
        _held.add(descriptor)
        try:
            if _is_locked(descriptor, path):
                os.ftruncate(descriptor, 0)
                os.write(descriptor, holder)
                return descriptor
        except BaseException:
            _close(descriptor)
            raise
        _close(descriptor)


def _is_locked(descriptor: int, path: Path) -> bool:
    """Lock a file; False if its holder has removed it since it was opened, so that the next one makes another."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False
    except BlockingIOError:
        raise _busy(path, os.pread(descriptor, _LARGEST, 0)) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        raise ConfigError(
            f"{path}: the file system has no locks ({error.strerror}), which tell that nobody else writes to the "
            "collection; choose an output on another one, or mount it with locks"
        ) from error


def _close(descriptor: int) -> None:
    _held.discard(descriptor)
    os.close(descriptor)


class _Lease:
    """The lock object of a collection, which a thread of this process renews.

    Args:
        holder: its content, which no other lock has.
    """

    def __init__(self, path: StorePath, holder: bytes) -> None:
        self._path, self._holder = path, holder
        self._ended, self._renewing = Event(), Lock()
        self._lost = False
        self._renewed = time.monotonic()
        self._version = self._acquire()

    @contextmanager
    def kept(self) -> Iterator[Check]:
        """Renew it while the block runs, and remove it afterwards."""
        Thread(target=self._keep, name="lock", daemon=True).start()
        try:
            yield self.check
        finally:
            self._ended.set()
            with self._renewing, suppress(ConcordError, OSError):
                # Where it may be that of another writer by now, it is left alone.
                if not self._lost and time.monotonic() - self._renewed < 2 * _RENEW_SECONDS:
                    self._path.unlink(missing_ok=True)

    def check(self) -> None:
        """Raise BusyError if another writer has taken it over, and StoreError if that cannot be found out."""
        if time.monotonic() - self._renewed > LEASE_SECONDS:
            self._renew()
        if self._lost:
            raise BusyError(
                f"{self._path}: this run had not renewed its lock for {LEASE_SECONDS:g} seconds, and another one "
                "writes to the collection now; what is committed stays: run the same command again later"
            )

    def _acquire(self) -> Version:
        version = self._path.write_if(self._holder, None)
        while version is None:
            try:
                found = self._path.read()
            except FileNotFoundError:
                version = self._path.write_if(self._holder, None)
                continue
            if found.content == self._holder:
                # The answer to the request that wrote it was lost.
                return found.version
            if self._store_time() - found.modified <= LEASE_SECONDS:
                raise _busy(self._path, found.content)
            version = self._path.write_if(self._holder, found.version)
        return version

    def _store_time(self) -> float:
        """Return the time by the clock that dates objects: those of two machines may differ by minutes."""
        probe = self._path.parent / "staging" / uuid4().hex
        probe.write(b"")
        try:
            return probe.read().modified
        finally:
            probe.unlink(missing_ok=True)

    def _keep(self) -> None:
        while not self._lost and not self._ended.wait(_RENEW_SECONDS):
            # While the store fails, there is a next time.
            with suppress(ConcordError, OSError):
                self._renew()

    def _renew(self) -> None:
        with self._renewing:
            if self._ended.is_set():
                return
            started = time.monotonic()
            version = self._path.write_if(self._holder, self._version)
            if version is None:
                with suppress(FileNotFoundError):
                    found = self._path.read()
                    version = found.version if found.content == self._holder else None
            if version is None:
                self._lost = True
            else:
                self._version, self._renewed = version, started


def _busy(path: OutputPath, content: bytes) -> BusyError:
    """Return the error that says who writes to a collection, of what its lock contains."""
    who, _, _ = content.decode(errors="replace")[:_LARGEST].rpartition(" (")
    who = who if who.isprintable() else ascii(who)
    killed = f"; the lock of a run that was killed ends after {LEASE_SECONDS:g} seconds" * isinstance(path, StorePath)
    return BusyError(
        f"{path.parent.parent}: {who or 'another process'} is writing to it; wait until that run has ended, or stop "
        f"it, then run the same command again{killed}"
    )


def _user() -> str:
    # A container may have no name for its user.
    with suppress(KeyError, OSError):
        return getpass.getuser()
    return f"user {os.getuid()}"


def _after_fork() -> None:
    """Close the locks of the parent: a child that outlives it would hold them."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_after_fork)
