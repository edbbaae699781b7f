"""URLs given in place of a path: recognized, checked, and stripped of secrets; nothing is opened here."""

import re
from urllib.parse import urlsplit

from concord.pipeline.errors import InputError

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_ONE_SLASH = re.compile(r"(s3|gs|az|abfss?|https?|file):/(?!/)", re.IGNORECASE)
_SECRETS = re.compile(r"(?<=//)[^/@\s]*@|\?[^\s'\")]*")
# In these schemes the part before an @ names a container.
_CONTAINER_SCHEMES = {"abfs", "abfss", "az", "adl"}


def is_url(where: str) -> bool:
    """Tell whether an input or output is a URL rather than a path."""
    return _URL.match(where) is not None


def check_path(where: str) -> None:
    """Check that a path can be one, and is not a URL with a slash too few, which would be a folder called ``s3:``.

    Raises:
        InputError: naming what is wrong.
    """
    if "\0" in where:
        raise InputError(f"{where!a}: expected a path, got a null character in it")
    if scheme := _ONE_SLASH.match(where):
        raise InputError(f"{where}: expected a path or a URL, which begins with {scheme[1]}://")


def check_url(url: str) -> None:
    """Check that a URL contains no secrets, because plans and outputs name their input.

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
            f"{shown}: expected a URL without user and password, because outputs contain it; "
            "pass credentials through the environment of the store's driver"
        )
    if not host and parts.scheme not in {"memory", "file"}:
        raise InputError(f"{shown}: expected a host or bucket after {parts.scheme}://")
    if "?" in url and (parts.scheme in {"http", "https"} or "=" in url.partition("?")[2]):
        raise InputError(
            f"{shown}: expected a URL without a query, because outputs contain it and it may be a credential; "
            "download the file first, or use the URL scheme of its store"
        )


def without_secrets(text: str) -> str:
    """Remove users, passwords and queries from the URLs in a text."""
    return _SECRETS.sub("", text)
