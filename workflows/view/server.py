"""The command ``concord view``: serve the pages of a collection to a browser on this machine."""

import secrets
import socket
import webbrowser
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

import uvicorn

from concord.models.errors import ConfigError
from concord.pipeline.corrections.correction import check_name
from concord.pipeline.corrections.log import log_path
from concord.pipeline.exchange.review_queue import Quotas
from concord.pipeline.storage.output_paths import OutputPath
from concord.workflows.console import Answer, info
from concord.workflows.view.app import build_app
from concord.workflows.view.correcting.review_queue import QUOTAS
from concord.workflows.view.index.opened import OpenedCollection

ADDRESS = "127.0.0.1"
PORT = 7391
"""Tried first, so that addresses stay; any free port if another program has it."""


def serve(
    output: OutputPath,
    *,
    port: int | None,
    browser: bool,
    against: OutputPath | None = None,
    who: str | None = None,
    quotas: Quotas | None = None,
    fetch: bool = False,
) -> Answer:
    """Serve a collection until Ctrl-C.

    Args:
        port: to listen on; ``PORT`` if None, or any free one.
        browser: whether to open one.
        against: another collection, with which this one can be compared.
        who: corrects the collection; without a name it can only be read.
        quotas: of the queue of sentences to review, which is then opened first.
        fetch: whether texts of inputs behind URLs are read.

    Raises:
        PlanError: when the folder contains no run.
        ConfigError: when the port is in use, or the collection is in an object store and cannot be corrected.
    """
    if who is not None:
        log_path(output)
        try:
            check_name(who)
        except ValueError as error:
            raise ConfigError(f"--as: {error}, got {who!r}; name who corrects, as in --as ada") from None
    token = secrets.token_urlsafe(24)
    with listen(port) as listener, TemporaryDirectory(prefix="concord-view-") as folder:
        number = listener.getsockname()[1]
        app = build_app(
            OpenedCollection(output, fetch=fetch),
            token=token,
            port=number,
            against=against,
            who=who,
            quotas=quotas or QUOTAS,
        )
        url = f"http://{ADDRESS}:{number}/{'' if quotas is None else 'review'}?token={token}"
        info(f"{output}: {url}\nOnly this machine can reach it. Ctrl-C closes it.")
        if browser:
            # Every user of this machine can see the arguments of a browser, and only this one the page.
            page = Path(folder) / "open.html"
            page.write_text(f'<meta http-equiv="refresh" content="0; url={url}">')
            Thread(target=webbrowser.open, args=[page.as_uri()], name="browser", daemon=True).start()
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


def listen(port: int | None) -> socket.socket:
    """Return a listening socket on this machine's own address; ConfigError if the port is in use."""
    for number in (PORT, 0) if port is None else (port,):
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((ADDRESS, number))
            # From here on a browser waits for its answer, even if the server is not ready yet.
            listener.listen(128)
        except OSError as error:
            listener.close()
            fault = error
        else:
            return listener
    raise ConfigError(f"--port: cannot listen on {ADDRESS}:{port}: {fault.strerror}; choose another one")
