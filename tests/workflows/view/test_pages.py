"""``concord view``: what each page shows, who may see it, and that nothing else can be done."""

import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from pathlib import Path
from threading import Event

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from concord_testing import finished_runs, runs, viewing
from concord_testing.checkout import CHECKOUT
from concord_testing.viewing import read, words
from starlette.testclient import TestClient

from concord.models.errors import ConfigError
from concord.pipeline.documents import DeadLetter
from concord.pipeline.errors import PlanError
from concord.pipeline.output.collection import DocumentRow
from concord.pipeline.worker.source_texts import SourceTexts
from concord.workflows.cli.main import main
from concord.workflows.view.index import opened
from concord.workflows.view.index.opened import OpenedCollection
from concord.workflows.view.server import listen

pytestmark = pytest.mark.slow


def test_documents_are_listed_with_counts_and_facets(reader: TestClient) -> None:
    page = read(reader, "/")
    assert "3 documents" in words(page)
    assert "1 dead letter" in words(page)
    assert "20 words5 entities2 changed0.60" in words(page)
    assert "stage two labelled 1 word again" in words(read(reader, "/document?id=fair"))
    assert "2 documents of 3" in words(read(reader, "/?label=LOC"))
    assert "1 document of 3" in words(read(reader, "/?label=PER"))
    assert "0 documents" in words(read(reader, "/?label=PER&band=3"))
    assert "0 documents of 3" in words(read(reader, "/?generation=7"))
    assert "On yard" in words(read(reader, "/?q=YAR"))
    for path in (
        "/?q=yard&changed=1",
        "/?q=yard&band=1",
        "/?tagger=tagger-x&label=ORG",
        "/?generation=0&label=ORG",
        "/?source=/data/invented.jsonl",
    ):
        assert "On yard" in words(read(reader, path))
    for order in ("collection", "entities", "words", "changed", "least certain", "nonsense; drop table"):
        assert "3 documents" in words(read(reader, f"/?order={order}"))


def test_a_document_shows_its_text_entities_drafts_and_names_without_a_label(reader: TestClient) -> None:
    page = read(reader, "/document?id=yard")
    assert "1Baxter ORG was PER 0.60 closes the yard was LOC." in words(page)
    assert 'title="uncertainty 0.40"' in page
    assert "stage one said B-LOC, stage two no entity" in page
    assert "<svg" not in page
    assert 'class="m" data-item data-name="Goole"' in page
    assert "not labelled here; elsewhere in this document LOC (1)" in page
    page = read(reader, "/document?id=yard&name=Goole")
    assert "Goole 1 in this document." in words(page)
    assert "3 LOC 0.90 4 not labelled" in words(page)
    assert "chosen" in page
    page = read(reader, "/document?id=yard&tree=2")
    assert page.count("<svg") == 1
    assert "Dependency tree of sentence 3" in page


def test_a_collection_without_texts_and_trees_says_so_where_they_would_be(tmp_path: Path) -> None:
    output = finished_runs.write_run(tmp_path / "out", viewing.NEWS, left_out=["trees", "tags"])
    client = viewing.open_client(output, tmp_path / "cache")
    assert "No tree: this document was annotated without trees" in read(client, "/document?id=yard&tree=2")
    page = words(read(client, "/document?id=yard"))
    assert "No tree" not in page
    assert "shown without their raw text" in page
    assert "closes the yard" in page
    assert "yard" in read(client, "/search?q=runs&by=lemma")


def test_a_long_document_is_turned_page_by_page(reader: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opened, "PAGE_WORDS", 6)
    first = read(reader, "/document?id=yard")
    assert "page 1 of 3" in words(first)
    pages = [words(read(reader, f"/document?id=yard&page={page}")) for page in range(4)]
    assert "Nobody called Goole" in pages[2]
    assert "Nobody called Goole" in pages[3]
    assert 'id="s3"' in read(reader, "/document?id=yard&sentence=3")
    joined = " ".join(page[page.index("page ") : page.index("Legend")] for page in pages[:3])
    assert [joined.count(text) for text in ("closes the", "runs", "is in", "Nobody called")] == [1, 1, 1, 1]


def test_dead_letters_are_shown_in_their_place(reader: TestClient) -> None:
    for path in ("/dead-letters", "/dead-letters?error=invalid_json", "/document?id=cut"):
        assert "the line breaks off" in words(read(reader, path))


def test_names_show_labels_that_disagree(reader: TestClient) -> None:
    assert "3 names" in words(read(reader, "/names"))
    page = words(read(reader, "/names?disagree=1"))
    assert "2 names" in page
    assert "Baxter disagree ORG 2 entities1 document" in page
    assert "Alan Baxter disagree PER 2 entities1 document" in page
    assert "1 documents" not in page
    assert "3 LOC" not in words(read(reader, "/names?label=PER&order=name"))
    page = words(read(reader, "/name?name=Alan Baxter"))
    assert page.count("On yard") == 2
    assert "Other names written so Baxter 2" in page


@pytest.mark.parametrize(
    ("query", "matches"),
    [
        ("closes", 1),
        ('"CLOSES the"', 1),
        ("close*", 2),
        ("the closes", 2),
        ('"the closes"', 0),
        ('"people cam*"', 1),
        ("goole AND people", 2),
        ("goole people", 2),
        ("waits OR people", 2),
        ("goole NOT people", 3),
        ("goole AND NOT (people OR baxter)", 2),
        ("and", 0),
        ("closes&by=lemma", 1),
        ("goole", 4),
        ("goole.", 2),
        ("goole&id=fair", 2),
        ('"', 0),
        ("*", 0),
        ("a%22 OR b", 0),
        ("", 0),
    ],
)
def test_search_finds_words_and_phrases(reader: TestClient, query: str, matches: int) -> None:
    assert read(reader, f"/search?q={query}").count("<mark>") == matches


def test_what_is_not_there_is_not_found(reader: TestClient) -> None:
    assert "there is no document" in words(read(reader, "/document?id=nothing", status=404))
    assert "no entity is called" in words(read(reader, "/name?name=nothing", status=404))
    assert reader.get("/other").status_code == 404


@pytest.mark.parametrize(
    "path", ["/", "/document?id=yard&page=-1&tree=x", "/names?page=99999", "/search?q=Baxter&page=7", "/?path=x"]
)
def test_impossible_parameters_do_no_harm(reader: TestClient, path: str) -> None:
    read(reader, path)


def test_every_page_holds_all_that_it_shows(reader: TestClient) -> None:
    for path in ("/", "/document?id=yard", "/names", "/search?q=the", "/dead-letters"):
        answer = reader.get(path)
        assert not re.search(r"<(link|img|iframe|object|base)\b|src=|@import|url\(", answer.text)
        [nonce] = set(re.findall(r'nonce="([^"]+)"', answer.text))
        policy = answer.headers["content-security-policy"]
        assert f"default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'" in policy
        assert " style=" not in answer.text
    assert reader.get("/?save=1").headers["content-disposition"] == 'attachment; filename="documents.html"'


def test_only_who_knows_the_token_may_read(reader: TestClient) -> None:
    stranger = TestClient(reader.app, base_url="http://127.0.0.1:7391")
    assert stranger.get("/").status_code == 403
    for token in ("guess", "\u00e9"):
        assert stranger.get(f"/?token={token}").status_code == 403
    assert stranger.get("/", headers={"cookie": "concord_view_7391=guess"}).status_code == 403
    first = stranger.get(f"/document?id=yard&token={viewing.TOKEN}", follow_redirects=False)
    assert (first.status_code, first.headers["location"]) == (303, "/document?id=yard")
    assert "HttpOnly" in first.headers["set-cookie"]
    assert "SameSite=strict" in first.headers["set-cookie"]
    assert stranger.get("/").status_code == 200
    assert stranger.get(f"//evil.example?token={viewing.TOKEN}", follow_redirects=False).headers["location"] == "/"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:7391", "127.0.0.1", "127.0.0.1:7392", ""])
def test_another_host_name_is_refused(reader: TestClient, host: str) -> None:
    assert reader.get("/", headers={"host": host}).status_code == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed(reader: TestClient, method: str) -> None:
    assert reader.request(method, "/").status_code == 405


def test_markup_in_texts_ids_and_labels_is_only_text(tmp_path: Path) -> None:
    client = viewing.open_client(viewing.write_hostile(tmp_path / "out"), tmp_path / "cache")
    start = ("/", "/names", "/dead-letters", "/search?q=alone")
    paths = {unescape(link) for path in start for link in re.findall(r'href="(/[^"#]+)', read(client, path))}
    for path in {*start, *paths} - {"/report"}:
        if path.endswith("csv=1"):
            assert client.get(path).headers["content-disposition"].startswith("attachment")
            continue
        assert not re.search(r"<(img|marquee)\b", read(client, path)), path
    assert any("/document?id=" in path for path in paths)
    assert viewing.SCRIPT.replace("<", "&lt;").replace(">", "&gt;").replace("'", "&#39;") in read(client, "/names")


def test_a_slow_source_holds_up_no_other_page(output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = viewing.open_client(output, tmp_path / "cache")
    started, released = Event(), Event()
    find = SourceTexts.find

    def find_slowly(texts: SourceTexts, row: DocumentRow) -> str | DeadLetter:
        started.set()
        assert released.wait(60)
        return find(texts, row)

    monkeypatch.setattr(SourceTexts, "find", find_slowly)
    with ThreadPoolExecutor() as threads:
        try:
            slow = threads.submit(client.get, "/document?id=yard")
            assert started.wait(60)
            assert threads.submit(client.get, "/").result(timeout=20).status_code == 200
        finally:
            released.set()
        assert "closes the yard" in words(slow.result(timeout=60).text)


def test_paragraphs_are_those_of_the_raw_text(tmp_path: Path) -> None:
    source = runs.write_collection(tmp_path / "in.jsonl", documents=0, extra=("Anna ran.\n\n  Bob <b>sat</b>.",))
    runs.run_job(runs.job(source, tmp_path / "out"))
    page = read(viewing.open_client(tmp_path / "out", tmp_path / "cache"), "/document?id=d0")
    assert page.count('class="par"') == 2
    assert "&lt;b&gt;" in page


def test_a_run_in_progress_is_shown_as_far_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = finished_runs.write_run(tmp_path / "out", viewing.NEWS, documents_per_shard=1)
    # What a killed run leaves: parts and commit records, but no generation.
    (output / "_run" / "parts").mkdir(exist_ok=True)
    for table in ("documents", "sentences", "tokens", "entities", "errors"):
        target = output / "_run" / "parts" / table
        target.mkdir(exist_ok=True)
        for part in (output / table).glob("*.parquet"):
            part.rename(target / part.name)
    (output / "current").unlink()
    (output / "generations").rename(tmp_path / "generations")
    records = sorted((output / "_run" / "commits" / "0").iterdir())
    hidden = records[0].rename(tmp_path / "record")
    client = viewing.open_client(output, tmp_path / "cache")
    page = words(read(client, "/"))
    assert "The first run is not finished" in page
    assert "2 documents" in page
    hidden.rename(records[0])
    monkeypatch.setattr("concord.workflows.view.index.opened._LOOK_SECONDS", -1.0)
    for _ in range(200):
        if "3 documents" in words(read(client, "/")):
            break
    assert "On yard" in words(read(client, "/"))


def test_the_tables_are_only_read_and_the_index_is_private(output: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in output.rglob("*") if path.is_file()}
    client = viewing.open_client(output, tmp_path / "cache")
    for path in ("/", "/document?id=yard", "/search?q=Baxter"):
        read(client, path)
    assert {path: path.read_bytes() for path in output.rglob("*") if path.is_file()} == before
    [index] = (tmp_path / "cache").glob("*.sqlite")
    assert stat.S_IMODE(index.stat().st_mode) == 0o600


def test_the_source_of_an_entity_is_shown_where_the_table_has_one(tmp_path: Path) -> None:
    output = finished_runs.write_run(tmp_path / "out", viewing.NEWS, keep_text=True)
    for part in (output / "entities").glob("*.parquet"):
        table = pq.read_table(part)
        if "source" in table.column_names:
            table = table.drop_columns("source")
        pq.write_table(table.append_column("source", [["corrected"] * table.num_rows]), part)
    client = viewing.open_client(output, tmp_path / "cache")
    assert "corrected" in words(read(client, "/document?id=fair"))


def test_a_folder_that_is_removed_is_reported_on_the_pages(
    output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = viewing.open_client(output, tmp_path / "cache")
    output.rename(tmp_path / "elsewhere")
    monkeypatch.setattr("concord.workflows.view.index.opened._LOOK_SECONDS", -1.0)
    assert "no such folder" in words(read(client, "/"))
    read(client, "/document?id=yard", status=503)


def test_a_report_that_may_be_a_strangers_is_shown_in_a_sandbox(output: Path, tmp_path: Path) -> None:
    client, report = viewing.open_client(output, tmp_path / "cache"), output / "_run" / "report.html"
    report.write_text("<script>alert(1)</script>")
    answer = client.get("/report")
    assert answer.status_code == 200
    assert {"sandbox", "default-src 'none'"} <= set(answer.headers["content-security-policy"].split("; "))
    report.unlink()
    assert "wrote no report" in words(read(client, "/report", status=404))


def test_review_serves_the_queue(news: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("uvicorn.Server.run", lambda *_, **__: None)
    monkeypatch.setenv("CONCORD_CACHE", str(news.parent / "commands"))
    result = CliRunner().invoke(main, ["review", str(news), "--size", "2", "--as", "ada", "--no-browser", "--json"])
    assert (result.exit_code, "/review?token=" in result.stdout) == (0, True), result.output


@pytest.mark.slow(reason="starts the command and what stands for a browser")
def test_the_command_opens_a_private_page_and_ends_with_ctrl_c(output: Path, tmp_path: Path) -> None:
    browser = tmp_path / "browser.py"
    browser.write_text(
        "import json, pathlib, sys, urllib.parse, urllib.request\n"
        "page = pathlib.Path(urllib.request.url2pathname(urllib.parse.urlsplit(sys.argv[1]).path))\n"
        f"made = pathlib.Path({str(tmp_path)!r}) / 'made'\n"
        "made.write_text(json.dumps([sys.argv[1:], page.read_text(), page.stat().st_mode & 0o777, str(page)]))\n"
        "made.rename(made.with_name('opened'))\n"
    )
    program = (
        "import sys; from concord.workflows.cli.main import main\ntry: main()\nfinally: print('torch' in sys.modules)"
    )
    variables = os.environ | {"CONCORD_CACHE": str(tmp_path / "cache"), "PYTHONPATH": str(CHECKOUT)}
    variables |= {"BROWSER": f"{sys.executable} {browser} %s"}
    command = [sys.executable, "-c", program, "view", str(output), "--json", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables)
    assert process.stderr is not None
    url = process.stderr.readline().split()[-1]
    with urllib.request.build_opener(urllib.request.HTTPCookieProcessor()).open(url) as answer:
        assert b"document" in answer.read()
    deadline = time.monotonic() + 120
    while not (tmp_path / "opened").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    arguments, text, mode, page = json.loads((tmp_path / "opened").read_text())
    # Every user of this machine sees the arguments of a browser.
    assert "token" not in " ".join(arguments)
    assert (url in text, mode) == (True, 0o600)
    process.send_signal(signal.SIGINT)
    answered, messages = process.communicate(timeout=120)
    printed, has_torch = answered.splitlines()
    assert json.loads(printed) == {"output": str(output), "url": url}
    # Most collections are read without asking the tagger, and torch takes seconds to import.
    assert (has_torch, process.returncode) == ("False", 0)
    assert "Traceback" not in messages
    assert not Path(page).exists()


def test_a_page_of_another_origin_that_knows_the_token_is_led_on_by_the_server(reader: TestClient) -> None:
    stranger = TestClient(reader.app, base_url="http://127.0.0.1:7391")
    first = stranger.get(f"/review?a=1&token={viewing.TOKEN}", headers={"Sec-Fetch-Site": "cross-site"})
    assert (first.status_code, first.headers["refresh"]) == (200, "0; url=/review?a=1")
    assert "SameSite=strict" in first.headers["set-cookie"]
    assert viewing.TOKEN not in first.text


def test_a_folder_without_a_run_and_a_port_in_use_are_errors(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="found no plan"):
        OpenedCollection(tmp_path, cache=tmp_path / "cache")
    with listen(0) as listener, pytest.raises(ConfigError, match="choose another --port or --host"):
        listen(listener.getsockname()[1])


@pytest.mark.parametrize("port", [None, 0])
@pytest.mark.parametrize("address", ["192.0.2.1", "999.0.0.1"])
def test_an_address_of_another_machine_is_refused(address: str, port: int | None) -> None:
    with pytest.raises(ConfigError, match=f"cannot listen on {address}:.*choose another --port or --host"):
        listen(port, address)
