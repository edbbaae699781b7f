"""Servers on loopback that speak the protocols of object stores, and a proxy that disturbs their requests."""

import base64
import hashlib
import hmac
import http.client
import logging
import random
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, get_args
from urllib.parse import quote, unquote, urlsplit

from concord_testing.node_packages import find_script

AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account and key that Azurite has by default; they are public."""

_START_SECONDS = 60

Fault = Literal["status", "refused", "lost", "truncated", "slow"]


@contextmanager
def s3_server() -> Iterator[str]:
    """Run moto's server of S3; yields its address."""
    from moto.moto_server import threaded_moto_server
    from moto.server import DomainDispatcherApplication, ThreadedMotoServer

    deciding = threading.Lock()

    class OneAtATime(DomainDispatcherApplication):  # type: ignore[misc]
        """S3 decides conditions one write after the other; moto looks and writes in two steps.

        S3 also keeps every checksum that it gets; moto only one whose algorithm is named.
        """

        def __call__(self, environ: Any, *respond: Any) -> Any:
            if "HTTP_X_AMZ_CHECKSUM_SHA256" in environ:
                environ["HTTP_X_AMZ_SDK_CHECKSUM_ALGORITHM"] = "SHA256"
            with deciding:
                return super().__call__(environ, *respond)

    threaded_moto_server.DomainDispatcherApplication = OneAtATime
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()


@contextmanager
def azure_server() -> Iterator[str]:
    """Run Azurite; yields the address of its account."""
    script = find_script("azurite", "dist/src/blob/main.js")
    command = ["node", str(script), "--blobHost", "127.0.0.1", "--blobPort", "0", "--inMemoryPersistence", "--silent"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines = iter(process.stdout.readline, "")
            address = next(line.split()[-1] for line in lines if "listens on" in line)
            yield f"{address}/{AZURE_ACCOUNT}"
        finally:
            process.kill()


def create_bucket(endpoint: str, name: str) -> None:
    """Create a bucket of moto's, or a container of Azurite's."""
    if endpoint.endswith(AZURE_ACCOUNT):
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
        signed = "PUT" + "\n" * 12 + "".join(f"{name}:{value}\n" for name, value in headers.items())
        signed += f"/{AZURE_ACCOUNT}/{AZURE_ACCOUNT}/{name}\nrestype:container"
        signature = hmac.new(base64.b64decode(AZURE_KEY), signed.encode(), hashlib.sha256).digest()
        headers["Authorization"] = f"SharedKey {AZURE_ACCOUNT}:{base64.b64encode(signature).decode()}"
        status = _send(endpoint, "PUT", f"/{AZURE_ACCOUNT}/{name}?restype=container", headers, b"").status
    else:
        status = _send(endpoint, "PUT", f"/{name}", {}, b"").status
    assert status in {200, 201}, status


@dataclass(kw_only=True)
class _Disturbance:
    fault: Fault
    method: str
    times: int
    status: int
    body: bytes
    seconds: float


@dataclass(kw_only=True)
class Request:
    """A request that passed a proxy."""

    method: str
    path: str
    headers: Mapping[str, str] = field(repr=False)


class StoreProxy(ThreadingHTTPServer):
    """Passes requests on to a store, and disturbs some of them.

    Attributes:
        requests: those received so far.
        disturbed: how many of them met each fault that was drawn at random.
    """

    daemon_threads = True

    def __init__(self, endpoint: str, *, translate_google: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.endpoint = endpoint
        self.translate_google = translate_google
        self.requests: list[Request] = []
        self.disturbed: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._disturbances: list[_Disturbance] = []
        self._draw: random.Random | None = None

    @property
    def url(self) -> str:
        """The address of the store behind the proxy."""
        return f"http://127.0.0.1:{self.server_port}{urlsplit(self.endpoint).path}"

    def disturb(
        self,
        fault: Fault,
        *,
        method: str = "",
        times: int = 1,
        status: int = 503,
        body: bytes = b"",
        seconds: float = 0.0,
    ) -> None:
        """Disturb the next requests.

        Args:
            fault: ``status`` answers with ``status`` and ``body``; ``refused`` closes the connection at once, ``lost``
                when the store has done the request; ``truncated`` closes it in the middle of the body; ``slow`` answers
                after ``seconds``.
            method: of the requests to disturb; all if empty.
            times: how many of them.
        """
        self._disturbances.append(
            _Disturbance(fault=fault, method=method, times=times, status=status, body=body, seconds=seconds)
        )

    def disturb_at_random(self, seed: int | None) -> None:
        """Disturb every tenth request from now on, by faults drawn from a seed; none if it is None."""
        self._draw = None if seed is None else random.Random(seed)

    def next_disturbance(self, method: str) -> _Disturbance | None:
        """Return what to do with a request, and count it."""
        with self._lock:
            for found in self._disturbances:
                if found.times and found.method in {"", method}:
                    found.times -= 1
                    return found
            if self._draw is not None and self._draw.random() < 0.1:
                fault = self._draw.choice(get_args(Fault))
                self.disturbed[fault] += 1
                return _Disturbance(fault=fault, method="", times=0, status=503, body=b"", seconds=0.05)
        return None

    def handle_error(self, *_: Any) -> None:
        """Ignore clients that have closed their connection."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: StoreProxy

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = dict(self.headers.items())
        self.server.requests.append(Request(method=self.command, path=self.path, headers=headers))
        disturbance = self.server.next_disturbance(self.command)
        fault = disturbance.fault if disturbance else None
        self.close_connection = fault in {"refused", "lost", "truncated"}
        if disturbance and fault == "status":
            self._answer(disturbance.status, None, disturbance.body)
            return
        if fault == "refused":
            return
        path = self.path
        if self.server.translate_google:
            path, headers = _of_amazon(path, headers)
        answer = _send(self.server.endpoint, self.command, path, headers, body)
        if fault == "lost":
            return
        if disturbance and fault == "slow":
            time.sleep(disturbance.seconds)
        self._answer(answer.status, answer.headers, answer.content, cut=fault == "truncated")

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass_on

    def _answer(
        self, status: int, headers: http.client.HTTPMessage | None, content: bytes, *, cut: bool = False
    ) -> None:
        self.send_response_only(status)
        dropped = {"connection", "transfer-encoding", "content-length"}
        for name, value in headers.items() if headers else ():
            if name.lower() not in dropped:
                self.send_header(name, value)
            if name.lower() == "etag" and self.server.translate_google:
                # Google numbers the versions of an object; Amazon's etag is the MD5 of its content.
                self.send_header("x-goog-generation", str(int(value.strip('"'), 16)))
        length = headers["Content-Length"] if self.command == "HEAD" and headers else len(content)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[: len(content) // 2] if cut else content)

    def log_message(self, *_: Any) -> None:
        pass


def _of_amazon(path: str, headers: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Translate a request to Google's XML API: it is Amazon's but for quoting, credentials and conditions."""
    signature = "AWS4-HMAC-SHA256 Credential=any/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=any"
    kept = {**headers, "authorization": signature}
    if generation := kept.pop("x-goog-if-generation-match", None):
        name, value = ("If-Match", f'"{int(generation):032x}"') if int(generation) else ("If-None-Match", "*")
        kept[name] = value
    parts = urlsplit(path)
    return parts._replace(path=quote(unquote(parts.path))).geturl(), kept


@dataclass(kw_only=True)
class _Answer:
    status: int
    headers: http.client.HTTPMessage
    content: bytes


def _send(endpoint: str, method: str, path: str, headers: Mapping[str, str], body: bytes) -> _Answer:
    connection = http.client.HTTPConnection(urlsplit(endpoint).netloc, timeout=_START_SECONDS)
    try:
        connection.request(method, path, body=body, headers=dict(headers))
        response = connection.getresponse()
        return _Answer(status=response.status, headers=response.headers, content=response.read())
    finally:
        connection.close()


@contextmanager
def serving(server: ThreadingHTTPServer) -> Iterator[str]:
    """Run a server; yields its address."""
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def store_proxy(endpoint: str, *, translate_google: bool = False) -> Iterator[StoreProxy]:
    """Run a proxy before a store."""
    proxy = StoreProxy(endpoint, translate_google=translate_google)
    with serving(proxy):
        yield proxy
