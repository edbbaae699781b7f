"""The command ``concord view``: serve the pages of a collection to a browser on this machine."""

import re
import secrets
import socket
import webbrowser
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from threading import Thread

import uvicorn

from concord.models.errors import ConfigError
from concord.pipeline.corrections.correction import check_name, log_path
from concord.pipeline.exchange.review_queue import Quotas
from concord.pipeline.storage.output_paths import OutputPath
from concord.workflows.console import Answer, info
from concord.workflows.view.app import ADDRESSES, build_app
from concord.workflows.view.index.opened import OpenedCollection
from concord.workflows.view.viewer import QUOTAS

ADDRESS = "127.0.0.1"
ANY = "0.0.0.0"
PORT = 7391
"""Tried first, so that addresses stay; any free port if another program has it."""

_ADDRESS = re.compile(r"\d+(\.\d+){3}")
_NAME = re.compile(r"[\w.-]+(:\d+)?")
_BASE = re.compile(r"(/[\w.~-]+)*")


def serve(
    output: OutputPath,
    *,
    port: int | None,
    browser: bool,
    who: str | None = None,
    quotas: Quotas | None = None,
    fetch: bool = False,
    host: Sequence[str] = (),
    base_path: str = "",
) -> Answer:
    """Serve a collection until Ctrl-C.

    Args:
        port: to listen on; ``PORT`` if None, or any free one.
        browser: whether to open one.
        who: corrects the collection; without a name it can only be read.
        quotas: of the queue of sentences to review, which is then opened first.
        fetch: whether texts of inputs behind URLs are read.
        host: names under which browsers reach the server, and at most one IP address to listen on.
        base_path: the path below which browsers see the pages.

    Raises:
        PlanError: when the folder contains no run.
        ConfigError: when the port is in use, the IP address is none of this machine, a name or the path cannot be one,
            or the collection is in an object store and cannot be corrected.
    """
    if who is not None:
        log_path(output)
        try:
            check_name(who)
        except ValueError as error:
            raise ConfigError(f"--as: {error}, got {who!r}; name who corrects, as in --as ada") from None
    listens = [name for name in host if _ADDRESS.fullmatch(name)] or [ADDRESS]
    names = [name.lower() for name in host if name not in listens]
    base = f"/{base_path.strip('/')}".rstrip("/")
    if base in ADDRESSES:
        raise ConfigError(f"--base-path: expected a path that is none of the pages', got {base!r}; choose another one")
    if not _BASE.fullmatch(base) or len(listens) > 1 or not all(map(_NAME.fullmatch, names)):
        raise ConfigError(
            "expected a path such as /news for --base-path, and for --host names with their ports, such as "
            f"localhost:8000, or one IP address to listen on, got {base_path!r} and {', '.join(host)}"
        )
    token = secrets.token_urlsafe(24)
    with listen(port, listens[0]) as listener, ExitStack() as closing:
        number = listener.getsockname()[1]
        app = build_app(
            OpenedCollection(output, fetch=fetch),
            token=token,
            port=number,
            who=who,
            quotas=quotas or QUOTAS,
            names=[*names, f"{listens[0]}:{number}"],
            base=base,
        )
        path = f"{base}/{'' if quotas is None else 'review'}?token={token}"
        url = f"http://{ADDRESS if listens[0] == ANY else listens[0]}:{number}{path}"
        others = "".join(f"\nunder the name {name}: {path}" for name in names)
        reach = "Only this machine" if listens == [ADDRESS] else "Every machine in its network, unencrypted,"
        info(f"{output}: {url}{others}\n{reach} can reach it. Ctrl-C closes it.")
        if browser:
            # Every user of this machine can see the arguments of a browser, and only this one the page.
            page = closing.enter_context(NamedTemporaryFile("w", prefix="concord-view-", suffix=".html"))
            page.write(f'<meta http-equiv="refresh" content="0; url={url}">')
            page.flush()
            Thread(target=webbrowser.open, args=[Path(page.name).as_uri()], name="browser", daemon=True).start()
        server = uvicorn.Server(
            uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,
                lifespan="off",
                server_header=False,
                timeout_graceful_shutdown=2,
            )
        )
        # It stops at Ctrl-C, and raises it again when it has.
        with suppress(KeyboardInterrupt):
            server.run(sockets=[listener])
    return Answer(values={"output": str(output), "url": url}, text="closed")


def listen(port: int | None, address: str = ADDRESS) -> socket.socket:
    """Return a listening socket; ConfigError if the port is in use, or the address is none of this machine."""
    for number in (PORT, 0) if port is None else (port,):
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, number))
            # From here on a browser waits for its answer, even if the server is not ready yet.
            listener.listen(128)
        except OSError as error:
            listener.close()
            fault = error
        else:
            return listener
    raise ConfigError(f"cannot listen on {address}:{number}: {fault.strerror}; choose another --port or --host")
