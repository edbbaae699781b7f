"""Run the command line in separate processes and read its output folders."""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from concord.models.data.sentence import Sentence

TABLES = ("documents", "sentences", "tokens", "entities", "errors")


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The outcome of a command.

    Attributes:
        values: of ``--json``.
        seconds: wall time from the start of the process to its end.
        cpu_seconds: processor time of the process and of the children it waited for.
    """

    exit_code: int
    values: Mapping[str, Any]
    seconds: float
    cpu_seconds: float


def command_line(*arguments: str) -> list[str]:
    """Return the arguments of a command that runs in this Python."""
    return [sys.executable, "-m", "concord", *arguments, "--json"]


def command_environment() -> dict[str, str]:
    """Return the environment of a command, which starts its own Ray even where the shell names a cluster."""
    environment = os.environ | {"RAY_AUTH_MODE": "disabled"}
    environment.pop("RAY_ADDRESS", None)
    return environment


def concord(*arguments: str) -> Outcome:
    """Run a command to its end; its messages go to stderr.

    Raises:
        RuntimeError: when it prints no JSON.
    """
    started, used = time.monotonic(), _cpu_seconds()
    ended = subprocess.run(
        command_line(*arguments), stdout=subprocess.PIPE, env=command_environment(), text=True, check=False
    )
    seconds, cpu_seconds = time.monotonic() - started, _cpu_seconds() - used
    try:
        values = json.loads(ended.stdout)
    except ValueError:
        raise RuntimeError(f"concord {arguments[0]}: exit code {ended.returncode} and no JSON") from None
    return Outcome(exit_code=ended.returncode, values=values, seconds=seconds, cpu_seconds=cpu_seconds)


def _cpu_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


def model_options(model: str | None) -> list[str]:
    """Return the option that names a model; nothing for the default one."""
    return ["--model", model] if model else []


def part_hashes(output: Path) -> dict[str, str]:
    """Return the sha256 of every file of the five tables, by path relative to the output folder."""
    return {
        path.relative_to(output).as_posix(): sha256(path.read_bytes()).hexdigest()
        for name in TABLES
        for path in sorted((output / name).glob("**/*"))
        if path.is_file()
    }


def read_table(output: Path, name: str, columns: Sequence[str]) -> pa.Table:
    """Read columns of a table, rows in the order of the collection; a table without parts has no rows."""
    parts = sorted((output / name).glob("*.parquet"))
    if not parts:
        return pa.table({column: [] for column in columns})
    return pa.concat_tables([pq.read_table(part, columns=list(columns)).replace_schema_metadata() for part in parts])


def read_sentences(output: Path) -> dict[str, list[Sentence]]:
    """Read the sentences of each document; pieces of an over-long one are joined, as the tagger sees them."""
    sentences = read_table(output, "sentences", ("doc_id", "n_tokens", "continues")).to_pydict()
    words = read_table(output, "tokens", ("word",)).column("word").to_pylist()
    documents: dict[str, list[list[str]]] = {}
    first = 0
    for doc_id, length, continues in zip(
        sentences["doc_id"], sentences["n_tokens"], sentences["continues"], strict=True
    ):
        document = documents.setdefault(doc_id, [])
        if not continues:
            document.append([])
        document[-1].extend(words[first : first + length])
        first += length
    return {
        doc_id: [Sentence(words=tuple(sentence)) for sentence in document] for doc_id, document in documents.items()
    }
