"""Train a tagger on the label probabilities that teachers give to open texts, beside its own gold corpora.

The labels are written as a soft corpus, one shard after the other, and are then one more training corpus of the
student. The probabilities are the mean of the teachers', as they come from their networks, without calibration. A
teacher without probabilities is sure of its labels.

Teachers may teach different types: ``NAME=TYPE,TYPE`` teaches these alone. Where an entity of one overlaps that of
another, the one named first is taken.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from concord.models.bundles.checkpoint import load_tagger
from concord.models.bundles.registry import tagger_class
from concord.models.data.options import PredictOptions
from concord.models.data.sentence import Sentence
from concord.models.errors import ConfigError
from concord.models.labels.schemes import label_scheme
from concord.models.labels.spans import OUTSIDE
from concord.models.taggers.base import Tagger
from concord.pipeline.config import ParserConfig, ReaderConfig
from concord.pipeline.corpora.read_corpus import SUFFIXES
from concord.pipeline.corpora.soft_corpus import (
    CorpusFile,
    Labelling,
    claim_soft_corpus,
    count_shards,
    has_shard,
    write_labelling,
    write_shard,
)
from concord.pipeline.documents import DeadLetter, Document
from concord.pipeline.errors import InputError
from concord.pipeline.identity import ResolvedTagger, component_signature
from concord.pipeline.parsing.parser import Parser
from concord.pipeline.parsing.resolve_parser import load_parser, parser_identity
from concord.pipeline.planning.inputs import InputFile, find_inputs
from concord.pipeline.planning.text_field import check_text_field
from concord.pipeline.readers.read_file import read_records
from concord.pipeline.storage.atomic_writes import CODECS
from concord.pipeline.storage.file_locks import exclusive
from concord.pipeline.worker.bisect import run_bisecting
from concord.workflows.console import INLINE, Answer, counted, info, warn
from concord.workflows.corpora.corpora import check_teachers, gold_format, label_types, read_corpora
from concord.workflows.corpora.provenance import Provenance, read_provenance, write_provenance
from concord.workflows.job_paths import absolute_input, absolute_parser
from concord.workflows.registry.resolve_tagger import find_tagger
from concord.workflows.training import train
from concord.workflows.training.job import TrainCorpus, TrainJob
from concord.workflows.training.train_result import TrainResult
from concord.workflows.yaml_values import apply_overrides

LABELS_NAME = "labels"
# Of an English text, some 40,000 words.
_SHARD_CHARACTERS = 200_000
_BATCH_WORDS = 4096

_Item = Document | Sequence[Sentence]
"""A text, or a document that is split into sentences of words already."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DistilJob:
    """The teachers, the texts that they label, and the training of the student.

    Attributes:
        teachers: folders, bundled taggers, versions in the registry or models of other libraries; ``NAME=TYPE,TYPE``
            teaches these types alone. Those that teach the same types label by the mean of their probabilities.
        texts: files, folders or patterns as ``concord annotate`` reads them, or gold corpora, whose labels are not
            read.
        student: the training; its gold corpora are read as well.
        options: of the training; its folder is that of the run.
        labels: folder of the soft corpus; in the run's folder if None.
        weight: of the soft corpus among the corpora of the training (TrainCorpus).
    """

    teachers: Sequence[str]
    texts: Sequence[str]
    student: TrainJob
    options: train.TrainOptions
    labels: Path | None = None
    weight: float = 1.0
    reader: ReaderConfig = field(default_factory=ReaderConfig)
    parser: ParserConfig = field(default_factory=ParserConfig)
    """What splits the texts."""


class _Teachers(NamedTuple):
    """Taggers that teach the same entity types, or the same labels of words."""

    taggers: list[Tagger]
    types: set[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class DistilResult:
    """The training of the student, and the folder of what the teachers labelled."""

    training: TrainResult = field(metadata=INLINE)
    labels: Path
    labelled: Labelling


def read_parser(overrides: Sequence[str]) -> tuple[ParserConfig, list[str]]:
    """Return the parser that overrides of ``parser.`` name, and the other overrides."""
    values: dict[str, Any] = {}
    own = [override for override in overrides if override.startswith("parser.")]
    apply_overrides(values, own)
    parser = ParserConfig.from_mapping(values.get("parser", {}), where="parser")
    return absolute_parser(parser).get("parser", parser), [override for override in overrides if override not in own]


def distil_command(job: DistilJob) -> Answer:
    """Label the texts and train the student; a run that was interrupted is continued.

    Raises:
        ConfigError: when teachers or student do not fit each other, or the folders contain another run.
        InputError: when a text or corpus cannot be read.
        ModelError: when a tagger or the parser does not load.
        StoreError: when there is no space.
    """
    folder = job.options.folder or train.default_folder(job.student)
    labels = (job.labels or folder / LABELS_NAME).absolute()
    named = [_parse_teacher(teacher) for teacher in job.teachers]
    resolved = [find_tagger(name) for name, _ in named]
    loaded = [load_tagger(teacher.folder, device=job.options.device) for teacher in resolved]
    teachers = _group_teachers(named, loaded)
    texts = _find_texts(job, labels)
    labelling = _describe_labelling(job, resolved, teachers, texts)
    _check_student(job.student, labelling)
    soft = str(labels) if job.weight == 1 else TrainCorpus(path=str(labels), weight=job.weight)
    data = job.student.data.model_copy(update={"train": [*job.student.data.train, soft]})
    student, options = job.student.model_copy(update={"data": data}), replace(job.options, folder=folder, resume=True)
    train.check(student, options)
    labels.mkdir(parents=True, exist_ok=True)
    with exclusive(labels / ".lock", wait=False) as held:
        if not held:
            raise ConfigError(f"{labels}: another process is labelling texts here; wait for it, or choose another")
        labelling = claim_soft_corpus(labels, labelling)
        if labelling.shards is None:
            _write_provenance(labels, resolved)
            labelling = _label(labels, labelling, teachers, texts, job)
    result = DistilResult(training=train.train(student, options), labels=labels, labelled=labelling)
    size = f"{counted(labelling.words, 'word')} in {counted(labelling.documents, 'document')}"
    text = f"{result.training.text}\nlabels      {labels} ({size})"
    return Answer.of(result, text=text, exit_code=result.training.exit_code)


def _check_student(student: TrainJob, labelling: Labelling) -> None:
    """Check the student before hours of labelling, and read its gold corpora once."""
    kind = tagger_class(student.tagger)
    if kind.needs_trees:
        raise ConfigError(f"{student.tagger}: expected a student that needs no dependency trees, which are not kept")
    scheme = label_scheme(kind.config_class.from_mapping(student.model, where="model").scheme)
    data = student.data
    gold = read_corpora(data.paths("train"), labels=data.labels, form=gold_format(data, scheme))
    names = ", ".join(teacher.name for teacher in labelling.teachers)
    check_teachers(f"the teacher {names}", labelling, scheme=scheme, types=label_types(gold, scheme))


def _parse_teacher(teacher: str) -> tuple[str, tuple[str, ...]]:
    """Return a tagger and the types that it teaches; none stand for all. Folders may have an equals sign."""
    name, _, types = teacher.rpartition("=")
    if not name or "/" in types or Path(teacher).exists():
        return teacher, ()
    return name, tuple(sorted(filter(None, types.split(","))))


def _group_teachers(named: Sequence[tuple[str, tuple[str, ...]]], taggers: Sequence[Tagger]) -> list[_Teachers]:
    """Return what is taught by whom, in order; ConfigError unless teachers of the same types have the same labels."""
    groups: dict[tuple[str, ...], _Teachers] = {}
    taught: set[str] = set()
    for (name, types), tagger in zip(named, taggers, strict=True):
        vocabulary = tagger.vocabulary
        known = vocabulary.scheme.types(vocabulary.labels)
        if tagger.needs_trees:
            raise ConfigError(f"{name}: expected a teacher that needs no dependency trees, got a {tagger.name}")
        if unknown := set(types) - (known if vocabulary.scheme.has_entities else set()):
            raise ConfigError(
                f"{name}: expected entity types that it knows ({', '.join(sorted(known))}), "
                f"got {', '.join(sorted(unknown))}"
            )
        if types not in groups:
            groups[types] = _Teachers([], (set(types) or known) - taught)
            if not groups[types].types:
                raise ConfigError(f"{name}: expected types that no teacher before it teaches, got {', '.join(types)}")
            taught |= groups[types].types
        group = groups[types]
        group.taggers.append(tagger)
        labels = group.taggers[0].vocabulary.labels
        if not types and vocabulary.labels != labels:
            raise ConfigError(
                f"{name}: expected the labels of the first teacher ({', '.join(labels)}), got "
                f"{', '.join(vocabulary.labels)}; say which types each teaches: --teacher {name}=TYPE,TYPE"
            )
    return list(groups.values())


def _describe_labelling(
    job: DistilJob, resolved: Sequence[ResolvedTagger], teachers: Sequence[_Teachers], texts: "_Texts"
) -> Labelling:
    """Return what the soft corpus will be made of; ConfigError unless teachers with scores have the same scheme."""
    taggers = [tagger for group in teachers for tagger in group.taggers]
    schemes = {tagger.vocabulary.scheme.name: tagger.vocabulary.scheme for tagger in taggers if tagger.has_scores}
    if len(schemes) > 1:
        raise ConfigError(f"teachers: expected probabilities in one label scheme, got {', '.join(sorted(schemes))}")
    scheme = next(iter(schemes.values()), taggers[0].vocabulary.scheme)
    reader = job.reader.model_dump(mode="json", exclude={"max_record_bytes", "max_unpack_ratio"})
    settings = {"shard_characters": _SHARD_CHARACTERS, "reader": reader if texts.files else {}}
    return Labelling(
        teachers=[teacher.identity for teacher in resolved],
        texts=[CorpusFile.of(path) for path in [*(file.path for file in texts.files), *texts.corpora]],
        tokenizer=component_signature(parser_identity(job.parser)) if texts.files else None,
        scheme=scheme.name,
        labels=list(scheme.label_set(set[str]().union(*(group.types for group in teachers)))),
        settings={**settings, "types": [list(_parse_teacher(teacher)[1]) for teacher in job.teachers]},
    )


def _write_provenance(labels: Path, teachers: Sequence[ResolvedTagger]) -> None:
    provenance = Provenance(parts=[])
    for teacher in teachers:
        earlier = read_provenance(teacher.folder)
        provenance = provenance.taught_by(teacher.name, teacher.digest, earlier)
        if earlier is None or not earlier.is_complete:
            warn(f"{teacher.name} has no record of its training data; what the student has seen through it is unknown.")
    write_provenance(labels, provenance)


class _Texts(NamedTuple):
    """Files of texts, and gold corpora."""

    files: Sequence[InputFile]
    corpora: Sequence[str]


def _find_texts(job: DistilJob, labels: Path) -> _Texts:
    files: dict[str, InputFile] = {}
    corpora: dict[str, None] = {}
    for text in job.texts:
        name = text.removesuffix(next((end for end in CODECS if text.endswith(end)), ""))
        if name.endswith(tuple(SUFFIXES)):
            corpora[str(Path(text).absolute())] = None
        else:
            inputs = find_inputs(absolute_input(text), output=str(labels), format=job.reader.format)
            files |= {file.path: file for file in inputs.files}
    check_text_field(list(files.values()), job.reader)
    return _Texts(list(files.values()), list(corpora))


def _label(
    labels: Path, labelling: Labelling, teachers: Sequence[_Teachers], texts: _Texts, job: DistilJob
) -> Labelling:
    """Label the shards that are missing and return the finished description."""
    items: list[_Item] = [*_read_texts(texts.files, job.reader), *read_corpora(texts.corpora, labels={})]
    shards = list(_cut(items))
    missing = [number for number in range(len(shards)) if not has_shard(labels, number)]
    if not shards:
        raise InputError("--text: expected a document with a word or more, got none")
    if len(missing) < len(shards):
        info(f"{len(shards) - len(missing):,} of {len(shards):,} shards are labelled already")
    has_texts = any(isinstance(item, Document) for item in items)
    parser = load_parser(job.parser.model_copy(update={"trees": False, "tags": False})) if has_texts else None
    started, total = time.monotonic(), sum(_size(item) for number in missing for item in shards[number])
    done = words = 0
    for number in missing:
        sentences = _split(shards[number], parser)
        probabilities, uncertainty = _probabilities(teachers, sentences, labelling)
        write_shard(labels, number, sentences, probabilities=probabilities, uncertainty=uncertainty)
        done, words = done + sum(map(_size, shards[number])), words + len(uncertainty)
        seconds = time.monotonic() - started
        left = timedelta(seconds=round(seconds * (total - done) / max(1, done)))
        info(f"labelled shard {number + 1:,} of {len(shards):,}; {words / seconds:,.0f} words/s, {left} left")
    documents, words = count_shards(labels, len(shards))
    finished = labelling.model_copy(update={"shards": len(shards), "documents": documents, "words": words})
    write_labelling(labels, finished)
    return finished


def _probabilities(
    teachers: Sequence[_Teachers], documents: Sequence[Sequence[Sentence]], labelling: Labelling
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the probabilities of labels, shape ``(N, L)``, and the teachers' mean uncertainty in nats, ``(N,)``.

    Words in an entity of the first teachers have none of the next, nor does an entity of theirs that holds such a word;
    of other words the next share out what the first leave outside.
    """
    sentences = [slice(*ends) for ends in pairwise(accumulate(map(_words, chain(*documents)), initial=0))]
    (probabilities, uncertainty), *others = (_taught(group, documents, sentences, labelling) for group in teachers)
    outside = torch.eye(len(labelling.labels))[0]
    for own, doubt in others:
        taken = torch.zeros(len(uncertainty), dtype=torch.bool)
        for entity in _entities(probabilities, sentences, labelling):
            taken[entity] = True
        for entity in _entities(own, sentences, labelling):
            if taken[entity].any():
                own[entity] = outside
        own[taken] = outside
        left = probabilities[:, :1].clone()
        probabilities[:, 0] = 0
        probabilities += left * own
        uncertainty += doubt
    count = sum(len(group.taggers) for group in teachers)
    return probabilities.numpy(), (uncertainty / count).numpy()


def _entities(probabilities: Tensor, sentences: Sequence[slice], labelling: Labelling) -> Iterator[slice]:
    """Yield the words of each entity that the most probable labels make."""
    for rows in sentences:
        best = [labelling.labels[number] for number in probabilities[rows].argmax(1).tolist()]
        for span in label_scheme(labelling.scheme).entity_pieces(best):
            yield slice(rows.start + span.start, rows.start + span.end)


def _taught(
    group: _Teachers, documents: Sequence[Sequence[Sentence]], sentences: Sequence[slice], labelling: Labelling
) -> tuple[Tensor, Tensor]:
    """Return the mean probabilities of labels by teachers of the same types, and the sum of their uncertainties."""
    scheme, numbers = label_scheme(labelling.scheme), {name: number for number, name in enumerate(labelling.labels)}
    words = sum(map(_words, chain(*documents)))
    probabilities, uncertainty = torch.zeros(words, len(numbers)), torch.zeros(words)
    for teacher in group.taggers:
        keep: Literal["labels", "distributions"] = "distributions" if teacher.has_scores else "labels"
        table = teacher.tabulate(documents, PredictOptions(batch_words=_BATCH_WORDS), keep=keep)
        known = teacher.vocabulary
        names = [name if known.scheme.types([name]) <= group.types else OUTSIDE for name in known.labels]
        if table.distributions is not None:
            probabilities.index_add_(1, torch.tensor([numbers[name] for name in names]), table.distributions)
        for rows in () if teacher.has_scores else sentences:
            found = known.scheme.to_gold([names[number] for number in table.label[rows].tolist()])
            probabilities[rows] += torch.eye(len(numbers))[[numbers[name] for name in scheme.from_gold(found)]]
        uncertainty += table.uncertainty
    return probabilities / len(group.taggers), uncertainty


def _words(sentence: Sentence) -> int:
    return len(sentence.words)


def _split(items: Sequence[_Item], parser: Parser | None) -> list[list[Sentence]]:
    """Return the sentences with words of a shard's documents; a document without any is left out."""
    texts = [item for item in items if isinstance(item, Document)]
    outcomes: list[list[tuple[str, ...]] | DeadLetter] = []
    if parser is not None:
        split_texts = run_bisecting(texts, parser.split, stage="parse")
        outcomes += split_texts
    _warn_of([outcome for outcome in outcomes if isinstance(outcome, DeadLetter)], "document")
    split = iter(outcomes)
    documents = []
    for item in items:
        sentences = next(split) if isinstance(item, Document) else [sentence.words for sentence in item]
        if not isinstance(sentences, DeadLetter):
            documents.append([Sentence(words=words) for words in sentences if words])
    return [document for document in documents if document]


def _warn_of(dead_letters: Sequence[DeadLetter], noun: str) -> None:
    if dead_letters:
        warn(f"{counted(len(dead_letters), noun)} left out; the first: {dead_letters[0].message}")


def _cut(items: Sequence[_Item]) -> Iterator[list[_Item]]:
    """Cut documents into shards; a document is never cut."""
    shard: list[_Item] = []
    size = 0
    for item in items:
        shard.append(item)
        size += _size(item)
        if size >= _SHARD_CHARACTERS:
            yield shard
            shard, size = [], 0
    if shard:
        yield shard


def _size(item: _Item) -> int:
    """Return the number of characters, with a space after each word."""
    if isinstance(item, Document):
        return len(item.text)
    return sum(len(word) + 1 for sentence in item for word in sentence.words)


def _read_texts(files: Sequence[InputFile], config: ReaderConfig) -> Iterator[Document]:
    """Read the documents of files and warn of records that cannot be read."""
    dead_letters: list[DeadLetter] = []
    for file in files:
        records = read_records(file.path, format=file.format, name=file.name, config=config, fault=file.fault)
        for _, record in records:
            if isinstance(record, Document):
                yield record
            else:
                dead_letters.append(record)
    _warn_of(dead_letters, "record")
