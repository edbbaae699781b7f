"""Who may read and correct: the browser that was given the token, under a name of the server."""

import secrets
from collections.abc import Sequence
from urllib.parse import quote, urlencode

from starlette.requests import Request
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

    def __init__(
        self, app: ASGIApp, *, token: str, port: int, corrects: bool = False, names: Sequence[str] = (), base: str = ""
    ) -> None:
        """Protect an application; POST is allowed only where it ``corrects``.

        Args:
            names: other hosts, with their ports, under which a proxy or a tunnel reaches the server.
            base: the path below which browsers see the pages, which a proxy may take away; empty for none.
        """
        self._app = app
        self._base = base
        self._methods = ("GET", "HEAD", "POST") if corrects else ("GET", "HEAD")
        self._token = token
        self._cookie = f"concord_view_{port}"
        self._hosts = {*(f"{host}:{port}" for host in HOSTS), *names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] != "http":
            return
        if f"{scope['path']}/".startswith(f"{self._base}/"):
            scope = {**scope, "path": scope["path"].removeprefix(self._base) or "/"}

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
                message["headers"] = [*headers, *message.get("headers", [])]
            await send(message)

        refusal = self._check(scope)
        await (self._app if refusal is None else refusal)(scope, receive, send_with_headers)

    def _check(self, scope: Scope) -> Response | None:
        request = Request(scope)
        host, origin = (request.headers.get(name) for name in ("host", "origin"))
        if host not in self._hosts:
            return PlainTextResponse(_REFUSED, status_code=403)
        if request.method not in self._methods:
            allowed = {"Allow": ", ".join(self._methods)}
            return PlainTextResponse("405: pages can only be read.\n", status_code=405, headers=allowed)
        is_trusted = self._is_token(request.cookies.get(self._cookie, ""))
        if request.method == "POST":
            is_trusted = is_trusted and (origin or "").partition("://")[2] in self._hosts
        elif self._is_token(request.query_params.get("token", "")):
            rest = urlencode([(name, value) for name, value in request.query_params.multi_items() if name != "token"])
            # Two slashes would name another host.
            path = f"{self._base}/" + quote(scope["path"].lstrip("/"))
            target = f"{path}?{rest}" if rest else path
            answer: Response = RedirectResponse(target, status_code=303)
            if request.headers.get("sec-fetch-site") == "cross-site":
                # From the page that 'concord view' opens: the browser sends the cookie only if this server sends it on.
                answer = Response(headers={"Refresh": f"0; url={target}"})
            answer.set_cookie(self._cookie, self._token, httponly=True, samesite="strict", path=f"{self._base}/")
            return answer
        return None if is_trusted else PlainTextResponse(_REFUSED, status_code=403)

    def _is_token(self, value: str) -> bool:
        return secrets.compare_digest(value.encode(), self._token.encode())
