"""The finished generations of a collection: which one readers see, and which earlier ones are kept.

``folder_generations`` holds them in a file system, ``store_generations`` in an object store. A generation is complete
once it is in ``history``; the newest one is current.
"""

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from concord.models.errors import ConfigError
from concord.pipeline.errors import IntegrityError, PlanError
from concord.pipeline.output.manifest import Manifest, read_manifest
from concord.pipeline.output.schema import SCHEMAS
from concord.pipeline.plan import Plan
from concord.pipeline.storage.atomic_writes import store_errors
from concord.pipeline.storage.output_paths import OutputPath, list_folder, read_bytes

GENERATION_NAME = re.compile(r"([0-9]{6,12})(?:-([0-9]{1,12}))?")
_OF_GENERATION = re.compile(r"/part-\d+-g(\d+)-|/(?:commits|attempts|drivers)/(\d+)/|/plans/(\d+)\.json$")
_VERSION_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """A finished generation.

    Attributes:
        name: its number in six digits, as in ``000002``; ``000002-1`` if it was finished again with other bytes.
        root: the folder below which the parts are that its manifest names.
        finished: Unix time in seconds, of the current one that at which it became current; 0 if unknown.
    """

    name: str
    root: OutputPath
    manifest_path: OutputPath
    plan_path: OutputPath
    finished: float = 0.0

    @property
    def number(self) -> int:
        """The number of its plan."""
        return self.rank[0]

    @property
    def rank(self) -> tuple[int, int]:
        """Number and repetition, by which generations are ordered."""
        number, _, repetition = self.name.partition("-")
        return int(number), int(repetition or 0)

    def manifest(self) -> Manifest:
        """Read its manifest; IntegrityError if it is gone or broken."""
        manifest = read_manifest(self.manifest_path)
        if manifest is None:
            raise IntegrityError(f"{self.manifest_path}: removed while it was being read; run the command again")
        return manifest

    def plan(self) -> Plan:
        """Read its plan; PlanError if it is gone or broken."""
        return read_plan(self.plan_path)


@dataclass(frozen=True, kw_only=True, slots=True)
class Retention:
    """Which generations are kept: the newest, those with a name, and each for a while after its successor is finished.

    Attributes:
        keep: how many of the newest.
        grace_seconds: for which a superseded generation is kept.
    """

    keep: int = 1
    grace_seconds: float = 3600.0


KEEP_NEWEST = Retention()


class Generations(ABC):
    """The finished generations of an output.

    Attributes:
        pending: the folder below which parts of a run in progress are written.
    """

    output: OutputPath
    pending: OutputPath

    @abstractmethod
    def history(self) -> list[Generation]:
        """Return the complete generations, the oldest first."""

    @abstractmethod
    def current(self) -> Generation | None:
        """Return the generation that readers see; None if no run is finished."""

    @abstractmethod
    def find_part(self, path: str) -> OutputPath:
        """Return where a committed part is, given its path in the commit record."""

    @abstractmethod
    def part_sizes(self) -> Mapping[str, int]:
        """Return the sizes in bytes of the parts of a run in progress and of the current generation, by their paths."""

    @abstractmethod
    def is_settled(self) -> bool:
        """Tell whether the newest generation is current and every name leads to it."""

    @abstractmethod
    def discard(self, path: OutputPath) -> None:
        """Remove what ``unnamed`` yielded."""

    def plans(self) -> set[OutputPath]:
        """Return plans in ``_run/plans`` that kept generations need."""
        return set()

    @abstractmethod
    def versions(self) -> Mapping[str, str]:
        """Return the names that users gave to generations: version -> name of the generation."""

    @abstractmethod
    def _publish(self, manifest: Manifest, plan: OutputPath) -> Generation: ...

    @abstractmethod
    def _settle(self) -> None: ...

    @abstractmethod
    def _unnamed(self, manifest: Manifest) -> Iterator[OutputPath]: ...

    @abstractmethod
    def _remove(self, generation: Generation) -> None: ...

    @abstractmethod
    def _tag(self, generation: Generation, version: str) -> None: ...

    @abstractmethod
    def _untag(self, version: str) -> None: ...

    def check_whole(self) -> None:
        """Raise PlanError for the folder of a single generation, which can be read, but not verified or changed."""
        # In this order: another driver may publish the first generation in between.
        if self.current() is not None and not self.history():
            raise PlanError(
                f"{self.output}: is one generation of a collection, which can only be read; expected the collection's "
                "own folder"
            )

    def publish(self, manifest: Manifest, plan: OutputPath) -> Generation:
        """Make a generation current, unless a newer one is complete; return the current one. It may be done twice.

        Raises:
            StoreError: when the store fails.
        """
        with store_errors(self.output, state=f"generation {manifest.generation} is not published"):
            return self._publish(manifest, plan)

    def settle(self) -> None:
        """Make the newest complete generation current, where a run was killed before it did.

        Raises:
            PlanError: for the folder of a single generation.
            StoreError: when the store fails.
        """
        self.check_whole()
        with store_errors(self.output, state="nothing is lost"):
            self._settle()

    def unnamed(self, manifest: Manifest) -> Iterator[OutputPath]:
        """Yield the parts and leftovers, except those of newer generations, that no generation names.

        Args:
            manifest: of the current generation.
        """
        yield from (path for path in self._unnamed(manifest) if (generation_of(path) or 0) <= manifest.generation)

    def untag(self, version: str) -> None:
        """Remove a version's name; StoreError when the store fails."""
        with store_errors(self.output, state="no name was removed"):
            self._untag(version)

    def tag(self, generation: Generation, version: str) -> None:
        """Give a generation a name, under which it is kept.

        Raises:
            ConfigError: when the name cannot be used, or is that of another generation.
            PlanError: for the folder of a single generation.
            StoreError: when the store fails.
        """
        self.check_whole()
        if not _VERSION_NAME.fullmatch(version):
            raise ConfigError(f"version: expected letters, digits, '.', '_' and '-', as in paper-2026, got {version!r}")
        named = self.versions().get(version)
        if named not in {None, generation.name}:
            raise ConfigError(
                f"{self.output}: {version} is generation {named}; choose another name, or remove that one with --untag"
            )
        with store_errors(self.output, state="no name was given"):
            self._tag(generation, version)

    def find(self, *, generation: int | None = None, version: str | None = None) -> Generation:
        """Return one generation, by number or version; the current one if neither is given.

        Raises:
            PlanError: when there is none.
        """
        current = self.current()
        if current is None:
            raise PlanError(f"{self.output}: the run is not finished; run the same annotate command again")
        if generation is None and version is None:
            return current
        by_name = {candidate.name: candidate for candidate in (*self.history(), current)}
        if version is not None:
            versions = self.versions()
            if version not in versions:
                raise PlanError(f"{self.output}: no version {version!r}; there are: {', '.join(versions) or 'none'}")
            matching = [candidate for candidate in by_name.values() if candidate.name == versions[version]]
        else:
            matching = [candidate for candidate in by_name.values() if candidate.number == generation]
        if not matching:
            numbers = ", ".join(sorted({str(candidate.number) for candidate in by_name.values()}, key=int))
            raise PlanError(f"{self.output}: no generation {version or generation}; there are: {numbers}")
        return max(matching, key=lambda candidate: candidate.rank)

    def expired(self, retention: Retention) -> list[Generation]:
        """Return the generations that are no longer to be kept."""
        current = self.current()
        generations = [
            current if current is not None and generation.name == current.name else generation
            for generation in self.history()
        ]
        kept = {generation.name for generation in generations[-retention.keep :]} | set(self.versions().values())
        if current is not None:
            kept.add(current.name)
        limit = time.time() - retention.grace_seconds
        return [
            generation
            for generation, successor in pairwise(generations)
            if generation.name not in kept and max(generation.finished, successor.finished) <= limit
        ]

    def prune(self, retention: Retention) -> list[Generation]:
        """Remove the generations that are no longer to be kept, with their parts, and return them.

        A run may be in progress.

        Raises:
            PlanError: when no run is finished.
            StoreError: when the store fails.
        """
        manifest = self.find().manifest()
        with store_errors(self.output, state="not everything that is no longer kept is removed"):
            expired = self.expired(retention)
            for generation in expired:
                self._remove(generation)
            for path in list(self.unnamed(manifest)):
                self.discard(path)
        return expired


def sizes_below(root: OutputPath) -> dict[str, int]:
    """Return the sizes in bytes of the parts below a folder, by their paths in commit records."""
    return {f"{name}/{file}": state.st_size for name in SCHEMAS for file, state in list_folder(root / name).items()}


def generation_name(number: int, repetition: int = 0) -> str:
    """Return a generation's name."""
    return f"{number:06d}-{repetition}" if repetition else f"{number:06d}"


def generation_of(path: OutputPath) -> int | None:
    """Return the generation of a part, commit record or plan; None for any other file."""
    match = _OF_GENERATION.search(f"/{path.parent.parent.name}/{path.parent.name}/{path.name}")
    return int(next(filter(None, match.groups()))) if match else None


def read_plan(path: OutputPath) -> Plan:
    """Read a plan; PlanError if there is no such file or it is not a plan."""
    try:
        return Plan.from_json(read_bytes(path))
    except FileNotFoundError:
        raise PlanError(f"expected {path}, found no such file") from None
    except PlanError as error:
        raise PlanError(f"{path}: {error}") from None
