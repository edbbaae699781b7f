"""``concord view`` behind a proxy with a path, and through a tunnel to another port: with the token, and read-only."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, Request, build_opener

import pytest
from concord_testing import viewing

from concord.models.errors import ConfigError
from concord.workflows.view.server import serve

pytestmark = pytest.mark.slow

TOKEN = f"?token={viewing.TOKEN}"
FIELDS = ("key", "generation", "seen", "back", "id")
CHANGE = {"start": 0, "end": 6, "label": "PER"}


@contextmanager
def proxy(*, removes: str = "", keeps_host: bool = True) -> Iterator[tuple[int, list[int]]]:
    """Forward requests to the last port of the list that is yielded, beside the port of the proxy itself."""
    target: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name: value for name, value in self.headers.items() if keeps_host or name.lower() != "host"}
            upstream = HTTPConnection("127.0.0.1", target[-1])
            upstream.request(self.command, self.path.removeprefix(removes), body or None, headers)
            answer = upstream.getresponse()
            content = answer.read()
            self.send_response_only(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in {"transfer-encoding", "content-length", "connection"}:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = forward

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1], target
        server.shutdown()


def upstream_port(url: str) -> int:
    """Return the port of an address."""
    return int(url.partition("://")[2].partition(":")[2].partition("/")[0])


@pytest.mark.parametrize(("removes", "keeps_host"), [("", True), ("/news", False)])
def test_people_read_and_correct_below_a_path_of_a_proxy(
    output: Path, tmp_path: Path, removes: str, keeps_host: bool
) -> None:
    browser = build_opener(HTTPCookieProcessor())
    with proxy(removes=removes, keeps_host=keeps_host) as (port, target):
        base, names = f"http://localhost:{port}", [f"localhost:{port}"]
        with viewing.served(output, tmp_path / "cache", who="ada", names=names, base="/news") as url:
            target.append(upstream_port(url))
            with browser.open(f"{base}/news/{TOKEN}") as answer:
                assert answer.url == f"{base}/news/"
                [address] = re.findall(r'data-item href="(/news/document\?id=yard[^"#]*)', answer.read().decode())
            page = browser.open(base + unescape(address)).read().decode()
            fields = {name: re.findall(f'name="{name}" value="([^"]*)"', page)[0] for name in FIELDS}
            data = urlencode({name: unescape(value) for name, value in fields.items()} | CHANGE).encode()
            with browser.open(Request(f"{base}/news/correct", data, headers={"Origin": base})) as answer:
                assert answer.url.startswith(f"{base}/news/document?")
                assert "PER, corrected by a person" in answer.read().decode()
            assert (output / "corrections.jsonl").exists()


def test_a_tunnel_to_another_port_is_read_only_without_a_name(output: Path, tmp_path: Path) -> None:
    with proxy() as (port, target), viewing.served(output, tmp_path / "cache", names=[f"localhost:{port}"]) as url:
        target.append(upstream_port(url))
        with build_opener(HTTPCookieProcessor()).open(
            f"http://localhost:{port}/document?id=yard&{TOKEN[1:]}"
        ) as answer:
            assert "method=post" not in answer.read().decode().replace('"', "")
        with pytest.raises(HTTPError, match="403"):
            build_opener().open(f"http://localhost:{port}/")


@pytest.mark.parametrize(
    ("host", "status"),
    [("tools.example.org", 200), ("127.0.0.1:7391", 200), ("evil.example", 403), ("tools.example.org:81", 403)],
)
def test_only_the_names_that_were_given_are_answered(news: Path, tmp_path: Path, host: str, status: int) -> None:
    client = viewing.open_client(news, tmp_path / "cache", names=["tools.example.org"])
    assert client.get("/", headers={"host": host, "cookie": f"concord_view_7391={viewing.TOKEN}"}).status_code == status


def test_every_link_of_a_page_is_below_the_base_path(news: Path, tmp_path: Path) -> None:
    client = viewing.open_client(news, tmp_path / "cache", who="ada", base="/news")
    for path in ("/", "/document?id=yard", "/names", "/sql", "/search?q=goole", "/nothing"):
        assert all(link.startswith("/news/") for link in viewing.links(client.get(f"/news{path}").text)), path
    # A value that looks like an address stays as it is.
    assert 'value="/yard"' in client.get("/news/?q=/yard").text
    assert 'value="href=&#34;/yard"' in client.get('/news/?q=href="/yard').text


@pytest.mark.parametrize(
    ("host", "base_path"),
    [
        (["http://example.org"], ""),
        (["1.2.3.4", "0.0.0.0"], ""),
        ([], "/a b"),
        ([], "/a//b"),
        ([], '/"><script>'),
        ([], "/review"),
    ],
)
def test_names_and_paths_that_cannot_be_ones_are_refused(news: Path, host: list[str], base_path: str) -> None:
    with pytest.raises(ConfigError, match="--base-path"):
        serve(news, port=0, browser=False, host=host, base_path=base_path)
