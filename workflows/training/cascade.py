"""Add a fast first pass to a trained tagger of two stages, and choose its gate on gold corpora."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from concord.models.bundles.checkpoint import is_half, load_tagger, save_tagger
from concord.models.bundles.manifest import CALIBRATION_NAME, tagger_digest
from concord.models.errors import ConfigError
from concord.models.taggers.two_stage.tagger import TwoStageTagger
from concord.models.training.fit_first_pass import GateScore, choose_gate, fit_map, score_gates
from concord.pipeline.corpora.corpus_format import GoldFormat
from concord.workflows.bundles import copy_bundle, require_new_folder
from concord.workflows.console import Answer, info, table, warn
from concord.workflows.corpora.corpora import Documents, read_gold_for, rename, short_names, without_labels
from concord.workflows.corpora.provenance import Provenance, describe_part, read_provenance, write_provenance
from concord.workflows.registry.resolve_tagger import find_tagger


@dataclass(frozen=True, kw_only=True, slots=True)
class CascadeJob:
    """A tagger of two stages, its first pass, and the corpora that fit them to each other.

    Attributes:
        model, first: folders, embedded taggers or versions in the registry.
        data: dev corpora; each is scored by itself.
        labels, form: as in EvaluateJob.
        train: corpora on which the states of the first pass are mapped to those of stage one; their labels are not
            read.
        gate: nats; None chooses the largest that costs at most ``tolerance`` points of F1 on every corpus.
    """

    model: str
    first: str
    data: Sequence[str]
    train: Sequence[str]
    output: Path
    labels: Mapping[str, str | None] = field(default_factory=dict)
    form: GoldFormat = field(default_factory=GoldFormat)
    gate: float | None = None
    tolerance: float = 0.3
    device: str = "cpu"


@dataclass(frozen=True, kw_only=True, slots=True)
class CascadeResult:
    """A tagger with a first pass; the gate is in nats, and ``corpora`` holds the scores by gate of each corpus."""

    folder: Path
    digest: str
    gate: float
    tolerance: float
    explained_variance: float
    corpora: Mapping[str, Sequence[GateScore]]


def cascade_command(job: CascadeJob) -> Answer:
    """Write a copy of the tagger with a first pass, and without the calibration, which does not fit it.

    Raises:
        ConfigError: when the taggers do not fit each other, or the output exists.
        ModelError: when one of them does not load.
        InputError: when a corpus cannot be read.
    """
    source, first_source = find_tagger(job.model).folder, find_tagger(job.first).folder
    require_new_folder(job.output, "the tagger with its first pass")
    tagger, small = load_tagger(source, device=job.device), load_tagger(first_source, device=job.device)
    if not isinstance(tagger, TwoStageTagger):
        raise ConfigError(f"{job.model}: expected a tagger of two stages (uanet or doc_uanet), got {tagger.name}")
    first = tagger.add_first_pass(small, gate=job.gate or 0.0)
    train = read_gold_for(tagger, job.train, labels=job.labels, form=job.form)
    explained = fit_map(tagger, first, without_labels(train))
    info(f"the map of states explains {explained:.0%} of the variance of stage one's")
    corpora = {path: read_gold_for(tagger, [path], labels=job.labels, form=job.form) for path in job.data}
    rename_own = partial(rename, labels=job.labels, scheme=tagger.vocabulary.scheme)
    curves = {}
    for path, documents in corpora.items():
        curves[path] = score_gates(tagger, documents, rename=rename_own)
        info(f"scored the gates on {short_names([path])}")
    gate = job.gate if job.gate is not None else choose_gate(list(curves.values()), tolerance=job.tolerance)
    if job.gate is None and not gate:
        warn(f"no gate keeps the loss of F1 within {job.tolerance} on every corpus; every sentence is encoded.")
    tagger.set_gate(gate)
    _write(tagger, job.output, source, first_source, corpora)
    result = CascadeResult(
        folder=job.output.absolute(),
        digest=tagger_digest(job.output),
        gate=gate,
        tolerance=job.tolerance,
        explained_variance=explained,
        corpora=curves,
    )
    return Answer.of(result, text=_describe(result))


def _write(
    tagger: TwoStageTagger, target: Path, source: Path, first_source: Path, corpora: Mapping[str, Documents]
) -> None:
    """Write the tagger over a copy of its source, with the provenance of both and the corpora of the gate."""
    copy_bundle(source, target, leave_out=[CALIBRATION_NAME])
    tagger.calibration = None  # that of the stages does not fit the first pass
    save_tagger(tagger, target, half=is_half(source))
    provenance = Provenance(parts=[])
    for earlier in filter(None, map(read_provenance, (source, first_source))):
        provenance = provenance.joined_with(earlier)
    for path, documents in corpora.items():
        provenance = provenance.merged_with(describe_part("dev", [path], documents))
    write_provenance(target, provenance)


def _describe(result: CascadeResult) -> str:
    rows = [
        (
            f"{scores[0].gate:g}" + (" *" if scores[0].gate == result.gate else ""),
            *(f"{score.f1:.1f} ({score.encoded:.0%})" for score in scores),
        )
        for scores in zip(*result.corpora.values(), strict=True)
    ]
    header = ("gate", *(short_names([path]) for path in result.corpora))
    lines = [
        "F1, and the share of words that both stages read:",
        table(rows, header=header, right=set(range(1, len(header)))),
        "",
        f"gate     {result.gate:g} nats",
        f"bundle   {result.folder}",
        "The copy is not calibrated; continue with concord calibrate.",
    ]
    return "\n".join(lines)
