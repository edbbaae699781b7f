"""Annotate the same short documents locally and on Ray, then with other shard and batch sizes, and compare.

Command: python benchmarks/bench_executors.py --input ../shared/data/text/us_presidents.jsonl.zst

Equal plans must produce equal bytes. With other shard and batch sizes a word's label may differ only where the
uncertainty is within 1e-5 of the threshold or the best two labels are within 1e-5 of each other.
"""

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from concord_runs import concord, model_options, part_hashes, read_sentences, read_table
from corpora import write_chunks
from environment import environment

from concord.models.bundles.checkpoint import load_tagger
from concord.models.data.outputs import PredictOptions, known_numbers
from concord.workflows.registry import find_tagger

NEAR = 1e-5
PARSED = ("start_char", "end_char", "word", "lemma", "upos", "xpos", "feats", "head", "deprel")
PLACES = ("doc_id", "sent_id", "token_id", "ner", "uncertainty")


class Runs:
    """Runs of the same documents into separate folders."""

    def __init__(self, source: Path, folder: Path, *, model: str | None, threads: int) -> None:
        self._source = source
        self._folder = folder
        self._options = [*model_options(model), "--set", f"executor.threads={threads}", "--set", "report=false"]

    def run(self, name: str, *settings: str) -> tuple[Path, dict[str, Any]]:
        """Annotate.

        Returns:
            the output folder, and what the command reports with its wall times.
        """
        output = self._folder / name
        options = [word for setting in settings for word in ("--set", setting)]
        ended = concord("annotate", str(self._source), "--output", str(output), *self._options, *options)
        if ended.exit_code != 0:
            raise RuntimeError(f"{name}: exit code {ended.exit_code}: {ended.values}")
        return output, {
            "settings": list(settings),
            "annotated": ended.values["annotated"],
            "dead_letters": ended.values["dead_letters"],
            "words": ended.values["words"],
            "shards": ended.values["shards"],
            "command_seconds": round(ended.seconds, 2),
            "wall_seconds": round(ended.values["wall_seconds"], 2),
            "stage_seconds": {stage: round(taken, 2) for stage, taken in ended.values["seconds"].items()},
        }


def compare_labels(base: Path, other: Path, *, model: str, threads: int, batch_words: int) -> dict[str, object]:
    """Count words with other labels, how many of these are near ties, and words with another parse."""
    one, two = (read_table(output, "tokens", (*PLACES, *PARSED)).to_pydict() for output in (base, other))
    words = len(one["ner"])
    if [*zip(one["doc_id"], one["start_char"], strict=True)] != [*zip(two["doc_id"], two["start_char"], strict=True)]:
        return {"words": words, "same_tokens": False}
    parsed = [sum(a != b for a, b in zip(one[name], two[name], strict=True)) for name in PARSED]
    gap = max(abs(a - b) for a, b in zip(one["uncertainty"], two["uncertainty"], strict=True))
    rows = [row for row in range(words) if one["ner"][row] != two["ner"][row]]
    ties = near_ties(base, one, rows, model=model, threads=threads, batch_words=batch_words) if rows else 0
    return {
        "words": words,
        "same_tokens": True,
        "fields_parsed_otherwise": dict(zip(PARSED, parsed, strict=True)),
        "largest_change_of_uncertainty": gap,
        "labels_changed": len(rows),
        "near_ties_among_them": ties,
        "not_excused": len(rows) - ties,
    }


def near_ties(
    base: Path, columns: Mapping[str, Sequence[Any]], rows: Sequence[int], *, model: str, threads: int, batch_words: int
) -> int:
    """Count the rows that are near ties; margins are not in the output, so their documents are tagged again."""
    torch.set_num_threads(threads)
    tagger = load_tagger(find_tagger(model).folder)
    limit = tagger.threshold if tagger.threshold is not None else float("inf")
    documents = read_sentences(base)
    wanted = {columns["doc_id"][row] for row in rows}
    margins: dict[str, list[float]] = {}
    for doc_id in wanted:
        (predictions,) = tagger.predict_documents([documents[doc_id]], PredictOptions(batch_words=batch_words))
        margins[doc_id] = [margin for prediction in predictions for margin in known_numbers(prediction.margins)]
    first = {doc_id: columns["doc_id"].index(doc_id) for doc_id in wanted}
    return sum(
        abs(columns["uncertainty"][row] - limit) < NEAR
        or margins[columns["doc_id"][row]][row - first[columns["doc_id"][row]]] < NEAR
        for row in rows
    )


def main() -> None:
    """Run, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", type=Path, nargs="+", required=True)
    parser.add_argument("--model", default="entities_multi")
    parser.add_argument("--documents", type=int, default=300)
    parser.add_argument("--words", type=int, default=150, help="words of a document")
    parser.add_argument("--shard-bytes", type=int, default=30_000)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    size = arguments.shard_bytes
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "documents.jsonl")
        documents = write_chunks(arguments.input, source, words=arguments.words, count=arguments.documents)
        runs = Runs(source, Path(folder), model=arguments.model, threads=arguments.threads)
        base, local = runs.run("local", f"planning.shard_bytes={size}")
        ray = {}
        for actors in (1, 2):
            output, times = runs.run(
                f"ray{actors}", f"planning.shard_bytes={size}", "executor.kind=ray", f"executor.actors={actors}"
            )
            ray[f"ray_{actors}"] = {**times, "equal_bytes": part_hashes(output) == part_hashes(base)}
        other_sizes: list[dict[str, object]] = []
        for shard_bytes, batch_words in ((size * 1000, 4096), (size // 5, 4096), (size, 256), (size * 3, 16384)):
            output, times = runs.run(
                f"other{len(other_sizes)}", f"planning.shard_bytes={shard_bytes}", f"tagger.batch_words={batch_words}"
            )
            against = compare_labels(
                base, output, model=arguments.model, threads=arguments.threads, batch_words=batch_words
            )
            other_sizes.append({**times, "against_local": against})
        parts = part_hashes(base)
    report = {
        **environment("bench_executors.py"),
        "config": {
            "input": [path.name for path in arguments.input],
            "documents": documents,
            "words_a_document": arguments.words,
            "threads": arguments.threads,
            "model": arguments.model,
        },
        "equal_plan": {"parts": len(parts), "local": local, **ray},
        "other_sizes": other_sizes,
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
