"""Requests to object stores: conditions, faults of a store and their errors, and processes that fork."""

import os
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

import pytest
from concord_testing.store_servers import Fault
from concord_testing.stores import DisturbedStore

from concord.pipeline.errors import StoreError
from concord.pipeline.storage.store_path import StorePath

NAMES = ("a/b.txt", "x y/#1 100%20?.txt", "\u00fc/\u00e9~*.txt", "a+b&c=d;e@f,g'!().txt")


def at(store: DisturbedStore, key: str = "a/b.json") -> StorePath:
    return StorePath.parse(f"{store.url}/{key}")


def test_objects_are_written_listed_read_and_removed(store: DisturbedStore) -> None:
    root = StorePath.parse(store.url)
    for name in NAMES:
        (root / name).write(name.encode())
    listed = dict(root.walk())
    assert [path.key for path in listed] == sorted(NAMES, key=str.encode)
    for path, state in listed.items():
        assert path.read_bytes() == path.key.encode()
        assert path.stat() == state
        assert path.read_range(2, 5, etag=state.etag) == path.key.encode()[2:5]
    assert [path.key for path in root.glob("*/*.txt")] == sorted(NAMES[:3], key=str.encode)
    assert list((root / "a").walk()) == [(root / NAMES[0], listed[root / NAMES[0]])]
    for name in (*NAMES, NAMES[0]):
        (root / name).unlink(missing_ok=True)
    assert list(root.walk()) == []


def test_a_missing_object_is_a_missing_file(store: DisturbedStore) -> None:
    for request in (at(store).stat, at(store).read_bytes):
        with pytest.raises(FileNotFoundError) as caught:
            request()
        assert caught.value.filename == str(at(store))
    assert not at(store).exists()


def test_one_of_twenty_writers_creates_an_object(store: DisturbedStore) -> None:
    with ThreadPoolExecutor(20) as pool:
        created = list(pool.map(lambda number: at(store).write_once(b"%d" % number), range(20)))
    assert [b"%d" % number for number, won in enumerate(created) if won] == [at(store).read_bytes()]


def test_a_range_of_a_changed_object_is_refused(store: DisturbedStore) -> None:
    at(store).write(b"before")
    etag = at(store).stat().etag
    at(store).write(b"after it")
    with pytest.raises(StoreError, match="changed while it was being read"):
        at(store).read_range(0, 3, etag=etag)


@pytest.mark.parametrize("store", ["s3"], indirect=True)
def test_s3_gets_the_sha256_of_every_upload(store: DisturbedStore) -> None:
    at(store).write(b"part")
    at(store, "new").write_once(b"record")
    sent = [request.headers["x-amz-checksum-sha256"] for request in store.proxy.requests[1:]]
    assert sent == [b64encode(sha256(content).digest()).decode() for content in (b"part", b"record")]


@pytest.mark.parametrize("store", ["s3"], indirect=True)
def test_s3_keeps_the_sha256_of_an_upload(store: DisturbedStore) -> None:
    import boto3

    at(store).write(b"part")
    place = {"Bucket": at(store).bucket, "Key": at(store).key}
    client = boto3.client("s3")
    found = client.get_object_attributes(**place, ObjectAttributes=["Checksum"])
    assert found["Checksum"]["ChecksumSHA256"] == b64encode(sha256(b"part").digest()).decode()


@pytest.mark.parametrize("fault", ["status", "refused", "lost", "truncated", "slow"])
def test_a_passing_fault_is_not_noticed(store: DisturbedStore, fault: Fault) -> None:
    content = os.urandom(100_000)
    for request in (
        lambda: at(store).write(content),
        at(store).stat,
        at(store).read_bytes,
        lambda: list(at(store).parent.walk()),
    ):
        store.proxy.disturb(fault, seconds=0.2)
        request()
    assert at(store).read_bytes() == content
    assert [path for path, _ in at(store).parent.walk()] == [at(store)]
