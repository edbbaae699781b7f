"""The summary counts the workers that were replaced."""

from dataclasses import replace
from pathlib import Path

from concord_testing import runs

from concord.pipeline.output.output_folder import OutputFolder
from concord.workflows.annotation.summary import describe_run


def test_the_summary_counts_replaced_workers_by_cause(tmp_path: Path) -> None:
    config = runs.job(runs.write_collection(tmp_path / "in.jsonl"), tmp_path / "out")
    report = runs.run_job(config)
    folder = OutputFolder(report.output)
    manifest = folder.manifest()
    assert manifest is not None
    assert report.replaced == {}
    summary = describe_run(report, config=config, plan=folder.plan(), manifest=manifest)
    assert "replaced" not in summary
    changed = replace(report, replaced={"memory": 2, "worker_died": 1})
    summary = describe_run(changed, config=config, plan=folder.plan(), manifest=manifest)
    assert "3 workers replaced: 2 used too much memory, 1 died" in summary
