"""``concord export`` and ``concord review``: annotated collections for other tools."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from concord.pipeline.exchange.export import ExportForm, ExportReport, export_collection, read_ids
from concord.pipeline.exchange.label_studio import labeling_config
from concord.pipeline.exchange.review_queue import QueuedSentence, QueueForm, Quotas, ReviewReport, write_review_queue
from concord.pipeline.storage.output_paths import OutputPath
from concord.workflows.console import Answer, counted, short_path, table
from concord.workflows.progress import counting

LEFT_OUT = 3
"""Exit code when documents are missing from what was written."""
SHOWN_SENTENCES = 10


def write_export(
    output: OutputPath, destination: Path, *, to: ExportForm, ids: Path | None, limit: int | None
) -> Answer:
    """Export a collection; exit code 3 if the text of a document is no longer available."""
    chosen = None if ids is None else read_ids(ids)
    with counting("documents") as count:
        report = export_collection(output, destination, to=to, ids=chosen, limit=limit, on_document=lambda: count(1))
    return _answer(report, destination, to=to, lines=_export_lines(report, destination))


def write_review(
    output: OutputPath, destination: Path, *, to: QueueForm, quotas: Quotas, done: Sequence[Path]
) -> Answer:
    """Write a review queue without the documents that the files ``done`` list; see ``write_export`` for exit codes."""
    exclude = frozenset().union(*map(read_ids, done))
    report = write_review_queue(output, destination, to=to, quotas=quotas, exclude=exclude)
    return _answer(report, destination, to=to, lines=_review_lines(report, destination))


def _answer(report: ExportReport | ReviewReport, destination: Path, *, to: ExportForm, lines: Iterator[str]) -> Answer:
    errors = report.errors and report.errors.absolute()
    values = {**asdict(report), "destination": destination.absolute(), "errors": errors}
    text = [*lines]
    if report.errors is not None:
        text.append(
            f"{counted(report.left_out, 'document')} left out because the text has changed since the annotation; see "
            f"{short_path(report.errors)}, and run concord annotate again"
        )
    if to == "label-studio":
        values["labeling_config"] = labeling_config(report.labels)
        text += ["", "Labeling interface:", values["labeling_config"]]
    return Answer(values=values, text="\n".join(text), exit_code=LEFT_OUT if report.errors is not None else 0)


def _export_lines(report: ExportReport, destination: Path) -> Iterator[str]:
    yield (
        f"{short_path(destination)}: {counted(report.documents, 'document')}, {counted(report.sentences, 'sentence')}, "
        f"{counted(report.words, 'word')}, {report.entities:,} entities"
    )
    if report.wordless:
        yield f"{counted(report.wordless, 'document')} without words, which the format cannot represent"
    if report.dead_letters:
        yield f"{counted(report.dead_letters, 'dead letter')} of the collection: never annotated, not exported"
    if report.unknown:
        shown = ", ".join(map(repr, report.unknown[:3])) + (", ..." if len(report.unknown) > 3 else "")
        yield f"{counted(len(report.unknown), 'requested id')} not in the collection: {shown}"


def _review_lines(report: ReviewReport, destination: Path) -> Iterator[str]:
    documents = len({sentence.doc_id for sentence in report.choices})
    types = Counter(sentence.type for sentence in report.choices)
    shares = ", ".join(f"{kind} {number:,}" for kind, number in types.most_common()) or "nothing"
    sentences = counted(len(report.choices), "sentence")
    yield f"{short_path(destination)}: {sentences} of {counted(documents, 'document')}; about {shares}"
    yield ""
    rows = [_queue_row(sentence) for sentence in report.choices[:SHOWN_SENTENCES]]
    yield table(rows, header=("rank", "score", "document", "sentence", "least certain"))
    if len(report.choices) > SHOWN_SENTENCES:
        yield f"... and {len(report.choices) - SHOWN_SENTENCES:,} more, by score"


def _queue_row(sentence: QueuedSentence) -> tuple[object, ...]:
    doc_id = sentence.doc_id if sentence.doc_id.isprintable() else repr(sentence.doc_id)
    return sentence.rank, sentence.score, doc_id, sentence.sent_id, sentence.reason
