"""Wheel and source distribution: the one import name, and a command that works from any folder."""

import ast
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from itertools import chain
from pathlib import Path

import pytest
from concord_testing.checkout import CHECKOUT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytestmark = pytest.mark.slow

ROOMS = ("concord", "models", "pipeline", "workflows")
FILES = ("pyproject.toml", "README.md", "LICENSE")


def build(kind: str, source: Path, target: Path) -> Path:
    """Build a wheel or an sdist with the backend that is installed, and return the file."""
    target.mkdir(exist_ok=True)
    # Compressing the weights takes most of the time.
    chosen = {"--build-option": ["--compression=stored"]} if kind == "wheel" else {}
    code = f"from setuptools import build_meta; build_meta.build_{kind}({str(target)!r}, {chosen})"
    subprocess.run([sys.executable, "-c", code], cwd=source, check=True, capture_output=True)
    [built] = target.iterdir()
    return built


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the checkout's package, with its links; building writes into it."""
    folder = tmp_path_factory.mktemp("checkout")
    for room in ROOMS:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(CHECKOUT / room, folder / room, symlinks=True, ignore=ignored, copy_function=os.link)
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


@pytest.mark.slow(reason="builds a wheel with the weights of the taggers")
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


@pytest.mark.release
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


@pytest.mark.release
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


def test_every_import_of_the_package_is_brought_by_a_requirement() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = (texts for name, texts in project["optional-dependencies"].items() if name != "dev")
    requirements = [*project["dependencies"], *chain.from_iterable(extras)]
    brought = closure(text for text in requirements if not text.startswith(project["name"]))
    modules = packages_distributions()
    unnamed = {
        module
        for room in ROOMS
        for path in (CHECKOUT / room).glob("**/*.py")
        for module in imports(path)
        if brought.isdisjoint(map(canonicalize_name, modules.get(module, [])))
    }
    assert unnamed - {"compression"} == set()  # which Python has from 3.14 on


def closure(requirements: Iterable[str]) -> set[str]:
    """Return the names of distributions that are installed with some requirements."""
    brought: set[tuple[str, str]] = set()
    waiting = [(Requirement(text).name, extra) for text in requirements for extra in {"", *Requirement(text).extras}]
    while waiting:
        name, extra = waiting.pop()
        if (canonicalize_name(name), extra) in brought:
            continue
        brought.add((canonicalize_name(name), extra))
        try:
            needed = map(Requirement, requires(name) or [])
        except PackageNotFoundError:  # for other machines
            continue
        for requirement in needed:
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                waiting += [(requirement.name, wanted) for wanted in ("", *requirement.extras)]
    return {name for name, _ in brought}


def imports(path: Path) -> set[str]:
    """Return the first names of the modules of others that a file imports."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module is not None}
    return {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names) - {"concord"}
