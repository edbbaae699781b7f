"""A thin client of S3 and compatible stores, through boto3 (the extra ``s3``).

It serves ``storage.output_paths`` and ``storage.remote_files``; other modules call those. Failures are raised as
OSErrors, like those of a disk: FileNotFoundError, PermissionError, or an OSError whose errno indicates a fault of the
store. Credentials, region and endpoint are configured as usual for boto3: environment variables, files and roles.
"""

import errno
import os
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from typing import Any, NamedTuple

from concord.pipeline.errors import InputError

_NO_SUCH = {"404", "NoSuchKey", "NoSuchBucket", "NotFound"}
_PRECONDITION = {"412", "PreconditionFailed"}
_CONFLICT_ATTEMPTS = 5
_DENIED = {"401", "403", "AccessDenied", "Forbidden", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken"}


class S3Object(NamedTuple):
    """An object's metadata; ``size`` in bytes."""

    key: str
    size: int
    etag: str


class Bucket:
    """A bucket's objects; every call is a request, nothing is cached.

    Every method raises an OSError when the store does not respond or refuses the request; one that reads an object also
    when it does not exist. Without boto3 no bucket can be built: InputError.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._client = client(os.getpid())

    def head(self, key: str) -> S3Object:
        """Return an object's metadata."""
        with _as_os_errors(self._url(key)):
            found = self._client.head_object(Bucket=self.name, Key=key)
        return S3Object(key, found["ContentLength"], found["ETag"])

    def list(self, prefix: str) -> Iterator[S3Object]:
        """Yield all objects whose keys start with a prefix, ordered by key."""
        with _as_os_errors(self._url(prefix)):
            for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix):
                for found in page.get("Contents", ()):
                    yield S3Object(found["Key"], found["Size"], found["ETag"])

    def read_range(self, key: str, *, start: int, end: int, etag: str) -> bytes:
        """Read a non-empty half-open range of an object's bytes; OSError if its etag is another."""
        with _as_os_errors(self._url(key)):
            answer = self._client.get_object(Bucket=self.name, Key=key, Range=f"bytes={start}-{end - 1}", IfMatch=etag)
            return bytes(answer["Body"].read())

    def read(self, key: str) -> bytes:
        """Read an object's bytes."""
        with _as_os_errors(self._url(key)):
            return bytes(self._client.get_object(Bucket=self.name, Key=key)["Body"].read())

    def put(self, key: str, content: bytes) -> None:
        """Write an object, replacing any existing one; the store verifies the checksum."""
        with _as_os_errors(self._url(key)):
            self._client.put_object(Bucket=self.name, Key=key, Body=content, ChecksumSHA256=_checksum(content))

    def put_new(self, key: str, content: bytes) -> bool:
        """Create an object unless its key exists; return whether it was created, which is true for one writer at most.

        False may also mean that this very writer created it: the store's response was lost and boto3 sent the request
        again.
        """
        conditions = {"IfNoneMatch": "*", "ChecksumSHA256": _checksum(content)}
        with _as_os_errors(self._url(key)):
            for left in reversed(range(_CONFLICT_ATTEMPTS)):
                try:
                    self._client.put_object(Bucket=self.name, Key=key, Body=content, **conditions)
                except self._client.exceptions.ClientError as error:
                    code = error.response["Error"]["Code"]
                    if code in _PRECONDITION:
                        return False
                    # Another writer's request was in progress at the same time.
                    if code != "ConditionalRequestConflict" or not left:
                        raise
                else:
                    return True
        return False

    def delete(self, key: str) -> None:
        """Remove an object if it exists."""
        with _as_os_errors(self._url(key)):
            self._client.delete_object(Bucket=self.name, Key=key)

    def _url(self, key: str) -> str:
        return f"s3://{self.name}/{key}"


def _checksum(content: bytes) -> str:
    return b64encode(sha256(content).digest()).decode()


@cache
def client(process: int) -> Any:
    """Return the client of a process, given by its id: connections cannot be shared with a forked process."""
    try:
        import boto3
    except ImportError:
        raise InputError(
            "s3: reading and writing s3:// requires boto3 (the extra s3): pip install boto3, on every node"
        ) from None
    return boto3.session.Session().client("s3")


@contextmanager
def _as_os_errors(url: str) -> Iterator[None]:
    """Turn the errors of boto3 into OSErrors."""
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

    try:
        yield
    except NoCredentialsError as error:
        raise PermissionError(errno.EACCES, "no credentials: set AWS_ACCESS_KEY_ID and its secret", url) from error
    except ClientError as error:
        raise _os_error(error.response, url) from error
    except BotoCoreError as error:
        # Its text contains the endpoint and, for a signed request, more.
        raise OSError(errno.EIO, f"the store does not respond ({type(error).__name__})", url) from error


def _os_error(response: Any, url: str) -> OSError:
    code = response.get("Error", {}).get("Code", "")
    if code in _NO_SUCH:
        return FileNotFoundError(errno.ENOENT, "no such bucket or object", url)
    if code in _DENIED:
        return PermissionError(errno.EACCES, f"the store denies access ({code})", url)
    if code in _PRECONDITION:
        return OSError(errno.ESTALE, "it changed while it was being read", url)
    return OSError(errno.EIO, f"the store responds with {code or 'an error'}", url)
