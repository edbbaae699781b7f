"""``concord view`` over twelve languages: search in each script, and the facet of languages."""

import re
import unicodedata
from pathlib import Path
from urllib.parse import quote

import pytest
from concord_testing import viewing
from concord_testing.languages import write_languages
from concord_testing.viewing import read, words
from starlette.testclient import TestClient

from concord.workflows.view.index.search_index import fold, fold_word


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run over the texts; tests must not modify it."""
    return write_languages(tmp_path_factory.mktemp("languages") / "out")


@pytest.fixture(scope="module")
def client(output: Path) -> TestClient:
    """Return a client of the collection."""
    return viewing.open_client(output, output.parent / "cache")


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("νικολαος", "Νικόλαος"),
        ("ΝΙΚΌΛΑΟΣ", "Νικόλαος"),
        ("σεισμοσ", "σεισμός"),
        ("ΦΑΡΩΝ", "Φάρων"),
        ("ПЕТРОВИЋ", "Петровић"),
        ("сремским", "Сремским"),
        ("cierna", "Čierna"),
        (unicodedata.normalize("NFD", "ČIERNA"), "Čierna"),
        ("nhk", "ＮＨＫ"),
        ("GIESSEN", "Gießen"),
        ("fundacao", "Fundação"),
        ("שלום", "שָׁלוֹם"),
        ("שָׁלוֹם", "שָׁלוֹם"),
        ("יוסף", "יוסף"),
        ("جدا", "جدًّا"),
        ("ونقلت", "ونُقلت"),
        ("الاسكندرية", "الإسكندرية"),
        ("σεισμ*", "σεισμός"),
        ("l'oncle", None),
    ],
)
def test_search_folds_case_and_accents_of_each_script(client: TestClient, query: str, shown: str | None) -> None:
    page = read(client, f"/search?q={quote(query)}")
    marks = [unicodedata.normalize("NFC", mark) for mark in re.findall("<mark>(.*?)</mark>", page)]
    assert set(marks) == ({unicodedata.normalize("NFC", shown)} if shown else set())


def test_what_is_found_is_shown_as_it_is_written(client: TestClient) -> None:
    page = read(client, f"/search?q={quote('cierna')}")
    assert set(re.findall("<mark>(.*?)</mark>", page)) == {"Čierna", unicodedata.normalize("NFD", "Čierna")}


@pytest.mark.parametrize("path", ["/names?q={}", "/?q={}"])
@pytest.mark.parametrize("query", ["ΦΑΡΟΣ ΑΝΑΨΕ", "ИЗЛОЖБА", "zvon SA vratil"])
def test_filters_fold_as_the_search_does(client: TestClient, path: str, query: str) -> None:
    if path.startswith("/names"):
        query = {"Φ": "φιλοι των", "И": "ДУНАВСКА", "z": "ZVONARSTVO"}[query[0]]
        assert words(read(client, path.format(quote(query)))).count("1 name") == 1
    else:
        assert words(read(client, path.format(quote(query)))).count("1 document of 12") == 1


def test_languages_are_a_facet(client: TestClient) -> None:
    page = words(read(client, "/"))
    for language in ("en", "pt", "sr", "da", "sk", "sv", "de", "fr", "el", "he", "ar"):
        assert f" {language} 1" in page
    assert "1 document of 12" in words(read(client, "/?meta.language=he"))


@pytest.mark.parametrize("word", ["हिन्दी", "हीनदा", "が", "か", "각", "ø", "đ", "ה", "´", "\u0301", "ﷺ", "١٢"])
def test_folding_takes_no_letters_away(word: str) -> None:
    assert fold(word) == unicodedata.normalize("NFC", unicodedata.normalize("NFKD", word).casefold()) or len(word) == 1
    assert len(fold_word(word).split()) == 1
