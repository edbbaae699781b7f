"""Run one annotation job with the fake parser and tagger, as the command line would: for tests that kill processes.

The last line on standard output is the report as JSON; the exit code is that of the command line.
"""

import argparse
import json
import sys
from pathlib import Path

import fakes

from models.config import ConfigError
from pipeline.annotate import Progress, ResolvedTagger, annotate
from pipeline.config import AnnotateConfig
from pipeline.errors import ConcordError

WORKERS = {
    "whole": fakes.build_fake_worker,
    "loses": fakes.build_worker_that_loses,
    "none": fakes.build_no_worker,
}


def main() -> int:
    """Read the arguments, run the job, print the report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("input")
    parser.add_argument("output")
    parser.add_argument("--executor", default="local")
    parser.add_argument("--actors", type=int, default=1)
    parser.add_argument("--attempts", type=int, default=3)
    parser.add_argument("--shard-bytes", type=int, default=500)
    parser.add_argument("--worker", choices=WORKERS, default="whole")
    parser.add_argument("--report", action="store_true")
    arguments = parser.parse_args()
    executor = {"kind": arguments.executor, "actors": arguments.actors, "threads": 1, "attempts": arguments.attempts}
    config = AnnotateConfig.from_mapping(
        {
            "input": arguments.input,
            "output": arguments.output,
            "planning": {"shard_bytes": arguments.shard_bytes},
            "executor": executor,
            "report": arguments.report,
        }
    )
    tagger = ResolvedTagger(name="fake_tagger", version=None, digest="2" * 64, folder=Path("/nowhere"))
    try:
        report = annotate(config, tagger=tagger, progress=tell, parser=fakes.PARSER, build=WORKERS[arguments.worker])
    except ConcordError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_code
    except ConfigError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    counted = ("read", "annotated", "unchanged", "dead_letters", "shards", "done_before", "words")
    print(json.dumps({name: getattr(report, name) for name in counted}))
    return report.exit_code


def tell(progress: Progress) -> None:
    """Let a watching test know how far the run is."""
    print(f"progress {progress.shards_done}/{progress.shards}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
