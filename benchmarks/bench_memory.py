"""Parse and tag thousands of documents in one process and watch its memory.

Command: python benchmarks/bench_memory.py --input ../shared/data/text/gutenberg_chapters.jsonl.zst

The shards of a real plan go through all stages, writing included. The resident set is sampled after every shard of
about fifty documents; a line is fitted to the samples after the warm-up by least squares.
"""

import argparse
import json
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
from corpora import write_chunks
from environment import environment

from concord.pipeline.config import AnnotateConfig
from concord.pipeline.identity import ComponentIdentity
from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.parsing.resolve_parser import parser_identity
from concord.pipeline.plan import Plan
from concord.pipeline.planning.build_plan import PlanInputs, make_plan
from concord.pipeline.planning.inputs import with_absolute_paths
from concord.pipeline.worker.build import build_worker
from concord.pipeline.worker.memory import resident_bytes
from concord.workflows.registry.resolve_tagger import find_tagger

GOAL = 5.0


def plan_run(source: Path, output: Path, *, model: str, threads: int, shard_bytes: int) -> Plan:
    """Plan as `concord annotate` does."""
    tagger = find_tagger(model)
    config = AnnotateConfig.from_mapping(
        {
            "input": str(source),
            "output": str(output),
            "planning": {"shard_bytes": shard_bytes},
            "tagger": {"model": model},
        }
    )
    return make_plan(
        PlanInputs(
            config=with_absolute_paths(config),
            parser=parser_identity(config.parser),
            tagger=ComponentIdentity(name=tagger.name, version=tagger.version, digest=tagger.digest),
            tagger_folder=tagger.folder,
            threads=threads,
        )
    )


def resident_megabytes() -> float:
    """Return the resident set of this process in units of 1e6 bytes."""
    return (resident_bytes() or 0) / 1e6


def fit_line(samples: list[tuple[int, float]]) -> dict[str, float]:
    """Fit MB against documents by least squares; return slope and standard error, in MB per 1,000 documents."""
    documents, megabytes = np.array(samples, dtype=np.float64).T
    (slope, base), covariance = np.polyfit(documents, megabytes, 1, cov=True)
    return {
        "samples": len(samples),
        "slope_mb_per_1000_documents": round(1000 * float(slope), 3),
        "standard_error": round(1000 * float(np.sqrt(covariance[0, 0])), 3),
        "intercept_mb": round(float(base), 1),
    }


def main() -> None:
    """Run, fit, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", type=Path, nargs="+", required=True)
    parser.add_argument("--model", default="entities_en_small")
    parser.add_argument("--documents", type=int, default=5000)
    parser.add_argument("--words", type=int, default=200, help="words of a document")
    parser.add_argument("--warm-up", type=int, default=300, help="documents before the first sample that counts")
    parser.add_argument("--shard-bytes", type=int, default=140_000)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "documents.jsonl")
        written = write_chunks(arguments.input, source, words=arguments.words, count=arguments.documents)
        output = Path(folder, "out")
        plan = plan_run(
            source, output, model=arguments.model, threads=arguments.threads, shard_bytes=arguments.shard_bytes
        )
        committed = OutputFolder(output)
        committed.write_plan(plan)
        before = resident_megabytes()
        worker = build_worker(plan)
        loaded = resident_megabytes()
        samples: list[tuple[int, float]] = []
        documents = words = dead_letters = parts = 0
        started = time.monotonic()
        for shard in plan.shards:
            report, timings = worker.run(shard)
            documents += report.read
            words += timings.words
            dead_letters += report.dead_letters
            parts += sum(Path(str(committed.part(report, name))).is_file() for name in report.files)
            samples.append((documents, round(resident_megabytes(), 1)))
        seconds = time.monotonic() - started
    counted = [sample for sample in samples if sample[0] >= arguments.warm_up]
    half = len(counted) // 2
    fitted = fit_line(counted)
    report_values = {
        **environment("bench_memory.py"),
        "config": {
            "input": [path.name for path in arguments.input],
            "documents": written,
            "words_a_document": arguments.words,
            "warm_up_documents": arguments.warm_up,
            "threads": arguments.threads,
            "model": arguments.model,
            "shards": len(plan.shards),
        },
        "done": {
            "documents": documents,
            "dead_letters": dead_letters,
            "words": words,
            "parts": parts,
            "seconds": round(seconds, 1),
        },
        "resident_mb": {
            "before_loading": round(before, 1),
            "loaded": round(loaded, 1),
            "after_warm_up": counted[0][1],
            "most": max(megabytes for _, megabytes in samples),
            "last": samples[-1][1],
            "largest_step_after_warm_up": round(max(b - a for (_, a), (_, b) in pairwise(counted)), 1),
        },
        "after_warm_up": fitted,
        "second_half": fit_line(counted[half:]),
        "goal_mb_per_1000_documents": GOAL,
        "flat": fitted["slope_mb_per_1000_documents"] < GOAL,
        "samples": samples,
    }
    print(json.dumps(report_values, indent=1))


if __name__ == "__main__":
    main()
