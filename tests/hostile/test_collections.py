"""A collection or a job that somebody else has written: a command on it ends in a named error or does what it should.

Nothing outside the collection is written, linked, removed or fetched, nothing waits for ever, and a job is read within
a bound.
"""

import shutil
from pathlib import Path

import pytest
from concord_testing import hostile
from concord_testing.checkout import SOAK
from concord_testing.command_line import concord as command

from concord.models.errors import ConfigError
from concord.pipeline.corpora.corpus_format import numbered_lines
from concord.pipeline.errors import InputError
from concord.workflows.job_files import parse_override, read_yaml

pytestmark = [pytest.mark.slow, pytest.mark.soak]


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Make a collection and its input once."""
    return hostile.make_collection(tmp_path_factory.mktemp("honest"))


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """Make a folder that nobody may touch."""
    return hostile.make_victim(tmp_path / "victim")


@pytest.fixture
def copy(honest: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path]:
    """Copy the collection, to be attacked, and return it with its input."""
    output = tmp_path / "out"
    shutil.copytree(honest[0], output, symlinks=True)
    return output, honest[1]


def test_honest_copy_is_served_by_every_command(copy: tuple[Path, Path], victim: Path, tmp_path: Path) -> None:
    ends = hostile.suffer(*copy, victim, tmp_path)
    assert not any(ends.values())


@pytest.mark.parametrize(("name", "kind"), hostile.ATTACKS if SOAK else hostile.CHOSEN)
def test_other_things_in_place_of_files_and_folders_lead_nowhere(
    copy: tuple[Path, Path], victim: Path, tmp_path: Path, name: str, kind: str
) -> None:
    hostile.replace(copy[0] / name, kind, victim)
    hostile.suffer(*copy, victim, tmp_path, only_writing=not SOAK)


def laughs(depth: int, *, form: str) -> str:
    """Return aliases of aliases: nine of the line before in each line."""
    lines = [form.format(0, "x") if "{1}" in form else ""]
    lines += [form.format(number, ", ".join([f"*a{number - 1}"] * 9)) for number in range(1, depth)]
    return "\n".join(lines)


# tests/workflows/test_jobs.py has those that end in a message of their own.
TEXTS = {
    "lists": laughs(20, form="a{0}: &a{0} [{1}]"),
    "mappings": "a0: &a0 {k: x}\n"
    + "\n".join(f"a{n}: &a{n} {{" + ", ".join(f"k{m}: *a{n - 1}" for m in range(9)) + "}" for n in range(1, 20)),
    "merges": "a0: &a0 {k: x}\n"
    + "\n".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 20)),
    "chain": "a0: &a0 [1]\n" + "\n".join(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 3000)),
    "itself_within": "input: &a {b: {c: [*a]}}",
    "deep_mappings": "input: " + "{a: " * 3_000,
    "nul": "input: a\0b",
    "two_documents": "input: a\n---\ninput: b",
    "wide": "input: [" + "1," * 50_000 + "]",
}


@pytest.mark.parametrize("name", TEXTS)
def test_jobs_without_end_or_sense_are_refused(tmp_path: Path, name: str) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(TEXTS[name], encoding="utf-8")
    with pytest.raises(ConfigError, match=r"job\.yaml: expected"):
        read_yaml(job)


def test_aliases_that_repeat_a_little_are_read(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("a: &a {b: [1, 2]}\nc: *a\nd: [*a, *a]")
    assert read_yaml(job) == {"a": {"b": [1, 2]}, "c": {"b": [1, 2]}, "d": [{"b": [1, 2]}, {"b": [1, 2]}]}


@pytest.mark.parametrize("kind", ["fifo", "link_to_device", "dangling_link", "loop", "folder", "sparse", "no_utf8"])
def test_jobs_that_are_no_files_are_named(tmp_path: Path, kind: str) -> None:
    hostile.replace(tmp_path / "job.yaml", kind, tmp_path)
    with pytest.raises(ConfigError, match=r"job\.yaml: expected a readable YAML file"):
        read_yaml(tmp_path / "job.yaml")


def test_commands_name_a_job_without_end(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(TEXTS["mappings"])
    for arguments in (("annotate", job), ("train", job), ("submit", job), ("annotate", job, "--dry-run")):
        result = command(*arguments)
        assert result.exit_code == 2, (arguments, result.output)
        assert "job.yaml: expected YAML" in result.output, arguments


@pytest.mark.parametrize("kind", ["fifo", "link_to_device", "folder", "loop", "dangling_link"])
def test_corpora_of_a_job_that_are_no_files_are_named(tmp_path: Path, kind: str) -> None:
    hostile.replace(tmp_path / "train.conllu", kind, tmp_path)
    with pytest.raises(InputError, match=r"train\.conllu: expected a readable corpus file"):
        list(numbered_lines(tmp_path / "train.conllu"))


def test_settings_of_the_command_line_are_bounded_too() -> None:
    with pytest.raises(ConfigError, match="expected a YAML value"):
        parse_override(f"input={'[' * 3_000}")
