"""What decides whether a document must be done again."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson

from concord.models.config import Config
from concord.pipeline.config import AnnotateConfig

_SIDE_ISSUES = {"output", "executor", "max_dead_letters", "max_removed", "accept_input", "report"}


class ComponentIdentity(Config):
    """Which parser or tagger did the work."""

    name: str
    version: str | None = None
    """The version in the registry or of the package, if it has one."""
    digest: str
    """Sha256 in hex over the component's weight files and configuration."""


class Recipe(Config):
    """All that decides the rows of a document besides the document."""

    schema_version: int
    parser: str
    """Its signature, as the tables give it."""
    tagger: str
    config: dict[str, Any]
    """As ``row_config`` gives it."""

    def difference(self, earlier: "Recipe") -> list[str]:
        """Say in plain words what is no longer as in an earlier recipe; nothing if the rows would be the same."""
        then, now = _flat(earlier.model_dump(mode="json")), _flat(self.model_dump(mode="json"))
        return [
            f"{key}: was {then.get(key)!r}, is now {now.get(key)!r}"
            for key in sorted(then.keys() | now.keys())
            if then.get(key) != now.get(key)
        ]

    def has_same_parses(self, earlier: "Recipe") -> bool:
        """Say whether a document's parse would be the same."""
        ours, theirs = ((it.schema_version, it.parser, it.config["parser"]) for it in (self, earlier))
        return ours == theirs


@dataclass(frozen=True, kw_only=True, slots=True)
class ResolvedTagger:
    """The tagger a run uses, settled once before it starts.

    Attributes:
        version: of the registry, if it comes from there.
        digest: SHA-256 in hex over its files (concord.models.checkpoint.tagger_digest).
        folder: where the bundle lies; every worker must be able to read it there.
        trees: where the trees came from that it learned from (concord.models.tagger.Tagger.trees).
    """

    name: str
    version: str | None
    digest: str
    folder: Path
    trees: str | None = None

    @property
    def identity(self) -> ComponentIdentity:
        """What plans and tables say of it."""
        return ComponentIdentity(name=self.name, version=self.version, digest=self.digest)


def digest_of(value: Any) -> str:
    """Give the sha256, in hex, of a plain value's canonical JSON text."""
    return sha256(canonical_json(value)).hexdigest()


def canonical_json(value: Any) -> bytes:
    """Give the one JSON text of a plain value: sorted keys, no white space."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def deciding_config(config: AnnotateConfig) -> dict[str, Any]:
    """Give the part of a configuration that can change a byte of the output.

    Left out are the output's own place, the executor (its threads stand in the plan), what only decides the exit code,
    the report or what a run is allowed to do, where parser and tagger lie (their digests stand for them), and whether
    they may differ in whose trees they know.
    """
    values = config.model_dump(mode="json", exclude=_SIDE_ISSUES)
    del values["planning"]["hash_with_ray_bytes"], values["planning"]["rehash"]
    del values["parser"]["directory"]
    del values["tagger"]["model"], values["tagger"]["accept_parser"]
    return values


def row_config(config: AnnotateConfig) -> dict[str, Any]:
    """Give the part of a configuration that can change a document's rows beyond the margin of rounding.

    Left out are, beside what ``deciding_config`` leaves out, which documents there are and how they are cut.
    """
    values = deciding_config(config)
    del values["input"], values["limit"], values["planning"]
    return values


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= _flat(value, prefix="" if key == "config" else f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def component_signature(component: ComponentIdentity) -> str:
    """Give what the columns ``parser`` and ``tagger`` and the tables' metadata say of a component."""
    return f"{component.name}@{component.digest}"
