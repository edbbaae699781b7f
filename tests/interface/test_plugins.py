"""Taggers and readers of other packages, found by their entry points: the package in examples/plugin."""

import json
import os
import sys
import tomllib
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from concord_testing.checkout import CHECKOUT
from concord_testing.runs import in_child

import concord
from concord.pipeline.readers.read_file import readers
from concord.workflows.cli.main import main

PLUGIN = CHECKOUT / "examples" / "plugin"
ITEMS = (
    "<id>a</id><text>Ada met Charles in London.</text><page>1</page>",
    "<id>b</id><text>He left.</text><page>2</page>",
    "<id>b</id><text>twice</text><page>3</page>",
    "<id>c</id><text>with <b>bold</b> words</text>",
    "<id>d</id><text/><page>5</page>",
)
TEXTS = f"<items>{''.join(f'<item>{item}</item>' for item in ITEMS)}</items>"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that says that the example package is installed."""
    folder = tmp_path_factory.mktemp("installed")
    project: dict[str, Any] = tomllib.loads((PLUGIN / "pyproject.toml").read_text())["project"]
    about = folder / f"concord_example-{project['version']}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return folder


def run_work(work: Callable[[], object], *, folder: Path, paths: Iterable[Path]) -> int | None:
    """Run a function in a process that finds packages in more paths, and return its exit code."""

    def run() -> None:
        os.chdir(folder)
        sys.path += map(str, paths)
        readers.cache_clear()  # known from before that
        work()

    process = in_child(run, MLFLOW_TRACKING_URI=f"sqlite:///{folder / 'mlflow.db'}")
    process.join()
    return process.exitcode


@pytest.mark.slow(reason="trains a tagger of another package, and annotates with it")
def test_a_tagger_and_a_reader_of_another_package_work_together(
    installed: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "examples").symlink_to(CHECKOUT / "examples")
    (tmp_path / "texts.xml").write_text(TEXTS, encoding="utf-8")
    train = ["train", str(PLUGIN / "train.yaml"), "--output", "run", "--set", "fit.epochs=1", "--no-tracking"]
    annotate = ["annotate", "texts.xml", "--output", "out", "--model", "run/bundle", "--json"]
    settings = ["--set", "max_dead_letters=0.5", "--set", "planning.shard_bytes=10"]

    def work() -> None:
        with redirect_stdout(sys.stderr):
            main(train, standalone_mode=False)
        main([*annotate, *settings], standalone_mode=False)
        print(concord.open("out").document("a").text)

    assert run_work(work, folder=tmp_path, paths=[PLUGIN, installed]) == 0
    *lines, text = capfd.readouterr().out.splitlines()
    answer = json.loads("\n".join(lines))
    assert text == "Ada met Charles in London."
    assert (answer["read"], answer["annotated"], answer["dead_letters"]) == (5, 3, 2)
    assert answer["tagger"]["name"] == "bigru_softmax"
    run = concord.open(tmp_path / "out")
    documents = run.to_pandas("documents")[["doc_id", "meta"]].to_numpy().tolist()
    assert documents == [["a", '{"page":"1"}'], ["b", '{"page":"2"}'], ["d", '{"page":"5"}']]
    assert run.to_arrow("errors").select(["doc_id", "error", "position"]).to_pylist() == [
        {"doc_id": "b", "error": "duplicate_id", "position": 2},
        {"doc_id": None, "error": "nested_field", "position": 3},
    ]


@pytest.mark.parametrize(
    ("points", "command", "message"),
    [
        ("[concord.taggers]\nodd = json:JSONDecoder\n", ("train", "odd.yaml"), "to be a Tagger named 'odd'"),
        ("[concord.taggers]\nodd = no_such_module:Tagger\n", ("train", "odd.yaml"), "No module named 'no_such_module'"),
        ("[concord.readers]\nodd = no_such_module:Reader\n", ("annotate", "x.odd", "-o", "out"), "the format odd"),
    ],
)
@pytest.mark.slow
def test_a_broken_entry_point_is_named(
    points: str, command: tuple[str, ...], message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    about = tmp_path / "odd-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1\n")
    (about / "entry_points.txt").write_text(points)
    (tmp_path / "x.odd").write_text("")
    job = (PLUGIN / "train.yaml").read_text().replace("bigru_softmax", "odd")
    (tmp_path / "odd.yaml").write_text(job.replace("examples/", f"{CHECKOUT}/examples/"))

    assert run_work(lambda: main(command), folder=tmp_path, paths=[tmp_path]) == 2
    assert message in capfd.readouterr().err
