"""Wheel and source distribution: the one import name, and a command that works from any folder."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from concord_testing.checkout import CHECKOUT

pytestmark = pytest.mark.slow

ROOMS = ("concord", "models", "pipeline", "workflows")
FILES = ("pyproject.toml", "README.md", "LICENSE")


def build(kind: str, source: Path, target: Path) -> Path:
    """Build a wheel or an sdist with the backend that is installed, and return the file."""
    target.mkdir(exist_ok=True)
    code = f"from setuptools import build_meta; build_meta.build_{kind}({str(target)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=source, check=True, capture_output=True)
    [built] = target.iterdir()
    return built


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the checkout's package, with its links; building writes into it."""
    folder = tmp_path_factory.mktemp("checkout")
    for room in ROOMS:
        shutil.copytree(CHECKOUT / room, folder / room, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copyfile(CHECKOUT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def wheel(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a wheel of the checkout."""
    return build("wheel", sources, tmp_path_factory.mktemp("dist") / "wheel")


def members(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def test_a_wheel_holds_one_package_with_all_its_files(wheel: Path) -> None:
    assert wheel.name.startswith("concord_annotate-")
    code = {
        f"concord/{path.relative_to(CHECKOUT).as_posix()}"
        for room in ROOMS[1:]
        for path in (CHECKOUT / room).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    own = {f"concord/{path.name}" for path in (CHECKOUT / "concord").iterdir() if path.is_file()}
    assert members(wheel) == code | own


def test_a_source_distribution_holds_the_same_package(
    sources: Path, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("sdist")
    archive = build("sdist", sources, folder / "built")
    with tarfile.open(archive) as packed:
        packed.extractall(folder / "unpacked", filter="data")
    [unpacked] = (folder / "unpacked").iterdir()
    assert {path.name for path in unpacked.iterdir() if path.is_dir()} == {"concord", "concord_annotate.egg-info"}
    assert members(build("wheel", unpacked, folder / "wheel")) == members(wheel)


def test_an_installed_command_annotates_from_any_folder(wheel: Path, tmp_path: Path) -> None:
    """The dependencies come from this environment; its editable install of the checkout is not visible."""
    venv.create(tmp_path / "venv", with_pip=False)
    library = tmp_path / "venv" / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(library)
    (library / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    work = tmp_path / "work"
    work.mkdir()
    for name in ("models", "pipeline", "workflows"):
        (work / f"{name}.py").write_text("raise ImportError('not the package')\n")
    (work / "text.txt").write_text("Ada met Charles in London.")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*arguments: str) -> str:
        python = tmp_path / "venv" / "bin" / "python"
        done = subprocess.run(
            [python, *arguments], cwd=work, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run("-c", "import concord; print(concord.__file__)").startswith(str(library))
    assert "1 read = 1 annotated" in run(
        "-m", "concord", "annotate", "text.txt", "-o", "out", "-m", "entities_en_small"
    )
    assert json.loads(run("-m", "concord", "verify", "out", "--json"))["findings"] == []
