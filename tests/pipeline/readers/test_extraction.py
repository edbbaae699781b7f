"""The process that extracts: what ends, stalls or fills it costs the record alone; no answer depends on a process."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from concord_testing import runs
from concord_testing.broken_files import hostile_files, outcomes, read_all
from concord_testing.checkout import CHECKOUT
from concord_testing.killing_readers import READERS
from concord_testing.processes import command_of

from concord.pipeline.config import ReaderConfig
from concord.pipeline.output.collection import open_collection, read_dead_letters
from concord.pipeline.readers import read_file
from concord.pipeline.readers.extraction import EXTRACTION, Isolation
from concord.pipeline.readers.files import Decoded
from concord.pipeline.run_report import RunReport

pytestmark = pytest.mark.slow(reason="starts a process for each death, up to twice")

LIMITS = {"extraction_seconds": 0.5, "extraction_memory_bytes": 512 << 20}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    yield
    EXTRACTION.close()


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


def test_a_large_file_may_take_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def note(_kind: Isolation, extract: Callable[[], Decoded], *, config: ReaderConfig) -> Decoded:
        seconds.append(config.extraction_seconds)
        return extract()

    seconds = list[float]()
    monkeypatch.setattr(Isolation, "one", note)
    for megabytes in (0, 3):
        read(tmp_path / "a.deed", "say " + "x" * (megabytes * 1_000_000), extraction_seconds=2)
    assert seconds == [2, 5]


def test_what_a_process_did_before_does_not_decide(tmp_path: Path) -> None:
    texts = ["one", "two", "three"]
    assert read(tmp_path / "a.deeds", "\n".join(f"keep {text}" for text in texts), extraction_seconds=30) == texts
    # Nor does who kills it from outside.
    assert read(tmp_path / "a.deed", f"be_killed {tmp_path}/pid fine") == ["fine"]


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
    for name, content in hostile_files().items():
        if name not in ("abort.pdf", "endless.html.gz", "large.html"):
            (tmp_path / name).write_bytes(content)
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


def annotate(source: Path, output: Path, **changes: Any) -> RunReport:
    available = {**read_file.readers(), **READERS}
    with mock.patch.object(read_file, "readers", return_value=available):
        return runs.run_job(runs.job(source, output, max_dead_letters=1, **changes))


def test_a_run_that_is_killed_while_it_extracts_leaves_no_process_and_the_next_ends_with_its_bytes(
    tmp_path: Path,
) -> None:
    source, pid = tmp_path / "in", tmp_path / "pid"
    source.mkdir()
    (source / "a.txt").write_text("Anna went.")
    (source / "b.deed").write_text(f"pause {pid} Bob went.")
    killed = runs.in_child(partial(annotate, source, tmp_path / "killed"))
    while not (pid.exists() and pid.read_text().endswith("\n")):
        assert killed.is_alive()
        time.sleep(0.02)
    child = int(pid.read_text())
    assert b"extraction" in command_of(child)
    assert Path(f"/proc/{child}/oom_score_adj").read_text() == "1000\n", "the system ends it before the run"

    killed.kill()
    killed.join()

    # It is within native code.
    while command_of(child):
        time.sleep(0.02)
    found, whole = (
        runs.committed_bytes(runs.folder_of(annotate(source, tmp_path / name))) for name in ("killed", "whole")
    )
    assert found == whole
    assert any(name.startswith("documents/") for name in found)


def test_a_run_over_records_that_end_their_process_is_repeated_and_retried(tmp_path: Path) -> None:
    source, output = tmp_path / "in", tmp_path / "out"
    settings: dict[str, Any] = {"reader": {**LIMITS, "extraction_seconds": 3}}
    source.mkdir()
    for number, deed in enumerate(("abort", "loop", "map")):
        (source / f"{number}.deed").write_text(deed)
    (source / "b.deeds").write_text("say Anna went.\nabort\nsay Bob went.\n")

    report = annotate(source, output, **settings)

    collection = open_collection(runs.folder_of(report))
    errors = sorted(dead.error for dead in read_dead_letters(collection.folder, collection.manifest.shards))
    assert errors == ["extraction_died", "extraction_died", "took_too_long", "took_too_much_memory"]
    assert (report.dead_letters, report.lost_files) == (4, ())
    assert annotate(source, output, **settings).changes.description == "no changes"
    (source / "0.deed").write_text("say Smith.")
    report = annotate(source, output, planning={"retry": "read"}, **settings)
    assert (report.annotated, report.changes.retried, report.dead_letters) == (1, 4, 3)
