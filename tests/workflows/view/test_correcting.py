"""``concord view --as NAME``: what each form does, who may send it, and what two windows see of each other."""

import re
import socket
import time
import urllib.parse
import urllib.request
from collections.abc import Sequence
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from concord_testing import fakes, finished_runs, runs, viewing
from concord_testing.exports import TEXTS, annotate_texts, write_texts
from starlette.testclient import TestClient

from concord.models.bundles import checkpoint, manifest
from concord.models.data.outputs import AttentionMap
from concord.models.data.sentence import Sentence
from concord.models.errors import ConfigError
from concord.pipeline.corrections.correction import append_to_log, current_corrections, log_path, read_log
from concord.pipeline.output.collection import open_collection
from concord.workflows.corrections import list_statuses
from concord.workflows.view import viewer
from concord.workflows.view.correction_log import Change, CorrectionLog
from concord.workflows.view.index.opened import OpenedCollection
from concord.workflows.view.index.queries import get_document
from concord.workflows.view.page import UnavailableError
from concord.workflows.view.pages import correcting, reviewing
from concord.workflows.view.server import serve

pytestmark = pytest.mark.slow

ORIGIN = {"origin": "http://127.0.0.1:7391"}
ENTITY = re.compile(r'data-at="(\d+)-(\d+)" data-label="([^"]*)"')


class Window:
    """A window: the page that it shows, and the forms that it sends from there."""

    def __init__(self, client: TestClient, path: str) -> None:
        self.client = client
        self.open(path)

    def open(self, path: str) -> None:
        """Show a page."""
        answer = self.client.get(path)
        assert answer.status_code == 200, path
        self.page = re.sub(r"<(style|script)\b.*?</\1>", "", answer.text, flags=re.DOTALL)

    @property
    def words(self) -> str:
        """The visible text."""
        return " ".join(unescape(re.sub(r"<[^>]+>", "", self.page.replace("&nbsp;", " "))).split())

    @property
    def entities(self) -> list[tuple[int, int, str]]:
        """The entities of the text, and the names that are not labelled."""
        matches = ENTITY.findall(self.page)
        return list(dict.fromkeys((int(start), int(end), unescape(label)) for start, end, label in matches))

    @property
    def ticked(self) -> list[str]:
        """The changes that are ticked, or that a button makes."""
        return [unescape(value) for value in re.findall(r'name="change" value="([^"]*)"', self.page)]

    def hidden(self, name: str) -> str:
        """Return a hidden field of the first form that has it."""
        match = re.search(f'name="{name}" value="([^"]*)"', self.page)
        assert match is not None, name
        return unescape(match[1])

    def send(self, path: str, *, status: int = 303, **fields: Any) -> str:
        """Send a form of the page with some fields, and return the text of the answer."""
        hidden = {
            name: self.hidden(name)
            for name in ("key", "generation", "seen", "back", "id", "step")
            if f'"{name}"' in self.page
        }
        answer = self.client.post(path, data={**hidden, **fields}, headers=ORIGIN, follow_redirects=False)
        assert answer.status_code == status, answer.text
        return unescape(re.sub(r"<(style|script)\b.*?</\1>", "", answer.text, flags=re.DOTALL))

    def correct(self, start: int, end: int, label: str, *, status: int = 303) -> str:
        """Correct some words; without a label they are no entity."""
        chosen = {"label": label} if label else {"drop": "1"}
        return self.send("/correct", start=start, end=end, status=status, **chosen)


@pytest.fixture
def client(output: Path, tmp_path: Path) -> TestClient:
    """Return a client that corrects it."""
    return viewing.open_client(output, tmp_path / "cache", who="ada")


def actions(output: Path) -> list[str]:
    return [line.action for line in read_log(log_path(output))]


def test_a_reader_accepts_relabels_drops_and_adds(client: TestClient, output: Path) -> None:
    window = Window(client, "/document?id=yard")
    before = window.entities
    assert before[:3] == [(0, 6, "ORG"), (24, 35, "PER"), (41, 47, "ORG")]
    # A request that comes twice writes one line.
    for _ in range(2):
        window.correct(0, 6, "ORG")
    window.open("/document?id=yard")
    window.correct(24, 35, "ORG")
    window.open("/document?id=yard")
    window.correct(41, 47, "")
    window.open("/document?id=yard")
    window.correct(18, 22, "LOC")
    assert actions(output) == ["accept", "relabel", "drop", "add"]
    window.open("/document?id=yard")
    assert window.entities[:3] == [(0, 6, "ORG"), (18, 22, "LOC"), (24, 35, "ORG")]
    assert (41, 47, "") in window.entities
    assert "Alan Baxter: PER to ORG ada Undo" in window.words
    assert {status.state for status in list_statuses(output)} == {"waiting"}
    assert "4 corrections" in Window(client, "/corrections").words


def test_a_correction_is_undone_and_redone(client: TestClient, output: Path) -> None:
    window = Window(client, "/document?id=yard")
    before = window.entities
    window.correct(0, 6, "PER")
    window.open("/document?id=yard")
    window.send("/undo")
    window.open("/document?id=yard")
    assert window.entities == before
    window.send("/undo", status=409)
    [line] = [line for line in read_log(log_path(output)) if line.action != "undo"]
    window.send("/undo", line=line.id)
    window.send("/undo", line=line.id, redo="1")
    window.send("/undo", line=line.id, redo="1")
    assert actions(output) == ["relabel", "undo", "undo"]
    window.open("/document?id=yard")
    assert window.entities[0] == (0, 6, "PER")
    window.send("/undo", line=line.id)
    assert not current_corrections(read_log(log_path(output)))
    assert "undone" in Window(client, "/corrections?id=yard").words
    window.send("/undo", line="nothing", status=409)


def test_a_redo_undoes_every_undo_that_counts(client: TestClient, output: Path) -> None:
    window = Window(client, "/document?id=yard")
    window.correct(0, 6, "PER")
    path = log_path(output)
    [line] = read_log(path)
    append_to_log(path, [line.undone(who="bob"), line.undone(who="cy")])
    for _ in range(2):
        window.send("/undo", line=line.id, redo="1")
        assert actions(output) == ["relabel"] + ["undo"] * 4
        assert current_corrections(read_log(path)) == {"yard": (line,)}


def test_enter_in_another_type_presses_no_type(client: TestClient, output: Path) -> None:
    window = Window(client, "/document?id=yard&at=0-6")
    form = window.page[window.page.index('<form id="correcting"') :]
    pressed = re.search(r"<button\b[^>]*>", form)
    assert pressed is not None
    assert "name=" not in pressed[0]
    window.send("/correct", start=0, end=6, other="SHIP")
    assert [line.result.type for line in read_log(log_path(output))] == ["SHIP"]


def test_undoing_the_last_step_twice_undoes_one(client: TestClient, output: Path) -> None:
    window = Window(client, "/document?id=yard")
    for start, end in ((0, 6), (24, 35)):
        window.correct(start, end, "LOC")
        window.open("/document?id=yard")
    second = Window(client, "/document?id=yard")
    for page in (window, window, second):
        page.send("/undo")
    assert actions(output) == ["relabel", "relabel", "undo"]
    window.open("/document?id=yard")
    window.send("/undo")
    assert not current_corrections(read_log(log_path(output)))


def test_buttons_make_an_entity_longer_and_shorter(client: TestClient, output: Path) -> None:
    start, end = 24, 35
    for bounds, text in (
        ("start-", "Baxter"),
        ("start+", "Alan Baxter"),
        ("end+", "Alan Baxter runs"),
        ("end-", "Alan Baxter"),
    ):
        window = Window(client, f"/document?id=yard&at={start}-{end}")
        assert f'name="bounds" value="{bounds}"' in window.page
        window.send("/correct", start=start, end=end, bounds=bounds)
        mark = read_log(log_path(output))[-1].result
        assert mark.text == text
        start, end = mark.start, mark.end
    window.send("/correct", start=18, end=22, bounds="end+", status=409)


def test_two_windows_correct_other_words_and_are_told_of_the_same_ones(output: Path, tmp_path: Path) -> None:
    first = Window(viewing.open_client(output, tmp_path / "a", who="ada"), "/document?id=yard")
    second = Window(viewing.open_client(output, tmp_path / "b", who="bob"), "/document?id=yard")
    first.correct(0, 6, "PER")
    second.correct(24, 35, "LOC")
    refused = second.correct(0, 6, "LOC", status=409)
    assert "ada has changed 'Baxter' since this page was loaded (Baxter: ORG to PER); load it again" in refused
    assert 'href="/document?id=yard"' in refused
    second.open("/document?id=yard")
    assert second.entities[:2] == [(0, 6, "PER"), (24, 35, "LOC")]
    second.correct(0, 6, "LOC")
    first.open("/document?id=yard")
    assert first.entities[0] == (0, 6, "LOC")
    assert "does not count: bob later: Baxter: PER to LOC" in Window(first.client, "/corrections").words
    # What the other window undid is a change as well.
    second.open("/document?id=yard")
    second.send("/undo")
    assert "bob has changed 'Baxter' since this page was loaded (undone)" in first.correct(0, 6, "ORG", status=409)


def test_words_are_selected_as_the_browser_shows_them(tmp_path: Path) -> None:
    text = "E\u0301mile\r\nLee \U0001f600 met Bob\r\nRoe.\r\nX"
    source = runs.write_collection(tmp_path / "in.jsonl", documents=0, extra=(text,))
    runs.run_job(runs.job(source, tmp_path / "out"))
    client = viewing.open_client(tmp_path / "out", tmp_path / "cache", who="ada")
    window = Window(client, "/document?id=d0")
    shown = text.replace("\r\n", "\n")
    for words, raw in (("Bob\nRo", "Bob\r\nRoe."), ("mile", "E\u0301mile"), ("\U0001f600", "\U0001f600")):
        start = shown.index(words)
        window.send("/correct", **{"sentence": 0, "from": start, "to": start + len(words)}, label="PER")
        assert read_log(log_path(tmp_path / "out"))[-1].result.text == raw
        window.open("/document?id=d0")
    window.send("/correct", **{"sentence": 0, "from": 8, "to": 8}, label="PER", status=409)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"start": 1, "end": 6, "label": "PER"}, "does not begin and end with a word"),
        ({"start": 14, "end": 28, "label": "PER"}, "crosses the boundary of a sentence"),
        ({"start": 6, "end": 6, "label": "PER"}, "expected words"),
        ({"start": 0, "end": 99999, "label": "PER"}, "expected words"),
        ({"start": "x", "end": 6, "label": "PER"}, "expected a number as 'start'"),
        ({"start": 0, "end": 6, "label": "A B"}, "expected an entity type"),
        ({"start": 0, "end": 6}, "expected an entity type"),
        ({"start": 0, "end": 6, "label": "PER", "id": "nothing"}, "there is no document 'nothing'"),
        ({"start": 0, "end": 6, "label": "PER", "seen": 7}, "has changed since this page was loaded"),
        ({"start": 0, "end": 6, "label": "PER", "generation": 7}, "has changed since this page was loaded"),
        ({"start": 0, "end": 6, "label": "PER", "key": "guess"}, "does not come from this server"),
    ],
)
def test_what_no_label_can_hold_is_refused(
    client: TestClient, output: Path, fields: dict[str, Any], reason: str
) -> None:
    window = Window(client, "/document?id=yard")
    assert reason in window.send("/correct", status=409, **fields)
    assert actions(output) == []


def test_only_pages_of_this_server_may_correct(client: TestClient, output: Path) -> None:
    fields = {"id": "yard", "start": 0, "end": 6, "label": "PER", "seen": 0, "generation": 0}
    fields["key"] = Window(client, "/document?id=yard").hidden("key")
    for origin in ({}, {"origin": "null"}, {"origin": "http://evil.example"}, {"origin": "http://127.0.0.1:7392"}):
        assert client.post("/correct", data=fields, headers=origin).status_code == 403
    stranger = TestClient(client.app, base_url="http://127.0.0.1:7391")
    assert stranger.post("/correct", data=fields, headers=ORIGIN).status_code == 403
    assert client.post("/correct", content=b"x" * 5_000_000, headers=ORIGIN).status_code == 413
    assert client.post("/correct", content=b"\xff=\xff", headers=ORIGIN).status_code == 409
    assert client.get("/correct").status_code == 405
    assert client.put("/correct", headers=ORIGIN).status_code == 405
    assert actions(output) == []
    for back in ("//evil.example", "http://evil.example", "/\\evil.example", "/a\nb"):
        answer = client.post("/correct", data={**fields, "back": back}, headers=ORIGIN, follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, "/")


def test_without_a_name_pages_only_show_corrections(output: Path, tmp_path: Path) -> None:
    correcting = Window(viewing.open_client(output, tmp_path / "a", who="ada"), "/document?id=yard")
    correcting.correct(0, 6, "PER")
    client = viewing.open_client(output, tmp_path / "b")
    assert client.post("/correct", headers=ORIGIN).status_code == 405
    reading = Window(client, "/document?id=yard")
    assert "Baxter PER corrected" in reading.words
    assert "<button>Undo" not in Window(client, "/corrections").page
    assert 'method="post"' not in reading.page
    assert 'method="post"' not in Window(correcting.client, "/document?id=yard&save=1").page
    with pytest.raises(ConfigError, match="--as: expected a name"):
        serve(output, port=0, browser=False, who="\n")


def test_equal_words_everywhere_are_listed_before_they_are_corrected(client: TestClient, output: Path) -> None:
    window = Window(client, "/everywhere?text=Goole&label=LOC&id=yard")
    assert "2 places are not that yet" in window.words
    window.open("/everywhere?text=Goole&label=LOC")
    assert "4 places are not that yet" in window.words
    ticked = window.ticked
    window.send("/correct-places", change=ticked[:3])
    assert sorted(actions(output)) == ["accept", "accept", "add"]
    window.open("/everywhere?text=Goole&label=LOC")
    assert "1 place is not that yet" in window.words
    # What was said in one step is undone in one.
    Window(client, "/document?id=yard").send("/undo")
    assert actions(output)[3:] == ["undo"] * 3
    window.open("/everywhere?text=Goole")
    window.send("/correct-places", change=window.ticked)
    window.open("/document?id=fair")
    assert window.entities == [(0, 5, ""), (28, 33, "")]
    assert "No other place is left" in Window(client, "/everywhere?text=Goole").words
    assert "Enter the words" in Window(client, "/everywhere").words
    window.send("/correct-places", change="x", status=409)


def test_so_many_places_are_listed_at_a_time(client: TestClient, output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(correcting, "LISTED", 3)
    window = Window(client, "/everywhere?text=Goole&label=LOC")
    window.send("/correct-places", change=window.ticked)
    assert len(actions(output)) == 3
    assert "1 place is not that yet" in Window(client, "/everywhere?text=Goole&label=LOC").words


def test_tables_with_corrections_say_so_and_show_the_tagger_again_when_they_are_undone(tmp_path: Path) -> None:
    source = runs.write_collection(tmp_path / "in.jsonl", documents=0, extra=("Anna met Bob Roe.",))
    runs.run_job(runs.job(source, tmp_path / "out"))
    window = Window(viewing.open_client(tmp_path / "out", tmp_path / "cache", who="ada"), "/document?id=d0")
    before = window.entities
    assert before
    window.correct(*before[0][:2], "" if len(before) > 1 else "ORG")
    window.open("/document?id=d0")
    window.correct(5, 8, "ORG")
    runs.run_job(runs.job(source, tmp_path / "out"))
    client = viewing.open_client(tmp_path / "out", tmp_path / "cache", who="ada")
    window = Window(client, "/document?id=d0")
    assert [entity for entity in window.entities if entity[2]] != before
    assert "met ORG corrected" in window.words
    assert 'title="ORG, corrected by a person"' in window.page
    assert "1 ORG corrected" in Window(client, "/document?id=d0&name=met").words
    assert "Bob Roe. ORG corrected" in Window(client, "/name?name=met").words.replace(" .", ".")
    for _ in range(2):
        window.send("/undo")
        window.open("/document?id=d0")
    assert [entity for entity in window.entities if entity[2]] == before


class CountingTagger(fakes.AttentiveTagger):
    """Counts how often it is asked."""

    asked = 0

    def attention_maps(self, document: Sequence[Sentence]) -> list[dict[str, AttentionMap]]:
        self.asked += 1
        return super().attention_maps(document)


def test_another_generation_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = runs.write_collection(tmp_path / "in.jsonl", documents=0, extra=("Anna met Bob here.",))
    runs.run_job(runs.job(source, tmp_path / "out"))
    tagger = CountingTagger()
    monkeypatch.setattr(viewer, "_load", lambda plan: tagger)
    client = viewing.open_client(tmp_path / "out", tmp_path / "cache", who="ada")
    window = Window(client, "/document?id=d0")
    window.correct(*window.entities[0])
    for _ in range(2):
        window.open("/why?id=d0&name=Anna")
    assert tagger.asked == 1
    runs.run_job(runs.job(source, tmp_path / "out"))
    monkeypatch.setattr("concord.workflows.view.index.opened._LOOK_SECONDS", -1.0)
    for _ in range(200):
        if client.get("/why?id=d0&name=Anna").status_code == 200:
            break
    window.open("/why?id=d0&name=Anna")
    assert tagger.asked == 2


def test_the_tagger_is_loaded_again_for_another_plan_and_after_a_failure(
    output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = open_collection(output).plan
    loaded: list[Any] = []
    answers: list[Any] = [UnavailableError("gone"), fakes.FakeTagger(), fakes.FakeTagger()]

    def load(plan: Any) -> Any:
        loaded.append(plan)
        answer = answers[len(loaded) - 1]
        if isinstance(answer, UnavailableError):
            raise answer
        return answer

    monkeypatch.setattr(viewer, "_load", load)
    tagger = viewer.CollectionTagger()
    with pytest.raises(UnavailableError, match="gone"):
        tagger.load(plan)
    assert tagger.load(plan) is tagger.load(plan) is answers[1]
    other = plan.model_copy(update={"tagger": plan.tagger.model_copy(update={"digest": "f" * 64})})
    assert tagger.load(other) is answers[2]


def test_a_tagger_that_ran_on_a_gpu_is_loaded_on_what_there_is(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = open_collection(output).plan
    run = plan.config.tagger.model_copy(update={"device": "cuda"})
    plan = plan.model_copy(update={"config": plan.config.model_copy(update={"tagger": run})})
    monkeypatch.setattr(manifest, "tagger_digest", lambda folder: plan.tagger.digest)
    devices: list[str] = []

    def load(folder: Path, *, device: str) -> fakes.FakeTagger:
        devices.append(device)
        return fakes.FakeTagger()

    monkeypatch.setattr(checkpoint, "load_tagger", load)
    viewer.CollectionTagger().load(plan)
    assert devices == ["auto"]


def test_the_weights_behind_a_name_are_shown(output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = viewing.open_client(output, tmp_path / "cache")
    assert "/why?id=yard&amp;name=Alan+Baxter" in Window(client, "/document?id=yard&name=Alan+Baxter").page
    assert "tagger of this collection cannot be loaded" in Window(client, "/why?id=yard&name=Baxter").words
    monkeypatch.setattr(viewer, "_load", lambda plan: fakes.AttentiveTagger())
    words = Window(client, "/why?id=yard&name=Alan+Baxter").words
    assert words.count("decided by stage one") == 2
    assert "Baxter decided by stage one 0.70 Baxter closes the yard . B-PER \u2192 B-ORG 0.30 Nobody called" in words
    for name in ("x", ""):
        assert "No entity of this document is called so" in Window(client, f"/why?id=yard&name={name}").words
    assert client.get("/why?id=nothing").status_code == 404
    monkeypatch.setattr("concord.workflows.view.viewer.MAX_WORDS", 3)
    assert "more than 3 words" in Window(client, "/why?id=yard&name=Baxter").words


def test_a_tagger_without_a_memory_has_no_weights(reader: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = fakes.FakeTagger()
    monkeypatch.setattr(plain, "attention_maps", lambda document: [{} for _ in document], raising=False)
    monkeypatch.setattr(viewer, "_load", lambda plan: plain)
    assert "has no document memory" in Window(reader, "/why?id=yard&name=Baxter").words


def open_queue(client: TestClient) -> Window:
    """Open the queue when it is selected."""
    for _ in range(200):
        window = Window(client, "/review")
        if "being selected" not in window.words:
            break
    return window


def test_the_queue_leads_from_card_to_card(client: TestClient, output: Path) -> None:
    window = open_queue(client)
    assert "0 of 6 sentences done, 0 steps of yours today" in window.words
    assert "Is Baxter ORG? 1 of 6: the least certain is ORG 'Baxter' with probability 0.60." in window.words
    # The sentence, the one after it, and in the list every sentence.
    assert "Baxter ORG was PER 0.60 closes the yard was LOC. Alan Baxter PER" in window.words
    assert "4 Nobody called Goole closed." in window.words
    window.send("/correct-places", change=window.ticked)
    assert actions(output) == ["accept"] * len(window.ticked)
    assert window.hidden("back") == "/review?rank=2"
    window.open(window.hidden("back"))
    assert "1 of 6 sentences done, 1 step of yours today" in window.words
    assert "2 of 6: the least certain is" in window.words
    assert "1 done Baxter closes the yard." in window.words
    window.send("/undo")
    window.open("/review")
    assert "0 of 6 sentences done, 0 steps of yours today" in window.words
    assert "Is Baxter ORG?" in window.words
    assert viewer.QUOTAS.size == 200


def card_of(client: TestClient, sentence: str) -> Window:
    """Show the card of a sentence of the queue."""
    queue = open_queue(client)
    for rank in range(1, 7):
        window = Window(client, f"/review?rank={rank}")
        if f'sentence={sentence}"' in window.page.replace("#", '"').replace("&amp;", "&"):
            return window
    raise AssertionError(f"{sentence} is not in the queue: {queue.words}")


def test_accept_all_accepts_the_sentence_whatever_is_chosen(client: TestClient) -> None:
    window = card_of(client, "1")
    ticked = window.ticked
    assert [change.split()[:3] for change in ticked] == [["24", "35", "PER"], ["41", "47", "ORG"]]
    start, end, _ = window.entities[0]
    window.open(f"/review?rank={window.hidden('back').rpartition('=')[2]}&at={start}-{end}")
    assert f'data-chosen="{start}-{end}"' in window.page
    assert card_of(client, "1").ticked == ticked


def test_every_word_is_corrected_also_in_an_over_long_sentence(tmp_path: Path) -> None:
    annotate_texts(write_texts(tmp_path / "texts.jsonl", TEXTS), tmp_path / "out")
    opened = OpenedCollection(tmp_path / "out", cache=tmp_path / "cache")
    opened.wait()
    log = CorrectionLog(opened, "ada")
    pieces = 0
    with opened.index.reading() as index:
        for (doc_id,) in index.execute("SELECT doc_id FROM documents WHERE words").fetchall():
            row = get_document(index, doc_id)
            unlabelled = log.read(index, row, log.state())
            pieces += row.sentences - len(unlabelled.sentences)
            changes = [Change(doc_id, *words[0], "PER") for words in unlabelled.sentences]
            log.correct(changes, seen=len(log.state().lines), generation=0)
            document = log.read(index, row, log.state())
            assert len(document.results) == len(document.sentences)
            for words in document.sentences:
                assert document.is_corrected(document.place(*words[0]), "PER")
                assert all(document.words_from(start) == words for start, _ in words)
    # The pieces of an over-long sentence are one.
    assert pieces > 0


def test_a_correction_far_down_a_document_is_led_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("concord.workflows.view.index.opened.PAGE_WORDS", 12)
    sentences = ("Nothing happened here at all ~.",) * 3 + ("Goole|B-LOC slept ~.",)
    output = finished_runs.write_run(tmp_path / "out", {"long": sentences}, keep_text=True)
    client = viewing.open_client(output, tmp_path / "cache", who="ada")
    window = Window(client, "/document?id=long&page=1")
    window.correct(*window.entities[0])
    window.open("/corrections")
    [address] = re.findall(r'data-item href="([^"]*)"', window.page)
    window.open(unescape(address))
    assert window.entities
    assert "Goole LOC corrected" in window.words


def test_a_flag_keeps_the_labels_and_says_why(client: TestClient, output: Path) -> None:
    window = card_of(client, "1")
    before = Window(client, "/document?id=yard").entities
    for _ in range(2):
        window.send("/flag", start=24, end=48, comment=" a person or a firm? ")
    [line] = read_log(log_path(output))
    assert (line.action, line.comment, line.result.text) == ("flag", "a person or a firm?", "Alan Baxter runs Baxter.")
    assert current_corrections([line]) == {}
    assert [status.state for status in list_statuses(output)] == ["flagged"]
    assert "flagged Alan Baxter runs Baxter." in card_of(client, "1").words
    assert "1 of 6 sentences done" in Window(client, "/review").words
    assert "Alan Baxter runs Baxter.: flagged, a person or a firm?" in Window(client, "/corrections").words
    assert Window(client, "/document?id=yard").entities == before
    # Whoever looked before the flag still corrects the words.
    window.correct(24, 35, "ORG")
    for _ in range(2):
        window = Window(client, "/review")
        window.send("/undo")
    assert actions(output) == ["flag", "relabel", "undo", "undo"]
    assert "0 of 6 sentences done" in Window(client, "/review").words
    assert "expected words" in window.send("/flag", id="yard", start=9, end=9, status=409)


def test_a_new_type_has_a_key_and_a_colour_on_every_page(client: TestClient, output: Path) -> None:
    window = Window(client, "/document?id=yard")
    keys = re.findall(r'class="type t(\d+)" name="label" value="(\w+)" data-number="(\d+)"', window.page)
    assert [(label, number) for _, label, number in keys] == [("LOC", "1"), ("ORG", "2"), ("PER", "3")]
    window.send("/correct", start=18, end=22, other=" Berth ")
    assert [line.result.type for line in read_log(log_path(output))] == ["Berth"]
    open_queue(client)
    for path in ("/document?id=yard", "/review?rank=2"):
        window.open(path)
        found = re.findall(r'class="type t(\d+)" name="label" value="(\w+)" data-number="(\d+)"', window.page)
        assert found[:3] == keys
        assert found[3][1:] == ("Berth", "4")
        assert found[3][0] not in [colour for colour, _, _ in keys]
    assert f'class="e t{found[3][0]} ' in Window(client, "/document?id=yard").page
    assert "<option>Berth</option>" in Window(client, "/everywhere?text=yard&label=LOC").page


def test_a_sentence_without_entities_is_said_to_be_right(client: TestClient, output: Path) -> None:
    window = card_of(client, "3")
    assert "Nothing to correct, go on" in window.words
    [change] = window.ticked
    for _ in range(2):
        window.send("/correct-places", change=change)
    [line] = read_log(log_path(output))
    assert line.old is not None
    assert (line.action, line.old.type, line.old.text) == ("drop", "O", "Nobody called Goole closed.")
    assert "1 of 6 sentences done" in Window(client, "/review").words
    window.open("/document?id=yard")
    assert "Nobody called Goole closed.: no entity ada Undo" in window.words
    start = line.old.start
    window.correct(start + 14, start + 19, "LOC")
    window.open("/document?id=yard")
    assert (start + 14, start + 19, "LOC") in window.entities
    assert "no entity" not in "".join(status.reason for status in list_statuses(output))
    assert actions(output) == ["drop", "add"]


def test_selected_words_without_an_entity_are_said_to_be_none(client: TestClient, output: Path) -> None:
    window = Window(client, "/document?id=yard")
    before = window.entities
    for _ in range(2):
        window.correct(18, 22, "")
        window.open("/document?id=yard")
    assert [(line.action, line.result.type, line.result.text) for line in read_log(log_path(output))] == [
        ("drop", "O", "yard")
    ]
    assert window.entities == before
    # Nothing is to be dropped where there is no entity.
    assert "No other place is left" in Window(client, "/everywhere?text=closes").words


def test_a_queue_that_cannot_be_selected_says_why(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyError("broken")

    with monkeypatch.context() as patched:
        patched.setattr(viewer, "select_sentences", fail)
        while "being selected" in (page := client.get("/review").text):
            pass
    assert "The queue cannot be selected: KeyError: &#39;broken&#39;" in page
    assert "cannot be selected" in caplog.text
    assert "0 of 6 sentences done" in open_queue(client).words


def test_the_list_shows_the_sentences_around_the_card(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reviewing, "PAGE_ROWS", 2)
    open_queue(client)
    for rank, ranks, links in ((1, [1, 2], ["from 3"]), (4, [3, 4], ["to 2", "from 5"]), (6, [5, 6], ["to 4"])):
        page = Window(client, f"/review?rank={rank}").page
        listed = re.findall(r'<li><a href="/review\?rank=(\d+)"( aria-current="true")?', page)
        assert [(int(number), bool(current)) for number, current in listed] == [(one, one == rank) for one in ranks]
        assert re.findall(r">((?:to|from) \d)<", page) == links
    # A rank that the queue does not have shows the list.
    for rank in (7, 99999):
        window = Window(client, f"/review?rank={rank}")
        assert 'id="accepting"' not in window.page
        assert "1 Baxter closes the yard." in window.words
    assert "Is Baxter ORG?" in Window(client, "/review?rank=0").words


def test_saved_pages_have_nothing_to_send(client: TestClient) -> None:
    window = Window(client, "/document?id=yard")
    window.correct(0, 6, "ORG")
    open_queue(client)
    for path in ("/everywhere?text=Goole&label=LOC", "/corrections?", "/document?id=yard", "/review?rank=2"):
        assert 'method="post"' in Window(client, path).page
        saved = Window(client, f"{path}&save=1").page
        assert not any(sent in saved for sent in ('method="post"', 'name="key"', 'name="change"'))


def test_a_damaged_log_is_named_and_hides_no_document(client: TestClient, output: Path) -> None:
    log_path(output).write_text('{"id": 1}\n{}\n', encoding="utf-8")
    window = Window(client, "/document?id=yard")
    assert "The corrections cannot be read" in window.words
    assert "line 1: expected a correction" in window.words
    assert client.get("/corrections").status_code == 503


def test_markup_in_words_ids_and_labels_is_corrected_like_any_other(tmp_path: Path) -> None:
    output = viewing.write_hostile(tmp_path / "out")
    client = viewing.open_client(output, tmp_path / "cache", who=viewing.SCRIPT)
    doc_id = urllib.parse.quote(viewing.IMAGE)
    window = Window(client, f"/document?id={doc_id}")
    count = len(window.entities)
    for number in range(count):
        start, end, label = window.entities[number]
        window.correct(start, end, label or "LOC", status=409 if "=" in label else 303)
        window.open(f"/document?id={doc_id}&at={start}-{end}")
        assert not re.search(r"<(img|marquee|script)\b", window.page)
    assert actions(output)[:count].count("accept") >= count - 1
    for path in ("/corrections", f"/everywhere?text={urllib.parse.quote(viewing.SCRIPT)}&label=LOC"):
        assert not re.search(r"<(img|marquee|script)\b", Window(client, path).page)


def test_ids_with_line_ends_are_corrected(tmp_path: Path) -> None:
    doc_id = "line\r\nid\t\u2028 a+b&c"
    output = finished_runs.write_run(tmp_path / "out", {doc_id: viewing.NEWS["yard"]}, keep_text=True)
    window = Window(
        viewing.open_client(output, tmp_path / "cache", who="ada"), f"/document?id={urllib.parse.quote(doc_id)}"
    )
    window.correct(0, 6, "PER")
    window.open("/everywhere?text=Baxter&label=ORG")
    window.send("/correct-places", change=window.ticked)
    assert {line.doc_id for line in read_log(log_path(output))} == {doc_id}


def test_a_form_that_is_cut_off_leaves_the_log_and_no_traceback(
    output: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with viewing.served(output, tmp_path / "cache", who="ada") as url:
        port = urllib.parse.urlsplit(url).port
        head = f"POST /correct HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nOrigin: http://127.0.0.1:{port}\r\n"
        head += f"Cookie: concord_view_{port}={viewing.TOKEN}\r\nContent-Length: 5000\r\n\r\n"
        for body in ("", "start=0&end=6", "x" * 4_999):
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall((head + body).encode())
                time.sleep(0.1)
        with urllib.request.build_opener(urllib.request.HTTPCookieProcessor()).open(url) as answer:
            assert answer.status == 200
    assert not log_path(output).exists()
    assert "Traceback" not in caplog.text + "".join(capfd.readouterr())
