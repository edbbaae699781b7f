"""The command ``concord compare``: its answer as a table on the console, as JSON and as a page."""

from pathlib import Path

from concord.pipeline.report.templates import write_page
from concord.workflows.console import Answer, counted, table
from concord.workflows.evaluation.compare import CompareJob, Comparison, compare, describe_tagger, evidence
from concord.workflows.evaluation.page import render_page
from concord.workflows.evaluation.paired_tests import Line


def compare_command(job: CompareJob, *, output: Path | None = None) -> Answer:
    """Compare two taggers, and write the page if ``output`` names one."""
    comparison = compare(job)
    values = evidence(job, comparison)
    if output is not None:
        write_page(output, render_page(job, comparison), staging=output.parent)
        values["report"] = str(output)
    return Answer(values=values, text=_describe(job, comparison))


def _describe(job: CompareJob, comparison: Comparison) -> str:
    size = counted(len(comparison.documents), comparison.unit)
    unit_note = "" if comparison.unit == "document" else "; the corpora mark no documents, so each sentence is one"
    header = ("", "A", "B", "B - A", "from", "to", "p", "Holm", "detectable", f"{comparison.unit}s differ")
    return "\n".join(
        [
            f"A  {describe_tagger(job.first)}",
            f"B  {describe_tagger(job.second)}",
            f"on {', '.join(job.data)}: {size}{unit_note}",
            "",
            comparison.verdict,
            "",
            table([_row(line) for line in comparison.lines], header=header, right=range(1, len(header))),
            "",
            f"{100 * (1 - job.procedure.alpha):g} % intervals; p from {job.procedure.rounds:,} paired randomisations; "
            f"Holm: p corrected over {counted(len(comparison.lines), 'line')}",
        ]
    )


def _row(line: Line) -> tuple[object, ...]:
    difference = line.difference
    signed = tuple(f"{value:+.2f}" for value in (difference.mean, difference.low, difference.high))
    return (line.name, line.first, line.second, *signed, f"{line.p:.4f}", f"{line.corrected:.4f}",
            line.detectable, line.differing)  # fmt: skip
