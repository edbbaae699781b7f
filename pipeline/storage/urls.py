"""What may stand where a path may: URLs of files and folders, without secrets in them."""

import re
from urllib.parse import urlsplit

from concord.pipeline.errors import InputError

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_SECRETS = re.compile(r"(?<=//)[^/@\s]*@|\?[^\s'\")]*")
# Where the part before an @ names a container.
_CONTAINER_SCHEMES = {"abfs", "abfss", "az", "adl"}


def is_url(where: str) -> bool:
    """Say whether an input or output is a URL and no path."""
    return _URL.match(where) is not None


def check_url(url: str) -> None:
    """Refuse a URL that must not be written down: plans and outputs name their input.

    Raises:
        InputError: without the secret.
    """
    shown = without_secrets(url)
    if "::" in url:
        raise InputError(f"{shown}: expected a URL of one store, got a chain of them; unpack the files first")
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    if user and (":" in user or parts.scheme not in _CONTAINER_SCHEMES):
        raise InputError(
            f"{shown}: expected a URL without user and password, for outputs hold it; "
            "give credentials by the environment of the store's driver"
        )
    if not host and parts.scheme not in {"memory", "file"}:
        raise InputError(f"{shown}: expected a host or bucket after {parts.scheme}://")
    if "?" in url and (parts.scheme in {"http", "https"} or "=" in url.partition("?")[2]):
        raise InputError(
            f"{shown}: expected a URL without a query, for outputs hold it and it may be a credential; "
            "fetch such a file first, or name it by the scheme of its store"
        )


def without_secrets(text: str) -> str:
    """Leave users, passwords and queries out of the URLs in a text."""
    return _SECRETS.sub("", text)
