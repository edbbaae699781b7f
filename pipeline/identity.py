"""What decides whether a document must be annotated again: parser, tagger and configuration."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from concord.models.config import Config, flatten
from concord.pipeline.config import AnnotateConfig


class ComponentIdentity(Config):
    """A parser or tagger, by name and content."""

    name: str
    version: str | None = None
    """Its version in the registry or of its package, if it has one."""
    digest: str
    """SHA-256 in hex over its weight files and configuration."""
    terms: str | None = Field(default=None, exclude_if=lambda terms: terms is None)
    """SHA-256 in hex of the list of terms that a tagger is run with."""

    @property
    def description(self) -> str:
        """Its name, version and the beginning of its digest."""
        version = f" version {self.version}" if self.version else ""
        return f"{self.name}{version}, {self.digest[:12]}"


def row_settings(
    config: AnnotateConfig, parser: ComponentIdentity, tagger: ComponentIdentity, schema: int
) -> dict[str, Any]:
    """Return everything that decides the words and labels of a text besides the text and people's corrections.

    Keys are dotted, such as ``parser.trees``; ``parser`` and ``tagger`` are signatures, as in the tables.
    """
    signatures = {"parser": component_signature(parser), "tagger": component_signature(tagger)}
    decisive = flatten(config.values_where(lambda mark: mark.what == "labels"))
    return {"schema_version": schema, **signatures, **decisive}


def find_differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return in plain words what differs between the settings of rows; each line begins with the key."""
    return [
        f"{key}: was {then.get(key)!r}, is now {now.get(key)!r}"
        for key in sorted(then.keys() | now.keys())
        if then.get(key) != now.get(key)
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class ResolvedTagger:
    """The tagger of a run, resolved once before it starts.

    Attributes:
        version: in the registry, if it comes from there.
        digest: SHA-256 in hex over its files (concord.models.bundles.manifest.tagger_digest).
        folder: of the bundle; every worker must be able to read it.
        trees: the source of the trees that it learned from (concord.models.taggers.base.Tagger.trees).
        parser: the bundled parser that it wants (Tagger.parser).
        terms: as in ``ComponentIdentity``.
    """

    name: str
    version: str | None
    digest: str
    folder: Path
    trees: str | None = None
    parser: str | None = None
    terms: str | None = None

    @property
    def identity(self) -> ComponentIdentity:
        """Its name, version and digest, as plans and tables record them."""
        return ComponentIdentity(**{name: getattr(self, name) for name in ComponentIdentity.model_fields})


def component_signature(component: ComponentIdentity) -> str:
    """Return the value of the columns ``parser`` and ``tagger`` and of the tables' metadata."""
    terms = "" if component.terms is None else f"+terms@{component.terms}"
    return f"{component.name}@{component.digest}{terms}"
