"""Compare two annotations of a collection, and of several copies of it: time and memory of `concord diff`.

Command: python benchmarks/bench_diff.py out/small out/large > benchmarks/results/diff_cpu_202611.json

The folders are two finished runs over one input, such as those of entities_en_small and entities_multi. Copies have
other ids and their own parts. Each comparison is a separate process; start-up is part of the seconds.
"""

import argparse
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from concord_runs import command_environment, command_line
from environment import environment, spread


def write_copies(collection: Path, output: Path, *, copies: int) -> Path:
    """Write a collection that contains another one `copies` times, as far as readers can see."""
    shutil.copytree(collection, output, symlinks=True)
    state, first = (folder / "current" for folder in (output, collection))
    manifest = json.loads((first / "manifest.json").read_bytes())
    shards: list[dict[str, Any]] = []
    for copy in range(copies):
        for shard in manifest["shards"]:
            files = {}
            for name, part in shard["files"].items():
                path = f"{name}/part-{len(shards):05d}-g0-{part['sha256'][:8]}.parquet"
                pq.write_table(_renamed(pq.read_table(first / part["path"]), copy), state / path)
                files[name] = part | {"path": path}
            shards.append(shard | {"shard": len(shards), "files": files})
    (state / "manifest.json").write_text(json.dumps(manifest | {"shards": shards}))
    return output


def _renamed(table: pa.Table, copy: int) -> pa.Table:
    ids = pc.binary_join_element_wise(pa.scalar(f"{copy}-"), table["doc_id"], "")
    return table.set_column(0, table.schema.field(0), ids)


def compare(first: Path, second: Path) -> dict[str, Any]:
    """Compare two collections in a separate process and return verdict, time and memory."""
    started = time.monotonic()
    command = command_line("diff", str(first), str(second))
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=command_environment(), text=True)
    assert process.stdout is not None
    values = json.loads(process.stdout.read())
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"concord diff ended with status {status}")
    return {
        "verdict": values["verdict"],
        "entities": values["entities"]["first"] + values["entities"]["second"],
        "wall_seconds": time.monotonic() - started,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "peak_mb": usage.ru_maxrss / 1e3,
    }


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    parser.add_argument("--copies", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    sizes = []
    with tempfile.TemporaryDirectory() as folder:
        for copies in arguments.copies:
            first, second = (
                write_copies(collection, Path(folder) / f"{name}{copies}", copies=copies)
                for name, collection in (("a", arguments.first), ("b", arguments.second))
            )
            runs = [compare(first, second) for _ in range(arguments.repeats)]
            measures = ("wall_seconds", "cpu_seconds", "peak_mb")
            sizes.append(
                {
                    "copies": copies,
                    "entities_of_both": runs[0]["entities"],
                    "verdict": runs[0]["verdict"],
                    **{name: spread([run[name] for run in runs], digits=1) for name in measures},
                }
            )
    load = os.getloadavg()[0]
    report = environment("bench_diff.py") | {"repeats": arguments.repeats, "load": round(load, 1), "sizes": sizes}
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
