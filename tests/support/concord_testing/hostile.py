"""What somebody else may have put into a collection, and the commands that somebody runs on it."""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import cycle, product
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

import concord
from concord.models.errors import ConcordError
from concord.workflows.view.app import build_app
from concord.workflows.view.index.opened import OpenedCollection
from concord_testing import runs
from concord_testing.command_line import concord as command

FOLDERS = (
    "_run",
    "_run/staging",
    "_run/parts",
    "_run/parts/documents",
    "_run/plans",
    "_run/commits",
    "_run/commits/0",
    "_run/attempts",
    "_run/attempts/2",
    "generations",
    "generations/000000",
    "generations/000001",
    "generations/000001/documents",
    "documents",
    "current",
    "versions",
)
FILES = (
    "generations/000001/manifest.json",
    "generations/000001/plan.json",
    "_run/plans/1.json",
    "_run/commits/0/00000.json",
    "_run/stats.json",
    "_run/settings.yaml",
    "_run/files.json",
    "_run/attempts/2/00000",
    "_run/report.html",
    "corrections.jsonl",
)
DEEP = b"[" * 100_000
CONTENTS: Mapping[str, bytes] = {
    "empty": b"",
    "number": b"5",
    "list": b"[]",
    "object": b"{}",
    "null": b"null",
    "deep": DEEP,
    "deep_object": b'{"a":' * 100_000,
    "no_utf8": b"\xff\xfe\x00",
    "nul": b'"\\u0000"',
    "huge_number": b'{"generation":' + b"9" * 5000 + b"}",
}

FOLDER_KINDS = ("link_to_folder", "dangling_link", "loop", "file", "fifo")
FILE_KINDS = ("link_to_file", "dangling_link", "loop", "link_to_device", "fifo", "folder", "sparse", *CONTENTS)
ATTACKS = (*product(FOLDERS, FOLDER_KINDS), *product(FILES, FILE_KINDS))
"""Every place of a collection with everything that may be there instead."""
CHOSEN = (
    *((folder, "link_to_folder") for folder in FOLDERS),
    *zip(FOLDERS[::4], FOLDER_KINDS[1:], strict=False),
    *zip(cycle(FILES), FILE_KINDS, strict=False),
)
"""Those of them that tests try: each place, and each kind. The soak draws from all."""


def contents_of(folder: Path) -> dict[str, tuple[int, bytes | str | None]]:
    """Return what is in a folder: the mode of every entry, and the content of a file or link."""
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mode,
            str(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else None,
        )
        for path in folder.rglob("*")
    }


def make_victim(folder: Path) -> Path:
    """Make a folder of somebody, with names such as a collection has."""
    for name in ("documents", "000000", "000001/documents", "staging"):
        (folder / name).mkdir(parents=True)
        (folder / name / "precious.txt").write_text("mine")
        (folder / name / "part-00000-g0-00000000.parquet").write_text("mine")
    for name in ("precious.txt", "0.json", "00000.json", "manifest.json", "part-00000-g0-00000000.parquet"):
        (folder / name).write_text("mine")
    return folder


def replace(path: Path, kind: str, victim: Path) -> None:
    """Put something else in place of a file or folder of a collection, or where one may come to be."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    match kind:
        case "link_to_folder":
            path.symlink_to(victim)
        case "link_to_file":
            path.symlink_to(victim / "precious.txt")
        case "dangling_link":
            path.symlink_to(victim / "not_there")
        case "loop":
            path.symlink_to(path.name)
        case "link_to_device":
            path.symlink_to("/dev/zero")
        case "fifo":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "file":
            path.write_text("a file")
        case "sparse":
            with path.open("wb") as stream:
                stream.truncate(1 << 42)
        case _:
            path.write_bytes(CONTENTS[kind])


def commands(output: Path, source: Path, folder: Path) -> Iterator[tuple[str, Callable[[], str | None]]]:
    """Yield the commands that somebody runs on a collection, those that change nothing first."""
    exports = folder / "exports"
    exports.mkdir(exist_ok=True)
    for arguments in (
        ("status", output),
        ("verify", output),
        ("history", output),
        ("diff", output, output),
        ("errors", output),
        ("corrections", "list", output),
        ("export", output, "--to", "jsonl", "-o", exports / "a.jsonl"),
        ("review", output, "-o", exports / "queue.json"),
        ("files", output),
    ):
        yield " ".join(map(str, arguments)), partial(run_command, *arguments)
    yield "view", partial(view, output, folder / "cache")
    yield "open", partial(read, output)
    yield from writing_commands(output, source)


def writing_commands(output: Path, source: Path) -> Iterator[tuple[str, Callable[[], str | None]]]:
    """Yield those of the commands that write into the collection."""
    for arguments in (
        ("report", output),
        ("history", output, "--tag", "v2"),
        ("history", output, "--prune", "--keep", "1"),
    ):
        yield " ".join(map(str, arguments)), partial(run_command, *arguments)
    yield "annotate", partial(annotate, source, output)


def run_command(*arguments: object) -> str:
    """Run a command of the command line and return what it says when it fails; raise what it does not explain."""
    result = command(*arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output if result.exit_code else ""


def view(output: Path, cache: Path) -> None:
    """Open the viewer and load its pages."""
    opened = OpenedCollection(output, cache=cache)
    opened.wait()
    client = TestClient(build_app(opened, token="token", port=7391, who="ada"), base_url="http://127.0.0.1:7391")
    client.get("/?token=token")
    for page in ("/", "/dead-letters", "/document?id=d1", "/corrections", "/report", "/names"):
        client.get(page)


def read(output: Path) -> None:
    """Open a collection from Python and read a document."""
    run = concord.open(output)
    run.to_arrow("entities")
    with suppress(KeyError):
        run.document("d1")


def annotate(source: Path, output: Path) -> None:
    """Annotate what has changed, and keep no earlier generation."""
    runs.run_job(job(source, output, grace_seconds=0.0))


def job(source: Path, output: Path, **settings: Any) -> Any:
    """Return a job over the archive of a hostile collection."""
    changes = {"max_dead_letters": 1.0, "max_removed": 1.0}
    return runs.job(source, output, **changes, output={"path": str(output), **settings})


def suffer(output: Path, source: Path, victim: Path, folder: Path, *, only_writing: bool = False) -> dict[str, str]:
    """Run every command and return how each ended: the message of its error, or nothing.

    Raises:
        AssertionError: when a command touched what is not the collection's.
        Exception: whatever a command raised that is no ConcordError.
    """
    before, ends = contents_of(victim), {}
    chosen = writing_commands(output, source) if only_writing else commands(output, source, folder)
    for name, run in chosen:
        try:
            said = run()
        except ConcordError as error:
            ends[name] = f"{type(error).__name__}: {error}"
        except Exception as error:
            raise AssertionError(f"{name}: {type(error).__name__}: {error}") from error
        else:
            ends[name] = said or ""
        assert contents_of(victim) == before, name
    return ends


def make_collection(folder: Path) -> tuple[Path, Path]:
    """Make a collection of two generations with all that may be in one, and return it with its input."""
    source = runs.write_collection(folder / "in.jsonl", documents=6)
    source.write_text(source.read_text() + '{"id": "broken"}\n')
    output = folder / "honest"
    for number in range(2):
        with source.open("a") as stream:
            stream.write(json.dumps({"id": f"new{number}", "text": f"Anna met Bob {number} times."}) + "\n")
        runs.run_job(job(source, output, keep=2))
    run_command("history", output, "--tag", "v1")
    run_command("report", output)
    with source.open("a") as stream:
        stream.write(json.dumps({"id": "later", "text": "Bob left Geneva."}) + "\n")
    return output, source
