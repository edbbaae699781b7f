"""The tour of docs/lifecycle.md: every command runs, ends with the code it should, and says what the page says."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "lifecycle.md"
PORT = "5601"
TIMEOUT_SECONDS = 900


@dataclass(kw_only=True, slots=True)
class Step:
    """A command of the page, the exit code it names, and lines that its output must hold."""

    command: str
    exit_code: int
    lines: list[str] = field(default_factory=list)


def steps_of(page: str) -> Iterator[Step]:
    for block in re.findall(r"^```console\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE):
        step: Step | None = None
        for line in block.splitlines():
            if line.startswith("$ "):
                if step is not None:
                    yield step
                code = re.search(r"# exit code (\d+)$", line)
                step = Step(command=line.removeprefix("$ "), exit_code=int(code[1]) if code else 0)
            elif step is not None:
                step.lines.append(line)
        if step is not None:
            yield step


def script(steps: list[Step]) -> str:
    """Give one shell script: a server that one step starts is there in the next. Each step writes files of its own."""
    lines = [f'concord() {{ "{sys.executable}" -m workflows.cli "$@"; }}', "set -m"]
    for number, step in enumerate(steps):
        if step.command.endswith("&"):
            lines.append(f"{step.command.removesuffix('&')} > {number}.out 2>&1 &")
            lines.append(f"echo 0 > {number}.code")
        else:
            lines.append(f"{{ {step.command}\n}} > {number}.out 2> {number}.err; echo $? > {number}.code")
    return "\n".join(lines)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def plain(text: str) -> str:
    """Leave out how columns are set apart."""
    return " ".join(text.split())


@pytest.mark.slow
def test_the_tour_goes_as_the_page_says(tmp_path: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    steps = list(steps_of(page.replace(PORT, str(free_port()))))
    assert len(steps) > 15
    for name in ("conf", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MLFLOW_")} | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "CONCORD_CACHE": str(tmp_path / "cache"),
        # Where another process wants the second core, tiny batches on two threads wait for each other.
        "OMP_NUM_THREADS": "1",
    }
    subprocess.run(["bash", "-c", script(steps)], cwd=tmp_path, env=environment, timeout=TIMEOUT_SECONDS, check=False)
    for number, step in enumerate(steps):
        said = (tmp_path / f"{number}.out").read_text(encoding="utf-8")
        errors = tmp_path / f"{number}.err"
        context = f"$ {step.command}\n{said}\n{errors.read_text(encoding='utf-8') if errors.exists() else ''}"
        assert int((tmp_path / f"{number}.code").read_text()) == step.exit_code, context
        for line in step.lines:
            assert plain(line) in plain(said), f"expected {line!r} from\n{context}"
