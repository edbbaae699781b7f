"""Annotation queues: the sentences of a collection that a person should look at first."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from concord.pipeline.exports.document_ids import read_ids
from concord.pipeline.exports.review_queue import Choice, QueueForm, Quotas, ReviewReport, review
from concord.pipeline.storage.paths import Place
from concord.workflows.annotation.export import written
from concord.workflows.console import Answer, counted, near, table

_SHOWN = 10


def run(output: Place, destination: Path, *, to: QueueForm, quotas: Quotas, done: Sequence[Path]) -> Answer:
    """Write a queue; documents whose texts are gone end with exit code 3.

    Args:
        done: files that name documents which are not to be in the queue.

    Raises:
        PlanError: when the folder holds no finished run.
        ConfigError: when the destination cannot be taken.
        InputError: when an input file is gone, or a list of documents cannot be read.
        IntegrityError: when a part of the collection is broken.
        StoreError: when there is no space.
    """
    report = review(output, destination, to=to, quotas=quotas, done=frozenset().union(*map(read_ids, done)))
    return written(report, destination, to=to, lines=[*_lines(report, destination)])


def _lines(report: ReviewReport, destination: Path) -> Iterator[str]:
    documents = len({choice.doc_id for choice in report.choices})
    types = Counter(choice.type for choice in report.choices)
    shares = ", ".join(f"{kind} {number:,}" for kind, number in types.most_common()) or "nothing"
    sentences = counted(len(report.choices), "sentence")
    yield f"{near(destination)}: {sentences} of {counted(documents, 'document')}; about {shares}"
    yield ""
    yield table(
        [_row(choice) for choice in report.choices[:_SHOWN]],
        header=("rank", "score", "document", "sentence", "least sure"),
    )
    if len(report.choices) > _SHOWN:
        yield f"... and {len(report.choices) - _SHOWN:,} more, by score"


def _row(choice: Choice) -> tuple[object, ...]:
    doc_id = choice.doc_id if choice.doc_id.isprintable() else repr(choice.doc_id)
    return choice.rank, choice.score, doc_id, choice.sent_id, choice.reason
