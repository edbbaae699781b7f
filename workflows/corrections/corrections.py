"""``concord corrections``: what people corrected, which of it fits, and corrections from the files of other tools."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from concord.pipeline.corrections.correction import Correction, corrections_digest, current_corrections, undone_ids
from concord.pipeline.corrections.fitting import Fit, fit_corrections
from concord.pipeline.corrections.log import log_path, read_log
from concord.pipeline.documents import DeadLetter
from concord.pipeline.exchange.import_corrections import ImportReport, import_corrections
from concord.pipeline.output.collection import (
    CollectedDocument,
    Collection,
    open_collection,
    read_collection,
    sentence_offsets,
)
from concord.pipeline.storage.output_paths import OutputPath
from concord.pipeline.worker.source_texts import SourceTexts
from concord.workflows.annotation.inspection import LEFT_OUT
from concord.workflows.console import INLINE, Answer, counted, plain, printable, short_path, table

SHOWN = 40
"""Lines of a table; --json has all."""
NO_DOCUMENT = "the collection has no document of this id"


@dataclass(frozen=True, kw_only=True, slots=True)
class CorrectionStatus:
    """A correction or flag of the log and what became of it.

    Attributes:
        state: ``written`` in the tables, ``waiting`` for the next run, ``undone``, ``overruled`` by a later one,
            ``misfit`` or ``flagged``.
        reason: why it is overruled or does not fit, in plain words.
    """

    correction: Correction = field(metadata=INLINE)
    state: str
    reason: str = ""


def list_statuses(output: OutputPath) -> list[CorrectionStatus]:
    """Return every correction and flag of a collection's log, without the lines that undo others, in the log's order.

    Raises:
        PlanError: when the folder holds no finished run.
        InputError: when a line of the log is no correction, or an input file of many records is gone.
    """
    log = read_log(log_path(output))
    current = current_corrections(log)
    undone = undone_ids(log)
    statuses = _statuses((line for line in log if line.action != "undo"), "undone")
    statuses |= _statuses((line for line in log if line.action == "flag" and line.id not in undone), "flagged")
    collection = open_collection(output)
    missing = dict(current)
    for document, text in documents_with_texts(collection, current):
        doc_id = document.row.doc_id
        corrections = missing.pop(doc_id)
        if isinstance(text, DeadLetter):
            statuses |= _statuses(corrections, "misfit", text.message)
            continue
        is_written = collection.plan.corrected.get(doc_id) == corrections_digest(corrections)
        fit = fit_corrections(corrections, text, sentence_offsets(document))
        statuses |= fit_statuses(corrections, fit, "written" if is_written else "waiting")
    for corrections in missing.values():
        statuses |= _statuses(corrections, "misfit", NO_DOCUMENT)
    return list(statuses.values())


def fit_statuses(corrections: Sequence[Correction], fit: Fit, state: str) -> dict[str, CorrectionStatus]:
    """Return what became of the corrections of a document, by id, given their fit and the state of those that count."""
    statuses = _statuses(corrections, state)
    for misfit in fit.misfits:
        statuses |= _statuses([misfit.correction], "misfit", misfit.reason)
    for pair in fit.overruled:
        reason = f"{pair.later.who} later: {pair.later.description}"
        statuses |= _statuses([statuses[pair.earlier.id].correction], "overruled", reason)
    return statuses


def _statuses(corrections: Iterable[Correction], state: str, reason: str = "") -> dict[str, CorrectionStatus]:
    return {
        correction.id: CorrectionStatus(correction=correction, state=state, reason=reason) for correction in corrections
    }


def import_command(path: Path, output: OutputPath, *, who: str, dry_run: bool, accept_drops: bool) -> Answer:
    """Import an annotator's file; exit code 3 if a part of it was refused."""
    report = import_corrections(path, output, who=who, dry_run=dry_run, accept_drops=accept_drops)
    actions = dict(sorted(report.actions.items()))
    values = plain(report) | {"actions": actions, "log": str(log_path(output)), "dry_run": dry_run}
    text = "\n".join(_import_lines(report, output, dry_run=dry_run))
    return Answer(values=values, text=text, exit_code=LEFT_OUT if report.refused else 0)


def list_command(output: OutputPath) -> Answer:
    """List the corrections of a collection with what became of each."""
    statuses = list_statuses(output)
    counts = Counter(status.state for status in statuses)
    values = {"counts": dict(sorted(counts.items())), "corrections": plain(statuses)}
    if not statuses:
        return Answer(values=values, text=f"{short_path(output)}: no corrections")
    rows = [_row(status) for status in statuses[-SHOWN:]]
    lines = [table(rows, header=("document", "action", "words", "by", "when", "state")), ""]
    if len(statuses) > SHOWN:
        lines += [f"the last {SHOWN}; --json lists all {len(statuses):,}"]
    lines.append(", ".join(f"{number:,} {state}" for state, number in sorted(counts.items())))
    if counts["waiting"]:
        lines.append("concord annotate writes those that wait into the tables")
    return Answer(values=values, text="\n".join(lines))


def documents_with_texts(
    collection: Collection, wanted: Mapping[str, Sequence[Correction]]
) -> Iterator[tuple[CollectedDocument, str | DeadLetter]]:
    """Yield the documents that have corrections, with their raw texts; a dead letter where a text is gone."""
    texts = SourceTexts.of(collection.plan)
    for document in read_collection(collection, wanted=wanted.__contains__):
        yield document, texts.find(document.row)


def _import_lines(report: ImportReport, output: OutputPath, *, dry_run: bool) -> Iterator[str]:
    actions = ", ".join(f"{number:,} {action}" for action, number in sorted(report.actions.items()))
    would = "would be " if dry_run else ""
    unseen = f" ({report.not_annotated:,} not annotated)" if report.not_annotated else ""
    yield (
        f"{counted(report.passages, 'passage')}{unseen}: {counted(len(report.corrections), 'correction')} {would}added "
        f"to {short_path(log_path(output))}{f': {actions}' if actions else ''}"
    )
    yield from _correction_lines(report.corrections)
    if report.held_back:
        yield f"\n{counted(len(report.held_back), 'correction')} held back, for --accept-drops:"
        yield from _correction_lines(report.held_back)
    if report.refused:
        yield f"\n{len(report.refused):,} refused:"
    for refused in report.refused[:SHOWN]:
        document = f"document {refused.doc_id!r}: " if refused.doc_id else ""
        yield f"{refused.where}: {document}{printable(refused.reason)}"
    if len(report.refused) > SHOWN:
        yield f"... and {len(report.refused) - SHOWN:,} more: --json"


def _correction_lines(corrections: Sequence[Correction]) -> Iterator[str]:
    shown = [(_name(one.doc_id), one.action, printable(one.description)) for one in corrections[:SHOWN]]
    if shown:
        yield "\n" + table(shown, header=("document", "action", "entity"))
    if len(corrections) > SHOWN:
        yield f"... and {len(corrections) - SHOWN:,} more"


def _row(status: CorrectionStatus) -> tuple[str, ...]:
    correction = status.correction
    state = f"{status.state}: {printable(status.reason)}" if status.reason else status.state
    entity = printable(correction.description)
    return _name(correction.doc_id), correction.action, entity, correction.who, correction.when[:16], state


def _name(doc_id: str) -> str:
    return doc_id if doc_id.isprintable() else repr(doc_id)
