"""Hashes of input files, remembered from run to run."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import orjson

from concord.pipeline.storage.atomic_writes import store_errors, write_atomically
from concord.pipeline.storage.files import file_sha256
from concord.pipeline.storage.output_paths import OutputPath
from concord.pipeline.storage.remote_files import FileState

HashFiles = Callable[[Sequence[str]], list[str]]

# A file that was changed this short a time ago may change again without a sign in its time.
_SETTLED_SECONDS = 2.0


def hash_here(paths: Sequence[str]) -> list[str]:
    """Give the sha256, in hex, of files, one after the other in this process.

    Raises:
        InputError, StoreError: when one cannot be read.
    """
    return [file_sha256(path) for path in paths]


class FileHashes:
    """Hashes files, but those whose size and time (or etag) are as when they were hashed last.

    The memory is a file of its own that may be lost at any time: it spares work and decides nothing else.
    """

    def __init__(
        self, memory: OutputPath | None = None, *, hash_files: HashFiles = hash_here, trust: bool = True
    ) -> None:
        """Begin.

        Args:
            memory: the file that earlier runs have kept; nothing is remembered if None.
            hash_files: gives the sha256 in hex of each of the files, in order.
            trust: go by what is remembered; else every file is hashed.
        """
        self._memory = memory
        self._hash_files = hash_files
        self._known = _read(memory) if trust else {}
        self._seen: dict[str, list[object]] = {}

    def of(self, paths: Sequence[str], states: Sequence[FileState]) -> list[str]:
        """Give the sha256, in hex, of files that are in these states.

        Raises:
            InputError, StoreError: when one cannot be read.
        """
        known = {
            path: str(self._known[path][2])
            for path, state in zip(paths, states, strict=True)
            if self._known.get(path, [])[:2] == list(state)
        }
        unknown = [path for path in paths if path not in known]
        known |= zip(unknown, self._hash_files(unknown), strict=True)
        settled = time.time_ns() - int(_SETTLED_SECONDS * 1e9)
        for path, state in zip(paths, states, strict=True):
            if isinstance(state.changed, str) or (state.changed is not None and state.changed < settled):
                self._seen[path] = [*state, known[path]]
        return [known[path] for path in paths]

    def keep(self, *, staging: Path) -> None:
        """Write down what was seen, for the next run."""
        if self._memory is not None and self._seen != self._known:
            with store_errors(self._memory):
                write_atomically(self._memory, orjson.dumps(self._seen), staging=staging)


def _read(memory: OutputPath | None) -> Mapping[str, list[object]]:
    try:
        known = orjson.loads(memory.read_bytes()) if memory is not None else {}
    except (FileNotFoundError, orjson.JSONDecodeError):
        return {}
    return known if isinstance(known, dict) else {}
