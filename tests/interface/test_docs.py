"""README, CONTRIBUTING and the pages behind them name files that exist, and figures that were measured."""

import hashlib
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
    "examples/README.md",
)
RESULTS = CHECKOUT / "benchmarks" / "results"
FIGURE = re.compile(r"(?<![\w.,-])\d[\d,]*(?:\.\d+)?(?!\w)")
FIGURE_FREE = re.compile(r"`[^`]*`|\]\([^)]*\)")
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


@pytest.mark.parametrize("page", PAGES)
def test_linked_and_named_files_exist(page: str) -> None:
    found = links(page)
    assert [name for name in [*found, *named_files(page)] if not (CHECKOUT / name).exists()] == []
    assert found or page == "CONTRIBUTING.md"


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
        options = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
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
    assert [len(way) for way in ways] == [8, 10, 7, 7]
    assert all((CHECKOUT / name).is_file() for way in ways for name in way)


def test_every_page_of_the_documentation_is_in_its_index() -> None:
    pages = {path.name for path in (CHECKOUT / "docs").iterdir() if path.suffix in (".md", ".ipynb")}
    assert pages - {"README.md"} <= {Path(target).name for target in links("docs/README.md")}


def read_results(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    return found


def blocks(page: str) -> list[tuple[str, list[str]]]:
    """Return the paragraphs and table rows of a page that have figures, each with the results that it links to.

    The rows of a table without links are those of the paragraph before it.
    """
    found: list[tuple[str, list[str]]] = []
    before: list[str] = []
    for block in (CHECKOUT / page).read_text(encoding="utf-8").split("\n\n"):
        named = re.findall(r"results/(\w+\.json)", block)
        rows = block.splitlines() if block.startswith("|") else [block]
        found += [(row, re.findall(r"results/(\w+\.json)", row) or before) for row in rows]
        before = named or before
    return [(FIGURE_FREE.sub(" ", text), names) for text, names in found if FIGURE.search(FIGURE_FREE.sub(" ", text))]


def numbers(value: Any) -> Iterator[float]:
    """Yield the numbers of a JSON value, those in its strings and keys as well."""
    if isinstance(value, dict):
        yield from (number for item in value.items() for one in item for number in numbers(one))
    elif isinstance(value, list):
        yield float(len(value))
        yield from (number for one in value for number in numbers(one))
    elif isinstance(value, str):
        yield from (float(one) for one in re.findall(r"\d+(?:\.\d+)?", value.replace(",", "")))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)


@pytest.mark.parametrize(("text", "names"), blocks("docs/benchmarks.md"))
def test_each_figure_of_the_benchmarks_is_in_its_results(text: str, names: list[str]) -> None:
    measured = [number for name in names for number in numbers(read_results(name))]
    for figure in FIGURE.findall(text):
        digits = len(figure.partition(".")[2])
        figure_in_results = float(figure.replace(",", ""))
        # Shares are printed in percent, seconds in milliseconds as well.
        shown = {round(number * scale, digits) for number in measured for scale in (1, 100, 1000)}
        assert figure_in_results in shown, (figure, text)


def test_figures_are_those_of_the_weights_that_ship() -> None:
    for path in RESULTS.glob("*.json"):
        for model, digest in read_results(path.name).get("weights", {}).items():
            weights = CHECKOUT / "models" / "pretrained" / model / "weights.safetensors"
            assert hashlib.sha256(weights.read_bytes()).hexdigest() == digest, (path.name, model)


def test_each_result_of_a_benchmark_says_what_it_measured_and_is_on_a_page() -> None:
    pages = [CHECKOUT / "research" / "claims.md", *(CHECKOUT / "docs").glob("*.md")]
    pages += [*(CHECKOUT / "models").rglob("README.md"), CHECKOUT / "models" / "decoders" / "crf.py"]
    text = "".join(path.read_text(encoding="utf-8") for path in pages)
    assert [path.name for path in RESULTS.iterdir() if path.name not in text] == []
    assert [path.name for path in RESULTS.glob("*.json") if not read_results(path.name)["measured"]] == []


def test_the_page_of_benchmarks_is_short_enough_to_be_read() -> None:
    assert (CHECKOUT / "docs" / "benchmarks.md").stat().st_size <= 15_000
    assert len((CHECKOUT / "README.md").read_text(encoding="utf-8").splitlines()) <= 180


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


@pytest.mark.release
def test_the_site_has_the_pages_the_docstrings_and_the_files_that_they_link_to(checkout: Path) -> None:
    result = build_site(checkout)
    assert result.returncode == 0, result.stderr
    site = checkout / "out" / "site"
    found = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    texts = {entry["location"]: entry["text"] for entry in found}
    assert {"glossary.html#nat", "quickstart.html", "repository/index.html"} <= texts.keys()
    assert "exactly once, and only what is new or changed" in texts["python.html#concord.annotate"]
    cited = {Path(target).name for target in links("docs/benchmarks.md") if "results/" in target}
    assert cited <= {path.name for path in (site / "repository" / "benchmarks" / "results").glob("*.json")}
    assert "://" not in "".join(re.findall(r'(?:src|<link[^>]* href)="([^"]+)', (site / "index.html").read_text()))


@pytest.mark.release
def test_a_dead_link_and_a_page_that_the_menu_lacks_fail_the_site(checkout: Path) -> None:
    (checkout / "docs" / "lost.md").write_text("[a](nowhere.md) [b](glossary.md#nothing) [c](../README.md#nowhere)")
    result = build_site(checkout)
    assert result.returncode != 0
    for told in ("'nowhere.md'", "'glossary.md#nothing'", "'repository/README.md#nowhere'", "  - lost.md"):
        assert told in result.stderr
