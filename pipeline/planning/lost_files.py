"""How many records are lost with files that cannot be read, or not to their end."""

from collections.abc import Mapping, Sequence
from pathlib import PurePath

from concord.pipeline.plan import Source
from concord.pipeline.readers.read_file import is_one_document
from concord.pipeline.readers.records import Loss


def with_missing(sources: Sequence[Source], losses: Mapping[str, Loss]) -> tuple[Source, ...]:
    """Return the sources, with ``missing`` for those that lost something, given by path.

    Where the number of records is not known, a file counts by its own bytes per record if some of it was read, else by
    those of the whole files of its kind (format and suffix), else of all whole files. Where its bytes say nothing, as
    of one that is cut short or out of reach, it counts as one of these files. A file of one document is one record.
    """
    whole = [source for source in sources if source.missing is None and source.uri not in losses]
    by_kind: dict[object, list[Source]] = {None: whole}
    for source in whole if losses else ():
        by_kind.setdefault(_kind(source), []).append(source)
    return tuple(
        source.model_copy(update={"missing": _missing(source, losses[source.uri], by_kind.get(_kind(source), whole))})
        if source.uri in losses
        else source
        for source in sources
    )


def _missing(source: Source, loss: Loss, like: Sequence[Source]) -> int:
    """Return how many records a file would hold besides those that are counted, given whole files like it."""
    read, of_others = source.records - 1, sum(other.records for other in like)
    if is_one_document(source.format):
        held: float = 1
    elif loss.records is not None:
        held = source.records - 1 + loss.records
    elif read and 0 < loss.share < 1:
        held = read / (1 - loss.share)
    elif loss.share and source.size and of_others:
        held = source.size * of_others / max(sum(other.size for other in like), 1)
    else:
        held = of_others / max(len(like), 1)
    return max(round(held) - source.records, 0)


def _kind(source: Source) -> object:
    return source.format, PurePath(source.uri).suffix
