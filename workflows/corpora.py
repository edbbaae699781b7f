"""Gold corpora for training and evaluation: read, relabelled and checked; and the provenance that a bundle keeps.

The provenance names each corpus that a bundle was made from, and holds a short hash of each of its documents, so that
data it has seen can be recognised. It lies beside the weights and does not enter the tagger's digest, which covers only
what decides the predictions.
"""

import hashlib
import json
import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic import Field

from concord.models.config import Config
from concord.models.data.sentence import Sentence, TreeError, allowed_labels, check_trees
from concord.models.errors import ConfigError
from concord.models.evaluation.metrics import gold_sequences
from concord.models.labels import LabelScheme, Span, decode_spans, encode_spans
from concord.models.layers.tree_lstm import grow_forest
from concord.models.taggers.base import Tagger
from concord.pipeline.corpora.conll import PARSER_KEY, read_header
from concord.pipeline.corpora.corpus_format import TAG_COLUMNS, UNKNOWN_LABEL, GoldFormat
from concord.pipeline.corpora.gold_corpus import GoldDocument, read_corpus
from concord.pipeline.errors import InputError
from concord.pipeline.storage.files import file_sha256
from concord.workflows.console import warn

Documents = Sequence[Sequence[Sentence]]
GOLD_TREES = "gold"
PROVENANCE_NAME = "provenance.json"
Role = Literal["train", "dev", "calibration"]
ROLES: dict[Role, str] = {
    "train": "what it was trained on",
    "dev": "what chose its checkpoint and threshold",
    "calibration": "what it was calibrated on",
}
# Shorter documents, such as a greeting or a title, may be equal by chance.
LEAST_WORDS = 10
_HASH_LENGTH = 16


def gold_format(wanted: GoldFormat, scheme: LabelScheme) -> GoldFormat:
    """Return the format in which to read the corpora of a tagger, whose scheme decides what their labels are."""
    if not scheme.has_entities:
        return wanted.model_copy(update={"label_scheme": scheme.name})
    if not wanted.read_scheme.has_entities or wanted.label_column in TAG_COLUMNS:
        raise ConfigError(
            f"label_column: {wanted.label_column or 'the last'} holds token labels, the tagger is one of entities; "
            "train one with --set model.scheme=TOKENS"
        )
    return wanted


def read_gold_for(
    tagger: Tagger, paths: Sequence[str], *, labels: Mapping[str, str | None], form: GoldFormat | None = None
) -> Documents:
    """Read gold corpora to score a tagger on, and warn of what it cannot get right in them."""
    form = gold_format(form or GoldFormat(), tagger.vocabulary.scheme)
    documents = read_corpora(paths, labels=labels, form=form, trees=tagger.needs_trees)
    check_gold(tagger, documents, paths, labels=labels)
    return documents


def check_gold(tagger: Tagger, documents: Documents, paths: Sequence[str], *, labels: Mapping[str, str | None]) -> None:
    """Warn of what a tagger cannot get right in gold corpora that were read for it, and require a sentence in them.

    ``labels`` are those of the corpora's types and the tagger's.
    """
    require_sentences(documents, paths)
    require_known(documents, paths)
    found = label_types(documents, tagger.vocabulary.scheme)
    if not tagger.vocabulary.scheme.has_entities:
        if unknown := found - set(tagger.vocabulary.labels):
            warn(f"the tagger does not know {', '.join(sorted(unknown))} of the corpus; these count as wrong.")
        return
    if not found:
        warn("the corpus holds no entity, so every F1 is 0.")
    known = {labels.get(kind, kind) for kind in tagger.entity_types} - {None}
    if unknown := found - known:
        warn(
            f"the tagger knows {', '.join(tagger.entity_types)}; every {', '.join(sorted(unknown))} "
            "of the corpus counts as missed. --labels GPE=LOC,MISC= maps or drops types."
        )
    if found and (extra := sorted(kind for kind in known - found if kind is not None)):
        warn(
            f"the corpus has no {', '.join(extra)}; what the tagger finds of them counts as wrong. "
            f"--labels {','.join(f'{kind}=' for kind in extra)} leaves them out."
        )
    for path in paths if tagger.needs_trees else ():
        if (source := tree_source(path)) != tagger.trees:
            warn(f"the tagger learned from trees of {tagger.trees!r}, {path} has those of {source!r}.")


def require_sentences(documents: Iterable[Iterable[Sentence]], paths: Iterable[str]) -> None:
    """Raise an InputError unless corpora have at least one sentence."""
    if not any(sentence.words for document in documents for sentence in document):
        raise InputError(f"{', '.join(paths)}: expected a gold corpus with one sentence or more, got none")


def read_corpora(
    paths: Iterable[str], *, labels: Mapping[str, str | None], form: GoldFormat | None = None, trees: bool = False
) -> Documents:
    """Read the sentences of gold corpora; arguments and errors as in ``read_documents``."""
    return [document.sentences for document in read_documents(paths, labels=labels, form=form, trees=trees)]


def mark_incomplete(
    documents: Documents, lacks: Collection[str], *, types: Collection[str], scheme: LabelScheme
) -> Documents:
    """Leave open what a corpus does not say: the labels of words that are not known, and whether its outside words are
    of the entity types that it lacks; ``types`` are all that there are.
    """
    if lacks and (unknown := set(lacks) - (set(types) if scheme.has_entities else set())):
        raise ConfigError(
            f"data.train: lacks: expected entity types of the other corpora ({', '.join(sorted(types))}), "
            f"got {', '.join(sorted(unknown))}"
        )
    if not lacks and not has_unknown(documents):
        return documents
    names = scheme.label_set(types)

    def marked(sentence: Sentence) -> Sentence:
        if sentence.labels is None or not (lacks or sentence.known):
            return sentence
        soft = allowed_labels(sentence.labels, names, lacks=lacks, scheme=scheme, known=sentence.known)
        return replace(sentence, soft=soft)

    return [[marked(sentence) for sentence in document] for document in documents]


def has_unknown(documents: Documents) -> bool:
    """Return whether the gold label of a word is not known."""
    return any(sentence.known is not None for document in documents for sentence in document)


def require_known(documents: Documents, paths: Iterable[str]) -> None:
    """Raise an InputError unless all gold labels of corpora are known, so that a tagger can be scored on them."""
    if has_unknown(documents):
        raise InputError(
            f"{', '.join(paths)}: expected the labels of all words, to score a tagger on them, got words labelled "
            f"{UNKNOWN_LABEL!r}, which are for training only"
        )


def check_dev_types(dev: Documents, paths: Sequence[str], known: set[str], *, scheme: LabelScheme) -> None:
    """Raise ConfigError for entity types, and warn of token labels, that a tagger cannot learn from its corpora."""
    where = ", ".join(paths)
    unseen = label_types(dev, scheme) - known
    if unseen and scheme.has_entities:
        raise ConfigError(
            f"{where}: holds entities of type {', '.join(sorted(unseen))}, the training corpora hold none; "
            f"map or drop them under data.labels (--set data.labels.{min(unseen)}=null)"
        )
    if unseen:
        warn(f"{where} holds {', '.join(sorted(unseen))}, the training corpora do not; these labels count as wrong.")


def read_documents(
    paths: Iterable[str], *, labels: Mapping[str, str | None], form: GoldFormat | None = None, trees: bool = False
) -> list[GoldDocument]:
    """Read gold corpora as one list of documents with their names.

    Args:
        labels: entity type or token label of the corpora -> the one to use, None for no entity; others stay.
        trees: whether every sentence must have a tree.

    Raises:
        ConfigError: when a token label is mapped to None.
        InputError: with file and line, when one cannot be read; with file and sentence, when a tree is missing.
    """
    form = form or GoldFormat()
    documents: list[GoldDocument] = []
    for path in paths:
        found = read_corpus(Path(path), form).documents
        if trees:
            _check_trees(found, path)
        documents += found
    if not labels:
        return documents

    def renamed(sentence: Sentence) -> Sentence:
        if sentence.labels is None:
            return sentence
        return replace(sentence, labels=rename(sentence.labels, labels, scheme=form.read_scheme))

    return [replace(document, sentences=tuple(map(renamed, document.sentences))) for document in documents]


def weighted(documents: Documents, weight: float) -> Documents:
    """Repeat documents as often as the weight says, and a fixed random choice of them for its fraction.

    At least one is left of a corpus, however small the weight.
    """
    whole, fraction = divmod(weight, 1)
    number = max(round(fraction * len(documents)), 0 if whole else min(1, len(documents)))
    chosen = random.Random(0).sample(range(len(documents)), number)
    return [*(list(documents) * int(whole)), *(documents[index] for index in sorted(chosen))]


def rename(sequence: Sequence[str], labels: Mapping[str, str | None], *, scheme: LabelScheme) -> tuple[str, ...]:
    """Rename the entity types, or the token labels, of a sentence's labels; None removes the entities of a type."""
    if scheme.has_entities:
        spans = [
            Span(span.start, span.end, kind)
            for span in decode_spans(sequence, "BIO")
            if (kind := labels.get(span.label, span.label)) is not None
        ]
        return encode_spans(spans, len(sequence), "BIO")
    renamed = []
    for label in sequence:
        wanted = labels.get(label, label)
        if wanted is None:
            raise ConfigError(f"labels.{label}: expected a label, since every word has one, got null")
        renamed.append(wanted)
    return tuple(renamed)


def tree_source(path: str) -> str:
    """Return the signature of the parser that made a corpus' trees; ``gold`` when no parser did."""
    return read_header(Path(path)).get(PARSER_KEY, GOLD_TREES)


def label_types(documents: Documents, scheme: LabelScheme) -> set[str]:
    """Return the entity types of gold labels, or the labels themselves where each word has one."""
    return {span.label for labels in gold_sequences(documents) for span in scheme.scored_spans(labels)}


def short_names(paths: Iterable[str]) -> str:
    """Return the names of files, each with its folder's, for a title."""
    return ", ".join("/".join(Path(path).parts[-2:]) for path in paths)


def without_labels(documents: Documents) -> Documents:
    """Remove the gold labels, since a tagger may not know all of their types."""
    return [[replace(sentence, labels=None) for sentence in document] for document in documents]


class CorpusFile(Config):
    """One file of a corpus."""

    name: str
    """The file's name with its folder's."""
    sha256: str


class SeenDocuments(Config):
    """The documents that a bundle has seen in one role."""

    role: Role
    files: list[CorpusFile]
    documents: list[str]
    """Hashes of the documents of `LEAST_WORDS` words or more, sorted and unique. In a corpus without documents every
    sentence is one."""


class Teacher(Config):
    """A tagger whose labels a bundle was trained on, or from whose weights its training continued."""

    name: str
    digest: str
    recorded: bool
    """Whether its own provenance was known; if so, the bundle's parts hold what it has seen."""


class Provenance(Config):
    """All corpora that a bundle has seen, by itself or through its teachers."""

    format_version: Literal[1] = 1
    parts: list[SeenDocuments]
    teachers: list[Teacher] = Field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Whether what all teachers have seen is recorded."""
        return all(teacher.recorded for teacher in self.teachers)

    def with_part(self, part: SeenDocuments) -> "Provenance":
        """Add a part, in place of one of the same role."""
        return self.model_copy(update={"parts": [*(known for known in self.parts if known.role != part.role), part]})

    def merged_with(self, part: SeenDocuments) -> "Provenance":
        """Add the files and documents of a part to those of the same role."""
        own = next((known for known in self.parts if known.role == part.role), None)
        if own is None:
            return self.with_part(part)
        files = [*own.files, *(file for file in part.files if file not in own.files)]
        documents = sorted({*own.documents, *part.documents})
        return self.with_part(SeenDocuments(role=part.role, files=files, documents=documents))

    def taught_by(self, name: str, digest: str, own: "Provenance | None") -> "Provenance":
        """Add a teacher and what came into it, but for its calibration; ``own`` is None where that is not known."""
        recorded = own is not None and bool(own.parts) and own.is_complete
        own, taught = own or Provenance(parts=[]), self
        for part in own.parts:
            taught = taught.merged_with(part) if part.role != "calibration" else taught
        teachers = [Teacher(name=name, digest=digest, recorded=recorded), *own.teachers]
        new = [teacher for teacher in teachers if teacher not in self.teachers]
        return taught.model_copy(update={"teachers": [*self.teachers, *new]})


@dataclass(frozen=True, kw_only=True, slots=True)
class Overlap:
    """How many of some documents a bundle has seen.

    Attributes:
        compared: documents of `LEAST_WORDS` words or more.
        short: documents of fewer, which are not compared.
        seen: how many of the compared documents are in the part of each role; only roles with any.
    """

    compared: int
    short: int
    seen: dict[Role, int]

    def __str__(self) -> str:
        seen = ", ".join(f"{number:,} in {ROLES[role]}" for role, number in self.seen.items()) or "none seen"
        return f"of {self.compared:,} documents {seen} ({self.short:,} of fewer than {LEAST_WORDS} words not compared)"


def describe_part(role: Role, paths: Iterable[str], documents: Iterable[Sequence[Sentence]]) -> SeenDocuments:
    """Return the part for corpora whose documents have been read."""
    files = [CorpusFile(name=short_names([path]), sha256=file_sha256(path)) for path in dict.fromkeys(paths)]
    return SeenDocuments(role=role, files=files, documents=sorted(set(_hashes(documents))))


def find_overlap(provenance: Provenance, documents: Sequence[Sequence[Sentence]]) -> Overlap:
    """Count the documents that a bundle has seen; a repeated document counts each time."""
    hashes = _hashes(documents)
    known = {part.role: set(part.documents) for part in provenance.parts}
    seen = {role: number for role, found in known.items() if (number := sum(one in found for one in hashes))}
    return Overlap(compared=len(hashes), short=len(documents) - len(hashes), seen=seen)


def document_hash(document: Sequence[Sentence]) -> str:
    """Hash a document's words, ignoring how they are split into sentences."""
    words = "\n".join(word for sentence in document for word in sentence.words)
    return hashlib.sha256(words.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_LENGTH]


def write_provenance(folder: Path, provenance: Provenance) -> None:
    """Write the provenance into a bundle, replacing any existing one."""
    text = json.dumps(provenance.model_dump(mode="json"), indent=1, sort_keys=True)
    (folder / PROVENANCE_NAME).write_text(text + "\n", encoding="utf-8")


def read_provenance(folder: Path) -> Provenance | None:
    """Return the provenance of a bundle; None if it has none.

    Raises:
        ModelError: when the file is not a valid provenance.
    """
    path = folder / PROVENANCE_NAME
    return Provenance.read_json(path) if path.exists() else None


def _check_trees(documents: Iterable[GoldDocument], path: str) -> None:
    for document in documents:
        try:
            check_trees(document.sentences)
            grow_forest(document.sentences)
        except TreeError as error:
            raise InputError(f"{path}: {error}") from error


def _hashes(documents: Iterable[Sequence[Sentence]]) -> list[str]:
    """Hash the documents that are long enough to compare."""
    return [
        document_hash(document)
        for document in documents
        if sum(len(sentence.words) for sentence in document) >= LEAST_WORDS
    ]
