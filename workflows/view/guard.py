"""Who may read and correct: the browser that was given the token, on this machine, under the server's own name."""

import secrets
from collections.abc import Mapping
from http.cookies import SimpleCookie
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HOSTS = ("127.0.0.1", "localhost")
_REFUSED = "403: open the address that 'concord view' printed; it contains the token for this server.\n"
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    # A form of the same origin must name its origin, which no-referrer would hide.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "private, no-cache",
}


class Guard:
    """Refuses every request without the token or under another host name, and changes that no page of its own asks for.

    The host name is compared so that no other web site can reach the server by a name of its own that leads to this
    machine. The token in the URL of the first request becomes a cookie, which scripts and other sites cannot use. A
    POST must also name this server as its origin: the cookie goes to every port of this machine.
    """

    def __init__(self, app: ASGIApp, *, token: str, port: int, corrects: bool = False) -> None:
        """Take what to protect, the token, the port that the server listens on, and whether POST is allowed."""
        self._app = app
        self._methods = ("GET", "HEAD", "POST") if corrects else ("GET", "HEAD")
        self._token = token
        self._cookie = f"concord_view_{port}"
        self._hosts = {f"{host}:{port}" for host in HOSTS}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
                message["headers"] = [*own, *message.get("headers", [])]
            await send(message)

        refusal = self._check(scope)
        await (self._app if refusal is None else refusal)(scope, receive, send_with_headers)

    def _check(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if headers.get("host") not in self._hosts:
            return PlainTextResponse(_REFUSED, status_code=403)
        if scope["method"] not in self._methods:
            allowed = {"Allow": ", ".join(self._methods)}
            return PlainTextResponse("405: pages can only be read.\n", status_code=405, headers=allowed)
        if scope["method"] == "POST":
            is_own = headers.get("origin") == f"http://{headers['host']}"
            is_known = self._is_token(_cookies(headers).get(self._cookie, ""))
            return None if is_own and is_known else PlainTextResponse(_REFUSED, status_code=403)
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = dict(query).get("token")
        if given is not None and self._is_token(given):
            rest = urlencode([(name, value) for name, value in query if name != "token"])
            # Two slashes would name another host.
            path = "/" + quote(scope["path"].lstrip("/"))
            answer = RedirectResponse(f"{path}?{rest}" if rest else path, status_code=303)
            answer.set_cookie(self._cookie, self._token, httponly=True, samesite="strict", path="/")
            return answer
        if not self._is_token(_cookies(headers).get(self._cookie, "")):
            return PlainTextResponse(_REFUSED, status_code=403)
        return None

    def _is_token(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(), self._token.encode())


def _cookies(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: morsel.value for name, morsel in SimpleCookie(headers.get("cookie", "")).items()}
