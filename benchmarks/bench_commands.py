"""Measure seconds, processor seconds and memory of the commands that answer at once, and of `concord tag`.

Command: python benchmarks/bench_commands.py --rounds 5 --against ../old

Every command is a process of its own, from its start to its end, over `examples/news` annotated with
`entities_en_small`, which is also registered. Seconds are the least of all rounds, memory is the largest resident set.
With ``--against``, the folder of another checkout, both are measured in turns, each over what it has written itself.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from environment import environment

CHECKOUT = Path(__file__).resolve().parents[1]
SET_UP = (
    "annotate {checkout}/examples/news --output news --model entities_en_small",
    "registry register {checkout}/models/pretrained/entities_en_small --name ner --alias first",
)
COMMANDS = {
    "help": "--help",
    "status": "status news",
    "schema": "schema",
    "errors": "errors news",
    "files": "files news",
    "history": "history news",
    "verify": "verify news",
    "report": "report news",
    "corrections list": "corrections list news",
    "export, CoNLL-U": "export news --to conllu --output {new}.conllu",
    "export, JSON Lines": "export news --to jsonl --output {new}.jsonl",
    "review": "review news --size 10 --output {new}.json",
    "diff": "diff news news",
    "registry list": "registry list",
    "registry show": "registry show ner@first",
    "annotate, no such input": "annotate nosuch --output new",
    "annotate, no such key": "annotate news --output new --set reader.text_feld=body",
    "annotate, no such tagger": "annotate news --output new --model nosuch",
    "annotate, nothing to do": "annotate {checkout}/examples/news --output news --model entities_en_small",
    "tag": "tag 'Ada met Charles in London.'",
}


def run(checkout: Path, folder: Path, command: str) -> dict[str, float]:
    """Run a command of a checkout in a folder of its own; return its seconds and its memory in MB."""
    text = command.format(checkout=checkout, new=time.monotonic_ns())
    variables = {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    started = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "concord", *shlex.split(text)],
        cwd=folder,
        env=os.environ | variables,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in {0, 2}:
        raise RuntimeError(f"concord {text}: exit code {process.returncode}")
    return {
        "seconds": time.monotonic() - started,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "mb": usage.ru_maxrss / 1024,
    }


def summarize(measures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the least seconds of some runs of a command, and the most memory."""
    return {
        "seconds": round(min(measure["seconds"] for measure in measures), 2),
        "cpu_seconds": round(min(measure["cpu_seconds"] for measure in measures), 2),
        "mb": round(max(measure["mb"] for measure in measures)),
    }


def main() -> None:
    """Measure in turns, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--against", type=Path, help="the folder of another checkout")
    arguments = parser.parse_args()
    checkouts = {"this": CHECKOUT} | ({"other": arguments.against.resolve()} if arguments.against else {})
    measures: dict[str, dict[str, list[dict[str, float]]]] = {
        name: {command: [] for command in COMMANDS} for name in checkouts
    }
    loads = []
    with tempfile.TemporaryDirectory() as scratch:
        for name, checkout in checkouts.items():
            (Path(scratch) / name).mkdir()
            for command in SET_UP:
                run(checkout, Path(scratch) / name, command)
        for _ in range(arguments.rounds):
            loads.append(round(os.getloadavg()[0], 2))
            for command, text in COMMANDS.items():
                for name, checkout in checkouts.items():
                    measures[name][command].append(run(checkout, Path(scratch) / name, text))
    result: dict[str, Any] = {**environment("bench_commands.py"), "rounds": arguments.rounds, "loads": loads}
    for name in checkouts:
        result[name] = {command: summarize(found) for command, found in measures[name].items()}
    if arguments.against:
        result["other_commit"] = subprocess.run(
            ["git", "-C", arguments.against, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
