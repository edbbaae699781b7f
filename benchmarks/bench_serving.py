"""Request the entities of many short texts from a served model over HTTP and compare them with those of annotate.

Command: python benchmarks/bench_serving.py -o out/bench_serving

The model is registered in a new store, used by annotate as models:/served@live, and served by MLflow's own command from
there. The texts are windows of examples/news and sentences made from lists; each is a separate request.
"""

import argparse
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice, product
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import mlflow
from concord_runs import command_environment, concord, read_table
from environment import environment

from concord.models.bundles.checkpoint import load_tagger
from concord.models.data.outputs import known_numbers
from concord.pipeline.config import ParserConfig, TaggerRunConfig
from concord.pipeline.documents import AnnotatedDocument, Document
from concord.pipeline.output.shard_stats import NEAR_TIE
from concord.pipeline.parsing.stanza_parser import StanzaParser
from concord.pipeline.worker.stages import ParseStage, TagStage
from concord.workflows.registry import BUNDLED_FOLDER

CHECKOUT = Path(__file__).resolve().parents[1]
REFERENCE = "models:/served@live"
STARTS_WITHIN = 300.0
NUMBERS = ("confidence", "uncertainty")
PEOPLE = ("Ingrid Solberg", "Tomasz Wrona", "Amina Yusuf", "Pell", "Zoë Brontë", "Dr. Okafor", "J. P. van der Meer")
PLACES = ("Lincoln", "São Tomé", "the Humber", "New Delhi", "Łódź", "Washington")
GROUPS = ("Baxter Marine", "the Ports Trust", "UNESCO", "Northern Rail")
FRAMES = (
    "{person} left {place} for good.",
    "\u201c{group} owes us an answer,\u201d said {person} in {place}.",
    "  {group} (based in {place})\twill sue {person} \U0001f389.",
)
BAD_REQUESTS: tuple[tuple[str, bytes, str], ...] = (
    ("a null", b'{"inputs": [null]}', "application/json"),
    ("a number", b'{"inputs": [3]}', "application/json"),
    ("half a surrogate pair", b'{"inputs": ["\\ud800"]}', "application/json"),
    ("another column", b'{"dataframe_records": [{"body": "Paris"}]}', "application/json"),
    ("no known key", b'{"text": "Paris"}', "application/json"),
    ("broken JSON", b'{"inputs": ["Pa', "application/json"),
    ("CSV", b"text\nParis\n", "text/csv"),
    ("plain text", b"Paris", "text/plain"),
)


def make_texts(count: int) -> list[str]:
    """Return distinct short texts: windows of one to three sentences of the sample collection, and made ones."""
    made = (
        frame.format(person=person, place=place, group=group)
        for frame, person, place, group in product(FRAMES, PEOPLE, PLACES, GROUPS)
    )
    texts = dict.fromkeys([*_windows(), *made])
    if len(texts) < count:
        raise ValueError(f"expected {count} texts, made {len(texts)}")
    return list(islice(texts, count))


def _windows() -> Iterator[str]:
    for line in (CHECKOUT / "examples" / "news" / "news.jsonl").read_bytes().split(b"\n"):
        try:
            text = json.loads(line)["text"]
        except ValueError:
            continue
        sentences = re.split(r"(?<=[.!?\"])\s+", text)
        for length, start in product((1, 2, 3), range(len(sentences))):
            yield " ".join(sentences[start : start + length])


def annotate(texts: list[str], folder: Path) -> tuple[list[list[dict[str, Any]]], dict[str, Any]]:
    """Return the entities that annotate finds in each text, and what the command reported."""
    source = folder / "texts.jsonl"
    lines = (json.dumps({"id": str(number), "text": text}) + "\n" for number, text in enumerate(texts))
    source.write_text("".join(lines))
    shutil.rmtree(folder / "out", ignore_errors=True)
    done = concord("annotate", str(source), "--output", str(folder / "out"), "--model", REFERENCE)
    if done.exit_code or done.values["annotated"] != len(texts):
        raise RuntimeError(f"annotate ended with {done.exit_code}: {done.values}")
    found: list[list[dict[str, Any]]] = [[] for _ in texts]
    columns = ("start_char", "end_char", "text", "label", *NUMBERS)
    for row in read_table(folder / "out", "entities", ("doc_id", *columns)).to_pylist():
        found[int(row["doc_id"])].append({name: row[name] for name in columns})
    return found, {"seconds": round(done.seconds, 1), "near_ties": done.values["counts"].get("near_ties")}


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve the live version with MLflow's own command and yield the address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "models", "serve", "--model-uri", REFERENCE, "--env-manager", "local"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    settings = {"PATH": path, "PYTHONPATH": str(CHECKOUT), "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false"}
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--port", str(port)],
            env=command_environment() | settings,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        _await(f"http://127.0.0.1:{port}/ping", process)
        yield f"http://127.0.0.1:{port}/invocations"
    finally:
        process.terminate()
        process.wait(timeout=60)


def _await(address: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + STARTS_WITHIN
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urlopen(address, timeout=5).close()
        except OSError:
            time.sleep(0.5)
        else:
            return
    raise RuntimeError("the server did not start; see server.log")


def ask(address: str, body: bytes, content_type: str = "application/json") -> tuple[int, Any]:
    """Send a request and return status and answer."""
    try:
        with urlopen(Request(address, data=body, headers={"Content-Type": content_type}), timeout=120) as response:
            return response.status, json.load(response)
    except HTTPError as error:
        return error.code, error.read().decode()


def ask_all(address: str, texts: list[str]) -> tuple[list[list[dict[str, Any]]], list[float]]:
    """Request each text after the other and return its entities and the seconds it took."""
    found, seconds = [], []
    for text in texts:
        started = time.perf_counter()
        status, answer = ask(address, json.dumps({"inputs": [text]}).encode())
        seconds.append(time.perf_counter() - started)
        if status != 200:
            raise RuntimeError(f"{text!r}: status {status}: {answer}")
        found.append(answer["predictions"][0])
    return found, seconds


def compare(
    texts: list[str], expected: list[list[dict[str, Any]]], got: list[list[dict[str, Any]]], *, model: Path
) -> dict[str, Any]:
    """Count texts whose entities differ, and mark near ties among them."""
    different = [number for number in range(len(texts)) if _plain(expected[number]) != _plain(got[number])]
    pairs = [
        (one, other)
        for number in set(range(len(texts))) - set(different)
        for one, other in zip(expected[number], got[number], strict=True)
    ]
    return {
        "texts": len(texts),
        "entities": sum(map(len, expected)),
        "texts_with_equal_entities": len(texts) - len(different),
        "texts_that_differ": [
            {"text": texts[number], "annotate": expected[number], "served": got[number], "near_tie": near}
            for number, near in zip(different, _near_ties([texts[number] for number in different], model), strict=True)
        ],
        "largest_difference": {
            name: max((abs(one[name] - other[name]) for one, other in pairs), default=0.0) for name in NUMBERS
        },
    }


def _plain(entities: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [tuple(entity[name] for name in ("start_char", "end_char", "text", "label")) for entity in entities]


def _near_ties(texts: list[str], model: Path) -> list[bool]:
    """Return whether each text has a word so near to another label or to the threshold that rounding decides."""
    if not texts:
        return []
    tagger = load_tagger(model)
    limit = tagger.threshold if tagger.threshold is not None else float("inf")
    documents = [
        Document(doc_id=str(number), text=text, source_uri="", source_position=number)
        for number, text in enumerate(texts)
    ]
    parsed = ParseStage(StanzaParser(ParserConfig()), batch_documents=100).run(documents)
    return [
        isinstance(outcome, AnnotatedDocument)
        and any(
            margin < NEAR_TIE or abs(nats - limit) < NEAR_TIE
            for prediction in outcome.predictions
            for margin, nats in zip(*map(known_numbers, (prediction.margins, prediction.uncertainty)), strict=True)
        )
        for outcome in TagStage(tagger, TaggerRunConfig()).run(parsed)
    ]


def main() -> None:
    """Register, annotate, serve, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="entities_multi", help="an embedded tagger")
    parser.add_argument("--requests", type=int, default=1_000)
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder of store, texts and tables")
    arguments = parser.parse_args()
    folder = arguments.output.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/mlflow.db"
    os.environ["CONCORD_CACHE"] = str(folder / "cache")
    model, texts = BUNDLED_FOLDER / arguments.model, make_texts(arguments.requests)
    concord("registry", "register", str(model), "--name", "served", "--alias", "live")
    expected, annotated = annotate(texts, folder)
    with served(folder) as address:
        got, seconds = ask_all(address, texts)
        refused = {name: ask(address, body, content_type)[0] for name, body, content_type in BAD_REQUESTS}
    cuts = statistics.quantiles(seconds, n=20)
    report = {
        **environment(Path(__file__).name),
        "mlflow": mlflow.__version__,
        "model": arguments.model,
        "comparison": compare(texts, expected, got, model=model),
        "annotate": annotated,
        "seconds_a_request": {"median": round(statistics.median(seconds), 4), "p95": round(cuts[-1], 4)},
        "requests_a_second": round(len(texts) / sum(seconds), 2),
        "status_of_bad_requests": refused,
    }
    print(json.dumps(report, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
