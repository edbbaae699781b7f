"""Hashes of input files, cached from run to run."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import orjson
from pydantic import TypeAdapter, ValidationError

from concord.pipeline.storage.atomic_writes import store_errors, write_atomically
from concord.pipeline.storage.files import file_sha256
from concord.pipeline.storage.output_paths import OutputPath, read_bytes
from concord.pipeline.storage.remote_files import FileState

HashFiles = Callable[[Mapping[str, FileState]], Sequence[str]]
"""Returns the SHA-256 in hex of each file, in order; raises InputError or StoreError when one cannot be read."""

# A file changed more recently than this may change again without a visible change of its time.
_SETTLED_SECONDS = 2.0

_Entry = tuple[int, int | str | None, str]
"""Size, change and SHA-256 of a file."""
_ENTRIES = TypeAdapter(dict[str, _Entry])


def hash_here(states: Mapping[str, FileState]) -> list[str]:
    """Hash files one after the other in this process; a HashFiles."""
    return [file_sha256(path) for path in states]


class FileHashes:
    """Hashes files, except those whose size and time (or etag) are the same as when they were last hashed.

    The cache is a file of its own that may be lost at any time: it saves work and decides nothing else.
    """

    def __init__(
        self, cache: OutputPath | None = None, *, hash_files: HashFiles = hash_here, use_cache: bool = True
    ) -> None:
        """Read the cache that earlier runs wrote, if any; without ``use_cache`` every file is hashed again."""
        self._cache = cache
        self._hash_files = hash_files
        self._known: dict[str, _Entry] = {}
        if cache is not None and use_cache:
            with suppress(FileNotFoundError, ValidationError):
                self._known = _ENTRIES.validate_json(read_bytes(cache))
        self._seen: dict[str, _Entry] = {}

    def hash(self, states: Mapping[str, FileState]) -> dict[str, str]:
        """Return the SHA-256, in hex, of files in these states, by path."""
        digests = {
            path: entry[2]
            for path, state in states.items()
            if (entry := self._seen.get(path) or self._known.get(path)) is not None and entry[:2] == state
        }
        unknown = {path: state for path, state in states.items() if path not in digests}
        digests |= zip(unknown, self._hash_files(unknown), strict=True)
        settled = time.time_ns() - int(_SETTLED_SECONDS * 1e9)
        for path, state in states.items():
            if isinstance(state.changed, str) or (state.changed is not None and state.changed < settled):
                self._seen[path] = (*state, digests[path])
        return digests

    def save(self, *, staging: Path | None) -> None:
        """Write the cache for the next run."""
        if self._cache is not None and self._seen != self._known:
            with store_errors(self._cache):
                write_atomically(self._cache, orjson.dumps(self._seen), staging=staging)
