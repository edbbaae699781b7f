"""``concord doctor``: checks of this machine, each with advice where something is missing."""

import os
import platform
import shutil
import socket
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from concord.models.errors import ConcordError, ModelError
from concord.pipeline.errors import BusyError, StoreError
from concord.pipeline.resources import THREADS_VARIABLE, default_threads, usable_cores
from concord.pipeline.storage.locks import write_lock
from concord.pipeline.storage.object_stores import StorePath
from concord.pipeline.storage.output_paths import OutputPath
from concord.workflows.console import Answer, table
from concord.workflows.job_files import cache_folder

GIB = 1024**3
# Distribution -> the versions that the output was tested with.
TESTED = {"torch": "2.13.", "ray": "2.60.", "pyarrow": "25.", "stanza": "1.15.", "mlflow": "3.17."}
# Extra -> a module that comes with it.
EXTRAS = {
    "archives": "fastwarc",
    "duckdb": "duckdb",
    "hf": "transformers",
    "html": "resiliparse",
    "spacy": "spacy",
    "stores": "obstore",
}
REACH_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the answer; the advice, what to do, is empty if the state is ok."""

    state: Literal["ok", "warn", "fail"]
    subject: str
    found: str
    advice: str = ""


def check_machine(output: OutputPath) -> Answer:
    """Check this machine and the place of future runs; exit code 1 if something must be fixed before a run."""
    checks = [*_versions(), *_hardware(), *_bundled(), _extras(), *_places(output), *_servers()]
    fails = sum(check.state == "fail" for check in checks)
    rows = table([(check.state, check.subject, check.found) for check in checks]).splitlines()
    lines = [line + f"\n      -> {check.advice}" * bool(check.advice) for line, check in zip(rows, checks, strict=True)]
    summary = f"{fails} to fix before a run" if fails else "ready to annotate"
    text = "\n".join([*lines, "", summary])
    return Answer(values={"checks": checks, "fails": fails}, text=text, exit_code=1 if fails else 0)


def _versions() -> Iterator[Check]:
    yield Check("ok", "python", platform.python_version())
    for name, tested in TESTED.items():
        is_tested = version(name).startswith(tested)
        advice = "" if is_tested else f"tested with {tested}x; constraints.txt has the pinned versions"
        yield Check("ok" if is_tested else "warn", name, version(name), advice)


def _hardware() -> Iterator[Check]:
    import torch

    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB
    devices = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    threads = f"{default_threads()} ({THREADS_VARIABLE} {os.environ.get(THREADS_VARIABLE) or 'unset'})"
    advice = "4 GiB are recommended; keep executor.actors low" * (memory < 4)
    yield Check("ok", "cores", f"{usable_cores()}, of which a run uses {threads}")
    yield Check("warn" if advice else "ok", "memory", f"{memory:.1f} GiB", advice)
    yield Check("ok", "CUDA devices", ", ".join(devices) or "none; taggers and parser run on the CPU")


def _bundled() -> Iterator[Check]:
    """Check that the bundled models are present and whole."""
    from concord.models.words.bundled_encoder import damaged_files
    from concord.pipeline.config import ParserConfig
    from concord.pipeline.parsing.resolve_parser import parser_identity
    from concord.pipeline.parsing.stanza_packages import EMBEDDED_PACKAGES
    from concord.workflows.registry import bundled_names, find_tagger

    def encoder() -> str:
        if damaged := damaged_files():
            raise ModelError(f"damaged: {', '.join(damaged)}")
        return "whole"

    models: dict[str, Callable[[], object]] = {
        f"parser {name}": partial(parser_identity, ParserConfig(package=name)) for name in EMBEDDED_PACKAGES
    }
    models["encoder"] = encoder
    models |= {f"tagger {name}": partial(find_tagger, name) for name in bundled_names()}
    for name, find in models.items():
        yield _try(name, find, "install Concord again")


def _extras() -> Check:
    missing = [extra for extra, module in EXTRAS.items() if find_spec(module) is None]
    advice = f"; not installed: {', '.join(missing)} (pip install 'concord-annotate[...]')" * bool(missing)
    return Check("ok", "extras", (", ".join(extra for extra in EXTRAS if extra not in missing) or "none") + advice)


def _places(output: OutputPath) -> Iterator[Check]:
    """Check that the cache can be written, and the place of future runs."""
    writable = "choose a writable file system that supports hard links and locks"
    yield _try("cache", partial(_folder, cache_folder()), f"{writable}, by CONCORD_CACHE")
    if isinstance(output, StorePath):
        advice = "choose a store with conditional writes (If-None-Match and If-Match)"
        yield _try("output", lambda: _store(output), advice)
    else:
        yield _try("output", partial(_folder, output), f"{writable}, by --output")


def _folder(place: Path) -> str:
    nearest = next(folder for folder in (place, *place.absolute().parents) if folder.is_dir())
    with tempfile.TemporaryDirectory(dir=nearest, prefix=".concord-doctor-") as folder:
        (Path(folder) / "a").touch()
        os.link(Path(folder) / "a", Path(folder) / "b")
        lock = Path(folder) / "_run" / "lock"
        with write_lock(lock), suppress(BusyError), write_lock(lock):
            raise StoreError(f"{nearest} gives a lock to two writers at once")
    return f"{nearest} is writable, {shutil.disk_usage(nearest).free / GIB:.1f} GiB free"


def _store(output: StorePath) -> str:
    """Check that an object is created only where there is none, and replaced only if it has the version given."""
    probe = output / f".concord-doctor-{uuid.uuid4().hex}"
    try:
        created = probe.write_if(b"created", None)
        if probe.write_if(b"created again", None) is not None:
            raise StoreError(f"{output} creates an object that exists")
        if probe.write_if(b"replaced", created) is None or probe.write_if(b"replaced again", created) is not None:
            raise StoreError(f"{output} does not replace exactly the version of an object that is asked for")
    finally:
        probe.unlink(missing_ok=True)
    return f"{output} is writable, creates an object once and replaces the version that is asked for"


def _servers() -> Iterator[Check]:
    """Check that the servers which the environment names can be reached."""
    for name, advice in {
        "MLFLOW_TRACKING_URI": "start the server, or unset the variable for a database in the current folder",
        "RAY_ADDRESS": "start the cluster, or unset the variable for a local Ray",
    }.items():
        if address := os.environ.get(name):
            yield _try(name, partial(_reach, address), advice)


def _reach(address: str) -> str:
    if address.startswith("file:"):
        raise ValueError(f"{address}: MLflow 3 has no file stores; use sqlite:////absolute/mlflow.db or a server")
    parts = urlsplit(address if "://" in address else f"//{address}")
    port = parts.port or {"http": 80, "https": 443, "ray": 10001}.get(parts.scheme)
    if not parts.hostname or port is None:
        return f"{parts.scheme or address} is not asked"
    socket.create_connection((parts.hostname, port), timeout=REACH_SECONDS).close()
    return f"{parts.hostname}:{port} answers"


def _try(subject: str, find: Callable[[], object], advice: str) -> Check:
    """Return what was found, as text or as ``whole``, or the error that says why it was not."""
    try:
        found = find()
    except (ConcordError, OSError, ValueError, KeyError) as error:
        return Check("fail", subject, str(error), advice)
    return Check("ok", subject, found if isinstance(found, str) else "whole")
