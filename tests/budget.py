"""Compare the size of Concord with the budget in pyproject.toml, as ``make check`` does.

A number there is raised only with a line of reason in CHANGELOG.md, and is lowered to what was reached.
"""

import json
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click

from concord.models.config import Config
from concord.pipeline.config import AnnotateConfig
from concord.workflows.cli.main import main as command_line

ROOT = Path(__file__).parents[1]
ROOMS = ("concord", "models", "pipeline", "workflows")


def sources(folder: str) -> list[Path]:
    """Return the Python files of a folder; links lead to other rooms."""
    return [path for path in (ROOT / folder).rglob("*.py") if path.resolve() == path]


def lines(folder: str) -> int:
    """Return the number of lines of all Python files of a folder."""
    return sum(path.read_bytes().count(b"\n") for path in sources(folder))


def verbs(command: click.Command) -> Iterator[click.Command]:
    """Yield the commands of the command line that do something."""
    if isinstance(command, click.Group):
        for part in command.commands.values():
            yield from verbs(part)
    else:
        yield command


def settings(config: type[Config]) -> Iterator[str]:
    """Yield the names of all settings of a job, such as ``reader.encoding``."""
    for name, field in config.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Config):
            yield from (f"{name}.{below}" for below in settings(field.annotation))
        else:
            yield name


def measure() -> dict[str, float]:
    """Return what the budget bounds."""
    by_room = {f"lines_of_{room}": lines(room) for room in ROOMS}
    minutes = json.loads((ROOT / "tests" / "durations.json").read_bytes())["minutes"]
    return {
        "lines": sum(by_room.values()),
        **by_room,
        "files": sum(len(sources(room)) for room in ROOMS),
        "lines_of_tests": lines("tests"),
        "verbs": len(list(verbs(command_line))),
        "settings_of_annotate": len(list(settings(AnnotateConfig))),
        "minutes_of_tests": max(minutes.values(), default=0),
    }


def main() -> None:
    """Print a line for each number, and exit with 1 if one is above its budget."""
    budget = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["concord"]["budget"]
    found = measure()
    for name, number in found.items():
        print(f"{name:>22} {number:>8,} of {budget[name]:,}")
    if above := [name for name, number in found.items() if number > budget[name]]:
        sys.exit(f"above the budget in pyproject.toml: {', '.join(above)}; take something out, or see CONTRIBUTING.md")


if __name__ == "__main__":
    main()
