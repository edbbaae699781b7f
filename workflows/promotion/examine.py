"""Examine a candidate for promotion: run the evaluations that the gate asks for, and collect the evidence."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from concord.pipeline.errors import ModelError
from concord.pipeline.identity import ResolvedTagger
from concord.pipeline.saved_tagger import load_tagger
from concord.pipeline.storage.files import file_sha256
from concord.workflows.comparison.compare import CompareJob, compare, evidence
from concord.workflows.comparison.page import render_page
from concord.workflows.comparison.paired_tests import Procedure
from concord.workflows.comparison.slices import Slice, parse_slice
from concord.workflows.jobs import GateConfig
from concord.workflows.promotion.gate import (
    Condition,
    comparison_conditions,
    digest_condition,
    first_condition,
    provenance_condition,
    speed_ratio,
    throughput_condition,
)
from concord.workflows.registry.model_versions import ModelVersion, fetch
from concord.workflows.registry.resolve_tagger import find_tagger
from concord.workflows.training import evaluate
from concord.workflows.training.corpora import Documents, read_gold_for
from concord.workflows.training.provenance import Overlap, find_overlap, read_provenance

PAGE_NAME = "comparison.html"


@dataclass(frozen=True, kw_only=True, slots=True)
class Findings:
    """The result of an examination.

    Attributes:
        evidence: as plain values.
        pages: HTML pages by file name.
    """

    conditions: Sequence[Condition]
    evidence: dict[str, Any]
    pages: dict[str, str] = field(default_factory=dict)

    @property
    def failed(self) -> list[str]:
        """The names of the conditions that do not hold."""
        return [condition.name for condition in self.conditions if not condition.holds]


def gate_slices(gate: GateConfig) -> list[Slice]:
    """Return the slices of a gate.

    Raises:
        ConfigError: when one cannot be parsed.
    """
    return [parse_slice(f"{name}={condition}") for name, condition in gate.slices.items()]


def examine(version: ModelVersion, champion: int | None, gate: GateConfig, *, device: str) -> Findings:
    """Test all conditions of a gate, or only the digest if that does not match.

    Args:
        champion: the version to compare with; None if there is none yet.

    Raises:
        ConfigError: when the taggers cannot be compared.
        InputError: when a corpus of the gate cannot be read.
        ModelError: when the champion cannot be loaded.
        TrackingError: when the store cannot be reached.
    """
    try:
        fetch(version)
    except ModelError as error:
        conditions = [digest_condition(version.digest, fault=str(error))]
        return Findings(conditions=conditions, evidence=_evidence(gate, conditions))
    candidate = find_tagger(version.reference)
    conditions = [digest_condition(candidate.digest)]
    if champion is None:
        return _examine_first(candidate, gate, conditions, device=device)
    incumbent = find_tagger(f"models:/{version.name}/{champion}")
    return _examine_against(incumbent, candidate, gate, conditions, device=device)


def _examine_first(
    candidate: ResolvedTagger, gate: GateConfig, conditions: list[Condition], *, device: str
) -> Findings:
    """Test a first champion, whose score must reach a minimum since there is nothing to compare it with."""
    job = evaluate.EvaluateJob(
        folder=candidate.folder, data=gate.data, labels=gate.labels, form=gate, train=gate.train, device=device
    )
    tagger = load_tagger(candidate.folder, device=device)
    documents = read_gold_for(tagger, gate.data, labels=gate.labels, form=gate)
    scores = evaluate.score_tagger(tagger, documents, job)
    score = scores["accuracy"] if "accuracy" in scores else scores["scores"]["all"]["f1"]
    overlap = _overlap(candidate, documents)
    found = [*conditions, provenance_condition(gate, overlap), first_condition(gate, score)]
    data = [{"path": path, "sha256": file_sha256(Path(path))} for path in gate.data]
    evaluation = {"tagger": candidate.name, "digest": candidate.digest, "data": data, **scores}
    return Findings(conditions=found, evidence=_evidence(gate, found, overlap=overlap, evaluation=evaluation))


def _examine_against(
    champion: ResolvedTagger, candidate: ResolvedTagger, gate: GateConfig, conditions: list[Condition], *, device: str
) -> Findings:
    job = CompareJob(
        first=champion,
        second=candidate,
        data=gate.data,
        slices=gate_slices(gate),
        labels=gate.labels,
        form=gate,
        train=gate.train,
        procedure=Procedure(alpha=gate.alpha, rounds=gate.rounds, seed=gate.seed),
        device=device,
    )
    comparison = compare(job)
    documents = [list(document.sentences) for document in comparison.documents]
    overlap = _overlap(candidate, documents)
    first, second = (load_tagger(tagger.folder, device=device) for tagger in (champion, candidate))
    speed = speed_ratio(first, second, documents, turns=gate.throughput_turns)
    found = [
        *conditions,
        provenance_condition(gate, overlap),
        *comparison_conditions(gate, comparison.lines),
        throughput_condition(gate, speed["ratio"]),
    ]
    return Findings(
        conditions=found,
        evidence=_evidence(gate, found, overlap=overlap, comparison=evidence(job, comparison), throughput=speed),
        pages={PAGE_NAME: render_page(job, comparison)},
    )


def _overlap(candidate: ResolvedTagger, documents: Documents) -> Overlap | None:
    provenance = read_provenance(candidate.folder)
    return None if provenance is None else find_overlap(provenance, documents)


def _evidence(
    gate: GateConfig, conditions: Sequence[Condition], *, overlap: Overlap | None = None, **parts: Any
) -> dict[str, Any]:
    return {
        "gate": gate.model_dump(mode="json"),
        "conditions": [asdict(condition) for condition in conditions],
        "provenance": None if overlap is None else asdict(overlap),
        **parts,
    }
