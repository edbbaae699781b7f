"""How far a worker is within its shard, and how long the stages of a shard took."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Literal

from concord.models.errors import ConcordError
from concord.pipeline.documents import STAGES
from concord.pipeline.errors import ShardError


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardProgress:
    """How much of a shard is done.

    Attributes:
        stage: in which it is; None where only its beginning and its end are known, as on Ray.
        share: of the shard's work, from 0 to 1.
        words: that this amounts to: those of the shard, by the share of them that is done.
    """

    shard: int
    stage: Literal["parse", "tag"] | None = None
    share: float = 0.0
    words: int = 0


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


class StageClock:
    """Seconds by stage."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)

    @contextmanager
    def timing(self, stage: str) -> Iterator[None]:
        """Add what the block takes."""
        start = perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] += perf_counter() - start


OnShardProgress = Callable[[ShardProgress], None]
"""Called between batches, a few times a second; what it raises ends the work on the shard, and nothing is committed."""
OnShare = Callable[[float, int], None]
"""Called between the batches of a stage, with the share of it that is done, and with the words that are done."""


class ShardTracker:
    """Turns what the stages report into the progress of the shard that a worker is doing."""

    def __init__(self) -> None:
        self._listener: OnShardProgress | None = None
        self._shard = 0
        # Of the shard, as far as is known.
        self._words = 0.0
        self._seconds = (0.0, 0.0)

    @contextmanager
    def listening(self, shard: int, listener: OnShardProgress | None) -> Iterator[None]:
        """Report to the listener while the block runs."""
        self._listener, self._shard, self._words = listener, shard, 0.0
        try:
            yield
        finally:
            self._listener = None

    def add_seconds(self, *, parse: float, tag: float) -> None:
        """Count how long a shard took in both stages; the ratio tells how much of the next is done after the first."""
        self._seconds = (self._seconds[0] + parse, self._seconds[1] + tag)

    def on_parse(self, share: float, words: int) -> None:
        """Report the share of the text that is parsed, and its words."""
        self._report("parse", share, words, work=share * self._parse_share)

    def on_tag(self, share: float, words: int) -> None:
        """Report the share of the words that is tagged, and how many these are."""
        self._report("tag", share, words, work=self._parse_share + share * (1 - self._parse_share))

    @property
    def _parse_share(self) -> float:
        parse, tag = self._seconds
        return parse / (parse + tag) if parse and tag else 0.5

    def _report(self, stage: Literal["parse", "tag"], share: float, words: int, *, work: float) -> None:
        if self._listener is None:
            return
        if share:
            self._words = words / share
        try:
            words = round(work * self._words)
            self._listener(ShardProgress(shard=self._shard, stage=stage, share=work, words=words))
        except ConcordError:
            raise
        except Exception as error:
            # The stages would take any other error for the fault of a document.
            raise ShardError(
                f"shard {self._shard:05d}: its progress cannot be shown ({type(error).__name__}: {error}); run the "
                "command again"
            ) from error
