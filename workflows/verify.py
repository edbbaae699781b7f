"""Whether an output folder holds what its manifest says."""

from dataclasses import asdict

from concord.pipeline.output.output_folder import verify
from concord.pipeline.storage.paths import Place
from concord.workflows.console import Answer, counted, table


def run(output: Place, *, deep: bool) -> Answer:
    """Compare a finished run with its manifest; findings end with exit code 1.

    Raises:
        PlanError: when the folder holds no run.
        IntegrityError: when the manifest cannot be read.
    """
    findings = verify(output, deep=deep)
    values = {"output": str(output.absolute()), "deep": deep, "findings": [asdict(finding) for finding in findings]}
    if not findings:
        checked = "every file, hash and row" if deep else "every file and size"
        return Answer(values=values, text=f"{output}: {checked} is as the manifest says")
    rows = [(finding.place, finding.problem) for finding in findings]
    return Answer(values=values, text=f"{table(rows)}\n\n{counted(len(findings), 'finding')} in {output}", exit_code=1)
