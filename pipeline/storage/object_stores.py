"""Clients of object stores (S3, Google Cloud Storage, Azure), through obstore (the extra ``stores``).

They serve ``storage.store_path``; other modules call that. Credentials, region and endpoint come from the environment,
in each store's own variables (docs/stores.md).

The threads that obstore works with do not survive a fork: a forked process would wait for them forever, even to drop a
client. It is refused new requests, and never drops a client of its parent.
"""

import ctypes
import errno
import os
import re
import sys
from contextlib import suppress
from datetime import timedelta
from typing import Any

from concord.pipeline.errors import InputError, StoreError

SCHEMES = ("s3", "gs", "az")

_TIMEOUT_VARIABLE = "CONCORD_STORE_TIMEOUT"
RETRIES = {"max_retries": 5, "retry_timeout": timedelta(seconds=60)}
"""How often obstore sends a request again, after 0.1 s and then twice as long each time, and until when."""

_PREFIXES = {"s3": "AWS_", "gs": "GOOGLE_", "az": "AZURE_"}
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE with boto3 installed",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or AZURE_STORAGE_SAS_TOKEN",
}
# Without credentials obstore asks the machine for those of its role; these are parts of such requests.
_ROLE_REQUESTS = ("token request", "/latest/api/token", "/latest/meta-data/")
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_TEMPORARY = {"408", "409", "429"}
_CAUSES = {
    "Connection refused": "connection refused",
    "dns error": "unknown host",
    "invalid peer certificate": "its certificate is not trusted",
    "kind: Timeout": "no answer in time",
}

clients: dict[tuple[str, str], Any] = {}
"""The clients of this process, by scheme and bucket."""

_was_forked = False


def connect(scheme: str, bucket: str) -> Any:
    """Return the client of a bucket (a container of Azure), which is an ObjectStore of obstore.

    Raises:
        InputError: without obstore, when the environment holds no usable configuration, or in a process that was forked
            from one that uses obstore.
    """
    if _was_forked:
        raise InputError(
            f"{scheme}://{bucket}: this process was forked from one that uses object stores, whose threads it lacks; "
            "start processes by spawn or forkserver"
        )
    if (scheme, bucket) not in clients:
        clients[scheme, bucket] = _new_client(scheme, bucket)
    return clients[scheme, bucket]


def explain(error: Exception, url: str, action: str) -> Exception:
    """Return the error to raise for one of obstore, whose text may hold credentials.

    Returns:
        FileNotFoundError or FileExistsError of an object, StoreError where another attempt may help, else InputError.
    """
    kind, text = type(error).__name__, str(error)
    status, code = (match[1] if (match := pattern.search(text)) else "" for pattern in (_STATUS, _CODE))
    answer = " ".join(filter(None, (status, code)))
    if any(request in text for request in _ROLE_REQUESTS):
        scheme = url.partition("://")[0]
        return InputError(f"{url}: {action} failed (no credentials); set {_CREDENTIALS[scheme]}")
    if isinstance(error, FileNotFoundError) or status == "404":
        return FileNotFoundError(errno.ENOENT, "no such bucket or object", url)
    if kind == "AlreadyExistsError":
        return FileExistsError(errno.EEXIST, "it exists", url)
    if kind == "PreconditionError":
        return StoreError(f"{url}: {action} failed (it changed while it was being read); run the same command again")
    if status.startswith("3") or "Received redirect" in text or code == "AuthorizationHeaderMalformed":
        return InputError(f"{url}: {action} failed (the bucket is in another region); set AWS_REGION to it")
    if status.startswith("4") and status not in _TEMPORARY:
        return InputError(
            f"{url}: {action} failed (refused: {answer}); check the URL, the credentials and their rights"
        )
    if kind in {"ValueError", "InvalidPathError"}:
        return InputError(f"{url}: {action} failed (a name has a part that is empty, . or ..); rename that object")
    cause = next((cause for sign, cause in _CAUSES.items() if sign in text), "no answer")
    reason = f"the store responds with {answer}" if status else f"the store does not respond: {cause}"
    return StoreError(
        f"{url}: {action} failed ({reason}); check that its host and the network are up, then run the same command "
        "again"
    )


def _new_client(scheme: str, bucket: str) -> Any:
    try:
        from obstore.exceptions import BaseError
        from obstore.store import AzureStore, GCSStore, S3Store
    except ImportError:
        raise InputError(
            f"{scheme}://: object stores require obstore (the extra stores): pip install obstore, on every node"
        ) from None
    options: dict[str, Any] = {
        "client_options": {"allow_http": True, "timeout": timedelta(seconds=_timeout())},
        "retry_config": RETRIES,
    }
    try:
        if scheme == "s3":
            # One request for each object: not every store with the API of S3 removes many at once.
            options |= {"checksum_algorithm": "SHA256", "disable_bulk_delete": True, **_profile()}
        return {"s3": S3Store, "gs": GCSStore, "az": AzureStore}[scheme](bucket, **options)
    except (BaseError, ValueError):
        names = ", ".join(sorted(name for name in os.environ if name.startswith(_PREFIXES[scheme]))) or "none of them"
        raise InputError(
            f"{scheme}://{bucket}: expected in the environment {_CREDENTIALS[scheme]}; found {names}, incomplete or "
            "with a value that cannot be used"
        ) from None


def _timeout() -> float:
    """Return the seconds that one request may take."""
    text = os.environ.get(_TIMEOUT_VARIABLE) or "120"
    with suppress(ValueError):
        if (seconds := float(text)) > 0:
            return seconds
    raise InputError(f"{_TIMEOUT_VARIABLE}: expected seconds, such as 120, got {text!r}")


def _profile() -> dict[str, Any]:
    """Return the credentials of an AWS profile, which boto3 reads, as an option of S3Store; else none."""
    if "AWS_ACCESS_KEY_ID" in os.environ or "AWS_SKIP_SIGNATURE" in os.environ:
        return {}
    try:
        from botocore.exceptions import BotoCoreError
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        if "AWS_PROFILE" in os.environ:
            raise InputError("s3://: AWS_PROFILE is read by boto3: pip install boto3, on every node") from None
        return {}
    try:
        return {"credential_provider": Boto3CredentialProvider()}
    except (BotoCoreError, ValueError) as error:
        raise InputError(f"s3://: no credentials ({error}); set {_CREDENTIALS['s3']}") from None


def _after_fork() -> None:
    global _was_forked
    _was_forked = "obstore" in sys.modules
    for client in clients.values():
        # One reference more than there are: the interpreter does not drop it at its end either.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))


os.register_at_fork(after_in_child=_after_fork)
