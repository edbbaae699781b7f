"""What tests of every room share."""

import json
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from concord_testing import stores
from concord_testing.checkout import CHECKOUT, SOAK
from concord_testing.command_line import concord_json
from concord_testing.durations import DurationRecorder, order_by_duration
from concord_testing.made_once import made_once
from concord_testing.store_servers import azure_server, s3_server, store_proxy
from hypothesis import HealthCheck, settings

from concord.pipeline.parsing import stanza_parser
from concord.pipeline.parsing.stanza_pipeline import load_pipeline
from concord.pipeline.storage import locks

# Examples are judged by their outcome, not by the clock; those of a test may share a folder.
_UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
settings.register_profile("test", _UNTIMED, max_examples=25)
settings.register_profile("soak", _UNTIMED, max_examples=400)
settings.load_profile("soak" if SOAK else "test")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of make durations."""
    parser.addoption("--record-durations", action="store_true", help="write processor times to tests/durations.json")


def pytest_configure(config: pytest.Config) -> None:
    """Record durations where that is asked for, in the workers of xdist too."""
    if config.getoption("record_durations", default=False):
        config.pluginmanager.register(DurationRecorder())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let the workers of xdist begin with the files that take longest."""
    if hasattr(config, "workerinput"):
        order_by_duration(items)


@pytest.fixture(scope="session", autouse=True)
def loaded_pipelines() -> Iterator[None]:
    """Load each Stanza package once a process: a run with another parser makes tables and batches of its own of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stanza_parser, "load_pipeline", cache(load_pipeline))
        yield


@pytest.fixture(scope="session")
def annotated_news(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder ``out`` of the sample collection, annotated by the default tagger and parser.

    The answer of the command is beside it, in ``answer.json``.
    """

    def annotate(folder: Path) -> None:
        answer = concord_json("annotate", CHECKOUT / "examples" / "news" / "news.jsonl", "-o", folder / "out")
        (folder / "answer.json").write_text(json.dumps(answer))

    return made_once(tmp_path_factory, "news", annotate) / "out"


@pytest.fixture(scope="session")
def french_pipeline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a trained French spaCy pipeline; tests must not change it."""
    from concord_testing.spacy_pipelines import write_french  # imports spaCy, which few tests need

    return made_once(tmp_path_factory, "french", write_french)


@pytest.fixture(scope="session")
def s3_address() -> Iterator[str]:
    """Give the address of a server on loopback that speaks the protocol of S3, for all tests of the session."""
    with s3_server() as address:
        yield address


@pytest.fixture(scope="session")
def azure_address() -> Iterator[str]:
    """Give the address of a server on loopback that speaks the protocol of Azure, for all tests of the session."""
    with azure_server() as address:
        yield address


@pytest.fixture
def s3_url(s3_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Give the URL of an empty bucket, with credentials for it in the environment."""
    # Processes that are killed leave their staging folders behind.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return stores.new_bucket("s3", s3_address, monkeypatch)


@pytest.fixture
def ended_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the lock of a writer that was killed end at once in stores too."""
    monkeypatch.setattr(locks, "LEASE_SECONDS", -1.0)


@pytest.fixture(params=["s3", "gs", "az"])
def bucket(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[stores.DisturbedBucket]:
    """Give an empty bucket of each kind of store, behind a proxy that disturbs its requests."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    address = request.getfixturevalue("azure_address" if request.param == "az" else "s3_address")
    with store_proxy(address, translate_google=request.param == "gs") as proxy:
        yield stores.DisturbedBucket(stores.new_bucket(request.param, proxy.url, monkeypatch), proxy)
