"""Let every call that changes something on the disk fail once, in each of three generations, and run again.

Command: python benchmarks/bench_disk_faults.py

The calls are those of ``concord_testing.faults``, in the order of a run: first of one over a small archive, then of one
after texts were changed, added and removed, then of one with another tagger. The grace period is 0, so that earlier
generations are removed. Each call fails once with EIO and once with ENOSPC. The run has to end with a StoreError (exit
code 75) or to succeed; the same run again has to write the bytes of an undisturbed run.
"""

import argparse
import errno
import json
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from concord_testing import faults, runs
from environment import environment

from concord.models.errors import ConcordError
from concord.pipeline.errors import StoreError
from concord.pipeline.output.verify import verify

ERRORS = (errno.EIO, errno.ENOSPC)


class Archive:
    """A folder of texts, and its annotation."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "in"
        self.output = folder / "out"
        self._tagger = runs.TAGGER

    def write(self) -> None:
        """Write the texts of the first generation."""
        self.folder.mkdir()
        runs.write_collection(self.folder / "a.jsonl", documents=6, extra=("PARSERFAULT",))
        for number in range(4):
            (self.folder / f"t{number}.txt").write_text(f"Anna saw {number}. Bob left.")

    def change(self) -> None:
        """Change, add and remove a text."""
        (self.folder / "t1.txt").write_text("Carla came.")
        (self.folder / "new.txt").write_text("Dora went.")
        (self.folder / "t3.txt").unlink()

    def change_tagger(self) -> None:
        """Choose another tagger."""
        self._tagger = replace(self._tagger, digest="3" * 64)

    def annotate(self) -> None:
        """Annotate, keeping the current generation only."""
        place = {"path": str(self.output), "grace_seconds": 0}
        settings = {"planning": {"shard_bytes": 400}, "max_removed": 1.0, "max_dead_letters": 1.0, "report": True}
        runs.run_job(runs.job(self.folder, "", **(settings | {"output": place})), tagger=self._tagger)


def try_faults(archive: Archive, *, stride: int) -> dict[str, object]:
    """Let the calls of one run fail one after the other; the archive's output is that of the run afterwards."""
    before = archive.output.with_name("before")
    shutil.rmtree(before, ignore_errors=True)
    if archive.output.exists():
        archive.output.rename(before)
    _restore(before, archive.output)
    with faults.failing_call() as undisturbed:
        archive.annotate()
    expected = runs.committed_bytes(archive.output)
    outcomes: dict[str, Counter[str]] = {}
    numbers = range(1, len(undisturbed.calls) + 1, stride)
    for number in numbers:
        for error in ERRORS:
            _restore(before, archive.output)
            name = undisturbed.calls[number - 1].split()[0]
            outcomes.setdefault(name, Counter())[_outcome(archive, number, error)] += 1
            archive.annotate()
            if runs.committed_bytes(archive.output) != expected or verify(archive.output):
                outcomes[name]["other bytes after the next run"] += 1
    return {"calls": len(undisturbed.calls), "faults": len(numbers) * len(ERRORS), "outcomes": outcomes}


def _outcome(archive: Archive, number: int, error: int) -> str:
    with faults.failing_call(number, error=error):
        try:
            archive.annotate()
        except StoreError:
            return "StoreError"
        except ConcordError as caught:
            return f"exit code {caught.exit_code}"
        except Exception as caught:
            return f"traceback of {type(caught).__name__}"
    return "success"


def _restore(before: Path, output: Path) -> None:
    shutil.rmtree(output, ignore_errors=True)
    if before.exists():
        subprocess.run(["cp", "-a", str(before), str(output)], check=True)


def main() -> None:
    """Try the faults of three generations and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stride", type=int, default=1, help="try every n-th call")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        archive = Archive(Path(folder))
        steps: dict[str, Callable[[], None]] = {
            "first": archive.write,
            "changed texts": archive.change,
            "another tagger": archive.change_tagger,
        }
        found: dict[str, object] = {}
        for name, step in steps.items():
            step()
            found[name] = try_faults(archive, stride=arguments.stride)
    print(json.dumps({**environment("bench_disk_faults.py"), "generations": found}, indent=1))


if __name__ == "__main__":
    main()
