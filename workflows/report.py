"""The report of a finished run, made anew."""

from pathlib import Path

from pipeline.report import write_report
from workflows.console import Answer


def run(output: Path) -> Answer:
    """Write the report over an earlier one and give its place.

    Raises:
        PlanError: when the folder holds no finished run.
    """
    path = write_report(output)
    return Answer(values={"report": str(path)}, text=str(path))
