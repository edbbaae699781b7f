"""Moves of a champion: one process at a time, never half done, each with a line in the ledger."""

import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from concord_testing.promoters import exit_codes, move, mover
from mlflow import MlflowClient

from concord.models.errors import ModelError
from concord.workflows.environment import process_name
from concord.workflows.promotion import champion as promotion
from concord.workflows.promotion.champion import INTENT_TAG, STEPS, RaceLostError, move_champion, settled_state
from concord.workflows.promotion.ledger import LONGEST_LINE, check_chain, read_line, tag_of
from concord.workflows.registry.mlflow_client import TrackingError, open_run, tracking_uri
from concord.workflows.registry.model_versions import LOCK_SUFFIX, create_model, model_names

pytestmark = pytest.mark.slow

KILLED = -9
LOST = 4


def make_versions(count: int) -> MlflowClient:
    """Create versions of the model ``tiny`` without files."""
    client = MlflowClient(tracking_uri(), tracking_uri())
    run = open_run(experiment="versions", name="versions", parameters={}, tags={})
    source = client.get_run(run.run_id).info.artifact_uri
    create_model("tiny")
    for _ in range(count):
        client.create_model_version("tiny", f"{source}/model", run.run_id)
    return client


@pytest.fixture
def client(store: Path) -> MlflowClient:
    """Return the client of a new store with three versions of the model ``tiny``."""
    return make_versions(3)


def ledger(name: str = "tiny") -> list[tuple[int | None, int]]:
    state = settled_state(name)
    assert check_chain(state.lines, champion=state.champion) == []
    assert state.intent is None
    return [(line.came_from, line.went_to) for line in map(read_line, state.lines)]


def test_a_move_keeps_the_previous_champion_and_writes_a_line(client: MlflowClient) -> None:
    first = move_champion("tiny", expected=None, move=move(1))
    assert (settled_state("tiny").champion, settled_state("tiny").previous) == (1, None)
    second = move_champion("tiny", expected=1, move=move(3, came_from=1))
    state = settled_state("tiny")
    assert (state.champion, state.previous, state.intent) == (3, 1, None)
    assert [read_line(text) for text in state.lines] == [first, second]
    assert (first.number, second.number) == (1, 2)
    assert ledger() == [(None, 1), (1, 3)]
    assert model_names() == ["tiny"]


def test_a_move_from_another_version_is_refused_and_changes_nothing(client: MlflowClient) -> None:
    move_champion("tiny", expected=None, move=move(2))
    before = settled_state("tiny")
    for expected in (None, 1):
        with pytest.raises(RaceLostError, match="the champion is now version 2") as caught:
            move_champion("tiny", expected=expected, move=move(3, came_from=expected))
        assert caught.value.exit_code == LOST
    assert settled_state("tiny") == before
    assert not is_locked(client)


def is_locked(client: MlflowClient) -> bool:
    return any(model.name.endswith(LOCK_SUFFIX) for model in client.search_registered_models())


def test_an_unknown_model_is_named(client: MlflowClient) -> None:
    with pytest.raises(ModelError, match="other: not in the registry"):
        move_champion("other", expected=None, move=move(1))
    assert not is_locked(client)


def test_a_move_killed_at_any_step_is_completed_by_the_next_call(client: MlflowClient) -> None:
    done: list[tuple[int | None, int]] = []
    champion, target = None, 1
    for step in STEPS:
        killed = exit_codes([mover(champion, target)], uri=tracking_uri(), crash_at=step)
        assert killed == [KILLED], step
        assert is_locked(client), step
        if step == "locked":
            assert settled_state("tiny").champion == champion
            move_champion("tiny", expected=champion, move=move(target, came_from=champion))
        done.append((champion, target))
        assert ledger() == done, step
        state = settled_state("tiny")
        assert (state.champion, state.previous) == (target, champion), step
        champion, target = target, 1 + target % 3
    # The lock of the last move still exists, and its owner is dead.
    move_champion("tiny", expected=champion, move=move(target, came_from=champion))
    assert not is_locked(client)


def test_an_intent_is_undone_when_the_champion_was_moved_by_hand(
    client: MlflowClient, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    move_champion("tiny", expected=None, move=move(1))
    stop_at("intent", monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        move_champion("tiny", expected=1, move=move(2, came_from=1))
    client.set_registered_model_alias("tiny", "champion", "3")
    state = settled_state("tiny")
    assert (state.champion, state.previous, state.intent, len(state.lines)) == (3, None, None, 1)
    assert "Undoing the promote of tiny to version 2 that ada@here started" in capsys.readouterr().err


def test_an_intent_is_undone_when_its_version_was_deleted(
    client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    move_champion("tiny", expected=None, move=move(1))
    stop_at("intent", monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        move_champion("tiny", expected=1, move=move(2, came_from=1))
    client.delete_model_version("tiny", "2")
    assert ledger() == [(None, 1)]


def test_an_unreadable_intent_is_deleted(client: MlflowClient) -> None:
    client.set_registered_model_tag("tiny", INTENT_TAG, "{}")
    assert settled_state("tiny").intent is None


def test_the_number_of_a_missing_line_is_not_reused(client: MlflowClient) -> None:
    move_champion("tiny", expected=None, move=move(1))
    move_champion("tiny", expected=1, move=move(2, came_from=1))
    client.delete_registered_model_tag("tiny", tag_of(1))
    assert move_champion("tiny", expected=2, move=move(3, came_from=2)).number == 3
    state = settled_state("tiny")
    assert [found.line for found in check_chain(state.lines, champion=3)] == [1, 1]


def stop_at(wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt this process once at a step, as Ctrl-C does, so that it releases its lock."""

    def crash_point(step: str) -> None:
        if step == wanted:
            monkeypatch.setattr(promotion, "crash_point", lambda _: None)
            raise KeyboardInterrupt

    monkeypatch.setattr(promotion, "crash_point", crash_point)


def hold_lock(*, owner: str, age: float) -> None:
    tags = {"concord.owner": owner, "concord.token": "theirs", "concord.since": f"{time.time() - age:.3f}"}
    assert create_model(f"tiny{LOCK_SUFFIX}", tags=tags)


@pytest.mark.parametrize(("owner", "age"), [("elsewhere:1:2", promotion.LOCK_SECONDS + 1), ("here:4194305:2", 0.0)])
def test_an_abandoned_lock_is_broken(
    client: MlflowClient, owner: str, age: float, capsys: pytest.CaptureFixture[str]
) -> None:
    hold_lock(owner=owner.replace("here:", f"{socket.gethostname()}:"), age=age)
    move_champion("tiny", expected=None, move=move(1))
    assert "Breaking the lock of tiny" in capsys.readouterr().err
    assert not is_locked(client)


def test_a_held_lock_is_waited_for(client: MlflowClient, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            client.delete_registered_model(f"tiny{LOCK_SUFFIX}")

    hold_lock(owner=process_name(), age=0.0)
    monkeypatch.setattr(time, "sleep", sleep)
    move_champion("tiny", expected=None, move=move(1))
    assert len(waits) == 3


def test_a_move_stops_when_its_lock_was_broken_or_is_old(client: MlflowClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def steal(step: str) -> None:
        if step == "locked":
            client.set_registered_model_tag(f"tiny{LOCK_SUFFIX}", "concord.token", "theirs")

    monkeypatch.setattr(promotion, "crash_point", steal)
    with pytest.raises(TrackingError, match="another process has broken the lock"):
        move_champion("tiny", expected=None, move=move(1))
    # The lock belongs to another process now.
    assert is_locked(client)
    client.delete_registered_model(f"tiny{LOCK_SUFFIX}")
    monkeypatch.setattr(promotion, "crash_point", lambda _: None)
    monkeypatch.setattr(promotion, "HOLD_SECONDS", -1.0)
    with pytest.raises(TrackingError, match="the store is too slow"):
        move_champion("tiny", expected=None, move=move(1))
    assert not is_locked(client)
    assert settled_state("tiny").champion is None


@pytest.mark.parametrize("place", ["sqlite", "server"])
def test_one_of_four_concurrent_moves_wins(
    place: str, store: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if place == "server":
        monkeypatch.setenv("MLFLOW_TRACKING_URI", request.getfixturevalue("mlflow_server"))
    client = make_versions(5)
    move_champion("tiny", expected=None, move=move(1))
    codes = exit_codes([mover(1, version) for version in (2, 3, 4, 5)], uri=tracking_uri())
    assert sorted(codes, key=str) == [0, LOST, LOST, LOST]
    winner = 2 + codes.index(0)
    assert ledger() == [(None, 1), (1, winner)]
    assert (settled_state("tiny").champion, settled_state("tiny").previous) == (winner, 1)
    assert not is_locked(client)


@pytest.mark.parametrize("place", ["sqlite", "server"])
def test_the_longest_line_is_stored_completely(
    place: str, store: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if place == "server":
        monkeypatch.setenv("MLFLOW_TRACKING_URI", request.getfixturevalue("mlflow_server"))
    client = MlflowClient(tracking_uri(), tracking_uri())
    create_model("long")
    text = json.dumps({"reason": 'é\n"\\'}, ensure_ascii=False)
    text += " " * (LONGEST_LINE - len(text))
    client.set_registered_model_tag("long", tag_of(99_999_999), text)
    client.set_registered_model_tag("long", INTENT_TAG, text)
    tags: dict[str, Any] = client.get_registered_model("long").tags
    assert tags == {tag_of(99_999_999): text, INTENT_TAG: text}
