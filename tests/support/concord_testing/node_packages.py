"""Scripts of npm packages that tests use; the folder of a package here is ``tests/support/PACKAGE``."""

import shutil
from pathlib import Path

import pytest

_SUPPORT = Path(__file__).parents[1]


def find_script(package: str, path: str) -> Path:
    """Return a script of a package that ``make test`` installs; without npm the test is skipped."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip(f"this is tested with {package}: install nodejs and npm, and run make test")
    script = _SUPPORT / package / "node_modules" / package / path
    assert script.exists(), f"{package} is not installed: run make test once, or npm ci in tests/support/{package}"
    return script
