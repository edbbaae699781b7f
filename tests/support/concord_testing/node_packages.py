"""Scripts of npm packages that tests use; the folder of a package here is ``tests/support/PACKAGE``."""

import shutil
from pathlib import Path

import pytest

_SUPPORT = Path(__file__).parents[1]


def find_script(package: str, path: str) -> Path:
    """Return a script of a package that ``make test`` installs; the test is skipped where it could not."""
    script = _SUPPORT / package / "node_modules" / package / path
    if shutil.which("node") is None or not script.exists():
        pytest.skip(
            f"{package} is not installed: install nodejs and npm, and run make test where npm's registry answers"
        )
    return script
