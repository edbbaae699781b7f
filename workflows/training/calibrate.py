"""Calibrate the probabilities of a trained tagger on gold documents that it has not seen."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from concord.models.bundles.checkpoint import load_tagger, save_calibration
from concord.models.bundles.manifest import CONFIG_NAME, tagger_digest
from concord.models.confidence import Calibration, Guarantee
from concord.models.errors import ConfigError
from concord.models.evaluation.metrics import brier_score, coverage, expected_calibration_error
from concord.models.taggers.base import Tagger
from concord.models.training import fit_calibration
from concord.models.training.fit_calibration import (
    Calibrated,
    EntityMethod,
    Observed,
    TokenMethod,
    find_guarantee,
    mean_recall,
)
from concord.pipeline.corpora.corpus_format import GoldFormat
from concord.pipeline.corpora.gold_corpus import GoldDocument
from concord.pipeline.errors import InputError
from concord.workflows.bundles import copy_bundle, require_new_folder
from concord.workflows.console import Answer, counted, plain, table, warn
from concord.workflows.corpora import (
    Documents,
    Overlap,
    Provenance,
    check_gold,
    describe_part,
    find_overlap,
    gold_format,
    read_documents,
    read_provenance,
    short_names,
    write_provenance,
)
from concord.workflows.registry import find_tagger

LEAST_ENTITIES = 20
KINDS = {"tokens": "words", "entities": "entities"}
STATES = ("before", "after")

Figures: TypeAlias = Mapping[str, Mapping[str, Mapping[str, float | None]]]
"""``tokens``, ``entities``, ``coverage`` or ``shown`` -> ``before`` or ``after`` -> a measure -> its value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibrateJob:
    """A tagger, the gold corpora to calibrate it on, and the methods.

    Attributes:
        model: a folder, an embedded tagger or a version in the registry.
        labels, form: as in EvaluateJob.
        output: folder of the calibrated copy; None calibrates a folder in place.
        tokens, entities: ``auto`` chooses by cross-validation on the data, ``none`` leaves the probabilities of
            entities as they are.
        recall: the share of names for which to find a guarantee, above 0 and below 1; None for no guarantee.
        test: corpora on which the calibration is only measured.
        allow_overlap: accept documents that the tagger has seen; the overlap is recorded.
    """

    model: str
    data: Sequence[str]
    labels: Mapping[str, str | None] = field(default_factory=dict)
    form: GoldFormat = field(default_factory=GoldFormat)
    output: Path | None = None
    tokens: TokenMethod | Literal["auto"] = "temperature"
    entities: EntityMethod | Literal["auto", "none"] = "auto"
    recall: float | None = None
    test: Sequence[str] = ()
    allow_overlap: bool = False
    device: str = "cpu"


def calibrate_command(job: CalibrateJob) -> Answer:
    """Calibrate a tagger and measure the effect.

    Raises:
        ConfigError: when the tagger has seen the data, the result cannot be written where the job says, or no guarantee
            of this recall can be given.
        ModelError: when the tagger does not load.
        InputError: when a corpus cannot be read, or is too small to fit a calibration.
    """
    source = find_tagger(job.model).folder
    target = _target(job, source)
    tagger, provenance = load_tagger(source, device=job.device), read_provenance(source)
    gold = _read(job, tagger, job.data, "--data")
    documents = [document.sentences for document in gold]
    overlap = _check_unseen(job, provenance, documents, "--data")
    part = describe_part("calibration", job.data, documents)
    calibrated_provenance = (provenance or Provenance(parts=[])).with_part(part)
    test_gold = _read(job, tagger, job.test, "--test") if job.test else []
    test_documents = [document.sentences for document in test_gold]
    if job.test:
        _check_unseen(job, calibrated_provenance, test_documents, "--test")
    left_out = {kind for kind in tagger.entity_types if job.labels.get(kind, kind) is None}
    observed = fit_calibration.observe(tagger, documents, left_out=left_out)
    guarantee = _guarantee(job, tagger, observed)
    if guarantee is None and tagger.calibration is not None and tagger.calibration.guarantee is not None:
        warn("the guarantee of recall was found with the calibration before and is left out; --recall finds a new one.")
    tokens, entities = _choose(job, tagger, observed)
    after = fit_calibration.cross_validate(observed, tokens=tokens, entities=entities)
    fitted = fit_calibration.fit(observed, tokens=tokens, entities=entities)
    figures = _figures(observed, after, tagger)
    quality = {**_sizes(gold, observed), "overlap": plain(overlap), "cross_validated": figures}
    corpora = {"files": [file.model_dump() for file in part.files], "labels": dict(job.labels)}
    extras = {"guarantee": guarantee, "fitted": {**corpora, **quality}}
    before = tagger_digest(source)
    _write(source, target, fitted.model_copy(update=extras), calibrated_provenance)
    held_out = None
    if job.test:
        observed = fit_calibration.observe(tagger, test_documents, left_out=left_out)
        after = fit_calibration.apply(fitted, observed)
        test_figures = {**_figures(observed, after, tagger), **_shown(guarantee, observed)}
        held_out = {"data": job.test, **_sizes(test_gold, observed), "figures": test_figures}
    values = {
        "tagger": tagger.name,
        "folder": target.absolute(),
        "digest_before": before,
        "digest": tagger_digest(target),
        "tokens": fitted.tokens,
        "entities": fitted.entities,
        "guarantee": guarantee,
        "data": job.data,
        **quality,
        "test": held_out,
    }
    return Answer(values=values, text=_describe(values, fitted, guarantee))


def _target(job: CalibrateJob, source: Path) -> Path:
    """Return the folder of the calibrated bundle."""
    if job.output is None:
        if not (Path(job.model).expanduser() / CONFIG_NAME).is_file():
            raise ConfigError(
                f"{job.model}: only a bundle in a local folder is calibrated in place; use --output for a "
                "calibrated copy"
            )
        return source
    require_new_folder(job.output, "the calibrated copy")
    return job.output


def _read(job: CalibrateJob, tagger: Tagger, paths: Sequence[str], option: str) -> list[GoldDocument]:
    """Read the documents that have words; of sentences outside of any, each is one, but not for a guarantee."""
    form = gold_format(job.form, tagger.vocabulary.scheme)
    found = read_documents(paths, labels=job.labels, form=form, trees=tagger.needs_trees)
    check_gold(tagger, [document.sentences for document in found], paths, labels=job.labels)
    gold = [document for document in found if any(sentence.words for sentence in document.sentences)]
    if alone := sum(document.name is None for document in gold):
        found_alone = f"{short_names(paths)}: {counted(alone, 'sentence')} outside of any document"
        if job.recall is not None:
            raise InputError(
                f"{option}: --recall is a promise about documents, and expected them marked, got {found_alone}. Write "
                "'# newdoc' (conllu) or '-DOCSTART-' (conll) where one begins, before each sentence if each is one"
            )
        warn(f"{option}: {found_alone}; each counts as a document.")
    return gold


def _check_unseen(
    job: CalibrateJob, provenance: Provenance | None, documents: Documents, option: str
) -> Overlap | None:
    """Compare documents with those that the tagger has seen; None where it has no provenance.

    An earlier calibration is replaced by this one, so its documents are allowed in --data.
    """
    if provenance is None or not provenance.parts:
        warn(f"{job.model} has no record of its training data; whether it has seen {option} is unknown.")
        return None
    if not provenance.is_complete:
        warn(f"{job.model} had a teacher without a record of its data; whether that has seen {option} is unknown.")
    parts = [part for part in provenance.parts if option != "--data" or part.role != "calibration"]
    overlap = find_overlap(Provenance(parts=parts), documents)
    if overlap.seen and not job.allow_overlap:
        raise ConfigError(
            f"{option}: expected documents that the tagger has not seen, got {overlap}. Leave these out, "
            "or accept and record them by --allow-overlap"
        )
    if overlap.seen:
        warn(f"{option}: {overlap}; the figures are optimistic.")
    return overlap


def _choose(job: CalibrateJob, tagger: Tagger, observed: Observed) -> tuple[TokenMethod, EntityMethod | None]:
    if len(observed.counts) < 2:
        raise InputError(
            f"{short_names(job.data)}: expected two documents or more, to measure a fit on documents left out of it"
        )
    tokens = fit_calibration.choose_tokens(observed) if job.tokens == "auto" else job.tokens
    if not tagger.vocabulary.scheme.has_entities or job.entities == "none":
        return tokens, None
    if len(observed.entities.right) < LEAST_ENTITIES:
        raise InputError(
            f"{short_names(job.data)}: expected data in which the tagger finds {LEAST_ENTITIES} entities or more, "
            f"got {len(observed.entities.right)}"
        )
    return tokens, fit_calibration.choose_entities(observed) if job.entities == "auto" else job.entities


def _guarantee(job: CalibrateJob, tagger: Tagger, observed: Observed) -> Guarantee | None:
    if job.recall is None:
        return None
    if not tagger.vocabulary.scheme.has_entities:
        raise ConfigError(f"--recall: expected a tagger of entities, got {tagger.name}, which labels single words")
    return find_guarantee(observed.scores, job.recall)


def _shown(guarantee: Guarantee | None, observed: Observed) -> Figures:
    """Return the mean share of a document's names that are shown, without and with candidates, and their number."""
    if guarantee is None:
        return {}
    least, words = guarantee.threshold, len(observed.words.right)
    candidates = sum(score >= least for score in observed.candidates)
    shown = {"recall": mean_recall(observed.scores, least), "candidates_per_1000_words": 1000 * candidates / words}
    before = {"recall": mean_recall(observed.scores, math.inf), "candidates_per_1000_words": 0.0}
    return {"shown": {"before": before, "after": shown}}


def _write(source: Path, target: Path, calibration: Calibration, provenance: Provenance) -> None:
    """Write the calibration last, so that an interrupted copy is not taken for a calibrated tagger."""
    if target != source:
        copy_bundle(source, target)
    write_provenance(target, provenance)
    save_calibration(calibration, target)


def _sizes(gold: Sequence[GoldDocument], observed: Observed) -> dict[str, int | None]:
    """Return how much corpora hold; no documents if none are marked."""
    return {
        "documents": sum(document.name is not None for document in gold) or None,
        "sentences": sum(len(document.sentences) for document in gold),
        "words": len(observed.words.right),
        "found_entities": len(observed.entities.right),
    }


def _figures(observed: Observed, after: Calibrated, tagger: Tagger) -> Figures:
    """Measure the probabilities before and after; errors and areas are 0..1, scores in percent."""
    states = {"before": fit_calibration.apply(None, observed), "after": after}
    words, entities = observed.words.right, observed.entities.right
    figures = {"tokens": {name: _errors(state.words, words) for name, state in states.items()}}
    if tagger.vocabulary.scheme.has_entities:
        figures["entities"] = {name: _errors(state.entities, entities) for name, state in states.items()}
    confidences = {name: state.document_confidences(observed) for name, state in states.items()}
    return figures | {"coverage": {name: coverage(own, observed.counts) for name, own in confidences.items()}}


def _errors(probabilities: np.ndarray, right: np.ndarray) -> dict[str, float | None]:
    return {
        "ece": expected_calibration_error(probabilities, right),
        "ece_equal_width": expected_calibration_error(probabilities, right, binning="width"),
        "brier": brier_score(probabilities, right),
        "mean_confidence": float(probabilities.mean()) if len(right) else None,
        "right": float(right.mean()) if len(right) else None,
    }


def _describe(values: Mapping[str, Any], fitted: Calibration, guarantee: Guarantee | None) -> str:
    entities = "as they were" if fitted.entities is None else f"by {fitted.entities.method}"
    methods = f"words by {fitted.tokens.method}, entities {entities}"
    lines = [
        f"{values['tagger']} {values['digest_before'][:12]} is now {values['digest'][:12]}: {methods}",
        *_describe_figures(values, values["cross_validated"], "cross-validated on"),
    ]
    if values["test"] is not None:
        lines += _describe_figures(values["test"], values["test"]["figures"], "held out:")
    if guarantee is not None:
        least, share = guarantee.threshold, _percent(guarantee.recall)
        lines += ["", f"output.candidates=true adds spans that score {least:g} or more: {share} of names are shown"]
    lines += ["", f"bundle   {values['folder']}"]
    return "\n".join(lines)


def _describe_figures(sizes: Mapping[str, Any], figures: Figures, how: str) -> list[str]:
    rows: list[Sequence[object]] = [
        (f"calibration error of {title}, {name}", *(_percent(figures[kind][state][key]) for state in STATES))
        for kind, title in KINDS.items()
        if kind in figures
        for name, key in (("15 bins of equal mass", "ece"), ("15 bins of equal width", "ece_equal_width"))
    ]
    names = {
        "score": "score of all documents",
        "at_95_percent": "score of the most certain 95 % of documents",
        "at_90_percent": "score of the most certain 90 % of documents",
    }
    before, after = (figures["coverage"][state] for state in STATES)
    rows += [(name, f"{before[key]:.2f} %", f"{after[key]:.2f} %") for key, name in names.items()]
    if "shown" in figures:
        without, shown = (figures["shown"][state] for state in STATES)
        rows.append(("names shown, without and with candidates", *(_percent(it["recall"]) for it in (without, shown))))
        rows.append(("candidates in 1,000 words", "0", f"{shown['candidates_per_1000_words']:.1f}"))
    area = "risk_coverage_area"
    rows.append(("area under risk and coverage", f"{before[area]:.4f}", f"{after[area]:.4f}"))
    units = [(sizes[f"{unit}s"], unit) for unit in ("document", "sentence", "word")]
    size = ", ".join(counted(number, unit) for number, unit in units if number is not None)
    place = f"{how} {short_names(sizes['data'])} ({size}, {sizes['found_entities']:,} found entities)"
    return ["", place, table(rows, header=("", *STATES), right={1, 2})]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f} %"
