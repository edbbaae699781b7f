"""Annotate one document of 350,000 words among 100,000 empty ones, and watch progress and memory.

Command: python benchmarks/bench_extremes.py --input ../shared/data/text/gutenberg_chapters.jsonl.zst

The long document is made of chapters and lies in the middle of the empty ones. With two workers on Ray, the empty
documents must not wait for the long one: reported are the seconds after which each share of the records was done, and
the peak memory of a worker.
"""

import argparse
import json
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

os.environ["RAY_AUTH_MODE"] = "disabled"
os.environ.pop("RAY_ADDRESS", None)

from corpora import read_texts
from environment import environment

from concord.pipeline.annotate import annotate
from concord.pipeline.config import AnnotateConfig
from concord.pipeline.run_report import Progress
from concord.pipeline.worker.memory import resident_bytes
from concord.workflows.registry.resolve_tagger import find_tagger

EXECUTORS: tuple[dict[str, Any], ...] = ({"kind": "ray", "actors": 2}, {"kind": "local"})


class MemoryWatch:
    """Peak memory of the driver and of a worker, in units of 1e6 bytes, sampled twice a second."""

    def __init__(self, *, with_workers: bool) -> None:
        self.most: dict[str, float] = {}
        self._with_workers = with_workers
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "MemoryWatch":
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.5):
            self._record("driver", "self")
            for process in Path("/proc").glob("[0-9]*") if self._with_workers else ():
                try:
                    if process.joinpath("cmdline").read_bytes().startswith(b"ray::ShardActor"):
                        self._record("worker", process.name)
                except OSError:
                    # It has ended in between.
                    continue

    def _record(self, kind: str, process: str) -> None:
        self.most[kind] = max(self.most.get(kind, 0.0), (resident_bytes(process) or 0) / 1e6)


def write_collection(sources: list[Path], target: Path, *, words: int, empty: int) -> int:
    """Write one document of about `words` words amid empty ones; return its words, as split by white space."""
    texts: list[str] = []
    count = 0
    for source in sources:
        for _, text in read_texts(source):
            if count >= words:
                break
            texts.append(text)
            count += len(text.split())
    with target.open("w", encoding="utf-8") as lines:
        for number in range(empty):
            if number == empty // 2:
                lines.write(json.dumps({"id": "long", "text": "\n\n".join(texts)}) + "\n")
            lines.write(f'{{"id": "e{number:06d}", "text": ""}}\n')
    return count


def run(source: Path, output: Path, *, model: str, executor: dict[str, Any]) -> dict[str, Any]:
    """Annotate, and return times and memory."""
    config = AnnotateConfig.from_mapping(
        {
            "input": str(source),
            "output": str(output),
            "executor": {"threads": 1, **executor},
            "tagger": {"model": model},
            "report": False,
        }
    )
    ticks: list[tuple[float, Progress]] = []
    started = time.monotonic()
    with MemoryWatch(with_workers=executor["kind"] == "ray") as watch:
        report = annotate(
            config,
            tagger=find_tagger(model),
            progress=lambda progress: ticks.append((time.monotonic() - started, progress)),
        )
        seconds = time.monotonic() - started
    done = {
        f"{share:.0%}": next(round(at, 1) for at, progress in ticks if progress.read_done >= share * report.read)
        for share in (0.25, 0.5, 0.75, 0.99, 1.0)
    }
    return {
        "executor": executor,
        "records": report.read,
        "annotated": report.annotated,
        "dead_letters": report.dead_letters,
        "words": report.words,
        "shards": report.shards,
        "planned_at": round(ticks[0][0], 1),
        "share_of_records_done_at": done,
        "seconds": round(seconds, 1),
        "stage_seconds": {stage: round(taken, 1) for stage, taken in report.seconds.items()},
        "most_resident_mb": {kind: round(most) for kind, most in sorted(watch.most.items())},
    }


def main() -> None:
    """Run locally and on Ray, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", type=Path, nargs="+", required=True)
    parser.add_argument("--model", default="entities_en_small")
    parser.add_argument("--words", type=int, default=350_000)
    parser.add_argument("--empty", type=int, default=100_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "collection.jsonl")
        words = write_collection(arguments.input, source, words=arguments.words, empty=arguments.empty)
        runs = [
            run(source, Path(folder, executor["kind"]), model=arguments.model, executor=executor)
            for executor in EXECUTORS
        ]
    result = {
        **environment("bench_extremes.py"),
        "config": {
            "input": [path.name for path in arguments.input],
            "model": arguments.model,
            "words_of_the_long_document": words,
            "empty_documents": arguments.empty,
        },
        "load_after": round(os.getloadavg()[0], 2),
        "runs": runs,
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
