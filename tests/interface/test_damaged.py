"""Damaged collections opened from Python: each method names the damaged file, and no error of a library comes out."""

import shutil
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from operator import attrgetter, methodcaller
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from concord_testing import runs

import concord
from concord.models.errors import ConcordError
from concord.pipeline.errors import IntegrityError
from concord.pipeline.output.schema import SCHEMAS, TableName
from concord.runs import Run

pytestmark = pytest.mark.slow

Damage = Callable[[Path], object]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a small collection with a dead letter."""
    folder = tmp_path_factory.mktemp("damaged")
    runs.run_job(runs.job(runs.write_collection(folder / "in.jsonl", extra=("PARSERFAULT",)), folder / "out"))
    return folder / "out"


@pytest.fixture
def output(whole: Path, tmp_path: Path) -> Path:
    """Return a copy of the collection that may be damaged."""
    shutil.copytree(whole, tmp_path / "out", symlinks=True)
    return tmp_path / "out"


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4 : len(content) // 2] = bytes(len(content) // 2 - 4)
    path.write_bytes(content)


def replace_by_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def link_to_nothing(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


DAMAGES: dict[str, Damage] = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-5]),
    "emptied": lambda path: path.write_bytes(b""),
    "zeroed": zero,
    "half zeroed": flip,
    "text": lambda path: path.write_text("no such thing"),
    "list": lambda path: path.write_text("[1, null]"),
    "object": lambda path: path.write_text('{"shards": [{}]}'),
    "other table": lambda path: pq.write_table(pa.table({"x": [1]}), path),
    "removed": lambda path: path.unlink(),
    "folder": replace_by_a_folder,
    "link": link_to_nothing,
}
METHODS: dict[str, Callable[[Run], Any]] = {
    **{f"to_arrow {name}": methodcaller("to_arrow", name) for name in SCHEMAS},
    **{f"dataset {name}": attrgetter(name) for name in SCHEMAS},
    "to_pandas": lambda run: run.to_pandas("tokens"),
    "sql": lambda run: run.sql("SELECT count(*) FROM tokens JOIN entities USING (doc_id)").fetchall(),
    "document": lambda run: [run.document(f"d{number}") for number in (0, 5, 11)],
}


@pytest.mark.parametrize(("table", "damage"), [*product(SCHEMAS, ["truncated"]), *product(["tokens"], DAMAGES)])
def test_damaged_part_is_named_by_every_method_that_reads_it(output: Path, table: TableName, damage: str) -> None:
    part = max((output / table).iterdir()).resolve()
    run = concord.open(output)
    DAMAGES[damage](part)
    messages = []
    for method in METHODS.values():
        try:
            method(run)
        except IntegrityError as error:
            messages.append(str(error))
    assert len(messages) >= 2
    assert all(f"{part.name}: " in message and "concord verify" in message for message in messages), messages
    with pytest.raises(IntegrityError, match=rf"{part.name}: .* run the same annotate command again"):
        concord.open(output).to_arrow(table)


@pytest.mark.parametrize("damage", ["truncated", "emptied", "zeroed", "list", "object", "folder"])
@pytest.mark.parametrize("name", ["manifest.json", "plan.json"])
def test_damaged_manifest_or_plan_is_named(output: Path, name: str, damage: str) -> None:
    run = concord.open(output)
    DAMAGES[damage]((output / "current" / name).resolve())
    with pytest.raises(ConcordError, match=name):
        concord.open(output)
    assert run.to_arrow("documents").num_rows == 12


@pytest.mark.parametrize("folder", ["current", "generations", "_run", "generations/000000/tokens", "current/plan.json"])
def test_missing_folder_is_a_named_error_or_no_loss(output: Path, folder: str) -> None:
    place = (output / folder).resolve() if folder != "current" else output / folder
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink()
    with suppress(ConcordError):
        run = concord.open(output)
        for method in METHODS.values():
            with suppress(ConcordError):
                method(run)


def test_rows_that_another_document_has_lost_are_no_short_document(output: Path) -> None:
    part = max((output / "tokens").iterdir()).resolve()
    table = pq.read_table(part)
    pq.write_table(table.slice(1), part)
    run = concord.open(output)
    doc_id = table["doc_id"][0].as_py()
    with pytest.raises(IntegrityError, match=f"{part.name}: expected"):
        run.document(doc_id)
    with pytest.raises(KeyError, match="no document 'd99'"):
        run.document("d99")
