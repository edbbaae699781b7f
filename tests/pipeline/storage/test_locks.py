"""A collection has one writer: who it is, and what becomes of its lock when it ends, is killed, or is silent."""

import errno
import fcntl
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from concord_testing import runs
from concord_testing.stores import DisturbedBucket

from concord.models.errors import ConfigError
from concord.pipeline.errors import BusyError, IntegrityError, StoreError
from concord.pipeline.storage import locks
from concord.pipeline.storage.locks import write_lock
from concord.pipeline.storage.object_stores import StorePath
from concord.pipeline.storage.output_paths import OutputPath

pytestmark = pytest.mark.slow(reason="processes that are killed, and leases that end")


def hold(path: OutputPath, ready: Path) -> None:
    """Hold a lock until the process is killed; a child that it forks outlives it by some seconds."""
    with write_lock(path):
        if os.fork() == 0:
            ready.touch()
            time.sleep(5)
            os._exit(0)
        signal.pause()


def refused(path: OutputPath) -> str:
    """Return what a second writer is told."""
    with pytest.raises(BusyError) as caught, write_lock(path):
        pass
    assert caught.value.exit_code == 75
    return str(caught.value)


def test_second_writer_is_told_who_writes_and_the_lock_of_a_killed_one_ends_with_it(tmp_path: Path) -> None:
    lock = tmp_path / "out" / "_run" / "lock"
    lock.parent.mkdir(parents=True)
    holder = runs.in_child(lambda: hold(lock, tmp_path / "ready"))
    while not (tmp_path / "ready").exists():
        time.sleep(0.01)
    said = refused(lock)
    assert said.startswith(f"{tmp_path / 'out'}: process {holder.pid} of ")
    assert f" on {os.uname().nodename} since 20" in said
    holder.kill()
    holder.join()
    with write_lock(lock):
        assert f"process {os.getpid()} of" in lock.read_text()
        assert f"process {os.getpid()} of" in refused(lock)
    assert not lock.exists()


def test_one_of_many_threads_holds_a_lock_though_each_removes_its_file(tmp_path: Path) -> None:
    holders, most, taken = 0, 0, 0

    def take(_: int) -> None:
        nonlocal holders, most, taken
        try:
            with write_lock(tmp_path / "lock"):
                holders += 1
                most = max(most, holders)
                time.sleep(0.0005)
                taken += 1
                holders -= 1
        except BusyError:
            pass

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(take, range(800)))
    assert (most, taken > 1) == (1, True)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_file_system_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(ConfigError, match="has no locks"), write_lock(tmp_path / "lock"):
        pass


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/etc/passwd")])
def test_something_else_in_place_of_the_lock_is_refused(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / "lock")
    with pytest.raises(IntegrityError, match="lock: expected a file"), write_lock(tmp_path / "lock"):
        pass


def of(bucket: DisturbedBucket) -> StorePath:
    return StorePath.parse(f"{bucket.url}/out/_run/lock")


def test_lock_in_a_store_is_one_writers_and_removed_by_it(bucket: DisturbedBucket) -> None:
    with write_lock(of(bucket)) as check:
        said = refused(of(bucket))
        assert said.startswith(f"{bucket.url}/out: process {os.getpid()} of ")
        assert "ends after 60 seconds" in said
        check()
    assert list(StorePath.parse(bucket.url).walk()) == []


def test_lock_in_a_store_is_renewed_and_that_of_a_killed_writer_ends_after_its_lease(
    bucket: DisturbedBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "LEASE_SECONDS", 2.0)
    monkeypatch.setattr(locks, "_RENEW_SECONDS", 0.3)
    with write_lock(of(bucket)) as check:
        time.sleep(3.2)
        refused(of(bucket))
        check()
    of(bucket).write(b"process 1 of ada on host since yesterday (1)")
    assert "process 1 of ada on host since yesterday is writing" in refused(of(bucket))
    # The clock of this machine does not count.
    monkeypatch.setattr(time, "time", lambda: 0.0)
    time.sleep(3.2)
    with write_lock(of(bucket)):
        pass


def test_one_of_many_writers_takes_over_a_lock_in_a_store(
    bucket: DisturbedBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = b"of a writer that was killed"
    of(bucket).write(dead)

    def store_time(_: locks._Lease) -> float:
        found = of(bucket).read()
        return found.modified + 3600 * (found.content == dead)

    def take(_: int) -> bool:
        lease = locks._Lease(of(bucket), os.urandom(8))
        return of(bucket).read_bytes() == lease._holder

    monkeypatch.setattr(locks._Lease, "_store_time", store_time)
    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(take, number) for number in range(8)]
    assert [future.result() for future in futures if future.exception() is None] == [True]
    assert {type(error) for future in futures if (error := future.exception()) is not None} == {BusyError}


def test_writer_whose_lock_was_taken_over_is_told_and_removes_nothing(
    bucket: DisturbedBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    with write_lock(of(bucket)) as check:
        of(bucket).write(b"of another")
        check()
        monkeypatch.setattr(locks, "LEASE_SECONDS", 0.0)
        with pytest.raises(BusyError, match="another one writes to the collection now"):
            check()
    assert of(bucket).read_bytes() == b"of another"


def test_lock_survives_lost_answers_and_a_store_that_is_down_for_a_while(
    bucket: DisturbedBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.proxy.disturb("lost", method="PUT")
    with write_lock(of(bucket)) as check:
        monkeypatch.setattr(locks, "LEASE_SECONDS", 0.0)
        bucket.proxy.disturb("lost", method="PUT")
        check()
        bucket.proxy.disturb("status", times=18)
        with pytest.raises(StoreError):
            check()
        check()
    assert not of(bucket).exists()
