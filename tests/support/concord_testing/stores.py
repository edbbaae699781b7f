"""Files behind URLs for tests: objects in a bucket, and a small web server."""

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from concord.pipeline.storage import s3
from concord.pipeline.storage.output_paths import OutputPath


def local(path: OutputPath) -> Path:
    """Return a path of an output that is a folder."""
    assert isinstance(path, Path)
    return path


def split_url(url: str) -> dict[str, str]:
    """Return bucket and key of a URL as keyword arguments for boto3."""
    bucket, _, key = url.removeprefix("s3://").partition("/")
    return {"Bucket": bucket, "Key": key}


def put(url: str, content: bytes) -> None:
    """Write an object, replacing any existing one."""
    s3.client(os.getpid()).put_object(**split_url(url), Body=content)


def get(url: str) -> bytes:
    """Read an object."""
    content: bytes = s3.client(os.getpid()).get_object(**split_url(url))["Body"].read()
    return content


def remove(url: str) -> None:
    """Remove an object."""
    s3.client(os.getpid()).delete_object(**split_url(url))


def put_folder(folder: Path, url: str) -> None:
    """Write every file below a folder to a bucket."""
    for path in folder.rglob("*"):
        if path.is_file():
            put(f"{url}/{path.relative_to(folder).as_posix()}", path.read_bytes())


def contents(url: str) -> dict[str, bytes]:
    """Return the content of every object below a URL, by relative path."""
    place = split_url(url)
    found = s3.Bucket(place["Bucket"]).list(f"{place['Key']}/")
    bucket = f"s3://{place['Bucket']}"
    return {item.key.removeprefix(f"{place['Key']}/"): get(f"{bucket}/{item.key}") for item in found}


def states(url: str) -> dict[str, object]:
    """Return etag and time of every object below a URL, by relative path."""
    place = split_url(url)
    listed = s3.client(os.getpid()).list_objects_v2(Bucket=place["Bucket"], Prefix=f"{place['Key']}/")
    return {
        found["Key"].removeprefix(f"{place['Key']}/"): (found["ETag"], found["LastModified"])
        for found in listed["Contents"]
    }


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
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", server
    finally:
        server.shutdown()
        server.server_close()
