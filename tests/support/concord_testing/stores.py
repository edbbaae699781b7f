"""Files behind URLs for tests: objects in a bucket, and a small web server."""

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from concord.pipeline.storage.object_stores import StorePath, connect
from concord.pipeline.storage.output_paths import OutputPath
from concord_testing.store_servers import AZURE_ACCOUNT, AZURE_KEY, StoreProxy, create_bucket, serving


def local(path: OutputPath) -> Path:
    """Return a path of an output that is a folder."""
    assert isinstance(path, Path)
    return path


class DisturbedBucket(NamedTuple):
    """An empty bucket's URL, and the proxy before its store."""

    url: str
    proxy: StoreProxy


def new_bucket(scheme: str, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Create a bucket of a server on loopback; returns its URL, with the credentials in the environment."""
    variables = {
        "s3": {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": "some-key",
            "AWS_SECRET_ACCESS_KEY": "some-secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        },
        "gs": {"GOOGLE_BASE_URL": endpoint, "GOOGLE_BEARER_TOKEN": "some-secret"},
        "az": {
            "AZURE_STORAGE_ENDPOINT": endpoint,
            "AZURE_STORAGE_ACCOUNT_NAME": AZURE_ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": AZURE_KEY,
        },
    }
    for name, value in variables[scheme].items():
        monkeypatch.setenv(name, value)
    name = f"bucket-{uuid.uuid4().hex}"
    create_bucket(endpoint, name)
    return f"{scheme}://{name}"


def put(url: str, content: bytes) -> None:
    """Write an object, replacing any existing one."""
    StorePath.parse(url).write(content)


def get(url: str) -> bytes:
    """Read an object."""
    return StorePath.parse(url).read_bytes()


def remove(url: str) -> None:
    """Remove an object."""
    StorePath.parse(url).unlink(missing_ok=True)


def put_folder(folder: Path, url: str) -> None:
    """Write every file below a folder to a bucket."""
    for path in folder.rglob("*"):
        if path.is_file():
            put(f"{url}/{path.relative_to(folder).as_posix()}", path.read_bytes())


def contents(url: str) -> dict[str, bytes]:
    """Return the content of every object below a URL, by relative path."""
    return {str(path).removeprefix(f"{url}/"): path.read_bytes() for path, _ in StorePath.parse(url).walk()}


def committed(url: str) -> dict[str, bytes]:
    """Return the committed files of an output, sorted, as runs.committed_bytes does for a folder."""
    found = contents(url)
    kept = {name for name in found if name.endswith(".parquet") or name.startswith("_run/commits/")}
    manifest = found[f"{found['current'].decode()}/manifest.json"]
    return {name: found[name] for name in sorted(kept)} | {"current/manifest.json": manifest}


def states(url: str) -> dict[str, object]:
    """Return etag and time of every object below a URL, by relative path."""
    root = StorePath.parse(url)
    listed = connect(root.scheme, root.bucket).list(root.key or None).collect()
    return {found["path"].removeprefix(f"{root.key}/"): (found["e_tag"], found["last_modified"]) for found in listed}


class WebServer(ThreadingHTTPServer):
    """Serves a few files from memory; ``statuses`` are those of paths that are not files."""

    def __init__(self, files: Mapping[str, bytes], *, ranges: bool, statuses: Mapping[str, int]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = dict(files)
        self.ranges = ranges
        self.statuses = statuses
        self.requested_ranges: list[str | None] = []


class _Handler(BaseHTTPRequestHandler):
    server: WebServer

    def do_HEAD(self) -> None:
        self._respond(with_body=False)

    def do_GET(self) -> None:
        self._respond(with_body=True)

    def _respond(self, *, with_body: bool) -> None:
        content = self.server.files.get(self.path)
        if content is None:
            self.send_error(self.server.statuses.get(self.path, 404))
            return
        wanted = self.headers.get("Range")
        if with_body:
            self.server.requested_ranges.append(wanted)
        status, body = 200, content
        if wanted and self.server.ranges:
            start, end = wanted.removeprefix("bytes=").split("-")
            status, body = 206, content[int(start) : int(end) + 1]
        self.send_response(status)
        self.send_header("ETag", f'"{md5(content).hexdigest()}"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def web_server(
    files: Mapping[str, bytes], *, ranges: bool = True, statuses: Mapping[str, int] | None = None
) -> Iterator[tuple[str, WebServer]]:
    """Serve files; yields the server's URL and the server."""
    server = WebServer(files, ranges=ranges, statuses=statuses or {})
    with serving(server) as address:
        yield address, server
