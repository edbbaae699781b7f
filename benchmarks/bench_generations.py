"""Change a collection of a thousand documents and annotate it again: what is done, how long it takes, what is reused.

Command: python benchmarks/bench_generations.py --input ../shared/data/text/factbook.jsonl.zst -o out/generations

Of the documents 30 are changed, 20 new, 10 removed and 5 renamed. The second run is compared in time and rows with a
first run over the same input into another folder. Then another tagger is run on the stored parses; its entities are
compared with those of a first run with that tagger.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from concord_runs import concord, model_options, read_table
from corpora import read_texts
from environment import environment

from concord.pipeline.output.output_folder import OutputFolder
from concord.pipeline.output.schema import SCHEMAS

CHANGED, NEW, REMOVED, RENAMED = 30, 20, 10, 5
TABLES = ("documents", "sentences", "tokens", "entities")


def write_archive(folder: Path, texts: Sequence[str], documents: int, words: int) -> list[str]:
    """Cut texts into documents of `words` words, one file each; return the texts of the documents to add later."""
    pieces = []
    for text in texts:
        parts = text.split()
        pieces += [" ".join(parts[start : start + words]) for start in range(0, len(parts) - words + 1, words)]
    if len(pieces) < documents + NEW:
        sys.exit(f"expected texts for {documents + NEW} documents of {words} words, got {len(pieces)}")
    folder.mkdir(parents=True)
    for number, piece in enumerate(pieces[:documents]):
        (folder / f"d{number:05d}.txt").write_text(piece, encoding="utf-8")
    return pieces[documents : documents + NEW]


def change(folder: Path, new: Sequence[str]) -> None:
    """Change, add, remove and rename documents, spread over the whole archive."""
    paths = sorted(folder.glob("d*.txt"))
    step = len(paths) // (CHANGED + REMOVED + RENAMED)
    chosen = paths[:: max(1, step)][: CHANGED + REMOVED + RENAMED]
    for path in chosen[:CHANGED]:
        path.write_text(f"{path.read_text(encoding='utf-8')} So said Maria Lind of Oslo.", encoding="utf-8")
    for path in chosen[CHANGED : CHANGED + REMOVED]:
        path.unlink()
    for path in chosen[CHANGED + REMOVED :]:
        path.rename(path.with_name(f"renamed_{path.name}"))
    for number, text in enumerate(new):
        (folder / f"new{number:02d}.txt").write_text(text, encoding="utf-8")


def parts(output: Path) -> dict[str, tuple[int, str]]:
    """Return modification time and hash of every part."""
    found = (path for name in TABLES for path in (output / name).glob("*.parquet"))
    return {
        path.relative_to(output).as_posix(): (path.stat().st_mtime_ns, sha256(path.read_bytes()).hexdigest())
        for path in found
    }


def annotate(archive: Path, output: Path, model: str, shard_bytes: int, *, parser: str | None = None) -> dict[str, Any]:
    """Annotate, and return the command's answer with the seconds it took in all."""
    options = ["--set", f"parser.package={parser}"] if parser is not None else []
    options += ["--set", "executor.threads=1", "--set", f"planning.shard_bytes={shard_bytes}", "--set", "report=false"]
    outcome = concord("annotate", str(archive), "--output", str(output), *model_options(model), *options)
    keys = (
        "read",
        "annotated",
        "unchanged",
        "dead_letters",
        "shards",
        "words",
        "changes",
        "seconds",
        "wall_seconds",
    )
    return {name: outcome.values[name] for name in keys} | {
        "command_seconds": round(outcome.seconds, 2),
        "cpu_seconds": round(outcome.cpu_seconds, 2),
    }


def compare_rows(first: Path, second: Path) -> dict[str, dict[str, Any]]:
    """Compare two outputs table by table, rows in the order of ids, apart from the position within a file.

    Floats may differ in the last bits, since batches contain other sentences.
    """
    found = {}
    for name in TABLES:
        columns = [column for column in SCHEMAS[name].names if column != "source_position"]
        keys = [(key, "ascending") for key in ("doc_id", "sent_id", "token_id", "entity_id") if key in columns]
        ours, theirs = (read_table(output, name, columns).sort_by(keys) for output in (first, second))
        floats = [column for column in columns if pa.types.is_floating(ours.schema.field(column).type)]
        same = ours.drop_columns(floats).equals(theirs.drop_columns(floats))
        same = same and all(ours[column].is_null().equals(theirs[column].is_null()) for column in floats)
        changes = [pc.max(pc.abs(pc.subtract(ours[column], theirs[column]))).as_py() for column in floats if same]
        differences = [change for change in changes if change is not None]  # a column may have no value
        found[name] = {"rows": ours.num_rows, "equal": same, "largest_difference": max(differences, default=0.0)}
    return found


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run everything and return the figures."""
    work: Path = arguments.output
    shutil.rmtree(work, ignore_errors=True)
    archive, output = work / "archive", work / "out"
    new = write_archive(
        archive, [text for _, text in read_texts(arguments.input)], arguments.documents, arguments.words
    )
    first = annotate(archive, output, arguments.model, arguments.shard_bytes)
    before = parts(output)
    change(archive, new)
    second = annotate(archive, output, arguments.model, arguments.shard_bytes)
    after = parts(output)
    whole = annotate(archive, work / "whole", arguments.model, arguments.shard_bytes)
    nothing = annotate(archive, output, arguments.model, arguments.shard_bytes)
    same = compare_rows(output, work / "whole")
    again = annotate(archive, output, arguments.next_model, arguments.shard_bytes)
    # A collection keeps its parser.
    parser = OutputFolder(output).plan().config.parser.package
    other = annotate(archive, work / "other", arguments.next_model, arguments.shard_bytes, parser=parser)
    return {
        "documents": arguments.documents,
        "words_a_document": arguments.words,
        "model": arguments.model,
        "changes": {"changed": CHANGED, "new": NEW, "removed": REMOVED, "renamed": RENAMED},
        "first_run": first,
        "second_run": second,
        "whole_run_over_the_same_input": whole,
        "share_of_the_whole_run": {
            "command": round(second["command_seconds"] / whole["command_seconds"], 4),
            "cpu": round(second["cpu_seconds"] / whole["cpu_seconds"], 4),
            "work": round(second["wall_seconds"] / whole["wall_seconds"], 4),
        },
        "rows_as_in_the_whole_run": same,
        "parts": {
            "before": len(before),
            "untouched": sum(after.get(path) == state for path, state in before.items()),
            "rewritten_or_gone": len(before.keys() - after.keys()),
            "new": len(after.keys() - before.keys()),
            "changed_in_place": sum(path in after and after[path] != state for path, state in before.items()),
        },
        "third_run_with_nothing_changed": nothing,
        "next_model": arguments.next_model,
        "run_with_the_next_model": again,
        "whole_run_with_the_next_model": other,
        "next_model_rows_as_in_its_whole_run": compare_rows(output, work / "other"),
    }


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--documents", type=int, default=1000)
    parser.add_argument("--words", type=int, default=150)
    parser.add_argument("--shard-bytes", type=int, default=20_000)
    parser.add_argument("--model", default="entities_en_small")
    parser.add_argument("--next-model", default="entities_multi")
    arguments = parser.parse_args()
    print(json.dumps({**environment(Path(__file__).name), **measure(arguments)}, indent=1))


if __name__ == "__main__":
    main()
