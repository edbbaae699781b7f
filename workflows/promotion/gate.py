"""The gate of a promotion: the evaluations of a candidate, and the conditions that they must meet."""

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from concord.models.bundles.checkpoint import load_tagger
from concord.models.data.sentence import first_documents
from concord.models.errors import ConfigError, ModelError
from concord.models.taggers.base import Tagger
from concord.pipeline.corpora.corpus_format import GoldFormat
from concord.pipeline.identity import ResolvedTagger
from concord.pipeline.storage.files import file_sha256
from concord.workflows.console import plain, table
from concord.workflows.corpora.corpora import (
    Documents,
    Overlap,
    find_overlap,
    read_gold_for,
    read_provenance,
    without_labels,
)
from concord.workflows.evaluation.compare import CompareJob, Line, Procedure, compare, evidence
from concord.workflows.evaluation.evaluate import EvaluateJob, score_tagger
from concord.workflows.job_files import corpus_paths, read_yaml
from concord.workflows.registry.model_versions import ModelVersion, fetch
from concord.workflows.registry.resolve_tagger import find_tagger

DEFAULT_GATE = Path("conf/promote.yaml")
"""The gate of a promotion that names no other."""
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
    rounds: int = Field(default=10_000, ge=1)
    """Rounds of the randomisation test."""
    seed: int = 1


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
        return Findings(conditions=conditions, evidence=_evidence(gate, conditions))
    candidate = find_tagger(version.reference)
    conditions = [digest_condition(candidate.digest)]
    if champion is None:
        return _examine_first(candidate, gate, conditions, device=device)
    incumbent = find_tagger(f"models:/{version.name}/{champion}")
    return _examine_against(incumbent, candidate, gate, conditions, device=device)


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


def _examine_first(
    candidate: ResolvedTagger, gate: GateConfig, conditions: list[Condition], *, device: str
) -> Findings:
    """Test a first champion, whose score must reach a minimum since there is nothing to compare it with."""
    job = EvaluateJob(
        folder=candidate.folder, data=gate.data, labels=gate.labels, form=gate, train=gate.train, device=device
    )
    tagger = load_tagger(candidate.folder, device=device)
    documents = read_gold_for(tagger, gate.data, labels=gate.labels, form=gate)
    evaluation = score_tagger(tagger, documents, job)
    overlap = _overlap(candidate, documents)
    conditions = [*conditions, provenance_condition(gate, overlap), first_condition(gate, evaluation.score)]
    data = [{"path": path, "sha256": file_sha256(Path(path))} for path in gate.data]
    evidence = {"tagger": candidate.name, "digest": candidate.digest, "data": data, **plain(evaluation)}
    return Findings(conditions=conditions, evidence=_evidence(gate, conditions, overlap=overlap, evaluation=evidence))


def _examine_against(
    champion: ResolvedTagger, candidate: ResolvedTagger, gate: GateConfig, conditions: list[Condition], *, device: str
) -> Findings:
    job = CompareJob(
        first=champion,
        second=candidate,
        data=gate.data,
        labels=gate.labels,
        form=gate,
        train=gate.train,
        procedure=Procedure(alpha=gate.alpha, rounds=gate.rounds, seed=gate.seed),
        device=device,
    )
    comparison = compare(job)
    documents = [list(document.sentences) for document in comparison.documents]
    overlap = _overlap(candidate, documents)
    conditions = [
        *conditions,
        provenance_condition(gate, overlap),
        *comparison_conditions(gate, comparison.lines),
    ]
    if gate.throughput_ratio:
        conditions.append(throughput_condition(gate, relative_speed(*comparison.taggers, documents)))
    return Findings(
        conditions=conditions,
        evidence=_evidence(gate, conditions, overlap=overlap, comparison=evidence(job, comparison)),
    )


def _overlap(candidate: ResolvedTagger, documents: Documents) -> Overlap | None:
    provenance = read_provenance(candidate.folder)
    if provenance is None:
        return None
    overlap = find_overlap(provenance, documents)
    return overlap if overlap.seen or provenance.is_complete else None


def _evidence(
    gate: GateConfig, conditions: Sequence[Condition], *, overlap: Overlap | None = None, **parts: object
) -> Mapping[str, object]:
    return {"gate": gate, "conditions": conditions, "provenance": overlap, **parts}


def _at_least(name: str, value: float, least: float, *, found: str, wanted: str = "") -> Condition:
    wanted, short_by = wanted or f"{least:g} or more", max(0.0, least - value)
    return Condition(name=name, holds=value >= least, found=found, wanted=wanted, short_by=short_by)


def _interval(line: Line) -> str:
    return f"{line.difference.mean:+.2f} ({line.difference.low:+.2f} to {line.difference.high:+.2f})"
