"""The tour of docs/lifecycle.md: every command ends with the exit code and the output of the page."""

import socket
from pathlib import Path

import pytest
from concord_testing.checkout import CHECKOUT
from concord_testing.pages import run_steps, steps_of

PAGE = CHECKOUT / "docs" / "lifecycle.md"
PORT = "5601"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.mark.slow(reason="trains three taggers, annotates twice and starts a server")
def test_the_tour_matches_the_page(tmp_path: Path) -> None:
    steps = steps_of(PAGE.read_text(encoding="utf-8").replace(PORT, str(free_port())))
    assert len(steps) > 15
    run_steps(steps, tmp_path)
