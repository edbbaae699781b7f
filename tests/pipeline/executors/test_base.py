"""How a run answers to signals."""

import signal

import pytest

from concord.pipeline.errors import StoppedError
from concord.pipeline.executors.base import stop_request


def test_stop_request_remembers_a_signal_and_restores_the_handlers() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with stop_request() as stop:
        stop.raise_if_received()
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(StoppedError) as caught:
            stop.raise_if_received()
    assert caught.value.exit_code == 143
    assert signal.getsignal(signal.SIGTERM) is before


def test_second_signal_ends_the_process_or_interrupts_at_once() -> None:
    with stop_request(drain_seconds=5.0) as stop:
        signal.raise_signal(signal.SIGTERM)
        assert not stop.is_overdue
        with pytest.raises(SystemExit) as ended:
            signal.raise_signal(signal.SIGTERM)
    assert ended.value.code == 143
    with stop_request():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
