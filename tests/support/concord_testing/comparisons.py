"""Comparisons of predictions that a test writes down, without two taggers to make them."""

from collections.abc import Sequence

from concord.pipeline.corpora.read_corpus import GoldDocument
from concord.workflows.evaluation.compare import CompareJob, Comparison
from concord.workflows.evaluation.paired_tests import changed_documents, compare_labels

Predictions = Sequence[Sequence[Sequence[str]]]


def compared(job: CompareJob, documents: Sequence[GoldDocument], first: Predictions, second: Predictions) -> Comparison:
    """Return the comparison of two predictions for named documents."""
    return Comparison(
        documents=documents,
        first=first,
        second=second,
        measure="F1",
        left_out=(),
        unit="document",
        lines=compare_labels(documents, first, second, procedure=job.procedure),
        changes=changed_documents(documents, first, second),
    )
