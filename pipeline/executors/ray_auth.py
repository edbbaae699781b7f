"""Ray's mode of authentication, settled before Ray is imported: it reads the mode once, when it is imported."""

import os
from pathlib import Path


def resolve_auth_mode(address: str | None) -> None:
    """Set ``RAY_AUTH_MODE`` where the user has not; to be called before anything imports Ray.

    Args:
        address: of the cluster to be joined; None where one is started here.
    """
    os.environ.setdefault("RAY_AUTH_MODE", auth_mode(address))


def auth_mode(address: str | None) -> str:
    """Give the mode of authentication to use where the user set none.

    Ray's own default differs between starting and joining a cluster. One started here listens on this machine for
    the run's length only; a cluster gets the token where there is one.
    """
    token = (
        "RAY_AUTH_TOKEN" in os.environ
        or "RAY_AUTH_TOKEN_PATH" in os.environ
        or (Path.home() / ".ray" / "auth_token").exists()
    )
    return "token" if address and token else "disabled"
