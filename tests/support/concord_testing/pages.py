"""Documentation pages as tests: their fenced blocks, and their console commands with the expected output."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import torch

from concord.workflows.cli.main import main
from concord_testing.checkout import CHECKOUT
from concord_testing.runs import in_child

TIMEOUT_SECONDS = 900
IS_PRINTED_HERE = torch.backends.cpu.get_cpu_capability() == "AVX2"
"""Whether pages print what the bundled taggers find here. On processors of another kind a label in some hundred may be
another (docs/runs.md)."""


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    text: str


@dataclass(kw_only=True, slots=True)
class Step:
    """A console command, its expected exit code, and lines that its output must contain."""

    command: str
    exit_code: int
    lines: list[str] = field(default_factory=list)


def blocks_of(page: str) -> Iterator[Block]:
    """Yield the fenced blocks of a page."""
    for match in re.finditer(r"^```(\w+)\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE):
        yield Block(match[1], match[2])


def steps_of(page: str) -> list[Step]:
    """Return the commands of a page's console blocks."""
    steps: list[Step] = []
    for line in (line for block in blocks_of(page) if block.language == "console" for line in block.text.splitlines()):
        if line.startswith("$ "):
            code = re.search(r"# exit code (\d+)$", line)
            steps.append(Step(command=line.removeprefix("$ "), exit_code=int(code[1]) if code else 0))
        elif steps:
            steps[-1].lines.append(line)
    return steps


def run_steps(steps: Sequence[Step], folder: Path) -> None:
    """Run commands in a folder with conf and examples, and check exit codes and output against the page."""
    for name in ("conf", "examples"):
        (folder / name).symlink_to(CHECKOUT / name)
    for is_concord, run in groupby(enumerate(steps), key=lambda step: step[1].command.startswith("concord ")):
        if is_concord:
            for number, step in run:
                process = in_child(partial(_run_concord, folder, number, step.command))
                process.join(TIMEOUT_SECONDS)
                (folder / f"{number}.code").write_text(str(process.exitcode))
        else:
            subprocess.run(["bash", "-c", _script(run)], cwd=folder, env=_environment(folder), check=False)
    for number, step in enumerate(steps):
        printed = (folder / f"{number}.out").read_text(encoding="utf-8")
        errors = folder / f"{number}.err"
        context = f"$ {step.command}\n{printed}\n{errors.read_text(encoding='utf-8') if errors.exists() else ''}"
        assert int((folder / f"{number}.code").read_text()) == step.exit_code, context
        for line in step.lines:
            assert _single_spaced(line) in _single_spaced(printed), f"expected {line!r} from\n{context}"


def _environment(folder: Path) -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith("MLFLOW_")} | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(CHECKOUT),
        "CONCORD_CACHE": str(folder / "cache"),
        # With two threads, tiny batches are slow when another process takes the second core.
        "OMP_NUM_THREADS": "1",
    }


def _run_concord(folder: Path, number: int, command: str) -> None:
    environment = _environment(folder)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for descriptor, suffix in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{number}.{suffix}", os.O_WRONLY | os.O_CREAT), descriptor)
    main(shlex.split(command, comments=True)[1:])


def _script(steps: Iterable[tuple[int, Step]]) -> str:
    """Return one shell script, so that a server started in one step is up in the next; each step has its own files."""
    lines = ["set -m"]
    for number, step in steps:
        if step.command.endswith("&"):
            lines.append(f"{step.command.removesuffix('&')} > {number}.out 2>&1 &")
            lines.append(f"echo 0 > {number}.code")
        else:
            lines.append(f"{{ {step.command}\n}} > {number}.out 2> {number}.err; echo $? > {number}.code")
    return "\n".join(lines)


def _single_spaced(text: str) -> str:
    """Collapse the padding between columns."""
    return " ".join(text.split())
