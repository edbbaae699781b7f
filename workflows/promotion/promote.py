"""Promotion of a model's version to champion, only if the gate holds; and the way back.

Every attempt is a run of its own in the store: it counts as a use of the promotion set and keeps the evidence, whether
the gate holds or not. The ledger has a line for every move.
"""

import hashlib
import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from concord.models.config import ConfigError
from concord.pipeline.errors import ModelError
from concord.pipeline.identity import ResolvedTagger
from concord.pipeline.storage.files import file_sha256
from concord.workflows.comparison.compare import CompareJob, compare, evidence
from concord.workflows.comparison.page import render_page
from concord.workflows.comparison.paired_tests import Procedure
from concord.workflows.comparison.slices import Slice, parse_slice
from concord.workflows.console import Answer, counted, warn
from concord.workflows.environment import code_tags
from concord.workflows.jobs import GateConfig, read_gate
from concord.workflows.promotion.champion import RaceLostError, move_champion, now, settled_state, who
from concord.workflows.promotion.gate import (
    Condition,
    comparison_conditions,
    describe_conditions,
    digest_condition,
    first_condition,
    provenance_condition,
    speed_ratio,
    throughput_condition,
)
from concord.workflows.promotion.ledger import BEGINNING, LONGEST_REASON, Action, Entry
from concord.workflows.registry.mlflow_client import Run, RunStatus, TrackingError, explained, open_client, open_run
from concord.workflows.registry.model_versions import ModelVersion, fetch, resolve
from concord.workflows.registry.resolve_tagger import find_tagger
from concord.workflows.training import evaluate
from concord.workflows.training.corpora import Documents, read_gold_for
from concord.workflows.training.provenance import Overlap, find_overlap, read_provenance

REFUSED = 4
EXPERIMENT = "concord-promotions"
SET_TAG, OUTCOME_TAG = "concord.promotion_set", "concord.outcome"
EVIDENCE_NAME, PAGE_NAME = "evidence.json", "comparison.html"


@dataclass(frozen=True, kw_only=True, slots=True)
class PromoteOptions:
    """How to promote.

    Attributes:
        gate: its file.
        forced: move the champion even if the gate does not hold; needs a reason.
        reason: kept in the ledger.
    """

    gate: Path
    forced: bool = False
    reason: str | None = None
    device: str = "cpu"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Findings:
    """What the gate says of a candidate, with the evidence and its pages by file name."""

    conditions: Sequence[Condition]
    evidence: dict[str, Any]
    pages: dict[str, str] = field(default_factory=dict)

    @property
    def failed(self) -> list[str]:
        return [condition.name for condition in self.conditions if not condition.holds]


def run(name: str, version: int, options: PromoteOptions) -> Answer:
    """Make a version the champion if the gate holds; exit code 4 when it does not.

    Raises:
        ConfigError: when the gate or the reason cannot be used, or the taggers cannot be compared.
        InputError: when a corpus of the gate cannot be read.
        ModelError: when there is no such version, or the champion does not load.
        RaceLostError: when the champion was moved in the meantime.
        TrackingError: when the store cannot be reached.
    """
    _check_reason(options.reason, needed=options.forced)
    gate = read_gate(options.gate)
    _slices(gate)  # a gate that cannot be read is no use of its set
    promotion_set = _set_digest(gate)
    candidate = resolve(f"models:/{name}/{version}")
    champion = settled_state(name).champion
    if champion == version:
        return Answer(
            values={"model": name, "champion": version, "moved": False},
            text=f"Version {version} of {name} is the champion already.",
        )
    with _attempt(name, version, promotion_set) as attempt:
        uses = _earlier_uses(attempt, promotion_set)
        findings = _examine(candidate, champion, gate, device=options.device)
        kept = _keep(attempt, findings, options.gate)
        values: dict[str, Any] = {
            "model": name,
            "version": version,
            "champion": champion,
            "conditions": [asdict(condition) for condition in findings.conditions],
            "failed": findings.failed,
            "uses": uses,
            "evidence": kept,
            "evidence_place": f"runs:/{attempt.run_id}/{EVIDENCE_NAME}",
        }
        # Files that are not what was registered cannot be loaded by anybody, whatever the reason.
        if findings.failed and (not options.forced or "digest" in findings.failed):
            _end(attempt, f"refused: {', '.join(findings.failed)}")
            return _refusal(values, findings)
        entry = Entry(
            **_whereabouts("promote", champion, version),
            digest=candidate.digest,
            evidence=kept,
            evidence_place=values["evidence_place"],
            gate=file_sha256(options.gate),
            promotion_set=promotion_set,
            uses=uses,
            forced=bool(findings.failed),
            reason=options.reason,
        )
        line = move_champion(name, expected=champion, entry=entry)
        _end(attempt, f"moved: ledger line {line.number}")
        return _moved(line, values, findings)


def rollback(name: str, *, reason: str | None = None) -> Answer:
    """Make the previous champion the champion again; the present one becomes the previous one.

    Raises:
        ConfigError: when the reason is too long.
        ModelError: when there is no such model, or it has no previous champion.
        RaceLostError: when the champion was moved in the meantime.
        TrackingError: when the store cannot be reached.
    """
    _check_reason(reason, needed=False)
    state = settled_state(name)
    if state.champion is None or state.previous is None:
        raise ModelError(f"{name}: expected a champion and a previous one, got {state.champion} and {state.previous}")
    target = resolve(f"models:/{name}/{state.previous}")
    entry = Entry(**_whereabouts("rollback", state.champion, state.previous), digest=target.digest, reason=reason)
    line = move_champion(name, expected=state.champion, entry=entry)
    return Answer(
        values={"model": name, "moved": True, "champion": line.went_to, "ledger": asdict(line)},
        text=f"Champion of {name}: version {line.went_to} again (was {line.came_from}); ledger line {line.number}.",
    )


def _check_reason(reason: str | None, *, needed: bool) -> None:
    if needed and not (reason or "").strip():
        raise ConfigError("--force: expected --reason with it; the ledger keeps why the gate was passed by")
    if reason is not None and len(reason) > LONGEST_REASON:
        raise ConfigError(f"--reason: expected {LONGEST_REASON:,} characters at most, got {len(reason):,}")


def _slices(gate: GateConfig) -> list[Slice]:
    return [parse_slice(f"{name}={condition}") for name, condition in gate.slices.items()]


def _set_digest(gate: GateConfig) -> str:
    """Name the corpora of a gate by what is in them, wherever they lie."""
    content = "\n".join(sorted(file_sha256(path) for path in gate.data))
    return hashlib.sha256(content.encode()).hexdigest()


@contextmanager
def _attempt(name: str, version: int, promotion_set: str) -> Iterator[Run]:
    """Open the run of an attempt, which from here on counts as a use of the promotion set."""
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
    client = open_client()
    found: list[str] = []
    with explained("the uses of the promotion set could not be counted"):
        experiment = client.get_run(attempt.run_id).info.experiment_id
        token = None
        while True:
            page = client.search_runs([experiment], f"tags.`{SET_TAG}` = '{promotion_set}'", page_token=token)
            found += [run.info.run_id for run in page]
            token = page.token
            if not token:
                return len(set(found) - {attempt.run_id})


def _examine(version: ModelVersion, champion: int | None, gate: GateConfig, *, device: str) -> _Findings:
    """Look at every condition of the gate; at the digest alone where that does not hold."""
    try:
        fetch(version)
    except ModelError as error:
        conditions = [digest_condition(version.digest, fault=str(error))]
        return _Findings(conditions=conditions, evidence=_values(gate, conditions))
    candidate = find_tagger(version.reference)
    conditions = [digest_condition(candidate.digest)]
    if champion is None:
        return _examine_first(candidate, gate, conditions, device=device)
    incumbent = find_tagger(f"models:/{version.name}/{champion}")
    return _examine_against(incumbent, candidate, gate, conditions, device=device)


def _examine_first(
    candidate: ResolvedTagger, gate: GateConfig, conditions: list[Condition], *, device: str
) -> _Findings:
    """Examine a first champion: there is nothing to compare with, so its score must reach a floor."""
    job = evaluate.EvaluateJob(
        folder=candidate.folder, data=gate.data, labels=gate.labels, form=gate, train=gate.train, device=device
    )
    tagger = evaluate.load(candidate.folder, device=device)
    documents = read_gold_for(tagger, gate.data, labels=gate.labels, form=gate)
    scores = evaluate.score_tagger(tagger, documents, job)
    score = scores["accuracy"] if "accuracy" in scores else scores["scores"]["all"]["f1"]
    overlap = _overlap(candidate, documents)
    found = [*conditions, provenance_condition(gate, overlap), first_condition(gate, score)]
    data = [{"path": path, "sha256": file_sha256(path)} for path in gate.data]
    evaluation = {"tagger": candidate.name, "digest": candidate.digest, "data": data, **scores}
    return _Findings(conditions=found, evidence=_values(gate, found, overlap=overlap, evaluation=evaluation))


def _examine_against(
    champion: ResolvedTagger, candidate: ResolvedTagger, gate: GateConfig, conditions: list[Condition], *, device: str
) -> _Findings:
    job = CompareJob(
        first=champion,
        second=candidate,
        data=gate.data,
        slices=_slices(gate),
        labels=gate.labels,
        form=gate,
        train=gate.train,
        procedure=Procedure(alpha=gate.alpha, rounds=gate.rounds, seed=gate.seed),
        device=device,
    )
    comparison = compare(job)
    documents = [list(document.sentences) for document in comparison.documents]
    overlap = _overlap(candidate, documents)
    first, second = (evaluate.load(tagger.folder, device=device) for tagger in (champion, candidate))
    speed = speed_ratio(first, second, documents, turns=gate.throughput_turns)
    found = [
        *conditions,
        provenance_condition(gate, overlap),
        *comparison_conditions(gate, comparison.lines),
        throughput_condition(gate, speed["ratio"]),
    ]
    return _Findings(
        conditions=found,
        evidence=_values(gate, found, overlap=overlap, comparison=evidence(job, comparison), throughput=speed),
        pages={PAGE_NAME: render_page(job, comparison)},
    )


def _overlap(candidate: ResolvedTagger, documents: Documents) -> Overlap | None:
    provenance = read_provenance(candidate.folder)
    return None if provenance is None else find_overlap(provenance, documents)


def _values(
    gate: GateConfig, conditions: Sequence[Condition], *, overlap: Overlap | None = None, **parts: Any
) -> dict[str, Any]:
    return {
        "gate": gate.model_dump(mode="json"),
        "conditions": [asdict(condition) for condition in conditions],
        "provenance": None if overlap is None else asdict(overlap),
        **parts,
    }


def _keep(attempt: Run, findings: _Findings, gate: Path) -> str:
    """Keep the evidence with the run of the attempt, and give its sha256 in hex."""
    text = json.dumps(findings.evidence, ensure_ascii=False, sort_keys=True, indent=1) + "\n"
    with tempfile.TemporaryDirectory() as folder:
        for name, content in {EVIDENCE_NAME: text, **findings.pages}.items():
            path = Path(folder) / name
            path.write_text(content, encoding="utf-8", errors="backslashreplace")
            attempt.log_file(path)
    attempt.log_file(gate)
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()


def _end(attempt: Run, outcome: str, *, status: RunStatus = "FINISHED") -> None:
    """Note how an attempt ended; that the store hears of it is worth no failure of what is done already."""
    client = open_client()
    try:
        with explained("the outcome could not be noted"):
            client.set_tag(attempt.run_id, OUTCOME_TAG, outcome)
        attempt.close(status)
    except TrackingError as error:
        warn(str(error))


def _refusal(values: dict[str, Any], findings: _Findings) -> Answer:
    name, version, champion = values["model"], values["version"], values["champion"]
    place = "the first champion" if champion is None else f"champion in place of version {champion}"
    head = f"Refused: version {version} of {name} does not become {place}: {', '.join(findings.failed)}."
    return Answer(values={**values, "moved": False}, text=_text(head, values, findings), exit_code=REFUSED)


def _moved(line: Entry, values: dict[str, Any], findings: _Findings) -> Answer:
    was = "there was none" if line.came_from is None else f"was {line.came_from}"
    forced = f", forced past {', '.join(findings.failed)}" if line.forced else ""
    head = f"Champion of {values['model']}: version {line.went_to} ({was}){forced}; ledger line {line.number}."
    return Answer(
        values={**values, "moved": True, "champion": line.went_to, "ledger": asdict(line)},
        text=_text(head, values, findings),
    )


def _text(head: str, values: dict[str, Any], findings: _Findings) -> str:
    uses = values["uses"]
    used = f"had been used {counted(uses, 'time')} before" if uses else "had not been used before"
    lines = [head, "", describe_conditions(findings.conditions), ""]
    if "digest" in findings.failed:
        lines.append("Nothing else can be looked at without the files.")
    return "\n".join(
        [
            *lines,
            f"The promotion set {used}; the more often, the less it proves.",
            f"evidence {values['evidence'][:12]} at {values['evidence_place']}",
        ]
    )


def _whereabouts(action: Action, came_from: int | None, went_to: int) -> dict[str, Any]:
    """Give what every line of the ledger has; number and hash are set under the lock."""
    return {
        "number": 1,
        "previous": BEGINNING,
        "action": action,
        "who": who(),
        "when": now(),
        "came_from": came_from,
        "went_to": went_to,
    }
