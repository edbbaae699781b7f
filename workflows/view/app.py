"""The web application: which page answers which address, and how a page is rendered."""

import re
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from concord.pipeline.errors import ConcordError
from concord.pipeline.report.html import REPORT_NAME
from concord.pipeline.report.templates import load_template, type_colours
from concord.pipeline.storage.output_paths import OutputPath
from concord.workflows.view import finding_pages, reading_page
from concord.workflows.view.comparing import Comparisons
from concord.workflows.view.guard import Guard
from concord.workflows.view.opened import OpenedCollection
from concord.workflows.view.page import NotFoundError, Page, Query, link

_TEMPLATES = "concord.workflows.view.templates"
_POLICY = "default-src 'none'; style-src 'nonce-{0}'; script-src 'nonce-{0}'; form-action 'self'; base-uri 'none'"
_REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'"
_PAGES: Mapping[str, Callable[[OpenedCollection, Query], Page]] = {
    "/": finding_pages.documents,
    "/document": reading_page.document,
    "/names": finding_pages.names,
    "/name": finding_pages.name,
    "/search": finding_pages.search,
    "/dead-letters": finding_pages.dead_letters,
}


def build_app(opened: OpenedCollection, *, token: str, port: int, against: OutputPath | None = None) -> Guard:
    """Return the application for one collection.

    Args:
        token: which the browser must know.
        port: that the server listens on.
        against: another collection, with which this one can be compared.
    """
    comparisons = Comparisons(opened, against)
    routes = [Route(path, _endpoint(opened, path, make)) for path, make in _PAGES.items()]
    routes.append(Route("/changes", _endpoint(opened, "/changes", lambda _, query: comparisons.changes(query))))
    routes.append(Route("/report", _report(opened)))
    return Guard(Starlette(routes=routes), token=token, port=port)


def _endpoint(opened: OpenedCollection, path: str, make: Callable[[OpenedCollection, Query], Page]) -> Any:
    def answer(request: Request) -> Response:
        query = Query(path, dict(request.query_params))
        status = 200
        opened.snapshot  # noqa: B018 - notices a new state of the collection
        try:
            page = make(opened, query)
        except NotFoundError as error:
            status, page = 404, Page("message.html.j2", {"heading": "Not found", "message": str(error)})
        except ConcordError as error:
            status, page = 503, Page("message.html.j2", {"heading": "Not now", "message": str(error)})
        return _render(opened, query, page, status=status)

    return answer


def _render(opened: OpenedCollection, query: Query, page: Page, *, status: int) -> Response:
    nonce = secrets.token_urlsafe(16)
    policy = _POLICY.format(nonce)
    manifest = opened.snapshot.collection.manifest
    html = load_template(_TEMPLATES, page.template).render(
        **page.values,
        query=query,
        link=link,
        nonce=nonce,
        policy=policy,
        colours=type_colours(page.values.get("labels", ())),
        collection=opened.output.name,
        where=str(opened.output),
        generation=manifest.generation,
        unfinished=opened.snapshot.unfinished,
        progress=opened.progress,
        fault=opened.fault,
    )
    # frame-ancestors is ignored in a page and only counts as a header.
    headers = {"Content-Security-Policy": f"{policy}; frame-ancestors 'none'"}
    if page.values.get("state") == "working":
        headers["Refresh"] = "2"
    if query.text("save"):
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", query.text("id") or query.path.strip("/") or "documents")[:80]
        headers["Content-Disposition"] = f'attachment; filename="{name}.html"'
    return HTMLResponse(html.encode("utf-8", "backslashreplace"), status_code=status, headers=headers)


def _report(opened: OpenedCollection) -> Callable[[Request], Response]:
    """Answer with the report that the run wrote."""

    def answer(request: Request) -> Response:
        del request
        try:
            content = (opened.output / "_run" / REPORT_NAME).read_bytes()
        except FileNotFoundError:
            values = {"heading": "No report", "message": "The run wrote no report; 'concord report' writes it."}
            return _render(opened, Query("/report", {}), Page("message.html.j2", values), status=404)
        return HTMLResponse(content, headers={"Content-Security-Policy": _REPORT_POLICY})

    return answer
