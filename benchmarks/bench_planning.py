"""Plan and commit tiny documents, from a thousand to a million, with a parser and a tagger that do nothing.

Command: python benchmarks/bench_planning.py > benchmarks/results/planning_cpu_202611.json
Command: python benchmarks/bench_planning.py --pdf 2000 > benchmarks/results/planning_pdf_cpu_202611.json

With ``--pdf`` a folder of PDF files is planned and hashed instead, of six pages each.

This measures the cost of the pipeline itself. Each size runs in a separate process, first into an empty folder, then
again with nothing changed, then with one document in a hundred changed. The exponent is the slope of log seconds over
log documents by least squares; that of the last tenfold alone is reported too, since start-up costs flatten the small
sizes. Seconds are processor time.
"""

import argparse
import json
import math
import multiprocessing
import resource
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from concord_testing.broken_files import plan_for
from concord_testing.documents import pdf
from environment import environment

from concord.models.data.outputs import DEFAULT_OPTIONS, Prediction, PredictOptions
from concord.models.data.sentence import Sentence
from concord.pipeline.annotate import annotate
from concord.pipeline.config import AnnotateConfig
from concord.pipeline.documents import DeadLetter, Document, ParsedDocument, ParsedSentence, ParsedWord
from concord.pipeline.identity import ComponentIdentity, ResolvedTagger
from concord.pipeline.job import ResolvedJob
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.plan import Plan
from concord.pipeline.run_report import Progress
from concord.pipeline.storage.files import file_sha256
from concord.pipeline.worker.shard_worker import ShardWorker
from research.grid.records import rounded

GOAL = 1.1
CHANGED_EVERY = 100
PARSER = ComponentIdentity(name="no_parser", version="1", digest="1" * 64)
PREDICTION = Prediction(
    labels=("O",),
    draft_labels=("O",),
    probabilities=(1.0,),
    margins=(1.0,),
    uncertainty=(0.0,),
    refined=(False,),
    spans=(),
    confidences=(),
)


class NoParser:
    """A parser that makes each document one word."""

    def parse(self, documents: Sequence[Document], **_: Any) -> list[ParsedDocument | DeadLetter]:
        """Return each document as a sentence of one word."""
        return [ParsedDocument(document=document, sentences=(_sentence(document.text),)) for document in documents]


class NoTagger:
    """A tagger that finds no entities."""

    threshold = None
    calibration = None

    def predict_documents(
        self, documents: Sequence[Sequence[Sentence]], options: PredictOptions = DEFAULT_OPTIONS, **call: Any
    ) -> list[list[Prediction]]:
        """Return the same prediction for every sentence."""
        return [[PREDICTION] * len(document) for document in documents]


def _sentence(text: str) -> ParsedSentence:
    return ParsedSentence(words=(ParsedWord(0, len(text), text, text, text, "X", None, None, 0, "root"),))


def build(plan: Plan) -> ShardWorker:
    """Build a worker that only reads and writes."""
    return ShardWorker(plan, parser=NoParser(), tagger=NoTagger())


@dataclass(slots=True)
class Clock:
    """Processor time at each report of progress."""

    ticks: list[float] = field(default_factory=lambda: [time.process_time()])

    def take(self, _progress: Progress | None = None) -> None:
        """Record the time."""
        self.ticks.append(time.process_time())


def write_documents(path: Path, documents: int, *, revision: int) -> None:
    """Write documents of one word; every hundredth depends on the revision."""
    with path.open("w", encoding="utf-8") as lines:
        for number in range(documents):
            text = f"word{number % 1000 + (revision if number % CHANGED_EVERY == 0 else 0) * 1000}"
            lines.write(f'{{"id": "d{number:07d}", "text": "{text}"}}\n')


def run(source: Path, output: Path) -> dict[str, Any]:
    """Annotate, and return the seconds of planning, shards and finish."""
    config = AnnotateConfig.from_mapping(
        {"input": str(source), "output": {"path": str(output)}, "executor": {"threads": 1}, "report": False}
    )
    tagger = ResolvedTagger(name="no_tagger", version="1", digest="2" * 64, folder=output, trees=None)
    job = ResolvedJob.of(config, OutputFolder(output), tagger, parser=PARSER)
    clock = Clock()
    report = annotate(job, build=build, progress=clock.take)
    clock.take()
    started, planned, *_, worked, ended = [*clock.ticks[:2], *clock.ticks[-2:]]
    # A run with nothing to do reports no progress.
    if len(clock.ticks) == 2:
        planned = worked = ended
    return {
        "annotated": report.annotated,
        "unchanged": report.unchanged,
        "shards": report.shards,
        "plan_seconds": planned - started,
        "shards_seconds": worked - planned,
        "write_wall_seconds": report.seconds["write"],
        "finish_seconds": ended - worked,
        "seconds": ended - started,
    }


def measure(documents: int, folder: Path) -> dict[str, Any]:
    """Run three times over a collection."""
    source, output = folder / "tiny.jsonl", folder / "out"
    # Do not count what the first run of a process loads.
    write_documents(source, 10, revision=0)
    run(source, folder / "warm-up")
    write_documents(source, documents, revision=0)
    first = run(source, output)
    again = run(source, output)
    write_documents(source, documents, revision=1)
    changed = run(source, output)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return {"documents": documents, "first": first, "again": again, "changed": changed, "most_resident_mb": round(most)}


def in_process(documents: int) -> dict[str, Any]:
    """Measure in a fresh process, so that no size inherits the memory of another."""
    folder = Path(tempfile.mkdtemp(prefix="planning-"))
    try:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            return pool.apply(measure, (documents, folder))
    finally:
        shutil.rmtree(folder)


def exponent(rows: Sequence[dict[str, Any]], way: str, key: str) -> dict[str, float]:
    """Fit seconds = a * documents ^ b; return b over all sizes and over the last two."""
    sizes = np.log([row["documents"] for row in rows])
    seconds = np.log([max(row[way][key], 1e-6) for row in rows])
    slope = float(np.polyfit(sizes, seconds, 1)[0])
    last = float((seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2]))
    return {"all": round(slope, 3), "last_tenfold": round(last, 3)}


def describe(row: dict[str, Any]) -> dict[str, Any]:
    """Round seconds to four digits and add microseconds a document."""
    count = row["documents"]
    ways = {
        way: rounded(row[way]) | {"microseconds_a_document": round(1e6 * row[way]["seconds"] / count, 1)}
        for way in ("first", "again", "changed")
    }
    return {"documents": count, **ways, "most_resident_mb": row["most_resident_mb"]}


def plan_pdf(folder: Path, files: int, rounds: int = 5) -> dict[str, Any]:
    """Return the processor time of hashing and of planning a folder of PDF files."""
    for number in range(files):
        line = f"Anna met Bob {number} times, and Eve left for London in the rain."
        pages = [[(72, 700 - 14 * row, f"{page}.{row} {line}") for row in range(40)] for page in range(6)]
        (folder / f"{number:05d}.pdf").write_bytes(pdf(*pages))
    paths = [str(path) for path in folder.iterdir()]
    hashed, planned = list[float](), list[float]()
    for _ in range(rounds):
        start = time.process_time()
        size = sum(Path(path).stat().st_size for path in paths if file_sha256(path))
        hashed.append(time.process_time() - start)
        start = time.process_time()
        plan = plan_for(folder)
        planned.append(time.process_time() - start)
    return {
        "files": plan.read,
        "bytes": size,
        "hash_seconds": round(median(hashed), 3),
        "plan_seconds": round(median(planned), 3),
    }


def main() -> None:
    """Measure, fit, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, nargs="+", default=[10**3, 10**4, 10**5, 10**6])
    parser.add_argument("--pdf", type=int, metavar="FILES")
    arguments = parser.parse_args()
    if arguments.pdf:
        with tempfile.TemporaryDirectory() as folder:
            found = plan_pdf(Path(folder), arguments.pdf)
        print(json.dumps({**environment("bench_planning.py"), **found}, indent=1))
        return
    rows = [in_process(documents) for documents in arguments.documents]
    measures = [
        ("first", "plan_seconds"),
        ("first", "shards_seconds"),
        ("first", "finish_seconds"),
        ("first", "seconds"),
        ("again", "seconds"),
        ("changed", "seconds"),
    ]
    exponents = {f"{way}.{key}": exponent(rows, way, key) for way, key in measures}
    worst = max(math.inf if math.isnan(found["all"]) else found["all"] for found in exponents.values())
    result = {
        **environment("bench_planning.py"),
        "sizes": [describe(row) for row in rows],
        "exponents": exponents,
        "goal_exponent": GOAL,
        "reached": worst <= GOAL,
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
