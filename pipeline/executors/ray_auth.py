"""Ray's authentication mode, which must be set before Ray is imported: Ray reads it once, on import."""

import os
from pathlib import Path


def resolve_auth_mode(address: str | None) -> None:
    """Set ``RAY_AUTH_MODE`` unless the user has; to be called before anything imports Ray.

    Args:
        address: of the cluster to join; None if one is started here.
    """
    os.environ.setdefault("RAY_AUTH_MODE", auth_mode(address))


def auth_mode(address: str | None) -> str:
    """Return the authentication mode to use unless the user set one.

    Ray's own default differs between starting and joining a cluster. One started here only listens on this machine, and
    only during the run; a cluster gets the token if there is one.
    """
    token = (
        "RAY_AUTH_TOKEN" in os.environ
        or "RAY_AUTH_TOKEN_PATH" in os.environ
        or (Path.home() / ".ray" / "auth_token").exists()
    )
    return "token" if address and token else "disabled"
