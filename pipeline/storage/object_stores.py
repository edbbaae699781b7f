"""Object stores (S3, Google Cloud Storage, Azure): paths in them, and their clients through obstore (extra ``stores``).

A ``StorePath`` is ``s3://bucket/key``, ``gs://bucket/key`` or ``az://container/key``. Credentials, region and endpoint
come from the environment, in each store's own variables (docs/stores.md).

The threads that obstore works with do not survive a fork: a forked process would wait for them forever, and is refused
its requests.
"""

import errno
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import zip_longest
from pathlib import PurePosixPath
from typing import Any, Literal, NamedTuple, TypeVar

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

clients: dict[tuple[int, str, str], Any] = {}
"""The clients by process, scheme and bucket; those of other processes are there after a fork."""


def connect(scheme: str, bucket: str) -> Any:
    """Return the client of a bucket (a container of Azure), which is an ObjectStore of obstore.

    Raises:
        InputError: without obstore, when the environment holds no usable configuration, or in a process that was forked
            from one that uses obstore.
    """
    if any(process != os.getpid() for process, _, _ in clients):
        raise InputError(
            f"{scheme}://{bucket}: this process was forked from one that uses object stores, whose threads it lacks; "
            "start processes by spawn or forkserver"
        )
    key = os.getpid(), scheme, bucket
    if key not in clients:
        clients[key] = _new_client(scheme, bucket)
    return clients[key]


class _ChangedError(StoreError):
    """An object is not the version that a request is for."""


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
    if kind == "PreconditionError":
        return _ChangedError(f"{url}: {action} failed (it changed while it was being read); run the same command again")
    if isinstance(error, FileNotFoundError) or status == "404":
        return FileNotFoundError(errno.ENOENT, "no such bucket or object", url)
    if kind == "AlreadyExistsError":
        return FileExistsError(errno.EEXIST, "it exists", url)
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


_ATTEMPTS = 3
_ATTEMPT_SECONDS = 10.0

Result = TypeVar("Result")


def is_store(url: str) -> bool:
    """Tell whether a URL is of an object store, which can be written to."""
    return url.startswith(tuple(f"{scheme}://" for scheme in SCHEMES))


class ObjectStatus(NamedTuple):
    """A size in bytes, an etag, which changes whenever the content does, and the Unix time of the last change."""

    st_size: int
    etag: str
    st_mtime: float


Version = Mapping[str, str]
"""What tells a state of an object from all others: an etag, or a number."""


class StoredObject(NamedTuple):
    """An object with its version, and when it was last written, in seconds of the store's clock."""

    content: bytes
    version: Version
    modified: float


@dataclass(frozen=True, order=True, slots=True)
class StorePath:
    """An object in a store, or a prefix of objects.

    Its methods are those of Path; each is a request, and nothing is cached. They raise FileNotFoundError when there is
    no such object, StoreError when the store fails, and InputError when it refuses or has no such bucket.

    Attributes:
        bucket: a container, in Azure.
        key: without leading or trailing slash.
    """

    scheme: str
    bucket: str
    key: str

    @classmethod
    def parse(cls, url: str) -> "StorePath":
        """Parse the URL of an object store."""
        scheme, _, place = url.partition("://")
        bucket, _, key = place.partition("/")
        return cls(scheme, bucket, key.strip("/"))

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.key}"

    def __truediv__(self, below: str | os.PathLike[str]) -> "StorePath":
        return StorePath(self.scheme, self.bucket, f"{self.key}/{os.fspath(below)}".strip("/"))

    @property
    def name(self) -> str:
        """The last part of the key."""
        return PurePosixPath(self.key).name

    @property
    def parent(self) -> "StorePath":
        """The prefix directly above the object."""
        return StorePath(self.scheme, self.bucket, self.key.rpartition("/")[0])

    def absolute(self) -> "StorePath":
        """Return the path itself: a StorePath is always absolute."""
        return self

    def stat(self) -> ObjectStatus:
        """Request the object's size and etag."""
        if not self.key:
            raise FileNotFoundError(errno.ENOENT, "a bucket is no object", str(self))
        return self._request("reading", lambda store: _status(store.head(self.key)))

    def exists(self) -> bool:
        """Tell whether there is an object with this key."""
        try:
            self.stat()
        except FileNotFoundError:
            return False
        return True

    def read_bytes(self) -> bytes:
        """Read the object."""
        return self.read().content

    def read(self) -> StoredObject:
        """Read the object with its version."""

        def get(store: Any) -> StoredObject:
            found = store.get(self.key)
            return StoredObject(bytes(found.bytes()), _version(found.meta), found.meta["last_modified"].timestamp())

        return self._request("reading", get)

    def read_range(self, start: int, end: int, *, etag: str) -> bytes:
        """Read a non-empty half-open range of the object's bytes; StoreError if its etag is another."""
        options = {"range": (start, end), "if_match": etag}
        return self._request("reading", lambda store: bytes(store.get(self.key, options=options).bytes()))

    def walk(self) -> Iterator[tuple["StorePath", ObjectStatus]]:
        """Yield every object below this prefix and its state, ordered by key."""
        objects = self._request("listing", lambda store: store.list(self.key or None).collect(), of_bucket=True)
        entries = [(StorePath(self.scheme, self.bucket, item["path"]), _status(item)) for item in objects]
        for (path, state), following in zip_longest(entries, entries[1:]):
            # obstore drops the slash at the end of an object that only marks a folder.
            marks_folder = path == self or (following and following[0].key.startswith(f"{path.key}/"))
            if state.st_size or not marks_folder:
                yield path, state

    def glob(self, pattern: str) -> Iterator[tuple["StorePath", ObjectStatus]]:
        """Yield the objects whose keys below this one match, and their states; ``*`` matches one part of a key."""
        depth = pattern.count("/")
        prefix = f"{self.key}/" if self.key else ""
        for path, state in self.walk():
            below = path.key.removeprefix(prefix)
            if below.count("/") == depth and PurePosixPath(below).match(pattern):
                yield path, state

    def unlink(self, *, missing_ok: Literal[True]) -> None:
        """Remove the object if it exists; S3 does not report which."""
        with suppress(FileNotFoundError):
            self._request("removing", lambda store: store.delete(self.key))

    def write(self, content: bytes) -> None:
        """Write the object in one request, replacing any existing one; S3 verifies its SHA-256."""
        self._request("writing", lambda store: store.put(self.key, content, use_multipart=False), of_bucket=True)

    def write_if(self, content: bytes, version: Version | None) -> Version | None:
        """Replace a version of the object, or create it if that is None; return the new version.

        It returns None unless the object is in that state, which is so for one writer at most. None may also mean that
        this very writer wrote it: the store's response was lost and the request was sent again.
        """
        mode = version or "create"
        for _ in range(_ATTEMPTS):
            try:
                return self._request(
                    "writing",
                    lambda store: _version(store.put(self.key, content, mode=mode, use_multipart=False)),
                    of_bucket=True,
                )
            except _ChangedError:
                return None
            except FileExistsError:
                # S3 gives the same answer to requests that meet, and then neither may have created it.
                if self.exists():
                    return None
        raise StoreError(f"{self}: writing failed (other writers interfered); run the same command again")

    def _request(self, action: str, send: Callable[[Any], Result], *, of_bucket: bool = False) -> Result:
        """Send a request, and again if that may help: obstore does so itself, but not for a response that is cut off.

        Args:
            action: what it is for, as messages say it.
            of_bucket: whether only the bucket can be missing.
        """
        store = connect(self.scheme, self.bucket)
        from obstore.exceptions import BaseError

        end = time.monotonic() + _ATTEMPT_SECONDS
        left = _ATTEMPTS
        while True:
            left -= 1
            try:
                return send(store)
            except (BaseError, FileNotFoundError, ValueError) as error:
                fault = explain(error, str(self), action)
            if of_bucket and isinstance(fault, FileNotFoundError):
                fault = InputError(f"{self.scheme}://{self.bucket}: no such bucket; check that it exists, or create it")
            is_passing = isinstance(fault, StoreError) and not isinstance(fault, _ChangedError)
            if not is_passing or not left or time.monotonic() > end:
                raise fault


def _status(item: Any) -> ObjectStatus:
    # Azure quotes an etag in the response for an object, but not in a listing.
    etag = '"{}"'.format((item["e_tag"] or "").strip('"'))
    return ObjectStatus(item["size"], etag, item["last_modified"].timestamp())


def _version(item: Any) -> Version:
    return {name: item[name] for name in ("e_tag", "version") if item[name]}
