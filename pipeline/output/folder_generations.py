"""Generations in a file system: a folder each, of hard links, and one symbolic link that says which is current.

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
"""

import errno
import os
import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import cast

from concord.pipeline.errors import IntegrityError
from concord.pipeline.output.generations import GENERATION_NAME, Generation, Generations, generation_name, sizes_below
from concord.pipeline.output.manifest import Manifest, PartFile, canonical_json, read_manifest
from concord.pipeline.output.schema import SCHEMAS
from concord.pipeline.storage.atomic_writes import crash_point, move_into_place, retry_on, stage_file, sync_folder
from concord.pipeline.storage.guarded import ABSENT, folder_of, guard, names_in, remove_file, remove_tree
from concord.pipeline.storage.links import hard_link, link_target, place_link
from concord.pipeline.storage.output_paths import OutputPath, read_bytes

MANIFEST, PLAN = "manifest.json", "plan.json"
_HIDDEN = re.compile(r"\.([0-9]+)-[0-9a-f]+(?:-aside)?\.staged")
_ATTEMPTS = 6


class FolderGenerations(Generations):
    """The generations of an output folder; constructing one reads nothing."""

    output: Path
    pending: Path

    def __init__(self, output: Path) -> None:
        guard(output)
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

    def _settle(self) -> None:
        if self.history() and not self._is_newest():
            retry_on(FileNotFoundError, self._point)

    def is_settled(self) -> bool:
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

    def _link_parts(self, parts: list[PartFile], root: Path) -> None:
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
