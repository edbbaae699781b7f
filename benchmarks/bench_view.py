"""Measure `concord view` over copies of a collection: start, index, the time of each kind of page, and memory.

Command: python benchmarks/bench_view.py out/presidents > benchmarks/results/view_cpu_202611.json

The folder is a finished run. Copies have other ids and their own parts. The server is a process of its own; the wall
time of a page runs from the request to the last byte, its processor time is that of the server. The first start makes
the index, the later one finds it. Pages are asked for one after the other, drawn from those of a kind.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow.parquet as pq
from bench_diff import write_copies
from environment import environment

WORDS = ("the", "president", "war", "peace", "congress", "people", "united states", "new")


@dataclass(frozen=True, kw_only=True)
class Viewed:
    """A running server, and how long it took to print its address and to answer the first page."""

    process: int
    opener: urllib.request.OpenerDirector
    base: str
    ready_seconds: float
    first_page_seconds: float

    def get(self, path: str) -> str:
        """Return a page."""
        with self.opener.open(self.base + path) as answer:
            text: str = answer.read().decode()
        return text

    @property
    def resident_mb(self) -> float:
        """Memory of the server."""
        pages = int(Path(f"/proc/{self.process}/statm").read_text(encoding="utf-8").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    @property
    def cpu_seconds(self) -> float:
        """Processor time of the server so far."""
        fields = Path(f"/proc/{self.process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def server(output: Path, cache: Path) -> Iterator[Viewed]:
    """Start `concord view` and end it with Ctrl-C."""
    command = [sys.executable, "-m", "concord", "view", str(output), "--no-browser", "--port", "0"]
    started = time.monotonic()
    variables = os.environ | {"CONCORD_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=variables)
    assert process.stderr is not None
    url = process.stderr.readline().split()[-1]
    ready = time.monotonic() - started
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    opener.open(url).read()
    first = time.monotonic() - started
    try:
        yield Viewed(
            process=process.pid,
            opener=opener,
            base=url.partition("/?")[0],
            ready_seconds=ready,
            first_page_seconds=first,
        )
    finally:
        process.send_signal(2)
        process.wait(timeout=30)


def read_column(output: Path, table: str, column: str) -> list[Any]:
    """Return the values of a column."""
    parts = [output / "current" / found["files"][table]["path"] for found in _shards(output)]
    return [value for part in parts for value in pq.read_table(part, columns=[column])[column].to_pylist()]


def _shards(output: Path) -> list[Mapping[str, Any]]:
    shards: list[Mapping[str, Any]] = json.loads((output / "current" / "manifest.json").read_bytes())["shards"]
    return shards


def addresses(output: Path, chance: random.Random) -> dict[str, list[str]]:
    """Return addresses of each kind of page."""
    ids = read_column(output, "documents", "doc_id")
    names = sorted(set(read_column(output, "entities", "text")))
    return {
        "documents": ["/", "/?label=PER&band=0", "/?order=least+certain", "/?q=2001", "/?page=2"],
        "document": [f"/document?id={quote(doc_id)}&page={chance.randrange(12)}" for doc_id in ids],
        "document, name": [f"/document?id={quote(doc_id)}&name=Congress" for doc_id in ids],
        "document, tree": [f"/document?id={quote(doc_id)}&sentence=40&tree=40" for doc_id in ids],
        "names": ["/names", "/names?disagree=1", "/names?q=ton&order=least+certain", "/names?label=ORG&page=3"],
        "name": [f"/name?name={quote(' '.join(name.split()))}" for name in chance.sample(names, min(len(names), 60))],
        "search": [f"/search?q={quote(word)}&by={by}" for word in WORDS for by in ("form", "lemma")],
    }


def measure_pages(viewed: Viewed, paths: Sequence[str], *, pages: int, chance: random.Random) -> dict[str, float]:
    """Ask for pages of one kind, one after the other, and return their times in milliseconds."""
    times = []
    used = viewed.cpu_seconds
    for _ in range(pages):
        started = time.perf_counter()
        viewed.get(chance.choice(paths))
        times.append(1000 * (time.perf_counter() - started))
    ordered = sorted(times)
    return {
        "pages": pages,
        "cpu_ms": round(1000 * (viewed.cpu_seconds - used) / pages, 1),
        "median_ms": round(statistics.median(ordered), 1),
        "p95_ms": round(ordered[int(0.95 * (pages - 1))], 1),
    }


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collection", type=Path)
    parser.add_argument("--copies", type=int, default=14)
    parser.add_argument("--pages", type=int, default=1001)
    arguments = parser.parse_args()
    chance = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        output, cache = write_copies(arguments.collection, Path(folder) / "out", copies=arguments.copies), Path(folder)
        words = sum(part["files"]["tokens"]["rows"] for part in _shards(output))
        with server(output, cache) as viewed:
            cold = {"ready_seconds": viewed.ready_seconds, "first_page_seconds": viewed.first_page_seconds}
            while "Indexing:" in viewed.get("/"):
                time.sleep(0.05)
            cold |= {"indexed_cpu_seconds": viewed.cpu_seconds}
        size = sum(path.stat().st_size for path in (cache / "view").iterdir())
        with server(output, cache) as viewed:
            warm = {"ready_seconds": viewed.ready_seconds, "first_page_seconds": viewed.first_page_seconds}
            warm |= {"first_page_cpu_seconds": viewed.cpu_seconds}
            kinds = addresses(output, chance)
            each = arguments.pages // len(kinds)
            for paths in kinds.values():
                measure_pages(viewed, paths, pages=5, chance=chance)
            memory = {"before_mb": round(viewed.resident_mb, 1)}
            found = {kind: measure_pages(viewed, paths, pages=each, chance=chance) for kind, paths in kinds.items()}
            memory["after_mb"] = round(viewed.resident_mb, 1)
        shutil.rmtree(cache / "view")
    report = {
        "load": round(os.getloadavg()[0], 1),
        "words": words,
        "index_mb": round(size / 1e6, 1),
        "first_start": {name: round(value, 2) for name, value in cold.items()},
        "later_start": {name: round(value, 2) for name, value in warm.items()},
        "pages": found,
        "memory": memory,
    }
    print(json.dumps(environment("bench_view.py") | report, indent=1))


if __name__ == "__main__":
    main()
