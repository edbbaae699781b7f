"""The finished generations of a collection: which one readers see, and which earlier ones are kept.

A generation is complete once it is in ``history``; the newest one is current. ``FolderGenerations`` holds them in a
file system, a folder each, of hard links, and one symbolic link that says which is current:

    OUT/generations/000002/{documents,...,errors}/part-*.parquet, manifest.json, plan.json
    OUT/current                 -> generations/000002, replaced by a rename: this is what makes a generation current
    OUT/documents, ...          -> current/documents, ...
    OUT/_run/manifest.json      -> ../current/manifest.json
    OUT/versions/paper-2026     -> ../generations/000001
    OUT/_run/parts/documents/   parts of a run in progress

A generation is built under a hidden name in ``generations`` and renamed when it is complete. From then on it only
changes where it has lost files: a run of the same plan restores them.

``StoreGenerations`` holds them in an object store, where nothing can be replaced for several tables at once: parts are
side by side, and readers take those that the manifest of a generation names.

    OUT/documents/part-*.parquet, ...   parts of every generation that is kept, and of a run in progress
    OUT/_run/manifest.json              the current manifest, replaced in one request
    OUT/_run/generations/000002@1795000000.json    a generation's manifest; its name has the time it was finished
    OUT/_run/versions/paper-2026        the name of a generation
"""

import errno
import re
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import cast

from concord.models.errors import ConfigError
from concord.pipeline.errors import IntegrityError, PlanError, StoreError
from concord.pipeline.output.manifest import Manifest, canonical_json, read_manifest
from concord.pipeline.output.schema import SCHEMAS
from concord.pipeline.plan import Plan
from concord.pipeline.storage.atomic_writes import (
    crash_point,
    hard_link,
    move_into_place,
    place_link,
    store_errors,
    sync_folder,
    write_atomically,
    write_once,
)
from concord.pipeline.storage.object_stores import StoredObject, StorePath
from concord.pipeline.storage.output_paths import (
    ABSENT,
    OutputPath,
    list_files,
    list_folder,
    names_in,
    read_bytes,
    remove,
)

GENERATION_NAME = re.compile(r"[0-9]{6,12}")
_OF_GENERATION = re.compile(r"/part-\d+-g(\d+)-|/(?:commits|attempts|drivers)/(\d+)/|/plans/(\d+)\.json$")
_VERSION_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """A finished generation.

    Attributes:
        name: its number in six digits, as in ``000002``.
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
        return int(self.name)

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
    """The finished generations of an output. Whoever changes them is its writer (``OutputFolder.writing``).

    Attributes:
        pending: the folder below which parts of a run in progress are written.
    """

    output: OutputPath
    pending: OutputPath
    _versions: OutputPath

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
    def publish(self, manifest: Manifest, plan: OutputPath) -> None:
        """Complete a generation and make it current. It may be done twice."""

    @abstractmethod
    def show_newest(self) -> None:
        """Make the newest complete generation current, where a run was killed before it did."""

    @abstractmethod
    def shows_newest(self) -> bool:
        """Tell whether the newest generation is current and every name leads to it."""

    @abstractmethod
    def versions(self) -> Mapping[str, str]:
        """Return the names that users gave to generations: version -> name of the generation."""

    @abstractmethod
    def _unnamed(self, manifest: Manifest) -> Iterator[OutputPath]: ...

    @abstractmethod
    def _remove(self, generation: Generation) -> None: ...

    @abstractmethod
    def _tag(self, generation: Generation, version: str) -> None: ...

    def check_whole(self) -> None:
        """Raise PlanError for the folder of a single generation, which can be read, but not verified or changed."""
        # In this order: a run may publish the first generation in between.
        if self.current() is not None and not self.history():
            raise PlanError(
                f"{self.output}: is one generation of a collection, which can only be read; expected the collection's "
                "own folder"
            )

    def unnamed(self, manifest: Manifest) -> Iterator[OutputPath]:
        """Yield the parts and leftovers, except those of newer generations, that no generation names.

        Args:
            manifest: of the current generation.
        """
        yield from (path for path in self._unnamed(manifest) if (generation_of(path) or 0) <= manifest.generation)

    def untag(self, version: str) -> None:
        """Remove a version's name; StoreError when the store fails."""
        with store_errors(self.output, state="no name was removed"):
            remove(self._versions / version)

    def tag(self, generation: Generation, version: str) -> None:
        """Give a generation a name, under which it is kept.

        Raises:
            ConfigError: when the name cannot be used, or is that of another generation.
            StoreError: when the store fails.
        """
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
        return matching[0]

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
                remove(path)
        return expired


def sizes_below(root: OutputPath) -> dict[str, int]:
    """Return the sizes in bytes of the parts below a folder, by their paths in commit records."""
    return {f"{name}/{file}": state.st_size for name in SCHEMAS for file, state in list_folder(root / name).items()}


def generation_name(number: int) -> str:
    """Return a generation's name."""
    return f"{number:06d}"


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


MANIFEST, PLAN = "manifest.json", "plan.json"
_HIDDEN = ".staged"
_LOOKS = 6


class FolderGenerations(Generations):
    """The generations of an output folder; constructing one reads nothing."""

    output: Path
    pending: Path
    _versions: Path

    def __init__(self, output: Path) -> None:
        self.output = output
        self.pending = output / "_run" / "parts"
        self._folder = output / "generations"
        self._link = output / "current"
        self._versions = output / "versions"
        self._links = {output / name: f"current/{name}" for name in SCHEMAS}
        self._links[output / "_run" / MANIFEST] = f"../current/{MANIFEST}"

    def history(self) -> list[Generation]:
        names = sorted(filter(GENERATION_NAME.fullmatch, names_in(self._folder)), key=int)
        return list(filter(None, map(self._generation, names)))

    def current(self) -> Generation | None:
        for _ in range(_LOOKS):
            target = _target(self._link)
            if target is None:
                break
            if generation := self._generation(self._checked(target)):
                # A run that was killed or stopped may have made it current long after it was complete.
                changed = _changed(self._link)
                return replace(generation, finished=max(generation.finished, changed or 0.0))
            # Superseded and removed since the link was read.
        # The collection was copied by a tool that follows links, or this is the folder of a single generation.
        return _at(self._link) or _at(self.output)

    def find_part(self, path: str) -> Path:
        pending = self.pending / path
        return pending if pending.exists() else self._current_root() / path

    def part_sizes(self) -> Mapping[str, int]:
        # In this order, for readers: a run that is finished removes a part's name once another leads to it.
        pending = sizes_below(self.pending)
        return sizes_below(self._current_root()) | pending

    def _current_root(self) -> Path:
        target = _target(self._link)
        return self._link if target is None else self._folder / self._checked(target)

    def publish(self, manifest: Manifest, plan: OutputPath) -> None:
        for link, target in self._links.items():
            if _target(link) != target:
                place_link(link, target, staged=self._staged())
                crash_point("link")
        root, staged = self._folder / generation_name(manifest.generation), self._staged()
        if root.exists():
            self._fill(root, manifest, _local(plan))
        else:
            self._fill(staged, manifest, _local(plan))
            move_into_place(staged, root)
        crash_point("publish")
        self.show_newest()

    def show_newest(self) -> None:
        generations = self.history()
        if generations and not self._leads_to(generations[-1]):
            place_link(self._link, f"generations/{generations[-1].name}", staged=self._staged())
            crash_point("swap")

    def shows_newest(self) -> bool:
        generations = self.history()
        return (
            bool(generations)
            and self._leads_to(generations[-1])
            and all(_target(link) == target for link, target in self._links.items())
        )

    def _leads_to(self, generation: Generation) -> bool:
        return _target(self._link) == f"generations/{generation.name}"

    def _unnamed(self, manifest: Manifest) -> Iterator[Path]:
        root = self._current_root()
        named = {part.path for part in manifest.all_files()}
        files = (f"{name}/{file}" for name in SCHEMAS for file in names_in(root / name))
        yield from (root / path for path in files if path not in named)
        yield from (self.pending / name / file for name in SCHEMAS for file in names_in(self.pending / name))
        yield from (self._folder / name for name in names_in(self._folder) if name.endswith(_HIDDEN))

    def _remove(self, generation: Generation) -> None:
        # Hidden first, so that nobody reads one that is half removed.
        staged = self._staged()
        move_into_place(_local(generation.root), staged)
        remove(staged)

    def versions(self) -> Mapping[str, str]:
        targets = {name: _target(self._versions / name) for name in names_in(self._versions)}
        return {version: Path(target).name for version, target in sorted(targets.items()) if target is not None}

    def _tag(self, generation: Generation, version: str) -> None:
        place_link(self._versions / version, f"../generations/{generation.name}", staged=self._staged())

    def _generation(self, name: str) -> Generation | None:
        root = self._folder / name
        finished = _changed(root / MANIFEST)
        return None if finished is None else _generation_in(root, name, finished=finished)

    def _checked(self, target: str) -> str:
        """Return the name of the generation that ``current`` leads to; IntegrityError if it leads elsewhere."""
        name = target.removeprefix("generations/")
        if not GENERATION_NAME.fullmatch(name):
            raise IntegrityError(
                f"{self._link}: expected a link to generations/NUMBER, got one to {target}; remove it, and run the "
                "same command again"
            )
        return name

    def _fill(self, root: Path, manifest: Manifest, plan: Path) -> None:
        """Put into the folder of a generation what it lacks, last its manifest."""
        for name in SCHEMAS:
            (root / name).mkdir(parents=True, exist_ok=True)
        pending, linked, current = sizes_below(self.pending), sizes_below(root), self._current_root()
        for part in manifest.all_files():
            if linked.get(part.path) != part.size:
                (root / part.path).unlink(missing_ok=True)
                hard_link((self.pending if part.path in pending else current) / part.path, root / part.path)
        if not (root / PLAN).exists():
            hard_link(plan, root / PLAN)
        for folder in (*(root / name for name in SCHEMAS), root):
            sync_folder(folder)
        write_atomically(root / MANIFEST, canonical_json(manifest), staging=self.output / "_run" / "staging")

    def _staged(self) -> Path:
        """Return a hidden name, which is removed when a generation is finished."""
        return self._folder / f".{uuid.uuid4().hex}{_HIDDEN}"


def _local(path: OutputPath) -> Path:
    return cast("Path", path)


def _at(root: Path) -> Generation | None:
    """Return the generation in a folder that is not in ``generations``, if there is one."""
    manifest = read_manifest(root / MANIFEST)
    return None if manifest is None else _generation_in(root, generation_name(manifest.generation), finished=0.0)


def _generation_in(root: Path, name: str, *, finished: float) -> Generation:
    return Generation(name=name, root=root, manifest_path=root / MANIFEST, plan_path=root / PLAN, finished=finished)


def _target(link: Path) -> str | None:
    """Return what a symbolic link contains; None if there is no link of this name."""
    try:
        return str(link.readlink())
    except OSError as error:
        if error.errno in ABSENT | {errno.EINVAL}:
            return None
        raise


def _changed(path: Path) -> float | None:
    """Return when a file, or a link itself, was changed; None if there is none."""
    try:
        return path.lstat().st_mtime
    except OSError as error:
        if error.errno in ABSENT:
            return None
        raise


class StoreGenerations(Generations):
    """The generations below a URL; constructing one reads nothing."""

    def __init__(self, output: StorePath) -> None:
        self.output = output
        self.pending = output
        self._run = output / "_run"
        self._versions = self._run / "versions"
        self._manifest_path = self._run / MANIFEST

    def history(self) -> list[Generation]:
        generations: dict[str, Generation] = {}
        for path in list_files(self._run / "generations", "*@*.json"):
            name, _, seconds = path.stem.partition("@")
            if GENERATION_NAME.fullmatch(name) and seconds.isdecimal():
                plan = self._run / "plans" / f"{int(name)}.json"
                generation = Generation(
                    name=name, root=self.output, manifest_path=path, plan_path=plan, finished=float(seconds)
                )
                # A run that was wrongly taken for dead may have written one as well; the first counts.
                generations.setdefault(name, generation)
        return sorted(generations.values(), key=lambda generation: generation.number)

    def current(self) -> Generation | None:
        manifest = read_manifest(self._manifest_path)
        if manifest is None:
            return None
        # A record stays as it is, while the manifest beside it may be replaced before it is read again.
        history = self.history()
        same_number = [generation for generation in history if generation.number == manifest.generation]
        return next(reversed(same_number or history), None)

    def find_part(self, path: str) -> OutputPath:
        return self.output / path

    def part_sizes(self) -> Mapping[str, int]:
        return sizes_below(self.output)

    def publish(self, manifest: Manifest, plan: OutputPath) -> None:
        name, content = generation_name(manifest.generation), canonical_json(manifest)
        existing = next((generation for generation in self.history() if generation.name == name), None)
        if existing is None:
            write_once(self._run / "generations" / f"{name}@{int(time.time())}.json", content)
        elif read_bytes(existing.manifest_path) != content:
            write_atomically(existing.manifest_path, content)
        crash_point("publish")
        self.show_newest()

    def show_newest(self) -> None:
        if not (generations := self.history()):
            return
        content, shown = read_bytes(generations[-1].manifest_path), self._shown()
        if shown is None or shown.content != content:
            # Under a condition, since a run that was wrongly taken for dead may come back at any time.
            self._manifest_path.write_if(content, None if shown is None else shown.version)
            crash_point("swap")
            if not self.shows_newest():
                raise StoreError(f"{self._manifest_path}: another run has replaced it; run the same command again")

    def shows_newest(self) -> bool:
        generations, shown = self.history(), self._shown()
        return bool(generations) and shown is not None and shown.content == read_bytes(generations[-1].manifest_path)

    def _unnamed(self, manifest: Manifest) -> Iterator[OutputPath]:
        manifests = [manifest, *(generation.manifest() for generation in self.history())]
        named = {part.path for kept in manifests for part in kept.all_files()}
        for name in SCHEMAS:
            files = list_files(self.output / name, "*")
            yield from (path for path in files if f"{name}/{path.name}" not in named)

    def _remove(self, generation: Generation) -> None:
        for path in (*list_files(self._run / "generations", f"{generation.name}@*.json"), generation.plan_path):
            remove(path)

    def versions(self) -> Mapping[str, str]:
        return {path.name: read_bytes(path).decode(errors="replace") for path in list_files(self._versions, "*")}

    def _tag(self, generation: Generation, version: str) -> None:
        write_atomically(self._versions / version, generation.name.encode())

    def _shown(self) -> StoredObject | None:
        try:
            return self._manifest_path.read()
        except FileNotFoundError:
            return None
