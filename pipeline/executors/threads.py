"""How idle threads of a process wait; to be set before torch loads its OpenMP runtime, which reads it once."""

import os

WAIT_POLICY = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Threads that spin while they wait take the cores from other processes: on a busy machine a tagger of two threads lost
up to nine tenths of its speed to them."""


def wait_passively() -> None:
    """Let idle OpenMP threads of this process sleep instead of spin, unless the environment says otherwise."""
    for name, value in WAIT_POLICY.items():
        os.environ.setdefault(name, value)
