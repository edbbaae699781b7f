"""Make a folder to begin with, from the files of starter/: the samples once for each entity type."""

import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from string import Template

from concord.models.errors import ConfigError
from concord.models.words.encoder_config import EncoderConfig, encoder_available
from concord.workflows.console import Answer, table

TYPE = re.compile(r"[^\W_][\w-]*")
_ENDINGS = ("vex", "idor", "una", "atra", "ston", "mel", "bin", "gar", "dix", "olo")
"""Endings of the invented names of each type."""
_ENCODED = "  # frozen features of MiniLM"
"""At the end of the lines of train.yaml that need the encoder."""
# The others hold samples.
_ONCE = {"README.md", "train.yaml", "promote.yaml"}


def init_command(folder: Path, types: Sequence[str], *, encoder: bool | None = None) -> Answer:
    """Fill a new or empty folder.

    Args:
        encoder: whether the tagger reads the frozen encoder; None if it is installed.

    Raises:
        ConfigError: when the folder holds something, or a type is no name of one or is named twice.
    """
    _check(folder, types)
    encoded = encoder_available(EncoderConfig()) if encoder is None else encoder
    name = re.sub(r"[^\w-]+", "-", folder.absolute().name).strip("-") or "labels"
    shown = {"name": name, "types": ", ".join(types), "first": types[0]}
    for path, text in _starter_files():
        if path not in _ONCE:
            text = "".join(_sample(text, kind, number) for number, kind in enumerate(types))
        elif encoded:
            text = Template(text).substitute(shown)
        else:
            lines = Template(text).substitute(shown).splitlines(keepends=True)
            text = "".join(line for line in lines if not line.endswith(f"{_ENCODED}\n"))
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    written = sorted(path for path, _ in _starter_files())
    readme = (folder / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"^(concord .*?)  # ", readme, re.MULTILINE)
    over = "over frozen MiniLM features" if encoded else "without an encoder, which is not installed"
    rows = [("folder", str(folder)), ("files", ", ".join(written)), ("tagger", f"doc_uanet {over}")]
    steps = "\n".join([f"cd {folder}", *commands])
    return Answer(
        values={"folder": str(folder), "encoder": encoded, "files": written, "commands": commands},
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
