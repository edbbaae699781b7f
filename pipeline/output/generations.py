"""The finished generations of a collection: which one readers see, and which earlier ones are kept.

A generation is complete once it is in ``history``; the newest one is current. ``FolderGenerations`` holds them in a
file system, a folder each, of hard links, and one symbolic link that says which is current:

    OUT/generations/000002/{documents,...,errors}/part-*.parquet, manifest.json, plan.json
    OUT/current                 -> generations/000002, replaced by a rename: this is what makes a generation current
    OUT/documents, ...          -> current/documents, ...
    OUT/_run/manifest.json      -> ../current/manifest.json
    OUT/versions/paper-2026     -> ../generations/000001
    OUT/_run/parts/documents/   parts of a run in progress

A generation is built under a hidden name in ``generations`` and renamed when it is complete. Drivers may build, replace
links and clean up at the same time: the one that replaces ``current`` looks afterwards whether a newer generation is
complete by then, so that one that was stopped for an hour does not leave its own as the current one.

Somebody else may have made the folder. Links other than these are not followed where something is written or removed,
and of these only the name of a generation counts.

``StoreGenerations`` holds them in an object store, where nothing can be replaced for several tables at once: parts are
side by side, and readers take those that the manifest of a generation names.

    OUT/documents/part-*.parquet, ...   parts of every generation that is kept, and of a run in progress
    OUT/_run/manifest.json              the current manifest, replaced in one request
    OUT/_run/generations/000002@1795000000.json    a generation's manifest; its name has the time it was finished
    OUT/_run/versions/paper-2026        the name of a generation
"""

import errno
import os
import re
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import cast

from concord.models.errors import ConfigError
from concord.pipeline.errors import IntegrityError, PlanError
from concord.pipeline.output.manifest import DataFile, Manifest, canonical_json, read_manifest
from concord.pipeline.output.schema import SCHEMAS
from concord.pipeline.plan import Plan
from concord.pipeline.storage.atomic_writes import (
    crash_point,
    move_into_place,
    retry_on,
    stage_file,
    store_errors,
    sync_folder,
    write_atomically,
    write_once,
)
from concord.pipeline.storage.folders import (
    ABSENT,
    folder_of,
    follow_no_links_below,
    hard_link,
    link_target,
    names_in,
    place_link,
    remove_file,
    remove_tree,
)
from concord.pipeline.storage.output_paths import OutputPath, list_files, list_folder, read_bytes

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
    def shows_newest(self) -> bool:
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
    def _show_newest(self) -> None: ...

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

    def show_newest(self) -> None:
        """Make the newest complete generation current, where a run was killed before it did.

        Raises:
            PlanError: for the folder of a single generation.
            StoreError: when the store fails.
        """
        self.check_whole()
        with store_errors(self.output, state="nothing is lost"):
            self._show_newest()

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


MANIFEST, PLAN = "manifest.json", "plan.json"
_HIDDEN = re.compile(r"\.([0-9]+)-[0-9a-f]+(?:-aside)?\.staged")
_ATTEMPTS = 6


class FolderGenerations(Generations):
    """The generations of an output folder; constructing one reads nothing."""

    output: Path
    pending: Path

    def __init__(self, output: Path) -> None:
        follow_no_links_below(output)
        self.output = output
        self.pending = output / "_run" / "parts"
        self._folder = output / "generations"
        self._link = output / "current"
        self._versions = output / "versions"
        self._links = {output / name: f"current/{name}" for name in SCHEMAS}
        self._links[output / "_run" / MANIFEST] = f"../current/{MANIFEST}"

    def history(self) -> list[Generation]:
        names = [path.name for path in _entries(self._folder) if GENERATION_NAME.fullmatch(path.name)]
        return sorted(filter(None, map(self._generation, names)), key=lambda generation: generation.rank)

    def current(self) -> Generation | None:
        for _ in range(_ATTEMPTS):
            target = link_target(self._link)
            if target is None:
                break
            if generation := self._generation(self._checked(target)):
                # A run that was killed or stopped may have made it current long after it was complete.
                status = _status(self._link)
                return replace(generation, finished=max(generation.finished, status.st_mtime if status else 0.0))
            # Superseded and removed since the link was read.
        # The collection was copied by a tool that follows links, or this is the folder of a single generation.
        return _at(self._link) or _at(self.output)

    def find_part(self, path: str) -> Path:
        pending = self.pending / path
        return pending if os.path.lexists(pending) else self._current_root() / path

    def part_sizes(self) -> Mapping[str, int]:
        # In this order: a driver that finishes the generation removes a part's name once another leads to it.
        pending = sizes_below(self.pending)
        return sizes_below(self._current_root()) | pending

    def _current_root(self) -> Path:
        target = link_target(self._link)
        return self._link if target is None else self._folder / self._checked(target)

    def _publish(self, manifest: Manifest, plan: OutputPath) -> Generation:
        def attempt() -> Generation:
            if not any(generation.number > manifest.generation for generation in self.history()):
                self._make_links()
                self._build(manifest, _local(plan))
            return self._point()

        return retry_on(FileNotFoundError, attempt)

    def _show_newest(self) -> None:
        if self.history() and not self._is_newest():
            retry_on(FileNotFoundError, self._point)

    def shows_newest(self) -> bool:
        return self._is_newest() and all(link_target(link) == target for link, target in self._links.items())

    def _unnamed(self, manifest: Manifest) -> Iterator[Path]:
        current = self.current()
        if current is not None:
            # Another driver may have made a newer generation current.
            root = _local(current.root)
            named = {part.path for part in current.manifest().all_files()}
            files = (f"{name}/{file}" for name in SCHEMAS for file in names_in(root / name))
            yield from (root / path for path in files if path not in named)
        yield from (path for name in SCHEMAS for path in _entries(self.pending / name))
        for path in _entries(self._folder):
            if (match := _HIDDEN.fullmatch(path.name)) and int(match[1]) <= manifest.generation:
                yield path

    def discard(self, path: OutputPath) -> None:
        local = _local(path)
        if local.parent == self._folder:
            self._remove_hidden(local)
        else:
            remove_tree(local)

    def _remove(self, generation: Generation) -> None:
        self._remove_hidden(_local(generation.root))

    def versions(self) -> Mapping[str, str]:
        targets = {path.name: link_target(path) for path in _entries(self._versions)}
        return {version: Path(target).name for version, target in sorted(targets.items()) if target is not None}

    def _tag(self, generation: Generation, version: str) -> None:
        place_link(self._versions / version, f"../generations/{generation.name}", staged=self._staged())

    def _untag(self, version: str) -> None:
        remove_file(self._versions / version)

    def _generation(self, name: str) -> Generation | None:
        root = self._folder / name
        status = _status(root / MANIFEST)
        return None if status is None else _generation_in(root, name, finished=status.st_mtime)

    def _checked(self, target: str) -> str:
        """Return the name of the generation that ``current`` leads to; IntegrityError if it leads elsewhere."""
        name = target.removeprefix("generations/")
        if not GENERATION_NAME.fullmatch(name):
            raise IntegrityError(
                f"{self._link}: expected a link to generations/NUMBER, got one to {target}; remove it, and run the "
                "same command again"
            )
        return name

    def _is_newest(self) -> bool:
        generations = self.history()
        return bool(generations) and link_target(self._link) == f"generations/{generations[-1].name}"

    def _point(self) -> Generation:
        """Make the newest complete generation current."""
        while True:
            newest = self.history()[-1]
            if self._is_newest():
                return newest
            self._place(self._link, f"generations/{newest.name}")
            crash_point("swap")

    def _make_links(self) -> None:
        for link, target in self._links.items():
            if link_target(link) != target:
                self._place(link, target)
                crash_point("link")

    def _place(self, link: Path, target: str) -> None:
        staged = self._staged()
        place_link(link, target, staged=staged)
        # Only a folder that was replaced by the link is left.
        remove_tree(staged)

    def _build(self, manifest: Manifest, plan: Path) -> None:
        """Make the folder of a generation; one with the same manifest gets the parts that it has lost."""
        content = canonical_json(manifest)
        same_number = [generation for generation in self.history() if generation.number == manifest.generation]
        parts = manifest.all_files()
        if same_number and read_bytes(same_number[-1].manifest_path) == content:
            self._link_parts(parts, _local(same_number[-1].root))
            return
        staged = self._staged(manifest.generation)
        try:
            for name in SCHEMAS:
                with folder_of(staged / name / "*", make=True):
                    pass
            self._link_parts(parts, staged)
            hard_link(plan, staged / PLAN)
            move_into_place(stage_file(staged, lambda stream: stream.write(content)), staged / MANIFEST)
            for folder in (*(staged / name for name in SCHEMAS), staged):
                sync_folder(folder)
            self._rename(staged, manifest.generation, same_number[-1].rank[1] + 1 if same_number else 0)
        except BaseException:
            remove_tree(staged)
            raise

    def _rename(self, staged: Path, number: int, repetition: int) -> None:
        try:
            move_into_place(staged, self._folder / generation_name(number, repetition))
        except OSError as error:
            if error.errno not in {errno.EEXIST, errno.ENOTEMPTY}:
                raise
            # Another driver has just finished the same generation; look at it.
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(staged)) from error
        crash_point("publish")

    def _link_parts(self, parts: list[DataFile], root: Path) -> None:
        pending, linked = sizes_below(self.pending), sizes_below(root)
        current = self._current_root()
        for part in parts:
            if linked.get(part.path) == part.size:
                continue
            source, target = (self.pending if part.path in pending else current) / part.path, root / part.path
            if part.path not in linked:
                with suppress(FileExistsError):
                    hard_link(source, target)
            elif not source.samefile(target):
                staged = self._staged()
                hard_link(source, staged)
                move_into_place(staged, target)

    def _staged(self, number: int = 0) -> Path:
        """Return a hidden name, which is removed when this generation or a later one is finished."""
        return self._folder / f".{generation_name(number)}-{uuid.uuid4().hex}.staged"

    def _remove_hidden(self, path: Path) -> None:
        """Remove a folder in ``generations``; hidden first, so that nobody reads or fills one that is half removed."""
        staged = self._staged()
        with suppress(FileNotFoundError):  # another driver may have removed it
            move_into_place(path, staged)
        remove_tree(staged)


def _local(path: OutputPath) -> Path:
    return cast("Path", path)


def _at(root: Path) -> Generation | None:
    """Return the generation in a folder that is not in ``generations``, if there is one."""
    manifest = read_manifest(root / MANIFEST)
    return None if manifest is None else _generation_in(root, generation_name(manifest.generation), finished=0.0)


def _generation_in(root: Path, name: str, *, finished: float) -> Generation:
    return Generation(name=name, root=root, manifest_path=root / MANIFEST, plan_path=root / PLAN, finished=finished)


def _entries(folder: Path) -> list[Path]:
    return [folder / name for name in names_in(folder)]


def _status(path: Path) -> os.stat_result | None:
    """Return the status of a file or of a link itself; None if there is none."""
    try:
        return path.lstat()
    except OSError as error:
        if error.errno in ABSENT:
            return None
        raise


class StoreGenerations(Generations):
    """The generations below a URL; constructing one reads nothing."""

    def __init__(self, output: OutputPath) -> None:
        self.output = output
        self.pending = output
        self._run = output / "_run"
        self._manifest_path = self._run / "manifest.json"

    def history(self) -> list[Generation]:
        generations: dict[str, Generation] = {}
        for path in list_files(self._run / "generations", "*.json"):
            name, _, seconds = path.stem.partition("@")
            if GENERATION_NAME.fullmatch(name) and seconds.isdecimal():
                # Two drivers that finish at once may both write a record; the first counts.
                plan = self._run / "plans" / f"{int(name.partition('-')[0])}.json"
                generation = Generation(
                    name=name, root=self.output, manifest_path=path, plan_path=plan, finished=float(seconds)
                )
                generations.setdefault(name, generation)
        return sorted(generations.values(), key=lambda generation: generation.rank)

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

    def _publish(self, manifest: Manifest, plan: OutputPath) -> Generation:
        history = self.history()
        if not any(generation.number > manifest.generation for generation in history):
            same_number = [generation for generation in history if generation.number == manifest.generation]
            self._write_record(manifest, same_number)
        self._write_newest()
        return self.history()[-1]

    def _show_newest(self) -> None:
        if self.history() and not self.shows_newest():
            self._write_newest()

    def shows_newest(self) -> bool:
        generations = self.history()
        return bool(generations) and self._manifest_bytes() == generations[-1].manifest_path.read_bytes()

    def _unnamed(self, manifest: Manifest) -> Iterator[OutputPath]:
        manifests = [manifest, *(generation.manifest() for generation in self.history())]
        named = {part.path for kept in manifests for part in kept.all_files()}
        for name in SCHEMAS:
            files = list_files(self.output / name, "*")
            yield from (path for path in files if f"{name}/{path.name}" not in named)

    def discard(self, path: OutputPath) -> None:
        path.unlink(missing_ok=True)

    def plans(self) -> set[OutputPath]:
        return {generation.plan_path for generation in self.history()}

    def _remove(self, generation: Generation) -> None:
        for path in list_files(self._run / "generations", f"{generation.name}@*.json"):
            path.unlink(missing_ok=True)
        if not any(other.number == generation.number for other in self.history()):
            generation.plan_path.unlink(missing_ok=True)

    def versions(self) -> Mapping[str, str]:
        return {
            path.name: path.read_bytes().decode(errors="replace") for path in list_files(self._run / "versions", "*")
        }

    def _tag(self, generation: Generation, version: str) -> None:
        path = self._run / "versions" / version
        write_atomically(path, generation.name.encode())

    def _untag(self, version: str) -> None:
        (self._run / "versions" / version).unlink(missing_ok=True)

    def _write_record(self, manifest: Manifest, same_number: list[Generation]) -> None:
        content = canonical_json(manifest)
        if same_number and same_number[-1].manifest_path.read_bytes() == content:
            return
        name = generation_name(manifest.generation, same_number[-1].rank[1] + 1 if same_number else 0)
        path = self._run / "generations" / f"{name}@{int(time.time())}.json"
        write_once(path, content)
        crash_point("publish")

    def _write_newest(self) -> None:
        """Write the newest generation's manifest, and look again: another driver may have written an older one."""
        while not self.shows_newest():
            content = self.history()[-1].manifest_path.read_bytes()
            write_atomically(self._manifest_path, content)
            crash_point("swap")

    def _manifest_bytes(self) -> bytes | None:
        try:
            return self._manifest_path.read_bytes()
        except FileNotFoundError:
            return None
