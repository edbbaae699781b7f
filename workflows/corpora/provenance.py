"""The provenance of a bundle: the corpora it was made from, so that data it has seen can be recognised.

The file names each corpus and holds a short hash of each of its documents. It lies beside the weights and does not
enter the tagger's digest, which covers only what decides the predictions.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Literal, Self

from pydantic import Field

from concord.models.config import Config
from concord.models.data.sentence import Sentence
from concord.pipeline.storage.files import file_sha256

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


class CorpusFile(Config):
    """One file of a corpus."""

    name: str
    """The file's name with its folder's."""
    sha256: str

    @classmethod
    def of(cls, path: str) -> Self:
        """Hash a file, given by its path or URL."""
        return cls(name="/".join(PurePath(path).parts[-2:]), sha256=file_sha256(path))


class Part(Config):
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
    parts: list[Part]
    teachers: list[Teacher] = Field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Whether what all teachers have seen is recorded."""
        return all(teacher.recorded for teacher in self.teachers)

    def with_part(self, part: Part) -> "Provenance":
        """Add a part, in place of one of the same role."""
        return self.model_copy(update={"parts": [*(known for known in self.parts if known.role != part.role), part]})

    def merged_with(self, part: Part) -> "Provenance":
        """Add the files and documents of a part to those of the same role."""
        own = next((known for known in self.parts if known.role == part.role), None)
        if own is None:
            return self.with_part(part)
        files = [*own.files, *(file for file in part.files if file not in own.files)]
        documents = sorted({*own.documents, *part.documents})
        return self.with_part(Part(role=part.role, files=files, documents=documents))

    def joined_with(self, other: "Provenance") -> "Provenance":
        """Add the teachers of another bundle and all that it has seen, but for its calibration."""
        merged = self
        for part in other.parts:
            merged = merged.merged_with(part) if part.role != "calibration" else merged
        new = [teacher for teacher in other.teachers if teacher not in self.teachers]
        return merged.model_copy(update={"teachers": [*self.teachers, *new]})

    def taught_by(self, name: str, digest: str, own: "Provenance | None") -> "Provenance":
        """Add a teacher and what came into it; ``own`` is None where that is not known."""
        recorded = own is not None and bool(own.parts) and own.is_complete
        named = self.joined_with(Provenance(parts=[], teachers=[Teacher(name=name, digest=digest, recorded=recorded)]))
        return named if own is None else named.joined_with(own)


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


def describe_part(role: Role, paths: Iterable[str], documents: Iterable[Sequence[Sentence]]) -> Part:
    """Return the part for corpora whose documents have been read."""
    files = [CorpusFile.of(path) for path in dict.fromkeys(paths)]
    return Part(role=role, files=files, documents=sorted(set(_hashes(documents))))


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


def _hashes(documents: Iterable[Sequence[Sentence]]) -> list[str]:
    """Hash the documents that are long enough to compare."""
    return [
        document_hash(document)
        for document in documents
        if sum(len(sentence.words) for sentence in document) >= LEAST_WORDS
    ]
