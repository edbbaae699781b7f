"""How far a worker is within its shard, and how long the stages of a shard took."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardProgress:
    """How much of a shard is done.

    Attributes:
        stage: in which it is; None where that is not known, as on Ray.
        share: of the shard's work, from 0 to 1.
        words: that this amounts to: those of the shard, by the share of them that is done.
    """

    shard: int
    stage: Literal["parse", "tag"] | None = None
    share: float = 0.0
    words: int = 0


OnShardProgress = Callable[[ShardProgress], None]
"""Called between batches, a few times a second; what it raises ends the work on the shard, and nothing is committed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Timings:
    """Seconds that a shard took in each stage, and its words. Not part of any output."""

    read: float = 0.0
    parse: float = 0.0
    tag: float = 0.0
    write: float = 0.0
    words: int = 0

    def __add__(self, other: "Timings") -> "Timings":
        """Add up what two shards took."""
        return Timings(**{name: getattr(self, name) + getattr(other, name) for name in self.__slots__})


@contextmanager
def timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    """Keep what the block takes as the seconds of a stage."""
    start = perf_counter()
    yield
    seconds[stage] = perf_counter() - start
