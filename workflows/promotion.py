"""``concord promote``, ``rollback`` and ``registry history``: a model's champion, which moves only through a gate.

A gate is a set of conditions that the evaluations of a candidate must meet. Every attempt is an MLflow run that holds
the evidence, whether or not the gate passes; it counts as a use of the promotion set. A move of the champion is one
line of JSON in a tag of its run, and these lines are the history.

MLflow has no compare-and-set for aliases. A champion that has moved during the examination is noticed, two promotions
that end within the same milliseconds are not: run them one after the other, such as in a CI concurrency group.
"""

import getpass
import hashlib
import json
import socket
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pydantic import Field

from concord.models.bundles.checkpoint import load_tagger
from concord.models.config import Config
from concord.models.data.sentence import first_documents
from concord.models.errors import ConcordError, ConfigError, ModelError
from concord.models.taggers.base import Tagger
from concord.pipeline.corpora.corpus_format import GoldFormat
from concord.pipeline.identity import ResolvedTagger
from concord.pipeline.storage.files import file_sha256
from concord.workflows.console import REFUSED, Answer, counted, plain, table
from concord.workflows.corpora import Documents, Overlap, find_overlap, read_gold_for, read_provenance, without_labels
from concord.workflows.evaluation import CompareJob, EvaluateJob, Line, compare, evidence, score_tagger
from concord.workflows.job_files import corpus_paths, read_yaml
from concord.workflows.mlflow_client import (
    Run,
    code_tags,
    every_page,
    mlflow_errors,
    open_client,
    open_run,
)
from concord.workflows.registry import (
    CHAMPION,
    PREVIOUS,
    ModelVersion,
    aliases_of,
    fetch,
    find_tagger,
    resolve,
    set_alias,
)

TIMED_WORDS = 5000
"""The speeds are measured on the first documents of the promotion set, of so many words in total."""
TURNS = 5


class GateConfig(GoldFormat):
    """The conditions for a new version to become the champion, such as in conf/promote.yaml."""

    data: list[str]
    """The promotion set: corpora that were not used for training, checkpoint selection or calibration."""
    labels: dict[str, str | None] = Field(default_factory=dict)
    """Entity type of the corpora and of both taggers -> the type to compare by; null drops it."""
    train: list[str] = Field(default_factory=list)
    """Corpora whose names count as seen, for the lines ``seen`` and ``unseen`` of the comparison."""
    alpha: float = Field(default=0.05, gt=0, lt=1)
    """Significance level: the overall p must be below it, and intervals cover 1 - alpha."""
    minimum_gain: float = 0.0
    """Points of F1 (accuracy for token labels) over the champion; the gain must be above 0 in any case."""
    no_worse: list[str] = Field(default_factory=list)
    """Lines of the comparison that must be shown to be no worse, such as PER, unseen or language pt."""
    tolerance: float = Field(default=5.0, ge=0)
    """Points below 0 that the lower end of such a line's interval may reach: the fewer names, the wider it is."""
    throughput_ratio: float = Field(default=0.8, ge=0)
    """Minimum speed as a fraction of the champion's, in processor time; 0 leaves the test out."""
    min_f1: float = Field(default=50.0, ge=0, le=100)
    """Minimum score of a first champion, which cannot be compared, in percent (accuracy for token labels)."""
    unknown_provenance: Literal["refuse", "allow"] = "refuse"
    """Whether a bundle that does not record its training data may pass."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Condition:
    """One condition of a gate.

    Attributes:
        found, wanted: as text.
        short_by: how much is missing, in the unit of what was found; 0 if it holds, None if it cannot be measured.
    """

    name: str
    holds: bool
    found: str
    wanted: str
    short_by: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Findings:
    """The result of an examination.

    Attributes:
        evidence: part -> what it shows, a result or plain values.
    """

    conditions: Sequence[Condition]
    evidence: Mapping[str, object]

    @property
    def failed(self) -> list[str]:
        """The names of the conditions that do not hold."""
        return [condition.name for condition in self.conditions if not condition.holds]


def read_gate(path: Path) -> GateConfig:
    """Read a gate and make its paths absolute.

    Raises:
        ConfigError: when there is no such file, or it is not a gate, or a corpus is missing.
    """
    if not path.is_file():
        raise ConfigError(
            f"{path}: expected a gate, found no such file; --gate names one, and 'concord init' writes one"
        )
    gate = GateConfig.from_mapping(read_yaml(path), where=str(path))
    paths = {key: corpus_paths(getattr(gate, key), key=f"{path}: {key}") for key in ("data", "train")}
    for key, corpora in paths.items():
        for corpus in corpora:
            if not Path(corpus).is_file():
                raise ConfigError(
                    f"{path}: {key}: expected a gold corpus, found no file {corpus}; copy the gate, name your own "
                    "corpora there (data: documents that no training has seen), and choose the copy with --gate"
                )
    return gate.model_copy(update=paths)


def examine(version: ModelVersion, champion: int | None, gate: GateConfig, *, device: str) -> Findings:
    """Test all conditions of a gate against the champion, if any; only the digest if that does not match."""
    try:
        fetch(version)
    except ModelError as error:
        conditions = [digest_condition(version.digest, fault=str(error))]
        return Findings(conditions=conditions, evidence={"gate": gate, "conditions": conditions, "provenance": None})
    candidate = find_tagger(version.reference)
    if champion is None:
        documents, measured, parts = _evaluate(candidate, gate, device=device)
    else:
        incumbent = find_tagger(f"models:/{version.name}/{champion}")
        documents, measured, parts = _compare(incumbent, candidate, gate, device=device)
    overlap = _overlap(candidate, documents)
    conditions = [digest_condition(candidate.digest), provenance_condition(gate, overlap), *measured]
    parts |= {"gate": gate, "conditions": conditions, "provenance": overlap}
    return Findings(conditions=conditions, evidence=parts)


def describe_conditions(conditions: Sequence[Condition]) -> str:
    """Format conditions as a table; those that fail show how much is missing."""
    rows = [
        (
            condition.name,
            condition.found,
            condition.wanted,
            "yes" if condition.holds else "NO",
            "" if condition.holds or condition.short_by is None else f"{condition.short_by:.4g}",
        )
        for condition in conditions
    ]
    return table(rows, header=("condition", "found", "wanted", "holds", "short by"), right={4})


def digest_condition(digest: str | None, *, fault: str | None = None) -> Condition:
    """Check the files of the bundle; ``fault`` says how they differ from what was registered."""
    found = fault or f"{(digest or '')[:12]}, as registered"
    return Condition(name="digest", holds=fault is None, found=found, wanted="the files that were registered")


def provenance_condition(gate: GateConfig, overlap: Overlap | None) -> Condition:
    """Check that the candidate has seen no document of the promotion set; an overlap of None is unknown."""
    wanted = "no document of the promotion set seen before"
    if overlap is None:
        allowed = gate.unknown_provenance == "allow"
        found = "the bundle does not record its training data" + (", which the gate allows" if allowed else "")
        return Condition(name="provenance", holds=allowed, found=found, wanted=wanted)
    seen = max(overlap.seen.values(), default=0)
    return Condition(name="provenance", holds=not seen, found=str(overlap), wanted=wanted, short_by=float(seen))


def comparison_conditions(gate: GateConfig, lines: Sequence[Line]) -> list[Condition]:
    """Check a comparison of the champion (A) with the candidate (B), whose first line is the overall one."""
    overall = lines[0]
    gain, least = overall.difference.mean, gate.minimum_gain
    conditions = [
        Condition(
            name="p",
            holds=overall.p < gate.alpha,
            found=f"{overall.p:.4f}",
            wanted=f"below {gate.alpha:g}",
            short_by=max(0.0, overall.p - gate.alpha),
        ),
        Condition(
            name="gain",
            holds=gain > 0 and gain >= least,
            found=_interval(overall),
            wanted=f"{least:g} or more" if least > 0 else "above 0",
            short_by=max(0.0, max(least, 0.0) - gain),
        ),
    ]
    least, named = -gate.tolerance, {line.name: line for line in lines[1:]}
    if missing := [name for name in gate.no_worse if name not in named]:
        raise ConfigError(
            f"no_worse: expected lines of the comparison, which are {', '.join(named) or 'all alone'}, got "
            f"{', '.join(missing)}"
        )
    for name in gate.no_worse:
        found, wanted = _interval(named[name]), f"from {least:g} up"
        conditions.append(_at_least(name, named[name].difference.low, least, found=found, wanted=wanted))
    return conditions


def throughput_condition(gate: GateConfig, ratio: float) -> Condition:
    """Check the candidate's speed as a fraction of the champion's."""
    return _at_least("throughput", ratio, gate.throughput_ratio, found=f"{ratio:.2f} of the champion's")


def first_condition(gate: GateConfig, score: float) -> Condition:
    """Check the score in percent of a first champion, which cannot be compared with another."""
    return _at_least("min_f1", score, gate.min_f1, found=f"{score:.2f}")


def relative_speed(champion: Tagger, candidate: Tagger, documents: Documents) -> float:
    """Return the candidate's speed as a fraction of the champion's.

    Both label the same documents in turns, and what counts is the processor time of all their threads, so that other
    work on the machine decides nothing.
    """
    timed = first_documents(without_labels(documents), TIMED_WORDS)

    def seconds(tagger: Tagger) -> float:
        started = time.process_time()
        tagger.predict_documents(timed)
        return time.process_time() - started

    turns = [(seconds(champion), seconds(candidate)) for _ in range(TURNS + 1)]
    # The first turn fills caches and makes tensors that later ones find.
    first, second = (statistics.median(times) for times in zip(*turns[1:], strict=True))
    return float(first / second)


Measured: TypeAlias = tuple[Documents, Sequence[Condition], dict[str, object]]
"""The promotion set, what was measured on it, and the evidence."""


def _evaluate(candidate: ResolvedTagger, gate: GateConfig, *, device: str) -> Measured:
    """Test a first champion, whose score must reach a minimum since there is nothing to compare it with."""
    job = EvaluateJob(
        folder=candidate.folder, data=gate.data, labels=gate.labels, form=gate, train=gate.train, device=device
    )
    tagger = load_tagger(candidate.folder, device=device)
    documents = read_gold_for(tagger, gate.data, labels=gate.labels, form=gate)
    evaluation = score_tagger(tagger, documents, job)
    data = [{"path": path, "sha256": file_sha256(Path(path))} for path in gate.data]
    found = {"tagger": candidate.name, "digest": candidate.digest, "data": data, **plain(evaluation)}
    return documents, [first_condition(gate, evaluation.score)], {"evaluation": found}


def _compare(champion: ResolvedTagger, candidate: ResolvedTagger, gate: GateConfig, *, device: str) -> Measured:
    job = CompareJob(
        first=champion,
        second=candidate,
        data=gate.data,
        labels=gate.labels,
        form=gate,
        train=gate.train,
        alpha=gate.alpha,
        device=device,
    )
    comparison = compare(job)
    documents = [document.sentences for document in comparison.documents]
    conditions = comparison_conditions(gate, comparison.lines)
    if gate.throughput_ratio:
        conditions.append(throughput_condition(gate, relative_speed(*comparison.taggers, documents)))
    return documents, conditions, {"comparison": evidence(job, comparison)}


def _overlap(candidate: ResolvedTagger, documents: Documents) -> Overlap | None:
    provenance = read_provenance(candidate.folder)
    if provenance is None:
        return None
    overlap = find_overlap(provenance, documents)
    return overlap if overlap.seen or provenance.is_complete else None


def _at_least(name: str, value: float, least: float, *, found: str, wanted: str = "") -> Condition:
    wanted, short_by = wanted or f"{least:g} or more", max(0.0, least - value)
    return Condition(name=name, holds=value >= least, found=found, wanted=wanted, short_by=short_by)


def _interval(line: Line) -> str:
    return f"{line.difference.mean:+.2f} ({line.difference.low:+.2f} to {line.difference.high:+.2f})"


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
    with _open_run("promote", name, version, {SET_TAG: promotion_set}) as run:
        uses = len({use.info.run_id for use in _runs(f"tags.`{SET_TAG}` = '{promotion_set}'")} - {run.run_id})
        findings = examine(candidate, champion, config, device=device)
        run.log_text(EVIDENCE_NAME, json.dumps(plain(findings.evidence), sort_keys=True, indent=1) + "\n")
        run.log_text(gate.name, gate.read_text(encoding="utf-8"))
        failed, evidence_place = ", ".join(findings.failed), f"runs:/{run.run_id}/{EVIDENCE_NAME}"
        values = {"model": name, "version": version, "conditions": findings.conditions, "failed": findings.failed}
        values |= {"uses": uses, "evidence": evidence_place}
        details = _describe_findings(findings, uses=uses, evidence_place=evidence_place)
        # Files that differ from what was registered cannot be loaded, so no reason helps.
        if failed and (not forced or "digest" in findings.failed):
            run.set_tag(OUTCOME_TAG, f"refused: {failed}")
            place = "the first champion" if champion is None else f"champion in place of version {champion}"
            return Answer(
                values=values | {"champion": champion, "moved": False, "move": None},
                text=f"Refused: version {version} of {name} does not become {place}: {failed}.\n\n{details}",
                exit_code=REFUSED,
            )
        move = _move("promote", name, champion, version, forced=bool(failed), reason=reason)
        _move_champion(run, move)
    was = "there was none" if champion is None else f"was {champion}"
    past = f", forced past {failed}" if failed else ""
    return Answer(
        values=values | {"champion": version, "moved": True, "move": move},
        text=f"Champion of {name}: version {version} ({was}){past}.\n\n{details}",
    )


def rollback_command(name: str, *, reason: str | None = None) -> Answer:
    """Make the previous champion the champion again, and the current one the previous."""
    aliases = aliases_of(name)
    champion, previous = aliases.get(CHAMPION), aliases.get(PREVIOUS)
    # A promotion that was stopped between its two aliases leaves both at one version.
    if champion is None or previous in (None, champion):
        raise ModelError(f"{name}: expected a champion and a previous one, got {champion} and {previous}")
    move = _move("rollback", name, champion, previous, reason=reason)
    with _open_run("rollback", name, previous) as run:
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
    shown = table(rows, header=header, right={2, 3}) if rows else "No moves yet."
    return Answer(values=values, text=f"{shown}\n\n{now}")


def _open_run(action: str, name: str, version: int, tags: dict[str, str] | None = None) -> AbstractContextManager[Run]:
    return open_run(
        experiment=EXPERIMENT,
        name=f"{action} {name} {version}",
        parameters={"model": name, "version": version},
        tags={"concord.kind": "promotion", **(tags or {}), **code_tags()},
    )


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


def _move(action: Literal["promote", "rollback"], name: str, came_from: int | None, went_to: int, **more: Any) -> Move:
    """Return a move that this user makes now."""
    who = f"{getpass.getuser()}@{socket.gethostname()}"
    when = datetime.now(UTC).isoformat(timespec="milliseconds")
    return Move(model=name, action=action, who=who, when=when, came_from=came_from, went_to=went_to, **more)


def _move_champion(run: Run, move: Move) -> None:
    """Write the line of a move, then move the aliases; raise RaceLostError if the champion has moved meanwhile."""
    now = aliases_of(move.model).get(CHAMPION)
    if now != move.came_from:
        run.set_tag(OUTCOME_TAG, "race lost")
        raise RaceLostError(
            f"{move.model}: the champion is now version {now} and was {move.came_from or 'none'} when this command "
            "started; nothing was moved, run it again"
        )
    run.set_tag(MOVE_TAG, move.model_dump_json())
    if move.came_from is not None:
        set_alias(move.model, PREVIOUS, move.came_from)
    set_alias(move.model, CHAMPION, move.went_to)
    run.set_tag(OUTCOME_TAG, "moved")


def _describe_findings(findings: Findings, *, uses: int, evidence_place: str) -> str:
    used = f"was used {counted(uses, 'time')} before" if uses else "was not used before"
    lines = [describe_conditions(findings.conditions), ""]
    if "digest" in findings.failed:
        lines.append("The other conditions cannot be tested without the files.")
    lines.append(f"The promotion set {used}; every use weakens what it proves.")
    lines.append(f"evidence {evidence_place}")
    return "\n".join(lines)
