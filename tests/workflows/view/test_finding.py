"""``concord view``: documents by their metadata, names by who they are, and words with the labels that they have."""

import csv
import io
from html import unescape
from pathlib import Path
from types import SimpleNamespace

import pytest
from concord_testing import finished_runs, viewing
from concord_testing.viewing import links, read, words
from starlette.testclient import TestClient

pytestmark = pytest.mark.slow

DOCUMENTS = {
    "strike": ("John|B-PER F.|I-PER Kennedy|I-PER met Congress|B-ORG ~.", "Kennedy|B-PER left Paris|B-LOC ~."),
    "vote": ("CONGRESS|B-ORG met in Paris|B-LOC ~, and Paris|B-LOC voted ~.",),
    "race": ("Paris|B-PER won in Goole|B-LOC ~.", f"Goole|B-LOC {'slowly ' * 30}extraordinarily slept ~."),
    "bare": ("Kennedy|B-LOC is an airport ~.",),
}
METAS = {
    "strike": {"date": "2031-01-07", "section": "politics", "pages": 12, "author": {"name": "D. Rao"}},
    "vote": {"date": "2031-03-09T10:00:00Z", "section": "politics", "pages": 9, "tags": ["law", "river"]},
    "race": {"date": "2032-03-30", "section": "sport", "pages": 100, "tags": ["river", "=1+1"], "live": True},
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    """Return a client of documents with metadata; tests must not change them."""
    folder = tmp_path_factory.mktemp("finding")
    output = finished_runs.write_run(folder / "out", DOCUMENTS, metas=METAS, keep_text=True, documents_per_shard=3)
    return viewing.open_client(output, folder / "cache")


def rows(client: TestClient, path: str) -> list[dict[str, str]]:
    """Return what a page sends as CSV."""
    answer = client.get(path)
    assert answer.headers["content-type"].startswith("text/csv")
    return list(csv.DictReader(io.StringIO(answer.content.decode("utf-8-sig"))))


@pytest.mark.parametrize(
    ("path", "documents"),
    [
        ("/?meta.section=politics", ["strike", "vote"]),
        ("/?meta.date=2031-01-07", ["strike"]),
        ("/?meta.date=2031", ["strike", "vote"]),
        ("/?meta.date=2032&meta.section=sport", ["race"]),
        ("/?meta.tags=river", ["vote", "race"]),
        ("/?meta.pages=9", ["vote"]),
        ("/?meta.author.name=D. Rao", ["strike"]),
        ("/?meta.live=true", ["race"]),
        ("/?q=rao", ["strike"]),
        ("/?meta.date=2032-03-30&label=PER", ["race"]),
        ("/?meta.nothing=x", ["strike", "vote", "race", "bare"]),
        ("/?order=meta.pages", ["vote", "strike", "race", "bare"]),
        ("/?order=meta.pages&reverse=1", ["race", "strike", "vote", "bare"]),
        ("/?order=meta.date&reverse=1", ["race", "vote", "strike", "bare"]),
        ("/search?q=paris&meta.section=politics", ["strike", "vote", "vote"]),
        ("/search?q=paris&meta.date=2031", ["strike", "vote", "vote"]),
        ("/search?q=paris&meta.date=2032&meta.section=sport", ["race"]),
        ("/search?q=paris&meta.author.name=D. Rao", ["strike"]),
        ("/search?q=paris&meta.section=politics&id=race", []),
        ("/search?q=paris&meta.section=politics&label=LOC&by=lemma", ["strike", "vote", "vote"]),
        ("/search?q=paris&meta.nothing=x", ["strike", "vote", "vote", "race"]),
    ],
)
def test_documents_and_searches_are_limited_by_metadata(client: TestClient, path: str, documents: list[str]) -> None:
    assert [row["doc_id"] for row in rows(client, f"{path}&csv=1")] == documents


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        (
            "/?meta.section=politics&label=LOC",
            ("2 documents of 4", "19 words, 7 entities, of which 3 match", "sport 1", "politics remove 2"),
        ),
        ("/search?q=goole&meta.section=sport", ("2 sentences with", "section sport remove 1")),
        ("/search?q=paris&meta.section=sport", ("section sport remove 1 politics 2",)),
        (
            "/search?q=goole&meta.section=politics&meta.date=2031-01-07",
            ("0 sentences with", "politics remove 0", "date remove 2031-01-07"),
        ),
    ],
)
def test_totals_and_other_facets_follow_the_filter(client: TestClient, path: str, shown: tuple[str, ...]) -> None:
    page = words(read(client, path))
    assert [text for text in shown if text not in page] == []


def test_dates_are_a_time_line_with_the_years_between(tmp_path: Path) -> None:
    metas = {f"d{year}": {"date": f"{year}-05-01"} for year in (1901, 1999, 2000)}
    output = finished_runs.write_run(tmp_path / "out", dict.fromkeys(metas, ("Some words ~.",)), metas=metas)
    client = viewing.open_client(output, tmp_path / "cache")
    page = read(client, "/")
    assert [f'aria-label="{year}: {count}"' in page for year, count in ((1901, 1), (1950, 0), (2000, 1))] == [True] * 3
    assert "/?meta.date=1950" in page
    page = read(client, "/?meta.date=1999")
    assert "1 document of 3" in words(page)
    assert 'aria-label="2000: 1"' in page


def test_a_filtered_document_leads_to_the_entity_that_matched(client: TestClient) -> None:
    assert "/document?id=strike&sentence=1#e3" in unescape(read(client, "/?label=LOC"))
    assert "/document?id=race&sentence=0#e0" in unescape(read(client, "/?label=PER"))
    assert 'id="e3"' in read(client, "/document?id=strike&sentence=1")


def test_a_document_shows_its_metadata_as_links(client: TestClient) -> None:
    page = read(client, "/document?id=strike")
    assert "author.name D. Rao date 2031-01-07 pages 12 section politics" in words(page)
    assert "/?meta.author.name=D.+Rao" in page
    assert "2 documents" in words(read(client, "/?meta.section=politics"))


@pytest.mark.parametrize("meta", ["[1]", '"a"', '{"n": 123456789012345678901234567890, "a": {"a": [[1], {"b": 2}]}}'])
def test_odd_metadata_does_no_harm(tmp_path: Path, meta: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finished_runs, "json", SimpleNamespace(dumps=lambda fields: meta))
    output = finished_runs.write_run(tmp_path / "out", {"d": ("Paris|B-LOC ~.",)}, keep_text=True)
    client = viewing.open_client(output, tmp_path / "cache")
    page = words(read(client, "/document?id=d"))
    assert ("a.a.b 2" in page) == meta.startswith("{")


def test_dates_and_numbers_are_listed_where_their_type_is_chosen(tmp_path: Path) -> None:
    documents = {"one": ("Paris|B-LOC had two|B-CARDINAL mayors in May|B-DATE ~.",)}
    output = finished_runs.write_run(tmp_path / "out", documents, keep_text=True)
    client = viewing.open_client(output, tmp_path / "cache")
    assert [row["name"] for row in rows(client, "/names?csv=1")] == ["Paris"]
    assert [row["name"] for row in rows(client, "/names?csv=1&label=DATE")] == ["May"]
    assert "Names Paris LOC 1" in words(read(client, "/document?id=one"))


def test_names_are_grouped_by_who_they_are(client: TestClient) -> None:
    listed = {row["name"]: row for row in rows(client, "/names?csv=1")}
    assert {name: (row["labels"], row["entities"], row["documents"]) for name, row in listed.items()} == {
        "John F. Kennedy": ("PER", "2", "1"),
        "Kennedy": ("LOC", "1", "1"),
        "CONGRESS": ("ORG", "2", "2"),
        "Paris": ("LOC PER", "4", "3"),
        "Goole": ("LOC", "2", "1"),
    }
    assert {row["name"] for row in rows(client, "/names?csv=1&disagree=1")} == {"John F. Kennedy", "Kennedy", "Paris"}
    assert {row["name"] for row in rows(client, "/names?csv=1&q=congress")} == {"CONGRESS"}
    assert {row["name"] for row in rows(client, "/names?csv=1&q=kenn")} == {"John F. Kennedy", "Kennedy"}


def test_a_name_shows_its_variants_times_and_neighbours(client: TestClient) -> None:
    page = words(read(client, "/name?name=john f kennedy"))
    assert "2 entities in 1 document: PER 2" in page
    assert "Written as John F. Kennedy 1 Kennedy 1" in page
    assert "Other names written so Kennedy 1" in page
    assert "In the same sentences CONGRESS 1 Paris 1" in page
    page = read(client, "/name?name=Paris")
    assert 'aria-label="2031: 2"' in page
    assert "No other name" in words(read(client, "/name?name=kennedy"))


def test_the_places_of_a_name_follow_type_and_date_and_are_sent_as_csv(client: TestClient) -> None:
    places = rows(client, "/name?csv=1&name=Paris")
    assert [(row["doc_id"], row["sentence"], row["label"]) for row in places] == [
        ("strike", "2", "LOC"),
        ("vote", "1", "LOC"),
        ("vote", "1", "LOC"),
        ("race", "1", "PER"),
    ]
    assert [row["left"] for row in places[1:3]] == ["CONGRESS met in ", "CONGRESS met in Paris, and "]
    query = "name=Paris&meta.date=2031-03-09T10:00:00Z&label=LOC"
    assert [row["doc_id"] for row in rows(client, f"/name?csv=1&{query}")] == ["vote"] * 2


def test_cells_that_a_spreadsheet_would_evaluate_are_only_text(client: TestClient) -> None:
    assert rows(client, "/?csv=1&order=meta.tags&meta.section=sport")[0]["tags"] == "'=1+1; river"


def test_search_shows_and_filters_by_labels(client: TestClient) -> None:
    assert [row["label"] for row in rows(client, "/search?csv=1&q=paris")] == ["LOC", "LOC", "LOC", "PER"]
    assert [row["doc_id"] for row in rows(client, "/search?csv=1&q=paris&label=PER")] == ["race"]
    assert [row["match"] for row in rows(client, '/search?csv=1&q="f. kennedy"&label=PER')] == ["F. Kennedy"]
    assert rows(client, "/search?csv=1&q=won&label=PER") == []
    assert [row["doc_id"] for row in rows(client, "/search?csv=1&q=goole OR paris&id=vote")] == ["vote"] * 2
    assert "1 place with" in words(read(client, "/search?q=paris&label=PER"))


def test_the_filter_of_a_search_stays_until_it_is_removed(client: TestClient) -> None:
    assert "politics" not in words(read(client, "/search?q=goole&meta.section=sport"))
    page = read(client, "/search?q=goole&meta.section=politics&meta.date=2031-01-07")
    assert '<input type="hidden" name="meta.section" value="politics">' in page
    assert {"/search?q=goole&meta.date=2031-01-07", "/search?q=goole"} <= {unescape(link) for link in links(page)}
    page = read(client, "/search?q=paris&meta.section=sport")
    assert "/search?q=paris&meta.section=politics" in unescape(page)


@pytest.mark.parametrize("facet", ["label=PER", "band=0", "changed=1", "generation=7", "source=x", "tagger=x"])
def test_a_choice_that_no_document_has_can_be_removed(client: TestClient, facet: str) -> None:
    page = read(client, f"/?meta.section=politics&q=nowhere&{facet}")
    assert "0 documents" in words(page)
    assert words(page).count(" remove 0") == 2


def test_the_value_that_is_chosen_is_listed_whatever_its_number_and_an_empty_one_is_none(tmp_path: Path) -> None:
    metas = {f"d{number}": {"desk": f"desk {number // 2}", "section": ""} for number in range(40)}
    output = finished_runs.write_run(
        tmp_path / "out", dict.fromkeys(metas, ("Some words ~.",)), metas=metas, documents_per_shard=40
    )
    page = read(viewing.open_client(output, tmp_path / "cache"), "/?meta.desk=desk 9")
    assert "desk desk 9 remove 2 desk 0 2" in words(page)
    assert '<h2 class="facet">section</h2>' not in page


def test_contexts_are_cut_between_words(client: TestClient) -> None:
    [_, line] = rows(client, "/search?csv=1&q=goole")
    assert line["right"].endswith("slowly\u2026")
    [line] = rows(client, "/search?csv=1&q=extraordinarily")
    assert line["left"].startswith("\u2026slowly ")


@pytest.mark.parametrize("query", ["paris AND", "NOT paris", "(paris", "paris OR OR goole"])
def test_a_search_that_cannot_be_read_says_so(client: TestClient, query: str) -> None:
    assert "is no search" in words(read(client, f"/search?q={query}"))
    assert "there is no document" in words(read(client, "/search?q=paris&id=nothing", status=404))
