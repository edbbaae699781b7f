"""``concord evaluate`` scores a tagger on gold corpora, ``concord compare`` tests the difference of two, A and B.

All scores are percentages: strict span F1, or accuracy for token labels. The lines of both are of the same spans:
overall, by type, seen and unseen in training, and by language. With token labels each word is a span by itself, so that
F1, precision and recall over all words are the accuracy. Differences are B minus A.
"""

import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from concord.models.bundles.checkpoint import load_tagger
from concord.models.bundles.manifest import tagger_digest
from concord.models.data.outputs import DEFAULT_OPTIONS, Prediction, PredictOptions
from concord.models.errors import ConfigError
from concord.models.evaluation import significance
from concord.models.evaluation.metrics import Scores, group_counts_by_document, known_names, name_of
from concord.models.evaluation.significance import Difference, UnitCounts
from concord.models.labels import BIO, LabelScheme, Span
from concord.models.taggers.base import Tagger
from concord.pipeline.corpora.corpus_format import GoldFormat
from concord.pipeline.corpora.gold_corpus import GoldDocument
from concord.pipeline.errors import InputError
from concord.pipeline.identity import ResolvedTagger
from concord.pipeline.names.language import language_of
from concord.pipeline.storage.files import file_sha256
from concord.workflows import corpora
from concord.workflows.console import Answer, counted, plain, table
from concord.workflows.corpora import Documents, gold_format, read_corpora, read_gold_for, rename, without_labels

WARM_UP_DOCUMENTS = 3
SHOWN_LABELS = 60

Kind = Literal["all", "type", "novelty", "language"]
Group: TypeAlias = tuple[Kind, str]
"""Such as ``("type", "PER")``, ``("novelty", "unseen")`` or ``("language", "language pt")``."""
GroupFinder: TypeAlias = Callable[[int, int, Span], Iterable[Group]]
"""Takes the indices of a document and of a sentence in it, and a span; returns the groups of the span."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluateJob:
    """A tagger and the gold corpora to score it on.

    Attributes:
        labels: renames entity types, or token labels, of the corpora and of the tagger; None drops an entity type.
        form: which column of the corpora has the labels.
        train: training corpora, which decide whether a name is seen or unseen; `labels` applies to them too.
    """

    folder: Path
    data: Sequence[str]
    labels: Mapping[str, str | None] = field(default_factory=dict)
    form: GoldFormat = field(default_factory=GoldFormat)
    train: Sequence[str] = ()
    device: str = "cpu"
    options: PredictOptions = DEFAULT_OPTIONS


Parts: TypeAlias = Mapping[str, Scores]
"""Name of a part of the spans -> its scores."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """The scores of a tagger.

    Attributes:
        scores: for ``all``, and of each entity type or token label.
        by_novelty: of names that are ``seen`` or ``unseen`` in the training corpora; empty if none are given.
        by_language: empty unless the documents are in two languages or more.
        accuracy: of token labels, in percent; None for entities.
        draft_score: what ``score`` is, of the labels of stage one.
        refined_words: words whose label stage two decided.
    """

    documents: int
    sentences: int
    words: int
    scores: Parts
    by_novelty: Parts
    by_language: Parts
    accuracy: float | None
    draft_score: float
    refined_words: int
    seconds: float
    words_per_second: float

    @property
    def score(self) -> float:
        """The overall F1 of entities, or the accuracy of token labels, in percent."""
        return self.scores["all"].f1


def evaluate_command(job: EvaluateJob) -> Answer:
    """Score a tagger.

    Raises:
        ConfigError: when the corpora have no labels for this tagger.
        ModelError: when it does not load.
        InputError: when a corpus cannot be read, or there is no sentence in them.
    """
    tagger = load_tagger(job.folder, device=job.device)
    documents = read_gold_for(tagger, job.data, labels=job.labels, form=job.form)
    evaluation = score_tagger(tagger, documents, job)
    values = {
        "tagger": tagger.name,
        "digest": tagger_digest(job.folder),
        "data": job.data,
        "train": job.train,
        "threshold": tagger.threshold if job.options.threshold is None else job.options.threshold,
    }
    return Answer(values=values | plain(evaluation), text=_describe_scores(values, evaluation))


def score_tagger(tagger: Tagger, documents: Documents, job: EvaluateJob) -> Evaluation:
    """Return the scores of a tagger in percent, and its speed in words a second."""
    predicted, seconds = predict_timed(tagger, documents, job.options)
    return score_predictions(tagger, documents, predicted, seconds, job)


def predict_timed(
    tagger: Tagger, documents: Documents, options: PredictOptions
) -> tuple[list[list[Prediction]], float]:
    """Label documents without their gold labels; return predictions and the seconds they took after a warm-up."""
    plain = without_labels(documents)
    tagger.predict_documents(plain[:WARM_UP_DOCUMENTS], options)
    started = time.perf_counter()
    predicted = tagger.predict_documents(plain, options)
    return predicted, time.perf_counter() - started


def score_predictions(
    tagger: Tagger, documents: Documents, predicted: Sequence[Sequence[Prediction]], seconds: float, job: EvaluateJob
) -> Evaluation:
    """Return what ``score_tagger`` does, from existing predictions."""
    scheme, words = tagger.vocabulary.scheme, sum(len(sentence.words) for sentence in chain.from_iterable(documents))
    form = job.form if scheme.has_entities else gold_format(job.form, scheme)
    groups = group_finder(documents, read_known_names(job.train, labels=job.labels, form=form, scheme=scheme))

    gold = [[sentence.labels or () for sentence in document] for document in documents]

    def scored(labels: Iterable[Iterable[Sequence[str]]]) -> dict[Kind, dict[str, Scores]]:
        """Return the scores of the groups of each kind, by their names, which are sorted."""
        renamed = [[rename(sentence, job.labels, scheme=scheme) for sentence in document] for document in labels]
        found: dict[Kind, dict[str, Scores]] = {kind: {} for kind in get_args(Kind)} | {"all": {"all": Scores()}}
        for (kind, name), counts in sorted(group_counts_by_document(gold, renamed, groups, scheme=scheme).items()):
            wanted, labelled, correct = map(int, counts.sum(axis=0))
            found[kind][name] = Scores(gold=wanted, predicted=labelled, correct=correct)
        return found

    final = scored([labelled.labels for labelled in document] for document in predicted)
    draft = scored([labelled.draft_labels for labelled in document] for document in predicted)
    whole = final["all"]["all"]
    return Evaluation(
        documents=len(documents),
        sentences=sum(map(len, documents)),
        words=words,
        scores=final["all"] | final["type"],
        by_novelty=final["novelty"],
        by_language=final["language"],
        accuracy=None if scheme.has_entities else whole.f1,
        draft_score=draft["all"]["all"].f1,
        refined_words=sum(sum(labelled.refined) for labelled in chain.from_iterable(predicted)),
        seconds=seconds,
        words_per_second=words / seconds,
    )


def read_known_names(
    train: Sequence[str], *, labels: Mapping[str, str | None], form: GoldFormat, scheme: LabelScheme
) -> frozenset[tuple[str, ...]] | None:
    """Return the names in training corpora, by which a name counts as seen; None if there are none."""
    if not train:
        return None
    return known_names(chain.from_iterable(read_corpora(train, labels=labels, form=form)), scheme=scheme)


def group_finder(documents: Documents, known: frozenset[tuple[str, ...]] | None) -> GroupFinder:
    """Return the function that finds the groups of a span: all, its type, whether it is seen, and its language.

    Args:
        known: the names in the training corpora; None leaves out whether a name is seen.
    """
    texts = (" ".join(word for sentence in document for word in sentence.words) for document in documents)
    languages = [found.code if (found := language_of(text)) is not None else None for text in texts]
    several = len(set(languages) - {None}) > 1

    def find_groups(number: int, position: int, span: Span) -> Iterable[Group]:
        yield "all", "all"
        yield "type", span.label
        if known is not None:
            yield "novelty", "seen" if name_of(documents[number][position], span) in known else "unseen"
        if several and languages[number] is not None:
            yield "language", f"language {languages[number]}"

    return find_groups


def _describe_scores(values: Mapping[str, Any], evaluation: Evaluation) -> str:
    sizes = (counted(evaluation.documents, "document"), counted(evaluation.sentences, "sentence"))
    whole, *parts = evaluation.scores.items()
    frequent = sorted(parts, key=lambda item: -item[1].gold)[:SHOWN_LABELS]
    shown = [whole, *(part for part in parts if part in frequent)]
    others = [*evaluation.by_novelty.items(), *evaluation.by_language.items()]
    rows = [(name, part.precision, part.recall, part.f1, part.gold) for name, part in [*shown, *others]]
    lines = [
        f"{values['tagger']} {values['digest'][:12]} on {', '.join(values['data'])}",
        f"{', '.join(sizes)}, {counted(evaluation.words, 'word')}; {evaluation.words_per_second:,.0f} words/s",
        "",
        table(rows, header=("", "precision", "recall", "F1", "gold")),
    ]
    if len(parts) > SHOWN_LABELS:
        lines.append(f"and {len(parts) - SHOWN_LABELS:,} less frequent labels: --json")
    if evaluation.accuracy is not None:
        lines.append(f"accuracy {evaluation.accuracy:.2f} %")
    if values["threshold"] is not None:
        decided = f"stage two decided the labels of {counted(evaluation.refined_words, 'word')}"
        lines.append(f"{decided}; stage one alone: {evaluation.draft_score:.2f}")
    return "\n".join(lines)


Verdict = Literal["better", "worse", "undecided"]
DocumentLabels = Sequence[Sequence[Sequence[str]]]
"""Labels of the sentences of each document, in BIO2 or token labels."""
DISTRIBUTIONS = {"concord": "concord-annotate", "torch": "torch", "numpy": "numpy"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One line of a comparison, in percent and percentage points.

    Attributes:
        name: such as ``all``, ``PER``, ``unseen`` or ``language pt``.
        first, second: scores of A and B.
        difference: B minus A, with its bootstrap interval.
        p: of the randomisation test.
        corrected: p after Holm's correction over all lines.
        detectable: the smallest difference that this data detects at level alpha with a power of 80 %; None if the
            variance of the difference is unknown.
        differing: documents in which the counts of A and B differ.
        verdict: ``better`` or ``worse`` if ``corrected`` is below alpha.
    """

    kind: Kind
    name: str
    first: float
    second: float
    difference: Difference
    p: float
    corrected: float
    detectable: float | None
    differing: int
    verdict: Verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class CompareJob:
    """The taggers to compare, the corpora, and how.

    Attributes:
        first, second: A and B.
        labels: renames entity types, or token labels, of the corpora and of both taggers; None drops an entity type.
        train: training corpora, for lines of seen and unseen names.
        alpha: significance level, for all lines of the comparison together.
    """

    first: ResolvedTagger
    second: ResolvedTagger
    data: Sequence[str]
    labels: Mapping[str, str | None] = field(default_factory=dict)
    form: GoldFormat = field(default_factory=GoldFormat)
    train: Sequence[str] = ()
    alpha: float = 0.05
    device: str = "cpu"


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """The result of a comparison.

    Attributes:
        taggers: A and B, loaded.
        documents: with gold labels.
        first, second: the labels predicted by A and by B.
        measure: of the scores: ``F1`` or ``accuracy``.
        left_out: entity types of B alone that the corpora have no entity of; what B finds of them does not count.
        unit: of randomisation and resampling: ``document``, or ``sentence`` if the corpora mark no documents.
        lines: overall, by type, of seen and unseen names, by language.
    """

    taggers: tuple[Tagger, Tagger]
    documents: Sequence[GoldDocument]
    first: DocumentLabels
    second: DocumentLabels
    measure: str
    left_out: Sequence[str]
    unit: str
    lines: Sequence[Line]

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
        return describe_line(self.lines[0], unit=self.measure)


def compare_command(job: CompareJob) -> Answer:
    """Compare two taggers."""
    comparison = compare(job)
    return Answer(values=evidence(job, comparison), text=_describe_comparison(job, comparison))


def compare(job: CompareJob) -> Comparison:
    """Label the corpora with both taggers and test the difference of their scores.

    B may know types that A lacks, as a tagger that has learned more does: A misses what the corpora have of them.

    Raises:
        ConfigError: when the taggers cannot be compared, or the corpora have no labels for them.
        ModelError: when a tagger does not load.
        InputError: when a corpus cannot be read or has no entity.
    """
    taggers = load_tagger(job.first.folder, device=job.device), load_tagger(job.second.folder, device=job.device)
    further = _further_types(*taggers, labels=job.labels)
    scheme = taggers[0].vocabulary.scheme
    form = corpora.gold_format(job.form, scheme)
    trees = any(tagger.needs_trees for tagger in taggers)
    documents = corpora.read_documents(job.data, labels=job.labels, form=form, trees=trees)
    sentences = [list(document.sentences) for document in documents]
    if not (found := corpora.label_types(sentences, scheme)):
        raise InputError(f"{', '.join(job.data)}: expected a corpus with entities, got none")
    left_out = {kind for kind, shown in further.items() if shown not in found}
    labels = {**job.labels, **dict.fromkeys(left_out)}
    for tagger in taggers:
        corpora.check_gold(tagger, sentences, job.data, labels=labels)
    known = read_known_names(job.train, labels=job.labels, form=form, scheme=scheme)
    first, second = (_label(tagger, sentences, labels) for tagger in taggers)
    return Comparison(
        taggers=taggers,
        documents=documents,
        first=first,
        second=second,
        measure=scheme.measure,
        left_out=sorted({further[kind] for kind in left_out}),
        unit="sentence" if all(document.name is None for document in documents) else "document",
        lines=compare_labels(
            documents, first, second, alpha=job.alpha, find_groups=group_finder(sentences, known), scheme=scheme
        ),
    )


def evidence(job: CompareJob, comparison: Comparison) -> Mapping[str, object]:
    """Return the result and what it depends on.

    Digests identify taggers and data; the same taggers, data, level and versions give the same values.
    """
    documents = comparison.documents
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
        "alpha": job.alpha,
        "lines": comparison.lines,
        "versions": {
            "python": platform.python_version(),
            **{name: version(distribution) for name, distribution in DISTRIBUTIONS.items()},
        },
    }


def compare_labels(
    documents: Sequence[GoldDocument],
    first: DocumentLabels,
    second: DocumentLabels,
    *,
    alpha: float,
    find_groups: GroupFinder,
    scheme: LabelScheme = BIO,
) -> list[Line]:
    """Test two taggers' labels overall, by entity type, of seen and unseen names, and by language, in this order.

    Args:
        scheme: of the labels; there are no lines for single token labels.
    """
    gold = [[sentence.labels or () for sentence in document.sentences] for document in documents]
    counts = [group_counts_by_document(gold, labels, find_groups, scheme=scheme) for labels in (first, second)]
    zeros = np.zeros((len(documents), 3), dtype=np.int64)
    pairs = {key: (counts[0].get(key, zeros), counts[1].get(key, zeros)) for key in _lines_of(counts, scheme)}
    p_values = [significance.randomisation_test(*pair) for pair in pairs.values()]
    return [
        _line(*key, *pair, p=p, corrected=corrected, alpha=alpha)
        for (key, pair), p, corrected in zip(pairs.items(), p_values, significance.holm(p_values), strict=True)
    ]


def describe_line(line: Line, *, unit: str) -> str:
    """Return what a line shows as one sentence."""
    mean, low, high = line.difference.mean, line.difference.low, line.difference.high
    if line.detectable is None:
        exception = f" except {line.differing}" if line.differing else ""
        return f"A and B cannot be told apart: their scores are the same in every document{exception}."
    p = f"p = {line.p:.2g}" if line.p == line.corrected else f"p = {line.p:.2g} ({line.corrected:.2g} by Holm)"
    detectable = f"this data can detect {line.detectable:.1f}"
    if line.verdict == "undecided":
        return (
            f"A and B cannot be told apart: B - A is {mean:+.1f} {unit} ({low:+.1f} to {high:+.1f}), {p}; {detectable}."
        )
    if line.verdict == "worse":
        mean, low, high = -mean, -high, -low
    return f"B is {line.verdict} by {mean:.1f} {unit} ({low:.1f} to {high:.1f}), {p}; {detectable}."


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


def _lines_of(counts: Sequence[Mapping[Group, UnitCounts]], scheme: LabelScheme) -> list[Group]:
    """Return the groups that have a line: those with gold spans, and types only if there are several."""
    found = {key for side in counts for key, units in side.items() if units[:, 0].any()}
    if not scheme.has_entities or sum(kind == "type" for kind, _ in found) == 1:
        found = {key for key in found if key[0] != "type"}
    return sorted(found, key=lambda key: (get_args(Kind).index(key[0]), key[1]))


def _line(
    kind: Kind, name: str, first: UnitCounts, second: UnitCounts, *, p: float, corrected: float, alpha: float
) -> Line:
    difference = significance.paired_bootstrap(second[None], first[None], alpha=alpha)
    return Line(
        kind=kind,
        name=name,
        first=float(significance.f1(first.sum(axis=0))),
        second=float(significance.f1(second.sum(axis=0))),
        difference=difference,
        p=p,
        corrected=corrected,
        detectable=significance.detectable_difference(first, second, alpha=alpha),
        differing=int((first != second).any(axis=1).sum()),
        verdict="undecided" if corrected >= alpha else "better" if difference.mean > 0 else "worse",
    )


def _describe_comparison(job: CompareJob, comparison: Comparison) -> str:
    size = counted(len(comparison.documents), comparison.unit)
    unit_note = "" if comparison.unit == "document" else "; the corpora mark no documents, so each sentence is one"
    names = ", ".join(comparison.left_out)
    left_out = [f"without {names}, which only B knows: the corpora have no entity of it"] if names else []
    header = ("", "A", "B", "B - A", "from", "to", "p", "Holm", "detectable", f"{comparison.unit}s differ")
    return "\n".join(
        [
            f"A  {job.first.identity.description}",
            f"B  {job.second.identity.description}",
            f"on {', '.join(job.data)}: {size}{unit_note}",
            *left_out,
            "",
            comparison.verdict,
            "",
            table([_row(line) for line in comparison.lines], header=header, right=range(1, len(header))),
            "",
            f"{100 * (1 - job.alpha):g} % intervals; p from {significance.ROUNDS:,} paired randomisations; "
            f"Holm: p corrected over {counted(len(comparison.lines), 'line')}",
        ]
    )


def _row(line: Line) -> tuple[object, ...]:
    difference = line.difference
    signed = tuple(f"{value:+.2f}" for value in (difference.mean, difference.low, difference.high))
    return (line.name, line.first, line.second, *signed, f"{line.p:.4f}", f"{line.corrected:.4f}",
            line.detectable, line.differing)  # fmt: skip
