"""Collections to view, the application over them as a client of it sees it, and Chromium."""

import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from starlette.testclient import TestClient

from concord.pipeline.corrections.correction import Correction, Mark, Seen, append_to_log, log_path
from concord.pipeline.documents import DeadLetter
from concord.workflows.view.app import build_app
from concord.workflows.view.index.opened import OpenedCollection
from concord.workflows.view.server import listen
from concord_testing import finished_runs

TOKEN = "the-token-of-the-tests"
SCRIPT = "<script>document.body.dataset.ran='yes'</script>"
IMAGE = "<img/src=//example.org/x/onerror=document.body.dataset.ran='yes'>"
NEWS = {
    "yard": (
        "Baxter|B-ORG|B-PER|0.9|0.6 closes the|O|O|0.4 yard|O|B-LOC|0.5 ~.",
        "Alan|B-PER Baxter|I-PER runs Baxter|B-ORG|B-ORG|0.4 ~.",
        "Baxter|B-PER is in Goole|B-LOC ~.",
        "Nobody called Goole closed ~.",
    ),
    "fair": ("Goole|B-LOC|O|0.6 waits ~.", "People came to Goole|B-LOC ~."),
    "empty": (),
}
YARD = "Baxter closes the yard. Alan Baxter runs Baxter. Baxter is in Goole. Nobody called Goole closed."
"""The text of the document yard."""
METAS = {"yard": {"date": "2031-03-09", "section": "yards"}, "fair": {"date": "2032-04-01", "section": "yards"}}
DEAD_LETTER = DeadLetter(
    doc_id="cut",
    source_uri="/data/a.jsonl",
    position=812,
    stage="read",
    error="invalid_json",
    message="the line breaks off",
)


def write_hostile(output: Path) -> Path:
    """Write a run with markup wherever the input's text can appear, right-to-left text and combining characters."""
    dead_letter = DeadLetter(
        doc_id=IMAGE + "2", source_uri=SCRIPT, position=0, stage="read", error="invalid_json", message=f"got {SCRIPT}"
    )
    sentences = (
        f"{SCRIPT}|B-PER|B-LOC|0.9 met {IMAGE}|B-{IMAGE}|O|0.8",
        f"{SCRIPT}|B-LOC left",
        "\u05d9\u05e8\u05d5\u05e9\u05dc\u05d9\u05dd|B-LOC \u05d4\u05d9\u05d0 \u05e2\u05d9\u05e8",
        "\u202eevil|B-PER a\u0301\u0323\u0308|B-PER Zu\u0308rich|B-LOC",
    )
    documents = {IMAGE: sentences, '"><marquee>?a=1&b=2#c/../d': (f"{SCRIPT} alone",)}
    return finished_runs.write_run(output, documents, dead_letters=[dead_letter], keep_text=True)


def add_differences(output: Path) -> None:
    """Correct NEWS so that ada and bob differ in two sentences: in a type, and in what a name is."""
    lines = []
    for who, old, new in (
        ("ada", ("Baxter", 0, "ORG"), ("Baxter", 0, "ORG")),
        ("bob", ("Baxter", 0, "ORG"), ("Baxter", 0, "PER")),
        ("ada", ("Alan Baxter", 24, "PER"), ("Alan", 24, "PER")),
        ("ada", None, ("Baxter", 29, "ORG")),
        ("bob", ("Alan", 24, "PER"), ("Alan Baxter", 24, "PER")),
    ):
        before, after = (
            None if one is None else Mark(start=one[1], end=one[1] + len(one[0]), type=one[2], text=one[0])
            for one in (old, new)
        )
        seen = Seen(doc_id="yard", tagger="tagger-x", generation=0)
        lines.append(Correction.of(before, after, text=YARD, seen=seen, who=who))
    append_to_log(log_path(output), lines)


def open_client(output: Path, cache: Path, *, who: str | None = None, **options: Any) -> TestClient:
    """Return a client that knows the token, after the collection has been indexed; with a name one that corrects."""
    opened = OpenedCollection(output, cache=cache)
    opened.wait()
    app = build_app(opened, token=TOKEN, port=7391, who=who, **options)
    client = TestClient(app, base_url="http://127.0.0.1:7391")
    assert client.get(f"{options.get('base', '')}/?token={TOKEN}").status_code == 200
    return client


def read(client: TestClient, path: str, *, status: int = 200) -> str:
    """Return a page without its stylesheet and script, and with its tags."""
    answer = client.get(path)
    assert answer.status_code == status
    return re.sub(r"<(style|script)\b.*?</\1>", "", answer.text, flags=re.DOTALL)


def words(page: str) -> str:
    """Return the visible text of a page."""
    return " ".join(re.sub(r"<[^>]+>", "", page.replace("&nbsp;", " ")).split())


def links(page: str) -> list[str]:
    """Return where the links and forms of a page lead on this server."""
    return re.findall(r'(?:href|action)="(/[^"]*)"', page)


@contextmanager
def served(output: Path, cache: Path, *, who: str | None = None, **options: Any) -> Iterator[str]:
    """Serve a collection as ``concord view`` does, and yield the address with the token."""
    opened = OpenedCollection(output, cache=cache)
    with listen(0) as listener:
        port = listener.getsockname()[1]
        app = build_app(opened, token=TOKEN, port=port, who=who, **options)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        opened.wait()
        try:
            yield f"http://127.0.0.1:{port}/?token={TOKEN}"
        finally:
            server.should_exit = True
            thread.join(timeout=30)


def chromium() -> str | None:
    """Return the path of Chromium or Chrome; None if there is none."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
    return next((path for name in names if (path := shutil.which(name))), None)
