"""Generations in an object store: parts are kept as long as the manifest of a kept generation names them."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from concord_testing import fakes, runs, stores
from concord_testing.command_line import concord as command

import concord
from concord.pipeline.errors import PlanError
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.verify import verify
from concord.pipeline.storage.output_paths import output_path

pytestmark = pytest.mark.slow(reason="several runs a test, in an object store")


class Store:
    """A folder of texts and the URL of its annotation."""

    def __init__(self, archive: Path, url: str) -> None:
        self.archive = archive
        self.url = url
        archive.mkdir()
        for name in ("a", "b", "c"):
            self.write(name, f"Anna saw {name}.")

    def write(self, name: str, text: str) -> None:
        (self.archive / f"{name}.txt").write_text(text)

    def run(self, *, grace: float = 3600, **arguments: Any) -> None:
        place = {"path": self.url, "grace_seconds": grace}
        runs.run_job(runs.job(self.archive, "", output=place, planning={"shard_bytes": 10}), **arguments)

    def names(self, prefix: str) -> set[str]:
        return {name for name in stores.contents(self.url) if name.startswith(prefix)}

    def ids(self, **chosen: Any) -> list[str]:
        ids: list[str] = concord.open(self.url, **chosen).to_arrow("documents")["doc_id"].to_pylist()
        return sorted(ids)


@pytest.fixture
def store(s3_url: str, tmp_path: Path) -> Store:
    """Annotate three texts into a bucket, and three after a change."""
    store = Store(tmp_path / "in", f"{s3_url}/out")
    store.run()
    return store


def test_parts_of_an_open_generation_stay_for_their_grace(store: Store) -> None:
    collection = concord.open(store.url)
    generation = OutputFolder(output_path(store.url)).find()
    store.write("a", "Dora slept.")
    store.run()
    assert generation.manifest().plan == generation.plan().digest
    assert sorted(collection.to_arrow("entities")["text"].to_pylist()) == ["Anna", "Anna", "Anna"]
    assert sorted(concord.open(store.url).to_arrow("entities")["text"].to_pylist()) == ["Anna", "Anna", "Dora"]
    assert len(store.names("tokens/")) == 4
    assert verify(output_path(store.url)) == []
    store.write("b", "Eva slept.")
    store.run(grace=0)
    assert len(store.names("tokens/")) == 3
    assert store.names("generations/") == {f"generations/000002/{name}.json" for name in ("manifest", "plan")}
    assert verify(output_path(store.url)) == []


def test_generations_are_listed_named_and_removed(store: Store) -> None:
    assert command("history", store.url, "--tag", "paper-2026").exit_code == 0
    store.write("d", "Dora slept.")
    store.run()
    found = json.loads(command("history", store.url, "--json").stdout)["generations"]
    assert [(one["generation"], one["documents"], one["current"], one["versions"]) for one in found] == [
        (0, 3, False, ["paper-2026"]),
        (1, 4, True, []),
    ]
    store.write("e", "Eva slept.")
    store.run(grace=0)
    assert store.ids(version="paper-2026") == ["a.txt", "b.txt", "c.txt"]
    paths = command("files", store.url, "--table", "documents", "--generation", "0").stdout.split()
    assert {path.removeprefix(f"{store.url}/") for path in paths} < store.names("documents/")
    assert command("history", store.url, "--untag", "paper-2026").exit_code == 0
    assert "removed 1 generation (000000)" in command("history", store.url, "--prune").stdout
    with pytest.raises(PlanError, match="no generation 0; there are: 2"):
        concord.open(store.url, generation=0)
    assert verify(output_path(store.url)) == []


@pytest.mark.usefixtures("ended_leases")
@pytest.mark.parametrize("step", ["publish", "swap"])
def test_run_killed_while_it_is_published_is_finished_by_the_next(store: Store, step: str) -> None:
    store.write("d", "Dora slept.")
    killed = runs.in_child(store.run, crash_at=step)
    killed.join()
    assert killed.exitcode == -signal.SIGKILL
    store.run(build=fakes.build_no_worker)
    assert store.ids() == ["a.txt", "b.txt", "c.txt", "d.txt"]
    assert verify(output_path(store.url)) == []
