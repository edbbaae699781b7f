"""What a Ray started on this machine leaves behind is ended, and nothing else; the mode of authentication."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from concord_testing import runs
from concord_testing.processes import command_of, descendants

from concord.pipeline.executors.ray_setup import leftovers_ended, resolve_auth_mode

pytestmark = pytest.mark.slow

CHILD = "import subprocess, sys, time; subprocess.Popen(['sleep', '300']); print('up', flush=True); time.sleep(300)"


def wait_until(happens: Callable[[], object], *, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def start_family() -> list[int]:
    """Start a process that has a child, and return the ids of both."""
    process = subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return [process.pid, *descendants(process.pid)]


def runs_still(pid: int) -> bool:
    return bool(command_of(pid))


def test_processes_that_were_started_within_and_their_children_are_ended(tmp_path: Path) -> None:
    folder = tmp_path / "ray"
    folder.mkdir()
    stranger = start_family()
    with leftovers_ended(str(folder)):
        mine = start_family()
    try:
        assert len(mine) == len(stranger) == 2
        assert not any(map(runs_still, mine))
        assert all(map(runs_still, stranger))
        assert not folder.exists()
    finally:
        for pid in stranger:
            os.kill(pid, signal.SIGKILL)


def test_they_are_ended_when_the_driver_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "ray"
    folder.mkdir()

    def drive() -> None:
        with leftovers_ended(str(folder)):
            family = start_family()
            (tmp_path / "family").write_text(" ".join(map(str, family)))
            os.kill(os.getpid(), signal.SIGKILL)

    process = runs.in_child(drive)
    process.join()
    mine = list(map(int, (tmp_path / "family").read_text().split()))
    assert len(mine) == 2
    wait_until(lambda: not any(map(runs_still, mine)) and not folder.exists(), seconds=30)


@pytest.mark.parametrize(
    ("address", "token", "mode"),
    [(None, False, "disabled"), (None, True, "disabled"), ("h:1", False, "disabled"), ("h:1", True, "token")],
)
def test_authentication_mode_depends_on_address_and_token(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, address: str | None, token: bool, mode: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    # Restored afterwards, also where it was unset.
    monkeypatch.setenv("RAY_AUTH_MODE", "")
    monkeypatch.delenv("RAY_AUTH_MODE")
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    if token:
        (tmp_path / ".ray").mkdir()
        (tmp_path / ".ray" / "auth_token").write_text("x")
    resolve_auth_mode(address)
    assert os.environ["RAY_AUTH_MODE"] == mode
