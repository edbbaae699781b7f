"""Compare Concord with what users would take instead: Stanza, spaCy and Flair on the same texts, core and gold words.

Command: python benchmarks/bench_peers.py --corpora ../shared/data/labelled
    --input ../shared/data/text/us_presidents.jsonl.zst --folder out/peers
    --summary benchmarks/results/peers_cpu_202611.json --picture docs/peers.png

The set-up makes an environment for each peer below --folder, and trains there what no index has, on one core; what is
already there is used again. Then every peer is loaded into a process of its own, all on one core and with one thread.
In each round all peers annotate the same --words words, one after the other, in an order that rotates; no text comes
twice, so that nothing is remembered from an earlier round. Words are those of Concord's parser, whatever a peer counts.
Texts are given by the batch call that the documentation of each peer recommends. At last each peer labels the gold
words of the EWT test part. ``peers.py`` has the peers, each in one function.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import peers
from corpora import read_texts
from environment import environment, quartiles
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter
from peer_training import TRAININGS
from peers import ENCODING, PEERS, Peer

from concord.models.data.sentence import Sentence
from concord.models.evaluation.metrics import seqeval_f1, span_scores
from concord.pipeline.config import ParserConfig
from concord.pipeline.documents import Document, ParsedDocument
from concord.pipeline.parsing.stanza_parser import StanzaParser
from concord.workflows.corpora.corpora import read_corpora
from concord.workflows.evaluation.plots import BLUE, ORANGE

ROOT = Path(__file__).resolve().parents[1]
PRETRAINED = ROOT / "models" / "pretrained"
HERE = "concord"
HOMES: dict[str, tuple[str, ...]] = {
    "stanza": ("torch==2.13.0", "stanza==1.15.0"),
    "spacy": ("spacy==3.8.18",),
    "flair": ("torch==2.13.0", "flair==0.15.1"),
}
SETS = {
    "ewt": ("ewt_uner/train",),
    "default_entities": ("ewt_uner/train", "ewt_uner/train", "wikigold/train", "gum_ne_open/train"),
}
"""Of the trainings; EWT counts twice where the default model reads it twice an epoch."""
DEV, TEST = "ewt_uner/dev", "ewt_uner/test"
TYPES: dict[str, str | None] = {"GPE": "LOC", "FAC": "LOC", "VEH": None, "MISC": None}
ONE_THREAD = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"), "1"),
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
}
REFERENCES = {"whole": "Concord entities_en", "parse": "Concord parser_en", "tag": "Concord entities_en"}
TITLES = {
    "whole": ("From raw text to trees and entities", "entities: F1"),
    "tag": ("From given words to entities", "entities: F1"),
    "parse": ("From raw text to trees", "trees: LAS"),
}
WARM_UP_WORDS = 1_000
MADE = "made.json"

Documents = Sequence[Sequence[Sentence]]


def python_of(home: str, folder: Path) -> str:
    """Return the interpreter of an environment."""
    return sys.executable if home == HERE else str(folder / f"{home}_env" / "bin" / "python")


def set_up(homes: Collection[str], folder: Path, corpora: Path, left_out: Mapping[str, str]) -> dict[str, str]:
    """Make the environments, and the trainings in them, that are missing.

    Returns:
        what is left out, an environment or a training, with the reason; what could not be made is added.
    """
    failures = dict(left_out)
    for home in HOMES.keys() & homes - failures.keys():
        if reason := _once(folder / f"{home}_env", partial(_install, home, folder)):
            failures[home] = reason
    for name, training in TRAININGS.items():
        if training.home not in homes or failures.keys() & {training.home, name}:
            continue
        if reason := _once(folder / name, partial(_train, name, folder, corpora)):
            failures[name] = reason
    return failures


def _once(target: Path, make: Callable[[], None]) -> str | None:
    """Make a folder unless a note in it says that it is complete; return why that failed."""
    note = target / MADE
    if note.exists():
        return None
    target.mkdir(parents=True, exist_ok=True)
    started, used = time.monotonic(), os.times()
    try:
        make()
    except subprocess.CalledProcessError as error:
        return f"exit code {error.returncode}: {_last_line(error.stderr)}"
    now = os.times()
    cpu_seconds = now.children_user + now.children_system - used.children_user - used.children_system
    write_json(note, {"seconds": round(time.monotonic() - started), "cpu_seconds": round(cpu_seconds)})
    return None


def _last_line(text: str | None) -> str:
    return (text or "").strip().rpartition("\n")[2]


def _install(home: str, folder: Path) -> None:
    _call(sys.executable, "-m", "venv", str(folder / f"{home}_env"))
    _call(python_of(home, folder), "-m", "pip", "install", "--quiet", *HOMES[home])


def _train(name: str, folder: Path, corpora: Path) -> None:
    print(f"training {name}", file=sys.stderr)
    training = TRAININGS[name]
    sets = folder / "sets" / training.sets
    for part, names in (("train", SETS[training.sets]), ("dev", (DEV,))):
        sentences = chain.from_iterable(read_corpora(_paths(corpora, names), labels=TYPES))
        write_json(sets / f"{part}.json", [_row(sentence) for sentence in sentences])
    script = Path(__file__).with_name("peer_training.py")
    _call(python_of(training.home, folder), str(script), name, str(sets), str(folder / name))


def _row(sentence: Sentence) -> dict[str, Any]:
    return {name: getattr(sentence, name) for name in ("words", "labels", "tags", "heads", "relations")}


def _call(*command: str) -> None:
    subprocess.run(
        command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=_environment()
    )


def _environment(home: str = "") -> dict[str, str]:
    values = {**os.environ, **ONE_THREAD}
    values.pop("PYTHONPATH", None)
    return values | ({"PYTHONPATH": str(ROOT)} if home == HERE else {})


def _paths(corpora: Path, names: Sequence[str]) -> list[str]:
    """Return the files of parts of corpora, whatever their format."""
    return [str(next((corpora / name).parent.glob(f"{Path(name).name}.*"))) for name in names]


def write_json(path: Path, value: object) -> None:
    """Write a value, creating the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding=ENCODING)


class Process:
    """A peer in a process of its own.

    Attributes:
        loaded: seconds and memory that loading took.
    """

    def __init__(self, chosen: Peer, folder: Path, core: int) -> None:
        self.peer = chosen
        bundled = PRETRAINED / chosen.model
        model = bundled if bundled.exists() else folder / chosen.model
        script = Path(peers.__file__)
        self._process = subprocess.Popen(
            [python_of(chosen.home, folder), str(script), chosen.key, str(model), str(core)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_environment(chosen.home),
            cwd=ROOT,
            text=True,
            encoding=ENCODING,
        )
        self.loaded = self._answer()

    def ask(self, inputs: Path, *, gold: bool = False) -> dict[str, Any]:
        """Let it annotate a file of inputs."""
        assert self._process.stdin is not None
        print(json.dumps({"inputs": str(inputs), "gold": gold}), file=self._process.stdin, flush=True)
        return self._answer()

    def end(self) -> None:
        """Close its input and wait for its end."""
        self._process.communicate()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.peer.key}: the process ended with exit code {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def write_inputs(source: Path, folder: Path, *, words: int, rounds: int) -> list[tuple[Path, int]]:
    """Write the texts of the warm-up and of each round, consecutive documents; return files and numbers of words."""
    parser = StanzaParser(ParserConfig())
    texts = (text for _, text in read_texts(source))
    files = []
    for number in range(rounds + 1):
        chosen = list(_take(texts, WARM_UP_WORDS if number == 0 else words))
        documents = [_parsed_words(parser, text) for text in chosen]
        path = folder / "inputs" / f"round_{number}.json"
        write_json(path, {"texts": chosen, "words": documents})
        files.append((path, sum(len(sentence) for document in documents for sentence in document)))
    return files


def _take(texts: Iterator[str], words: int) -> Iterator[str]:
    while words > 0:
        text = next(texts)
        words -= len(text.split())
        yield text


def _parsed_words(parser: StanzaParser, text: str) -> list[list[str]]:
    [parsed] = parser.parse([Document(doc_id="0", text=text, source_uri="memory", source_position=0)])
    if not isinstance(parsed, ParsedDocument):
        raise ValueError(parsed.message)
    return [[word.word for word in sentence.words] for sentence in parsed.sentences]


def measure(processes: Sequence[Process], inputs: Sequence[tuple[Path, int]]) -> dict[str, list[dict[str, float]]]:
    """Return the words a second of each peer in each round, by processor time and by the clock."""
    for process in processes:
        process.ask(inputs[0][0])
    found: dict[str, list[dict[str, float]]] = {process.peer.key: [] for process in processes}
    for number, (path, words) in enumerate(inputs[1:]):
        first = number % len(processes)
        for process in (*processes[first:], *processes[:first]):
            answer = process.ask(path)
            row = {"cpu": words / answer["cpu_seconds"], "wall": words / answer["seconds"]}
            found[process.peer.key].append(row | {"words_of_its_own": answer["found"], "peak_mb": answer["peak_mb"]})
            print(process.peer.key, number, {name: round(value) for name, value in row.items()}, file=sys.stderr)
    return found


def entity_scores(gold: Sequence[Sequence[str]], found: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return strict scores of entities in percent; those of seqeval must be the same."""
    overall = span_scores(gold, found)["all"]
    scores = {"f1": overall.f1, "precision": overall.precision, "recall": overall.recall}
    return {name: round(value, 1) for name, value in scores.items()} | {"seqeval_f1": round(seqeval_f1(gold, found), 1)}


def tree_scores(sentences: Sequence[Sentence], found: Sequence[Sequence[Sequence[Any]]]) -> dict[str, float]:
    """Return the percent of words with the gold tag, head, and head and relation without its subtype."""
    right = {"upos": 0, "uas": 0, "las": 0}
    total = 0
    for sentence, row in zip(sentences, found, strict=True):
        columns = (sentence.tags or (), sentence.heads or (), sentence.relations or (), row)
        for tag, head, relation, (found_tag, found_head, found_relation) in zip(*columns, strict=True):
            total += 1
            right["upos"] += tag == found_tag
            right["uas"] += head == found_head
            right["las"] += head == found_head and _universal(relation) == _universal(found_relation)
    return {name: round(100.0 * count / total, 1) for name, count in right.items()}


def _universal(relation: str) -> str:
    return relation.partition(":")[0].lower()


def score(processes: Sequence[Process], gold: Documents, folder: Path) -> dict[str, dict[str, float]]:
    """Return the scores of each model on gold words: of its entities, of its trees, or of both."""
    path = folder / "inputs" / "gold.json"
    write_json(path, [[sentence.words for sentence in document] for document in gold])
    sentences = list(chain.from_iterable(gold))
    scores: dict[str, dict[str, float]] = {}
    for process in processes:
        rows = process.ask(path, gold=True)["rows"]
        if rows is not None:
            is_tag = process.peer.task == "tag"
            labels = [sentence.labels or () for sentence in sentences]
            found = entity_scores(labels, rows) if is_tag else tree_scores(sentences, rows)
            scores.setdefault(process.peer.source, {}).update(found)
    return scores


def versions(home: str, folder: Path) -> dict[str, str]:
    """Return the versions of the packages that were asked for in an environment."""
    names = [package.partition("==")[0] for package in HOMES[home]]
    code = f"import importlib.metadata as m; print(*map(m.version, {names!r}))"
    found = subprocess.run([python_of(home, folder), "-c", code], capture_output=True, text=True, check=True)
    return dict(zip(names, found.stdout.split(), strict=True))


def describe(process: Process, rounds: Mapping[str, Sequence[Mapping[str, float]]], scores: Any) -> dict[str, Any]:
    """Return the row of one peer."""
    chosen = process.peer
    rows = rounds[chosen.key]
    reference = rounds[f"{REFERENCES[chosen.task]}/{chosen.task}"]
    ratios = [row["cpu"] / other["cpu"] for row, other in zip(rows, reference, strict=True)]
    return {
        "peer": chosen.name,
        "task": chosen.task,
        "model": chosen.model,
        "trained_on": SETS[TRAININGS[chosen.model].sets] if chosen.model in TRAININGS else "see its card",
        "words_per_cpu_second": quartiles([row["cpu"] for row in rows], digits=0),
        "words_per_second": quartiles([row["wall"] for row in rows], digits=0),
        f"times_the_speed_of_{REFERENCES[chosen.task].split()[1]}": quartiles(ratios, digits=2),
        "words_of_its_own": sum(row["words_of_its_own"] for row in rows) if chosen.task != "tag" else None,
        "load_cpu_seconds": round(process.loaded["cpu_seconds"], 1),
        "peak_mb": round(rows[-1]["peak_mb"]),
        "ewt_test": scores.get(chosen.source),
    }


def draw(report: Mapping[str, Any], path: Path) -> None:
    """Draw words a second of processor time against F1, or LAS, a panel for each task."""
    figure = Figure(figsize=(12.5, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (task, (title, measure_name)) in zip(figure.subplots(1, len(TITLES)), TITLES.items(), strict=True):
        rows = [row for row in report["peers"] if row["task"] == task]
        key = "las" if task == "parse" else "f1"
        for row in rows:
            speed, height = row["words_per_cpu_second"], row["ewt_test"][key]
            ours = row["peer"].startswith("Concord")
            low, high = speed["quartiles"]
            errors = [[speed["median"] - low], [high - speed["median"]]]
            color, marker = (BLUE, "o") if ours else (ORANGE, "s")
            axes.errorbar(speed["median"], height, xerr=errors, color=color, marker=marker, capsize=2)
            place = {"xytext": (0, 8), "textcoords": "offset points", "ha": "center", "fontsize": "small"}
            axes.annotate(row["peer"].removeprefix("Concord "), (speed["median"], height), color=color, **place)
        axes.set(title=title, xlabel="words a second of processor time", ylabel=f"{measure_name}, EWT test")
        axes.set(xscale="log")
        axes.margins(x=0.25, y=0.2)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.grid(alpha=0.3, which="both")
        axes.set_axisbelow(True)
    figure.savefig(path, dpi=110, metadata={"Software": None})


def main() -> None:
    """Set up, measure, write the JSON and draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpora", type=Path, required=True)
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True, help="environments, trainings and inputs are kept here")
    parser.add_argument("--summary", type=Path, required=True)
    parser.add_argument("--picture", type=Path, required=True)
    parser.add_argument("--words", type=int, default=20_000, help="in each round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    parser.add_argument("--homes", nargs="+", default=[HERE, *HOMES], choices=[HERE, *HOMES], help="only these peers")
    parser.add_argument("--leave-out", nargs=2, action="append", default=[], metavar=("NAME", "REASON"))
    options = parser.parse_args()

    folder = options.folder.resolve()
    left_out = set_up(options.homes, folder, options.corpora, dict(options.leave_out))
    inputs = write_inputs(options.input, folder, words=options.words, rounds=options.rounds)
    chosen = [entry for entry in PEERS.values() if entry.home in options.homes and not entry.needs & left_out.keys()]
    processes = [Process(entry, folder, options.core) for entry in chosen]
    load_before = os.getloadavg()
    rounds = measure(processes, inputs)
    gold = read_corpora(_paths(options.corpora, [TEST]), labels=TYPES, trees=True)
    scores = score(processes, gold, folder)
    homes = sorted({entry.home for entry in chosen} - {HERE})
    report = {
        **environment("bench_peers.py"),
        "peer_versions": {home: versions(home, folder) for home in homes},
        "config": {"threads": 1, "rounds": options.rounds, "words_of_each_round": [words for _, words in inputs[1:]]},
        "load": [[round(value, 1) for value in load] for load in (load_before, os.getloadavg())],
        "trainings": {
            name: json.loads((folder / name / MADE).read_text(encoding=ENCODING))
            for name in sorted({name for entry in chosen for name in entry.needs} & TRAININGS.keys())
        },
        "left_out": left_out,
        "peers": [describe(process, rounds, scores) for process in processes],
    }
    for process in processes:
        process.end()
    options.summary.write_text(json.dumps(report, indent=1) + "\n")
    draw(report, options.picture)


if __name__ == "__main__":
    main()
