"""How a shard backs off when a worker runs out of memory: in fixed steps, each with smaller batches."""

from enum import IntEnum


class Step(IntEnum):
    """How a shard is done: as planned, in batches of a half, a quarter or an eighth, at last one document at a time.

    The last step keeps batches of an eighth, and computes on the CPU.
    """

    AS_PLANNED = 0
    HALF = 1
    QUARTER = 2
    EIGHTH = 3
    ALONE = 4

    @property
    def divisor(self) -> int:
        """What parser.batch_documents and tagger.batch_words are divided by."""
        return 1 << min(self, Step.EIGHTH)

    @property
    def told(self) -> str:
        """How the shard was done, in words."""
        return _TOLD[self]


_TOLD = {
    Step.AS_PLANNED: "as planned",
    Step.HALF: "in batches cut to halves",
    Step.QUARTER: "in batches cut to quarters",
    Step.EIGHTH: "in batches cut to eighths",
    Step.ALONE: "one document at a time",
}
