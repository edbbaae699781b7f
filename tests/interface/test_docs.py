"""README, CONTRIBUTING and the pages behind them name files that exist, and figures that were measured."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from concord_testing.checkout import CHECKOUT

from concord.workflows.cli.main import main

PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "docs/README.md",
    "docs/benchmarks.md",
    "docs/results.md",
    "docs/annotating.md",
    "docs/labels.md",
    "docs/other-models.md",
    "docs/training.md",
)
PAGES_WITH_EXAMPLES = (*PAGES, "examples/README.md")
FOLDERS = ("concord", "conf", "docs", "examples", "models", "pipeline", "tests", "workflows")


def links(page: str) -> list[str]:
    """Return the targets of a page's links, from the root of the checkout; addresses of the web are left out."""
    text = (CHECKOUT / page).read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#\s]+)", text)
    return [str(Path(page).parent / target) for target in targets if "://" not in target]


def named_files(page: str) -> list[str]:
    """Return the files and folders of the checkout that a page names in backticks; patterns are left out."""
    text = (CHECKOUT / page).read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    quoted = re.findall(r"`([\w./-]+)`", text)
    return [name for name in quoted if "/" in name and Path(name).parts[0] in FOLDERS]


@pytest.mark.parametrize("page", PAGES_WITH_EXAMPLES)
def test_linked_files_exist(page: str) -> None:
    found = links(page)
    assert [target for target in found if not (CHECKOUT / target).exists()] == []
    assert found or page == "CONTRIBUTING.md"


@pytest.mark.parametrize("page", PAGES)
def test_named_files_exist(page: str) -> None:
    assert [name for name in named_files(page) if not (CHECKOUT / name).exists()] == []


def commands(page: str) -> list[list[str]]:
    """Return the words of each command of Concord in the blocks of a page, without the name of the program."""
    text = (CHECKOUT / page).read_text(encoding="utf-8").replace("\\\n", " ")
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    shown = "\n".join(block for language, block in blocks if language in ("", "console", "bash"))
    lines = re.findall(r"^(?:\$ )?concord (.*?) *(?:[|&].*)?$", shown, flags=re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]


@pytest.mark.parametrize(
    "page", [*(f"docs/{path.name}" for path in sorted((CHECKOUT / "docs").glob("*.md"))), "README.md"]
)
def test_commands_have_options_and_read_files_that_exist(page: str) -> None:
    for words in commands(page):
        command: click.Command = main
        arguments = iter(words)
        while isinstance(command, click.Group):
            command = command.commands[next(arguments)]
        options = {option for parameter in command.params for option in parameter.opts}
        for word in arguments:
            assert not word.startswith("-") or word == "-" or word in options, (words, word)
            if word.startswith(("examples/", "conf/")) and "=" not in word:
                assert list(CHECKOUT.glob(word)), (words, word)


def test_the_adapter_that_is_shown_is_the_one_that_runs() -> None:
    shown = (CHECKOUT / "docs/other-models.md").read_text(encoding="utf-8").split("```python\n")[1].split("```\n")[0]
    assert shown == (CHECKOUT / "models/adapters/spacy.py").read_text(encoding="utf-8")


def test_readme_needs_no_file_but_those_of_the_repository() -> None:
    own = ("out/", "runs/", "models:/", "examples/", "conf/")
    paths = [word for words in commands("README.md") for word in words if "/" in word and "=" not in word]
    assert [path for path in paths if not path.startswith(own)] == []


def test_each_way_through_the_code_names_at_most_ten_files() -> None:
    text = (CHECKOUT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    ways = [re.findall(r"^\| \d+ \| `([^`]+)`", way, flags=re.MULTILINE) for way in text.split("\n### ")[1:]]
    assert [len(way) for way in ways] == [10, 10, 9, 7]
    assert all((CHECKOUT / name).is_file() for way in ways for name in way)


def test_every_page_of_the_documentation_is_in_its_index() -> None:
    pages = {path.name for path in (CHECKOUT / "docs").iterdir() if path.suffix in (".md", ".ipynb")}
    assert pages - {"README.md"} <= {Path(target).name for target in links("docs/README.md")}


def test_every_result_of_a_benchmark_has_its_figures_and_its_script() -> None:
    results = CHECKOUT / "benchmarks" / "results"
    listed = {Path(target).name for target in links("docs/benchmarks.md") if "results/" in target}
    assert listed == {path.name for path in results.iterdir()}
    text = (CHECKOUT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    scripts = set(re.findall(r"bench_\w+\.py", text))
    assert sorted(name for name in scripts if not (results.parent / name).exists()) == []


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a checkout whose documentation may be changed."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    for path in CHECKOUT.iterdir():
        if path.name not in ("docs", "out"):
            (folder / path.name).symlink_to(path)
    shutil.copytree(CHECKOUT / "docs", folder / "docs")
    return folder


def build_site(checkout: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "properdocs", "build"]
    return subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_site_has_the_pages_the_docstrings_and_the_files_that_they_link_to(checkout: Path) -> None:
    result = build_site(checkout)
    assert result.returncode == 0, result.stderr
    site = checkout / "out" / "site"
    found = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    texts = {entry["location"]: entry["text"] for entry in found}
    assert {"glossary.html#nat", "quickstart.html", "repository/index.html"} <= texts.keys()
    assert "exactly once, and only what is new or changed" in texts["python.html#concord.annotate"]
    results = {path.name for path in (CHECKOUT / "benchmarks" / "results").glob("*.json")}
    assert results == {path.name for path in (site / "repository" / "benchmarks" / "results").glob("*.json")}
    assert "://" not in "".join(re.findall(r'(?:src|<link[^>]* href)="([^"]+)', (site / "index.html").read_text()))


@pytest.mark.slow
def test_a_dead_link_and_a_page_that_the_menu_lacks_fail_the_site(checkout: Path) -> None:
    (checkout / "docs" / "lost.md").write_text("[a](nowhere.md) [b](glossary.md#nothing) [c](../README.md#nowhere)")
    result = build_site(checkout)
    assert result.returncode != 0
    for told in ("'nowhere.md'", "'glossary.md#nothing'", "'repository/README.md#nowhere'", "  - lost.md"):
        assert told in result.stderr
