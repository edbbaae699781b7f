"""``concord promote``, ``rollback`` and ``registry history``: a model's champion, which moves only through the gate.

Every attempt is logged as a run of its own, which counts as a use of the promotion set and holds the evidence, whether
or not the gate passes. The ledger has a line for every move.
"""

import getpass
import hashlib
import json
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from concord.models.errors import ConfigError, ModelError
from concord.pipeline.storage.files import file_sha256
from concord.workflows.console import INLINE, REFUSED, Answer, counted, plain, table, warn
from concord.workflows.environment import code_tags
from concord.workflows.promotion.champion import RaceLostError, move_champion, settled_state
from concord.workflows.promotion.gate import Condition, Findings, describe_conditions, examine, read_gate
from concord.workflows.promotion.ledger import LONGEST_REASON, Action, Entry, Move, check_chain, read_line
from concord.workflows.registry.mlflow_client import (
    Run,
    RunStatus,
    TrackingError,
    every_page,
    mlflow_errors,
    open_client,
    open_run,
)
from concord.workflows.registry.model_versions import resolve

EXPERIMENT = "concord-promotions"
SET_TAG, OUTCOME_TAG = "concord.promotion_set", "concord.outcome"
EVIDENCE_NAME = "evidence.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """What an attempt to promote a version has found; it was refused, unless a move follows.

    Attributes:
        champion: the version before.
        failed: names of the conditions that do not hold.
        uses: how often the promotion set was used before.
        evidence: its sha256 in hex; ``evidence_place`` is its address in the store.
    """

    model: str
    version: int
    champion: int | None
    conditions: Sequence[Condition]
    failed: Sequence[str]
    uses: int
    evidence: str
    evidence_place: str
    moved: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ChampionMove:
    """A move of the champion with its line in the ledger, and the attempt behind it; a rollback has none."""

    attempt: Attempt | None = field(default=None, metadata=INLINE)
    model: str
    moved: bool = True
    champion: int
    ledger: Entry


def promote_command(
    name: str, version: int, *, gate: Path, forced: bool = False, reason: str | None = None, device: str = "cpu"
) -> Answer:
    """Make a version the champion if it passes the gate; exit code 4 if not.

    Args:
        forced: move the champion even if the gate fails; needs a reason.
        reason: recorded in the ledger.
    """
    _check_reason(reason, needed=forced)
    candidate = resolve(f"models:/{name}/{version}")
    config = read_gate(gate)  # an invalid one must fail before the attempt counts as a use of the set
    # It names the corpora, whatever their paths and order.
    promotion_set = hashlib.sha256("\n".join(sorted(map(file_sha256, config.data))).encode()).hexdigest()
    champion = settled_state(name).champion
    if champion == version:
        return Answer(
            values={"model": name, "champion": version, "moved": False},
            text=f"Version {version} of {name} is already the champion.",
        )
    with _attempt(name, version, promotion_set) as run:
        uses = _earlier_uses(run, promotion_set)
        findings = examine(candidate, champion, config, device=device)
        attempt = Attempt(
            model=name,
            version=version,
            champion=champion,
            conditions=findings.conditions,
            failed=findings.failed,
            uses=uses,
            evidence=_log_evidence(run, findings, gate),
            evidence_place=f"runs:/{run.run_id}/{EVIDENCE_NAME}",
        )
        # Files that differ from what was registered cannot be loaded, so no reason helps.
        if findings.failed and (not forced or "digest" in findings.failed):
            _end(run, f"refused: {', '.join(findings.failed)}")
            return Answer.of(attempt, text=_text(_refusal(attempt), attempt), exit_code=REFUSED)
        move = _move(
            "promote",
            champion,
            version,
            digest=candidate.digest,
            evidence=attempt.evidence,
            evidence_place=attempt.evidence_place,
            gate=file_sha256(gate),
            promotion_set=promotion_set,
            uses=uses,
            forced=bool(findings.failed),
            reason=reason,
        )
        line = move_champion(name, expected=champion, move=move)
        _end(run, f"moved: ledger line {line.number}")
    moved = ChampionMove(attempt=attempt, model=name, champion=line.went_to, ledger=line)
    return Answer.of(moved, text=_text(_success(moved), attempt))


def rollback_command(name: str, *, reason: str | None = None) -> Answer:
    """Make the previous champion the champion again, and the current one the previous."""
    _check_reason(reason, needed=False)
    state = settled_state(name)
    if state.champion is None or state.previous is None:
        raise ModelError(f"{name}: expected a champion and a previous one, got {state.champion} and {state.previous}")
    target = resolve(f"models:/{name}/{state.previous}")
    move = _move("rollback", state.champion, state.previous, digest=target.digest, reason=reason)
    line = move_champion(name, expected=state.champion, move=move)
    return Answer.of(
        ChampionMove(model=name, champion=line.went_to, ledger=line),
        text=f"Champion of {name}: version {line.went_to} again (was {line.came_from}); ledger line {line.number}.",
    )


def history_command(name: str) -> Answer:
    """Return the ledger of a model, oldest line first; exit code 1 if its chain is broken."""
    state = settled_state(name)
    entries = []
    for text in state.lines:
        with suppress(ValueError):
            entries.append(read_line(text))
    breaks = check_chain(state.lines, champion=state.champion)
    values = {
        "model": name,
        "champion": state.champion,
        "previous": state.previous,
        "lines": entries,
        "breaks": breaks,
    }
    verdict = [f"{counted(len(state.lines), 'line')}, chain intact."]
    if breaks:
        verdict = ["The chain is broken:", *(f"line {place.line}: {place.message}" for place in breaks)]
    text = "\n".join([_history_table(entries), "", *verdict]).strip()
    return Answer(values=values, text=text, exit_code=1 if breaks else 0)


def _check_reason(reason: str | None, *, needed: bool) -> None:
    if needed and not (reason or "").strip():
        raise ConfigError("--force: expected --reason with it, to record in the ledger why the gate was overridden")
    if reason is not None and len(reason) > LONGEST_REASON:
        raise ConfigError(f"--reason: expected {LONGEST_REASON:,} characters at most, got {len(reason):,}")


@contextmanager
def _attempt(name: str, version: int, promotion_set: str) -> Iterator[Run]:
    """Open the run of an attempt, which then counts as a use of the promotion set."""
    attempt = open_run(
        experiment=EXPERIMENT,
        name=f"promote {name} {version}",
        parameters={"model": name, "version": version},
        tags={SET_TAG: promotion_set, "concord.kind": "promotion", **code_tags()},
    )
    try:
        yield attempt
    except RaceLostError as error:
        _end(attempt, f"race lost: {error}")
        raise
    except BaseException as error:
        _end(attempt, f"failed: {type(error).__name__}", status="FAILED")
        raise


def _earlier_uses(attempt: Run, promotion_set: str) -> int:
    client, uses = open_client(), f"tags.`{SET_TAG}` = '{promotion_set}'"
    with mlflow_errors("the uses of the promotion set could not be counted"):
        experiment = client.get_run(attempt.run_id).info.experiment_id
        runs = every_page(client.search_runs, experiment_ids=[experiment], filter_string=uses)
    return len({run.info.run_id for run in runs} - {attempt.run_id})


def _log_evidence(attempt: Run, findings: Findings, gate: Path) -> str:
    """Log the evidence to the run of the attempt, and return its sha256 in hex."""
    text = json.dumps(plain(findings.evidence), ensure_ascii=False, sort_keys=True, indent=1) + "\n"
    with tempfile.TemporaryDirectory() as folder:
        for name, content in {EVIDENCE_NAME: text, **findings.pages}.items():
            path = Path(folder) / name
            path.write_text(content, encoding="utf-8", errors="backslashreplace")
            attempt.log_file(path)
    attempt.log_file(gate)
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()


def _end(attempt: Run, outcome: str, *, status: RunStatus = "FINISHED") -> None:
    """Log how an attempt ended; a failure costs a warning, since the attempt itself is over."""
    client = open_client()
    try:
        with mlflow_errors("the outcome could not be logged"):
            client.set_tag(attempt.run_id, OUTCOME_TAG, outcome)
        attempt.close(status)
    except TrackingError as error:
        warn(str(error))


def _refusal(attempt: Attempt) -> str:
    place = "the first champion" if attempt.champion is None else f"champion in place of version {attempt.champion}"
    failed = ", ".join(attempt.failed)
    return f"Refused: version {attempt.version} of {attempt.model} does not become {place}: {failed}."


def _success(moved: ChampionMove) -> str:
    line, failed = moved.ledger, moved.attempt.failed if moved.attempt is not None else ()
    was = "there was none" if line.came_from is None else f"was {line.came_from}"
    forced = f", forced past {', '.join(failed)}" if line.forced else ""
    return f"Champion of {moved.model}: version {line.went_to} ({was}){forced}; ledger line {line.number}."


def _text(head: str, attempt: Attempt) -> str:
    uses = attempt.uses
    used = f"was used {counted(uses, 'time')} before" if uses else "was not used before"
    lines = [head, "", describe_conditions(attempt.conditions), ""]
    if "digest" in attempt.failed:
        lines.append("The other conditions cannot be tested without the files.")
    lines.append(f"The promotion set {used}; every use weakens what it proves.")
    lines.append(f"evidence {attempt.evidence[:12]} at {attempt.evidence_place}")
    return "\n".join(lines)


def _move(action: Action, came_from: int | None, went_to: int, **details: Any) -> Move:
    """Return a move that this user makes now; ``details`` are its other fields."""
    who = f"{getpass.getuser()}@{socket.gethostname()}"
    when = datetime.now(UTC).isoformat(timespec="seconds")
    return Move(action=action, who=who, when=when, came_from=came_from, went_to=went_to, **details)


def _history_table(entries: Sequence[Entry]) -> str:
    rows = [
        (
            entry.number,
            entry.when,
            entry.action + (" (forced)" if entry.forced else ""),
            "-" if entry.came_from is None else str(entry.came_from),
            str(entry.went_to),
            entry.who,
            (entry.evidence or "-")[:12],
            entry.uses,
            entry.reason or "",
        )
        for entry in entries
    ]
    header = ("line", "when", "action", "from", "to", "who", "evidence", "uses", "reason")
    return table(rows, header=header, right={3, 4, 7}) if rows else "No lines yet."
