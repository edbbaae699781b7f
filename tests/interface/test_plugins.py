"""Taggers and readers of other packages, found by their entry points: the package in examples/plugin."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from concord_testing.checkout import CHECKOUT
from concord_testing.runs import in_child

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
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment of a process that has the example package installed."""
    folder = tmp_path_factory.mktemp("installed")
    project: dict[str, Any] = tomllib.loads((PLUGIN / "pyproject.toml").read_text())["project"]
    about = folder / f"concord_example-{project['version']}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n")
    path = os.pathsep.join([str(CHECKOUT), str(PLUGIN), str(folder)])
    store = f"sqlite:///{folder / 'mlflow.db'}"
    return {**os.environ, "PYTHONPATH": path, "MLFLOW_TRACKING_URI": store}


def concord(*arguments: object, environment: dict[str, str], exit_code: int = 0) -> dict[str, Any]:
    command = [sys.executable, "-m", "concord", *map(str, arguments), "--json"]
    done = subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == exit_code, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.slow
def test_a_tagger_and_a_reader_of_another_package_work_together(environment: dict[str, str], tmp_path: Path) -> None:
    concord("train", PLUGIN / "train.yaml", "--output", tmp_path / "run", environment=environment)
    source = tmp_path / "texts.xml"
    source.write_text(TEXTS, encoding="utf-8")
    answer = concord(
        *("annotate", source, "--output", tmp_path / "out", "--model", tmp_path / "run" / "bundle"),
        *("--set", "max_dead_letters=0.5", "--set", "planning.shard_bytes=10"),
        environment=environment,
    )
    assert (answer["read"], answer["annotated"], answer["dead_letters"]) == (5, 3, 2)
    assert answer["tagger"]["name"] == "bigru_softmax"
    code = (
        f"import concord; run = concord.open({str(tmp_path / 'out')!r}); "
        "print(run.to_pandas('documents')[['doc_id', 'meta']].values.tolist()); "
        "print(run.to_arrow('errors').select(['doc_id', 'error', 'position']).to_pylist()); "
        "print(run.document('a').text)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        str([["a", '{"page":"1"}'], ["b", '{"page":"2"}'], ["d", '{"page":"5"}']]),
        str(
            [
                {"doc_id": "b", "error": "duplicate_id", "position": 2},
                {"doc_id": None, "error": "nested_field", "position": 3},
            ]
        ),
        "Ada met Charles in London.",
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

    def run() -> None:
        os.chdir(tmp_path)
        sys.path.append(str(tmp_path))
        main(command)

    process = in_child(run)
    process.join(120)
    assert process.exitcode == 2
    assert message in capfd.readouterr().err
