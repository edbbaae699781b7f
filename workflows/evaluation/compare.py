"""The comparison of two taggers, A and B, on gold corpora, and its result as JSON."""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version

from concord.models.bundles.checkpoint import load_tagger
from concord.models.errors import ConfigError
from concord.models.evaluation.breakdown import known_names
from concord.models.taggers.base import Tagger
from concord.pipeline.corpora.corpus_format import GoldFormat
from concord.pipeline.corpora.read_corpus import GoldDocument
from concord.pipeline.identity import ResolvedTagger
from concord.pipeline.storage.files import file_sha256
from concord.workflows.corpora import corpora
from concord.workflows.evaluation.paired_tests import (
    DocumentChange,
    DocumentLabels,
    Line,
    Procedure,
    changed_documents,
    compare_labels,
    describe_line,
)
from concord.workflows.evaluation.slices import Slice, check_not_empty, slice_finder

LISTED_CHANGES = 20
DISTRIBUTIONS = {"concord": "concord-annotate", "torch": "torch", "numpy": "numpy"}


@dataclass(frozen=True, kw_only=True, slots=True)
class CompareJob:
    """The taggers to compare, the corpora, and how.

    Attributes:
        first, second: A and B.
        labels: renames entity types, or token labels, of the corpora and of both taggers; None drops an entity type.
        train: training corpora, for slices by whether a name was seen in training.
    """

    first: ResolvedTagger
    second: ResolvedTagger
    data: Sequence[str]
    slices: Sequence[Slice] = ()
    labels: Mapping[str, str | None] = field(default_factory=dict)
    form: GoldFormat = field(default_factory=GoldFormat)
    train: Sequence[str] = ()
    procedure: Procedure = field(default_factory=Procedure)
    device: str = "cpu"


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """The result of a comparison.

    Attributes:
        documents: with gold labels.
        first, second: the labels predicted by A and by B.
        measure: of the scores: ``F1`` or ``accuracy``.
        left_out: entity types of B alone that the corpora have no entity of; what B finds of them does not count.
        unit: of randomisation and resampling: ``document``, or ``sentence`` if the corpora mark no documents.
        lines: the overall line comes first.
        changes: the documents in which one is correct where the other is wrong, most changes first.
    """

    documents: Sequence[GoldDocument]
    first: DocumentLabels
    second: DocumentLabels
    measure: str
    left_out: Sequence[str]
    unit: str
    lines: Sequence[Line]
    changes: Sequence[DocumentChange]

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
        return describe_line(self.lines[0], unit=self.measure)


def compare(job: CompareJob) -> Comparison:
    """Label the corpora with both taggers and test the difference of their scores.

    B may know types that A lacks, as a tagger that has learned more does: A misses what the corpora have of them.

    Raises:
        ConfigError: when the taggers cannot be compared, or the corpora have no labels for them.
        ModelError: when a tagger does not load.
        InputError: when a corpus cannot be read or has no entity, or a slice is empty.
    """
    taggers = [load_tagger(resolved.folder, device=job.device) for resolved in (job.first, job.second)]
    further = _further_types(*taggers, labels=job.labels)
    scheme = taggers[0].vocabulary.scheme
    form = corpora.gold_format(job.form, scheme)
    trees = any(tagger.needs_trees for tagger in taggers)
    documents = corpora.read_documents(job.data, labels=job.labels, form=form, trees=trees)
    sentences = [list(document.sentences) for document in documents]
    found = corpora.require_entities(sentences, job.data, scheme)
    left_out = {kind for kind, shown in further.items() if shown not in found}
    labels = {**job.labels, **dict.fromkeys(left_out)}
    for tagger in taggers:
        corpora.check_gold(tagger, sentences, job.data, labels=labels)
    known = None
    if job.train:
        train = corpora.read_corpora(job.train, labels=job.labels, form=form)
        known = known_names((sentence for document in train for sentence in document), scheme=scheme)
    find_slices = slice_finder(job.slices, documents, known)
    check_not_empty(job.slices, documents, find_slices, scheme=scheme)
    first, second = (_label(tagger, sentences, labels) for tagger in taggers)
    return Comparison(
        documents=documents,
        first=first,
        second=second,
        measure=scheme.measure,
        left_out=sorted({further[kind] for kind in left_out}),
        unit="sentence" if all(document.name is None for document in documents) else "document",
        lines=compare_labels(documents, first, second, procedure=job.procedure, find_slices=find_slices, scheme=scheme),
        changes=changed_documents(documents, first, second, scheme=scheme),
    )


def evidence(job: CompareJob, comparison: Comparison) -> Mapping[str, object]:
    """Return the result and what it depends on.

    Digests identify taggers and data; the same taggers, data, procedure and versions give the same values.
    """
    documents, lines = comparison.documents, comparison.lines
    return {
        "verdict": comparison.verdict,
        "first": job.first.identity,
        "second": job.second.identity,
        "data": [{"path": path, "sha256": file_sha256(path)} for path in job.data],
        "train": [{"path": path, "sha256": file_sha256(path)} for path in job.train],
        "labels": dict(job.labels),
        "left_out": comparison.left_out,
        "unit": comparison.unit,
        "units": len(documents),
        "sentences": sum(len(document.sentences) for document in documents),
        "measure": comparison.measure,
        **asdict(job.procedure),
        "lines": lines,
        "changes": [asdict(it) | {"name": documents[it.number].name} for it in comparison.changes[:LISTED_CHANGES]],
        "changed": len(comparison.changes),
        "versions": {
            "python": platform.python_version(),
            **{name: version(distribution) for name, distribution in DISTRIBUTIONS.items()},
        },
    }


def describe_tagger(tagger: ResolvedTagger) -> str:
    """Return a tagger's name, version and the first digits of its digest."""
    return " ".join(filter(None, (tagger.name, tagger.version and f"version {tagger.version}", tagger.digest[:12])))


def _further_types(first: Tagger, second: Tagger, *, labels: Mapping[str, str | None]) -> dict[str, str]:
    """Return the entity types that B knows and A lacks, each with its name here; ConfigError if A knows others too."""
    entities = [tagger.vocabulary.scheme.has_entities for tagger in (first, second)]
    if entities[0] != entities[1]:
        raise ConfigError("A and B: expected two entity taggers or two taggers of token labels, got one of each")
    if not entities[0]:
        return {}
    shown = [{kind: labels.get(kind, kind) for kind in tagger.entity_types} for tagger in (first, second)]
    kinds = [{kind for kind in names.values() if kind is not None} for names in shown]
    if not kinds[0] <= kinds[1]:
        known = [", ".join(sorted(found)) or "none" for found in kinds]
        raise ConfigError(
            f"A knows {known[0]}, B knows {known[1]}: expected the same types on both sides, or more of them in B; "
            "--labels GPE=LOC,MISC= maps or drops types of the corpus and of both taggers"
        )
    return {kind: name for kind, name in shown[1].items() if name is not None and name not in kinds[0]}


def _label(tagger: Tagger, documents: corpora.Documents, labels: Mapping[str, str | None]) -> DocumentLabels:
    """Return a tagger's labels of the documents, renamed as requested; it does not see the gold labels."""
    scheme = tagger.vocabulary.scheme
    return [
        [corpora.rename(prediction.labels, labels, scheme=scheme) for prediction in predictions]
        for predictions in tagger.predict_documents(corpora.without_labels(documents))
    ]
