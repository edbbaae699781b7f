"""Files of text that stand whole under their name or not at all, packed as the name says."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from concord.pipeline.storage.atomic_writes import move_into_place, stage_file, store_errors

_CODECS = {".gz": "gzip", ".zst": "zstd"}


def write_compressed(path: Path, pieces: Iterable[str]) -> None:
    """Write a file in one step, over whatever bears its name; ``.gz`` and ``.zst`` are packed.

    Args:
        pieces: the text from its beginning to its end; never held as a whole.

    Raises:
        StoreError: when there is no space.
    """

    def fill(stream: BinaryIO) -> None:
        codec = _CODECS.get(path.suffix)
        if codec is None:
            stream.writelines(piece.encode() for piece in pieces)
            return
        # Arrow closes what it writes to; the stream itself is still to be flushed to disk.
        with (
            os.fdopen(os.dup(stream.fileno()), "wb") as copy,
            pa.CompressedOutputStream(pa.PythonFile(copy, mode="w"), codec) as packed,
        ):
            for piece in pieces:
                packed.write(piece.encode())

    with store_errors(path):
        move_into_place(stage_file(path.parent, fill), path)
