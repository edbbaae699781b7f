"""Make a folder to begin with, from the files of starter/: the samples once for each entity type."""

import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from string import Template

from concord.models.errors import ConfigError
from concord.workflows.console import Answer, table

TYPE = re.compile(r"[^\W_][\w-]*")
_ENDINGS = ("vex", "idor", "una", "atra", "ston", "mel", "bin", "gar", "dix", "olo")
"""Endings of the invented names of each type."""
# The others hold samples.
_ONCE = {"README.md", "train.yaml", "promote.yaml"}


def init_command(folder: Path, types: Sequence[str]) -> Answer:
    """Fill a new or empty folder.

    Raises:
        ConfigError: when the folder holds something, or a type is no name of one or is named twice.
    """
    _check(folder, types)
    name = re.sub(r"[^\w-]+", "-", folder.absolute().name).strip("-") or "labels"
    shown = {"name": name, "types": ", ".join(types), "first": types[0]}
    for path, text in _starter_files():
        if path not in _ONCE:
            text = "".join(_sample(text, kind, number) for number, kind in enumerate(types))
        else:
            text = Template(text).substitute(shown)
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    written = sorted(path for path, _ in _starter_files())
    readme = (folder / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"^(concord .*?)  # ", readme, re.MULTILINE)
    rows = [("folder", str(folder)), ("files", ", ".join(written)), ("tagger", "doc_uanet over the bundled encoder")]
    steps = "\n".join([f"cd {folder}", *commands])
    return Answer(
        values={"folder": str(folder), "files": written, "commands": commands},
        text=f"{table(rows)}\n\nREADME.md lists the commands in order:\n\n{steps}",
    )


def _check(folder: Path, types: Sequence[str]) -> None:
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder}: expected a new or empty folder, got one with files; choose another")
    if not types or len(set(types)) < len(types):
        raise ConfigError(f"--types: expected different entity types, such as DRUG,DOSE, got {','.join(types)!r}")
    for kind in types:
        if not TYPE.fullmatch(kind):
            raise ConfigError(f"--types: expected names of letters, digits, - and _, such as DRUG,DOSE, got {kind!r}")


def _starter_files() -> list[tuple[str, str]]:
    """Return the relative path and the template of each file."""
    starter = Path(str(files("concord.workflows.training"))) / "starter"
    paths = sorted(path for path in starter.rglob("*") if path.is_file())
    return [(path.relative_to(starter).as_posix(), path.read_text(encoding="utf-8")) for path in paths]


def _sample(template: str, kind: str, number: int) -> str:
    """Return the samples of a type, whose names end unlike those of other types."""
    turn, place = divmod(number, len(_ENDINGS))
    return Template(template).substitute(TYPE=kind, type=kind.lower(), end=_ENDINGS[place] * (turn + 1))
