"""Small collections, jobs that annotate them with the fakes, and the bytes of their outputs."""

import json
import multiprocessing
import operator
import os
import random
import shutil
import sys
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any
from unittest import mock

import cloudpickle
import torch

from concord.models.errors import ConcordError, ConfigError
from concord.pipeline.annotate import annotate
from concord.pipeline.config import AnnotateConfig
from concord.pipeline.identity import ComponentIdentity, ResolvedTagger
from concord.pipeline.job import ResolvedJob
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.schema import SCHEMAS
from concord.pipeline.resources import THREADS_VARIABLE
from concord.pipeline.run_report import RunReport
from concord.pipeline.storage.atomic_writes import CRASH_VARIABLE
from concord.workflows.annotation.job import read_annotate_job
from concord_testing import fakes
from concord_testing.checkout import CHECKOUT

TAGGER = ResolvedTagger(name="fake_tagger", version=None, digest="2" * 64, folder=Path("/nowhere"))
_PYTHONPATH = (str(CHECKOUT), str(CHECKOUT / "tests" / "support"))
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
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
    """Read a job with a few documents per shard and no report."""
    values: dict[str, Any] = {
        "input": str(source),
        "output": str(output),
        "planning": {"shard_bytes": 800},
        "executor": {"threads": 1},
        "report": False,
    }
    return read_annotate_job(None, values=values | changes)


def resolved(
    config: AnnotateConfig, *, tagger: ResolvedTagger = TAGGER, parser: ComponentIdentity | None = fakes.PARSER
) -> ResolvedJob:
    """Resolve a job that runs with the fakes."""
    return ResolvedJob.of(config, OutputFolder(config.output.path), tagger, parser=parser)


def run_job(
    config: AnnotateConfig,
    *,
    tagger: ResolvedTagger = TAGGER,
    parser: ComponentIdentity | None = fakes.PARSER,
    **arguments: Any,
) -> RunReport:
    """Annotate with the fakes."""
    arguments = {"build": fakes.build_fake_worker} | arguments
    return annotate(resolved(config, tagger=tagger, parser=parser), **arguments)


def folder_of(report: RunReport) -> Path:
    """Return the output folder of a run that wrote to disk."""
    assert isinstance(report.output, Path)
    return report.output


def committed_bytes(output: Path) -> dict[str, bytes]:
    """Return the content of every file that must have equal bytes: parts, commit records, manifest."""
    paths = [*output.glob("*/*.parquet"), *output.glob("_run/commits/*/*"), output / "current" / "manifest.json"]
    paths += output.glob("_run/parts/*/*")
    return {str(path.relative_to(output)): path.read_bytes() for path in paths}


def copy_output(finished: Path, to: Path) -> Path:
    """Copy an output folder by hard links: a run replaces files and never changes one."""
    return Path(shutil.copytree(finished, to, symlinks=True, copy_function=os.link))


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


def in_child(work: Callable[[], object], *, crash_at: str = "", **environment: str) -> BaseProcess:
    """Start a function in a process of its own; errors set the exit code of the command line.

    The process has the working folder, environment, output and errors of this one. It is forked from a server that has
    the imports and a single thread: a fork of this process would wait for ever for locks that its threads hold.

    Args:
        work: any function. It finds modules as they are imported: patches of this process are not there.
        crash_at: the crash point (concord.pipeline.storage.atomic_writes) at which the process is killed.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["concord_testing.preloaded"])
    variables = {**os.environ, THREADS_VARIABLE: "1", **environment, CRASH_VARIABLE: crash_at}
    child = (cloudpickle.dumps(work), _Descriptor(1), _Descriptor(2), variables)
    # The server starts with the first child.
    with mock.patch.dict(os.environ, {"PYTHONPATH": os.pathsep.join(_PYTHONPATH), **_ONE_THREAD}):
        process = context.Process(target=_run_child, args=child, daemon=True)
        process.start()
    return process


class _Descriptor:
    """An open file of this process that a child receives under a number of its own."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return operator.methodcaller("detach"), (DupFd(self._number),)


def _run_child(work: bytes, output: int, errors: int, variables: dict[str, str]) -> None:
    os.dup2(output, 1)
    os.dup2(errors, 2)
    os.environ.clear()
    os.environ.update(variables)
    torch.set_num_threads(1)
    try:
        cloudpickle.loads(work)()
    except (ConcordError, ConfigError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        raise SystemExit(getattr(error, "exit_code", 2)) from None
