"""Writing text files atomically, compressed if their name ends in ``.gz`` or ``.zst``."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from concord.pipeline.storage.atomic_writes import move_into_place, stage_file, store_errors

_CODECS = {".gz": "gzip", ".zst": "zstd"}


def write_compressed(path: Path, pieces: Iterable[str]) -> None:
    """Atomically write a text file, replacing any existing one; the suffixes ``.gz`` and ``.zst`` compress it.

    Args:
        pieces: the text in order; never held in memory as a whole.

    Raises:
        StoreError: when there is no space.
    """

    def fill(stream: BinaryIO) -> None:
        codec = _CODECS.get(path.suffix)
        if codec is None:
            stream.writelines(piece.encode() for piece in pieces)
            return
        # Arrow closes what it writes to, but the stream itself still has to be flushed to disk.
        with (
            os.fdopen(os.dup(stream.fileno()), "wb") as copy,
            pa.CompressedOutputStream(pa.PythonFile(copy, mode="w"), codec) as compressed,
        ):
            for piece in pieces:
                compressed.write(piece.encode())

    with store_errors(path):
        move_into_place(stage_file(path.parent, fill), path)
