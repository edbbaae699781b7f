"""Readers of every kind beside a writer see exactly one generation at a time."""

from pathlib import Path

import pytest
from concord_testing import readers


@pytest.mark.slow(reason="six generations are written while two processes read")
def test_readers_beside_a_writer_see_one_generation_at_a_time(tmp_path: Path) -> None:
    found = readers.read_beside_a_writer(tmp_path, reads=100, documents=12, seed=1)
    assert found["generations"] > 3
    for name, counts in found["readers"].items():
        assert counts["generations"] > 2, (name, counts)
        assert counts["wrong"] == 0, (name, counts)
        assert counts["failed"] == 0, (name, counts)
