"""Generations in an object store: parts side by side, and a manifest for each generation.

    OUT/documents/part-*.parquet, ...   parts of every generation that is kept, and of a run in progress
    OUT/_run/manifest.json              the current manifest, replaced in one request
    OUT/_run/generations/000002@1795000000.json    a generation's manifest; its name has the time it was finished
    OUT/_run/versions/paper-2026        the name of a generation

Nothing can be replaced for several tables at once, so readers take the parts that a manifest names.
"""

import time
from collections.abc import Iterator, Mapping

from concord.pipeline.output.generations import GENERATION_NAME, Generation, Generations, generation_name, sizes_below
from concord.pipeline.output.manifest import Manifest, canonical_json, read_manifest
from concord.pipeline.output.schema import SCHEMAS
from concord.pipeline.storage.atomic_writes import crash_point, write_atomically, write_once
from concord.pipeline.storage.output_paths import OutputPath, list_files


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

    def _settle(self) -> None:
        if self.history() and not self.is_settled():
            self._write_newest()

    def is_settled(self) -> bool:
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
        while not self.is_settled():
            content = self.history()[-1].manifest_path.read_bytes()
            write_atomically(self._manifest_path, content)
            crash_point("swap")

    def _manifest_bytes(self) -> bytes | None:
        try:
            return self._manifest_path.read_bytes()
        except FileNotFoundError:
            return None
