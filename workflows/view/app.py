"""The web application: which page or form answers which address, and how a page is rendered."""

import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from concord.models.errors import ConcordError
from concord.pipeline.exchange.review_queue import Quotas
from concord.pipeline.report.html import REPORT_NAME
from concord.pipeline.report.templates import load_template, type_colours
from concord.pipeline.storage.output_paths import OutputPath
from concord.workflows.view.correcting.attention import Why
from concord.workflows.view.correcting.collection_tagger import OwnTagger
from concord.workflows.view.correcting.correction_log import Correcting, RefusedError
from concord.workflows.view.correcting.review_queue import QUOTAS, Queue
from concord.workflows.view.correcting.ripple import Moves
from concord.workflows.view.guard import Guard
from concord.workflows.view.index.opened import OpenedCollection
from concord.workflows.view.page import NotFoundError, Page, Query, link
from concord.workflows.view.pages import correcting as correcting_pages
from concord.workflows.view.pages import finding as finding_pages
from concord.workflows.view.pages import reading as reading_page
from concord.workflows.view.pages.comparing import Comparisons
from concord.workflows.view.pages.forms import FORMS, MAX_FORM_BYTES, Form, check_key, form_key

_POLICY = "default-src 'none'; style-src 'nonce-{0}'; script-src 'nonce-{0}'; form-action 'self'; base-uri 'none'"
_REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'"
_PAGES: Mapping[str, Callable[[OpenedCollection, Query], Page]] = {
    "/": finding_pages.documents,
    "/names": finding_pages.names,
    "/name": finding_pages.name,
    "/search": finding_pages.search,
    "/dead-letters": finding_pages.dead_letters,
}


def build_app(
    opened: OpenedCollection,
    *,
    token: str,
    port: int,
    against: OutputPath | None = None,
    who: str | None = None,
    quotas: Quotas = QUOTAS,
) -> Guard:
    """Return the application for one collection.

    Args:
        token: which the browser must know.
        port: that the server listens on.
        against: another collection, with which this one can be compared.
        who: corrects the collection; without a name it can only be read.
        quotas: of the queue of sentences to review.
    """
    comparisons, correcting = Comparisons(opened, against), Correcting(opened, who)
    queue, tagger = Queue(opened, quotas), OwnTagger()
    moves, why = Moves(opened, tagger), Why(opened, tagger)
    pages: dict[str, Callable[[OpenedCollection, Query], Page]] = {
        **_PAGES,
        "/document": lambda opened, query: reading_page.document(opened, correcting, query, queue=queue),
        "/changes": lambda _, query: comparisons.changes(query),
        "/corrections": lambda opened, query: correcting_pages.corrections(opened, correcting, query),
        "/why": lambda _, query: why.page(query),
        "/review": lambda opened, query: queue.page(correcting, query),
    }
    if who is not None:
        pages |= {
            "/everywhere": lambda opened, query: correcting_pages.everywhere(opened, correcting, query),
            "/moves": lambda opened, query: correcting_pages.moves(opened, correcting, moves, query),
        }
    shown = _Shown(opened, who=who, key=form_key(token))
    routes = [Route(path, _endpoint(shown, path, make)) for path, make in pages.items()]
    routes.append(Route("/report", _report(shown)))
    if who is not None:
        routes += [Route(path, _post(shown, correcting, token, act), methods=["POST"]) for path, act in FORMS.items()]
    return Guard(Starlette(routes=routes), token=token, port=port, corrects=who is not None)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Shown:
    """What every page shows: the collection, who corrects it, and the key of its forms."""

    opened: OpenedCollection = field(kw_only=False)
    who: str | None
    key: str


def _endpoint(shown: _Shown, path: str, make: Callable[[OpenedCollection, Query], Page]) -> Any:
    def answer(request: Request) -> Response:
        query = Query(path, dict(request.query_params))
        status = 200
        shown.opened.snapshot  # noqa: B018 - notices a new state of the collection
        try:
            page = make(shown.opened, query)
        except NotFoundError as error:
            status, page = 404, Page("message.html.j2", {"heading": "Not found", "message": str(error)})
        except ConcordError as error:
            status, page = 503, Page("message.html.j2", {"heading": "Not now", "message": str(error)})
        return _render(shown, query, page, status=status)

    return answer


def _post(
    shown: _Shown, correcting: Correcting, token: str, act: Callable[[OpenedCollection, Correcting, Form], None]
) -> Any:
    """Answer a form: what it asks for is on disk before the browser is sent to the next page."""

    def answer(body: bytes) -> Response:
        back = "/"
        try:
            form = Form.of(body)
            back = form.back
            check_key(form, token)
            act(shown.opened, correcting, form)
        except RefusedError as error:
            status, heading, message = 409, "Not corrected", str(error)
        except (ConcordError, OSError) as error:
            status, heading, message = 503, "Not corrected", str(error)
        else:
            return RedirectResponse(back, status_code=303)
        page = Page("message.html.j2", {"heading": heading, "message": message, "back": back})
        return _render(shown, Query("/message", {}), page, status=status)

    async def receive(request: Request) -> Response:
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_FORM_BYTES:
                return PlainTextResponse("413: choose fewer places at once.\n", status_code=413)
        return await run_in_threadpool(answer, bytes(body))

    return receive


def _render(shown: _Shown, query: Query, page: Page, *, status: int) -> Response:
    nonce = secrets.token_urlsafe(16)
    opened = shown.opened
    policy = _POLICY.format(nonce)
    if page.values.get("fetches"):
        policy += "; connect-src 'self'"
    manifest = opened.snapshot.collection.manifest
    html = load_template("concord.workflows.view.templates", page.template).render(
        **page.values,
        query=query,
        link=link,
        nonce=nonce,
        policy=policy,
        colours=type_colours(page.values.get("labels", ())),
        collection=opened.output.name,
        where=str(opened.output),
        generation=manifest.generation,
        # A saved page asks for nothing: its forms would have no server.
        who=None if query.text("save") else shown.who,
        key=shown.key,
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


def _report(shown: _Shown) -> Callable[[Request], Response]:
    """Answer with the report that the run wrote."""

    def answer(request: Request) -> Response:
        del request
        try:
            content = (shown.opened.output / "_run" / REPORT_NAME).read_bytes()
        except FileNotFoundError:
            values = {"heading": "No report", "message": "The run wrote no report; 'concord report' writes it."}
            return _render(shown, Query("/report", {}), Page("message.html.j2", values), status=404)
        return HTMLResponse(content, headers={"Content-Security-Policy": _REPORT_POLICY})

    return answer
