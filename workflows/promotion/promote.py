"""``concord promote``, ``rollback`` and ``registry history``: a model's champion, which moves only through the gate.

Every attempt is an MLflow run that holds the evidence, whether or not the gate passes; it counts as a use of the
promotion set. A move of the champion is one line of JSON in a tag of its run, and these lines are the history.

MLflow has no compare-and-set for aliases. A champion that has moved during the examination is noticed, two promotions
that end within the same milliseconds are not: run them one after the other, such as in a CI concurrency group.
"""

import getpass
import hashlib
import json
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from concord.models.config import Config
from concord.models.errors import ConcordError, ConfigError, ModelError
from concord.pipeline.storage.files import file_sha256
from concord.workflows.console import REFUSED, Answer, counted, plain, table
from concord.workflows.environment import code_tags
from concord.workflows.promotion.gate import Condition, Findings, describe_conditions, examine, read_gate
from concord.workflows.registry.mlflow_client import (
    Run,
    TrackingError,
    every_page,
    mlflow_errors,
    open_client,
    open_run,
)
from concord.workflows.registry.model_versions import CHAMPION, PREVIOUS, aliases_of, resolve, set_alias

EXPERIMENT = "concord-promotions"
SET_TAG, OUTCOME_TAG, MOVE_TAG = "concord.promotion_set", "concord.outcome", "concord.move"
EVIDENCE_NAME = "evidence.json"


class RaceLostError(ConcordError):
    """The champion has moved since the command started."""

    exit_code = REFUSED


class Move(Config):
    """A move of a champion, one line of the history."""

    model: str
    action: Literal["promote", "rollback"]
    who: str
    """User and host, such as ``ada@desk``."""
    when: str
    """UTC, ISO 8601."""
    came_from: int | None
    """The version before; None if there was no champion."""
    went_to: int
    forced: bool = False
    """Whether the champion was moved although the gate failed."""
    reason: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """What an attempt to promote a version has found; it was refused, unless it has a move.

    Attributes:
        champion: the version that is champion after it.
        failed: names of the conditions that do not hold.
        uses: how often the promotion set was used before.
        evidence: its address in the store.
    """

    model: str
    version: int
    champion: int | None
    moved: bool = False
    conditions: Sequence[Condition]
    failed: Sequence[str]
    uses: int
    evidence: str
    move: Move | None = None


def promote_command(
    name: str, version: int, *, gate: Path, forced: bool = False, reason: str | None = None, device: str = "cpu"
) -> Answer:
    """Make a version the champion if it passes the gate; exit code 4 if not.

    Args:
        forced: move the champion even if the gate fails; needs a reason.
        reason: recorded in the history.
    """
    if forced and not (reason or "").strip():
        raise ConfigError("--force: expected --reason with it, to record in the history why the gate was overridden")
    candidate = resolve(f"models:/{name}/{version}")
    config = read_gate(gate)  # an invalid one must fail before the attempt counts as a use of the set
    # It names the corpora, whatever their paths and order.
    promotion_set = hashlib.sha256("\n".join(sorted(map(file_sha256, config.data))).encode()).hexdigest()
    champion = aliases_of(name).get(CHAMPION)
    if champion == version:
        return Answer(
            values={"model": name, "champion": version, "moved": False},
            text=f"Version {version} of {name} is already the champion.",
        )
    with _attempt("promote", name, version, {SET_TAG: promotion_set}) as run:
        uses = _earlier_uses(run, promotion_set)
        findings = examine(candidate, champion, config, device=device)
        _log_evidence(run, findings, gate)
        attempt = Attempt(
            model=name,
            version=version,
            champion=champion,
            conditions=findings.conditions,
            failed=findings.failed,
            uses=uses,
            evidence=f"runs:/{run.run_id}/{EVIDENCE_NAME}",
        )
        # Files that differ from what was registered cannot be loaded, so no reason helps.
        if findings.failed and (not forced or "digest" in findings.failed):
            _set_tag(run, OUTCOME_TAG, f"refused: {', '.join(findings.failed)}")
            return Answer.of(attempt, text=_text(_refusal(attempt), attempt), exit_code=REFUSED)
        move = _move("promote", name, champion, version, forced=bool(findings.failed), reason=reason)
        _move_champion(run, move)
    return Answer.of(
        replace(attempt, champion=version, moved=True, move=move), text=_text(_success(move, attempt.failed), attempt)
    )


def rollback_command(name: str, *, reason: str | None = None) -> Answer:
    """Make the previous champion the champion again, and the current one the previous."""
    aliases = aliases_of(name)
    champion, previous = aliases.get(CHAMPION), aliases.get(PREVIOUS)
    # A promotion that was stopped between its two aliases leaves both at one version.
    if champion is None or previous in (None, champion):
        raise ModelError(f"{name}: expected a champion and a previous one, got {champion} and {previous}")
    move = _move("rollback", name, champion, previous, reason=reason)
    with _attempt("rollback", name, previous) as run:
        _move_champion(run, move)
    return Answer(
        values={"model": name, "champion": previous, "moved": True, "move": move},
        text=f"Champion of {name}: version {previous} again (was {champion}).",
    )


def history_command(name: str) -> Answer:
    """Return the moves of a model's champion, oldest first."""
    aliases = aliases_of(name)
    runs = _runs(f"tags.`{MOVE_TAG}` LIKE '%'")
    moves = [(Move.model_validate_json(run.data.tags[MOVE_TAG]), run.info) for run in runs]
    # The start of a run is not the order of moves: an examination takes a while.
    found = sorted((pair for pair in moves if pair[0].model == name), key=lambda pair: pair[0].when)
    # A run that did not end well was stopped between its line and the alias.
    lines = [plain(move) | {"run": info.run_id, "finished": info.status == "FINISHED"} for move, info in found]
    values = {"model": name, **{alias: aliases.get(alias) for alias in (CHAMPION, PREVIOUS)}, "moves": lines}
    now = ", ".join(f"{alias}: {aliases.get(alias, 'none')}" for alias in (CHAMPION, PREVIOUS))
    return Answer(values=values, text=f"{_history_table(lines)}\n\n{now}")


@contextmanager
def _attempt(action: str, name: str, version: int, tags: dict[str, str] | None = None) -> Iterator[Run]:
    """Open a run, and end it as finished or failed."""
    run = open_run(
        experiment=EXPERIMENT,
        name=f"{action} {name} {version}",
        parameters={"model": name, "version": version},
        tags={"concord.kind": "promotion", **(tags or {}), **code_tags()},
    )
    try:
        yield run
    except BaseException:
        with suppress(TrackingError):
            run.close("FAILED")
        raise
    run.close("FINISHED")


def _earlier_uses(attempt: Run, promotion_set: str) -> int:
    return len({run.info.run_id for run in _runs(f"tags.`{SET_TAG}` = '{promotion_set}'")} - {attempt.run_id})


def _runs(condition: str) -> list[Any]:
    """Return the runs of attempts that meet a condition of MLflow's search, oldest first."""
    client = open_client()
    with mlflow_errors("the promotions could not be looked up"):
        experiment = client.get_experiment_by_name(EXPERIMENT)
        if experiment is None:
            return []
        found = every_page(
            client.search_runs, experiment_ids=[experiment.experiment_id], filter_string=condition,
            order_by=["attributes.start_time ASC"],
        )  # fmt: skip
    return found


def _log_evidence(attempt: Run, findings: Findings, gate: Path) -> None:
    text = json.dumps(plain(findings.evidence), ensure_ascii=False, sort_keys=True, indent=1) + "\n"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / EVIDENCE_NAME
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
        attempt.log_file(path)
    attempt.log_file(gate)


def _move(action: Literal["promote", "rollback"], name: str, came_from: int | None, went_to: int, **more: Any) -> Move:
    """Return a move that this user makes now."""
    who = f"{getpass.getuser()}@{socket.gethostname()}"
    when = datetime.now(UTC).isoformat(timespec="milliseconds")
    return Move(model=name, action=action, who=who, when=when, came_from=came_from, went_to=went_to, **more)


def _move_champion(run: Run, move: Move) -> None:
    """Write the line of a move, then move the aliases; raise RaceLostError if the champion has moved meanwhile."""
    now = aliases_of(move.model).get(CHAMPION)
    if now != move.came_from:
        _set_tag(run, OUTCOME_TAG, "race lost")
        raise RaceLostError(
            f"{move.model}: the champion is now version {now} and was {move.came_from or 'none'} when this command "
            "started; nothing was moved, run it again"
        )
    _set_tag(run, MOVE_TAG, move.model_dump_json())
    if move.came_from is not None:
        set_alias(move.model, PREVIOUS, move.came_from)
    set_alias(move.model, CHAMPION, move.went_to)
    _set_tag(run, OUTCOME_TAG, "moved")


def _set_tag(run: Run, key: str, value: str) -> None:
    client = open_client()
    with mlflow_errors(f"the tag {key} could not be written"):
        client.set_tag(run.run_id, key, value)


def _refusal(attempt: Attempt) -> str:
    place = "the first champion" if attempt.champion is None else f"champion in place of version {attempt.champion}"
    failed = ", ".join(attempt.failed)
    return f"Refused: version {attempt.version} of {attempt.model} does not become {place}: {failed}."


def _success(move: Move, failed: Sequence[str]) -> str:
    was = "there was none" if move.came_from is None else f"was {move.came_from}"
    forced = f", forced past {', '.join(failed)}" if move.forced else ""
    return f"Champion of {move.model}: version {move.went_to} ({was}){forced}."


def _text(head: str, attempt: Attempt) -> str:
    used = f"was used {counted(attempt.uses, 'time')} before" if attempt.uses else "was not used before"
    lines = [head, "", describe_conditions(attempt.conditions), ""]
    if "digest" in attempt.failed:
        lines.append("The other conditions cannot be tested without the files.")
    lines.append(f"The promotion set {used}; every use weakens what it proves.")
    lines.append(f"evidence {attempt.evidence}")
    return "\n".join(lines)


def _history_table(lines: list[dict[str, Any]]) -> str:
    rows = [
        (
            line["when"][:19],
            line["action"] + " (forced)" * line["forced"] + " (unfinished)" * (not line["finished"]),
            str(line["came_from"] or "-"),
            str(line["went_to"]),
            line["who"],
            line["run"],
            line["reason"] or "",
        )
        for line in lines
    ]
    header = ("when", "action", "from", "to", "who", "run", "reason")
    return table(rows, header=header, right={2, 3}) if rows else "No moves yet."
