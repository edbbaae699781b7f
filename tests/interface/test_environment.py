"""Garbage collection during the heavy imports."""

import gc

import pytest

from concord._environment import collection_paused


@pytest.mark.parametrize("enabled", [True, False])
def test_collection_is_paused_and_then_as_before(enabled: bool) -> None:
    try:
        # spaCy leaves it off where a file that it reads is broken.
        (gc.enable if enabled else gc.disable)()
        with collection_paused():
            assert not gc.isenabled()
            loaded: list[object] = [[]]
        assert gc.isenabled() is enabled
        assert any(each is loaded for each in gc.get_objects(generation=2))
    finally:
        gc.enable()


def test_objects_that_the_process_has_frozen_stay_so() -> None:
    gc.freeze()
    try:
        with collection_paused():
            pass
        assert gc.get_freeze_count()
    finally:
        gc.unfreeze()
