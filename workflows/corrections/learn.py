"""``concord learn``: train a tagger further on what people corrected, beside what it was trained on, and compare both.

All that decides the result has one digest. It names the folder, so that the same command continues what was
interrupted, and does nothing where it is done.
"""

import hashlib
import json
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from concord.models.bundles.checkpoint import load_tagger
from concord.models.bundles.manifest import read_saved
from concord.models.errors import ConfigError
from concord.models.taggers.base import Tagger
from concord.models.training.fit import FitConfig, OptimizerConfig
from concord.pipeline.corpora.conllu import PARSER_KEY
from concord.pipeline.corpora.read_corpus import GoldDocument
from concord.pipeline.corpora.write_corpus import write_gold
from concord.pipeline.errors import InputError
from concord.pipeline.identity import ComponentIdentity, ResolvedTagger
from concord.pipeline.storage.atomic_writes import write_atomically
from concord.pipeline.storage.files import file_sha256
from concord.pipeline.storage.folders import exclusive
from concord.pipeline.storage.output_paths import OutputPath
from concord.workflows.console import INLINE, Answer, counted, plain, warn
from concord.workflows.corpora.corpora import (
    label_types,
    read_corpora,
    require_entities,
    require_known,
    short_names,
)
from concord.workflows.corpora.provenance import Provenance, describe_part, find_overlap, read_provenance
from concord.workflows.corrections.corrected_corpus import CORPUS_NAME, CorrectedCorpus, read_corrected
from concord.workflows.corrections.rehearsal import Corpora, find_data, find_job, with_rehearsal
from concord.workflows.evaluation.compare import CompareJob, compare_command
from concord.workflows.job_files import apply_overrides
from concord.workflows.promotion.gate import DEFAULT_GATE, read_gate
from concord.workflows.registry.model_versions import is_reference, resolve
from concord.workflows.registry.resolve_tagger import find_entity_tagger, find_tagger
from concord.workflows.registry.run_records import EXPERIMENT
from concord.workflows.training import train
from concord.workflows.training.calibrate import CalibrateJob, calibrate_command
from concord.workflows.training.job import DataConfig, TrainJob
from concord.workflows.training.tracking import JOB_NAME
from concord.workflows.training.train_result import TrainResult

STATE_NAME = "learning.json"
COMPARISON_NAME = "comparison.json"
EPOCHS = 3
RATE = 0.3
"""Fraction of the learning rates of the training that made the tagger."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LearnJob:
    """A corrected collection, the tagger that learns from it, and gold corpora.

    Attributes:
        model: a version in the registry, a folder or a bundled tagger.
        folder: of the run; derived from all that decides the result if None.
        corpora: to rehearse, to choose the epoch, and to compare both taggers on.
        calibrate: unseen corpora to calibrate on; without them the new version is not calibrated.
        whole_documents: as in ``read_corrected``.
        name: in the registry; if None, that under which the tagger is registered or its training would register it.
        overrides: of keys of ``fit``, as in ``fit.epochs=5``.
        tracked, forced: as in TrainOptions.
    """

    output: OutputPath
    model: str
    folder: Path | None = None
    corpora: Corpora = field(default_factory=Corpora)
    calibrate: Sequence[str] = ()
    whole_documents: bool = False
    name: str | None = None
    overrides: Sequence[str] = ()
    device: str = "cpu"
    tracked: bool = True
    forced: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class LearnResult:
    """The training on corrected documents, beside what it learned from.

    Attributes:
        corrections_digest: SHA-256, in hex, of all that the corrections say.
        documents: names of the corrected documents.
        examples: entities of the corrected documents by type, as far as they are known.
        further_types: those of them that the champion lacks.
        comparison, comparison_text: of the champion with the new version; None without corpora to test on.
        registered: the new version, as models:/NAME/VERSION.
        promotion: the command that makes it the champion; None if it is not registered, or no corpus is known for that.
    """

    training: TrainResult = field(metadata=INLINE)
    champion: ComponentIdentity
    corrections: int
    corrections_left_out: int
    corrections_digest: str
    documents: Sequence[str | None]
    sentences_looked_at: int
    words_looked_at: int
    examples: Mapping[str, int]
    further_types: Sequence[str]
    rehearsed: Sequence[Mapping[str, object]]
    calibrated: bool
    comparison: Mapping[str, object] | None
    comparison_text: str | None
    registered: str | None
    promotion: str | None


def learn_command(job: LearnJob) -> Answer:
    """Train, calibrate, compare and register a new version; a run that was interrupted is continued.

    Raises:
        ConfigError: when the corrections do not fit the tagger, corpora are missing or were seen before, or the folder
            contains another run.
        InputError: when there is nothing to learn from, or a corpus cannot be read.
        ModelError: when the tagger does not load, or is not one of entities.
        TrackingError: when a registered tagger cannot be looked up, since MLflow does not answer.
    """
    # An alias may move meanwhile.
    version = resolve(job.model) if is_reference(job.model) else None
    reference = job.model if version is None else version.reference
    champion = find_entity_tagger(reference)
    tagger = load_tagger(champion.folder, device=job.device)
    corrected = read_corrected(job.output, whole_documents=job.whole_documents)
    earlier = find_job(champion, reference)
    data = find_data(job.corpora, earlier, champion)
    examples = _count_examples(corrected, tagger, job.model, data.labels)
    further = sorted(examples.keys() - set(tagger.entity_types))
    _check_unseen(job, champion, corrected, data)
    scheme = tagger.vocabulary.scheme
    if test := data.paths("test"):
        # What cannot be compared is found before the training.
        documents = read_corpora(test, labels=data.labels, trees=tagger.needs_trees)
        require_known(documents, test)
        require_entities(documents, test, scheme)
    data = with_rehearsal(data, looked_at=corrected.looked_at[1], scheme=scheme, further_types=further)
    name = job.name or (version.name if version is not None else earlier.register_as if earlier else champion.name)
    training = continued_training(champion, tagger, earlier, data, name=name, overrides=job.overrides)
    training = training.model_copy(update={"further_types": further})
    key = _digest(job, champion, corrected, training)
    folder = job.folder or Path("runs") / f"learn-{name}-{key[:8]}"
    with exclusive(folder / ".lock", wait=False) as held:
        if not held:
            raise ConfigError(f"{folder}: another process is learning here; wait for it, or choose another --output")
        done = _claim(folder, key)
        if done is not None and (done.values["registered"] or not job.tracked):
            return replace(done, text=f"{done.text}\nThis was learned before, and nothing was done.")
        result = _learn(job, champion, tagger, corrected, training, folder, examples)
        answer = Answer.of(result, text=_describe(result), exit_code=result.training.exit_code)
        _write_state(folder, key, answer)
    return answer


def _count_examples(
    corrected: CorrectedCorpus, tagger: Tagger, model: str, labels: Mapping[str, str | None]
) -> dict[str, int]:
    """Count the entities of corrected documents by type, once it is sure that the tagger can learn from them.

    Raises:
        ConfigError: when one of the tagger's own types is renamed, or the trees are not those that it reads.
    """
    if moved := [kind for kind in tagger.entity_types if labels.get(kind, kind) != kind]:
        raise ConfigError(
            f"--labels {moved[0]}: expected to rename types that {model} does not know, got one of its own, which "
            "corrected documents have as well; leave it out"
        )
    if tagger.needs_trees and tagger.trees != corrected.trees:
        raise ConfigError(
            f"{model}: expected a collection with trees of {tagger.trees!r}, from which it learned, got those of "
            f"{corrected.trees!r}; annotate the collection with that parser"
        )
    scheme, sentences = tagger.vocabulary.scheme, chain.from_iterable(corrected.sentences)
    spans = [span for sentence in sentences for span in scheme.scored_spans(sentence.labels or ())]
    kinds = Counter(kind for span in spans if (kind := labels.get(span.label, span.label)) is not None)
    return dict(sorted(kinds.items()))


def _check_unseen(job: LearnJob, champion: ResolvedTagger, corrected: CorrectedCorpus, data: DataConfig) -> None:
    """Refuse to calibrate on documents that the new version will have seen, and warn of such to test on."""
    provenance = read_provenance(champion.folder) or Provenance(parts=[])
    read = read_corpora([*data.paths("train"), *data.paths("unlabelled")], labels={})
    train_part = describe_part("train", (), [*corrected.sentences, *read])
    dev_part = describe_part("dev", (), read_corpora(data.paths("dev"), labels={}))
    seen = provenance.merged_with(train_part).merged_with(dev_part)
    seen = Provenance(parts=[part for part in seen.parts if part.role != "calibration"])
    overlap = find_overlap(seen, read_corpora(job.calibrate, labels={}))
    if overlap.seen:
        raise ConfigError(
            f"--calibrate: expected documents that the new version has not seen, got {overlap}; name others"
        )
    overlap = find_overlap(seen, read_corpora(data.paths("test"), labels={}))
    if overlap.seen:
        warn(f"{short_names(data.paths('test'))}: {overlap}; the comparison is optimistic.")


def continued_training(
    champion: ResolvedTagger,
    tagger: Tagger,
    earlier: TrainJob | None,
    data: DataConfig,
    *,
    name: str,
    overrides: Sequence[str] = (),
) -> TrainJob:
    """Return the training that continues a tagger's, but for the corpus of corrected documents.

    Args:
        earlier: the training that made the tagger, if it is known.
        name: under which the result is registered.
        overrides: of keys of ``fit``.
    """
    if wrong := [override for override in overrides if not override.startswith("fit.")]:
        raise ConfigError(f"--set {wrong[0]}: expected a key of the training, as in fit.epochs=5; leave others out")
    saved = read_saved(champion.folder)
    values: dict[str, Any] = {
        "tagger": saved.tagger,
        "profile": "learned",
        "data": data.model_dump(),
        "start": str(champion.folder),
        "model": saved.config,
        "fit": _continued_fit(earlier, tagger).model_dump(mode="json"),
        "register_as": name,
        "experiment": earlier.experiment if earlier is not None else EXPERIMENT,
    }
    apply_overrides(values, overrides)
    FitConfig.from_mapping(values["fit"], where="fit")
    return TrainJob.from_mapping(values, where="learn")


def _continued_fit(earlier: TrainJob | None, tagger: Tagger) -> FitConfig:
    """Return the settings of the training that made the tagger, with fewer epochs and lower learning rates.

    Those of a training that itself continued another one have the lower rates already.
    """
    groups = tagger.parameter_groups().keys()
    fit = FitConfig.from_mapping(earlier.fit, where="fit") if earlier is not None else FitConfig()
    rate = 1.0 if earlier is not None and earlier.start is not None else RATE
    configs = fit.optimizers if fit.optimizers.keys() == groups else dict.fromkeys(groups, OptimizerConfig())
    optimizers = {
        name: config.model_copy(update={"learning_rate": rate * config.learning_rate})
        for name, config in configs.items()
    }
    changes = {"epochs": EPOCHS, "patience": None, "optimizers": optimizers}
    return fit.model_copy(update=changes)


def _digest(job: LearnJob, champion: ResolvedTagger, corrected: CorrectedCorpus, training: TrainJob) -> str:
    """Return the SHA-256, in hex, of all that decides the result: tagger, corrected documents, files and settings."""
    data = training.data
    paths = [*chain.from_iterable(data.paths(part) for part in ("train", "unlabelled", "dev", "test")), *job.calibrate]
    paths += [] if data.terms is None else [data.terms]
    decisive = {
        "champion": champion.digest,
        "corrected": [
            (document.name, [(sentence.words, sentence.labels, sentence.known) for sentence in document.sentences])
            for document in corrected.documents
        ],
        "files": [file_sha256(path) for path in paths],
        "calibrate": list(job.calibrate),
        "training": training.model_dump(mode="json", exclude={"start", "experiment", "profile"}),
    }
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()


def _claim(folder: Path, key: str) -> Answer | None:
    """Mark a folder as that of a learning; return its answer if it is done."""
    path = folder / STATE_NAME
    if not path.exists():
        if (folder / JOB_NAME).exists():
            raise ConfigError(
                f"{folder}: expected a new folder or that of a learning, got a training; choose another --output"
            )
        _write_state(folder, key, None)
        return None
    try:
        saved = json.loads(path.read_bytes())
        earlier, answer = saved["key"], saved["answer"] and Answer(**saved["answer"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: expected the state of a learning: {error}; choose another --output") from error
    if earlier != key:
        raise ConfigError(
            f"{folder}: contains another learning, of other corrections, corpora or settings, or from another tagger; "
            "choose another --output, or leave it out"
        )
    return answer


def _write_state(folder: Path, key: str, answer: Answer | None) -> None:
    text = json.dumps({"key": key, "answer": plain(answer)}, indent=1, sort_keys=True)
    write_atomically(folder / STATE_NAME, f"{text}\n".encode(), staging=folder)


def _learn(
    job: LearnJob,
    champion: ResolvedTagger,
    tagger: Tagger,
    corrected: CorrectedCorpus,
    training: TrainJob,
    folder: Path,
    examples: Mapping[str, int],
) -> LearnResult:
    """Write the corrected documents, train on them, and calibrate and compare the result before it is registered."""
    documents = corrected.documents if tagger.needs_trees else list(map(_without_trees, corrected.documents))
    corpus = (folder / CORPUS_NAME).absolute()
    write_gold(corpus, documents, form="conllu", header={PARSER_KEY: corrected.trees} if tagger.needs_trees else None)
    data = training.data.model_copy(update={"train": [*training.data.train, str(corpus)]})
    options = train.TrainOptions(
        folder=folder,
        resume=True,
        tracked=job.tracked,
        forced=job.forced,
        device=job.device,
        tags={"concord.corrections": corrected.digest, "concord.champion": champion.digest},
        files=[CORPUS_NAME, COMPARISON_NAME],
    )
    stages = train.prepare(training.model_copy(update={"data": data}), options)
    if unscored := stages.unscored_types:
        warn(
            f"{', '.join(sorted(unscored))}: no entity of this type in {short_names(data.paths('dev'))}; what is found "
            "there of it counts as wrong, and the last epoch is kept. Name a corpus that has some by --dev"
        )
    with stages.tracked() as run:
        fitted = stages.fit(run)
        _calibrate(job, tagger, data, fitted.bundle)
        comparison = _compare(job, champion, data, fitted.bundle, folder)
        result = stages.score(fitted)
    result = stages.register(result)
    registered = None if result.version is None else result.version.registered
    sentences, words = corrected.looked_at
    return LearnResult(
        training=result,
        champion=champion.identity,
        corrections=corrected.corrections,
        corrections_left_out=corrected.left_out,
        corrections_digest=corrected.digest,
        documents=[document.name for document in documents],
        sentences_looked_at=sentences,
        words_looked_at=words,
        examples=examples,
        further_types=training.further_types,
        rehearsed=[
            corpus.model_dump(mode="json", exclude=None if corpus.lacks else {"lacks"})
            for corpus in training.data.train_corpora()
        ],
        calibrated=bool(job.calibrate),
        comparison=None if comparison is None else comparison.values,
        comparison_text=None if comparison is None else comparison.text,
        registered=registered,
        promotion=None if registered is None else _promotion(registered, tagger, data, folder),
    )


def _without_trees(document: GoldDocument) -> GoldDocument:
    sentences = (replace(sentence, tags=None, heads=None, relations=None) for sentence in document.sentences)
    return replace(document, sentences=tuple(sentences))


def _calibrate(job: LearnJob, tagger: Tagger, data: DataConfig, bundle: Path) -> None:
    if job.calibrate:
        calibrate_command(CalibrateJob(model=str(bundle), data=job.calibrate, labels=data.labels, device=job.device))
    elif tagger.calibration is not None:
        warn("the tagger was calibrated, the new version is not; name unseen corpora by --calibrate.")


def _compare(job: LearnJob, champion: ResolvedTagger, data: DataConfig, bundle: Path, folder: Path) -> Answer | None:
    """Compare a bundle with the tagger that it learned from, if there are corpora to test on."""
    if not (test := data.paths("test")):
        return None
    learned = find_tagger(str(bundle))
    compared = CompareJob(first=champion, second=learned, data=test, labels=data.labels, device=job.device)
    answer = compare_command(compared)
    text = json.dumps(answer.values, indent=1, sort_keys=True)
    (folder / COMPARISON_NAME).write_text(f"{text}\n", encoding="utf-8")
    return answer


def _promotion(reference: str, tagger: Tagger, data: DataConfig, folder: Path) -> str | None:
    """Return the command that promotes a version, by the gate of the current folder or one over the test corpora."""
    name, _, version = reference.removeprefix("models:/").rpartition("/")
    command = f"concord promote {shlex.quote(name)} {version}"
    with suppress(ConfigError, InputError):
        gate = read_gate(DEFAULT_GATE)
        types = label_types(read_corpora(gate.data, labels=gate.labels, form=gate), tagger.vocabulary.scheme)
        if not types.isdisjoint(tagger.entity_types):
            return command
    if not (test := data.paths("test")):
        return None
    path = folder / DEFAULT_GATE.name
    path.write_text(yaml.safe_dump({"data": test, "labels": data.labels}, allow_unicode=True), encoding="utf-8")
    return f"{command} --gate {shlex.quote(str(path))}"


def _list_examples(result: LearnResult) -> str:
    """List how many examples of each type were seen; the few that a type has may explain why it is not found."""
    counts = (
        f"{kind} {number:,}{' (new)' * (kind in result.further_types)}" for kind, number in result.examples.items()
    )
    return ", ".join(counts) or "no entity"


def _describe(result: LearnResult) -> str:
    left_out, training = result.corrections_left_out, result.training
    best = training.best
    rehearsed = short_names(str(corpus["path"]) for corpus in result.rehearsed)
    lines = [
        f"{counted(result.corrections, 'correction')} in {counted(len(result.documents), 'document')}: "
        f"{counted(result.sentences_looked_at, 'sentence')}, {counted(result.words_looked_at, 'word')} looked at"
        + (f"; {left_out:,} left out ('concord corrections list')" if left_out else ""),
        f"examples    {_list_examples(result)}",
        f"rehearsed   {rehearsed or 'nothing'}",
        f"best of {counted(training.epochs, 'epoch')} is {best.epoch}, dev F1 {best.dev_f1:.2f}; "
        + ("calibrated" if result.calibrated else "not calibrated"),
        *(["", result.comparison_text, ""] if result.comparison_text else []),
        f"bundle      {training.bundle}",
        f"registered  {training.registered}",
    ]
    if result.registered:
        advice = "name documents that no training has seen in a gate for 'concord promote' (docs/lifecycle.md)"
        lines.append(f"promote it  {result.promotion or advice}")
    return "\n".join(lines)
