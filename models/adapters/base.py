"""What taggers share that wrap the model of another library; ``--model NAME:SOURCE`` names such a tagger and its model.

Such a tagger is saved as every other, with the files that its library reads in the folder ``source``.
"""

import hashlib
import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar, Self

from concord.models.errors import ModelError
from concord.models.labels import BIO, BIOES, BIOES_PREFIXES, OUTSIDE, TOKENS, LabelScheme
from concord.models.regular_files import file_digest
from concord.models.taggers.base import ConfigT, Tagger, TaggerConfig

_PREFIXED = re.compile(r"(?P<part>[BILUESMW])[-_](?P<kind>.+)")
_SUFFIXED = re.compile(r"(?P<kind>.+)[-_](?P<part>[BILUESMW])")
_UNNAMED = re.compile(r"LABEL_\d+")


class AdaptedConfig(TaggerConfig):
    """The configuration of a tagger that wraps the model of another library."""

    source: str
    """Folder that the library reads the model from; `source` in a saved tagger."""


class AdaptedTagger(Tagger[ConfigT], ABC):
    """A tagger that wraps the model of another library; its configuration is an ``AdaptedConfig``.

    Attributes:
        library: the name of the package that must be installed to load the tagger.
    """

    library: ClassVar[str]

    @classmethod
    @abstractmethod
    def find(cls, source: str) -> Path:
        """Return the folder of the model that ``--model NAME:SOURCE`` names.

        Raises:
            ModelError: if there is no such model, or its library is not installed.
        """

    @classmethod
    @abstractmethod
    def adapt(cls, source: str) -> Self:
        """Wrap the model that ``--model NAME:SOURCE`` names; raise a ModelError if it cannot be."""

    @classmethod
    @abstractmethod
    def source_files(cls, folder: Path) -> Sequence[Path]:
        """Return the files that are saved, of the folder that the library reads; weights of torch are saved anyway."""

    @classmethod
    def model_digest(cls, folder: Path) -> str:
        """Return the sha256, in hex, of what decides how a model is wrapped: its files, this code and the library."""
        digest = hashlib.sha256(f"{version('concord-annotate')} {version(cls.library)}".encode())
        digest.update(file_digest(Path(inspect.getfile(cls))))
        for path in sorted({*cls.source_files(folder), *folder.glob("*.safetensors*")}):
            digest.update(path.relative_to(folder).as_posix().encode() + file_digest(path))
        return digest.hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelMap:
    """How the labels of another library's model become those of a tagger."""

    scheme: LabelScheme
    labels: tuple[str, ...]
    """The tagger's labels."""
    numbers: tuple[int | None, ...]
    """For each of them the number of the model's label; None if the model has none."""
    inside_alone: bool
    """Whether the model's labels have no beginnings (IO), so that neighbouring words of a type are one entity."""

    @classmethod
    def of(cls, names: Sequence[str]) -> Self:
        """Read the scheme off the labels of a model, in the order of their numbers.

        It is BIO, BIOES under any of its names (BILOU, BMES), IO with or without prefixes, or, for a model without
        ``O``, one label for each word. What is a prefix (B-PER) may stand behind the type as well (PER-B).

        Raises:
            ModelError: if the labels have no names, or are of no scheme.
        """
        if unnamed := next(filter(_UNNAMED.fullmatch, names), None):
            raise ModelError(
                f"labels: expected names such as B-PER, got {unnamed}; give id2label and label2id of config.json the "
                "names that the model was trained with"
            )
        prefixed = _split(names)
        if OUTSIDE not in names and not prefixed:
            labels = TOKENS.label_set(names)
            return cls(scheme=TOKENS, labels=labels, numbers=tuple(map(names.index, labels)), inside_alone=False)
        parts = {part for part, _ in prefixed.values()}
        scheme = BIOES if parts & {"E", "S", *BIOES_PREFIXES} else BIO
        inside_alone = parts <= {"I"}
        found: dict[str, int] = {}
        for number, name in enumerate(names):
            if name in prefixed:
                prefix, kind = prefixed[name]
                label = f"{BIOES_PREFIXES.get(prefix, prefix)}-{kind}"
            else:
                label = name if name == OUTSIDE or prefixed else f"I-{name}"
            if label in found or (label == name != OUTSIDE and name not in prefixed):
                raise ModelError(f"labels: expected O and labels of one scheme, got {name!r} among {', '.join(names)}")
            found[label] = number
            if inside_alone and label != OUTSIDE:
                found[f"B-{label[2:]}"] = number
        labels = scheme.label_set(scheme.types(found))
        return cls(scheme=scheme, labels=labels, numbers=tuple(map(found.get, labels)), inside_alone=inside_alone)


def _split(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Split labels into the part of an entity that they stand for (B, I, ...) and its type; others are left out.

    Types may end like parts of entities, as VITAMIN-B does: labels are split at their ends only where all of them are
    of one scheme then.

    Raises:
        ModelError: if that cannot be told.
    """
    prefixed = {name: (match["part"], match["kind"]) for name in names if (match := _PREFIXED.fullmatch(name))}
    entities = set(names) - {OUTSIDE}
    suffixed = {name: (match["part"], match["kind"]) for name in entities if (match := _SUFFIXED.fullmatch(name))}
    if prefixed.keys() == entities or not suffixed:
        return prefixed
    parts: dict[str, set[str]] = {}
    for part, kind in suffixed.values():
        parts.setdefault(kind, set()).add(part)
    is_begun = any("B" in found and found & {"I", "M"} for found in parts.values())
    is_inside = OUTSIDE in names and all(found == {"I"} for found in parts.values())
    are_all = suffixed.keys() == entities
    if are_all and (is_begun or is_inside):
        return suffixed
    if is_begun or (are_all and all("B" in found for found in parts.values())):
        raise ModelError(
            f"labels: expected O and labels of one scheme, such as B-PER or PER-B, got {', '.join(names)}; rename them "
            "in id2label and label2id of config.json"
        )
    return prefixed
