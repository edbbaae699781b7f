"""A collection of documents that are difficult to export, annotated with fakes."""

import json
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from concord.pipeline.plan import Plan
from concord.pipeline.run_report import RunReport
from concord.pipeline.worker.shard_worker import ShardWorker
from concord_testing import fakes
from concord_testing.finished_runs import null_columns
from concord_testing.runs import job, run_job

TEXTS = {
    "plain": "Anna Smith went home. Bob stayed.",
    "news/a b%.txt": "one Anna. two",
    "line\nid\t": "the Bob.",
    "": "no name but Carla.",
    ".hidden": "x",
    "é" * 150: "Zoë ran.",
    "empty": "",
    "blank": " \n\t ",
    "emoji": "\U0001f600 Anna met \U0001f469\u200d\U0001f467 Bob\U0001f44d\U0001f3fd Jones. "
    "E\u0301mile cafe\u0301 \U0001f600.",
    "crlf": "one\r\nAnna\r\nSmith left.\r\n\r\nBob\rLee  \n Roe",
    "separators": "\n a\u2028Anna \t\n Smith\u00a0b \ufeffBob\u0085 10\t000 New\r\n York.",
    "mark": "\ufeff Anna _ # 1-2 = | \\.",
    "seam": "a b c d e f Anna Maria Smith Jones k l m n o p Bob. q",
    "mwt": "Il va au Louvre du Roi.",
    "faulty": "PARSERFAULT Anna.",
}
EXPORTED = [doc_id for doc_id in TEXTS if doc_id != "faulty"]
MULTI_WORD = {"au": ("a", "le"), "du": ("de", "le")}

_TOKEN = r"10\s+000|New\s+York|\S+"


def build_multi_word_worker(plan: Plan) -> ShardWorker:
    """Build a worker for whose parser some tokens contain white space, and others are of two words."""
    null = null_columns([part for part in ("trees", "tags") if not getattr(plan.config.parser, part)])
    fields = {"upos": "NOUN", "xpos": "NN", "feats": "Number=Sing", **null}
    parse_one = partial(fakes.parsed_document, token=_TOKEN, forms=MULTI_WORD, fields=fields)
    return ShardWorker(plan, parser=fakes.FakeParser(parse_one=parse_one), tagger=fakes.FakeTagger())


def annotate_texts(source: Path, output: Path, /, **changes: Any) -> RunReport:
    """Annotate a collection with ``build_multi_word_worker``."""
    config = job(source, output, max_dead_letters=0.5, **changes)
    return run_job(config, build=build_multi_word_worker)


def write_texts(path: Path, texts: dict[str, str]) -> Path:
    """Write a collection: a Parquet or JSONL file, or a folder of text files."""
    records = [{"id": doc_id, "text": text, "number": number} for number, (doc_id, text) in enumerate(texts.items())]
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(records), path, row_group_size=3)
    elif not path.suffix:
        path.mkdir(exist_ok=True)
        for doc_id, text in texts.items():
            (path / doc_id).write_bytes(text.encode())
    else:
        with pa.output_stream(path) as stream:
            stream.write("".join(json.dumps(record) + "\n" for record in records).encode())
    return path


class Row(NamedTuple):
    """The fields of an entity that every export format has."""

    start: int
    end: int
    label: str


def entities(output: Path, doc_id: str) -> list[Row]:
    """Return a document's entities from the table."""
    rows = table(output, "entities", doc_id)
    return [Row(row["start_char"], row["end_char"], row["label"]) for row in rows]


def table(output: Path, name: str, doc_id: str) -> list[dict[str, Any]]:
    """Return a document's rows of a table; the rows are cached, so the collection must not change."""
    return [row for row in _all_rows(output / name) if row["doc_id"] == doc_id]


def sentences(output: Path, doc_id: str) -> list[list[dict[str, Any]]]:
    """Return a document's rows of the table of tokens, by sentence."""
    rows = table(output, "tokens", doc_id)
    return [list(group) for _, group in groupby(rows, key=lambda row: row["sent_id"])]


@cache
def _all_rows(table: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(table).to_pylist()
    return rows
