"""A collection that somebody else has made: every command on it ends in a named error or does what it should.

Nothing outside the collection is written, linked, removed or fetched, and nothing waits for ever.
"""

import shutil
from pathlib import Path

import pytest
from concord_testing import hostile
from concord_testing.checkout import SOAK

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
    # The parser of the fakes is none that a retry could load.
    failed = {name: end for name, end in ends.items() if end}
    assert list(failed) == [f"errors retry {copy[0]}"]
    assert "parser: was 'fake_parser@" in failed[f"errors retry {copy[0]}"]


@pytest.mark.parametrize(("name", "kind"), hostile.ATTACKS if SOAK else hostile.CHOSEN)
def test_other_things_in_place_of_files_and_folders_lead_nowhere(
    copy: tuple[Path, Path], victim: Path, tmp_path: Path, name: str, kind: str
) -> None:
    hostile.replace(copy[0] / name, kind, victim)
    hostile.suffer(*copy, victim, tmp_path, only_writing=not SOAK)
