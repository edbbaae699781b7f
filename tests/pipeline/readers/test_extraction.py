"""The process that extracts: what ends, stalls or fills it costs the record alone; no answer depends on a process."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from concord_testing import runs
from concord_testing.broken_files import outcomes, read_all, samples
from concord_testing.checkout import CHECKOUT
from concord_testing.killing_readers import READERS
from concord_testing.processes import command_of

from concord.pipeline.config import ReaderConfig
from concord.pipeline.output.collection import DeadLetterFilter, open_collection, read_dead_letters
from concord.pipeline.readers import read_file
from concord.pipeline.readers.extraction import close_idle

pytestmark = pytest.mark.slow(reason="starts a process for each death, up to twice")

LIMITS = {"extraction_seconds": 0.5, "extraction_memory_bytes": 512 << 20}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    yield
    close_idle()


def read(path: Path, content: str, **settings: float) -> list[str]:
    """Return the texts of documents and the errors of dead letters, which name the file."""
    path.write_text(content)
    return outcomes(read_all(path, path.suffix[1:], ReaderConfig.from_mapping(LIMITS | settings), READERS))


def test_each_record_that_ends_its_process_costs_itself_alone(tmp_path: Path) -> None:
    deeds = ("say one", "abort", "say two", "loop", "allocate", "map", "say three", "exit", "say four")

    found = read(tmp_path / "a.deeds", "\n".join(deeds))

    assert found == [
        *("one", "extraction_died", "two", "took_too_long", "took_too_much_memory", "took_too_much_memory"),
        *("three", "extraction_died", "four"),
    ]


@pytest.mark.parametrize(
    ("deed", "error"), [("abort", "extraction_died"), ("sleep", "took_too_long"), ("map", "took_too_much_memory")]
)
def test_a_file_of_one_document_is_a_dead_letter(tmp_path: Path, deed: str, error: str) -> None:
    assert read(tmp_path / "a.deed", deed, extraction_seconds=0.1) == [error]
    assert read(tmp_path / "a.deed", "say fine") == ["fine"]


def test_what_a_process_did_before_does_not_decide(tmp_path: Path) -> None:
    texts = ["one", "two", "three"]
    assert read(tmp_path / "a.deeds", "\n".join(f"keep {text}" for text in texts), extraction_seconds=30) == texts


def test_a_long_text_crosses(tmp_path: Path) -> None:
    (text,) = read(tmp_path / "a.deeds", "long 20000000", extraction_seconds=30)
    assert len(text) == 20_000_000


READ_SAMPLES = """
import hashlib, sys
from pathlib import Path
from concord.pipeline.config import ReaderConfig
from concord.pipeline.readers.read_file import format_of, read_records
def deeper(levels):
    if levels:
        return deeper(levels - 1)
    digest = hashlib.sha256()
    for path in sorted(Path(sys.argv[1]).iterdir()):
        records = read_records(str(path), format=format_of(path.name), name=path.name, config=ReaderConfig())
        digest.update(repr([record for _, record in records]).encode())
    return digest.hexdigest()
print(deeper(int(sys.argv[2])))
"""


def test_answers_depend_neither_on_the_hash_seed_nor_on_the_stack(tmp_path: Path) -> None:
    for sample in samples().values():
        if sample.encoding == "utf-8":
            (tmp_path / sample.name).write_bytes(sample.content)
    deep = "<div>" * 495 + "<p>Ada.</p>" + "</div>" * 495
    (tmp_path / "deep.xml").write_text(f"<TEI><text><body>{deep}</body></text></TEI>")
    (tmp_path / "deep.html").write_text(deep)
    answers = set()
    for seed, levels in (("1", "0"), ("2", "0"), ("1", "300")):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(CHECKOUT)}
        command = [sys.executable, "-c", READ_SAMPLES, str(tmp_path), levels]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        answers.add(done.stdout)
    assert len(answers) == 1


STUCK = """
import sys
from concord.pipeline.config import ReaderConfig
from concord.pipeline.readers import read_file
from concord_testing.killing_readers import READERS
read_file.readers = lambda: READERS
list(read_file.read_records(sys.argv[1], format="deed", name="a", config=ReaderConfig()))
"""


def test_the_process_ends_with_the_one_that_asks_also_within_native_code(tmp_path: Path) -> None:
    file, pids = tmp_path / "a.deed", tmp_path / "pids"
    file.write_text(f"touch {pids}")
    paths = os.pathsep.join((str(CHECKOUT), str(CHECKOUT / "tests" / "support")))
    parent = subprocess.Popen([sys.executable, "-c", STUCK, str(file)], env={**os.environ, "PYTHONPATH": paths})
    while not (pids.exists() and pids.read_text().endswith("\n")):
        assert parent.poll() is None
        time.sleep(0.02)
    child = int(pids.read_text())
    assert b"extraction" in command_of(child)

    parent.send_signal(signal.SIGKILL)
    parent.wait()

    while command_of(child):
        time.sleep(0.02)


def test_a_folder_of_hostile_files_is_annotated_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "in"
    source.mkdir()
    for sample in samples().values():
        if sample.encoding == "utf-8" and sample.format not in ("csv", "tsv", "jsonl", "parquet", "arrow"):
            (source / sample.name).write_bytes(sample.content)
    for number, deed in enumerate(("abort", "loop", "map")):
        (source / f"{number}.deed").write_text(deed)
    (source / "b.deeds").write_text("say Anna went.\nabort\nsay Bob went.\n")
    available = {**read_file.readers(), **READERS}
    monkeypatch.setattr(read_file, "readers", lambda: available)
    settings = {
        "planning": {"shard_bytes": 100_000},
        "reader": {**LIMITS, "extraction_seconds": 3},
        "max_dead_letters": 1,
    }

    report, again = (runs.run_job(runs.job(source, tmp_path / name, **settings)) for name in ("one", "two"))

    bodies = [runs.committed_bytes(runs.folder_of(run)) for run in (report, again)]
    assert {name: body for name, body in bodies[0].items() if "manifest" not in name} == {
        name: body for name, body in bodies[1].items() if "manifest" not in name
    }
    collection = open_collection(runs.folder_of(report))
    errors = sorted(dead.error for dead in read_dead_letters(collection.folder, collection.manifest.shards))
    assert errors == ["extraction_died", "extraction_died", "took_too_long", "took_too_much_memory"]
    assert (report.dead_letters, report.lost_files) == (4, ())
    unchanged = runs.run_job(runs.job(source, tmp_path / "one", **settings))
    assert unchanged.changes.description == "no changes"
    (source / "0.deed").write_text("say Smith.")
    retry = DeadLetterFilter(errors=("extraction_died",))
    assert runs.run_job(runs.job(source, tmp_path / "one", **settings), retry=retry).dead_letters == 3
