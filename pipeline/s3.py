"""Objects of S3 and of stores that speak its protocol, through boto3 (the extra ``s3``).

Faults come as OSErrors, like those of a disk: FileNotFoundError, PermissionError, else one whose errno names a fault of
the store. Credentials, region and endpoint are boto3's own: its environment variables, files and roles.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

from pipeline.errors import InputError

_NO_SUCH = {"404", "NoSuchKey", "NoSuchBucket", "NotFound"}
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

    def _place(self, key: str) -> str:
        return f"s3://{self.name}/{key}"


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
    if code in {"412", "PreconditionFailed"}:
        return OSError(errno.ESTALE, "it has changed while it was being read", place)
    return OSError(errno.EIO, f"the store answers {code or 'with a fault'}", place)
