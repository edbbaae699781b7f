"""Run ``concord`` in this process."""

import json
from typing import Any

from click.testing import CliRunner, Result

from concord.workflows.cli.main import main


def concord(*arguments: object) -> Result:
    """Run a command and return its result."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def concord_json(*arguments: object, exit_code: int = 0) -> dict[str, Any]:
    """Run a command with ``--json``, check its exit code and return its answer."""
    result = concord(*arguments, "--json")
    assert result.exit_code == exit_code, result.output
    values: dict[str, Any] = json.loads(result.stdout)
    return values
