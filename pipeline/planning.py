"""The plan of a run: its input cut into shards, and everything else that decides the output."""

from collections.abc import Callable, Sequence
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

import orjson

from models.config import Config
from pipeline.config import AnnotateConfig
from pipeline.records import Shard

PLAN_VERSION = 1


class ComponentIdentity(Config):
    """Which parser or tagger did the work."""

    name: str
    version: str | None = None
    """The version in the registry or of the package, if it has one."""
    digest: str
    """Sha256 in hex over the component's weight files and configuration."""


class Source(Config):
    """One input file as the planner found it."""

    uri: str
    """Absolute path."""
    format: str
    """text, jsonl or parquet."""
    size: int
    """Bytes on disk."""
    sha256: str
    """Of the bytes on disk, in hex."""
    records: int
    """How many records the plan takes from it."""


class Plan(Config):
    """A frozen run: equal plans give equal bytes on one build and CPU type."""

    plan_version: int = PLAN_VERSION
    schema_version: int
    generation: int = 0
    config: AnnotateConfig
    """Resolved: all paths absolute."""
    parser: ComponentIdentity
    tagger: ComponentIdentity
    tagger_folder: str
    """Where the tagger's bundle lies. The bundle counts, not its place: left out of the digest."""
    threads: int
    """Threads a worker computes with, equal for every executor."""
    sources: tuple[Source, ...]
    shards: tuple[Shard, ...]
    read: int
    """Records of the input in total, as the planner counted them."""

    def to_json(self) -> bytes:
        """Give the canonical JSON text: sorted keys, no white space, equal for equal plans."""
        return _canonical(self.model_dump(mode="json"))

    @classmethod
    def from_json(cls, content: bytes | str) -> Self:
        """Read a plan that to_json wrote.

        Raises:
            PlanError: when the text is not a plan of this version.
        """
        return cls.model_validate_json(content)

    @cached_property
    def digest(self) -> str:
        """Sha256 in hex over everything that decides the output.

        The output's own place, the executor (but not its threads), the limits that only decide the exit
        code and the places of parser and tagger are left out.
        """
        return sha256(_canonical(self.model_dump(mode="json"))).hexdigest()

    def difference(self, other: "Plan") -> list[str]:
        """Say in plain words what decides the output and is not as in another, earlier plan."""
        return []


def make_plan(
    config: AnnotateConfig,
    *,
    parser: ComponentIdentity,
    tagger: ComponentIdentity,
    tagger_folder: str | Path,
    threads: int,
    hash_file: Callable[[Sequence[str]], list[str]] | None = None,
) -> Plan:
    """Look through the input once and cut it into shards.

    Args:
        hash_file: gives the sha256 in hex of each of the files, in order; in this process if none.

    Raises:
        InputError: when there is nothing to read, or a file cannot be opened.
    """
    raise NotImplementedError


def _canonical(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
