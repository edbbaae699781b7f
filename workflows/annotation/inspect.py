"""How far a run is, from its plan and its commits alone."""

from dataclasses import asdict
from typing import Any

from concord.pipeline.output.output_folder import RunFolder, total
from concord.pipeline.output.shard_stats import backed_off
from concord.pipeline.storage.paths import Place
from concord.pipeline.worker.crash_log import Trials
from concord.workflows.annotation.summary import component, equation
from concord.workflows.console import Answer, table


def run(output: Place) -> Answer:
    """Say how much of a run is committed; works beside a running one.

    Raises:
        PlanError: when the folder holds no run.
        IntegrityError: when the manifest cannot be read.
    """
    folder = RunFolder(output.absolute())
    plan = folder.plan()
    done = folder.kept(plan) | folder.done(plan)
    outcome = total(done.values(), generation=plan.generation)
    finished = folder.is_finished(plan)
    stepped, trials = backed_off(done.values()), Trials(plan).standing()
    values: dict[str, Any] = {
        "output": str(folder.output),
        "finished": finished,
        "generation": plan.generation,
        "shards": len(plan.shards) + len(plan.kept),
        "shards_done": len(done),
        "read": plan.read,
        "read_done": sum(report.read for report in done.values()),
        **asdict(outcome),
        "parser": plan.parser.model_dump(),
        "tagger": plan.tagger.model_dump(),
        "stats": folder.stats(),
        "backed_off": {name: step.name.lower() for name, step in stepped.items()},
        "trials": {name: trial.model_dump(mode="json") for name, trial in trials.items()},
    }
    rows = [
        ("state", "finished" if finished else "not finished; the same annotate command goes on with it"),
        ("shards", f"{values['shards_done']:,} of {values['shards']:,} committed"),
        ("records", f"{values['read_done']:,} of {values['read']:,} committed"),
        ("so far", equation({**values, "read": values["read_done"]})),
        ("input", plan.config.input),
        ("tagger", component(plan.tagger)),
        ("parser", component(plan.parser)),
    ]
    rate = values["stats"].get("words_per_second", {}).get("run")
    if rate:
        rows.append(("speed", f"{rate:,.0f} words/s"))
    rows += [("backed off", f"shard {name} was done {step.told}") for name, step in stepped.items()]
    rows += [("deaths", f"shard {name}: {trial.told}") for name, trial in trials.items()]
    return Answer(values=values, text=table(rows))
