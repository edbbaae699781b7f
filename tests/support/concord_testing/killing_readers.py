"""Readers whose files say what they do to the process that reads them; its text is what stands behind."""

import ctypes
import mmap
import os
import signal
import time
from collections.abc import Iterator

from typing_extensions import override

from concord.pipeline.config import ReaderConfig
from concord.pipeline.readers.base import ArchiveReader, FileReader, Record
from concord.pipeline.readers.files import Decoded, read_whole

_kept: list[object] = []


def _do(line: bytes) -> str:
    """Do what a line says: the rest of it is its text."""
    deed, _, text = line.decode().partition(" ")
    if deed == "abort":
        os.abort()
    elif deed == "exit":
        os._exit(3)
    elif deed == "loop":
        while True:
            ctypes.CDLL(None).rand()
    elif deed == "sleep":
        time.sleep(1000)
    elif deed == "allocate":
        _kept.append(bytearray(1 << 40))
    elif deed == "map":
        _kept.append(mmap.mmap(-1, 1 << 40))
    elif deed == "keep":
        # As a library that leaks: two of them do not fit into one process.
        _kept.append(bytearray(300 << 20))
    elif deed == "long":
        text = "x" * int(text)
    elif deed in ("pause", "be_killed"):
        name, _, text = text.partition(" ")
        if not os.path.exists(name):  # noqa: PTH110
            with open(name, "w") as file:  # noqa: PTH123
                file.write(f"{os.getpid()}\n")
            os.kill(os.getpid(), signal.SIGKILL) if deed == "be_killed" else ctypes.PyDLL(None).pause()
    return text


class LinesReader(ArchiveReader):
    """Reads each line as a record."""

    suffixes = (".deeds",)

    @override
    def split(self, path: str, config: ReaderConfig, start: int = 0) -> Iterator[Record]:
        position = 0
        for line in read_whole(path, config=config).splitlines(keepends=True):
            if position >= start:
                yield Record(position, position + len(line), line.strip())
            position += len(line)

    @override
    def extract(self, raw: Record, config: ReaderConfig) -> Decoded:
        return Decoded(_do(raw.content), None)


class DeedReader(FileReader):
    """Reads files of one line."""

    suffixes = (".deed",)

    @override
    def extract(self, content: bytes, config: ReaderConfig) -> Decoded:
        return Decoded(_do(content.strip()), None)


READERS = {"deeds": LinesReader(), "deed": DeedReader()}
