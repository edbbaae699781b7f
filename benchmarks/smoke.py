"""Run every benchmark on a tiny input, so that one that has stopped working is noticed.

Command: python benchmarks/smoke.py, or with the names of some, as in: python benchmarks/smoke.py bench_crf bench_papers

All run in one process, since importing torch in forty takes longer than they do. One that needs minutes, a server or
another environment checks its options here, and runs one piece.
"""

import importlib
import json
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

import concord
from concord.models.bundles.checkpoint import load_tagger

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
CORPORA = ("ewt_uner", "crossner_science")
TEXT = "Ada Kerr met Mr. Brown in Geneva on 3 May. Brown paid her $5 and left for Turin."
WINDOW = {
    "id": "one",
    "source": "us_presidents",
    "window": [0, len(TEXT)],
    "sentences": [{"start": 0, "end": 42, "sha256": "", "entities": [[0, 8, "PER"], [26, 32, "LOC"]]}],
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """How a benchmark runs here.

    Attributes:
        options: of its command; {corpora}, {text}, {collection} and {out} are paths.
        constants: values of the module that make it small.
        piece: what runs in place of ``main``, given the module and the paths; the options are then those of --help.
    """

    options: str = "--help"
    constants: Mapping[str, Any] = field(default_factory=dict)
    piece: Callable[[Any, Mapping[str, Path]], object] | None = None


def stored(name: str) -> dict[str, Any]:
    """Return the figures of a benchmark."""
    report: dict[str, Any] = json.loads((RESULTS / f"{name}_cpu_202611.json").read_text(encoding="utf-8"))
    return report


def draw_peers(module: Any, paths: Mapping[str, Path]) -> None:
    """Draw and print the figures of before."""
    report = stored("peers")
    module.draw(report, paths["out"] / "peers.png")
    print(*module.tables(report), sep="\n")


def score_identities(module: Any, paths: Mapping[str, Path]) -> None:
    """Score two groups of names."""
    del paths
    assert module.score(["a", "a", "b"], [1, 1, 2])["pairs"]["f1"] == 100.0


def score_a_language(module: Any, paths: Mapping[str, Path]) -> None:
    """Score the small tagger on gold words and from the text of a corpus."""
    texts = list(module.read_texts(paths["corpora"] / "ewt_uner" / "dev.conllu"))
    found = module.score(load_tagger(ROOT / "models" / "pretrained" / "entities_en_small"), texts)
    assert found["words"] > 90, found
    assert found["gold_words"]["all"] > 0, found


def measure_local_run(module: Any, paths: Mapping[str, Path]) -> None:
    """Time a run in one process."""
    module.measure(
        paths["text"],
        paths["out"] / "scaled",
        model="entities_en_small",
        shard_bytes=1000,
        executor=module.WAYS["local"],
    )


def change_archive(module: Any, paths: Mapping[str, Path]) -> None:
    """Write an archive, and change it."""
    archive = paths["out"] / "archive"
    new = module.write_archive(archive, [f"{TEXT} " * 100], 60, 10)
    module.change(archive, new)


def compare_with_itself(module: Any, paths: Mapping[str, Path]) -> None:
    """Compare a collection with itself."""
    collection = paths["collection"]
    assert module.part_hashes(collection)
    module.compare_labels(collection, collection, model="entities_en_small", threads=1, batch_words=256)


SMALL = "--models entities_en_small"
TO_FILE = "--corpora {corpora} --summary {out}/summary.json"
ONE_PART = {"PARTS": ("ewt_uner",)}
ONE_WINDOW = {"read_windows": lambda *_: [(TEXT, WINDOW)]}

CASES: Mapping[str, Case] = {
    "bench_annotator": Case(piece=lambda module, paths: module.draw(stored("annotator"), paths["out"] / "drawn.png")),
    "bench_archives": Case(options="--megabytes 0.2 --rounds 1"),
    "bench_broken_files": Case(piece=lambda module, _: module.samples()),
    "bench_calibration": Case(options=f"{TO_FILE} {SMALL}", constants=ONE_PART),
    "bench_cluster": Case(options="--workers 2 --shard-seconds 0.01 --plans 10 --shards 2"),
    "bench_commands": Case(options="--rounds 1", constants={"SET_UP": (), "COMMANDS": {"help": "--help"}}),
    "bench_comparison": Case(
        options="--data {corpora}/ewt_uner/dev.conllu --summary {out}/summary.json --null-trials 2 --power-trials 2 "
        "--power-rounds 20"
    ),
    "bench_crf": Case(options="--labels 9 --sentences 2 --seconds 0.001"),
    "bench_defaults": Case(options=f"{TO_FILE} {SMALL}", constants={"SUITE": ("ewt_uner",)}),
    "bench_diff": Case(options="{collection} {collection} --copies 1 --repeats 1"),
    "bench_disk_faults": Case(options="--stride 1000"),
    "bench_document_memory": Case(options="--corpora {corpora}", constants={"SETS": ("ewt_uner",)}),
    "bench_encoder": Case(
        options="--corpora {corpora} --rounds 1 --model entities_en_small", constants=ONE_PART | {"PROCESSORS": {}}
    ),
    "bench_executors": Case(piece=compare_with_itself),
    "bench_few_labels": Case(
        options="--corpus {corpora}/crossner_science --work {out}/few --summary {out}/summary.json --sizes 4 --seeds 1 "
        "--unlabelled 2 --taggers BiLSTM-CRF",
        constants={"DEV": 3},
    ),
    "bench_generations": Case(piece=change_archive),
    "bench_gpu": Case(
        options="--gold {corpora}/ewt_uner/dev.conllu --words 40 --summary {out}/summary.json --turns 1 " + SMALL
    ),
    "bench_guarantee": Case(
        options=f"{TO_FILE} --model entities_en_small", constants={"HALVES": 2, "RECALLS": (0.5,), "LANGUAGES": ()}
    ),
    "bench_hand_checked": Case(options="--texts {out} --summary {out}/summary.json " + SMALL, constants=ONE_WINDOW),
    "bench_identities": Case(piece=score_identities),
    "bench_kills": Case(piece=lambda module, _: module.draw_trials(1, steps=5, local=1, ray=1, actors=1)),
    "bench_languages": Case(piece=score_a_language),
    "bench_other_models": Case(piece=lambda module, _: print(*module.tables(stored("other_models")), sep="\n")),
    "bench_papers": Case(options="--lengths 5 --words 20 --turns 1 --device cpu"),
    "bench_parse": Case(options="--data {text} --words 20 --pairs 2"),
    "bench_parts": Case(),
    "bench_pdf": Case(options="--pages 3 --rounds 1"),
    "bench_peers": Case(piece=draw_peers),
    "bench_planning": Case(options="--documents 10 20"),
    "bench_readers": Case(options="--reads 5 --documents 4 --grace-seconds 5"),
    "bench_repeats": Case(options="--length 200 --shapes a --words 24"),
    "bench_scaling": Case(piece=measure_local_run),
    "bench_serving": Case(piece=lambda module, _: module.make_texts(2)),
    "bench_soak": Case(options="--seconds 0 --workers fake --executors local --documents 4 --words 20"),
    "bench_store_faults": Case(),
    "bench_trees": Case(options="--corpus {corpora}/ewt_uner --work {out}/trees --summary {out}/summary.json"),
    "bench_types": Case(
        options="--texts {out} --summary {out}/summary.json --corpora {corpora} --teacher entities_en_small",
        constants=ONE_WINDOW,
    ),
    "bench_view": Case(options="{collection} --copies 1 --pages 7"),
}


def make_inputs(folder: Path) -> dict[str, Path]:
    """Write the corpora, a text and an annotated collection, and return their paths."""
    paths = {name: folder / name for name in ("corpora", "collection", "out")}
    for corpus in CORPORA:
        (paths["corpora"] / corpus).mkdir(parents=True)
        for part, name in {"train": "train", "dev": "dev", "test": "train"}.items():
            shutil.copy(ROOT / f"examples/train/{name}.conllu", paths["corpora"] / corpus / f"{part}.conllu")
    paths["out"].mkdir()
    paths["text"] = folder / "us_presidents.jsonl"
    paths["text"].write_text("".join(json.dumps({"id": f"{n}", "text": TEXT}) + "\n" for n in range(4)))
    concord.annotate(str(paths["text"]), str(paths["collection"]), model="entities_en_small")
    return paths


def run(name: str, case: Case, folder: Path, inputs: Mapping[str, Path]) -> None:
    """Run a benchmark; raise what it raises."""
    paths = {**inputs, "out": folder / name}
    paths["out"].mkdir()
    module = importlib.import_module(name)
    for constant, value in case.constants.items():
        getattr(module, constant)  # a constant that is gone is no constant that makes it small
        setattr(module, constant, value)
    options = case.options if case.piece is None else "--help"
    sys.argv = [f"{name}.py", *shlex.split(options.format(**paths))]
    try:
        module.main()
    except SystemExit as error:
        if error.code:
            raise
    if case.piece is not None:
        case.piece(module, paths)


def main() -> None:
    """Run the benchmarks that are named, or all, and exit with 1 if one fails."""
    names = sys.argv[1:] or list(CASES)
    if missing := {path.stem for path in Path(__file__).parent.glob("bench_*.py")} - set(CASES):
        raise SystemExit(f"benchmarks/smoke.py has no case of {', '.join(sorted(missing))}")
    failed = []
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        inputs = make_inputs(Path(folder))
        for name in names:
            said, started = StringIO(), time.process_time()
            try:
                with redirect_stdout(said), redirect_stderr(said):
                    run(name, CASES[name], Path(folder), inputs)
            except (Exception, SystemExit) as error:
                failed.append(name)
                print(said.getvalue(), f"{name}: {type(error).__name__}: {error}", sep="\n", flush=True)
            else:
                print(f"{name}: {time.process_time() - started:.1f} s", flush=True)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
