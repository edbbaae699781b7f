"""Files that cannot be read cost nothing but themselves, are one dead letter each, and end a run with 3."""

import gzip
import json
import os
import random
import shutil
import socket
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from concord_testing import runs
from concord_testing.broken_files import arrow_stream, parquet

import concord
from concord.models.errors import ConcordError
from concord.pipeline.errors import InputError
from concord.pipeline.planning.inputs import find_inputs
from concord.pipeline.run_report import RunReport

pytestmark = pytest.mark.slow


def lines(*ids: object) -> bytes:
    chance = random.Random(str(ids[:1]))
    texts = (f"Anna met Bob {chance.getrandbits(64):x} times." for _ in ids)
    records = ({"id": str(doc_id), "text": text} for doc_id, text in zip(ids, texts, strict=True))
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def many(name: str, count: int) -> bytes:
    return lines(*(f"{name}{number}" for number in range(count)))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with one good file of 40 records."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "good.jsonl").write_bytes(many("good", 40))
    return tmp_path / "in"


def run(source: Path, **settings: Any) -> RunReport:
    return runs.run_job(runs.job(source, source.parent / "out", planning={"shard_bytes": 10_000}, **settings))


def dead_letters(report: RunReport) -> dict[str, tuple[str, str]]:
    """Return error and message by the name of the file."""
    rows = concord.open(str(report.output)).to_arrow("errors").to_pylist()
    return {Path(row["source_uri"]).name: (row["error"], row["message"]) for row in rows}


def lost(report: RunReport) -> set[str]:
    return {Path(uri).name for uri in report.lost_files}


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    here = Path.cwd()
    with socket.socket(socket.AF_UNIX) as server:
        os.chdir(path.parent)
        server.bind(path.name)
        os.chdir(here)


ODD: dict[str, tuple[Callable[[Path], None], str]] = {
    "fifo": (make_fifo, "got a folder, pipe, socket or device"),
    "socket": (make_socket, "got a folder, pipe, socket or device"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "got a folder, pipe, socket or device"),
    "dangling": (lambda path: path.symlink_to("nowhere"), "No such file"),
    "loop": (lambda path: path.symlink_to(path.name), "symbolic links"),
    "through a file": (lambda path: path.symlink_to("good.jsonl/x"), "Not a directory"),
}


def test_odd_files_are_dead_letters_that_say_what_they_are(source: Path) -> None:
    expected = {}
    for kind, (make, reason) in ODD.items():
        for suffix in ("jsonl", "txt", "parquet", "csv.gz"):
            make(source / f"{kind}.{suffix}")
            expected[f"{kind}.{suffix}"] = reason

    report = run(source, max_dead_letters=1.0)

    assert (report.annotated, report.dead_letters, report.exit_code) == (40, len(expected), 3)
    found = dead_letters(report)
    assert found.keys() == lost(report) == expected.keys()
    for name, reason in expected.items():
        assert (found[name][0], reason in found[name][1]) == ("unreadable_file", True), name


@pytest.mark.parametrize("kind", ODD)
def test_odd_file_that_is_named_itself_ends_the_run(source: Path, kind: str) -> None:
    make, reason = ODD[kind]
    make(source / "odd.jsonl")

    with pytest.raises(InputError, match=reason):
        run(source / "odd.jsonl")


def test_link_without_a_suffix_that_leads_nowhere_may_have_been_a_folder(source: Path) -> None:
    (source / "2019").symlink_to("/nowhere/2019")
    (source / "notes.djvu").symlink_to("/nowhere/notes.djvu")

    report = run(source)

    assert "this folder cannot be listed" in dead_letters(report)["2019"][1]
    assert lost(report) == {"2019"}


def test_name_that_is_not_utf8_is_a_dead_letter(source: Path) -> None:
    (source / "caf\udce9.txt").write_text("text")
    (source / "\udcff").mkdir()
    (source / "\udcff" / "a.jsonl").write_bytes(lines("a"))

    report = run(source)

    assert (report.annotated, report.exit_code) == (40, 3)
    assert run(source, max_lost_files=1).exit_code == 3
    assert run(source, max_lost_files=2).exit_code == 0
    assert {name: message.rpartition(": ")[2] for name, (_, message) in dead_letters(report).items()} == {
        "caf\\xe9.txt": "expected a file name in UTF-8; rename the file",
        "a.jsonl": "expected a file name in UTF-8; rename the file",
    }


@contextmanager
def without_rights(*paths: Path) -> Iterator[None]:
    """Take the rights to paths away, also from root."""
    is_root = os.geteuid() == 0
    for path in paths:
        path.chmod(0)
    if is_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
        for path in paths:
            path.chmod(0o700)


def test_file_and_folder_without_rights_are_faulty(request: pytest.FixtureRequest) -> None:
    source = Path(tempfile.mkdtemp())
    request.addfinalizer(lambda: shutil.rmtree(source))
    source.chmod(0o755)
    (source / "good.jsonl").write_bytes(lines("good"))
    (source / "shut.jsonl").write_bytes(lines("shut"))
    (source / "folder").mkdir()
    (source / "folder" / "a.jsonl").write_bytes(lines("a"))

    with without_rights(source / "shut.jsonl", source / "folder"):
        files = find_inputs(str(source), output="/nowhere/out", format="auto").files

    assert [(file.name, (file.fault or "").partition(")")[0]) for file in files] == [
        ("folder", "this folder cannot be listed (Permission denied"),
        ("good.jsonl", ""),
        ("shut.jsonl", "cannot be read (Permission denied"),
    ]


def test_repaired_file_is_annotated_and_counts_no_longer(source: Path) -> None:
    (source / "b.jsonl").symlink_to(source.parent / "elsewhere.jsonl")
    first = run(source)
    again = run(source)
    assert (again.changes.new, again.done_before, again.exit_code) == (0, again.shards, 3)
    assert lost(again) == lost(first) == {"b.jsonl"}

    (source.parent / "elsewhere.jsonl").write_bytes(many("b", 5))
    repaired = run(source)

    assert (repaired.annotated, repaired.unchanged, repaired.dead_letters) == (5, 40, 0)
    assert (repaired.exit_code, lost(repaired)) == (0, set())


def test_lost_file_stays_lost_when_others_change(source: Path) -> None:
    (source / "b.jsonl.gz").write_bytes(b"no gzip file" * 100)
    before = lost(run(source))
    (source / "c.jsonl").write_bytes(many("c", 1000))

    report = run(source)

    assert report.changes.new == 1000
    assert lost(report) == before
    assert report.exit_code == 3


def test_retry_of_a_file_that_is_still_lost_is_an_attempt(source: Path) -> None:
    (source / "b.jsonl").symlink_to(source.parent / "elsewhere.jsonl")
    assert run(source).exit_code == 3

    report = runs.run_job(runs.job(source, source.parent / "out", planning={"shard_bytes": 10_000, "retry": "read"}))

    assert (report.changes.retried, lost(report), report.exit_code) == (1, {"b.jsonl"}, 3)
    assert concord.open(str(report.output)).to_arrow("errors")["attempts"].to_pylist() == [1]


TABLE = pa.table({"id": [f"t{number}" for number in range(5000)], "text": ["Anna met Bob."] * 5000})


def damaged(content: bytes, position: float) -> bytes:
    """Compress with gzip, and damage the beginning of a block."""
    cut, compressor = int(len(content) * position), zlib.compressobj(wbits=31)
    before = compressor.compress(content[:cut]) + compressor.flush(zlib.Z_FULL_FLUSH)
    return before + b"\xff" * 8 + compressor.compress(content[cut:]) + compressor.flush()


def cut_arrow(path: Path) -> None:
    content = arrow_stream(TABLE.slice(0, 200))
    path.write_bytes(content[: len(content) // 2])


def doubled_columns(path: Path) -> None:
    column = pa.array(["Ada met Karl."] * 3)
    pq.write_table(pa.Table.from_arrays([column, column], names=["text", "text"]), path)


CUT: dict[str, Callable[[Path], object]] = {
    "cut.parquet": lambda path: path.write_bytes(b"PAR1" + many("c", 500)),
    "cut.jsonl.gz": lambda path: path.write_bytes(gzip.compress(many("cut", 200))[:1500]),
    "damaged.jsonl.gz": lambda path: path.write_bytes(damaged(many("b", 2000), 0.5)),
    "none.jsonl.gz": lambda path: path.write_bytes(b"no gzip" + many("d", 250)),
    "more.jsonl.gz": lambda path: path.write_bytes(gzip.compress(many("c", 50)) + b"the end\n"),
    "gone.jsonl.gz": lambda path: path.symlink_to("nowhere"),
    "twice.csv": lambda path: path.write_text("text,text\n" + "r,Anna left.\n" * 700),
    "open.csv": lambda path: path.write_text('"id,text\n' + "r,Anna left.\n" * 700),
    "array.jsonl": lambda path: path.write_text(json.dumps([json.loads(line) for line in many("b", 700).splitlines()])),
    "cut.arrow": cut_arrow,
    "doubled.parquet": doubled_columns,
}


def test_each_file_that_is_not_read_to_its_end_is_one_dead_letter(source: Path) -> None:
    for name, write in CUT.items():
        write(source / name)

    report = run(source, max_dead_letters=1.0)

    assert (lost(report), report.dead_letters, report.exit_code) == (set(CUT), len(CUT), 3)
    assert dead_letters(report).keys() == CUT.keys()
    assert report.read == report.annotated + report.dead_letters
    assert report.annotated > 40 + 50  # those before a damage are read
    again = run(source, max_dead_letters=1.0)
    assert (lost(again), again.exit_code, again.changes.new) == (set(CUT), 3, 0)


def test_whole_files_are_not_lost(source: Path) -> None:
    (source / "b.txt").write_bytes(b"caf\xe9")
    (source / "c.jsonl").write_bytes(b"{broken\n" + lines("c"))
    (source / "d.parquet").write_bytes(parquet(TABLE.slice(0, 30)))

    report = run(source)

    assert (report.dead_letters, lost(report), report.exit_code) == (2, set(), 0)


def test_python_names_the_lost_file(source: Path) -> None:
    (source / "b.jsonl").symlink_to("nowhere")

    with pytest.raises(ConcordError, match=r"1 file lost, as a whole or from some place on: .*b\.jsonl"):
        concord.annotate(source, source.parent / "out", model="entities_en_small", limit=41)
