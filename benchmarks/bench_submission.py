"""Submit jobs to a new Ray cluster, with token authentication off and on: once, twice, stopped, and resumed.

Command: PYTHONPATH=tests/support python benchmarks/bench_submission.py

Every command is a separate process; its seconds run from its start to its end.
"""

import argparse
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from concord_runs import command_line
from concord_testing.heads import ray_head
from environment import environment

from concord.pipeline.output.verify import verify
from concord.workflows.annotation.job import read_annotate_job
from concord.workflows.cluster.package import pack

SENTENCE = "Ada King lives in London, at number {number}, and writes to Charles Babbage every day."


@dataclass(frozen=True, kw_only=True, slots=True)
class Submitter:
    """Sends jobs to one cluster."""

    job_server: str
    variables: Mapping[str, str]

    def __call__(self, *arguments: str) -> tuple[dict[str, Any], float]:
        """Run ``concord submit`` and return its answer and its seconds."""
        started = time.monotonic()
        ended = subprocess.run(
            command_line("submit", *arguments, "--address", self.job_server),
            stdout=subprocess.PIPE,
            env=os.environ | self.variables,
            text=True,
            check=False,
        )
        seconds = time.monotonic() - started
        answer = {"exit_code": ended.returncode, "answer": json.loads(ended.stdout)}
        return answer, round(seconds, 2)


def write_job(folder: Path, name: str, *, documents: int, model: str) -> Path:
    """Write a collection of one-sentence documents and a job over it, with a few documents in each shard."""
    source = folder / f"{name}.jsonl"
    texts = (SENTENCE.format(number=number) for number in range(documents))
    source.write_text("".join(json.dumps({"id": f"d{i}", "text": text}) + "\n" for i, text in enumerate(texts)))
    job = folder / f"{name}.yaml"
    job.write_text(
        f"input: {source}\noutput: {folder / name}\ntagger: {{model: {model}}}\nplanning: {{shard_bytes: 300}}\n"
        "executor: {actors: 1}\nreport: false\n"
    )
    return job


def measure(auth: str, *, documents: int, model: str) -> dict[str, Any]:
    """Start a cluster, submit jobs, and return answers and seconds."""
    variables = {"RAY_AUTH_MODE": auth}
    if auth == "token":
        variables["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as name, ray_head(dashboard=True, environment=variables) as head:
        started = round(time.monotonic() - start, 2)
        submit = Submitter(job_server=head.job_server, variables=variables)
        return {"head_start_seconds": started, **_jobs(submit, Path(name), documents=documents, model=model)}


def _jobs(submit: Submitter, folder: Path, *, documents: int, model: str) -> dict[str, Any]:
    python = ("--python", sys.executable)
    one = str(write_job(folder, "one", documents=2, model=model))
    first, first_seconds = submit(one, *python)
    second, second_seconds = submit(one, *python)
    many = str(write_job(folder, "many", documents=documents, model=model))
    sent, sent_seconds = submit(many, *python, "--no-wait")
    _await_commits(folder / "many", 3)
    twice, twice_seconds = submit(many, *python, "--no-wait")
    stopped, stopped_seconds = submit("--stop", sent["answer"]["submission_id"])
    committed = _commits(folder / "many")
    resumed, resumed_seconds = submit(many, *python)
    return {
        "small_job": {
            "seconds": first_seconds,
            "status": first["answer"]["status"],
            "work_seconds": round(first["answer"]["result"]["wall_seconds"], 2),
        },
        "sent_again_when_finished": {
            "seconds": second_seconds,
            "same_id": second["answer"]["submission_id"] == first["answer"]["submission_id"],
        },
        "sent_without_waiting": {"seconds": sent_seconds},
        "sent_again_while_running": {
            "seconds": twice_seconds,
            "same_id": twice["answer"]["submission_id"] == sent["answer"]["submission_id"],
        },
        "stopped": {
            "seconds": stopped_seconds,
            "drain_seconds": stopped["answer"]["stop_seconds"],
            "exit_code_of_the_job": stopped["answer"]["exit_code"],
            "shards_committed": committed,
        },
        "resumed": {
            "seconds": resumed_seconds,
            "status": resumed["answer"]["status"],
            "shards": resumed["answer"]["result"]["shards"],
            "shards_done_before": resumed["answer"]["result"]["done_before"],
            "annotated": resumed["answer"]["result"]["annotated"],
            "faults_found_by_verify": len(verify(folder / "many")),
        },
    }


def _await_commits(output: Path, count: int) -> None:
    deadline = time.monotonic() + 300
    while _commits(output) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{output}: expected {count} commits within 300 s")
        time.sleep(0.05)


def _commits(output: Path) -> int:
    return len(list(output.glob("_run/commits/*/*.json")))


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=300)
    parser.add_argument("--model", default="entities_en_small")
    arguments = parser.parse_args()
    package, _ = pack(read_annotate_job(None, values={"input": "in", "output": "out"}))
    report = {
        **environment("bench_submission.py"),
        "config": vars(arguments),
        "package_bytes": len(package),
        **{
            f"auth_{auth}": measure(auth, documents=arguments.documents, model=arguments.model)
            for auth in ("disabled", "token")
        },
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
