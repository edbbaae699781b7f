"""The data of a learning: what the tagger was trained on, as far as its files are unchanged, or what the user names."""

import json
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from concord.models.bundles.manifest import BUNDLE_NAME
from concord.models.errors import ConfigError
from concord.models.labels import LabelScheme
from concord.pipeline.corpora.corpus_format import GoldFormat
from concord.pipeline.identity import ResolvedTagger
from concord.workflows.console import warn
from concord.workflows.corpora.corpora import label_types, read_corpora
from concord.workflows.corpora.provenance import ROLES, Provenance, Role, is_unchanged, read_provenance
from concord.workflows.corrections.corrected_corpus import CORPUS_NAME
from concord.workflows.registry.mlflow_client import TrackingError, download
from concord.workflows.registry.model_versions import is_reference, resolve
from concord.workflows.training.job import DataConfig, TrainJob
from concord.workflows.training.tracking import JOB_NAME

REHEARSED = 4
LEAST_REHEARSED = 10_000
"""Words that an epoch rehearses: for each word that somebody looked at, and at least."""
_OPTIONS: Mapping[Role, str] = {"train": "to rehearse (--rehearse)", "dev": "that choose the epoch (--dev)"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Corpora:
    """The gold corpora that a user names; what is empty is that of the training of the tagger.

    Attributes:
        rehearse: None to train on the corrected documents alone.
        labels: entity type of all corpora, the corrected one included -> that of the tagger, None for no entity.
    """

    rehearse: Sequence[str] | None = ()
    dev: Sequence[str] = ()
    test: Sequence[str] = ()
    labels: Mapping[str, str | None] = field(default_factory=dict)


def find_job(tagger: ResolvedTagger, reference: str) -> TrainJob | None:
    """Return the job that trained a tagger; None where it is not known, as for a bundled tagger.

    It is looked up in the run of a registered version, or in the folder of the training that a bundle lies in.
    """
    if not is_reference(reference):
        path = tagger.folder.parent / JOB_NAME
        return _read_job(path) if tagger.folder.name == BUNDLE_NAME and path.is_file() else None
    run_id = resolve(reference).run_id
    if run_id is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        try:
            return _read_job(download(f"runs:/{run_id}/{JOB_NAME}", Path(folder)))
        except TrackingError:
            # A bundle that was registered by itself has a run without a job.
            return None


def find_data(corpora: Corpora, job: TrainJob | None, tagger: ResolvedTagger) -> DataConfig:
    """Return the corpora to rehearse, those that choose the epoch, and those to test on.

    Raises:
        ConfigError: when there are none to rehearse or to choose the epoch.
    """
    data = DataConfig(train=[], dev=[])
    if job is not None and _has_own_form(job, corpora):
        data = data.model_copy(update={"labels": job.data.labels})
    elif job is not None:
        data = _unchanged(job, read_provenance(tagger.folder) or Provenance(parts=[]), corpora)
    if corpora.rehearse is None or corpora.rehearse:
        data = data.model_copy(update={"train": list(corpora.rehearse or ()), "terms": None, "unlabelled": None})
    named = {name: list(paths) for name, paths in (("dev", corpora.dev), ("test", corpora.test)) if paths}
    data = data.model_copy(update={**named, "vectors": None, "labels": {**data.labels, **corpora.labels}})
    lacking = {"train": not data.train and corpora.rehearse is not None, "dev": not data.dev}
    if any(lacking.values()):
        raise ConfigError(_describe_lack(tagger, job, [role for role in _OPTIONS if lacking[role]]))
    return data


def _describe_lack(tagger: ResolvedTagger, job: TrainJob | None, roles: Sequence[Role]) -> str:
    """Say which corpora a learning needs, why there are none, which the tagger has seen, and how to go on without."""
    reason = "its training is not known" if job is None else "those of its training are left out"
    provenance = read_provenance(tagger.folder) or Provenance(parts=[])
    seen = [
        f"{ROLES[part.role]} is {', '.join(file.name for file in part.files)}"
        for part in provenance.parts
        if part.role in roles and part.files
    ]
    wanted = " and ".join(f"corpora {_OPTIONS[role]}" for role in roles)
    advice: Mapping[Role, str] = {
        "train": "go on without a rehearsal by --no-rehearsal, and it may forget what the corrections do not show",
        "dev": "for --dev a small corpus of your own documents is enough",
    }
    return (
        f"{tagger.name}: expected {wanted}, got none: {reason}{''.join(f'; {part}' for part in seen)}. Name these or "
        f"others with its entity types; {'; '.join(advice[role] for role in roles)}"
    )


def with_rehearsal(
    data: DataConfig, *, looked_at: int, scheme: LabelScheme, further_types: Collection[str]
) -> DataConfig:
    """Return data of which an epoch reads as many documents as go with the words that somebody looked at.

    The documents are drawn once and for all. Where a corpus has no entity of a further type, its outside words may be
    of this type.
    """
    words = max(REHEARSED * looked_at, LEAST_REHEARSED)
    corpora = data.train_corpora()
    read = [read_corpora([corpus.path], labels=data.labels) for corpus in corpora]
    sizes = [
        corpus.weight * sum(len(sentence.words) for document in documents for sentence in document)
        for corpus, documents in zip(corpora, read, strict=True)
    ]
    share = min(1.0, words / max(1.0, sum(sizes)))
    rehearsed = []
    for corpus, documents in zip(corpora, read, strict=True):
        lacks = sorted({*corpus.lacks, *(set(further_types) - label_types(documents, scheme))})
        rehearsed.append(corpus.model_copy(update={"weight": corpus.weight * share, "lacks": lacks}))
    return data.model_copy(update={"train": rehearsed})


def _unchanged(job: TrainJob, provenance: Provenance, corpora: Corpora) -> DataConfig:
    """Return the data of a training without the corpora that are gone or have changed, which is warned of.

    What a training that itself continued another one has read in part is read in full. Corrections that it learned are
    left out: those that still count are in the log of their collection.
    """
    corpora_read = [corpus for corpus in job.data.train_corpora() if Path(corpus.path).name != CORPUS_NAME]
    train = [corpus for corpus in corpora_read if is_unchanged(provenance, "train", corpus.path)]
    dev = [path for path in job.data.paths("dev") if is_unchanged(provenance, "dev", path)]
    terms = [] if job.data.terms is None else [job.data.terms]
    keeps_weak = all(is_unchanged(provenance, "train", path) for path in job.data.paths("unlabelled"))
    keeps_weak = keeps_weak and all(Path(path).exists() for path in terms)
    weak = [*job.data.paths("unlabelled"), *terms]
    needed = [*(() if corpora.rehearse != () else (*(corpus.path for corpus in corpora_read), *weak))]
    needed += [] if corpora.dev else job.data.paths("dev")
    unchanged = {*(corpus.path for corpus in train), *dev, *(weak if keeps_weak else ())}
    if lost := [path for path in dict.fromkeys(needed) if path not in unchanged]:
        warn(f"gone or changed since {job.tagger} was trained, and left out: {', '.join(lost)}")
    if job.start is not None:
        train = [corpus.model_copy(update={"weight": max(1.0, corpus.weight)}) for corpus in train]
    changes = {
        "train": train,
        "dev": dev,
        "test": [path for path in job.data.paths("test") if Path(path).exists()],
    }
    return job.data.model_copy(update=changes if keeps_weak else changes | {"terms": None, "unlabelled": None})


def _has_own_form(job: TrainJob, corpora: Corpora) -> bool:
    """Return whether a training's corpora are not read as the corrected documents are; its corpora are not used then.

    Raises:
        ConfigError: when the user does not name others.
    """
    form = GoldFormat(**{name: getattr(job.data, name) for name in GoldFormat.model_fields})
    if form == GoldFormat():
        return False
    if corpora.rehearse == () or not corpora.dev:
        raise ConfigError(
            f"{job.tagger}: expected to read its corpora as the corrected documents are, got settings of their own "
            "(data.label_column, data.label_scheme or the like); convert them with 'concord prepare' and name the "
            "copies by --rehearse and --dev"
        )
    return True


def _read_job(path: Path) -> TrainJob | None:
    try:
        return TrainJob.from_mapping(json.loads(path.read_bytes())["job"], where=str(path))
    except (OSError, ValueError, KeyError, TypeError) as error:
        warn(f"the job that trained the tagger cannot be read: {error}")
        return None
