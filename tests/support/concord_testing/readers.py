"""Programs that read a collection in the ways that users do, while a writer changes it again and again.

Every read has to be exactly one generation: its rows are compared, by a hash, with those of each generation.
"""

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest import mock

import duckdb
import pandas as pd
import pyarrow.parquet as pq

import concord
from concord.models.data.outputs import DEFAULT_OPTIONS, Prediction, PredictOptions
from concord.models.data.sentence import Sentence
from concord.pipeline.errors import IntegrityError
from concord.pipeline.output.generations import FolderGenerations, Generation
from concord.pipeline.plan import Plan
from concord.pipeline.planning import planner
from concord.pipeline.storage.atomic_writes import CRASH_STEPS
from concord.pipeline.worker.shard_worker import ShardWorker
from concord_testing import fakes, runs

COLUMNS = ["doc_id", "entity_id", "start_char", "end_char", "label"]
GRACE_SECONDS = 60.0
SECONDS_BETWEEN_READS = 0.1

Answer = Mapping[str, Sequence[Mapping[str, int]]]
"""Kind of reader -> how often it saw each set of rows, and how often it failed with each error."""


def by_pandas(output: Path) -> pd.DataFrame:
    return pd.read_parquet(_entities(output), columns=COLUMNS)


def by_glob(output: Path) -> pd.DataFrame:
    return duckdb.sql(f"SELECT {', '.join(COLUMNS)} FROM '{_entities(output)}/*.parquet'").df()


def _entities(output: Path) -> Path:
    # DuckDB and pyarrow look at each name that they have listed, and leave out those that are gone. Through the link,
    # a listing made while the link is replaced lacks parts.
    return (output / "current").resolve() / "entities"


def by_open(output: Path) -> pd.DataFrame:
    return concord.open(output).to_pandas("entities")[COLUMNS]


def by_manifest(output: Path) -> pd.DataFrame:
    current = (output / "current").resolve()
    shards = json.loads((current / "manifest.json").read_bytes())["shards"]
    return pq.read_table(
        [current / shard["files"]["entities"]["path"] for shard in shards], columns=COLUMNS
    ).to_pandas()


class View:
    """A DuckDB view over the files that ``concord files`` lists; it is made once and used for a while."""

    def __init__(self, *, uses: int = 5) -> None:
        self._connection = duckdb.connect()
        self._uses = uses
        self._left = 0

    def __call__(self, output: Path) -> pd.DataFrame:
        if not self._left:
            files = list(concord.open(output).entities.files)
            self._connection.sql(f"CREATE OR REPLACE VIEW entities AS SELECT * FROM read_parquet({files!r})")
            self._left = self._uses
        self._left -= 1
        return self._connection.sql(f"SELECT {', '.join(COLUMNS)} FROM entities").df()


def readers() -> dict[str, Callable[[Path], pd.DataFrame]]:
    """Return the readers by what they are called in results."""
    return {
        "pandas": by_pandas,
        "DuckDB glob": by_glob,
        "DuckDB view": View(),
        "concord.open": by_open,
        "manifest": by_manifest,
    }


def fingerprint(frame: pd.DataFrame) -> str:
    """Return a hash of rows that does not depend on their order; doubled rows change it."""
    rows = sorted(map(str, frame[COLUMNS].itertuples(index=False, name=None)))
    return sha256("\n".join(rows).encode()).hexdigest()[:16]


class ReaderProcess:
    """A process that reads a collection, once there is one, until it is told to stop and has read often enough."""

    def __init__(self, output: Path, *, seed: int, reads: int = 0, pause: float = SECONDS_BETWEEN_READS) -> None:
        paths = [output.with_name(f"{output.name}.{seed}.{name}") for name in ("started", "stop", "reads.json")]
        for path in paths:
            path.unlink(missing_ok=True)
        started, self._stop, self._answer = paths
        work = partial(_read_often, output, paths, seed=seed, reads=reads, pause=pause)
        self._process = runs.in_child(work)
        while not started.exists() and self._process.is_alive():
            time.sleep(SECONDS_BETWEEN_READS)

    def tell_to_stop(self) -> None:
        """Let it end once it has read often enough."""
        self._stop.touch()

    def is_alive(self) -> bool:
        """Return whether it still reads."""
        return self._process.is_alive()

    def stop(self) -> Answer:
        """Stop it, and return what it saw."""
        self.tell_to_stop()
        self._process.join()
        answer: Answer = json.loads(self._answer.read_text())
        return answer


def _read_often(output: Path, paths: Sequence[Path], *, seed: int, reads: int, pause: float) -> None:
    """Read in random order, and write as JSON how often each kind of reader saw each set of rows, and its failures."""
    started, stop, answer = paths
    chance, kinds = random.Random(seed), readers()
    seen: dict[str, tuple[Counter[str], Counter[str]]] = {name: (Counter(), Counter()) for name in kinds}
    started.touch()
    while reads > 0 or not stop.exists():
        time.sleep(pause)
        if not (output / "current").exists():
            continue
        reads -= 1
        name = chance.choice(list(kinds))
        rows, failures = seen[name]
        try:
            rows[fingerprint(kinds[name](output))] += 1
        except (OSError, IntegrityError, duckdb.Error) as error:
            failures[type(error).__name__] += 1
    answer.write_text(json.dumps(seen))


def kept_generations(output: Path) -> list[str]:
    """Return the fingerprints of the generations that a collection keeps."""
    return [fingerprint(_rows(generation)) for generation in FolderGenerations(output).history()]


def summarize(answers: Sequence[Answer], generations: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return by kind of reader how many reads there were, were not exactly one generation, and failed, and why."""
    found: dict[str, dict[str, Any]] = {}
    for name in readers():
        rows, failures = (sum((Counter(answer[name][part]) for answer in answers), Counter[str]()) for part in (0, 1))
        found[name] = {
            "reads": rows.total() + failures.total(),
            "wrong": sum(number for seen, number in rows.items() if seen not in generations),
            "failed": failures.total(),
            "generations": max(len(answer[name][0]) for answer in answers),
            "errors": sorted(failures),
        }
    return found


def _rows(generation: Generation) -> pd.DataFrame:
    parts = [str(generation.root / part.path) for part in generation.manifest().files("entities")]
    return pq.read_table(parts, columns=COLUMNS).to_pandas() if parts else pd.DataFrame(columns=COLUMNS)


class _Tagger(fakes.FakeTagger):
    """Labels entities by the number of the tagger, so that the rows of two taggers differ."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def predict_documents(
        self, documents: Sequence[Sequence[Sentence]], options: PredictOptions = DEFAULT_OPTIONS, **call: Any
    ) -> list[list[Prediction]]:
        found = super().predict_documents(documents, options, **call)
        return [[self._relabel(prediction) for prediction in document] for document in found]

    def _relabel(self, prediction: Prediction) -> Prediction:
        return replace(
            prediction,
            labels=tuple(label.replace("PER", f"P{self._number}") for label in prediction.labels),
            spans=tuple(replace(span, label=f"P{self._number}") for span in prediction.spans),
        )


def _build(number: int, plan: Plan) -> ShardWorker:
    return ShardWorker(plan, parser=fakes.FakeParser(), tagger=_Tagger(number))


class Writer:
    """Annotates a folder of texts again and again: another tagger, changed texts, merged shards, killed drivers.

    Attributes:
        generations: the fingerprints of the generations so far.
        runs: how often each kind of run was started.
    """

    def __init__(self, folder: Path, *, documents: int, seed: int, grace_seconds: float = GRACE_SECONDS) -> None:
        self.output = folder / "out"
        self.generations: dict[str, str] = {}
        self.runs: Counter[str] = Counter()
        self._archive = folder / "in"
        self._archive.mkdir(parents=True)
        self._chance = random.Random(seed)
        self._documents = documents
        self._number = 0
        self._place = {"path": str(self.output), "grace_seconds": grace_seconds}
        for number in range(documents):
            self._write(number, "Anna saw Bob. Geneva slept.")
        self._run("first")

    def step(self) -> None:
        """Change something and annotate again; one in three drivers is killed on its way."""
        kind = self._chance.choice(["tagger", "texts", "texts", "new texts"])
        if kind == "tagger":
            self._number += 1
        for _ in range(3):
            number = self._chance.randrange(self._documents)
            if kind == "texts":
                self._write(number, f"Carla met {self._chance.random()} and Dora.")
            elif kind == "new texts":
                self._write(
                    self._documents + self._chance.randrange(9), f"New York, {self._chance.random()}, was Eva's."
                )
        if self._chance.random() < 1 / 3:
            self._run("killed", crash_at=f"{self._chance.choice(CRASH_STEPS)}:{self._chance.choice([1, 1, 2, 5])}")
        self._run(kind)

    def _write(self, number: int, text: str) -> None:
        (self._archive / f"t{number:03d}.txt").write_text(text)

    def _run(self, kind: str, *, crash_at: str = "") -> None:
        planning = {"shard_bytes": 400}
        config = runs.job(self._archive, "", output=self._place, planning=planning, max_removed=1.0)
        tagger = replace(runs.TAGGER, digest=f"{self._number:064d}")

        def run() -> None:
            with mock.patch.object(planner, "MERGED_AT", 3):
                runs.run_job(config, tagger=tagger, build=partial(_build, self._number))

        driver = runs.in_child(run, crash_at=crash_at)
        driver.join()
        self.runs[kind] += 1
        if driver.exitcode != 0 and not crash_at:
            raise RuntimeError(f"a driver ended with exit code {driver.exitcode}")
        for generation in FolderGenerations(self.output).history():
            if generation.name not in self.generations:
                self.generations[generation.name] = fingerprint(_rows(generation))


def read_beside_a_writer(
    folder: Path,
    *,
    reads: int,
    documents: int,
    seed: int,
    generations: int = 6,
    grace_seconds: float = GRACE_SECONDS,
) -> dict[str, Any]:
    """Let two readers read while a writer works, and return counts by kind of reader.

    Args:
        reads: of all kinds together, at least.
        generations: the fewest that the writer makes while all readers read.
    """
    writer = Writer(folder, documents=documents, seed=seed, grace_seconds=grace_seconds)
    started = time.monotonic()
    work = [ReaderProcess(writer.output, seed=seed + number, reads=reads // 2, pause=0.0) for number in range(2)]
    enough = len(writer.generations) + generations
    while any(reader.is_alive() for reader in work):
        writer.step()
        if len(writer.generations) >= enough:
            for reader in work:
                reader.tell_to_stop()
    return {
        "generations": len(writer.generations),
        "runs": dict(writer.runs),
        "seconds": round(time.monotonic() - started, 1),
        "readers": summarize([reader.stop() for reader in work], writer.generations.values()),
    }
