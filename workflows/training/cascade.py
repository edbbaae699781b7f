"""Add a fast first pass to a trained tagger of two stages, and choose its gate on gold corpora."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from concord.models.checkpoint import is_half, load_tagger, save_tagger
from concord.models.errors import ConfigError
from concord.models.saved_tagger import CALIBRATION_NAME, tagger_digest
from concord.models.training.fit_first_pass import GateScore, choose_gate, fit_map, score_gates
from concord.models.two_stage.tagger import TwoStageTagger
from concord.pipeline.corpora.corpus_format import GoldFormat
from concord.workflows.bundles import MANIFEST_NAME, require_new_folder
from concord.workflows.console import Answer, info, table, warn
from concord.workflows.corpora.corpora import Documents, read_gold_for, short_names, without_labels
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
        output: folder of the new bundle.
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


def run(job: CascadeJob) -> Answer:
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
    curves = {}
    for path, documents in corpora.items():
        curves[path] = score_gates(tagger, documents)
        info(f"scored the gates on {short_names([path])}")
    gate = job.gate if job.gate is not None else choose_gate(list(curves.values()), tolerance=job.tolerance)
    if job.gate is None and not gate:
        warn(f"no gate keeps the loss of F1 within {job.tolerance} on every corpus; every sentence is encoded.")
    tagger.set_gate(gate)
    _write(tagger, job.output, source, first_source, corpora)
    values = {
        "folder": str(job.output.absolute()),
        "digest": tagger_digest(job.output),
        "gate": gate,
        "tolerance": job.tolerance,
        "explained_variance": explained,
        "corpora": {path: [asdict(score) for score in curve] for path, curve in curves.items()},
    }
    return Answer(values=values, text=_describe(values, curves))


def _write(
    tagger: TwoStageTagger, target: Path, source: Path, first_source: Path, corpora: Mapping[str, Documents]
) -> None:
    """Write the tagger over a copy of its source, with the provenance of both and the corpora of the gate."""
    skipped = shutil.ignore_patterns(MANIFEST_NAME, CALIBRATION_NAME, "*.png")
    shutil.copytree(source, target, dirs_exist_ok=True, ignore=skipped)
    tagger.calibration = None  # that of the stages does not fit the first pass
    save_tagger(tagger, target, half=is_half(source))
    provenance = Provenance(parts=[])
    for found in filter(None, map(read_provenance, (source, first_source))):
        provenance = provenance.joined_with(found)
    for path, documents in corpora.items():
        provenance = provenance.merged_with(describe_part("dev", [path], documents))
    write_provenance(target, provenance)


def _describe(values: Mapping[str, Any], curves: Mapping[str, Sequence[GateScore]]) -> str:
    gates = [score.gate for score in next(iter(curves.values()))]
    rows = [
        (
            f"{gate:g}" + (" *" if gate == values["gate"] else ""),
            *(f"{curve[number].f1:.1f} ({curve[number].encoded:.0%})" for curve in curves.values()),
        )
        for number, gate in enumerate(gates)
    ]
    header = ("gate", *(short_names([path]) for path in curves))
    lines = [
        "F1, and the share of words that both stages read:",
        table(rows, header=header, right=set(range(1, len(header)))),
        "",
        f"gate     {values['gate']:g} nats",
        f"bundle   {values['folder']}",
        "The copy is not calibrated; continue with concord calibrate.",
    ]
    return "\n".join(lines)
