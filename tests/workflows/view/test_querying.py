"""``concord view``: queries in SQL, and that they can do nothing but read the tables."""

import re
from html import unescape
from pathlib import Path
from urllib.parse import quote

import pytest
from concord_testing.viewing import read, words
from starlette.testclient import TestClient

from concord.pipeline.output.collection import open_collection
from concord.workflows.view.page import UnavailableError
from concord.workflows.view.pages.finding import run_query

pytestmark = pytest.mark.slow


def ask(reader: TestClient, query: str) -> str:
    """Return the visible text of the answer to a query."""
    return words(read(reader, f"/sql?q={quote(query)}"))


def test_a_query_is_answered_as_a_table_and_as_csv(reader: TestClient) -> None:
    query = "SELECT doc_id, count(*) AS entities FROM entities GROUP BY doc_id ORDER BY doc_id -- all of them"
    page = read(reader, f"/sql?q={quote(query)}")
    assert "2 rows, as CSV" in words(page)
    assert '<a data-item href="/document?id=fair">fair</a></td><td>2</td>' in page
    answer = reader.get(f"/sql?csv=1&q={quote(query)}")
    assert answer.content.decode("utf-8-sig") == "doc_id,entities\r\nfair,2\r\nyard,5\r\n"


def test_all_ten_examples_can_be_run(reader: TestClient) -> None:
    page = unescape(read(reader, "/sql"))
    links = re.findall(r'<li><a href="(/sql\?q=[^"]+)"', page)
    assert len(links) == 10
    for path in links:
        assert re.search(r"\d rows?, as CSV", words(read(reader, path))), path


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM read_text('{file}')",
        "SELECT * FROM '{file}'",
        "SELECT * FROM glob('{file}*')",
        "SELECT * FROM read_csv('{file}')",
        "SELECT * FROM parquet_metadata('{file}')",
        "SELECT * FROM sniff_csv('{file}')",
        "SELECT * FROM query('COPY entities TO ''{new}''')",
        "SELECT * FROM enable_logging('QueryLog', storage := 'file', storage_path := '{new}')",
        "SELECT * FROM enable_profiling(save_location := '{new}')",
        "SELECT * FROM read_csv('https://example.org/x.csv')",
        "SELECT getenv('HOME')",
        "COPY entities TO '{new}'",
        "EXPORT DATABASE '{new}'",
        "ATTACH '{new}'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "PRAGMA database_list",
        "CREATE TABLE x AS SELECT 1",
        "INSERT INTO entities SELECT * FROM entities",
        "EXPLAIN ANALYZE COPY entities TO '{new}'",
        "SELECT 1; COPY entities TO '{new}'",
        "SELECT 1; SELECT 2",
        "SELEKT 1",
    ],
)
def test_nothing_but_one_select_from_the_tables_is_possible(reader: TestClient, tmp_path: Path, query: str) -> None:
    (tmp_path / "file").write_text("secret words\n")
    page = ask(reader, query.format(file=tmp_path / "file", new=tmp_path / "new"))
    assert "as CSV" not in page
    assert "secret" not in page
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_no_folder_for_temporary_files_can_be_read(
    reader: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".tmp").mkdir()
    (tmp_path / ".tmp" / "file.csv").write_text("secret,words\n")
    page = ask(reader, "SELECT * FROM read_csv('.tmp/file.csv')")
    assert "as CSV" not in page
    assert "secret" not in page


def test_rows_and_cells_are_limited_on_the_page_but_not_as_csv(reader: TestClient) -> None:
    query = "SELECT range, repeat('x', 1000) AS long FROM range(2000)"
    page = read(reader, f"/sql?q={quote(query)}")
    assert "The first 500 rows; more are in the CSV" in words(page)
    assert "x" * 500 not in page
    assert len(reader.get(f"/sql?csv=1&q={quote(query)}").text.splitlines()) == 2001


def test_a_query_that_takes_too_long_is_stopped(news: Path) -> None:
    query = "SELECT count(*) FROM range(1000000000) a, range(1000000) b WHERE a.range * b.range % 7 = 3"
    with pytest.raises(UnavailableError, match="was stopped"):
        run_query(open_collection(news), query, limit=10, seconds=0.5)
    assert run_query(open_collection(news), "SELECT 1 AS one", limit=10, seconds=5).rows == [(1,)]
