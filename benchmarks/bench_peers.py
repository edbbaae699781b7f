"""Compare Concord with what users would take instead, spaCy and Stanza, on the same texts, core and gold words.

Command: python benchmarks/bench_peers.py --corpora ../shared/data/labelled
    --input ../shared/data/text/us_presidents.jsonl.zst --input ../shared/data/text/gutenberg_chapters.jsonl.zst
    --input ../shared/data/text/factbook.jsonl.zst --folder out/peers
    --summary benchmarks/results/peers_cpu_202611.json --picture docs/peers.png

spaCy and its pipeline en_core_web_sm are installed into an environment below --folder, unless they are there. Every
peer is loaded into a process of its own, all on one core and with one thread. In each round, and for each kind of text,
all peers annotate the same passages, one after the other, in an order that rotates; no passage comes twice. Concord
does all that ``concord annotate`` does once it has loaded its models, from planning to Parquet tables and report; the
others do their batch calls, whose results stay in memory. Words are those that Concord counts, whatever a peer does. A
ratio to spaCy is of the same passages, and of spaCy at the same level: entities alone, with tags and lemmas, or with
trees as well. At last each peer labels the gold words of the test parts. ``peers.py`` has the peers.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import mean
from typing import Any

import peers
from corpora import write_chunks
from english_types import TYPES, scored
from environment import environment, quartiles
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter
from peers import ENCODING, PEERS, ROOT, SPACY, Peer

from concord.models.data.sentence import Sentence
from concord.models.evaluation.metrics import gold_sequences, span_scores
from concord.workflows.corpora import read_corpora
from research.plots import BLUE, GREY, ORANGE

REQUIREMENTS = Path(__file__).with_name("requirements-spacy.txt")
PARTS = {
    "ewt_uner": "EWT",
    "gum_ne_open": "GUM",
    "wikigold": "WikiGold",
    "litbank_prop": "LitBank",
    "btc": "Broad Twitter",
}
SCORES = ("f1", "precision", "recall")
TREES = "ewt_uner"
"""The part whose trees are scored."""
ONE_THREAD = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"), "1"),
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
}
TITLES = {
    "entities_multi": "Concord entities_multi",
    "entities_en_small": "Concord entities_en_small",
    SPACY: "spaCy en_core_web_sm",
}
DRAWN = {"trees": ("with trees", None, "right"), "entities": ("entities only", "white", "left")}
"""The levels in the picture: what their points are called, how they are filled, and where the names are."""
OPTIONAL = [key for key, peer in PEERS.items() if peer.system not in TITLES]
COUNTING = "entities_multi/trees"
"""The peer whose words are counted."""
PASSAGE_WORDS = 1_000

Rounds = Mapping[str, Sequence[Mapping[str, Mapping[str, float]]]]
"""By kind of text, for each round what each peer answered."""


def spacy_python(folder: Path) -> str:
    """Return the interpreter of spaCy's environment, which is made if it is missing."""
    python = folder / "spacy_env" / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet"]
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(python.parents[1])], check=True)
    subprocess.run([*pip, "spacy==3.8.18"], check=True)
    subprocess.run([*pip, "--no-deps", "--require-hashes", "-r", str(REQUIREMENTS)], check=True)
    return str(python)


class Process:
    """A peer in a process of its own.

    Attributes:
        loaded: seconds and memory that loading took.
    """

    def __init__(self, peer: Peer, python: str, core: int) -> None:
        self.peer = peer
        self._process = subprocess.Popen(
            [python, str(Path(peers.__file__)), peer.key, str(core)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **ONE_THREAD, "PYTHONPATH": "" if peer.system == SPACY else str(ROOT)},
            text=True,
            encoding=ENCODING,
        )
        self.loaded = self._answer()

    def ask(self, work: str, inputs: Path) -> dict[str, Any]:
        """Let it ``run``, ``label`` or ``parse`` a file of inputs."""
        assert self._process.stdin is not None
        print(json.dumps([work, str(inputs)]), file=self._process.stdin, flush=True)
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


def write_rounds(source: Path, folder: Path, *, words: int, rounds: int) -> list[Path]:
    """Write passages from all over a collection: a file for the warm-up, and one for each round."""
    kind = folder / kind_of(source)
    kind.mkdir(parents=True, exist_ok=True)
    passages = kind / "passages.jsonl"
    count = 1 + rounds * (words // PASSAGE_WORDS)
    if write_chunks([source], passages, words=PASSAGE_WORDS, count=count) < count:
        raise ValueError(f"{source}: expected {count} passages of {PASSAGE_WORDS} words or more")
    first, *others = passages.read_text(encoding=ENCODING).splitlines(keepends=True)
    files = []
    for number, lines in enumerate([[first], *(others[start::rounds] for start in range(rounds))]):
        files.append(kind / f"{number}.jsonl")
        files[-1].write_text("".join(lines), encoding=ENCODING)
    return files


def kind_of(source: Path) -> str:
    """Return what a kind of text is called."""
    return source.name.partition(".")[0]


def measure(processes: Sequence[Process], inputs: Mapping[str, Sequence[Path]]) -> Rounds:
    """Let all peers annotate all inputs in turns; the first files are for the warm-up."""
    found: dict[str, list[dict[str, dict[str, float]]]] = {kind: [] for kind in inputs}
    for number, paths in enumerate(zip(*inputs.values(), strict=True)):
        first = number % len(processes)
        order = (*processes[first:], *processes[:first])
        for kind, path in zip(inputs, paths, strict=True):
            answers = {process.peer.key: process.ask("run", path) for process in order}
            if number:
                found[kind].append(answers)
        print(f"round {number} of {len(paths)}", file=sys.stderr)
    return found


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


def score(processes: Sequence[Process], corpora: Path, folder: Path) -> dict[str, dict[str, Any]]:
    """Return by system the scores of its entities in each test part, and of its trees, on gold words."""
    # The other levels would label the same.
    processes = [process for process in processes if process.peer.level == "trees"]
    scores: dict[str, dict[str, Any]] = {process.peer.system: {"entities": {}} for process in processes}
    for part in PARTS:
        source = next((corpora / part).glob("test.*"))
        gold = read_corpora([str(source)], labels=TYPES, trees=part == TREES)
        path = folder / f"{part}.json"
        path.write_text(json.dumps([[sentence.words for sentence in document] for document in gold]), ENCODING)
        for process in processes:
            values = scores[process.peer.system]
            labels = process.ask("label", path)["found"]
            if labels is not None:
                overall = span_scores(gold_sequences(gold), scored(labels))["all"]
                values["entities"][part] = {name: round(getattr(overall, name), 1) for name in SCORES}
            if part == TREES:
                found = tree_scores(list(chain.from_iterable(gold)), process.ask("parse", path)["found"])
                values["trees"] = {"upos": found["upos"]} if process.peer.system == SPACY else found
    for values in scores.values():
        f1 = [part["f1"] for part in values["entities"].values()]
        values["mean_f1"] = round(mean(f1), 1) if f1 else None
    return scores


def describe(process: Process, rounds: Rounds, scores: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of one peer."""
    key, spacy = process.peer.key, f"{SPACY}/{process.peer.level}"
    answers = list(chain.from_iterable(rounds.values()))
    return {
        "peer": process.peer.system,
        "level": process.peer.level,
        "texts": {kind: _speed(key, spacy, rows) for kind, rows in rounds.items()}
        | {"all": _speed(key, spacy, answers)},
        "words_of_its_own": sum(row[key]["found"] for row in answers),
        "load_seconds": round(process.loaded["cpu_seconds"], 1),
        "peak_mb": round(max(row[key]["peak_mb"] for row in answers)),
        **scores,
    }


def _speed(key: str, spacy: str, rows: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, Any]:
    """Return words a second, by processor time and by the clock, and the ratio to spaCy by processor time."""
    words = [row[COUNTING]["found"] for row in rows]
    by_cpu, by_clock = (
        [count / row[key][clock] for count, row in zip(words, rows, strict=True)]
        for clock in ("cpu_seconds", "seconds")
    )
    ratios = [row[spacy]["cpu_seconds"] / row[key]["cpu_seconds"] for row in rows]
    return {
        "words_per_cpu_second": quartiles(by_cpu, digits=0),
        "words_per_second": quartiles(by_clock, digits=0),
        "times_spacy": quartiles(ratios, digits=2),
    }


def tables(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the rows of two tables in Markdown: speed, and scores."""
    kinds = report["config"]["words"].keys()
    yield line("words/s (times spaCy's)", "level", *kinds, "load", "memory")
    yield line(*["---"] * (len(kinds) + 4))
    for row in report["peers"]:
        speeds = [row["texts"][kind] for kind in kinds]
        medians = [
            f"{speed['words_per_cpu_second']['median']:,.0f} ({speed['times_spacy']['median']})" for speed in speeds
        ]
        yield line(row["peer"], row["level"], *medians, f"{row['load_seconds']} s", f"{row['peak_mb']:,} MB")
    yield "\n" + line("F1", *PARTS.values(), "mean", "parts of speech", "LAS")
    yield line(*["---"] * (len(PARTS) + 4))
    for row in report["peers"]:
        if row["level"] == "trees":
            scores = [row["entities"].get(part, {}).get("f1") for part in PARTS]
            yield line(row["peer"], *scores, row["mean_f1"], row["trees"]["upos"], row["trees"].get("las"))


def line(*cells: object) -> str:
    """Return a row of a table in Markdown."""
    return f"| {' | '.join('' if cell is None else str(cell) for cell in cells)} |"


def draw(report: Mapping[str, Any], path: Path) -> None:
    """Draw words a second against F1: a line for each system, from its speed with trees to that without."""
    rows = {(row["peer"], row["level"]): row for row in report["peers"]}
    with rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(7, 3.6), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        label = partial(axes.annotate, textcoords="offset points")
        for system, title in TITLES.items():
            color = ORANGE if system == SPACY else BLUE
            height = rows[system, "trees"]["mean_f1"]
            speeds = [rows[system, level]["texts"]["all"]["words_per_cpu_second"]["median"] for level in DRAWN]
            axes.plot(speeds, [height] * len(speeds), color=color, linewidth=1)
            for speed, (name, fill, side) in zip(speeds, DRAWN.values(), strict=True):
                axes.plot(speed, height, "o", color=color, markerfacecolor=fill or color, markersize=8)
                label(
                    name, (speed, height), xytext=(5 if side == "right" else -5, -17), color=GREY, ha=side, fontsize=9
                )
            label(title, (speeds[0], height), xytext=(-4, 9), color=color, fontsize=11, fontweight="bold")
        axes.set(xscale="log", xlabel="words a second on one core", ylabel="F1, mean of five test sets")
        axes.margins(x=0.15, y=0.25)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.grid(alpha=0.3)
        axes.set_axisbelow(True)
        figure.savefig(path, dpi=200, metadata={"Software": None})


def main() -> None:
    """Set up, measure, write the JSON, draw the picture and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpora", type=Path, required=True)
    parser.add_argument(
        "--input", type=Path, required=True, action="append", help="a kind of text; give it several times"
    )
    parser.add_argument("--folder", type=Path, required=True, help="spaCy's environment and inputs are kept here")
    parser.add_argument("--summary", type=Path, required=True)
    parser.add_argument("--picture", type=Path, required=True)
    parser.add_argument("--words", type=int, default=20_000, help="of each kind of text in each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    parser.add_argument("--leave-out", action="append", default=[], choices=OPTIONAL)
    options = parser.parse_args()

    folder = options.folder.resolve()
    python = spacy_python(folder)
    inputs = {
        kind_of(source): write_rounds(source, folder, words=options.words, rounds=options.rounds)
        for source in options.input
    }
    processes = [
        Process(peer, python if peer.system == SPACY else sys.executable, options.core)
        for key, peer in PEERS.items()
        if key not in options.leave_out
    ]
    load_before = os.getloadavg()
    rounds = measure(processes, inputs)
    load_after = os.getloadavg()
    scores = score(processes, options.corpora, folder)
    report = {
        **environment("bench_peers.py"),
        "spacy": subprocess.run(
            [python, "-m", "pip", "freeze"], capture_output=True, text=True, check=True
        ).stdout.split(),
        "config": {
            "threads": 1,
            "rounds": options.rounds,
            "words": {kind: [row[COUNTING]["found"] for row in rows] for kind, rows in rounds.items()},
        },
        "load": [[round(value, 1) for value in load] for load in (load_before, load_after)],
        "peers": [describe(process, rounds, scores[process.peer.system]) for process in processes],
    }
    for process in processes:
        process.end()
    options.summary.write_text(json.dumps(report, indent=1) + "\n")
    draw(report, options.picture)
    print(*tables(report), sep="\n")


if __name__ == "__main__":
    main()
