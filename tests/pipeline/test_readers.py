"""Readers of every kind beside a writer see exactly one generation at a time."""

from pathlib import Path

import pytest
from concord_testing import readers

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", [1, 2])
def test_readers_beside_a_writer_see_one_generation_at_a_time(tmp_path: Path, seed: int) -> None:
    found = readers.read_beside_a_writer(tmp_path, reads=200, documents=24, seed=seed)
    assert found["generations"] > 3
    for name, counts in found["readers"].items():
        assert counts["generations"] > 2, (name, counts)
        assert counts["wrong"] == 0, (name, counts)
        assert counts["failed"] == 0, (name, counts)
