"""Run code that a file may break in a process of its own, which is kept and started again after a death.

A limit of memory and one of seconds for each record end that process, and with it nothing else: the record is a
``Death``, and the work goes on behind it. What a process did before must not decide, so that a death counts only when
the record is the first one of a process; otherwise it is tried once more in a fresh one.
"""

import atexit
import ctypes
import fcntl
import os
import pickle
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, NoReturn

from concord.models.errors import ConcordError
from concord.pipeline.config import ReaderConfig
from concord.pipeline.readers.records import RecordError

Work = Callable[[int, int | None], Iterator[Any]]
"""Yields the items between two positions; ``begin`` is called before each. It is pickled, as are the items."""

_BOOT = """
import sys
from multiprocessing.connection import Connection
connection = Connection(int(sys.argv[1]))
sys.path[:] = connection.recv()
from concord.pipeline.readers.extraction import serve
serve(connection, mark_file=int(sys.argv[2]), parent=int(sys.argv[3]))
"""
_START_SECONDS = 300
_FLUSH_BYTES = 1 << 18
_FLUSH_SECONDS = 0.05
_DRAIN_SECONDS = 0.5
_MOST_GROWTH = 4
"""A process that keeps one of so many parts of its memory is replaced, so that a record finds about the same."""
_NO_MEMORY = 77
"""The exit code of a process that finds no memory."""
_WALL_CLOCK = 10
"""A record may take so many times ``reader.extraction_seconds`` while the process waits or others use the cores."""
_PR_SET_PDEATHSIG = 1
_MEMORY_WORDS = (b"memory allocation", b"out of memory", b"bad_alloc", b"cannot allocate")
_BYTES_OF_SIZE = 8


class Mark(NamedTuple):
    """The record that a process is at: half-open positions, and the id if it is known.

    ``end`` is None while the record is only searched for.
    """

    start: int
    end: int | None = None
    doc_id: str | None = None


class Death(NamedTuple):
    """A record that ended its process; code and message become those of a dead letter."""

    mark: Mark
    code: str
    message: str


class _Child:
    """A process that does one piece of work after the other."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self._marks, self._errors = (os.memfd_create(name) for name in ("marks", "errors"))
        self.connection = Connection(ours.detach())
        fcntl.fcntl(self._errors, fcntl.F_SETFL, os.O_APPEND)
        self.is_fresh = True
        self.owner = os.getpid()
        descriptors = (theirs.fileno(), self._marks)
        command = [sys.executable, "-P", "-c", _BOOT, *map(str, descriptors), str(os.getpid())]
        # Threads of libraries would only take addresses.
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        try:
            self._process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=self._errors,
                stderr=self._errors,
                pass_fds=descriptors,
            )
        except OSError as error:
            raise _cannot_start(str(error)) from error
        finally:
            theirs.close()
        try:
            self.connection.send(sys.path)
            if not self.connection.poll(_START_SECONDS):
                raise _cannot_start(f"no answer within {_START_SECONDS} s")
            self.connection.recv()
        except (EOFError, OSError) as error:
            self.close()
            raise _cannot_start(self._said().decode(errors="replace").strip() or str(error)) from error

    def run(
        self, work: Work, start: int, stop: int | None, config: ReaderConfig, *, at_once: bool
    ) -> Generator[Any, None, Death | None]:
        """Yield items and their ends; return the Death if there is one, whose record may not be the first one.

        Args:
            at_once: let each item come when it is ready, and not together with others, which a death would lose.
        """
        os.ftruncate(self._marks, 0)
        os.ftruncate(self._errors, 0)
        limits = config.extraction_memory_bytes, config.extraction_seconds
        try:
            self.connection.send_bytes(pickle.dumps((work, start, stop, *limits, at_once)))
            while True:
                kind, content = self.connection.recv()
                if kind == "items":
                    yield from content
                    continue
                self.is_fresh = False
                if kind == "error":
                    raise content
                if content:
                    self.close()
                return None
        except (EOFError, ConnectionError):
            self.close()
            return Death(self._mark() or Mark(start), *self._cause(config))

    def drain(self) -> None:
        """Wait a little for the end of work whose rest is not wanted; end the process if it goes on."""
        until = time.monotonic() + _DRAIN_SECONDS
        with suppress(EOFError, OSError):
            while self.connection.poll(max(until - time.monotonic(), 0)):
                if self.connection.recv()[0] != "items":
                    self.is_fresh = False
                    return
        self.close()

    def is_alive(self) -> bool:
        """Tell whether it can take work; of a process that was forked, another one waits for the answers."""
        return self.owner == os.getpid() and not self.connection.closed and self._process.poll() is None

    def close(self) -> None:
        """End the process."""
        self.connection.close()
        if self.owner == os.getpid() and self._process.returncode is None:
            # Not Popen.kill, which looks first whether it has ended, and then waits no more.
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def __del__(self) -> None:
        for file in (self._marks, self._errors):
            with suppress(OSError):
                os.close(file)

    def _mark(self) -> Mark | None:
        size = int.from_bytes(os.pread(self._marks, _BYTES_OF_SIZE, 0), "big")
        return Mark(*pickle.loads(os.pread(self._marks, size, _BYTES_OF_SIZE))) if size else None

    def _said(self) -> bytes:
        return os.pread(self._errors, 1 << 16, 0)

    def _cause(self, config: ReaderConfig) -> tuple[str, str]:
        """Return why the process has ended, as a code and in words."""
        status = self._process.returncode
        memory, seconds = f"{config.extraction_memory_bytes:,} bytes of memory", config.extraction_seconds
        if status == _NO_MEMORY or any(words in self._said().lower() for words in _MEMORY_WORDS):
            return "took_too_much_memory", f"took more than {memory}; {_advice('memory_bytes')}"
        if status == -signal.SIGPROF:
            return "took_too_long", f"took more than {seconds:g} s; {_advice('seconds')}"
        if status == -signal.SIGALRM:
            return "took_too_long", f"took more than {_WALL_CLOCK * seconds:g} s by the clock; {_advice('seconds')}"
        ended = f"exit code {status}" if status >= 0 else f"signal {-status} ({signal.Signals(-status).name})"
        return "extraction_died", f"the process that reads it ended by {ended}; repair the file or remove it"


def isolated(work: Work, config: ReaderConfig, *, start: int = 0, stop: int | None = None) -> Iterator[Any]:
    """Yield the items of work that is done in another process, and a Death in place of each record that ends it.

    Nothing follows a Death whose mark has no end.

    Raises:
        ConcordError: when the process cannot be started, or as the work raises it.
    """
    suspect: int | None = None
    while True:
        child = _take(fresh=suspect == start)
        first, was_fresh, death = start, child.is_fresh, None
        is_before = suspect is not None and start < suspect
        items = child.run(work, start, suspect if is_before else stop, config, at_once=is_before)
        try:
            while True:
                try:
                    item, start = next(items)
                except StopIteration as end:
                    death = end.value
                    break
                yield item
        except GeneratorExit:
            child.drain()
            raise
        except (ConcordError, RecordError):
            raise
        except BaseException:
            # Answers that nobody has taken would be those to the next work.
            child.close()
            raise
        finally:
            _put_back(child)
        if death is None and not is_before:
            return
        if death is None or (is_before and death.mark.start >= (suspect or 0)):
            # All that is before the suspect has come.
            start = suspect or 0
        elif was_fresh and death.mark.start == first == start:
            yield death
            if death.mark.end is None or death.mark.end == stop:
                return
            start, suspect = death.mark.end, None
        else:
            suspect = max(death.mark.start, start)


_idle: list[_Child] = []
_lock = threading.Lock()


def _take(*, fresh: bool) -> _Child:
    """Return a process that waits for work, or a new one; several threads have one each."""
    with _lock:
        child = _idle.pop() if _idle else None
    if child is not None and child.is_alive() and not (fresh and not child.is_fresh):
        return child
    if child is not None:
        child.close()
    return _Child()


def _put_back(child: _Child) -> None:
    """Keep a process for the next work, one at most."""
    if child.is_alive():
        with _lock:
            if not _idle:
                _idle.append(child)
                return
        child.close()


@atexit.register
def close_idle() -> None:
    """End the process that waits for work, if there is one."""
    while _idle:
        _idle.pop().close()


def _cannot_start(reason: str) -> ConcordError:
    return ConcordError(f"the process that extracts texts cannot be started: {reason}; run the same command again")


def _advice(setting: str) -> str:
    return f"repair the file or remove it, or raise reader.extraction_{setting} in a retry"


def begin(mark: Mark) -> None:
    """Say which record is read next. Within a process of its own, its limits of time begin."""
    if _server is not None:
        _server.begin(mark)


def is_isolated() -> bool:
    """Tell whether this is a process of its own."""
    return _server is not None


def is_short_of_memory() -> bool:
    """Tell whether a process of its own has taken so much memory that a library may have found none."""
    return _server is not None and _server.is_short_of_memory()


class _Server:
    """Answers requests in the other process."""

    def __init__(self, connection: Connection, mark_file: int) -> None:
        self._connection = connection
        self._marks = mark_file
        self._size = 0
        self._seconds, self._memory = 0.0, 0
        self._waiting: list[tuple[Any, int]] = []
        self._mark = Mark(0)

    def begin(self, mark: Mark) -> None:
        self._mark = mark
        content = pickle.dumps(tuple(mark))
        os.pwrite(self._marks, len(content).to_bytes(_BYTES_OF_SIZE, "big") + content, 0)
        self._set_timers(self._seconds)

    def answer(self, work: Work, start: int, stop: int | None, memory: int, seconds: float, at_once: bool) -> None:
        """Do work, and send its items in parcels."""
        self._size = self._size or _size()
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        limit, self._memory = self._size + memory, memory
        resource.setrlimit(resource.RLIMIT_AS, (limit if most == resource.RLIM_INFINITY else min(limit, most), most))
        self._seconds = seconds
        flushed, size = time.monotonic(), 0
        try:
            self.begin(Mark(start))
            for item in work(start, stop):
                self._set_timers(0)
                self._waiting.append((item, start if self._mark.end is None else self._mark.end))
                size += len(getattr(item, "text", ""))
                if at_once or size > _FLUSH_BYTES or time.monotonic() - flushed > _FLUSH_SECONDS:
                    self._flush()
                    flushed, size = time.monotonic(), 0
                self._set_timers(seconds)
        except (ConcordError, RecordError) as error:
            self._finish("error", error.with_traceback(None))
        else:
            self._finish("done", _size() - self._size > memory // _MOST_GROWTH)

    def is_short_of_memory(self) -> bool:
        with open("/proc/self/status", "rb") as file:  # noqa: PTH123
            peak = next(int(line.split()[1]) << 10 for line in file if line.startswith(b"VmPeak"))
        return peak > self._size + self._memory // 2

    def _finish(self, kind: str, content: object) -> None:
        self._set_timers(0)
        self._flush()
        self._connection.send((kind, content))

    def _flush(self) -> None:
        if self._waiting:
            self._connection.send(("items", self._waiting))
            self._waiting = []

    def _set_timers(self, seconds: float) -> None:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        signal.setitimer(signal.ITIMER_REAL, _WALL_CLOCK * seconds)


_server: _Server | None = None


def serve(connection: Connection, *, mark_file: int, parent: int) -> NoReturn:
    """Answer requests until the other process is gone, also within code that does not look."""
    global _server
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # those to a group of processes are meant for the one that asks
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _server = _Server(connection, mark_file)
    connection.send(None)
    try:
        while True:
            _server.answer(*pickle.loads(connection.recv_bytes()))
    except MemoryError:
        os._exit(_NO_MEMORY)
    except (EOFError, OSError):
        os._exit(0)


def _size() -> int:
    """Return the bytes of addresses that this process has."""
    with open("/proc/self/statm", "rb") as file:  # noqa: PTH123
        return int(file.read().split()[0]) * resource.getpagesize()
