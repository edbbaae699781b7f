"""Objects of S3 and of stores that speak its protocol, through boto3 (the extra ``s3``).

Faults come as OSErrors, like those of a disk: FileNotFoundError, PermissionError, else one whose errno names a fault of
the store. Credentials, region and endpoint are boto3's own: its environment variables, files and roles.
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
_CONFLICTS_BORNE = 5
_DENIED = {"401", "403", "AccessDenied", "Forbidden", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken"}


class S3Object(NamedTuple):
    """What a store says of an object; ``size`` in bytes."""

    key: str
    size: int
    etag: str


class Bucket:
    """A bucket's objects. Nothing is remembered of them."""

    def __init__(self, name: str) -> None:
        """Take the bucket's name.

        Raises:
            InputError: when boto3 is not installed.
        """
        self.name = name
        self._client = client(os.getpid())

    def look(self, key: str) -> S3Object:
        """Look at one object.

        Raises:
            OSError: when it is not there, or the store does not answer.
        """
        with _as_os_errors(self._place(key)):
            found = self._client.head_object(Bucket=self.name, Key=key)
        return S3Object(key, found["ContentLength"], found["ETag"])

    def list(self, prefix: str) -> Iterator[S3Object]:
        """Give all objects whose keys begin so, in the order of their keys.

        Raises:
            OSError: when the store does not answer.
        """
        with _as_os_errors(self._place(prefix)):
            for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix):
                for found in page.get("Contents", ()):
                    yield S3Object(found["Key"], found["Size"], found["ETag"])

    def read(self, key: str, *, start: int, end: int, etag: str) -> bytes:
        """Give a half-open range of an object's bytes, which is not empty, if it is still the one with this etag.

        Raises:
            OSError: when it is not, or the store does not answer.
        """
        with _as_os_errors(self._place(key)):
            answer = self._client.get_object(Bucket=self.name, Key=key, Range=f"bytes={start}-{end - 1}", IfMatch=etag)
            content: bytes = answer["Body"].read()
        return content

    def read_whole(self, key: str) -> bytes:
        """Give an object's bytes.

        Raises:
            OSError: when it is not there, or the store does not answer.
        """
        with _as_os_errors(self._place(key)):
            content: bytes = self._client.get_object(Bucket=self.name, Key=key)["Body"].read()
        return content

    def put(self, key: str, content: bytes) -> None:
        """Write an object whole, over whatever bore its key; the store checks the bytes that arrive.

        Raises:
            OSError: when the store does not take it.
        """
        with _as_os_errors(self._place(key)):
            self._client.put_object(Bucket=self.name, Key=key, Body=content, ChecksumSHA256=_checksum(content))

    def put_new(self, key: str, content: bytes) -> bool:
        """Write an object whole if there is none of its key: of several writers one is told that it was written.

        A writer may be told that it was not though it was, where the store's answer went missing and boto3 asked again.

        Raises:
            OSError: when the store does not take it.
        """
        conditions = {"IfNoneMatch": "*", "ChecksumSHA256": _checksum(content)}
        with _as_os_errors(self._place(key)):
            for left in reversed(range(_CONFLICTS_BORNE)):
                try:
                    self._client.put_object(Bucket=self.name, Key=key, Body=content, **conditions)
                except self._client.exceptions.ClientError as error:
                    code = error.response["Error"]["Code"]
                    if code in _PRECONDITION:
                        return False
                    # Another writer's request was under way at the same time.
                    if code != "ConditionalRequestConflict" or not left:
                        raise
                else:
                    return True
        return False

    def delete(self, key: str) -> None:
        """Remove an object, if there is one.

        Raises:
            OSError: when the store does not do so.
        """
        with _as_os_errors(self._place(key)):
            self._client.delete_object(Bucket=self.name, Key=key)

    def _place(self, key: str) -> str:
        return f"s3://{self.name}/{key}"


def _checksum(content: bytes) -> str:
    return b64encode(sha256(content).digest()).decode()


@cache
def client(process: int) -> Any:
    """Give this process's client: the connections of one are of no use in a process forked from it."""
    try:
        import boto3
    except ImportError:
        raise InputError(
            "s3: reading and writing s3:// takes boto3 (the extra s3): pip install boto3, on every node"
        ) from None
    return boto3.session.Session().client("s3")


@contextmanager
def _as_os_errors(place: str) -> Iterator[None]:
    """Turn the faults of boto3 into OSErrors."""
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

    try:
        yield
    except NoCredentialsError as error:
        raise PermissionError(errno.EACCES, "no credentials: set AWS_ACCESS_KEY_ID and its secret", place) from error
    except ClientError as error:
        raise _os_error(error.response, place) from error
    except BotoCoreError as error:
        # Its text would name the endpoint and, of a signed request, more.
        raise OSError(errno.EIO, f"the store does not answer ({type(error).__name__})", place) from error


def _os_error(response: Any, place: str) -> OSError:
    code = response.get("Error", {}).get("Code", "")
    if code in _NO_SUCH:
        return FileNotFoundError(errno.ENOENT, "no such bucket or object", place)
    if code in _DENIED:
        return PermissionError(errno.EACCES, f"the store denies it ({code})", place)
    if code in _PRECONDITION:
        return OSError(errno.ESTALE, "it has changed while it was being read", place)
    return OSError(errno.EIO, f"the store answers {code or 'with a fault'}", place)
