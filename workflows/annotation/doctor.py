"""``concord doctor``: checks of this machine, each with advice where something is missing."""

import importlib.util
import os
import platform
import shutil
import sys
import tempfile
import uuid
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from concord.models.errors import ConcordError
from concord.pipeline.storage.output_paths import OutputPath
from concord.pipeline.storage.store_path import StorePath
from concord.pipeline.threads import THREADS_VARIABLE, default_threads, usable_cores
from concord.workflows.console import Answer, table

LEAST_MEMORY_GIB = 4
LEAST_SPACE_GIB = 1
GIB = 1024**3
# Distribution -> the versions that the output was tested with.
TESTED = {"torch": "2.13.", "ray": "2.60.", "pyarrow": "25.", "stanza": "1.15.", "mlflow": "3.17."}

State = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the answer; the advice, what to do, is empty if the state is ok."""

    state: State
    subject: str
    found: str
    advice: str = ""


def check_machine(output: OutputPath) -> Answer:
    """Check this machine and the place of future runs; exit code 1 if something must be fixed before a run."""
    checks = [
        _python(),
        *(_package(name, tested) for name, tested in TESTED.items()),
        *_machine(),
        *_torch(),
        _parser(),
        *_encoder(),
        _tagger(),
        *_formats(),
        _store(output) if isinstance(output, StorePath) else _folder(output),
        *_environment(),
    ]
    fails = sum(check.state == "fail" for check in checks)
    rows = [(check.state, check.subject, check.found) for check in checks]
    lines = [
        line if not check.advice else f"{line}\n      -> {check.advice}"
        for line, check in zip(table(rows).splitlines(), checks, strict=True)
    ]
    summary = f"{fails} to fix before a run" if fails else "ready to annotate"
    return Answer(
        values={"checks": checks, "fails": fails},
        text="\n".join([*lines, "", summary]),
        exit_code=1 if fails else 0,
    )


def _python() -> Check:
    if (3, 11) <= sys.version_info[:2] < (3, 15):
        return Check("ok", "python", platform.python_version())
    return Check("fail", "python", platform.python_version(), "use Python 3.11 to 3.14")


def _package(name: str, tested: str) -> Check:
    try:
        found = version(name)
    except PackageNotFoundError:
        return Check("fail", name, "not installed", "run make setup")
    if found.startswith(tested):
        return Check("ok", name, found)
    return Check("warn", name, found, f"tested with {tested}x; make setup installs the pinned version")


def _machine() -> list[Check]:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB
    low = memory < LEAST_MEMORY_GIB
    advice = f"{LEAST_MEMORY_GIB} GiB are recommended; keep executor.actors low" if low else ""
    return [
        Check("ok", "cores", str(usable_cores())),
        _load(),
        Check("warn" if low else "ok", "memory", f"{memory:.1f} GiB", advice),
    ]


def _load() -> Check:
    """Check that as many cores are idle as a run would use: more threads than idle cores wait for each other."""
    load, threads, cores = os.getloadavg()[0], default_threads(), usable_cores()
    found = f"{load:.1f} (1 minute) on {os.cpu_count()} cores"
    # The load is that of the whole machine, of which this process may not see every core.
    idle = cores * max(0.0, 1 - load / (os.cpu_count() or 1))
    if round(idle) >= threads:
        return Check("ok", "load", found)
    if threads == 1:
        return Check("warn", "load", found, "other processes use the cores, so runs take longer than usual")
    advice = (
        f"other processes use the cores, and {threads} threads that share fewer can be far slower than one; set "
        f"{THREADS_VARIABLE}=1, or --threads 1 (annotate, train, evaluate)"
    )
    return Check("warn", "load", found, advice)


def _torch() -> list[Check]:
    import torch

    devices = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return [
        Check(
            "ok", "threads", f"{default_threads()} ({THREADS_VARIABLE} {os.environ.get(THREADS_VARIABLE) or 'unset'})"
        ),
        Check("ok", "CUDA devices", ", ".join(devices) or "none; taggers and parser run on the CPU"),
    ]


def _parser() -> Check:
    from concord.pipeline.config import ParserConfig
    from concord.pipeline.parsing.resolve_parser import parser_identity
    from concord.pipeline.parsing.stanza_packages import MULTILINGUAL_PACKAGE

    try:
        # It is of both bundled packages: that for English, and that for other languages.
        found = parser_identity(ParserConfig(package=MULTILINGUAL_PACKAGE))
    except ConcordError as error:
        return Check("fail", "parser", "not found", str(error))
    return Check("ok", "parser", f"{found.name} {found.digest[:12]}")


def _encoder() -> list[Check]:
    from concord.models.words.bundled_encoder import damaged_files
    from concord.models.words.encoder_config import BUNDLED_ENCODER, BUNDLED_NAME

    try:
        damaged = ", ".join(damaged_files())
    except (ConcordError, OSError, ValueError, KeyError) as error:
        damaged = str(error)
    transformers = "not installed: encoders of your own and hf: taggers need it (the extra hf)"
    if importlib.util.find_spec("transformers") is not None:
        transformers = version("transformers")
    if damaged:
        encoder = Check("fail", "encoder", f"damaged in {BUNDLED_ENCODER}: {damaged}", "install Concord again")
    else:
        encoder = Check("ok", "encoder", BUNDLED_NAME)
    return [encoder, Check("ok", "transformers", transformers)]


def _tagger() -> Check:
    from concord.workflows.registry import resolve_tagger as taggers

    names = ", ".join(taggers.bundled_names()) or "none"
    try:
        tagger = taggers.find_tagger(taggers.DEFAULT)
    except ConcordError as error:
        return Check("fail", "tagger", f"bundled: {names}", str(error))
    return Check("ok", "tagger", f"{tagger.name}; bundled: {names}")


def _formats() -> list[Check]:
    """Name the formats that cannot be read here; nobody need read them."""
    from concord.pipeline.readers.read_file import OPTIONAL, extra_of, missing_libraries

    missing = {format: names for format, reader in OPTIONAL.items() if (names := missing_libraries(reader))}
    return [
        Check("ok", "format", f"{format} is not read without {' and '.join(names)}: pip install '{extra_of(format)}'")
        for format, names in missing.items()
    ] or [Check("ok", "formats", f"{', '.join(OPTIONAL)} are read besides text, JSON lines and tables")]


def _folder(output: Path) -> Check:
    nearest = next(folder for folder in (output, *output.absolute().parents) if folder.is_dir())
    try:
        with tempfile.TemporaryDirectory(dir=nearest, prefix=".concord-doctor-") as folder:
            (Path(folder) / "a").touch()
            os.link(Path(folder) / "a", Path(folder) / "b")
    except OSError as error:
        advice = "choose an --output on a writable file system that supports hard links"
        return Check("fail", "output", f"{nearest}: {error.strerror}", advice)
    free = shutil.disk_usage(nearest).free / GIB
    found = f"{nearest} is writable, {free:.1f} GiB free"
    if free < LEAST_SPACE_GIB:
        return Check("warn", "output", found, f"{LEAST_SPACE_GIB} GiB are recommended")
    return Check("ok", "output", found)


def _store(output: StorePath) -> Check:
    probe = output / f".concord-doctor-{uuid.uuid4().hex}"
    try:
        probe.write_once(b"")
        created_again = probe.write_once(b"")
        probe.unlink(missing_ok=True)
    except ConcordError as error:
        return Check("fail", "output", f"{output} cannot be written", str(error))
    if created_again:
        advice = "choose a store with conditional writes (If-None-Match), or run one driver at a time"
        return Check("fail", "output", f"{output} replaces an object that exists", advice)
    return Check("ok", "output", f"{output} is writable and creates an object once")


def _environment() -> list[Check]:
    tracking = os.environ.get("MLFLOW_TRACKING_URI")
    checks = [
        Check("ok", "MLflow", tracking or f"sqlite:///{Path.cwd() / 'mlflow.db'} (default)"),
        Check("ok", "Ray", f"RAY_ADDRESS {os.environ.get('RAY_ADDRESS') or 'unset: a local Ray'}"),
    ]
    if tracking is not None and (tracking.startswith("file:") or "://" not in tracking):
        advice = "MLflow 3 does not support file stores: use sqlite:////absolute/mlflow.db or a server"
        checks[0] = Check("fail", "MLflow", tracking, advice)
    mode = os.environ.get("RAY_AUTH_MODE")
    token = Path.home() / ".ray" / "auth_token"
    if mode is None and os.environ.get("RAY_ADDRESS") and token.exists():
        advice = f"{token} exists: set RAY_AUTH_MODE to token or disabled, the same on every node"
        checks.append(Check("warn", "RAY_AUTH_MODE", "unset", advice))
    else:
        checks.append(Check("ok", "RAY_AUTH_MODE", mode or "unset"))
    if importlib.util.find_spec("obstore") is None:
        checks.append(Check("ok", "object stores", "not installed: obstore (the extra stores)"))
    return checks
