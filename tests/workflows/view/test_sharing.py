"""``concord view`` behind a proxy with a path, and through a tunnel to another port: with the token, and read-only."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from concord_testing import finished_runs, viewing
from concord_testing.browsing import Visit, accessibility_faults
from playwright.sync_api import Browser, expect

from concord.models.errors import ConfigError
from concord.workflows.view.server import serve

TOKEN = f"?token={viewing.TOKEN}"


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


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """Write a small collection."""
    return finished_runs.write_run(tmp_path / "out", viewing.NEWS, keep_text=True, metas=viewing.METAS)


def upstream_port(url: str) -> int:
    """Return the port of an address."""
    return int(url.partition("://")[2].partition(":")[2].partition("/")[0])


@pytest.mark.slow
@pytest.mark.parametrize("removes", ["", "/news"])
@pytest.mark.parametrize("keeps_host", [True, False])
def test_people_read_and_correct_below_a_path_of_a_proxy(
    browser: Browser, output: Path, tmp_path: Path, removes: str, keeps_host: bool
) -> None:
    with proxy(removes=removes, keeps_host=keeps_host) as (port, target):
        names = [f"localhost:{port}"]
        with (
            viewing.served(output, tmp_path / "cache", who="ada", names=names, base="/news") as url,
            browser.new_context() as context,
        ):
            target.append(upstream_port(url))
            visit = Visit(context, f"http://localhost:{port}/news/{TOKEN}")
            page = visit.page
            assert page.url == f"http://localhost:{port}/news/"
            page.get_by_role("link", name="Names", exact=True).click()
            page.get_by_role("link", name="Goole").click()
            page.get_by_role("link", name="On yard").first.click()
            page.locator("a.e", has_text="Goole").first.click()
            page.locator("#correct").get_by_role("button", name="PER").click()
            expect(page.locator("#correct").get_by_role("button", name="Undo the last step")).to_be_visible()
            assert page.url.startswith(f"http://localhost:{port}/news/document?")
            page.get_by_role("searchbox", name="Search the texts").fill("goole")
            page.keyboard.press("Enter")
            expect(page.locator("mark")).to_have_count(4)
            assert accessibility_faults(page) == []
            assert "corrections" in {path.stem for path in output.iterdir()}
            assert visit.outside == []


@pytest.mark.slow
def test_a_tunnel_to_another_port_is_read_only_without_a_name(browser: Browser, output: Path, tmp_path: Path) -> None:
    with proxy() as (port, target), viewing.served(output, tmp_path / "cache", names=[f"localhost:{port}"]) as url:
        target.append(upstream_port(url))
        with browser.new_context() as context:
            page = Visit(context, f"http://localhost:{port}/{TOKEN}").page
            page.get_by_role("link", name="On yard").click()
            expect(page.locator("form[method=post]")).to_have_count(0)
        with browser.new_context() as context:
            answer = context.new_page().goto(f"http://localhost:{port}/")
            assert answer is not None
            assert answer.status == 403


@pytest.mark.parametrize(
    ("host", "status"),
    [("tools.example.org", 200), ("127.0.0.1:7391", 200), ("evil.example", 403), ("tools.example.org:81", 403)],
)
def test_only_the_names_that_were_given_are_answered(output: Path, tmp_path: Path, host: str, status: int) -> None:
    client = viewing.open_client(output, tmp_path / "cache", names=["tools.example.org"])
    assert client.get("/", headers={"host": host, "cookie": f"concord_view_7391={viewing.TOKEN}"}).status_code == status


@pytest.mark.parametrize("path", ["/", "/document?id=yard", "/names", "/sql", "/search?q=goole", "/nothing"])
def test_every_link_of_a_page_is_below_the_base_path(output: Path, tmp_path: Path, path: str) -> None:
    client = viewing.open_client(output, tmp_path / "cache", who="ada", base="/news")
    text = client.get(f"/news{path}").text
    assert all(link.startswith("/news/") for link in viewing.links(text))


def test_a_value_that_looks_like_an_address_stays_as_it_is(output: Path, tmp_path: Path) -> None:
    client = viewing.open_client(output, tmp_path / "cache", base="/news")
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
def test_names_and_paths_that_cannot_be_ones_are_refused(output: Path, host: list[str], base_path: str) -> None:
    with pytest.raises(ConfigError, match="--base-path"):
        serve(output, port=0, browser=False, host=host, base_path=base_path)
