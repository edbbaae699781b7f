"""Run code that a file or document may break in a process of its own.

A limit of memory and one of seconds end that process, and with it nothing else. It is kept for the next call and
started again after a death. What it did before must not decide, so that a death counts only in a fresh one.
"""

import atexit
import ctypes
import os
import pickle
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from itertools import chain
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from concord.models.errors import ConcordError
from concord.pipeline.config import ReaderConfig
from concord.pipeline.errors import ShortageError
from concord.pipeline.readers.records import RecordError

Result = TypeVar("Result")

_BOOT = """
import sys
from multiprocessing.connection import Connection
connection = Connection(int(sys.argv[1]))
sys.path[:] = connection.recv()
from concord.pipeline.readers.extraction import serve
serve(connection, parent=int(sys.argv[2]))
"""
_NO_MEMORY = 77
"""The exit code of a process that finds no memory."""
_WALL_CLOCK = 10
"""A record may take so many times ``reader.extraction_seconds`` while the process waits or others use the cores."""
_ATTEMPTS = 3
"""A record has up to so many processes: one that was used before, one that is killed from outside, and one more."""
_POLL_SECONDS = 0.2
_PR_SET_PDEATHSIG = 1
_SAID_TO = 2
"""The file of what a library says."""
_MEMORY_WORDS = (b"memory allocation", b"out of memory", b"bad_alloc", b"cannot allocate")


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class Isolation:
    """A kind of process, of which one at most waits for a call; several threads that call at once have one each.

    Attributes:
        prepare: what it does first, without limits.
        verb: what it does then, in words.
        died: the code of the error when it ends for another reason than its limits.
        environment: variables that differ from those of this process.
    """

    prepare: Callable[[], object]
    verb: str
    died: str
    environment: Mapping[str, str] = field(default_factory=dict)
    _idle: "list[_Child]" = field(default_factory=list)

    def each(
        self,
        function: Callable[..., Result],
        calls: Sequence[tuple[object, ...]],
        *,
        config: ReaderConfig,
        on_wait: Callable[[], object] | None = None,
    ) -> list[Result | RecordError]:
        """Return what calls of a function return, or the RecordError that each raises, or for which the process ends.

        All that crosses is pickled. Calls cross together, which saves time where they are short; when they end the
        process, one after the other.

        Args:
            config: the limits of memory, beyond what the process takes when it is prepared, and of seconds.
            on_wait: called a few times a second.

        Raises:
            ConcordError: when the process cannot be started.
        """
        request = pickle.dumps((function, calls, config.extraction_memory_bytes, config.extraction_seconds))
        for _ in range(_ATTEMPTS):
            child = self._take()
            answer = child.ask(request, on_wait)
            if answer is not None:
                self._put_back(child)
                return answer
            if len(calls) > 1:
                alone = (self.each(function, [call], config=config, on_wait=on_wait) for call in calls)
                return [*chain.from_iterable(alone)]
            if not child.is_innocent:
                break
        return [child.fault(config, self)]

    def one(self, function: Callable[..., Result], *arguments: object, config: ReaderConfig) -> Result:
        """Return what a function returns; raise as ``each`` returns."""
        (found,) = self.each(function, [arguments], config=config)
        if isinstance(found, RecordError):
            raise found
        return found

    def _put_back(self, child: "_Child") -> None:
        child.is_fresh = False
        if self._idle:
            child.close()
        else:
            self._idle.append(child)

    def _take(self) -> "_Child":
        with suppress(IndexError):
            return self._idle.pop()
        return _Child(self)

    def close(self) -> None:
        """End the process that waits for a call, if there is one."""
        while self._idle:
            self._idle.pop().close()


EXTRACTION = Isolation(
    prepare=partial(import_module, "concord.pipeline.readers.read_file"),
    verb="reads",
    died="extraction_died",
    # Threads of libraries would only take addresses.
    environment={"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
)
os.register_at_fork(after_in_child=EXTRACTION._idle.clear)  # the process that waits is that of the parent
atexit.register(EXTRACTION.close)


def outcome(function: Callable[..., Result], *arguments: object) -> Result | RecordError:
    """Return what a function returns, or the RecordError that it raises."""
    try:
        return function(*arguments)
    except RecordError as error:
        return error.with_traceback(None)


class _Child:
    """A process that answers one call after the other."""

    def __init__(self, kind: Isolation) -> None:
        ours, theirs = socket.socketpair()
        self._connection = Connection(ours.detach())
        self._errors = os.fdopen(os.memfd_create("errors"), "rb")
        self.is_fresh = True
        command = [sys.executable, "-P", "-c", _BOOT, str(theirs.fileno()), str(os.getpid())]
        try:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, **kind.environment},
                stdin=subprocess.DEVNULL,
                stdout=self._errors,
                stderr=self._errors,
                pass_fds=[theirs.fileno()],
            )
        except OSError as error:
            raise _cannot_start(kind, str(error)) from error
        finally:
            theirs.close()
        try:
            self._connection.send(sys.path)
            self._connection.send(kind.prepare)
            self._connection.recv()
        except (EOFError, OSError) as error:
            self.close()
            raise _cannot_start(kind, self._said.decode(errors="replace").strip() or str(error)) from error

    @property
    def is_innocent(self) -> bool:
        """Whether its end may not be due to the record: it was killed from outside, or died of what it did before."""
        status = self._process.returncode
        return status == -signal.SIGKILL or not (self.is_fresh or status == -signal.SIGPROF)

    def ask(self, request: bytes, on_wait: Callable[[], object] | None) -> list[Any] | None:
        """Return its answer; None where it has ended or ends instead."""
        try:
            self._connection.send_bytes(request)
            while on_wait is not None and not self._connection.poll(_POLL_SECONDS):
                on_wait()
            answer: list[Any] = self._connection.recv()
        except (EOFError, OSError):
            self.close()
            return None
        except BaseException:
            # An answer that nobody has taken would be that to the next call.
            self.close()
            raise
        return answer

    def close(self) -> None:
        """End the process."""
        self._connection.close()
        self._process.kill()
        self._process.wait()
        self._said = os.pread(self._errors.fileno(), 1 << 16, 0)
        self._errors.close()

    def fault(self, config: ReaderConfig, kind: Isolation) -> RecordError:
        """Return why the process has ended."""
        status, seconds = self._process.returncode, config.extraction_seconds
        code, setting = "took_too_long", "seconds"
        if status in (-signal.SIGPROF, -signal.SIGALRM):
            # The same whichever of them comes first, which other programs decide.
            limit = f"{seconds:g} s of processor time, or {_WALL_CLOCK * seconds:g} s by the clock"
        elif status == _NO_MEMORY or any(words in self._said.lower() for words in _MEMORY_WORDS):
            code, setting = "took_too_much_memory", "memory_bytes"
            limit = f"{config.extraction_memory_bytes:,} bytes of memory"
        else:
            ended = f"exit code {status}" if status >= 0 else f"signal {-status} ({signal.Signals(-status).name})"
            reason = f"the process that {kind.verb} it ended by {ended}; repair or remove it"
            return RecordError(kind.died, reason)
        advice = f"repair or remove it, or raise reader.extraction_{setting} in a retry"
        return RecordError(code, f"took more than {limit}; {advice}")


def _cannot_start(kind: Isolation, reason: str) -> ConcordError:
    what = f"the process that {kind.verb} what may end it cannot be started"
    return ConcordError(f"{what}: {reason}; run the same command again")


def serve(connection: Connection, *, parent: int) -> NoReturn:
    """Answer calls until the other process is gone, also within code that does not look."""
    global _scarce_from
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # those to a group of processes are meant for the one that asks
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # a system without memory is to end it, not the other
    connection.recv()()
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    start = _size()
    connection.send(None)
    try:
        while not _scarce_from or _size() <= _scarce_from:  # so that the next record finds about the same
            request = connection.recv_bytes()
            # What is said of one record is no reason of the next one's death.
            os.ftruncate(_SAID_TO, 0)
            os.lseek(_SAID_TO, 0, os.SEEK_SET)
            function, calls, memory, seconds = pickle.loads(request)
            limit, _scarce_from = start + memory, start + memory // 2
            limit = limit if most == resource.RLIM_INFINITY else min(limit, most)
            resource.setrlimit(resource.RLIMIT_AS, (limit, most))
            answer = []
            for arguments in calls:
                _set_timers(seconds)
                answer.append(outcome(function, *arguments))
            _set_timers(0)
            connection.send(answer)
    except (MemoryError, ShortageError):
        os._exit(_NO_MEMORY)
    except (EOFError, ConnectionError):
        pass
    os._exit(0)


def _set_timers(seconds: float) -> None:
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, _WALL_CLOCK * seconds)


_scarce_from = 0
"""In a process of its own, the bytes from which a library may have found no memory."""


def is_short_of_memory() -> bool:
    """Tell whether this is a process of its own and has taken so much memory that a library may have found none."""
    if not _scarce_from:
        return False
    peak = re.search(rb"VmPeak:\s*(\d+) kB", Path("/proc/self/status").read_bytes())
    return peak is not None and int(peak[1]) << 10 > _scarce_from


def _size() -> int:
    """Return the bytes of addresses that this process has."""
    with open("/proc/self/statm", "rb", buffering=0) as file:  # noqa: PTH123 - faster, for each record
        return int(file.read().split()[0]) * resource.getpagesize()
