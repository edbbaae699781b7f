"""Time the Delta log: a version of each table after every generation, and a table of many parts.

Command: python benchmarks/bench_delta.py

A collection of invented documents is annotated by a parser and tagger that do next to nothing, and some of its
documents are changed before each further generation. Then one table is written whose parts are copies of one part, and
a hundredth of them is replaced. The SHA-256 of all parts is compared before and after. The load says how busy the
machine was with other work.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from time import perf_counter

from concord_testing import runs
from environment import environment, spread

from concord.pipeline.output import delta_log
from concord.pipeline.output.collection import Collection, open_collection
from concord.pipeline.output.delta_log import delta_folder, write_delta_log
from concord.pipeline.output.schema import SCHEMAS


def change(source: Path, number: int, changed: int) -> None:
    """Change the first documents of the input."""
    lines = source.read_text(encoding="utf-8").splitlines(keepends=True)
    for index in range(changed):
        record = json.loads(lines[index]) | {"text": f"Anna met Bob {number} times in New York."}
        lines[index] = f"{json.dumps(record)}\n"
    source.write_text("".join(lines), encoding="utf-8")


def digests(collection: Collection) -> dict[str, str]:
    """Return the SHA-256 of every part, by path."""
    paths = [path for name in SCHEMAS for path in collection.parts(name)]
    return {str(path): sha256(path.read_bytes()).hexdigest() for path in paths}


def time_generations(folder: Path, *, documents: int, generations: int, changed: int) -> dict[str, object]:
    """Return milliseconds a table and generation, and how many parts there were."""
    source = runs.write_collection(folder / "in.jsonl", documents=documents)
    milliseconds, parts, unchanged = [], 0, True
    for number in range(generations):
        if number:
            change(source, number, changed)
        collection = open_collection(runs.run_job(runs.job(source, folder / "out")).output)
        before = digests(collection)
        parts = len(before)
        start = perf_counter()
        write_delta_log(collection)
        milliseconds.append(1000 * (perf_counter() - start) / len(SCHEMAS))
        unchanged &= digests(collection) == before
    return {
        "parts": parts,
        "first_ms_a_table": round(milliseconds[0], 1),
        "later_ms_a_table": spread(milliseconds[1:], digits=1),
        "bytes_unchanged": unchanged,
    }


def time_many_parts(folder: Path, *, parts: int) -> dict[str, object]:
    """Return the seconds of a first version with this many parts, and of one that replaces a hundredth of them."""
    source = runs.write_collection(folder / "one.jsonl", documents=100)
    collection = open_collection(runs.run_job(runs.job(source, folder / "one")).output)
    model = collection.parts("tokens")[0]
    assert isinstance(model, Path)
    (folder / "many").mkdir()
    paths = [folder / "many" / f"part-{number:05d}-g0-00000000.parquet" for number in range(parts + parts // 100)]
    for path in paths:
        shutil.copyfile(model, path)
    seconds = []
    for generation, chosen in enumerate((paths[:parts], paths[parts // 100 :], paths[parts // 100 :])):
        start = perf_counter()
        table = {path.name: path for path in chosen}
        delta_log._write_version("tokens", delta_folder(folder / "delta", "tokens"), table, generation)
        seconds.append(round(perf_counter() - start, 3))
    return {"parts": parts, "first_s": seconds[0], "hundredth_replaced_s": seconds[1], "nothing_replaced_s": seconds[2]}


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=600)
    parser.add_argument("--generations", type=int, default=20)
    parser.add_argument("--changed", type=int, default=30)
    parser.add_argument("--parts", type=int, default=10_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        generations = time_generations(
            folder, documents=options.documents, generations=options.generations, changed=options.changed
        )
        many = time_many_parts(folder, parts=options.parts)
    where = environment(Path(__file__).name)
    where["versions"] = {**dict(where["versions"]), "deltalake": version("deltalake")}  # type: ignore[call-overload]
    where["load"] = [round(load, 1) for load in os.getloadavg()]
    json.dump({**where, "generations": generations, "many_parts": many}, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
