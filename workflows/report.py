"""The report of a finished run, made anew."""

from concord.pipeline.report.html import write_report
from concord.pipeline.storage.paths import Place
from concord.workflows.console import Answer


def run(output: Place) -> Answer:
    """Write the report over an earlier one and give its place.

    Raises:
        PlanError: when the folder holds no finished run.
    """
    path = write_report(output)
    return Answer(values={"report": str(path)}, text=str(path))
