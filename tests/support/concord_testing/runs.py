"""Small collections, jobs that annotate them with the fakes, and the bytes of their outputs."""

import json
import multiprocessing
import os
import random
import shutil
import sys
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from concord.models.errors import ConcordError, ConfigError
from concord.pipeline.annotate import annotate
from concord.pipeline.config import AnnotateConfig
from concord.pipeline.identity import ResolvedTagger
from concord.pipeline.output.schema import SCHEMAS
from concord.pipeline.run_report import RunReport
from concord.pipeline.storage.atomic_writes import CRASH_VARIABLE
from concord.pipeline.threads import THREADS_VARIABLE
from concord_testing import fakes

TAGGER = ResolvedTagger(name="fake_tagger", version=None, digest="2" * 64, folder=Path("/nowhere"))
_WORDS = ("Anna", "Bob", "Geneva", "New", "Smith", "York", "cat", "quickly", "walking", "the", "on", "and", "a")


def write_collection(path: Path, *, documents: int = 12, extra: tuple[str, ...] = ()) -> Path:
    """Write a JSONL file of invented documents, followed by one document for each extra text."""
    chance = random.Random(1)
    texts = [" ".join(map(str, _sentences(chance))) for _ in range(documents)]
    records = [{"id": f"d{number}", "text": text} for number, text in enumerate([*texts, *extra])]
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def _sentences(chance: random.Random) -> list[str]:
    return [" ".join(chance.choices(_WORDS, k=chance.randint(2, 20))) + "." for _ in range(3)]


def job(source: Path | str, output: Path | str, /, **changes: Any) -> AnnotateConfig:
    """Return the configuration of a job with a few documents per shard and no report."""
    values: dict[str, Any] = {
        "input": str(source),
        "output": str(output),
        "planning": {"shard_bytes": 800},
        "executor": {"threads": 1},
        "report": False,
    }
    return AnnotateConfig.from_mapping(values | changes)


def run_job(config: AnnotateConfig, **arguments: Any) -> RunReport:
    """Annotate with the fakes."""
    builders: dict[str, Any] = {"build": fakes.build_fake_worker, "build_parse": fakes.build_fake_parse_worker}
    return annotate(config, **{"tagger": TAGGER, "parser": fakes.PARSER, **builders, **arguments})


def folder_of(report: RunReport) -> Path:
    """Return the output folder of a run that wrote to disk."""
    assert isinstance(report.output, Path)
    return report.output


def committed_bytes(output: Path) -> dict[str, bytes]:
    """Return the content of every file that must have equal bytes: parts, commit records, manifest."""
    paths = [*output.glob("*/*.parquet"), *output.glob("_run/commits/*/*"), output / "_run" / "manifest.json"]
    paths += output.glob("_run/parts/*/*")
    return {str(path.relative_to(output)): path.read_bytes() for path in paths}


def unfinish(output: Path) -> None:
    """Turn a finished first generation into a run that was killed before it was published."""
    [generation] = (output / "generations").iterdir()
    for name in SCHEMAS:
        (output / "_run" / "parts").mkdir(exist_ok=True)
        shutil.rmtree(output / "_run" / "parts" / name, ignore_errors=True)
        (generation / name).rename(output / "_run" / "parts" / name)
    shutil.rmtree(generation)
    (output / "current").unlink()


def configure_fakes(source: Path, **settings: Any) -> None:
    """Write the FakeSettings of jobs that read an input file."""
    source.with_name("fakes.json").write_text(json.dumps(settings))


def in_child(
    work: Callable[[], object], *, crash_at: str = "", start_method: str = "fork", **environment: str
) -> BaseProcess:
    """Start a function in a process of its own; errors set the exit code of the command line.

    Args:
        crash_at: the crash point (concord.pipeline.storage.atomic_writes) at which the process is killed.
        start_method: of multiprocessing. A fork saves the imports and takes any function, "spawn" only one that can be
            pickled. Drivers that join one Ray cluster at the same time need "spawn": forks of a process that has drawn
            an object id of Ray draw equal ones next, and then one of the drivers may die.
    """
    context: Any = multiprocessing.get_context(start_method)
    process: BaseProcess = context.Process(target=_run_child, args=(work, crash_at, environment))
    process.start()
    return process


def _run_child(work: Callable[[], object], crash_at: str, environment: dict[str, str]) -> None:
    # The threads that this process computes with do not exist in a fork: waiting for them would never end. The
    # variable keeps a command of the command line from asking for more.
    torch.set_num_threads(1)
    os.environ.update({THREADS_VARIABLE: "1"} | environment | {CRASH_VARIABLE: crash_at})
    try:
        work()
    except (ConcordError, ConfigError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        raise SystemExit(getattr(error, "exit_code", 2)) from None
