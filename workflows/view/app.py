"""The web application: who may use it, which page or form answers which address, and how a page is rendered."""

import re
import secrets
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias
from urllib.parse import quote, urlencode

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from concord.models.errors import ConcordError
from concord.pipeline.exchange.export import format_csv
from concord.pipeline.exchange.review_queue import Quotas
from concord.pipeline.report.html import REPORT_NAME, load_template, type_colours
from concord.pipeline.storage.output_paths import read_bytes
from concord.workflows.view.correction_log import CorrectionLog, RefusedError
from concord.workflows.view.index.opened import OpenedCollection
from concord.workflows.view.page import NotFoundError, Page, Query, Table, UnavailableError, link
from concord.workflows.view.pages import correcting, finding, reading, reviewing
from concord.workflows.view.viewer import QUOTAS, CollectionTagger, ReviewQueue, Viewer

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


_POLICY = "default-src 'none'; style-src 'nonce-{0}'; script-src 'nonce-{0}'; form-action 'self'; base-uri 'none'"
_REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'; sandbox"
_ADDRESSES = re.compile(r'((?:href|action|name="back" value)=")(/[^"]*)')
MakePage: TypeAlias = Callable[[Viewer, sqlite3.Connection, Query], Page]
_PAGES: Mapping[str, MakePage] = {
    "/": finding.documents,
    "/names": finding.names,
    "/name": finding.name,
    "/search": finding.search,
    "/sql": finding.sql,
    "/dead-letters": finding.dead_letters,
    "/document": reading.document,
    "/corrections": correcting.corrections,
    "/differences": correcting.differences,
    "/why": reading.attention,
    "/review": reviewing.review,
}
_CORRECTING_PAGES = {"/everywhere": correcting.everywhere}
_FORMS: Mapping[str, Callable[[Viewer, correcting.Form], None]] = {
    "/correct": correcting.correct,
    "/correct-places": correcting.correct_places,
    "/settle": partial(correcting.correct_places, settles=True),
    "/flag": correcting.flag,
    "/undo": correcting.undo,
}
ADDRESSES = frozenset({*_PAGES, *_CORRECTING_PAGES, *_FORMS, "/report"})
"""None of them can be the path below which the others are seen: which of the two is meant could not be told."""


def build_app(
    opened: OpenedCollection,
    *,
    token: str,
    port: int,
    who: str | None = None,
    quotas: Quotas = QUOTAS,
    names: Sequence[str] = (),
    base: str = "",
) -> Guard:
    """Return the application for one collection, for a server on a port; see ``serve`` for the other options.

    Args:
        token: which the browser must know.
        names, base: see ``Guard``.
    """
    viewer = Viewer(
        opened=opened,
        log=CorrectionLog(opened, who),
        queue=ReviewQueue(opened, quotas),
        tagger=CollectionTagger(),
        key=correcting.form_key(token),
        base=base,
    )
    routes = [Route(path, _page_endpoint(viewer, path, page)) for path, page in _PAGES.items()]
    routes.append(Route("/report", _report_endpoint(viewer)))
    if who is not None:
        routes += [Route(path, _page_endpoint(viewer, path, page)) for path, page in _CORRECTING_PAGES.items()]
        routes += [Route(path, _form_endpoint(viewer, act), methods=["POST"]) for path, act in _FORMS.items()]
    app = Starlette(routes=routes)
    return Guard(app, token=token, port=port, corrects=who is not None, names=names, base=base)


def _page_endpoint(viewer: Viewer, path: str, make: MakePage) -> Any:
    def answer(request: Request) -> Response:
        query = Query(path, dict(request.query_params))
        viewer.opened.refresh()
        try:
            with viewer.opened.index.reading() as index:
                page = make(viewer, index, query)
                labels = viewer.types(index)
            page = page._replace(values={"labels": labels, **page.values})
            return _csv(query, page.table) if query.text("csv") and page.table else _render(viewer, query, page)
        except NotFoundError as error:
            status, heading, message = 404, "Not found", str(error)
        except ConcordError as error:
            status, heading, message = 503, "Not now", str(error)
        return _render(viewer, query, Page("message.html.j2", {"heading": heading, "message": message}), status=status)

    return answer


def _form_endpoint(viewer: Viewer, act: Callable[[Viewer, correcting.Form], None]) -> Any:
    """Answer a form: what it asks for is on disk before the browser is sent to the next page."""

    def answer(body: bytes) -> Response:
        back = "/"
        viewer.opened.refresh()
        try:
            form = correcting.Form.of(body)
            back = form.back
            correcting.check_key(form, viewer.key)
            act(viewer, form)
        except (RefusedError, NotFoundError, UnavailableError) as error:
            status, message = 409, str(error)
        except (ConcordError, OSError) as error:
            status, message = 503, str(error)
        else:
            return RedirectResponse(_below(viewer.base, back), status_code=303)
        page = Page("message.html.j2", {"heading": "Not corrected", "message": message, "back": back})
        return _render(viewer, Query("/message", {}), page, status=status)

    async def receive(request: Request) -> Response:
        body = bytearray()
        try:
            async for chunk in request.stream():
                body += chunk
                if len(body) > correcting.MAX_FORM_BYTES:
                    return PlainTextResponse("413: choose fewer places at once.\n", status_code=413)
        except ClientDisconnect:
            return PlainTextResponse("400: the form was cut off.\n", status_code=400)
        return await run_in_threadpool(answer, bytes(body))

    return receive


def _report_endpoint(viewer: Viewer) -> Callable[[Request], Response]:
    """Answer with the report that the run wrote."""

    def answer(_: Request) -> Response:
        try:
            content = read_bytes(viewer.opened.output / "_run" / REPORT_NAME)
        except (FileNotFoundError, ConcordError):
            values = {"heading": "No report", "message": "The run wrote no report; 'concord report' does."}
            return _render(viewer, Query("/report", {}), Page("message.html.j2", values), status=404)
        return HTMLResponse(content, headers={"Content-Security-Policy": _REPORT_POLICY})

    return answer


def _below(base: str, address: str) -> str:
    return address if f"{address}/".startswith(f"{base}/") else base + address


def _csv(query: Query, table: Table) -> Response:
    content = "".join(format_csv(table.columns, table.rows))
    headers = {"Content-Disposition": f'attachment; filename="{_file_name(query)}.csv"'}
    return Response(content.encode("utf-8", "backslashreplace"), media_type="text/csv", headers=headers)


def _file_name(query: Query) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", query.text("id") or query.path.strip("/") or "documents")[:80]


def _render(viewer: Viewer, query: Query, page: Page, *, status: int = 200) -> Response:
    nonce = secrets.token_urlsafe(16)
    opened = viewer.opened
    policy = _POLICY.format(nonce)
    if page.values.get("fetches"):
        policy += "; connect-src 'self'"
    html = load_template("concord.workflows.view", f"templates/{page.template}").render(
        **page.values,
        query=query,
        link=link,
        nonce=nonce,
        policy=policy,
        colours=type_colours(page.values.get("labels", ())),
        collection=opened.output.name,
        where=str(opened.output),
        generation=opened.collection.manifest.generation,
        # A saved page asks for nothing: its forms would have no server.
        who=None if query.text("save") else viewer.log.who,
        key=viewer.key,
        unfinished=opened.unfinished,
        progress=opened.progress,
        fault=opened.fault,
    )
    if viewer.base:
        # The only place that knows of it: text cannot contain these, because its quotation marks are escaped.
        html = _ADDRESSES.sub(lambda found: found[1] + _below(viewer.base, found[2]), html)
    # frame-ancestors is ignored in a page and only counts as a header.
    headers = {"Content-Security-Policy": f"{policy}; frame-ancestors 'none'"}
    if page.values.get("state") == "working":
        headers["Refresh"] = "2"
    if query.text("save"):
        headers["Content-Disposition"] = f'attachment; filename="{_file_name(query)}.html"'
    return HTMLResponse(html.encode("utf-8", "backslashreplace"), status_code=status, headers=headers)
