"""The finished generations of a collection: which one readers see, and which earlier ones are kept.

A generation is complete once it has a manifest; the newest one is current. Whoever changes them is the one writer of
the collection.

    OUT/generations/000002/manifest.json, plan.json
    OUT/current                 -> generations/000002, replaced in one step: this is what makes a generation current
    OUT/versions/paper-2026     -> ../generations/000001

In an object store (``Generations``) nothing can be replaced for several tables at once: parts are side by side, and
readers take those that the manifest of a generation names. Objects that contain a name are in the place of links.

    OUT/documents/part-*.parquet, ...   parts of every generation that is kept, and of a run in progress

In a folder a generation also holds the tables (``FolderGenerations``), as hard links. It is built under a hidden name
and renamed when it is complete; from then on it only changes where it has lost files, which a run of the same plan
restores. Names that lead to another place are symbolic links. Somebody else may have made them, so that only the name
of a generation counts.

    OUT/generations/000002/{documents,...,errors}/part-*.parquet
    OUT/documents, ...          -> current/documents, ...
    OUT/_run/parts/documents/   parts of a run in progress
"""

import re
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import cast

from typing_extensions import override

from concord.models.errors import ConfigError
from concord.pipeline.errors import IntegrityError, PlanError
from concord.pipeline.output.manifest import Manifest, canonical_json, read_manifest
from concord.pipeline.output.schema import SCHEMAS
from concord.pipeline.plan import Plan
from concord.pipeline.storage.atomic_writes import (
    crash_point,
    hard_link,
    move_into_place,
    store_errors,
    sync,
    write_atomically,
    write_pointer,
)
from concord.pipeline.storage.output_paths import (
    OutputPath,
    list_files,
    list_folder,
    names_in,
    read_bytes,
    read_pointer,
    remove,
)

MANIFEST, PLAN = "manifest.json", "plan.json"
GENERATION_NAME = re.compile(r"[0-9]{6,12}")
_OF_GENERATION = re.compile(r"/part-\d+-g(\d+)-|/(?:commits|attempts)/(\d+)/|/plans/(\d+)\.json$")
_VERSION_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_HIDDEN = ".staged"
_LOOKS = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """A finished generation.

    Attributes:
        name: its number in six digits, as in ``000002``.
        folder: that of its manifest and plan.
        root: the folder below which the parts are that its manifest names.
        finished: Unix time in seconds, of the current one that at which it became current; 0 if unknown.
    """

    name: str
    folder: OutputPath
    root: OutputPath
    finished: float = 0.0

    @property
    def number(self) -> int:
        """The number of its plan."""
        return int(self.name)

    @property
    def manifest_path(self) -> OutputPath:
        """The path of its manifest."""
        return self.folder / MANIFEST

    def manifest(self) -> Manifest:
        """Read its manifest; IntegrityError if it is gone or broken."""
        manifest = read_manifest(self.manifest_path)
        if manifest is None:
            raise IntegrityError(f"{self.manifest_path}: removed while it was being read; run the command again")
        return manifest

    def plan(self) -> Plan:
        """Read its plan; PlanError if it is gone or broken."""
        return read_plan(self.folder / PLAN)


class Generations:
    """The finished generations of an output; constructing one reads nothing. Those of a folder are different.

    Attributes:
        pending: the folder below which parts of a run in progress are written.
    """

    def __init__(self, output: OutputPath) -> None:
        self.output = self.pending = output
        self._folder, self._current, self._versions = (output / name for name in ("generations", "current", "versions"))

    def history(self) -> list[Generation]:
        """Return the complete generations, the oldest first."""
        manifests = list_files(self._folder, f"*/{MANIFEST}").items()
        found = [
            Generation(name=path.parent.name, folder=path.parent, root=self._root(path.parent), finished=state.st_mtime)
            for path, state in manifests
            if GENERATION_NAME.fullmatch(path.parent.name)
        ]
        return sorted(found, key=lambda generation: generation.number)

    def current(self) -> Generation | None:
        """Return the generation that readers see; None if no run is finished."""
        for _ in range(_LOOKS):
            pointer = read_pointer(self._current)
            if pointer is None:
                break
            name = self._checked(pointer.target)
            for generation in self.history():
                if generation.name == name:
                    # A run that was killed or stopped may have made it current long after it was complete.
                    return replace(generation, finished=max(generation.finished, pointer.changed))
            # Superseded and removed since the name was read.
        return self._alone()

    def find_part(self, path: str) -> OutputPath:
        """Return where a committed part is, given its path in the commit record."""
        return self.output / path

    def part_sizes(self) -> Mapping[str, int]:
        """Return the sizes in bytes of the parts of a run in progress and of the current generation, by their paths."""
        return sizes_below(self.output)

    def publish(self, manifest: Manifest, plan: OutputPath) -> None:
        """Complete a generation and make it current. It may be done twice; what is finished already stays."""
        self._complete(self._folder / generation_name(manifest.generation), manifest, plan)
        crash_point("publish")
        self.show_newest()

    def remove(self, generation: Generation) -> None:
        """Remove a generation; parts that none names now are left."""
        for name in (MANIFEST, PLAN):
            remove(generation.folder / name)

    def unnamed(self, manifest: Manifest) -> Iterator[OutputPath]:
        """Yield the parts and leftovers that no generation names; ``manifest`` is that of the current one."""
        manifests = [manifest, *(generation.manifest() for generation in self.history())]
        named = {part.path for kept in manifests for part in kept.all_files()}
        yield from (self.output / path for path in sizes_below(self.output) if path not in named)

    def _root(self, folder: OutputPath) -> OutputPath:
        """Return the folder below which the parts of a generation are."""
        return self.output

    def _alone(self) -> Generation | None:
        """Return the generation of a folder that has no name for it."""
        return None

    def _complete(self, folder: OutputPath, manifest: Manifest, plan: OutputPath) -> None:
        self._write(folder / PLAN, read_bytes(plan))
        self._write(folder / MANIFEST, canonical_json(manifest))

    def _links(self, newest: Generation) -> dict[OutputPath, str]:
        """Return the names that lead to the newest generation, and where they lead, in the order of their making."""
        return {self._current: f"generations/{newest.name}"}

    def _write(self, path: OutputPath, content: bytes) -> None:
        """Write a file unless it is there already: a generation was finished when its manifest was written."""
        with suppress(FileNotFoundError):
            if read_bytes(path) == content:
                return
        staging = self.output / "_run" / "staging"
        write_atomically(path, content, staging=staging if isinstance(staging, Path) else None)

    def _staged(self) -> OutputPath:
        """Return a hidden name, which is removed when a generation is finished."""
        return self._folder / f".{uuid.uuid4().hex}{_HIDDEN}"

    def check_whole(self) -> None:
        """Raise PlanError for the folder of a single generation, which can be read, but not verified or changed."""
        # In this order: a run may publish the first generation in between.
        if self.current() is not None and not self.history():
            raise PlanError(
                f"{self.output}: is one generation of a collection, which can only be read; expected the collection's "
                "own folder"
            )

    def show_newest(self) -> None:
        """Make the newest complete generation current, where a run was killed before it did."""
        for link, target in (self._astray() or {}).items():
            write_pointer(link, target, staged=self._staged())
            crash_point("swap" if link == self._current else "link")

    def shows_newest(self) -> bool:
        """Tell whether the newest generation is current and every name leads to it."""
        return self._astray() == {}

    def _astray(self) -> dict[OutputPath, str] | None:
        """Return the names that do not lead to the newest generation, and where they should; None if there is none."""
        generations = self.history()
        if not generations:
            return None
        links = self._links(generations[-1])
        found = {link: read_pointer(link) for link in links}
        return {link: links[link] for link, pointer in found.items() if not pointer or pointer.target != links[link]}

    def _checked(self, target: str) -> str:
        """Return the name of the generation that ``current`` leads to; IntegrityError if it leads elsewhere."""
        name = target.removeprefix("generations/")
        if not GENERATION_NAME.fullmatch(name):
            raise IntegrityError(
                f"{self._current}: expected a link to generations/NUMBER, got one to {target}; remove it, and run the "
                "same command again"
            )
        return name

    def versions(self) -> Mapping[str, str]:
        """Return the names that users gave to generations: version -> name of the generation."""
        pointers = {name: read_pointer(self._versions / name) for name in sorted(names_in(self._versions))}
        return {name: pointer.target.rpartition("/")[2] for name, pointer in pointers.items() if pointer is not None}

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
            write_pointer(self._versions / version, f"../generations/{generation.name}", staged=self._staged())

    def expired(self, *, keep: int, grace_seconds: float) -> list[Generation]:
        """Return the generations that are no longer to be kept.

        Args:
            keep: how many of the newest are kept, besides the current one and those with a name.
            grace_seconds: for which one is kept after its successor is finished.
        """
        current = self.current()
        generations = [
            current if current is not None and generation.name == current.name else generation
            for generation in self.history()
        ]
        kept = {generation.name for generation in (*generations[-keep:], *filter(None, [current]))}
        kept |= set(self.versions().values())
        limit = time.time() - grace_seconds
        return [
            generation
            for generation, successor in pairwise(generations)
            if generation.name not in kept and max(generation.finished, successor.finished) <= limit
        ]


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


class FolderGenerations(Generations):
    """The generations of an output folder."""

    output: Path
    pending: Path
    _folder: Path
    _current: Path

    def __init__(self, output: Path) -> None:
        super().__init__(output)
        self.pending = output / "_run" / "parts"

    @override
    def find_part(self, path: str) -> OutputPath:
        pending = self.pending / path
        return pending if pending.exists() else self._current_root() / path

    @override
    def part_sizes(self) -> Mapping[str, int]:
        # In this order, for readers: a run that is finished removes a part's name once another leads to it.
        pending = sizes_below(self.pending)
        return sizes_below(self._current_root()) | pending

    @override
    def remove(self, generation: Generation) -> None:
        # Hidden first, so that nobody reads one that is half removed.
        staged = cast("Path", self._staged())
        move_into_place(cast("Path", generation.folder), staged)
        remove(staged)

    @override
    def unnamed(self, manifest: Manifest) -> Iterator[OutputPath]:
        root = self._current_root()
        named = {part.path for part in manifest.all_files()}
        files = (f"{name}/{file}" for name in SCHEMAS for file in names_in(root / name))
        yield from (root / path for path in files if path not in named)
        yield from (self.pending / name / file for name in SCHEMAS for file in names_in(self.pending / name))
        yield from (self._folder / name for name in names_in(self._folder) if name.endswith(_HIDDEN))

    @override
    def _root(self, folder: OutputPath) -> OutputPath:
        return folder

    @override
    def _alone(self) -> Generation | None:
        # The collection was copied by a tool that follows links, or this is the folder of a single generation.
        for folder in (self._current, self.output):
            if (manifest := read_manifest(folder / MANIFEST)) is not None:
                return Generation(name=generation_name(manifest.generation), folder=folder, root=folder)
        return None

    @override
    def _complete(self, folder: OutputPath, manifest: Manifest, plan: OutputPath) -> None:
        folder, plan = cast("Path", folder), cast("Path", plan)
        if folder.exists():
            self._fill(folder, manifest, plan)
        else:
            staged = cast("Path", self._staged())
            self._fill(staged, manifest, plan)
            move_into_place(staged, folder)

    @override
    def _links(self, newest: Generation) -> dict[OutputPath, str]:
        return {self.output / name: f"current/{name}" for name in SCHEMAS} | super()._links(newest)

    def _current_root(self) -> Path:
        pointer = read_pointer(self._current)
        return self._current if pointer is None else self._folder / self._checked(pointer.target)

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
            sync(folder)
        self._write(root / MANIFEST, canonical_json(manifest))
