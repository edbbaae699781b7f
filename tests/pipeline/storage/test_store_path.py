"""Requests to object stores: conditions, faults of a store and their errors, and processes that are forked."""

import os
import subprocess
import sys
import traceback
from base64 import b64encode
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pytest
from concord_testing.store_servers import Fault, store_proxy
from concord_testing.stores import DisturbedBucket

from concord.pipeline.errors import InputError, StoreError
from concord.pipeline.storage import object_stores
from concord.pipeline.storage.object_stores import StorePath

pytestmark = pytest.mark.slow

NAMES = ("a/b.txt", "x y/#1 100%20?.txt", "\u00fc/\u00e9~*.txt", "a+b&c=d;e@f,g'!().txt")


def at(bucket: DisturbedBucket, key: str = "a/b.json") -> StorePath:
    return StorePath.parse(f"{bucket.url}/{key}")


def test_objects_are_written_listed_read_and_removed(bucket: DisturbedBucket) -> None:
    root = StorePath.parse(bucket.url)
    for name in NAMES:
        (root / name).write(name.encode())
    listed = dict(root.walk())
    assert [path.key for path in listed] == sorted(NAMES, key=str.encode)
    for path, state in listed.items():
        assert path.read_bytes() == path.key.encode()
        assert path.stat() == state
        assert path.read_range(2, 5, etag=state.etag) == path.key.encode()[2:5]
    assert [path.key for path, _ in root.glob("*/*.txt")] == sorted(NAMES[:3], key=str.encode)
    assert list((root / "a").walk()) == [(root / NAMES[0], listed[root / NAMES[0]])]
    for name in (*NAMES, NAMES[0]):
        (root / name).unlink(missing_ok=True)
    assert list(root.walk()) == []


def test_a_missing_object_is_a_missing_file(bucket: DisturbedBucket) -> None:
    for request in (at(bucket).stat, at(bucket).read_bytes):
        with pytest.raises(FileNotFoundError) as caught:
            request()
        assert caught.value.filename == str(at(bucket))
    assert not at(bucket).exists()


def test_one_of_twenty_writers_creates_an_object(bucket: DisturbedBucket) -> None:
    with ThreadPoolExecutor(20) as pool:
        created = list(pool.map(lambda number: at(bucket).write_if(b"%d" % number, None), range(20)))
    assert [b"%d" % number for number, won in enumerate(created) if won] == [at(bucket).read_bytes()]


def test_a_range_of_a_changed_object_is_refused(bucket: DisturbedBucket) -> None:
    at(bucket).write(b"before")
    etag = at(bucket).stat().etag
    at(bucket).write(b"after it")
    with pytest.raises(StoreError, match="changed while it was being read"):
        at(bucket).read_range(0, 3, etag=etag)


@pytest.mark.parametrize("bucket", ["s3"], indirect=True)
def test_s3_gets_and_keeps_the_sha256_of_every_upload(bucket: DisturbedBucket) -> None:
    import boto3

    at(bucket).write(b"part")
    at(bucket, "new").write_if(b"record", None)
    expected = [b64encode(sha256(content).digest()).decode() for content in (b"part", b"record")]
    assert [request.headers["x-amz-checksum-sha256"] for request in bucket.proxy.requests[1:]] == expected
    place = {"Bucket": at(bucket).bucket, "Key": at(bucket).key}
    found = boto3.client("s3").get_object_attributes(**place, ObjectAttributes=["Checksum"])
    assert found["Checksum"]["ChecksumSHA256"] == expected[0]


@pytest.mark.parametrize("fault", ["status", "refused", "lost", "truncated", "slow"])
def test_a_passing_fault_is_not_noticed(bucket: DisturbedBucket, fault: Fault) -> None:
    content = os.urandom(100_000)
    path = at(bucket)
    requests: list[Callable[[], object]] = [
        lambda: path.write(content),
        path.stat,
        path.read_bytes,
        lambda: [*path.parent.walk()],
    ]
    for request in requests:
        bucket.proxy.disturb(fault, seconds=0.2)
        request()
    assert path.read_bytes() == content
    assert [found for found, _ in path.parent.walk()] == [path]


@pytest.mark.parametrize("fault", ["status", "refused", "lost"])
def test_a_creation_survives_a_passing_fault(bucket: DisturbedBucket, fault: Fault) -> None:
    bucket.proxy.disturb(fault, method="PUT")
    # Where the response was lost, the object is there already.
    assert (at(bucket).write_if(b"first", None) is None) == (fault == "lost")
    assert at(bucket).write_if(b"second", None) is None
    assert at(bucket).read_bytes() == b"first"


@pytest.mark.parametrize("bucket", ["s3"], indirect=True)
def test_a_creation_is_repeated_when_it_met_another_that_failed(bucket: DisturbedBucket) -> None:
    bucket.proxy.disturb("status", method="PUT", status=409, body=b"<Code>ConditionalRequestConflict</Code>")
    assert at(bucket).write_if(b"first", None)
    assert at(bucket).read_bytes() == b"first"


def test_a_store_that_fails_on_and_on_is_a_store_error(bucket: DisturbedBucket) -> None:
    path = at(bucket, "redirect/certificate.json")
    root = StorePath.parse(bucket.url)
    bucket.proxy.disturb("status", times=1000, body=b"<Code>SlowDown</Code>")
    requests: list[Callable[[], object]] = [
        path.stat,
        path.read_bytes,
        lambda: path.read_range(0, 1, etag='"0"'),
        lambda: [*root.walk()],
        lambda: path.write(b""),
        lambda: path.write_if(b"", None),
        lambda: path.unlink(missing_ok=True),
    ]
    with ThreadPoolExecutor(len(requests)) as pool:
        errors = [future.exception() for future in [pool.submit(request) for request in requests]]
    for error in errors:
        assert isinstance(error, StoreError)
        assert "the store responds with 503" in str(error)
        assert "run the same command again" in str(error)


def test_a_store_that_never_answers_is_given_up(bucket: DisturbedBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONCORD_STORE_TIMEOUT", "0.3")
    monkeypatch.setitem(object_stores.RETRIES, "max_retries", 1)
    object_stores.clients.clear()
    bucket.proxy.disturb("slow", times=1000, seconds=1)
    for request in (at(bucket).read_bytes, lambda: at(bucket).write_if(b"", None)):
        with pytest.raises(StoreError, match="no answer in time"):
            request()


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (403, b"<Code>SignatureDoesNotMatch</Code>", "refused: 403 SignatureDoesNotMatch"),
        (401, b"", "refused: 401"),
        (400, b"<Code>ExpiredToken</Code>", "refused: 400 ExpiredToken"),
        (301, b"<Code>PermanentRedirect</Code>", "in another region"),
        (400, b"<Code>AuthorizationHeaderMalformed</Code>", "in another region"),
    ],
)
@pytest.mark.parametrize("bucket", ["s3"], indirect=True)
def test_a_refusal_of_s3_is_an_error_of_the_user(
    bucket: DisturbedBucket, status: int, body: bytes, expected: str
) -> None:
    bucket.proxy.disturb("status", times=1000, status=status, body=body)
    for request in (at(bucket).read_bytes, lambda: list(at(bucket).walk()), lambda: at(bucket).write_if(b"", None)):
        with pytest.raises(InputError, match=expected) as caught:
            request()
        assert str(caught.value).startswith(str(at(bucket)))


def test_a_missing_bucket_is_named(bucket: DisturbedBucket) -> None:
    path = StorePath(at(bucket).scheme, "no-such-bucket", "a/b.json")
    for request in (lambda: list(path.walk()), lambda: path.write(b""), lambda: path.write_if(b"", None)):
        with pytest.raises(InputError, match="no such bucket") as caught:
            request()
        assert str(caught.value).startswith(f"{path.scheme}://no-such-bucket: ")
    assert not path.exists()


def test_an_error_shows_no_secret(bucket: DisturbedBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "GOOGLE_BEARER_TOKEN"):
        monkeypatch.setenv(name, "sesame")
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_KEY", raising=False)
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "sv=2021-08-06&sp=rw&sig=sesame")
    monkeypatch.setitem(object_stores.RETRIES, "max_retries", 1)
    object_stores.clients.clear()
    bucket.proxy.disturb("status", times=1000, status=503, body=b"sesame")
    for request in (at(bucket).stat, lambda: list(at(bucket).walk()), lambda: at(bucket).write(b"")):
        with pytest.raises(StoreError) as caught:
            request()
        assert "sesame" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("bucket", ["az"], indirect=True)
def test_azure_denies_access_with_another_key(bucket: DisturbedBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", b64encode(b"sesame").decode())
    object_stores.clients.clear()
    for request in (at(bucket).stat, lambda: list(at(bucket).walk()), lambda: at(bucket).write(b"")):
        with pytest.raises(InputError, match="refused: 403"):
            request()


@pytest.mark.parametrize(
    ("scheme", "variable"),
    [("s3", "AWS_ACCESS_KEY_ID"), ("gs", "GOOGLE_APPLICATION_CREDENTIALS"), ("az", "AZURE_STORAGE_ACCOUNT_NAME")],
)
def test_without_credentials_the_variables_are_named(
    scheme: str, variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith(("AWS_", "AZURE_", "GOOGLE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    with store_proxy("http://127.0.0.1:9") as proxy:
        proxy.disturb("status", times=1000, status=404)
        # The machine has no role of its own.
        for name in ("AWS_EC2_METADATA_SERVICE_ENDPOINT", "AWS_METADATA_ENDPOINT"):
            monkeypatch.setenv(name, proxy.url)
        monkeypatch.setenv("GCE_METADATA_HOST", proxy.url.removeprefix("http://"))
        object_stores.clients.clear()
        with pytest.raises(InputError, match=rf"(no credentials.*; set|expected in the environment) {variable}"):
            StorePath(scheme, "bucket", "a").stat()


@pytest.mark.parametrize(
    ("scheme", "name", "value"),
    [
        ("s3", "AWS_SKIP_SIGNATURE", "sesame"),
        ("gs", "GOOGLE_SERVICE_ACCOUNT_KEY", "sesame"),
        ("az", "AZURE_STORAGE_ACCOUNT_KEY", "sesame!"),
        ("s3", "CONCORD_STORE_TIMEOUT", "soon"),
        ("gs", "CONCORD_STORE_TIMEOUT", "-1"),
    ],
)
def test_an_unusable_value_is_named(scheme: str, name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "some-account")
    monkeypatch.setenv(name, value)
    object_stores.clients.clear()
    with pytest.raises(InputError, match=name) as caught:
        StorePath(scheme, "bucket", "a").stat()
    assert "sesame" not in str(caught.value)


@pytest.mark.parametrize("bucket", ["s3"], indirect=True)
def test_a_profile_of_the_aws_command_line_is_used(
    bucket: DisturbedBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "credentials").write_text("[archive]\naws_access_key_id = ours\naws_secret_access_key = sesame\n")
    (tmp_path / "config").write_text("[profile archive]\nregion = eu-central-1\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "archive")
    object_stores.clients.clear()
    at(bucket).write(b"content")
    signed = bucket.proxy.requests[-1].headers["authorization"]
    assert "Credential=ours/" in signed
    assert "/eu-central-1/s3/" in signed

    monkeypatch.setenv("AWS_PROFILE", "nobody")
    object_stores.clients.clear()
    with pytest.raises(InputError, match=r"no credentials .*nobody"):
        at(bucket).stat()
    monkeypatch.setitem(sys.modules, "botocore.exceptions", None)
    with pytest.raises(InputError, match="AWS_PROFILE is read by boto3: pip install boto3"):
        at(bucket).stat()


@pytest.mark.parametrize("bucket", ["s3"], indirect=True)
def test_objects_that_mark_folders_are_not_listed(bucket: DisturbedBucket) -> None:
    import boto3

    client = boto3.client("s3")
    for key in ("texts/", "texts/deep/", "texts/deep/a.txt", "texts/empty.txt"):
        client.put_object(Bucket=at(bucket).bucket, Key=key, Body=b"a" if key.endswith("a.txt") else b"")
    for root in (StorePath.parse(bucket.url), at(bucket, "texts")):
        assert [path.key for path, _ in root.walk()] == ["texts/deep/a.txt", "texts/empty.txt"]


@pytest.mark.parametrize("bucket", ["s3"], indirect=True)
@pytest.mark.parametrize("key", ["texts//a.txt", "texts/../a.txt"])
def test_names_that_are_no_paths_are_refused(bucket: DisturbedBucket, key: str) -> None:
    import boto3

    boto3.client("s3").put_object(Bucket=at(bucket).bucket, Key=key, Body=b"")
    with pytest.raises(InputError, match="has a part that is empty"):
        list(at(bucket, "texts").walk())
    with pytest.raises(InputError, match="has a part that is empty"):
        at(bucket, key).stat()


FORK_WHILE_THREADS_MAKE_REQUESTS = """
import multiprocessing, os, sys, threading
from concord.pipeline.errors import InputError
from concord.pipeline.storage.object_stores import StorePath

def read_on():
    while True:
        path.read_bytes()

def read_in_child():
    try:
        path.read_bytes()
    except InputError as error:
        sys.exit(str(error))

path = StorePath.parse(sys.argv[1])
path.write(b"by the parent")
for _ in range(4):
    threading.Thread(target=read_on, daemon=True).start()
for number in range(20):
    # Its client was in use a moment ago.
    assert not StorePath(path.scheme, f"bucket-{number}", "a").exists()
    child = multiprocessing.get_context("fork").Process(target=read_in_child)
    child.start()
    child.join()
assert path.read_bytes() == b"by the parent"
os._exit(0)
"""


@pytest.mark.parametrize("bucket", ["s3"], indirect=True)
def test_a_forked_process_is_refused_and_ends(bucket: DisturbedBucket) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORK_WHILE_THREADS_MAKE_REQUESTS, str(at(bucket))],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert [line.endswith("start processes by spawn or forkserver") for line in done.stderr.splitlines()] == [True] * 20
