"""Files of text that stand whole under their name or not at all, packed as the name says."""

from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from pipeline.durable import stage, store_faults, swap_in

_CODECS = {".gz": "gzip", ".zst": "zstd"}


def write_packed(path: Path, text: str) -> None:
    """Write a file in one step, over whatever bears its name; ``.gz`` and ``.zst`` are packed.

    Raises:
        StoreError: when there is no space.
    """
    content = _packed(text.encode(), path)

    def fill(stream: BinaryIO) -> None:
        stream.write(content)

    with store_faults(path):
        swap_in(stage(path.parent, fill), path)


def _packed(content: bytes, path: Path) -> bytes:
    codec = _CODECS.get(path.suffix)
    if codec is None:
        return content
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(content)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed
